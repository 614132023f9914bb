package ui

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// runsScreen lists runs, the newest first, as "carillon run list" does.
func runsScreen() Screen {
	return Screen{
		Name: "runs", Pattern: "/ui/runs", Nav: "runs",
		Title:   func(*View) string { return "Runs" },
		Load:    loadRuns,
		Command: runsCommand,
		Parts:   []Part{{Name: "rows", Hold: true}},
		Every:   5 * time.Second, // each rendering reads the histories
		Actions: []Action{{Pattern: "/ui/runs/change", Run: changeRuns}},
	}
}

// runsListed is the number of runs on a page.
const runsListed = 50

// runKind is a kind of runs that the list can be limited to.
type runKind struct {
	Name   string // the value of the parameter "show"
	Label  string
	states []task.State
	dead   bool
	reason string // only runs and ticks with this reason. The kind is listed only while it is chosen
}

var runKinds = []runKind{
	{Name: "", Label: "all"},
	{Name: "active", Label: "waiting and running", states: []task.State{task.Queued, task.Dispatched, task.Running, task.Paused}},
	{Name: "dead", Label: "dead letters", dead: true},
	{Name: "failed", Label: "failed", states: deadStates},
	{Name: "succeeded", Label: "succeeded", states: []task.State{task.Succeeded}},
	{Name: "cancelled", Label: "cancelled", states: []task.State{task.Cancelled}},
	{Name: "skipped", Label: "skipped and missed", states: []task.State{task.Skipped, task.Missed}},
	{Name: "restored", Label: "lost in a restore", reason: task.ReasonRestored},
}

// runsPage is what the screen shows.
type runsPage struct {
	Filters   []runKind
	Show      string
	Namespace string
	Task      string
	Node      string
	Since     string
	Spaces    []string
	Runs      []task.Run
	Next      string
	First     bool
	Changes   []runChange // what can be done with several runs

	Preview *runsPreview
	Report  *runsReport

	left []leftRow[task.Run]
}

// runKey identifies a run in a list. Ticks that did not run have no id.
func runKey(r task.Run) string {
	return strings.Join([]string{r.Namespace, r.Task, r.ID, r.ScheduledTime.String()}, " ")
}

// runRow is a run in the list.
type runRow struct {
	task.Run
	Left string // why the row is not in the list any more; "" if it is
}

// FlowProgress says how far an active run of a workflow is; "" for other runs. The parts of steps that have not begun are not counted.
func (r runRow) FlowProgress() string {
	if r.Fan == nil || r.Fan.Flow == nil || r.State.Final() {
		return ""
	}
	return fmt.Sprintf("workflow: %d of %s ended so far", r.Fan.Ended, countText(r.Fan.Count, "part"))
}

// Rows returns the rows of the list, and after them those that have left it.
func (p *runsPage) Rows() []runRow {
	rows := make([]runRow, 0, len(p.Runs)+len(p.left))
	for _, run := range p.Runs {
		rows = append(rows, runRow{Run: run})
	}
	for _, left := range p.left {
		rows = append(rows, runRow{left.item, "no longer in this list"})
	}

	return rows
}

// refreshLeft reads the runs that have left the list and that may change.
func (p *runsPage) refreshLeft(ctx context.Context, r *Request) {
	for i := range p.left {
		run := &p.left[i].item
		if run.ID == "" || run.State.Final() {
			continue
		}
		if now, err := r.API.Runs.Find(ctx, run.Namespace, run.ID); err == nil {
			*run = now
		}
	}
}

// Many reports whether runs of several namespaces may be in the list.
func (p *runsPage) Many() bool { return p.Namespace == "" }

// Filtered reports whether anything but the time limits the list.
func (p *runsPage) Filtered() bool {
	return p.Show != "" || p.Namespace != "" || p.Task != "" || p.Node != "" || p.Since != ""
}

// runOptions returns the options of the list, as the page's parameters ask for it.
func runOptions(r *Request) (client.RunListOptions, error) {
	q := r.Query
	o := client.RunListOptions{Namespace: q.Get("ns"), Task: strings.TrimSpace(q.Get("task")), Node: strings.TrimSpace(q.Get("node"))}
	if ns, name, both := strings.Cut(o.Task, "/"); both {
		o.Namespace, o.Task = ns, name
	}
	if o.Task != "" && o.Namespace == "" {
		return o, task.Invalid(task.CodeRequired, "ns", "is required with the name of a task; or write namespace/name")
	}

	show := q.Get("show")
	i := slices.IndexFunc(runKinds, func(f runKind) bool { return f.Name == show })
	if i < 0 {
		return o, task.Invalid(task.CodeBadValue, "show", "%s is not a kind of runs", task.Quote(show))
	}
	o.States, o.Dead, o.Reason = runKinds[i].states, runKinds[i].dead, runKinds[i].reason

	var err error
	o.Since, err = parseSince(r, strings.TrimSpace(q.Get("since")))

	return o, err
}

// parseSince reads a time in the past, in the zone of the page.
func parseSince(r *Request, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}

	at, err := schedule.ReadInstant(text, schedule.TimeBase{Now: r.Now, Zone: r.Zone(""), Direction: schedule.Past})

	return at, task.Under("since", err)
}

func loadRuns(ctx context.Context, r *Request) (any, error) {
	q := r.Query
	p := &runsPage{
		Show: q.Get("show"), Namespace: q.Get("ns"), Task: q.Get("task"), Node: q.Get("node"), Since: q.Get("since"),
		Spaces: r.Namespaces(), First: q.Get(pageParam) == "",
	}
	for _, kind := range runKinds {
		if kind.reason == "" || kind.Name == p.Show {
			p.Filters = append(p.Filters, kind)
		}
	}
	switch result := r.Result.(type) {
	case *runsPreview:
		p.Preview = result
	case *runsReport:
		p.Report = result
	}

	o, err := runOptions(r)
	if err != nil {
		return p, err
	}
	p.Namespace = o.Namespace
	if p.Changes, err = changesFor(r, o); err != nil {
		return p, err
	}

	o.Limit, o.Eventual = runsListed, true
	list, err := r.API.Runs.Page(ctx, o, q.Get(pageParam))
	if err != nil {
		return p, err
	}
	p.Runs, p.Next = list.Items, list.Next

	if before, ok := r.previous.(*runsPage); ok {
		// The others have ended, so what the viewer sees of them stays true.
		active := slices.DeleteFunc(slices.Clone(before.Runs), func(run task.Run) bool { return run.State.Final() })
		p.left = leftRows(r.Now, active, before.left, p.Runs, runKey)
		p.refreshLeft(ctx, r)
	}

	return p, nil
}

// runsCommand returns the command line of the list.
func runsCommand(v *View) []string {
	words := []string{"carillon", "run", "list"}
	o, err := runOptions(v.Request)
	if err != nil {
		return words
	}

	if o.Namespace != "" {
		words = append(words, "-n", o.Namespace)
	} else {
		words = append(words, "-A")
	}
	if o.Dead {
		words = append(words, "--dead")
	}
	if len(o.States) > 0 {
		names := make([]string, len(o.States))
		for i, s := range o.States {
			names[i] = string(s)
		}
		words = append(words, "--state", strings.Join(names, ","))
	}
	if o.Reason != "" {
		words = append(words, "--reason", o.Reason)
	}
	if o.Node != "" {
		words = append(words, "--node", o.Node)
	}
	if since := strings.TrimSpace(v.Query.Get("since")); since != "" {
		if strings.HasSuffix(since, "d") { // the command knows no days
			since = o.Since.UTC().Format(time.RFC3339)
		}
		words = append(words, "--since", since)
	}

	words = append(words, "--limit", strconv.Itoa(runsListed))
	if o.Task == "" {
		return words
	}

	return commandWith(words, []string{o.Task})
}

// runChange is something that can be done with several runs.
type runChange struct {
	Name   string // the verb: "retry"
	Past   string // "queued again"
	Danger bool
	About  string // what it does, for the preview

	verb string // of the right that it needs
	dead bool   // it concerns dead-letter runs; otherwise runs that have not ended
	run  func(context.Context, *client.Client, task.Run) error
}

// Label is the text of its button.
func (c runChange) Label() string { return strings.ToUpper(c.Name[:1]) + c.Name[1:] }

var runChanges = []runChange{
	{Name: "retry", Past: "queued again", verb: "retry", dead: true, About: "For each of them a new run with the same environment is queued, and it leaves the dead-letter runs.",
		run: func(ctx context.Context, c *client.Client, r task.Run) error {
			_, err := c.Runs.RetryWith(ctx, r.Namespace, r.Task, r.ID, retryKey(r.ID))
			return err
		}},
	{Name: "dismiss", Past: "dismissed", verb: "retry", dead: true, About: "They leave the dead-letter runs and stay in the history.",
		run: func(ctx context.Context, c *client.Client, r task.Run) error {
			_, err := c.Runs.Dismiss(ctx, r.Namespace, r.Task, r.ID)
			return err
		}},
	{Name: "cancel", Past: "cancelled", verb: "cancel", Danger: true, About: "Waiting runs end at once. The processes of active runs get the kill signal of their task, and SIGKILL after its kill_grace.",
		run: func(ctx context.Context, c *client.Client, r task.Run) error {
			_, err := c.Runs.Cancel(ctx, r.Namespace, r.Task, r.ID)
			return err
		}},
}

// changesFor returns what the viewer may do with the runs of a list.
func changesFor(r *Request, o client.RunListOptions) ([]runChange, error) {
	active := len(o.States) > 0 && !slices.ContainsFunc(o.States, task.State.Final)
	spaces := []string{o.Namespace}
	if o.Namespace == "" {
		spaces = r.Namespaces()
	}

	var list []runChange
	for _, c := range runChanges {
		if c.dead != o.Dead || !c.dead && !active {
			continue
		}
		for _, ns := range spaces {
			may, err := r.May(c.verb, "runs", ns)
			if err != nil {
				return nil, err
			}
			if may {
				list = append(list, c)
				break
			}
		}
	}

	return list, nil
}

// countText returns a number of things, with commas: "1 run", "12,345 runs".
func countText(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return wording.Grouped(n) + " " + noun + "s"
}

// String names a run: "prod/web@20261120T…".
func (c chosenRun) String() string { return fmt.Sprintf("%s/%s@%s", c.Namespace, c.Task, c.ID) }

// A viewer may still see a row that has left a list, because a held list keeps its rows until the viewer asks for the new
// ones. The page of a list therefore also has the rows that have left it, marked and with their present state. The script
// of the page drops those that its viewer does not see.
const (
	// leftKept is how long a list keeps a row that has left it, and maxLeft how many of them it keeps. Rows beyond these
	// limits are marked by the script, as they were last.
	leftKept = 2 * time.Minute
	maxLeft  = 50
)

// leftRow is a row that has left a list.
type leftRow[T any] struct {
	item    T
	since   time.Time
	deleted bool // the item no longer exists
}

// leftRows returns the rows that have left a list: those that were shown before or had left it already, and are not shown
// now. The newest come first.
func leftRows[T any](now time.Time, before []T, left []leftRow[T], shown []T, keyOf func(T) string) []leftRow[T] {
	seen := make(map[string]bool, len(shown))
	for _, item := range shown {
		seen[keyOf(item)] = true
	}

	var all []leftRow[T]
	add := func(row leftRow[T]) {
		key := keyOf(row.item)
		if !seen[key] && now.Sub(row.since) < leftKept && len(all) < maxLeft {
			seen[key] = true
			all = append(all, row)
		}
	}
	for _, item := range before {
		add(leftRow[T]{item: item, since: now})
	}
	for _, row := range left {
		add(row)
	}

	return slices.Clip(all)
}
