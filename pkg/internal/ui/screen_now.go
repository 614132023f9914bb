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
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// nowScreen is the start page: what needs a human, in the order of package overview, and what happens next.
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
	loadsKept = 15 * time.Second
)

// nowPage is what the screen shows.
type nowPage struct {
	At       task.Time // to the minute
	Count    int       // how many things need a human
	Summary  string    // their kinds, in the order of the page
	Alerts   int       // open alerts
	BySevere string    // how many of them have which severity
	Groups   []problemGroup
	Failures []failureGroup // failing tasks, which the group of that kind does not list
	Tasks    int
	Whole    bool // the viewer reads all namespaces, so the number of tasks is known

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

// problemGroup is the problems of a kind, as the page shows them.
type problemGroup struct {
	overview.Group // without its problems
	Title          string
	About          string // the words that all of its problems share, and what to do
	Shown          []overview.Problem
	More           int // those that are not shown
	Unlisted       int // those that are not even on the board
}

// problemGroupOf returns a group as the page shows it.
func problemGroupOf(g overview.Group) problemGroup {
	p := problemGroup{Group: g, Title: titleCase(g.Label()), About: g.Hint, Unlisted: g.Rest()}
	p.Shown = slices.Clone(g.Problems[:min(len(g.Problems), nowShown)])
	p.More = g.Total - len(p.Shown)
	p.Problems = nil

	// Print the text that several subjects share only once.
	differs := func(other overview.Problem) bool {
		return other.Words != g.Problems[0].Words || other.Subject == (overview.Subject{})
	}
	if len(g.Problems) > 1 && !slices.ContainsFunc(g.Problems, differs) {
		p.About = titleCase(g.Problems[0].Words) + ". " + g.Hint
		for i := range p.Shown {
			p.Shown[i].Words = ""
		}
	}

	return p
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
	Retry  bool // at least one of them can be retried
}

// failingTask is a task in a group of failures.
type failingTask struct {
	task.BoardFailing
	Retry bool // its run is known, and the viewer may retry it
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

	problems := overview.Problems(&b)
	p := &nowPage{
		At: task.At(b.At.Truncate(time.Minute)), Count: overview.Attention(problems), Summary: strings.Join(overview.Summary(problems), ", "), Tasks: b.Tasks, Whole: r.ReadsEverything(),
		Alerts: b.OpenAlerts(), BySevere: overview.SeveritiesText(b.Alerts),
		Recent: b.Recent, Running: b.ActiveCount, Waiting: b.WaitingCount, Reasons: waitingText(b.Waiting), Soon: soon,
	}
	for _, g := range problems {
		p.Groups = append(p.Groups, problemGroupOf(g))
	}
	if p.Failures, err = failureGroups(r, b.Failing); err != nil {
		return nil, err
	}

	// The owners look for paused tasks among all tasks, so they are asked only if there are some, as far as is known.
	allCounted := p.Whole && len(b.Silent) == 0 && len(b.Missing) == 0
	if !allCounted || b.Paused > 0 {
		if err := p.addPauses(ctx, r); err != nil {
			return nil, err
		}
	}

	p.PausedCount = "paused tasks"
	if allCounted && b.Paused > 0 {
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

		words := overview.Cause(f)
		cause := string(f.State) + "\x00" + f.Reason + "\x00" + words
		i, known := byCause[cause]
		if !known {
			i = len(groups)
			byCause[cause] = i
			g := failureGroup{State: cmp.Or(f.State, task.Failed), Words: words, Newest: f.EndedAt, Node: f.Node}
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
		retry := may[f.Namespace] && f.Run != ""
		g.Retry = g.Retry || retry
		g.Tasks = append(g.Tasks, failingTask{f, retry})
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

// addPauses adds the paused tasks.
func (p *nowPage) addPauses(ctx context.Context, r *Request) error {
	paused, err := r.API.Tasks.Page(ctx, client.TaskListOptions{Query: "state:paused", Limit: nowPaused}, "")
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
		if by != "" && !t.Pause.By.Is(task.PausedByFailures) {
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

// MayUnfreeze reports whether the viewer may end the freeze of a namespace; "" is that of the cluster.
func (r *Request) MayUnfreeze(namespace string) (bool, error) {
	if namespace == "" {
		return r.May("operate", "cluster", "")
	}
	return r.May("pause", "tasks", namespace)
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
