package ui

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// builderPreview is what a task would do.
type builderPreview struct {
	Timezone string
	Words    string   // the schedule in English
	Notes    []string // likely mistakes
	Ticks    []tickRow
	Result   string // created, configured or unchanged
	Fields   []fieldDiff
	Change   *client.TickChange // against the stored version; nil if there is none
	Moves    []tickMove
	Warnings []string
	Nodes    *matchingNodes // nil: the viewer may not read nodes
	Load     *minuteLoad    // nil: not known
}

// MoreMoves is the number of ticks that change but are not in the list.
func (p *builderPreview) MoreMoves() int {
	if p.Change == nil {
		return 0
	}
	return p.Change.Come + p.Change.Go + p.Change.Move - len(p.Moves)
}

// tickMove is a tick that comes, goes or moves.
type tickMove struct {
	Kind    string // "comes", "goes" or "moves"
	Was, Is task.Time
}

// matchingNodes are the nodes that could run the task now.
type matchingNodes struct {
	Names []string
	All   int
}

// minuteLoad is how many runs fall due in the minute of the next tick, and when in the same hour fewer do.
type minuteLoad struct {
	At        task.Time
	Runs      float64
	Quiet     task.Time // zero: no minute is clearly quieter
	QuietRuns float64
	Use       string // the expression for the quieter minute
}

const (
	previewTicks = 5
	previewMoves = 12
)

// makePreview asks the API what would happen if a task were written.
func makePreview(ctx context.Context, r *Request, s task.Spec) (*builderPreview, error) {
	var would client.Task
	var err error
	if isEdit(r) {
		would, err = r.API.Tasks.Apply(ctx, s, client.ApplyOptions{DryRun: true})
	} else {
		would, err = r.API.Tasks.DryRunCreate(ctx, s.Namespace, s)
	}
	if err != nil {
		return nil, err
	}

	p := &builderPreview{Timezone: s.Timezone, Warnings: would.Warnings}
	words, err := schedule.Explain(s.Timing())
	if err != nil {
		return nil, err
	}
	p.Words = words.Text
	for _, f := range schedule.Lint(s.Timing(), r.Now) {
		p.Notes = append(p.Notes, findingText(f))
	}

	if c := would.DryRun; c != nil {
		p.Result = c.Result
		if isEdit(r) {
			p.Fields, p.Change = fieldDiffs(c.Fields), c.Ticks
			p.Moves = tickMoves(c.Ticks)
		}
	}

	var ticks []client.Occurrence
	var load client.TaskLoad
	var noTicks, noNodes, noLoad error
	callgroup.Run(
		func() {
			ticks, noTicks = r.API.Ticks.ListBySchedule(ctx, client.ScheduleRequest{
				Schedule: s.Schedule, Timezone: s.Timezone, DST: s.DST, Start: s.Start, End: s.End, Jitter: s.Jitter,
				Namespace: s.Namespace, Name: s.Name, Count: previewTicks,
			})
		},
		func() { p.Nodes, noNodes = nodesFor(ctx, r, s) },
		func() { load, noLoad = r.API.Load.Get(ctx, client.LoadOptions{Step: time.Minute, Peaks: shownPeaks}) },
	)
	if err := cmp.Or(noTicks, noNodes); err != nil {
		return nil, err
	}

	p.Ticks = tickRows(ticks)
	if len(ticks) > 0 && noLoad == nil {
		p.Load = loadAt(r, s, load, ticks[0].Time)
	}

	return p, nil
}

// tickMoves returns the first ticks that change.
func tickMoves(c *client.TickChange) []tickMove {
	if c == nil {
		return nil
	}

	var list []tickMove
	for _, m := range c.Ticks[:min(len(c.Ticks), previewMoves)] {
		switch {
		case m.Was == nil:
			list = append(list, tickMove{Kind: "comes", Is: m.Is.Time})
		case m.Is == nil:
			list = append(list, tickMove{Kind: "goes", Was: m.Was.Time})
		default:
			list = append(list, tickMove{Kind: "moves", Was: firstTime(m.Was.DueAt, m.Was.Time), Is: firstTime(m.Is.DueAt, m.Is.Time)})
		}
	}

	return list
}

// firstTime returns the first time that is set.
func firstTime(a, b task.Time) task.Time {
	if a.IsZero() {
		return b
	}
	return a
}

// nodesFor returns the nodes that could run a task now; nil if the viewer may not read nodes.
func nodesFor(ctx context.Context, r *Request, s task.Spec) (*matchingNodes, error) {
	if may, err := r.May("read", "nodes", ""); err != nil || !may {
		return nil, err
	}
	selector, err := task.ParseSelector(s.Target.Selector)
	if err != nil {
		return nil, task.Under("target.selector", err)
	}
	nodes, err := r.API.Nodes.List(ctx)
	if err != nil {
		return nil, err
	}

	m := &matchingNodes{}
	for i := range nodes {
		n := &nodes[i]
		if !slices.Contains(n.Roles, "executor") {
			continue
		}
		m.All++
		if n.State == task.NodeReady && len(n.Blocked) == 0 && selector.Accepts(n) {
			m.Names = append(m.Names, n.Name)
		}
	}

	return m, nil
}

// loadAt returns how many runs fall due in the minute of a tick. It returns nil if that is not known.
func loadAt(r *Request, s task.Spec, load client.TaskLoad, tick task.Time) *minuteLoad {
	at := int(tick.Sub(load.From.Time) / time.Minute)
	if at < 0 || at >= len(load.Runs) {
		return nil
	}

	m := &minuteLoad{At: task.At(load.From.Add(time.Duration(at) * time.Minute)), Runs: load.Runs[at]}
	// The minute that is going on has passed in part, so its load is not known.
	begun := int(r.Now.Sub(load.From.Time)/time.Minute) + 1
	quiet := quietestMinute(load.Runs, at, begun, load.From.Time)
	loc, err := schedule.Location(s.Timezone)
	if err != nil || load.Runs[at] < 2 || load.Runs[quiet] > load.Runs[at]/2 {
		return m
	}

	// Suggest only a minute that the task can move to.
	when := task.At(load.From.Add(time.Duration(quiet) * time.Minute))
	if use := atMinute(s.Schedule, when.In(loc).Minute()); use != "" {
		m.Quiet, m.QuietRuns, m.Use = when, load.Runs[quiet], use
	}

	return m
}

// quietestMinute returns the minute with the fewest runs within the hour of a minute, from the first one on that has not
// begun; of equal ones, the nearest.
func quietestMinute(runs []float64, at, first int, from time.Time) int {
	hour := at - from.Add(time.Duration(at)*time.Minute).Minute() // may be before the first minute that is known
	best := at
	for i := max(hour, first, 0); i < min(hour+60, len(runs)); i++ {
		distance := func(j int) int { return max(j-at, at-j) }
		if runs[i] < runs[best] || runs[i] == runs[best] && distance(i) < distance(best) {
			best = i
		}
	}

	return best
}

// atMinute returns a schedule of one cron expression with another minute; "" if it has another form.
func atMinute(exprs task.Schedules, minute int) string {
	if len(exprs) != 1 {
		return ""
	}

	fields := strings.Fields(exprs[0])
	if len(fields) != 5 {
		return ""
	}
	if _, err := strconv.Atoi(fields[0]); err != nil {
		return ""
	}
	fields[0] = strconv.Itoa(minute)

	return strings.Join(fields, " ")
}

// RunsText formats a number of runs, which may be a fraction.
func (m *minuteLoad) RunsText() string { return loadText(m.Runs) }

// QuietText formats the number of runs of the quieter minute.
func (m *minuteLoad) QuietText() string { return loadText(m.QuietRuns) }

func loadText(runs float64) string {
	if n := int64(runs); float64(n) == runs {
		return countText(int(n), "run")
	}
	return fmt.Sprintf("%.1f runs", runs)
}
