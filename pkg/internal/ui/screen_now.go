package ui

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// nowScreen is the start page: what needs a human, in order, and what happens next. Its judgments are those of
// "carillon top".
func nowScreen() Screen {
	loads := &sharedCache[*minutesChart]{}

	return Screen{
		Name: "now", Pattern: home, Nav: "now",
		Title:   func(*View) string { return "Now" },
		Load:    func(ctx context.Context, r *Request) (any, error) { return loadNow(ctx, r, loads) },
		Command: func(*View) []string { return []string{"carillon", "top"} },
		Parts:   []Part{{Name: "verdict"}, {Name: "problems"}, {Name: "pauses"}, {Name: "soon"}, {Name: "running"}},
		Every:   2 * time.Second,
		Actions: []Action{
			{Pattern: "/ui/now/retry/{ns}/{id}", Run: retryRun},
			{Pattern: "/ui/now/resume/{ns}/{name}", Run: resumeHere},
			{Pattern: "/ui/now/unfreeze", Run: unfreeze},
		},
	}
}

const (
	nowSpan   = 15 * time.Minute // how far the page looks ahead
	nowListed = 100              // items of each list that are read
	nowShown  = 5                // items of each group that are shown
	nowPaused = 8                // paused tasks that are shown
	lateFrom  = time.Second      // a 99th percentile of the lateness that is reported
	loadsKept = 15 * time.Second
)

// nowPage is what the screen shows.
type nowPage struct {
	At       task.Time      // to the minute
	Cluster  []problemGroup // what affects many tasks
	Failures []failureGroup
	Groups   []problemGroup // what affects single tasks, except for failures
	Failing  int            // tasks
	More     int            // failing tasks that are not in the groups
	Silent   bool
	Complete bool // everything was judged
	Tasks    int
	Whole    bool // the viewer reads all namespaces, so the number of tasks is known

	Freezes     []nowFreeze
	Paused      []nowPause
	MorePaused  bool   // there are more paused tasks than the page shows
	PausedCount string // "35 paused tasks"; "paused tasks" if the number is not known

	Soon    *minutesChart
	Next    []task.BoardTick
	Recent  task.Recent
	Active  []nowRun
	Running int
	Waiting int
	Reasons string // why runs wait
}

// Calm reports whether nothing needs a human.
func (p *nowPage) Calm() bool { return len(p.Cluster)+len(p.Groups) == 0 && p.Failing == 0 }

// Count returns how many things need a human.
func (p *nowPage) Count() int { return p.Failing + countOf(p.Cluster) + countOf(p.Groups) }

// attentionCount returns how many things need a human, for other pages than this one.
func attentionCount(b task.Board) int {
	return b.FailingCount + countOf(clusterProblems(b)) + countOf(taskProblems(b))
}

// countOf returns how many problems are in groups.
func countOf(groups []problemGroup) int {
	n := 0
	for _, g := range groups {
		n += g.Count
	}
	return n
}

// Summary names what needs a human, in the order of the page.
func (p *nowPage) Summary() string {
	var words []string
	add := func(groups []problemGroup) {
		for _, g := range groups {
			text := strings.ToLower(g.Name[:1]) + g.Name[1:]
			if g.Count > 1 {
				text = wording.Grouped(g.Count) + "× " + text
			}
			words = append(words, text)
		}
	}

	add(p.Cluster)
	if p.Failing > 0 {
		words = append(words, wording.Grouped(p.Failing)+" failing")
	}
	add(p.Groups)

	return strings.Join(words, ", ")
}

// problemGroup is a kind of problem with those that have it.
type problemGroup struct {
	Look  string // whose looks it has
	Name  string
	About string
	Count int
	Items []problemItem
	More  int // those that are not listed
}

// problemItem is one of them: a task, a node, or a text.
type problemItem struct {
	Namespace, Task string
	Run, Node       string
	Name            string // if it is neither a task nor a node
	Details         string
	Since           task.Time
}

// failureGroup is tasks whose last runs failed in the same way.
type failureGroup struct {
	State  task.State
	Words  string // "exit 1"
	Means  string
	Node   string // where all of them ran; "": on several nodes
	Newest task.Time
	Tasks  []failingTask
	Shown  []failingTask
	More   int
	Retry  bool // the viewer may retry at least one of them
}

// failingTask is a task in a group of failures.
type failingTask struct {
	task.BoardFailing
	Retry bool
}

type nowFreeze struct {
	task.Freeze
	By  string
	End bool // the viewer may end it
}

type nowPause struct {
	client.Task
	By     string // "by ann", "after failures"
	Resume bool
}

type nowRun struct {
	task.BoardRun
	Percent int
	Text    string
	Shown   bool // it has reported a percentage
}

func loadNow(ctx context.Context, r *Request, loads *sharedCache[*minutesChart]) (any, error) {
	var b task.Board
	var soon *minutesChart
	var err error
	callgroup.Run(
		func() { b, err = r.API.Board.Get(ctx, boardOptions) },
		func() { soon = nextMinutes(ctx, r, loads) },
	)
	if err != nil {
		return nil, err
	}

	p := &nowPage{
		At: task.At(b.At.Truncate(time.Minute)), Failing: b.FailingCount, Complete: len(b.Silent) == 0 && len(b.Missing) == 0, Tasks: b.Tasks, Whole: r.ReadsEverything(),
		Recent: b.Recent, Running: b.ActiveCount, Waiting: b.WaitingCount, Soon: soon,
	}
	p.Cluster, p.Groups = clusterProblems(b), taskProblems(b)
	if p.Failures, err = failureGroups(r, b.Failing); err != nil {
		return nil, err
	}
	p.More = max(b.FailingCount-len(b.Failing), 0)
	p.Reasons = waitingText(b.Waiting)
	if err := p.addFreezes(r, b.Freezes); err != nil {
		return nil, err
	}
	// The owners look for paused tasks among all tasks, so they are asked only if there are some, as far as is known.
	if none := p.Whole && p.Complete && b.Paused == 0; !none {
		err = p.addPauses(ctx, r)
	}
	if err != nil {
		return nil, err
	}

	p.PausedCount = "paused tasks"
	if p.Whole && p.Complete && b.Paused > 0 {
		p.PausedCount = countText(b.Paused, "paused task")
	}

	p.Next = b.Next[:min(len(b.Next), 6)]
	for _, a := range b.Active[:min(len(b.Active), 8)] {
		run := nowRun{BoardRun: a}
		if g := a.Progress; g != nil {
			run.Text = g.Text
			if g.Percent != nil {
				run.Percent, run.Shown = int(min(max(*g.Percent, 0), 100)), true
			}
		}
		p.Active = append(p.Active, run)
	}

	return p, nil
}

// addItem adds an item.
func (g *problemGroup) addItem(i problemItem) {
	g.Count++
	if len(g.Items) < nowShown {
		g.Items = append(g.Items, i)
	} else {
		g.More++
	}
}

// clusterProblems returns what affects many tasks.
func clusterProblems(b task.Board) []problemGroup {
	silent := problemGroup{Look: "lost", Name: "Nodes do not answer", About: "What they know is missing on this page."}
	for _, s := range b.Silent {
		silent.addItem(problemItem{Node: s.Node, Details: s.Reason})
	}

	unowned := problemGroup{Look: "failing", Name: "Shards without an owner", About: "Their tasks do not fire."}
	if n := b.ShardCount - b.ShardsOwned; n > 0 {
		unowned.addItem(problemItem{Name: fmt.Sprintf("%d of %d shards", n, b.ShardCount)})
	}
	missing := problemGroup{Look: "unreadable", Name: "Shards that have not answered", About: "Their tasks are neither counted nor listed here."}
	if n := len(b.Missing); n > b.ShardCount-b.ShardsOwned {
		missing.addItem(problemItem{Name: fmt.Sprintf("%d of %d shards", n, b.ShardCount)})
	}

	stuck := problemGroup{Look: "failing", Name: "Stuck shards", About: "They decide no ticks although some are due."}
	for _, s := range b.Stuck {
		details := "decides nothing"
		if s.Loading {
			details = "is being loaded"
		}
		stuck.addItem(problemItem{Name: fmt.Sprintf("shard %d", s.ID), Details: details + ", on " + s.Node, Since: s.Since})
	}

	nodes := problemGroup{Look: task.NodeCordoned, Name: "Nodes that do not take part"}
	for _, n := range b.Nodes {
		switch {
		case n.Ineligible != "":
			nodes.addItem(problemItem{Node: n.Name, Details: strings.TrimPrefix(wording.IneligibleText(task.Node{Ineligible: n.Ineligible}), ": ")})
		case len(n.Blocked) > 0:
			nodes.addItem(problemItem{Node: n.Name, Details: "accepts no runs: " + task.DescribeBlocked(n.Blocked)})
		}
	}

	warnings := problemGroup{Look: "unreadable", Name: "Warnings of the cluster"}
	for _, w := range b.WarningDetails {
		if !shownOnItsOwn(w.Code) {
			warnings.addItem(problemItem{Name: w.Text})
		}
	}

	return withoutEmpty(unowned, stuck, silent, missing, warnings, nodes)
}

// shownOnItsOwn reports whether the page shows what a warning is about in another place.
func shownOnItsOwn(code string) bool {
	switch code {
	case task.WarnShardsUnowned, task.WarnNodeIneligible, task.WarnNodeBlocked, task.WarnUnreadable, task.WarnFrozen:
		return true
	}
	return false
}

// taskProblems returns what affects single tasks, except for failures.
func taskProblems(b task.Board) []problemGroup {
	overdue := problemGroup{Look: string(task.Missed), Name: "Overdue", About: "These ticks were due more than two seconds ago and are not decided."}
	for _, t := range b.Overdue {
		overdue.addItem(problemItem{Namespace: t.Namespace, Task: t.Task, Since: t.Due()})
	}
	overdue.countAll(b.OverdueCount)

	away := problemGroup{Look: string(task.Lost), Name: "Node gone", About: "The nodes of these runs are gone. They are lost, unless their nodes come back in time."}
	for _, a := range b.Away {
		away.addItem(problemItem{Namespace: a.Namespace, Task: a.Task, Run: a.Run, Details: "ran on " + a.Node, Since: a.Began()})
	}
	away.countAll(b.AwayCount)

	unmatched := problemGroup{Look: task.NodeCordoned, Name: "No node matches", About: "These runs wait: no available node matches the selector of their task."}
	for _, w := range b.Waits {
		if w.Reason == task.ReasonNoNode {
			unmatched.addItem(problemItem{Namespace: w.Namespace, Task: w.Task, Run: w.Run, Since: w.Since})
		}
	}
	unmatched.countAll(b.Waiting[task.ReasonNoNode])

	target := problemGroup{Look: task.NodeCordoned, Name: "Target down", About: "These runs wait: the targets of their requests, or of earlier requests of their tasks, are unreachable or ask to wait."}
	for _, w := range b.Waits {
		if w.Reason == task.ReasonTarget && w.Unsent != nil {
			target.addItem(problemItem{Namespace: w.Namespace, Task: w.Task, Run: w.Run, Details: w.Unsent.Message, Since: w.Unsent.First})
		}
	}
	target.countAll(b.Waiting[task.ReasonTarget])

	unreadable := problemGroup{Look: "unreadable", Name: "Unreadable", About: "These tasks do not fire, because their entries cannot be read. Run carillon audit."}
	if b.Unreadable > 0 {
		unreadable.addItem(problemItem{Name: countText(b.Unreadable, "task")})
		unreadable.Count = b.Unreadable
	}

	late := problemGroup{Look: string(task.Missed), Name: "Late", About: "From the time of a tick to the commit that decided it, in the last minute."}
	if p99 := time.Duration(b.Recent.P99MS) * time.Millisecond; p99 >= lateFrom {
		late.addItem(problemItem{Name: fmt.Sprintf("1 of 100 ticks is late by %s or more, at most %s", task.Duration(p99).Approximate(), task.Duration(time.Duration(b.Recent.MaxMS)*time.Millisecond).Approximate())})
	}

	return withoutEmpty(overdue, away, unmatched, target, unreadable, late)
}

// withoutEmpty returns the groups that have something.
func withoutEmpty(groups ...problemGroup) []problemGroup {
	return slices.DeleteFunc(groups, func(g problemGroup) bool { return g.Count == 0 })
}

// countAll sets how many there are. The board lists only some of them.
func (g *problemGroup) countAll(n int) {
	if n > g.Count {
		g.More, g.Count = g.More+n-g.Count, n
	}
}

// failureGroups groups failing tasks by what happened: the largest group first, and of equal ones the newest.
func failureGroups(r *Request, failing []task.BoardFailing) ([]failureGroup, error) {
	may := map[string]bool{}
	byCause := map[string]int{}
	var groups []failureGroup
	for _, f := range failing {
		if _, known := may[f.Namespace]; !known {
			var err error
			if may[f.Namespace], err = r.May("retry", "runs", f.Namespace); err != nil {
				return nil, err
			}
		}

		words := wording.RunResult(task.Run{State: f.State, Reason: f.Reason, ExitCode: f.ExitCode}, time.Time{})
		if f.Reason == task.ReasonSignal {
			words = "killed by a signal" // the board does not name it
		}
		cause := string(f.State) + "\x00" + f.Reason + "\x00" + words
		i, known := byCause[cause]
		if !known {
			i = len(groups)
			byCause[cause] = i
			g := failureGroup{State: f.State, Words: words, Newest: f.EndedAt, Node: f.Node}
			if reason, ok := task.ReasonOf(f.Reason); ok {
				g.Means = reason.Means
			}
			groups = append(groups, g)
		}

		g := &groups[i]
		if g.Node != f.Node {
			g.Node = ""
		}
		if f.EndedAt.After(g.Newest.Time) {
			g.Newest = f.EndedAt
		}
		g.Retry = g.Retry || may[f.Namespace]
		g.Tasks = append(g.Tasks, failingTask{f, may[f.Namespace]})
	}

	for i := range groups {
		g := &groups[i]
		g.Shown = g.Tasks[:min(len(g.Tasks), nowShown)]
		g.More = len(g.Tasks) - len(g.Shown)
	}
	slices.SortStableFunc(groups, func(a, b failureGroup) int {
		return cmp.Or(len(b.Tasks)-len(a.Tasks), b.Newest.Compare(a.Newest.Time))
	})

	return groups, nil
}

// addFreezes adds the freezes in force.
func (p *nowPage) addFreezes(r *Request, freezes []task.Freeze) error {
	for _, f := range freezes {
		end, err := r.May("operate", "cluster", "")
		if f.Namespace != "" {
			end, err = r.May("pause", "tasks", f.Namespace)
		}
		if err != nil {
			return err
		}
		p.Freezes = append(p.Freezes, nowFreeze{Freeze: f, By: task.ActorName(f.By), End: end})
	}

	return nil
}

// addPauses adds the paused tasks.
func (p *nowPage) addPauses(ctx context.Context, r *Request) error {
	paused, err := r.API.Tasks.Page(ctx, client.TaskListOptions{Paused: true, Limit: nowPaused}, "")
	if err != nil {
		return nil //nolint:nilerr // the rest of the page is more important
	}

	p.MorePaused = paused.Next != ""
	for _, t := range paused.Items {
		resume, err := r.May("pause", "tasks", t.Namespace)
		if err != nil {
			return err
		}
		by := wording.PausedBy(t.Pause)
		if by != "" && t.Pause.By != task.PausedByFailures {
			by = "by " + by
		}
		p.Paused = append(p.Paused, nowPause{Task: t, By: by, Resume: resume})
	}

	return nil
}

// waitingText says why runs wait.
func waitingText(reasons map[string]int) string {
	var words []string
	for reason, n := range reasons {
		if n > 0 {
			words = append(words, fmt.Sprintf("%s %s", wording.Grouped(n), cmp.Or(plainState(reason), "new")))
		}
	}
	slices.Sort(words)

	return strings.Join(words, ", ")
}

// resumeHere resumes a task.
func resumeHere(ctx context.Context, r *Request) (Done, error) {
	t, err := r.API.Tasks.Resume(ctx, r.Value("ns"), r.Value("name"), 0)
	return Done{Message: "resumed " + t.Name}, err
}

// unfreeze ends a freeze.
func unfreeze(ctx context.Context, r *Request) (Done, error) {
	ns := r.Form.Get("namespace")
	_, err := r.API.Freezes.End(ctx, ns)

	return Done{Message: "ended the freeze of " + cmp.Or(ns, "the cluster")}, err
}

// nextMinutes returns what falls due in the next minutes; nil if it is not known. It is kept for a while, because counting
// it costs the owners of the shards much more than the board does.
func nextMinutes(ctx context.Context, r *Request, loads *sharedCache[*minutesChart]) *minutesChart {
	fresh := func(at time.Time) bool {
		age := r.Now.Sub(at)
		return age >= 0 && age < loadsKept && sameMinute(at, r.Now)
	}

	chart, err := loads.get(ctx, r, fresh, func(ctx context.Context) (*minutesChart, error) {
		load, err := r.API.Load.Get(ctx, client.LoadOptions{Step: time.Minute, Peaks: shownPeaks}) // as on the page Load, so that both share an answer
		if err != nil {
			return nil, err
		}

		chart := &minutesChart{From: load.From, Runs: load.Runs[:min(len(load.Runs), int(nowSpan/time.Minute))]}
		for _, n := range chart.Runs {
			chart.Sum += n
			chart.Top = max(chart.Top, n)
		}

		return chart, nil
	})
	if err != nil {
		return nil
	}

	return chart
}

func sameMinute(a, b time.Time) bool {
	return a.Truncate(time.Minute).Equal(b.Truncate(time.Minute))
}

// minutesChart is how many runs fall due in the next minutes.
type minutesChart struct {
	From     task.Time
	Runs     []float64
	Sum, Top float64
}

// End is the end of the last minute.
func (c *minutesChart) End() task.Time {
	return task.At(c.From.Add(time.Duration(len(c.Runs)) * time.Minute))
}

// Total returns the number of runs in words.
func (c *minutesChart) Total() string { return countText(int(c.Sum+0.5), "run") }

// Peak returns the highest number of runs in a minute.
func (c *minutesChart) Peak() string { return wording.Grouped(int(c.Top + 0.5)) }

// Table returns the numbers in words, for people who do not see the chart.
func (c *minutesChart) Table() string {
	words := make([]string, len(c.Runs))
	for i, n := range c.Runs {
		words[i] = fmt.Sprintf("%s: %s", c.From.Add(time.Duration(i)*time.Minute).UTC().Format("15:04"), wording.Grouped(int(n+0.5)))
	}
	return strings.Join(words, ", ")
}

// SVG draws a bar for each minute. It is stretched to its place, so it contains no text but titles.
func (c *minutesChart) SVG() template.HTML {
	const width, height = 10, 40

	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="bars soon" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="Runs that fall due in each of the next minutes, UTC. %s"><line class="grid" x1="0" x2="100%%" y1="%d" y2="%d"/>`, len(c.Runs)*width, height, template.HTMLEscapeString(c.Table()), height, height)
	for i, n := range c.Runs {
		h := 0.0
		if c.Top > 0 && n > 0 {
			h = max(n*height/c.Top, 2)
		}
		at := c.From.Add(time.Duration(i) * time.Minute).UTC().Format("15:04 UTC")
		fmt.Fprintf(&b, `<g><title>%s: %s</title><rect class="hit" x="%d" y="0" width="%d" height="%d"/><rect class="bar" x="%d" y="%.1f" width="%d" height="%.1f"/></g>`, at, countText(int(n+0.5), "run"), i*width, width, height, i*width+1, height-h, width-2, h)
	}
	b.WriteString("</svg>")

	return template.HTML(b.String()) //nolint:gosec // the texts are numbers and times
}

// Minute shows a time of day to the minute.
func (v *View) Minute(t task.Time) template.HTML {
	local := t.In(v.Zone(""))
	return timeElement(t.Time, "", local.Format("15:04 MST"), exactText(local))
}
