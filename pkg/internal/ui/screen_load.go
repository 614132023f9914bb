package ui

import (
	"context"
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// readPeaks is the number of busy minutes that are read, so that most minutes that somebody clicks on are among them, and
	// shownPeaks the number that the page lists.
	readPeaks  = 20
	shownPeaks = 6
	// loadLevels is the number of heights and colors of the map.
	loadLevels = 8
	// dueTasks is the number of tasks of a minute that the page lists.
	dueTasks = 20
	// minuteParam chooses a minute.
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
	Minute    *loadMinute
}

// loadHour is an hour of the clock in the zone of the page, with its minutes.
type loadHour struct {
	Begins  time.Time
	Label   string // "03:00"
	Day     string // "Fri 27 Nov", in the first hour of a day
	Total   string
	Busiest string // "03:00, 1,200 runs"
	Minutes [60]loadCell
	runs    float64
	most    float64
}

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
	Count string
	Over  bool
}

// loadMinute is what the page shows about a chosen minute.
type loadMinute struct {
	At     task.Time
	Count  string
	Makers []client.LoadMaker // known for the busiest minutes only
	Others int
	Query  string // finds the tasks whose next tick is in this minute
	Tasks  []client.Task
	More   bool
}

func loadLoad(ctx context.Context, r *Request) (any, error) {
	p := loadPage{Query: strings.TrimSpace(r.Query.Get("q")), Namespace: r.Query.Get("ns"), Spaces: r.Namespaces()}
	l, err := r.API.Load.Get(ctx, client.LoadOptions{Namespace: p.Namespace, Query: p.Query, Peaks: readPeaks})
	if err != nil && problemOf(err).Field != "" {
		return p, err
	}
	if err != nil {
		return nil, err
	}

	// Who reads tasks may not be allowed to read nodes.
	if nodes, err := r.API.Nodes.List(ctx); err == nil {
		for _, n := range nodes {
			if n.Has(task.RoleExecutor) {
				p.Slots += n.Slots
			}
		}
	}

	chosen, _ := time.Parse(time.RFC3339, r.Query.Get(minuteParam))
	p.fill(l, r.Zone(""), chosen)
	p.Note = noteText(l.ListInfo)
	if !chosen.IsZero() {
		p.Minute = loadMinuteOf(ctx, r, l, chosen, p)
	}

	return p, nil
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

	for _, peak := range l.Peaks[:min(len(l.Peaks), shownPeaks)] {
		p.Peaks = append(p.Peaks, loadPeak{LoadPeak: peak, Count: wording.RunNumber(peak.Runs), Over: p.Slots > 0 && peak.Runs > float64(p.Slots)})
	}
}

// hourOf returns the hour of a time, which is the last one or the next one. Where the clock changes, an hour may be there
// twice or not at all.
func (p *loadPage) hourOf(at time.Time) *loadHour {
	begins := at.Add(-time.Duration(at.Minute())*time.Minute - time.Duration(at.Second())*time.Second)
	if n := len(p.Hours); n == 0 || !p.Hours[n-1].Begins.Equal(begins) {
		h := loadHour{Begins: begins, Label: begins.Format("15:04")}
		if n == 0 || p.Hours[n-1].Begins.YearDay() != begins.YearDay() {
			h.Day = begins.Format("Mon 2 Jan")
		}
		p.Hours = append(p.Hours, h)
	}

	return &p.Hours[len(p.Hours)-1]
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
	if i := int(at.Sub(l.From.Time) / max(l.Step.Std(), time.Minute)); i >= 0 && i < len(l.Runs) {
		m.Count = wording.RunCount(l.Runs[i], "run")
	}
	for _, peak := range l.Peaks {
		if peak.At.Equal(at) {
			m.Makers, m.Others = peak.Makers, peak.OtherMakers
		}
	}

	m.Query = minuteQuery(p.Query, at.Sub(r.Now))
	if list, err := r.API.Tasks.Page(ctx, client.TaskListOptions{Namespace: p.Namespace, Query: m.Query, Sort: client.SortNext, Limit: dueTasks, Brief: true}, ""); err == nil {
		m.Tasks, m.More = list.Items, list.Next != ""
	}

	return m
}

// minuteQuery returns a query for the tasks whose next tick is in the minute that begins after a time.
func minuteQuery(q string, in time.Duration) string {
	from := int(math.Floor(in.Seconds()))
	terms := fmt.Sprintf("next:<%ds", max(from+60, 1))
	if from > 1 {
		terms = fmt.Sprintf("next:>%ds ", from-1) + terms
	}

	return strings.TrimSpace(q + " " + terms)
}

// Map draws the minutes of an hour: the higher and stronger in color, the more runs. The colors have a logarithmic scale, so that few
// runs are visible, too. Each minute is a link, which only the mouse needs: the
// table below the map has the same.
func (h loadHour) Map(v *View) (template.HTML, error) {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="minutes" viewBox="0 0 600 20" preserveAspectRatio="none" role="group" aria-label="%s: %s runs"><rect class="ground" width="600" height="20"/>`, template.HTMLEscapeString(h.Label), template.HTMLEscapeString(h.Total))
	for i, c := range h.Minutes {
		if c.Level == 0 {
			continue
		}

		to, err := v.With(minuteParam, c.At.UTC().Format(time.RFC3339))
		if err != nil {
			return "", err
		}
		class := fmt.Sprintf("l%d", c.Level)
		title := c.At.Format("15:04") + ": " + wording.RunCount(c.Runs, "run")
		if c.Chosen {
			class += " chosen"
		}
		height := 3 + 17*c.Part
		fmt.Fprintf(&b, `<a href="%s" tabindex="-1"><title>%s</title><path class="hit" d="M%d 0h10v20h-10z"/><path class="%s" d="M%d 20v-%.1fh9v%.1fz"/>`, template.HTMLEscapeString(to), template.HTMLEscapeString(title), i*10, class, i*10, height, height)
		if c.Over { // a mark on top, so that it does not only differ by its color
			fmt.Fprintf(&b, `<path class="cap" d="M%d %.1fh9v3h-9z"/>`, i*10, 20-height)
		}
		b.WriteString("</a>")
	}
	b.WriteString("</svg>")

	return template.HTML(b.String()), nil //nolint:gosec // all texts are escaped
}

// MakerText describes the schedule of tasks that make load.
func (*View) MakerText(m client.LoadMaker) string { return wording.LoadMakerText(m) }

// RunCount returns a number of runs with its noun.
func (*View) RunCount(n float64) string { return wording.RunCount(n, "run") }

// loadCommand returns the command line of the load.
func loadCommand(v *View) []string {
	words := []string{"carillon", "load"}
	if ns := v.Query.Get("ns"); ns != "" {
		words = append(words, "-n", ns)
	}

	return append(words, strings.Fields(v.Query.Get("q"))...)
}
