package ui

import (
	"context"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// runScreen shows one run: when and where it ran, how it ended, and its output as it is written.
func runScreen() Screen {
	const pattern = "/ui/runs/{ns}/{id}"

	return Screen{
		Name: "run", Pattern: pattern, Nav: "runs",
		Title:   runTitle,
		Load:    loadRun,
		Command: runCommand,
		Parts:   []Part{{Name: "head"}, {Name: "flow"}, {Name: "details"}},
		Every:   2 * time.Second, // each rendering reads records of the task from etcd
		Actions: []Action{
			{Pattern: pattern + "/cancel", Run: cancelRun},
			{Pattern: pattern + "/pause", Run: pauseRun},
			{Pattern: pattern + "/resume", Run: resumeRun},
			{Pattern: pattern + "/retry", Run: retryRun},
			{Pattern: pattern + "/rerun", Run: rerunRun},
			{Pattern: pattern + "/dismiss", Run: dismissRun},
		},
		Downloads: []Download{{Pattern: pattern + "/output", Open: openOutput}},
		Feed:      feedOutput,
	}
}

// runTitle names the task of a run.
func runTitle(v *View) string {
	if p, ok := v.Data.(*runPage); ok {
		return "Run of " + p.Run.Task
	}
	return "Run " + v.Value("id")
}

// runCommand returns the command line that shows the run with its output.
func runCommand(v *View) []string {
	return []string{"carillon", "run", "get", v.Value("id"), "-n", v.Value("ns")}
}

// runPage is what the screen shows.
type runPage struct {
	Run      task.Run
	Timezone string
	Steps    []runStep
	Because  string // why it is in its state, as a clause
	Unsent   string // how many attempts were not sent, while it waits for its target
	Facts    []setting
	Results  []setting
	Attempts []attemptRow
	Parts    []runPart
	Flow     *runFlow    // nil: the task is not a workflow
	Repeats  *flowRetry  // of the question whether to retry it
	Cleans   *flowCancel // of the question whether to cancel it
	Parent   string      // the run that it is a part of
	Dead     bool        // it is a dead-letter run
	Left     bool        // it was a dead-letter run, and nobody has retried it. Its record does not say who has dismissed it
	Retry    string      // the run that repeats it; "" if there is none
	Waits    bool        // it is in the queue
	May      runRights
	Panel    string // "cancel", "dismiss" or "retry" if the page asks whether to do that; "" if it asks nothing
	Back     string // the page to go back to from the question
	// RerunKey is the idempotency key of the button that starts the run again. It changes every minute and never recurs: the page is rendered
	// for all its viewers, and again and again, so it has no form with a key of its own.
	RerunKey string

	HasOutput bool
	Attempt   int // that whose output is shown; 0: the newest
	Tail      []string
	Cut       bool // the tail is not the whole output
	Wrap      bool
	Times     bool
}

// runRights are what the viewer may do with the run.
type runRights struct{ Cancel, Pause, Retry, Output, Trigger bool }

// runStep is a step in the life of a run.
type runStep struct {
	Name  string
	At    task.Time // zero: not yet
	After string    // since the step before: "+12ms"
	Note  string
	Look  string // done, now, todo, good, bad
}

// runPart is a part of a run.
type runPart struct {
	task.Run
	Index int
}

func loadRun(ctx context.Context, r *Request) (any, error) {
	run, err := r.API.Runs.Find(ctx, r.Value("ns"), r.Value("id"))
	if err != nil {
		return nil, err
	}

	p := &runPage{Run: run, Timezone: zoneOfTask(ctx, r, run), Waits: run.State == task.Queued, Wrap: r.Query.Get("wrap") != "0", Times: r.Query.Get("times") != ""}
	p.RerunKey = "ui rerun " + run.ID + " " + r.Now.UTC().Format("2006-01-02T15:04")
	if p.May, err = runRightsOf(r, run.Namespace); err != nil {
		return nil, err
	}
	if p.Attempt, err = chosenAttempt(r); err != nil {
		return p, err
	}
	if p.Dead, err = isDead(ctx, r, run); err != nil {
		return nil, err
	}
	if p.Retry, err = retryOf(ctx, r, run, p.Dead); err != nil {
		return nil, err
	}
	p.Left = mayBeDead(run) && !p.Dead && p.Retry == ""
	if p.Flow, err = loadRunFlow(ctx, r, run, p.Timezone); err != nil {
		return nil, err
	}
	if err := p.addParts(ctx, r); err != nil {
		return nil, err
	}

	if err := p.addPanel(r); err != nil {
		return nil, err
	}

	p.Attempts = attemptsOf(run, p.Attempt)
	p.Steps, p.Facts = stepsOf(run), runFacts(r, run, p.Timezone)
	if reason, ok := task.ReasonOf(run.Reason); ok && run.State != task.Succeeded {
		p.Because = reason.Means
	}
	if run.WaitsForTarget() {
		p.Unsent = wording.Plural(int64(run.UnsentCount()), "attempt")
	}
	for _, name := range slices.Sorted(maps.Keys(run.Results)) {
		p.Results = append(p.Results, setting{Name: name, Value: run.Results[name]})
	}

	p.HasOutput = hasOutput(run) && p.Flow == nil && p.May.Output
	if p.Attempt == 0 || p.Attempt == newestAttempt(run) {
		p.Tail, p.Cut = shownLines(run.OutputTail), run.Truncated || int64(len(run.OutputTail)) < run.OutputBytes
	}

	return p, nil
}

// addPanel adds the question that the page asks, if what it asks is possible.
func (p *runPage) addPanel(r *Request) error {
	do := r.Query.Get("do")
	switch {
	case do == "cancel" && p.May.Cancel && !p.Run.State.Final():
		if p.Panel = do; p.Flow != nil {
			p.Cleans = newFlowCancel(p.Flow.RunSteps)
		}
	case do == "dismiss" && p.May.Retry && p.Dead:
		p.Panel = do
	case do == "retry" && p.May.Retry && p.Dead && p.Flow != nil && p.Run.Fan != nil:
		from := ""
		if p.Flow.Chosen != nil {
			from = p.Flow.Chosen.Name
		}
		p.Panel, p.Repeats = do, newFlowRetry(p.Run, p.Flow.RunSteps, from)
	}

	if back := r.Query.Get("back"); back != "" {
		p.Back = localTarget(back)
		return nil
	}
	var err error
	p.Back, err = link("/ui/runs/{}/{}", nil, []any{p.Run.Namespace, p.Run.ID})

	return err
}

// runRightsOf returns what the viewer may do with runs of a namespace.
func runRightsOf(r *Request, namespace string) (may runRights, err error) {
	for verb, allowed := range map[string]*bool{"cancel": &may.Cancel, "pause": &may.Pause, "retry": &may.Retry, "output": &may.Output} {
		if *allowed, err = r.May(verb, "runs", namespace); err != nil {
			return may, err
		}
	}
	may.Trigger, err = r.May("trigger", "tasks", namespace)

	return may, err
}

// mayBeDead reports whether a run is, or was, a dead-letter run. Of a workflow, cancelled runs are, too.
func mayBeDead(run task.Run) bool {
	isCancelledFlow := run.State == task.Cancelled && run.Fan != nil && run.Fan.Flow != nil
	return (isCancelledFlow || slices.Contains(deadStates, run.State)) && !task.IsPart(run.ID)
}

// CanRerun reports whether the run can be started again without further inputs.
func (p *runPage) CanRerun() bool {
	run := p.Run
	return p.May.Trigger && run.State.Final() && run.State != task.Skipped && run.State != task.Missed && p.Parent == "" && !run.IsMessage() &&
		(len(run.EnvNames) == 0 || p.Dead && p.May.Retry)
}

// isDead reports whether a run is a dead-letter run.
func isDead(ctx context.Context, r *Request, run task.Run) (bool, error) {
	if !mayBeDead(run) {
		return false, nil
	}

	dead, err := r.API.Runs.Page(ctx, client.RunListOptions{Namespace: run.Namespace, Task: run.Task, Dead: true, Limit: 100}, "")

	return slices.ContainsFunc(dead.Items, func(d task.Run) bool { return d.ID == run.ID }), err
}

// retryOf returns the run that repeats a run which failed; "" if none does.
func retryOf(ctx context.Context, r *Request, run task.Run, dead bool) (string, error) {
	if dead || !mayBeDead(run) {
		return "", nil
	}

	later, err := r.API.Runs.ListByTask(ctx, run.Namespace, run.Task, client.RunListOptions{Since: run.ScheduledTime.Time, Limit: runsPerPage})
	for _, l := range later {
		if l.RetryOf == run.ID {
			return l.ID, nil
		}
	}

	return "", err
}

// deadStates are the states of dead-letter runs.
var deadStates = []task.State{task.Failed, task.TimedOut, task.Lost}

// addParts adds the parts of the run, or the run that it is a part of.
func (p *runPage) addParts(ctx context.Context, r *Request) error {
	run := p.Run
	if parent, _, ok := task.ParentOf(run.ID); ok {
		p.Parent = parent
	}
	if run.Fan == nil || p.Flow != nil {
		return nil
	}

	if len(run.Fan.Parts) > 0 {
		for _, part := range run.Fan.Parts {
			p.Parts = append(p.Parts, runPart{run.OfPart(part), part.Index})
		}
		return nil
	}

	// The parts of an active run are runs of their own.
	runs, err := r.API.Runs.ListByTask(ctx, run.Namespace, run.Task, client.RunListOptions{
		Parts: true, Since: run.ScheduledTime.Time, Until: run.ScheduledTime.Add(time.Millisecond), Limit: task.MaxParts + 1,
	})
	for _, part := range runs {
		if parent, index, ok := task.ParentOf(part.ID); ok && parent == run.ID {
			p.Parts = append(p.Parts, runPart{part, index})
		}
	}
	slices.SortFunc(p.Parts, func(a, b runPart) int { return a.Index - b.Index })

	return err
}

// stepsOf returns the steps of a run, with the time that passed between them.
func stepsOf(r task.Run) []runStep {
	due := runStep{Name: "Due", At: r.ScheduledTime}
	switch {
	case r.IsBootRun():
		due.Name, due.Note = "Requested", "for the boot of "+r.TargetNode
	case r.Trigger == task.TriggerManual:
		due.Name, due.Note = "Requested", prefixed("by ", r.CreatedBy.Name())
	case r.Trigger == task.TriggerAfter:
		due.Name, due.Note = "Triggered", wording.CausesOf(r)
	case !r.DueAt.IsZero():
		due.At, due.Note = r.DueAt, "tick plus jitter"
	}

	decided := runStep{Name: "Decided", At: r.CreatedAt, Note: wording.DecidedBy(r)}
	if r.Trigger == task.TriggerManual {
		decided.Name = "Queued"
	}
	dispatched := runStep{Name: "Dispatched", At: r.DispatchedAt, Note: prefixed("to ", r.Node)}
	started := runStep{Name: "Started", At: r.StartedAt}
	if r.Attempt > 1 {
		started.Note = fmt.Sprintf("attempt %d", r.Attempt)
	}
	ended := runStep{Name: "Ended", At: r.EndedAt}
	if r.State.Final() {
		ended.Note = wording.RunResult(r, r.LastSeen().Time)
	}

	steps := []runStep{due, decided, dispatched, started, ended}
	if r.Fan != nil || r.State == task.Skipped || r.State == task.Missed || r.State.Final() && r.StartedAt.IsZero() {
		steps = slices.DeleteFunc(steps, func(s runStep) bool { return s.At.IsZero() && s.Name != "Ended" })
	}
	lookAt(steps, r)

	return steps
}

// lookAt sets the looks of steps, and the time between them.
func lookAt(steps []runStep, r task.Run) {
	before, reached := task.Time{}, -1
	for i := range steps {
		s := &steps[i]
		s.Look = "todo"
		if s.At.IsZero() {
			continue
		}

		s.Look, reached = "done", i
		if !before.IsZero() {
			s.After = gapText(s.At.Sub(before.Time))
		}
		before = s.At
	}

	last := &steps[len(steps)-1]
	switch {
	case r.State == task.Succeeded:
		last.Look = "good"
	case r.State.Final() && slices.Contains(deadStates, r.State):
		last.Look = "bad"
	case r.State.Final():
		last.Look = "done"
	case reached >= 0:
		steps[reached].Look = "now"
	}
}

// gapText formats the time between two steps. The clocks of two nodes may differ, so it may be negative.
func gapText(d time.Duration) string {
	if d < 0 {
		return "−" + task.Duration(-d).Approximate()
	}
	return "+" + task.Duration(d).Approximate()
}

// prefixed returns a text after a word, or "" if there is no text.
func prefixed(word, text string) string {
	if text == "" {
		return ""
	}
	return word + text
}

// runFacts returns what is known of a run beside its steps, in the words of "carillon run get".
func runFacts(r *Request, run task.Run, timezone string) []setting {
	var list settings
	at := func(t task.Time) string {
		if t.IsZero() {
			return ""
		}
		return exactText(t.In(r.Zone(timezone)))
	}

	if run.Message != strings.TrimSpace(fmt.Sprintf("HTTP %d %s", run.HTTPStatus, http.StatusText(run.HTTPStatus))) {
		list.add("Message", run.Message)
	}
	for _, f := range slices.Concat(wording.RunRequestFields(run, at), wording.RunAttemptFields(run, at, time.Time{})) {
		list = append(list, setting(f))
	}
	if run.State.Final() && !run.StartedAt.IsZero() {
		list.add("Took", tookText(&run))
	}
	if run.OutputBytes > 0 {
		words := wording.Bytes(run.OutputBytes)
		if run.Truncated {
			words += ", of which the beginning is kept"
		}
		list.add("Output", words)
	}
	list.add("Checkpoint", run.Checkpoint)

	return list
}

// attemptRow is an attempt in the table of attempts.
type attemptRow struct {
	Number int
	Run    *task.Run // what the result of the attempt needs
	Used   string
	Shown  bool // its output is shown
}

// attemptsOf returns the attempts of a run, the earliest first; nil if there is only one.
func attemptsOf(run task.Run, shown int) []attemptRow {
	if len(run.Attempts) == 0 || run.Fan != nil {
		return nil
	}

	all := slices.Clone(run.Attempts)
	if newest := newestAttempt(run); newest > all[len(all)-1].Attempt {
		all = append(all, run.AsAttempt())
	}
	if shown == 0 {
		shown = newestAttempt(run)
	}

	rows := make([]attemptRow, len(all))
	for i, a := range all {
		rows[i] = attemptRow{Number: a.Attempt, Used: wording.UsageText(a.Usage), Shown: a.Attempt == shown, Run: &task.Run{
			State: a.State, Reason: a.Reason, ExitCode: a.ExitCode, Signal: a.Signal, HTTPStatus: a.HTTPStatus, StartedAt: a.StartedAt, EndedAt: a.EndedAt, Node: a.Node,
		}}
	}

	return rows
}

// Percent returns the progress of the run, from 0 to 100.
func (p *runPage) Percent() int {
	if g := p.Run.Progress; g != nil && g.Percent != nil {
		return int(min(max(*g.Percent, 0), 100))
	}
	return 0
}

// Active reports whether the run is on a node, or its parts are.
func (p *runPage) Active() bool { return p.Run.State.Active() }

// Pausable reports whether the run can be paused, and Resumable whether it can be resumed.
func (p *runPage) Pausable() bool { return p.Run.State.Active() && p.Run.PausedBy == nil }
func (p *runPage) Resumable() bool {
	return p.Run.State.Active() && (p.Run.PausedBy != nil || p.Run.Fan != nil && p.Flow == nil)
}

// FlowGraph returns the graph of the steps; nil if the task is not a workflow.
func (p *runPage) FlowGraph() *flowGraph {
	if p.Flow == nil {
		return nil
	}
	return p.Flow.Graph
}

// WhyAt is the tick of the run, as the screen that explains it expects it.
func (p *runPage) WhyAt() string { return p.Run.ScheduledTime.UTC().Format("2006-01-02T15:04:05.999Z") }

// AttemptText is the parameter that chooses the attempt whose output is shown.
func (p *runPage) AttemptText() string {
	if p.Attempt == 0 {
		return ""
	}
	return strconv.Itoa(p.Attempt)
}

// OtherWrap and OtherTimes are the values of the parameters that change how output is shown. Long lines are wrapped unless
// the parameter says otherwise, so that nobody misses the end of an error.
func (p *runPage) OtherWrap() string {
	if p.Wrap {
		return "0"
	}
	return ""
}

func (p *runPage) OtherTimes() string {
	if p.Times {
		return ""
	}
	return "1"
}

// Clock shows a time of day to the millisecond.
func (v *View) Clock(t task.Time, timezone ...string) template.HTML {
	local := t.In(v.zoneFor(timezone))
	return timeElement(t.Time, "", local.Format("15:04:05.000 MST"), exactText(local))
}
