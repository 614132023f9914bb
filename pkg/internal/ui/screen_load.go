package ui

import (
	"context"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// shownPeaks is the number of busy minutes that the page lists.
	shownPeaks = 6
	// loadLevels is the number of heights and colors of the map.
	loadLevels = 8
	// dueTasks is the number of tasks of a minute that the page lists.
	dueTasks = 20
	// hourParam chooses an hour, by its beginning, and minuteParam a minute.
	hourParam   = "hour"
	minuteParam = "minute"
)

// loadScreen shows how many runs fall due in the coming 24 hours, as "carillon load" does.
func loadScreen() Screen {
	return Screen{
		Name: "load", Pattern: "/ui/load", Nav: "load",
		Title:   func(*View) string { return "Load" },
		Load:    loadLoad,
		Command: loadCommand,
		Parts:   []Part{{Name: "map"}},
		Every:   5 * time.Minute, // the map is large, and changes with each minute that passes
	}
}

// loadPage is what the screen shows.
type loadPage struct {
	Query     string
	Namespace string // "": all
	Spaces    []string
	Runs      string // "1,234 runs"; "" if there are none
	Tasks     string
	Slots     int // of all nodes; 0 if it is not known
	Over      int // minutes with more runs than slots
	Top       string
	Hours     []loadHour
	Peaks     []loadPeak
	Advice    []client.LoadAdvice
	Inexact   []string // what is spread, or left out
	Note      string
	Hour      *loadHour // the chosen one, or that of the chosen minute
	Minute    *loadMinute
}

// loadHour is an hour of the clock in the zone of the page, with its minutes.
type loadHour struct {
	Begins  time.Time // where its minute 0 is, or would be if the clock had not changed after it
	Label   string    // "03:00"
	Day     string    // "Fri 27 Nov", in the first hour of a day
	Total   string
	Busiest string // "03:00, 1,200 runs"
	Minutes [60]loadCell
	Counts  string // of the minutes, for the script: "0 0 12 …"
	Chosen  bool
	first   time.Time // the first minute
	runs    float64
	most    float64
}

// hourLayout is the hour of a time. A time formats itself as its hour, and not as when the hour began, because the clock may
// have changed since.
const hourLayout = "15:00"

// Title names the hour with its day and zone: "Fri 03:00 CET".
func (h loadHour) Title() string { return h.first.Format("Mon " + hourLayout + " MST") }

// loadCell is a minute of the map.
type loadCell struct {
	At     time.Time
	Runs   float64
	Level  int     // 0 to loadLevels: the color
	Part   float64 // of the busiest minute: the height
	Over   bool
	Chosen bool
}

// loadPeak is a busy minute.
type loadPeak struct {
	client.LoadPeak
	Count   string
	Seconds string // the busiest ones; "" if the runs are spread evenly
	Over    bool
}

// loadMinute is what the page shows about a chosen minute.
type loadMinute struct {
	At      task.Time
	Count   string // "12 runs"; "" if the minute is over
	Makers  []client.LoadMaker
	Others  int
	Seconds []client.LoadSecond // the busiest ones; none if no second has many more runs than the others
	Query   string              // finds the tasks with a tick in this minute
	Tasks   []client.Task
	More    bool
}

func loadLoad(ctx context.Context, r *Request) (any, error) {
	p := loadPage{Query: strings.TrimSpace(r.Query.Get("q")), Namespace: r.Query.Get("ns"), Spaces: r.Namespaces()}
	chosen := chosenMinute(r)
	var l client.TaskLoad
	var nodes []task.Node
	var err, noNodes error
	callgroup.Run(
		func() { l, err = readLoad(ctx, r, p, chosen) },
		func() { nodes, noNodes = r.API.Nodes.List(ctx) },
	)
	if err != nil && problemOf(err).Field != "" {
		return p, err
	}
	if err != nil {
		return nil, err
	}

	// Who reads tasks may not be allowed to read nodes.
	if noNodes == nil {
		for _, n := range nodes {
			if n.Has(task.RoleExecutor) {
				p.Slots += n.Slots
			}
		}
	}

	p.fill(l, r.Zone(""), chosen)
	p.chooseHour(r.Query.Get(hourParam), chosen)
	p.Note = noteText(l.ListInfo)
	if !chosen.IsZero() {
		p.Minute = loadMinuteOf(ctx, r, l, chosen, p)
	}

	return p, nil
}

// readLoad reads the load that the page shows.
func readLoad(ctx context.Context, r *Request, p loadPage, chosen time.Time) (client.TaskLoad, error) {
	o := client.LoadOptions{Namespace: p.Namespace, Query: p.Query, Peaks: shownPeaks, Minute: chosen}
	l, err := r.API.Load.Get(ctx, o)
	if err != nil && problemOf(err).Field == minuteParam { // the minute is over, or that of an old link
		o.Minute = time.Time{}
		l, err = r.API.Load.Get(ctx, o)
	}

	return l, err
}

// chosenMinute returns the beginning of the minute that the page is about; zero if none is chosen, or the parameter is not a
// time.
func chosenMinute(r *Request) time.Time {
	at, err := time.Parse(time.RFC3339, r.Query.Get(minuteParam))
	if err != nil {
		return time.Time{}
	}

	return at.UTC().Truncate(time.Minute)
}

// fill converts a load to hours of the clock in a zone.
func (p *loadPage) fill(l client.TaskLoad, zone *time.Location, chosen time.Time) {
	total, most := 0.0, 0.0
	for _, runs := range l.Runs {
		total, most = total+runs, max(most, runs)
	}
	if total > 0 {
		p.Runs = wording.RunCount(total, "run")
	}
	p.Tasks, p.Top = wording.RunCount(float64(l.Tasks), "task"), wording.RunNumber(most)
	p.Inexact, p.Advice = wording.InexactLoad(l), l.Advice

	for i, runs := range l.Runs {
		at := l.From.Add(time.Duration(i) * l.Step.Std()).In(zone)
		h := p.hourOf(at)
		over := p.Slots > 0 && runs > float64(p.Slots)
		if over {
			p.Over++
		}
		h.Minutes[at.Minute()] = loadCell{At: at, Runs: runs, Level: loadLevel(runs, most), Over: over, Chosen: at.Equal(chosen)}
		if most > 0 {
			h.Minutes[at.Minute()].Part = runs / most
		}

		h.runs += runs
		h.Total = wording.RunNumber(h.runs)
		if runs > h.most {
			h.most, h.Busiest = runs, at.Format("15:04")+", "+wording.RunCount(runs, "run")
		}
	}

	for i := range p.Hours {
		p.Hours[i].countMinutes()
	}

	for _, peak := range l.Peaks[:min(len(l.Peaks), shownPeaks)] {
		p.Peaks = append(p.Peaks, loadPeak{LoadPeak: peak, Count: wording.RunNumber(peak.Runs), Seconds: wording.HotSeconds(peak), Over: p.Slots > 0 && peak.Runs > float64(p.Slots)})
	}
}

// hourOf returns the hour of a time, which is the last one or the next one. Where the clock changes, an hour may be there
// twice or not at all. If it changes by half an hour, the rest of an hour is an hour of its own.
func (p *loadPage) hourOf(at time.Time) *loadHour {
	begins := at.Add(-time.Duration(at.Minute())*time.Minute - time.Duration(at.Second())*time.Second)
	if n := len(p.Hours); n == 0 || !p.Hours[n-1].Begins.Equal(begins) {
		h := loadHour{Begins: begins, Label: at.Format(hourLayout), first: at}
		if n == 0 || p.Hours[n-1].first.YearDay() != at.YearDay() {
			h.Day = at.Format("Mon 2 Jan")
		}
		p.Hours = append(p.Hours, h)
	}

	return &p.Hours[len(p.Hours)-1]
}

// countMinutes writes the runs of the minutes for the script of the page.
func (h *loadHour) countMinutes() {
	words := make([]string, len(h.Minutes))
	for i, c := range h.Minutes {
		words[i] = wording.RunNumber(c.Runs)
	}
	h.Counts = strings.Join(words, " ")
}

// chooseHour chooses the hour that begins at a time, or the one of the chosen minute.
func (p *loadPage) chooseHour(begins string, minute time.Time) {
	at, err := time.Parse(time.RFC3339, begins)
	byMinute := err != nil

	for i := range p.Hours {
		h := &p.Hours[i]
		if byMinute {
			h.Chosen = h.has(minute)
		} else {
			h.Chosen = h.Begins.Equal(at)
		}
		if h.Chosen {
			p.Hour = h
		}
	}
}

// has reports whether a minute is one of the hour.
func (h *loadHour) has(minute time.Time) bool {
	return slices.ContainsFunc(h.Minutes[:], func(c loadCell) bool { return !c.At.IsZero() && c.At.Equal(minute) })
}

// loadLevel returns the level of a number of runs on a logarithmic scale, as in the CLI; 0 for none.
func loadLevel(runs, most float64) int {
	switch {
	case runs <= 0:
		return 0
	case most <= 1:
		return loadLevels
	}
	return 1 + int(math.Round((loadLevels-1)*math.Max(math.Log(runs), 0)/math.Log(most)))
}

// loadMinuteOf returns what the page shows about a minute.
func loadMinuteOf(ctx context.Context, r *Request, l client.TaskLoad, at time.Time, p loadPage) *loadMinute {
	m := &loadMinute{At: task.At(at)}
	if l.Minute == nil {
		return m
	}

	m.Count, m.Makers, m.Others = wording.RunCount(l.Minute.Runs, "run"), l.Minute.Makers, l.Minute.OtherMakers
	if wording.HotSeconds(*l.Minute) != "" {
		m.Seconds = l.Minute.Seconds
	}

	m.Query = strings.TrimSpace(p.Query + " tick:" + at.UTC().Format("2006-01-02T15:04Z"))
	if list, err := r.API.Tasks.Page(ctx, client.TaskListOptions{Namespace: p.Namespace, Query: m.Query, Sort: client.SortNext, Limit: dueTasks, Brief: true}, ""); err == nil {
		m.Tasks, m.More = list.Items, list.Next != ""
	}

	return m
}

// Map draws the minutes of an hour: the higher and stronger in color, the more runs. The colors have a logarithmic scale, so
// that few runs are visible, too. Minutes of the same color are one path, because a page has many minutes. The table below
// the map, and the hour that it is a link to, have the same in words.
func (h loadHour) Map() template.HTML {
	var levels [loadLevels + 1]strings.Builder
	var caps, chosen strings.Builder
	for i, c := range h.Minutes {
		if c.Chosen {
			fmt.Fprintf(&chosen, "M%d 1h10v18h-10z", i*10)
		}
		if c.Level == 0 {
			continue
		}

		height := 3 + 17*c.Part
		fmt.Fprintf(&levels[c.Level], "M%d 20v-%.1fh9v%.1fz", i*10, height, height)
		if c.Over { // a mark on top, so that it does not only differ by its color
			fmt.Fprintf(&caps, "M%d %.1fh9v3h-9z", i*10, 20-height)
		}
	}

	var b strings.Builder
	path := func(class, d string) {
		if d != "" {
			fmt.Fprintf(&b, `<path class="%s" d="%s"/>`, class, d)
		}
	}
	b.WriteString(`<svg class="minutes" viewBox="0 0 600 20" preserveAspectRatio="none" aria-hidden="true"><rect class="ground" width="600" height="20"/>`)
	for level := range levels {
		path(fmt.Sprintf("l%d", level), levels[level].String())
	}
	path("cap", caps.String())
	path("chosen", chosen.String())
	b.WriteString("</svg>")

	return template.HTML(b.String()) //nolint:gosec // it contains only numbers and literals
}

// SecondText formats a second of a minute: ":05".
func (*View) SecondText(second int) string { return fmt.Sprintf(":%02d", second) }

// MakerText describes the schedule of tasks that make load.
func (*View) MakerText(m client.LoadMaker) string { return wording.LoadMakerText(m) }

// RunNumber returns a number of runs.
func (*View) RunNumber(n float64) string { return wording.RunNumber(n) }

// RunCount returns a number of runs with its noun.
func (*View) RunCount(n float64) string { return wording.RunCount(n, "run") }

// loadCommand returns the command line of the load.
func loadCommand(v *View) []string {
	words := []string{"carillon", "load"}
	if ns := v.Query.Get("ns"); ns != "" {
		words = append(words, "-n", ns)
	}

	if minute := chosenMinute(v.Request); !minute.IsZero() {
		words = append(words, "--minute", minute.Format(time.RFC3339))
	}

	return commandWith(words, strings.Fields(v.Query.Get("q")))
}
