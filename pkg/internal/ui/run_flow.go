package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/why"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	itemsParam = "items" // which parts of the chosen step the page shows

	itemsPerPage = 50
	failedInRow  = 10 // items that failed below the row of their step
)

// runFlow is what the page of a run of a workflow shows of its steps: the graph, and a table with bars over time.
type runFlow struct {
	client.RunSteps
	Graph    *flowGraph
	Rows     []stepRow
	Summary  string
	From, To task.Time // of the bars
	Chosen   *chosenStep
}

// stepRow is a step in the table.
type stepRow struct {
	client.RunStep
	Run      *task.Run // its times
	Look     badge
	Words    string
	Progress string // of its items
	After    string // when it begins
	Note     string // why it is in its state; "" if that needs no words
	Failed   []partRow
	More     int // how many further items failed
	Chosen   bool

	bar template.HTML
}

// Bar returns the drawing of the bar.
func (r stepRow) Bar() template.HTML { return r.bar }

// Sentence says when the step begins, as a sentence.
func (r stepRow) Sentence() string {
	if len(r.Needs) == 0 || r.When == string(task.WhenAlways) {
		return "It " + r.After + "."
	}
	return "It begins " + r.After + "."
}

// partRow is a part of a step: the whole step, or an item.
type partRow struct {
	Name string
	Run  task.Run

	bar template.HTML // in the table of steps
}

// Bar returns the drawing of the bar.
func (r partRow) Bar() template.HTML { return r.bar }

// chosenStep is the step whose parts the page shows.
type chosenStep struct {
	stepRow
	Why     string
	Filters []itemFilter
	Filter  string
	Items   []partRow
	Page    int // from 1
	Next    int // the next page; 0: there is none
}

// itemFilter is a group of parts of a step.
type itemFilter struct {
	Name, Label string
	Count       int
	has         func(task.State) bool
}

// itemFilters are the groups, in the order of their interest.
var itemFilters = []itemFilter{
	{Name: "", Label: "all", has: func(task.State) bool { return true }},
	{Name: "failed", Label: "failed", has: isFailedPart},
	{Name: "active", Label: "running", has: task.State.Active},
	{Name: "waiting", Label: "waiting", has: func(s task.State) bool { return s == task.Queued }},
	{Name: "cancelled", Label: "cancelled", has: func(s task.State) bool { return s == task.Cancelled }},
	{Name: "succeeded", Label: "succeeded", has: func(s task.State) bool { return s == task.Succeeded }},
}

// isFailedPart reports whether a part has failed, whatever the reason.
func isFailedPart(s task.State) bool { return s.Final() && s != task.Succeeded && s != task.Cancelled }

// loadRunFlow reads the steps of a run. It returns nil if its task is not a workflow.
func loadRunFlow(ctx context.Context, r *Request, run task.Run, timezone string) (*runFlow, error) {
	isQueued := run.State == task.Queued && run.Fan == nil && !task.IsPart(run.ID) // its steps are those of the task as it is now
	if !isQueued && (run.Fan == nil || run.Fan.Flow == nil) {
		return nil, nil
	}

	steps, err := r.API.Runs.Steps(ctx, run.Namespace, run.Task, run.ID, client.StepsOptions{Items: task.MaxMapItems})
	var e *client.Error
	if errors.As(err, &e) && e.Code == client.CodeNoSteps {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}

	f := newRunFlow(r, run, steps)
	if f.Chosen == nil {
		return f, nil
	}

	facts := why.StepFacts{Run: run, Steps: steps, Timezone: r.Zone(timezone).String(), Now: r.Now}
	if !run.State.Final() {
		status, err := r.API.Freezes.Get(ctx, run.Namespace)
		if err != nil && !isForbidden(err) {
			return nil, err
		}
		facts.Freeze = status.Freeze
	}
	f.Chosen.Why = why.ForStep(facts, f.Chosen.Name).Sentence

	return f, nil
}

// newRunFlow arranges the steps of a run.
func newRunFlow(r *Request, run task.Run, steps client.RunSteps) *runFlow {
	f := &runFlow{RunSteps: steps}
	f.From, f.To = barTimes(run, steps, r.Now)
	bars := stepBars{from: f.From.Time, to: f.To.Time, ends: map[string]time.Time{}}

	for _, s := range steps.Steps {
		row := rowOf(run, s)
		row.Chosen = s.Name == r.Query.Get(stepParam)
		bars.draw(s, &row)
		f.Rows = append(f.Rows, row)
	}

	f.Graph, f.Summary = f.newGraph(), summaryOf(steps)
	if i := slices.IndexFunc(f.Rows, func(row stepRow) bool { return row.Chosen }); i >= 0 {
		f.Chosen = choose(r, run, f.Rows[i])
	}

	return f
}

// rowOf returns a step as the table shows it.
func rowOf(run task.Run, s client.RunStep) stepRow {
	row := stepRow{RunStep: s, Look: stepLook(s), Words: plainState(s.State), After: afterText(s.Needs, task.When(s.When)), Note: stepNote(s)}
	row.Run = &task.Run{StartedAt: firstStart(s.Parts), EndedAt: s.EndedAt}

	failed := 0 // items
	for _, p := range s.Parts {
		if !isFailedPart(p.State) {
			continue
		}
		if failed++; s.Map && failed <= failedInRow {
			row.Failed = append(row.Failed, partRow{Name: p.Name, Run: run.OfPart(p.Part)})
		}
	}
	if s.Map {
		row.Progress, row.More = progressText(s, failed), failed-len(row.Failed)
	}

	switch {
	case s.Items == 0 && s.Kept > 0:
		row.Words = "kept"
	case !s.Map && failed > 0:
		row.Words = wording.RunResult(run.OfPart(s.Parts[0].Part), time.Time{})
	case !s.Map && len(s.Parts) == 1 && s.Parts[0].State == task.Paused:
		row.Words, row.Look = plainState(string(task.Paused)), badgeOf(string(task.Paused))
	}

	return row
}

// stepLooks are the looks of the states of steps that are no states of runs.
var stepLooks = map[string]badge{
	string(workflow.Waiting): {"○", "idle"},
	string(workflow.Ready):   {"…", "busy"},
}

// stepLook returns how the state of a step looks. A step of which an item has failed already looks so before it ends.
func stepLook(s client.RunStep) badge {
	if look, ok := stepLooks[s.State]; ok {
		return look
	}
	return badgeOf(s.State)
}

// firstStart returns when the first part of a step started.
func firstStart(parts []client.StepPart) (first task.Time) {
	for _, p := range parts {
		if !p.StartedAt.IsZero() && (first.IsZero() || p.StartedAt.Before(first.Time)) {
			first = p.StartedAt
		}
	}

	return first
}

// progressText says how many items of a map have succeeded, failed and run.
func progressText(s client.RunStep, failed int) string {
	if s.OpenedAt.IsZero() && s.Kept == 0 {
		return ""
	}

	active := 0
	for _, p := range s.Parts {
		if p.State.Active() {
			active++
		}
	}

	text := fmt.Sprintf("%s/%s", wording.Grouped(s.Succeeded+s.Kept), wording.Grouped(s.Items+s.Kept))
	if failed > 0 {
		text += fmt.Sprintf(", %s failed", wording.Grouped(failed))
	}
	if active > 0 {
		text += fmt.Sprintf(", %s running", wording.Grouped(active))
	}

	return text
}

// stepNote says why a step waits, is skipped or was cancelled.
func stepNote(s client.RunStep) string {
	switch {
	case s.State == string(workflow.Waiting) && s.Cause != "":
		return "waits for " + s.Cause
	case s.Reason == task.ReasonStopped && s.Cause != "":
		return s.Cause + " has failed"
	case s.Reason == task.ReasonNeeds && s.Cause != "" && s.When == string(task.WhenFailed):
		return "nothing has failed before it"
	case s.Reason == task.ReasonNeeds && s.Cause != "":
		return s.Cause + " has not succeeded"
	case s.Message != "":
		return s.Message
	case s.State == string(workflow.Running) && firstStart(s.Parts).IsZero():
		return "waits for a node"
	}

	if reason, ok := task.ReasonOf(s.Reason); ok {
		return reason.Means
	}

	return ""
}

// summaryOf says how many steps have ended.
func summaryOf(steps client.RunSteps) string {
	count := map[string]int{}
	ended := 0
	for _, s := range steps.Steps {
		count[s.State]++
		if workflow.State(s.State).IsFinal() {
			ended++
		}
	}

	text := fmt.Sprintf("%d of %s ended", ended, countText(len(steps.Steps), "step"))
	for _, state := range []workflow.State{workflow.Running, workflow.Failed, workflow.Skipped, workflow.Cancelled} {
		if n := count[string(state)]; n > 0 {
			text += fmt.Sprintf(", %d %s", n, state)
		}
	}

	return text
}

// newGraph returns the graph of the steps with their states.
func (f *runFlow) newGraph() *flowGraph {
	cards, needs := make([]flowCard, len(f.Rows)), make([][]int, len(f.Rows))
	for i, row := range f.Rows {
		c := newFlowCard(row.Name)
		c.Look, c.Words, c.Progress, c.Note, c.Kind, c.Chosen = row.Look, row.Words, row.Progress, row.After, kindText(row.Kind, task.When(row.When)), row.Chosen
		if row.Progress != "" {
			c.Part, c.Whole = row.Ended+row.Kept, row.Items+row.Kept
		}
		cards[i] = c
		for _, need := range row.Needs {
			needs[i] = append(needs[i], slices.IndexFunc(f.Rows, func(other stepRow) bool { return other.Name == need }))
		}
	}

	return newFlowGraph(cards, needs, func(from, to int) string {
		switch state := workflow.State(f.Rows[to].State); {
		case state == workflow.Skipped:
			return lineOff
		case !f.Rows[to].OpenedAt.IsZero() || state.IsFinal():
			return lineTaken
		}
		return lineToCome
	})
}

// choose returns the parts of a step that the page shows.
func choose(r *Request, run task.Run, row stepRow) *chosenStep {
	c := &chosenStep{stepRow: row, Filter: r.Query.Get(itemsParam), Page: 1}
	if n, err := strconv.Atoi(r.Query.Get(pageParam)); err == nil && n > 1 {
		c.Page = n
	}

	shown := itemFilters[0]
	for _, filter := range itemFilters {
		for _, p := range row.Parts {
			if filter.has(p.State) {
				filter.Count++
			}
		}
		if filter.Count > 0 || filter.Name == c.Filter {
			c.Filters = append(c.Filters, filter)
		}
		if filter.Name == c.Filter {
			shown = filter
		}
	}

	var parts []client.StepPart
	for _, p := range row.Parts {
		if shown.has(p.State) {
			parts = append(parts, p)
		}
	}

	first := min((c.Page-1)*itemsPerPage, len(parts))
	last := min(first+itemsPerPage, len(parts))
	if last < len(parts) {
		c.Next = c.Page + 1
	}
	for _, p := range parts[first:last] {
		c.Items = append(c.Items, partRow{Name: p.Name, Run: run.OfPart(p.Part)})
	}

	return c
}

// barTimes returns the times between which the bars of a run lie. While the run is active, the end is the present, rounded such that
// the page does not change all the time.
func barTimes(run task.Run, steps client.RunSteps, now time.Time) (from, to task.Time) {
	from = cmp.Or(run.StartedAt, run.CreatedAt)
	to = run.EndedAt
	for _, s := range steps.Steps {
		if !s.OpenedAt.IsZero() && s.OpenedAt.Before(from.Time) {
			from = s.OpenedAt
		}
		if to.Before(s.EndedAt.Time) {
			to = s.EndedAt
		}
	}

	if !run.State.Final() {
		unit := max(now.Sub(from.Time)/40, time.Second).Truncate(time.Second)
		to = task.At(from.Add(now.Sub(from.Time).Truncate(unit) + unit))
	}
	if !from.Before(to.Time) {
		to = task.At(from.Add(time.Second))
	}

	return from, to
}

// stepBars draws the bars of steps. A thin line leads from the time at which a step could begin to its bar.
type stepBars struct {
	from, to time.Time
	ends     map[string]time.Time // of the steps so far
}

// barWidth is the width of the drawing; its height is 20.
const barWidth = 1000

// maxMarks is how many items that failed have a mark on the bar of their step.
const maxMarks = 100

// place returns the place of a time.
func (b *stepBars) place(at time.Time) float64 {
	part := float64(at.Sub(b.from)) / float64(b.to.Sub(b.from))
	return min(max(part, 0), 1) * barWidth
}

// draw draws the bars of a step and of its items that failed. The columns beside them say the same in words.
func (b *stepBars) draw(s client.RunStep, row *stepRow) {
	b.ends[s.Name] = s.EndedAt.Time

	ready := b.from
	for _, need := range s.Needs {
		if end := b.ends[need]; ready.Before(end) {
			ready = end
		}
	}

	start, end := row.Run.StartedAt.Time, cmp.Or(s.EndedAt.Time, b.to)
	d := newBarDrawing(b)
	switch {
	case !start.IsZero():
		d.add("wait", ready, start, 9, 2)
		b.drawParts(d, s, row, start, end)
	case !workflow.State(s.State).IsFinal():
		d.add("wait", ready, end, 9, 2)
	}
	row.bar = d.html()

	for i := range row.Failed {
		item := newBarDrawing(b)
		if run := row.Failed[i].Run; !run.StartedAt.IsZero() {
			item.add("bar bad", run.StartedAt.Time, run.EndedAt.Time, 3, 14)
		}
		row.Failed[i].bar = item.html()
	}
}

// drawParts draws the bar of a step that has begun. The lower part of the bar of a map shows how many of its items have failed, and marks when.
func (b *stepBars) drawParts(d *barDrawing, s client.RunStep, row *stepRow, start, end time.Time) {
	class := "bar " + row.Look.class
	if s.When == string(task.WhenAlways) {
		class += " cleanup"
	}

	failed := len(row.Failed) + row.More
	if failed == 0 || failed == s.Items {
		d.add(class, start, end, 3, 14)
		return
	}

	if s.State == string(workflow.Failed) {
		class = "bar good"
	}
	share := max(14*float64(failed)/float64(s.Items), 3)
	d.add(class, start, end, 3, 14-share)
	d.add("bar bad", start, end, 17-share, share)

	for _, p := range s.Parts[:min(failed, maxMarks)] { // those that failed come first
		d.add("bar bad", p.EndedAt.Time, p.EndedAt.Time, 0, 20)
	}
}

// barDrawing is the drawing of the bars of a row.
type barDrawing struct {
	times *stepBars
	text  strings.Builder
}

func newBarDrawing(times *stepBars) *barDrawing {
	d := &barDrawing{times: times}
	fmt.Fprintf(&d.text, `<svg class="step-bars" viewBox="0 0 %d 20" preserveAspectRatio="none" aria-hidden="true" focusable="false"><rect class="ground" y="3" width="%d" height="14"/>`, barWidth, barWidth)

	return d
}

// add adds a bar. It can be seen, however short the time is.
func (d *barDrawing) add(class string, from, to time.Time, y, height float64) {
	const least = 3

	x := d.times.place(from)
	width := max(d.times.place(to)-x, least)
	fmt.Fprintf(&d.text, `<rect class="%s" x="%.1f" y="%.3g" width="%.1f" height="%.3g"/>`, class, min(x, barWidth-width), y, width, height)
}

func (d *barDrawing) html() template.HTML {
	return template.HTML(d.text.String() + "</svg>") //nolint:gosec // it consists of numbers and literals
}
