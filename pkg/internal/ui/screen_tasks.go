package ui

import (
	"cmp"
	"context"
	"errors"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// tasksScreen lists tasks by a query, as "carillon task list" does.
func tasksScreen() Screen {
	return Screen{
		Name: "tasks", Pattern: "/ui/tasks", Nav: "tasks",
		Title:   func(*View) string { return "Tasks" },
		Load:    loadTasks,
		Command: tasksCommand,
		Parts:   []Part{{Name: "summary"}, {Name: "rows", Hold: true}},
		Every:   refreshEvery,
	}
}

const (
	// scanEvery is how often the page of a viewer is read as a whole, because each reading of a query is a scan of all tasks.
	// In between, only the tasks that it shows are read, by their names, every refreshEvery.
	scanEvery    = 5 * time.Second
	refreshEvery = scanEvery / 2
	// tasksPerPage is the number of tasks on a page.
	tasksPerPage = 50
	// recentRuns is the number of past runs in the strip of a task.
	recentRuns = 10
)

// taskOrders are the orders of the list, with the headings of the columns that sort by them.
var taskOrders = []string{client.SortName, client.SortNext, client.SortLast, client.SortLateness, client.SortDuration, client.SortFailures}

// tasksPage is what the screen shows.
type tasksPage struct {
	Query     string
	Namespace string // "": all
	Order     string
	Spaces    []string // the namespaces to choose from
	Tasks     []client.Task
	Count     string // how many tasks match; "" if it is not known
	TooMany   bool   // more match than one action can change
	Note      string // what is missing, or how old the list is
	Next      string // the token of the next page
	First     bool   // it is the first page
	Fault     string // what is wrong with the query
	Terms     []queryChip
	More      []queryChip // terms to add
	Verbs     []bulkVerb  // what may be done with several tasks
	MayCreate bool
	scanned   time.Time // when the page was read as a whole

	left []leftRow[client.Task]
}

// MostBulk is the maximum number of tasks that one action changes.
func (tasksPage) MostBulk() int { return maxBulk }

// queryChip is a term of a query, with the query without it, or with it in addition.
type queryChip struct{ Term, Query string }

// Many reports whether tasks of several namespaces may be in the list.
func (p tasksPage) Many() bool { return p.Namespace == "" }

// listOptions returns the options of the list, as the page's parameters ask for it.
func listOptions(r *Request) (client.TaskListOptions, error) {
	o := client.TaskListOptions{
		Namespace: r.Query.Get("ns"), Sort: cmp.Or(r.Query.Get("sort"), client.SortName), Limit: tasksPerPage, Recent: recentRuns,
	}

	// As in the CLI: words with a colon or a tilde are a query, and others names and globs.
	words := strings.Fields(r.Query.Get("q"))
	if slices.ContainsFunc(words, func(w string) bool { return strings.ContainsAny(w, ":~") }) {
		o.Query = strings.Join(words, " ")
	} else {
		o.Query = client.QueryTerm("name", words...)
	}

	if !slices.Contains(taskOrders, o.Sort) {
		return o, task.Invalid(task.CodeBadValue, "sort", "%s: use %s", task.Quote(o.Sort), strings.Join(taskOrders, ", "))
	}

	return o, nil
}

func loadTasks(ctx context.Context, r *Request) (any, error) {
	p := tasksPage{
		Query: r.Query.Get("q"), Namespace: r.Query.Get("ns"), Order: cmp.Or(r.Query.Get("sort"), client.SortName), Spaces: r.Namespaces(),
		First: r.Query.Get(pageParam) == "", scanned: r.Now,
	}
	o, err := listOptions(r)
	if err != nil {
		return nil, err
	}

	// If the tasks cannot be read by their names, the page is read as a whole, and says what is wrong.
	before, _ := r.previous.(tasksPage)
	if before.Fault == "" && len(before.Tasks)+len(before.left) > 0 && r.Now.Sub(before.scanned) < scanEvery-refreshEvery/2 {
		if err := before.refreshRows(ctx, r); err == nil {
			return before, nil
		}
	}

	if err := p.addRights(r); err != nil {
		return nil, err
	}

	list, err := r.API.Tasks.Page(ctx, o, r.Query.Get(pageParam))
	if errors.Is(err, task.ErrInvalid) {
		p.Fault = problemOf(err).Message
		p.Terms, p.More = chipsOf(p.Query, nil)
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	p.Terms, p.More = chipsOf(p.Query, list.Items)

	p.Next = list.Next
	p.Tasks = list.Items
	p.left = leftRows(r.Now, before.Tasks, before.left, p.Tasks, taskKey)
	if len(p.left) > 0 {
		_ = p.refreshRows(ctx, r) // after an error, all rows are as they were read last
	}

	if n := countTasks(ctx, r, o, list, p.First); n != nil {
		p.Count, p.TooMany = countText(*n, "task"), *n > maxBulk
	}
	p.Note = noteText(list.ListInfo)

	return p, nil
}

// taskKey identifies a task in a list.
func taskKey(t client.Task) string { return t.Namespace + "/" + t.Name }

// refreshRows reads the tasks that the page shows again, and those that have left it. It changes neither which tasks these
// are nor their order. Only a task that no longer exists leaves the list; one whose shard does not answer stays as it was.
func (p *tasksPage) refreshRows(ctx context.Context, r *Request) error {
	shown := slices.Clone(p.Tasks)
	for _, row := range p.left {
		shown = append(shown, row.item)
	}

	names := make([]string, len(shown))
	for i, t := range shown {
		names[i] = taskKey(t)
	}
	o := client.TaskListOptions{Namespace: p.Namespace, Query: client.QueryTerm("name", names...), Limit: len(shown), Recent: recentRuns}

	list, err := r.API.Tasks.Page(ctx, o, "")
	if err != nil {
		return err
	}

	now := map[string]client.Task{}
	for _, t := range list.Items {
		now[taskKey(t)] = t
	}
	complete := len(list.Missing) == 0

	var rows []client.Task
	for _, row := range p.Tasks {
		if t, ok := now[taskKey(row)]; ok {
			rows = append(rows, t)
		} else if !complete {
			rows = append(rows, row)
		}
	}

	left := leftRows(r.Now, p.Tasks, p.left, rows, taskKey)
	for i := range left {
		row := &left[i]
		if t, ok := now[taskKey(row.item)]; ok {
			row.item, row.deleted = t, false
		} else if complete {
			row.deleted = true
		}
	}
	p.Tasks, p.left = rows, left // the previous page keeps its own

	return nil
}

// addRights adds what the viewer may do.
func (p *tasksPage) addRights(r *Request) (err error) {
	for _, verb := range bulkVerbs {
		may, err := mayAnywhere(r, rightOf(verb), p.Namespace)
		if err != nil {
			return err
		}
		if may {
			p.Verbs = append(p.Verbs, bulkVerb{verb, titleCase(verb)})
		}
	}
	p.MayCreate, err = mayAnywhere(r, "create", p.Namespace)

	return err
}

// usualTerms are the terms that the page offers, besides the labels of its tasks.
var usualTerms = []string{"state:failing", "state:overdue", "state:running", "state:waiting", "state:paused", "next:<1h", "last:<1h", "failures:>0"}

// maxLabels is the maximum number of labels that the page offers.
const maxLabels = 6

// chipsOf returns the terms of a query, each with the query without it, and terms to add.
func chipsOf(query string, tasks []client.Task) (terms, more []queryChip) {
	words := strings.Fields(query)
	for i, w := range words {
		terms = append(terms, queryChip{w, strings.Join(slices.Delete(slices.Clone(words), i, i+1), " ")})
	}

	// The most frequent labels come first.
	counts := map[string]int{}
	for _, t := range tasks {
		for k, v := range t.Labels {
			counts["label:"+k+"="+v]++
		}
	}
	labels := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})

	for _, term := range slices.Concat(usualTerms, labels[:min(len(labels), maxLabels)]) {
		if !slices.Contains(words, term) {
			more = append(more, queryChip{term, strings.TrimSpace(query + " " + term)})
		}
	}

	return terms, more
}

// countTasks returns how many tasks match. A list by name is read from etcd, which does not count, so the owners of the
// shards are asked. If they do not answer, the count is not known, and nil.
func countTasks(ctx context.Context, r *Request, o client.TaskListOptions, list client.QueryList[client.Task], first bool) *int {
	count := list.Count
	if count == nil && first && list.Next == "" {
		n := len(list.Items)
		count = &n
	}

	// The board has the number of all tasks. The owners find those that match with a scan.
	if count == nil && o.Namespace == "" && o.Query == "" && r.ReadsEverything() {
		if board, err := r.API.Board.Get(ctx, boardOptions); err == nil && len(board.Missing) == 0 {
			return &board.Tasks
		}
	}

	if count == nil {
		o.Sort, o.Limit, o.Recent, o.Brief = client.SortNext, 1, 0, true
		if answer, err := r.API.Tasks.Page(ctx, o, ""); err == nil && len(answer.Missing) == 0 {
			count = answer.Count
		}
	}

	return count
}

// noteText says what is missing in a list. The age of the list is given in steps, so that the page does not change all the
// time.
func noteText(info client.ListInfo) string {
	info.AgeMS -= info.AgeMS % (10 * time.Second).Milliseconds()
	return wording.MissingText(info)
}

// tasksCommand returns the command line of the list.
func tasksCommand(v *View) []string {
	words := []string{"carillon", "task", "list"}
	if ns := v.Query.Get("ns"); ns != "" {
		words = append(words, "-n", ns)
	} else {
		words = append(words, "-A")
	}
	if sort := v.Query.Get("sort"); slices.Contains(taskOrders, sort) && sort != client.SortName {
		words = append(words, "--sort", sort)
	}

	return commandWith(words, strings.Fields(v.Query.Get("q")))
}

// plainState returns the words of a state.
func plainState(s string) string { return strings.ReplaceAll(s, "_", " ") }

// taskRow is a task in the list. Its fields are the contents of its cells: the rows are rendered again and again while somebody
// watches, and a template that finds these in nested values, and calls functions for them, costs several times as much.
type taskRow struct {
	ID                        string // of the element
	Namespace, Name, FullName string
	Path                      string // of the page of the task; "" if there is none
	Description               string
	Kind                      string // "workflow", or ""

	State    template.HTML
	Next     template.HTML
	Schedule string

	Ran    bool // there is a last run, which the next fields describe
	Last   template.HTML
	Result template.HTML
	Node   string
	Took   string
	Late   string

	Strip    template.HTML // the states of past runs, the newest last
	StripAlt string        // the same in words; "" if there are none

	Left string // why the row is not in the list any more; "" if it is
}

// TaskRows returns the rows of the list, and after them those that have left it.
func (v *View) TaskRows() []taskRow {
	p, _ := v.Data.(tasksPage)
	linked := v.HasScreen("task")

	rows := make([]taskRow, 0, len(p.Tasks)+len(p.left))
	add := func(row taskRow, exists bool) {
		if linked && exists {
			row.Path, _ = v.Link("/ui/tasks/{}/{}", row.Namespace, row.Name) // it fails only for names that no task has
		}
		rows = append(rows, row)
	}
	for i := range p.Tasks {
		add(v.taskRow(&p.Tasks[i]), true)
	}
	for i := range p.left {
		add(v.leftTaskRow(&p.left[i]), !p.left[i].deleted)
	}

	return rows
}

// taskRow returns the row of a task, without its path.
func (v *View) taskRow(t *client.Task) taskRow {
	row := taskRow{
		ID: v.RowID("task", t.Namespace, t.Name), Namespace: t.Namespace, Name: t.Name, FullName: taskKey(*t), Description: t.Description,
		State: stateBadge(t.State), Next: v.nextCell(t), Schedule: wording.ScheduleText(t.Spec),
	}

	if t.Action.Workflow != nil {
		row.Kind = task.KindWorkflow
	}
	if run := t.LastRun; run != nil {
		row.Ran = true
		row.Last, row.Result, row.Node = v.Ago(run.LastSeen(), t.Timezone), resultBadge(run), run.Node
		row.Took, row.Late = tookText(run), latenessText(run)
	}
	row.Strip, row.StripAlt = stripOf(t.Recent)

	return row
}

// leftTaskRow returns the row of a task that has left the list. A task that no longer exists has no state.
func (v *View) leftTaskRow(left *leftRow[client.Task]) taskRow {
	if !left.deleted {
		row := v.taskRow(&left.item)
		row.Left = "no longer in this list"
		return row
	}

	t := left.item

	return taskRow{
		ID: v.RowID("task", t.Namespace, t.Name), Namespace: t.Namespace, Name: t.Name, FullName: taskKey(t),
		State: noValue, Next: noValue, Left: "deleted",
	}
}

// nextCell returns the cell with the next tick of a task, or with why there is none.
func (v *View) nextCell(t *client.Task) template.HTML {
	text := nextText(t)
	switch {
	case text == "":
		return v.Left(t.Next, t.Timezone)
	case t.PausedUntil.IsZero():
		return template.HTML(template.HTMLEscapeString(text)) //nolint:gosec // the text is escaped
	}

	return template.HTML(template.HTMLEscapeString(text)+" until ") + v.When(t.PausedUntil, t.Timezone) //nolint:gosec // the text is escaped
}

// nextText returns what a task shows instead of the time of its next tick; "" if it has one.
func nextText(t *client.Task) string {
	switch {
	case t.Paused:
		return pauseText(t)
	case t.Next.IsZero() && !t.Schedule.HasTicks():
		return wording.WithoutTicks(t.Spec)
	case t.NoNext != "":
		return "no more ticks"
	case t.Next.IsZero():
		return string(noValue)
	}

	return ""
}

// pauseText describes a pause briefly, without its end.
func pauseText(t *client.Task) string {
	if by := wording.PausedBy(t.Pause); by != "" {
		return "paused (" + by + ")"
	}
	return "paused"
}

// latenessText returns how late a run was.
func latenessText(r *task.Run) string {
	if r.LatenessMS == nil {
		return string(noValue)
	}
	return millisecondsText(*r.LatenessMS)
}

// stripOf returns the states of past runs, which are given with the newest first, as symbols and in words.
func stripOf(recent []client.PastRun) (signs template.HTML, words string) {
	names := make([]string, 0, len(recent))
	var b strings.Builder
	for _, run := range slices.Backward(recent) {
		b.WriteString(string(stateSign(string(run.State))))
		names = append(names, plainState(string(run.State)))
	}

	return template.HTML(b.String()), strings.Join(names, ", ") //nolint:gosec // stateSign escapes
}
