// Package load contains the API handlers for the load of the coming hours: how many runs fall due in each minute, which
// minutes have the most, what makes them, and what would lower them.
//
// The owners of the shards count (package readmodel). No node knows which minutes have the most runs in the whole cluster.
// So the owners are asked for the runs of each minute, and for what makes those of the minutes that had the most at the last
// time. They are asked a second time if it is others now.
package load

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxMakers is how many makers of a minute are listed.
	maxMakers = 5
	// maxSeconds is how many of its seconds are.
	maxSeconds = 5
)

// Handlers serve the load. They are safe for concurrent use.
type Handlers struct {
	Asker *ask.Asker
	Now   httpapi.Clock

	peaks peakMemory
}

const loadAbout = "What falls due, in the minutes of UTC: limits such as max_runs, overlap policies and freezes are not considered, nor are manual runs and retries. " +
	"Paused tasks count from the end of their pause. The nodes that own the shards count; missing names the shards for which no node has answered."

// Routes returns the operations on the load.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get = http.MethodGet
	answer := reflect.TypeFor[client.TaskLoad]()

	return []*httpapi.Operation{
		{ID: "get-load", Method: get, Path: "/v1/load", Tag: "tasks", Summary: "Read how many runs fall due in the coming hours, in all namespaces",
			Description: loadAbout, Status: 200, Answer: answer, Errors: []int{429}, Handler: httpapi.Query(h.getLoad)},
		{ID: "get-namespace-load", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.InNamespace + "/load", Tag: "tasks", Summary: "Read how many runs fall due in the coming hours, in a namespace",
			Description: loadAbout, Status: 200, Answer: answer, Errors: []int{429}, Handler: httpapi.Query(h.getLoad)},
	}
}

// loadQuery are the parameters of a request for the load.
type loadQuery struct {
	Query readmodel.QueryLine `query:"q" doc:"Only tasks that match this query: \"label:team=data\"."`
	Span  wholeMinutes        `query:"span" default:"24h0m0s" example:"24h" doc:"How far to look ahead: a duration of whole minutes, at most 24h."`
	Step  wholeMinutes        `query:"step" default:"1m0s" example:"5m" doc:"The length of a step, in whole minutes. The span must be a multiple of it."`
	Peaks int                 `query:"peaks" minimum:"0" maximum:"20" default:"5" doc:"The maximum number of peaks."`

	Minute task.Time `query:"minute" format:"date-time" direction:"future" doc:"Also return what makes the runs of the minute that begins then, which must be within the span."`
}

// wholeMinutes is a number of minutes as a query parameter.
type wholeMinutes int

// UnmarshalText parses a duration of whole minutes.
func (m *wholeMinutes) UnmarshalText(text []byte) error {
	d, err := task.ParseDuration("", string(text))
	if err != nil {
		return err
	}

	if d.Std() < time.Minute || d.Std() > readmodel.MaxLoadMinutes*time.Minute || d.Std()%time.Minute != 0 {
		return task.Invalid(task.CodeOutOfRange, "", "%s is not a number of minutes between 1m and 24h", text)
	}

	*m = wholeMinutes(d.Std() / time.Minute)

	return nil
}

// getLoad serves the load of a namespace, or of all namespaces that the caller may read.
func (h *Handlers) getLoad(c *httpapi.Call, q loadQuery) (httpapi.Answer, error) {
	if q.Span%q.Step != 0 {
		return httpapi.Answer{}, task.Invalid(task.CodeBadValue, "step", "span is not a multiple of %s", task.Duration(time.Duration(q.Step)*time.Minute))
	}

	question, err := ask.QuestionOf(c, q.Query, readmodel.ByName)
	if err != nil {
		return httpapi.Answer{}, err
	}

	from := h.Now.Stamp().Truncate(time.Minute)
	chosen, err := q.chosenMinute(from)
	if err != nil {
		return httpapi.Answer{}, err
	}

	a, err := h.askOwners(c, question, q, from, chosen)
	if err != nil {
		return httpapi.Answer{}, err
	}

	out := present(a.load, from, q, a.info.Info(h.Now.Stamp()))
	for _, minute := range a.load.PeakMinutes(q.Peaks) {
		out.Peaks = append(out.Peaks, a.presentMinute(from, minute))
	}
	out.Advice = append(out.Advice, advise(out.Peaks, meanRuns(a.load.Runs))...)
	if chosen >= 0 {
		minute := a.presentMinute(from, chosen)
		out.Minute = &minute
	}

	return httpapi.Answer{Status: http.StatusOK, Body: out}, nil
}

// loadAnswer is what the owners have answered. Others share it, so it must not be changed.
type loadAnswer struct {
	load  *readmodel.Load
	asked []int // the minutes for which load has makers and seconds, in their order
	info  ask.Answer
}

// askOwners returns the load of a question, with what makes the runs of its peaks and of the chosen minute, if that is not
// -1.
func (h *Handlers) askOwners(c *httpapi.Call, question ask.Question, q loadQuery, from time.Time, chosen int) (*loadAnswer, error) {
	key := question.Key()
	minutes := readmodel.LoadRange{From: from.UnixMilli(), Minutes: int(q.Span)}
	withMakers := func(peaks []int) (*loadAnswer, error) {
		asked := minutes
		if asked.Makers = peaks; chosen >= 0 && !slices.Contains(peaks, chosen) {
			asked.Makers = append(slices.Clip(peaks), chosen)
		}

		question.Load = &asked
		answer, err := h.Asker.Ask(c, question)

		return &loadAnswer{load: answer.Load, asked: asked.Makers, info: answer}, err
	}

	var expected []int
	if q.Peaks > 0 {
		expected = h.peaks.expect(key, &minutes)
	}
	first, err := withMakers(expected)
	if err != nil {
		return nil, err
	}

	peaks := first.load.PeakMinutes(q.Peaks)
	if containsAll(first.asked, peaks) {
		return first, nil
	}

	second, err := withMakers(peaks)
	if err != nil {
		return nil, err
	}
	h.peaks.remember(key, &minutes, peaks)

	// The peaks are those of the first answer.
	both := *first.load
	both.Makers, both.Seconds = second.load.Makers, second.load.Seconds
	info := first.info
	info.Include(second.info)

	return &loadAnswer{load: &both, asked: second.asked, info: info}, nil
}

// chosenMinute returns the number of the minute that the caller asks for, or -1.
func (q *loadQuery) chosenMinute(from time.Time) (int, error) {
	if q.Minute.IsZero() {
		return -1, nil
	}

	after := q.Minute.Sub(from)
	if after%time.Minute != 0 {
		return 0, task.Invalid(task.CodeBadValue, "minute", "%s is not the beginning of a minute", q.Minute.Format(time.RFC3339Nano))
	}
	if after < 0 || after >= time.Duration(q.Span)*time.Minute {
		return 0, task.Invalid(task.CodeOutOfRange, "minute", "%s is not within the span, which begins at %s", q.Minute.Format(time.RFC3339), from.Format(time.RFC3339))
	}

	return int(after / time.Minute), nil
}

// present converts a load to the form of the API.
func present(l *readmodel.Load, from time.Time, q loadQuery, info client.ListInfo) client.TaskLoad {
	info.Count = nil // it counts also tasks without ticks

	out := client.TaskLoad{
		From: task.At(from), Step: task.Duration(time.Duration(q.Step) * time.Minute), Runs: sumSteps(l.Runs, int(q.Step)),
		Tasks: l.Tasks, Jittered: l.Jittered, Inexact: l.Inexact, AfterCompletion: l.AfterCompletion,
		Peaks: []client.LoadPeak{}, Advice: []client.LoadAdvice{}, ListInfo: info,
	}

	return out
}

// presentMinute returns what makes the runs of a minute.
func (a *loadAnswer) presentMinute(from time.Time, minute int) client.LoadPeak {
	l, at := a.load, slices.Index(a.asked, minute)
	peak := client.LoadPeak{
		At: task.At(from.Add(time.Duration(minute) * time.Minute)), Runs: roundRuns(l.Runs[minute]),
		Makers: []client.LoadMaker{}, Seconds: []client.LoadSecond{},
	}
	if at < 0 || at >= len(l.Makers) || at >= len(l.Seconds) {
		return peak // no node has answered
	}

	peak.Seconds = hotSeconds(l.Seconds[at])
	for _, m := range l.Makers[at][:min(len(l.Makers[at]), maxMakers)] {
		peak.Makers = append(peak.Makers, client.LoadMaker{
			Schedule: m.Schedule, Timezone: m.Timezone, Jitter: task.Duration(time.Duration(m.JitterMS) * time.Millisecond),
			Tasks: m.Tasks, Runs: roundRuns(m.Runs), Names: m.Names,
		})
	}
	peak.OtherMakers = len(l.Makers[at]) - len(peak.Makers)

	return peak
}

// hotSeconds returns the seconds of a minute with the most runs.
func hotSeconds(runs []float64) []client.LoadSecond {
	list := []client.LoadSecond{}
	for second, n := range runs {
		if n = roundRuns(n); n > 0 {
			list = append(list, client.LoadSecond{Second: second, Runs: n})
		}
	}

	slices.SortStableFunc(list, func(a, b client.LoadSecond) int { return cmp.Compare(b.Runs, a.Runs) })

	return list[:min(len(list), maxSeconds)]
}

// sumSteps adds up the runs of this many minutes each.
func sumSteps(runs []float64, minutes int) []float64 {
	steps := make([]float64, 0, len(runs)/minutes)
	for chunk := range slices.Chunk(runs, minutes) {
		sum := 0.0
		for _, r := range chunk {
			sum += r
		}
		steps = append(steps, roundRuns(sum))
	}

	return steps
}

// roundRuns rounds a number of runs to hundredths.
func roundRuns(runs float64) float64 { return math.Round(runs*100) / 100 }

// meanRuns returns the average of the minutes.
func meanRuns(runs []float64) float64 {
	sum := 0.0
	for _, r := range runs {
		sum += r
	}

	return sum / float64(max(len(runs), 1))
}

const (
	// crowd is the number of tasks with the same schedule from which they are worth spreading.
	crowd = 20
	// steep is how many times the average a minute must have to be called a peak.
	steep = 3
)

// advise returns what would lower the peaks: to spread the tasks of a schedule that makes much of a steep one. Each
// schedule is named once.
func advise(peaks []client.LoadPeak, mean float64) []client.LoadAdvice {
	var list []client.LoadAdvice
	for _, p := range peaks {
		if p.Runs < steep*mean {
			continue
		}

		for _, m := range p.Makers {
			known := slices.ContainsFunc(list, func(a client.LoadAdvice) bool { return a.Schedule == m.Schedule && a.Timezone == m.Timezone })
			if known || m.Jitter > 0 || m.Tasks < crowd {
				continue
			}

			text := fmt.Sprintf("spread with jitter: %s tasks with the schedule %s", grouped(m.Tasks), m.Schedule)
			if m.Timezone != "UTC" { // as everywhere, a schedule without a zone is one of UTC
				text += " in " + m.Timezone
			}
			if m.Schedule == "@at" {
				text = fmt.Sprintf("spread the times of %s tasks with @at", grouped(m.Tasks))
			}
			list = append(list, client.LoadAdvice{At: p.At, Schedule: m.Schedule, Timezone: m.Timezone, Tasks: m.Tasks, Text: text})
		}
	}

	slices.SortStableFunc(list, func(a, b client.LoadAdvice) int { return cmp.Compare(b.Tasks, a.Tasks) })

	return list
}

// grouped formats a number with commas: 12,345.
func grouped(n int) string {
	digits := fmt.Sprint(n)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}

	return digits
}

const (
	// maxQuestions is for how many questions the peaks of the last load are remembered.
	maxQuestions = 64
	// maxPeaks is how many peaks of a question are remembered: as many as one request can ask for.
	maxPeaks = 20
)

// peakMemory remembers at which minutes the peaks of the last loads are. The owners are asked for what makes the runs of
// these minutes together with the runs of all minutes. As peaks rarely change, they need not be asked a second time.
//
// The zero value is empty. It is safe for concurrent use.
type peakMemory struct {
	mu    sync.Mutex
	peaks map[string]knownPeaks // by question
}

// knownPeaks are the peaks of a question.
type knownPeaks struct {
	at   []int64 // the beginnings of the minutes, in Unix milliseconds
	used time.Time
}

// minuteMS is a minute in milliseconds.
const minuteMS = 60_000

// expect returns the minutes of a range that are probably its peaks.
func (m *peakMemory) expect(question string, l *readmodel.LoadRange) (minutes []int) {
	m.mu.Lock()
	defer m.mu.Unlock()

	known, ok := m.peaks[question]
	if !ok {
		return nil
	}
	known.used = time.Now()
	m.peaks[question] = known

	for _, at := range known.at {
		if minute := (at - l.From) / minuteMS; at >= l.From && minute < int64(l.Minutes) {
			minutes = append(minutes, int(minute))
		}
	}

	return minutes
}

// remember remembers the peaks of a range.
func (m *peakMemory) remember(question string, l *readmodel.LoadRange, peaks []int) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if _, ok := m.peaks[question]; !ok && len(m.peaks) >= maxQuestions {
		m.dropOldest()
	}
	if m.peaks == nil {
		m.peaks = map[string]knownPeaks{}
	}

	known := knownPeaks{used: time.Now()}
	for _, minute := range peaks[:min(len(peaks), maxPeaks)] {
		known.at = append(known.at, l.From+int64(minute)*minuteMS)
	}
	m.peaks[question] = known
}

// dropOldest drops the question that was not asked for the longest time. The caller must hold mu.
func (m *peakMemory) dropOldest() {
	oldest, found := "", false
	for question, known := range m.peaks {
		if !found || known.used.Before(m.peaks[oldest].used) {
			oldest, found = question, true
		}
	}

	delete(m.peaks, oldest)
}

// containsAll reports whether a list contains all minutes of another one.
func containsAll(list, minutes []int) bool {
	return !slices.ContainsFunc(minutes, func(minute int) bool { return !slices.Contains(list, minute) })
}
