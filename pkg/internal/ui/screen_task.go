package ui

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskScreen shows everything about one task: what it will do, what it did, how it changed, and how it is defined.
func taskScreen() Screen {
	const pattern = "/ui/tasks/{ns}/{name}"

	return Screen{
		Name: "task", Pattern: pattern, Nav: "tasks",
		Title:   func(v *View) string { return v.Value("name") },
		Load:    loadTask,
		Command: taskCommand,
		Parts:   []Part{{Name: "head"}, {Name: "failure"}, {Name: "alerts"}, {Name: "body", Hold: true}},
		Every:   2 * time.Second, // each rendering reads the records of the task from etcd
		Actions: []Action{
			{Pattern: pattern + "/trigger", Run: triggerTask},
			{Pattern: pattern + "/pause", Run: pauseTask},
			{Pattern: pattern + "/resume", Run: resumeTask},
			{Pattern: pattern + "/delete", Run: deleteTask},
			{Pattern: pattern + "/rollback", Run: rollbackTask},
			{Pattern: pattern + "/test", Run: testReceiver},
		},
	}
}

const (
	tabRuns       = "runs"
	tabSteps      = "steps"
	tabGraph      = "graph"
	tabStats      = "stats"
	tabVersions   = "versions"
	tabDefinition = "definition"

	comingTicks = 10 // in the overview
	lastRuns    = 8
	runsPerPage = 50
	chartRuns   = 60
)

// taskTab is a tab of the page of a task.
type taskTab struct{ Name, Label string }

// taskTabs are the tabs, in order. The first one is shown without a parameter. Only workflows have the tab with steps.
var taskTabs = []taskTab{{"", "Overview"}, {tabRuns, "Runs"}, {tabSteps, "Steps"}, {tabGraph, "Graph"}, {tabStats, "Statistics"}, {tabVersions, "Versions"}, {tabDefinition, "Definition"}}

// taskPage is what the screen shows. Only the tab that is shown is set.
type taskPage struct {
	Task  client.Task
	Words string // the schedule in English
	Next  string // instead of the time of the next tick
	May   taskRights
	Tabs  []taskTab
	Tab   string
	Panel *taskPanel
	Asked task.Time // when the page was made

	Days       *taskDays   // in the overview and in the statistics; nil if the viewer may not read runs
	Alerts     *taskAlerts // in the overview of a task that has expectations, or is a receiver
	Overview   *taskOverview
	Runs       *taskRuns
	Steps      *taskSteps
	Graph      *taskGraph
	Stats      *taskStats
	Versions   *taskVersions
	Definition *taskDefinition
}

// Then names the tasks that run after the task; "" if there are none.
func (p taskPage) Then() string { return wording.DependentsText(p.Task.Dependents) }

// taskRights are what the page offers.
type taskRights struct{ Trigger, Pause, Update, Create, Delete bool }

// taskPanel is the form of an action, with what the action would change.
type taskPanel struct {
	Trigger, Pause, Delete bool
	Change                 *client.Change // what a deletion would change; nil if it is not known
}

func loadTask(ctx context.Context, r *Request) (any, error) {
	ns, name := r.Value("ns"), r.Value("name")
	t, err := r.API.Tasks.Get(ctx, ns, name)
	if err != nil {
		return nil, err
	}

	p := taskPage{Task: t, Next: nextText(&t), Tabs: tabsFor(t.Spec), Tab: r.Query.Get("tab"), Asked: task.At(r.Now)}
	x, err := schedule.Explain(t.Timing())
	if err == nil {
		p.Words = x.Text
	}
	if after := t.After.Describe(); after != "" {
		p.Words = "Runs after " + after
		if t.Schedule.HasTicks() {
			p.Words = cmp.Or(x.Text, strings.Join(t.Schedule, ", ")) + "; also after " + after
		}
	}
	if p.May, err = taskRightsOf(r, ns); err != nil {
		return nil, err
	}
	var noDays, noAlerts error
	callgroup.Run(
		func() { p.Panel = loadPanel(ctx, r, t, p.May) },
		func() {
			if p.Tab == "" || p.Tab == tabStats {
				p.Days, noDays = loadTaskDays(ctx, r, t)
			}
		},
		func() {
			if p.Tab == "" {
				p.Alerts, noAlerts = loadTaskAlerts(ctx, r, t)
			}
		},
		func() { err = p.loadTab(ctx, r) },
	)
	if noDays != nil || noAlerts != nil {
		return nil, cmp.Or(noDays, noAlerts)
	}

	return p, err
}

// loadTab reads what the chosen tab shows.
func (p *taskPage) loadTab(ctx context.Context, r *Request) (err error) {
	t := p.Task
	switch p.Tab {
	case tabRuns:
		p.Runs, err = loadTaskRuns(ctx, r, t.Namespace, t.Name)
	case tabSteps:
		p.Steps, err = loadTaskSteps(r, t.Action.Workflow)
	case tabGraph:
		p.Graph, err = loadTaskGraph(ctx, r, t.Namespace, t.Name)
	case tabStats:
		p.Stats, err = loadTaskStats(ctx, r, t)
	case tabVersions:
		p.Versions, err = loadTaskVersions(ctx, r, t)
	case tabDefinition:
		p.Definition, err = loadTaskDefinition(ctx, r, t)
	default:
		p.Overview, err = loadTaskOverview(ctx, r, t)
	}

	return err
}

func taskRightsOf(r *Request, ns string) (taskRights, error) {
	var may taskRights
	for verb, allowed := range map[string]*bool{"trigger": &may.Trigger, "pause": &may.Pause, "update": &may.Update, "create": &may.Create, "delete": &may.Delete} {
		var err error
		if *allowed, err = r.May(verb, "tasks", ns); err != nil {
			return may, err
		}
	}

	return may, nil
}

// loadPanel returns the form that the page shows; nil if it shows none.
func loadPanel(ctx context.Context, r *Request, t client.Task, may taskRights) *taskPanel {
	switch do := r.Query.Get("do"); {
	case do == "trigger" && may.Trigger:
		return &taskPanel{Trigger: true}
	case do == "pause" && may.Pause:
		return &taskPanel{Pause: true}
	case do == "delete" && may.Delete:
		p := &taskPanel{Delete: true}
		if would, err := r.API.Tasks.DryRunDeleteWith(ctx, t.Namespace, t.Name, client.DeleteOptions{Revision: t.Revision, Force: true}); err == nil {
			p.Change = would.DryRun
		}
		return p
	}

	return nil
}

// taskOverview is the first tab.
type taskOverview struct {
	// Why are sentences about the latest tick and the next one. They say how long something takes, so they are not part of
	// what is kept current.
	Why      []string
	Ticks    []tickRow
	Notes    []string
	Runs     []task.Run
	Failure  *taskFailure // nil: nothing needs a person
	Settings []setting
	Labels   []labelTerm
}

// taskFailure is the dead-letter run of a failing task, with what a person needs to decide what to do.
type taskFailure struct {
	task.Run
	Because string   // why it failed, as a clause
	Lines   []string // the end of its output; nil if there is none, or the viewer may not read it
	Retry   bool     // the viewer may retry it
}

// failureLines is the number of lines of output that the page of a failing task shows.
const failureLines = 5

// tickRow is a tick that is to come.
type tickRow struct {
	Time, Due task.Time
	Mark      string // "gap", "fold" or "": what the clocks do
	Note      string
	Bad       bool // its run could not start as things are now
}

// labelTerm is a label with the query that finds its tasks.
type labelTerm struct{ Text, Query string }

func loadTaskOverview(ctx context.Context, r *Request, t client.Task) (*taskOverview, error) {
	o := &taskOverview{Settings: settingsOf(t), Labels: labelTerms(t.Labels)}

	var ticks []client.Occurrence
	var answer task.Answer
	var err, noTicks, noWhy error
	callgroup.Run(
		func() { ticks, noTicks = r.API.Ticks.ListByTask(ctx, t.Namespace, t.Name, comingTicks, time.Time{}) },
		func() {
			o.Runs, err = r.API.Runs.ListByTask(ctx, t.Namespace, t.Name, client.RunListOptions{Limit: lastRuns})
		},
		func() {
			if !r.watched {
				answer, noWhy = r.API.Tasks.Why(ctx, t.Namespace, t.Name, client.WhyQuestion{})
			}
		},
	)
	if noTicks != nil {
		return nil, noTicks
	}
	o.Ticks = tickRows(ticks)

	for _, f := range schedule.Lint(t.Timing(), r.Now) {
		o.Notes = append(o.Notes, findingText(f))
	}

	// Who reads tasks may not be allowed to read runs. The rest is shown in any case.
	if err != nil && !isForbidden(err) {
		return nil, err
	}
	if o.Failure, err = lastFailure(ctx, r, t, o.Runs); err != nil {
		return nil, err
	}
	if r.watched {
		return o, nil
	}

	if noWhy == nil {
		o.Why = append(o.Why, answer.Sentence)
		for _, also := range answer.Also {
			o.Why = append(o.Why, also.Sentence)
		}
	} else if !isForbidden(noWhy) {
		return nil, noWhy
	}

	return o, nil
}

// lastFailure returns the dead-letter run that ended last, if the task is failing and the viewer may read its runs. runs are
// the newest runs of the task.
func lastFailure(ctx context.Context, r *Request, t client.Task, runs []task.Run) (*taskFailure, error) {
	if t.State != client.TaskFailing {
		return nil, nil
	}

	dead, err := r.API.Runs.Page(ctx, client.RunListOptions{Namespace: t.Namespace, Task: t.Name, Dead: true, Limit: 100}, "")
	switch {
	case isForbidden(err):
		return nil, nil
	case err != nil || len(dead.Items) == 0:
		return nil, err
	}

	last := slices.MaxFunc(dead.Items, func(a, b task.Run) int { return a.EndedAt.Compare(b.EndedAt.Time) })
	// The history keeps more of the output.
	if i := slices.IndexFunc(runs, func(run task.Run) bool { return run.ID == last.ID }); i >= 0 {
		last = runs[i]
	}

	may, err := runRightsOf(r, t.Namespace)
	if err != nil {
		return nil, err
	}
	f := &taskFailure{Run: last, Retry: may.Retry}
	if reason, ok := task.ReasonOf(f.Reason); ok {
		f.Because = reason.Means
	}
	if may.Output {
		lines := shownLines(f.OutputTail)
		f.Lines = lines[max(len(lines)-failureLines, 0):]
	}

	return f, nil
}

// tickRows returns ticks as the page shows them.
func tickRows(ticks []client.Occurrence) []tickRow {
	var rows []tickRow
	for _, o := range ticks {
		row := tickRow{Time: o.Time, Due: o.DueAt, Mark: o.Note, Note: wording.TickNote(o), Bad: o.Obstacle != ""}
		if row.Due.IsZero() {
			row.Due = o.DueBefore
		}
		rows = append(rows, row)
	}

	return rows
}

// findingText is a finding about a schedule on one line.
func findingText(f schedule.Finding) string {
	if f.Hint == "" {
		return f.Message
	}
	return f.Message + "; " + f.Hint
}

// labelTerms returns labels in order.
func labelTerms(labels map[string]string) []labelTerm {
	var list []labelTerm
	for k, v := range labels {
		list = append(list, labelTerm{Text: k + "=" + v, Query: "label:" + k + "=" + v})
	}
	slices.SortFunc(list, func(a, b labelTerm) int { return cmp.Compare(a.Text, b.Text) })

	return list
}

// taskRuns is the tab with the runs of a task, and the ticks that did not run. Those whose records are no longer kept follow
// from the ledger.
type taskRuns struct {
	Filter  string
	Filters []runFilter
	Runs    []task.Run
	Ledger  *ledgerList // nil: the page does not reach it
	Older   string      // where the next page begins; "" if there is none
	First   bool
}

// runFilter is a filter of the runs.
type runFilter struct {
	Name, Label string
	states      []task.State
}

// runFilters are the filters. Runs that are active are not in the ledger.
var runFilters = []runFilter{
	{"", "all", nil},
	{"failed", "not succeeded", []task.State{task.Failed, task.TimedOut, task.Lost, task.Cancelled}},
	{"unrun", "skipped and missed", []task.State{task.Skipped, task.Missed}},
	{"succeeded", "succeeded", []task.State{task.Succeeded}},
	{"active", "waiting and running", []task.State{task.Queued, task.Dispatched, task.Running, task.Paused}},
}

func loadTaskRuns(ctx context.Context, r *Request, ns, name string) (*taskRuns, error) {
	at := r.Query.Get(pageParam)
	p := &taskRuns{Filter: r.Query.Get("state"), Filters: runFilters, First: at == ""}
	o := client.RunListOptions{Limit: runsPerPage + 1}
	if i := slices.IndexFunc(runFilters, func(f runFilter) bool { return f.Name == p.Filter }); i >= 0 {
		o.States = runFilters[i].states
	}

	at, inLedger := strings.CutPrefix(at, ledgerPage)
	if !p.First {
		var err error
		if o.Until, err = time.Parse(time.RFC3339Nano, at); err != nil {
			return nil, task.Invalid(client.CodeBadPage, pageParam, "%s is not the time of a tick", task.Quote(at))
		}
	}
	if inLedger {
		return p, p.loadLedger(ctx, r, ns, name, o)
	}

	runs, err := r.API.Runs.ListByTask(ctx, ns, name, o)
	if err != nil {
		return nil, err
	}
	p.Runs = runs
	if len(runs) > runsPerPage {
		p.Runs = runs[:runsPerPage]
		p.Older = p.Runs[runsPerPage-1].ScheduledTime.UTC().Format(time.RFC3339Nano)
		return p, nil
	}

	o.Until = time.Time{}

	return p, p.loadLedger(ctx, r, ns, name, o)
}

// Any reports whether the page has rows.
func (t *taskRuns) Any() bool { return len(t.Runs) > 0 || t.Ledger != nil && len(t.Ledger.Rows) > 0 }

// loadLedger adds lines of the ledger to the page.
func (t *taskRuns) loadLedger(ctx context.Context, r *Request, ns, name string, o client.RunListOptions) (err error) {
	if t.Filter == "active" {
		return nil
	}

	t.Ledger, err = loadLedgerList(ctx, r, ns, name, o.States, o.Until)
	if err == nil {
		t.Older = t.Ledger.Older
	}

	return err
}

// taskCommand returns the command line that shows the same as the tab, or does the same as the panel.
func taskCommand(v *View) []string {
	name, ns := v.Value("name"), v.Value("ns")
	words := []string{"carillon", "task"}

	switch do, tab := v.Query.Get("do"), v.Query.Get("tab"); {
	case do == "trigger" || do == "pause" || do == "delete":
		words = append(words, do, name)
	case tab == tabRuns:
		words = append(words, "history", name)
	case tab == tabGraph:
		words = append(words, "graph", name, "--levels", strconv.Itoa(graphLevels))
	case tab == tabStats:
		words = append(words, "stats", name)
	case tab == tabVersions && v.Query.Get("to") != "":
		words = append(words, "rollback", name, "--to", v.Query.Get("to"), "--dry-run")
	case tab == tabVersions:
		words = append(words, "history", name, "--versions")
	case tab == tabDefinition:
		words = append(words, "get", name, "-o", "yaml")
	default:
		words = append(words, "get", name)
	}

	return append(words, "-n", ns)
}

// isForbidden reports whether a right is missing.
func isForbidden(err error) bool {
	return err != nil && strings.Contains(problemOf(err).Code, client.CodeForbidden)
}
