package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/depgraph"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// bulkScreen shows which tasks an action would change, and carries out what it has shown: each task is changed only if it
// is the one of the preview, at the same revision.
func bulkScreen() Screen {
	return Screen{
		Name: "bulk", Pattern: "/ui/tasks/bulk", Nav: "tasks",
		Title: func(v *View) string {
			if p, ok := v.Data.(bulkPage); ok && len(p.Plan) > 0 && p.Report == nil {
				return p.Button() + "?"
			}
			return titleCase(v.Query.Get("do")) + " tasks"
		},
		Load:    loadBulk,
		Command: bulkCommand,
		Actions: []Action{{Pattern: "/ui/tasks/bulk/run", Run: runBulk}},
	}
}

const (
	// maxBulk is the maximum number of tasks that one action changes.
	maxBulk = 10_000
	// bulkParallel is the number of tasks that are changed at the same time.
	bulkParallel = 16
	// bulkTimeout is how long an action may take. The tasks that are left then are named.
	bulkTimeout = 45 * time.Second
)

// bulkVerbs are the actions, in order.
var bulkVerbs = []string{"pause", "resume", "trigger", "delete"}

// bulkVerb is an action on several tasks.
type bulkVerb struct{ Name, Label string }

// rightOf returns the verb that an access rule must allow for an action.
func rightOf(verb string) string {
	if verb == "resume" {
		return "pause"
	}
	return verb
}

// pastOf returns the past participle of an action.
func pastOf(verb string) string {
	switch verb {
	case "trigger":
		return "triggered"
	case "":
		return ""
	}
	return strings.TrimSuffix(verb, "e") + "ed"
}

func titleCase(word string) string {
	_, n := utf8.DecodeRuneInString(word)
	return strings.ToUpper(word[:n]) + word[n:]
}

// bulkPage is what the screen shows: the plan, or its result.
type bulkPage struct {
	Verb   string
	Plan   []plannedTask
	Text   string // the plan, as the form posts it
	Report *bulkReport
}

// Button is the text of the button that carries out the plan.
func (p bulkPage) Button() string {
	return titleCase(p.Verb) + " " + countText(len(p.Plan), "task")
}

// planShown is the number of tasks of a plan that the page shows at once. The others are one click away: a list that scrolls in
// a box of its own would look complete when it is not.
const planShown = 200

// FirstTasks are the tasks of the plan that the page shows, and OtherTasks those that it shows on request.
func (p bulkPage) FirstTasks() []plannedTask { return p.Plan[:min(len(p.Plan), planShown)] }
func (p bulkPage) OtherTasks() []plannedTask { return p.Plan[min(len(p.Plan), planShown):] }

// plannedTask is a task that an action changes, if it is still at this revision.
type plannedTask struct {
	Namespace, Name, UID string
	Revision             int64
	Schedule             string // "" after the plan was posted
}

// bulkReport is the result of a plan.
type bulkReport struct {
	Past    string // "paused"
	Done    int
	Changed []string // tasks that are not as in the preview any more
	Failed  []bulkFailure
	Rest    int // tasks that were not tried
}

// bulkFailure is why a task was not changed.
type bulkFailure struct{ Task, Why string }

func loadBulk(ctx context.Context, r *Request) (any, error) {
	p := bulkPage{Verb: cmp.Or(r.Query.Get("do"), r.Form.Get("do"))}
	if !slices.Contains(bulkVerbs, p.Verb) {
		return nil, task.Invalid(task.CodeBadValue, "do", "%s: use %s", task.Quote(p.Verb), strings.Join(bulkVerbs, ", "))
	}

	var err error
	switch report, _ := r.Result.(*bulkReport); {
	case report != nil:
		p.Report = report
	case r.Form != nil: // the number was wrong, for example: the plan stays the one that was shown
		p.Plan, err = parsePlan(r.Form.Get("plan"))
	default:
		p.Plan, err = planBulk(ctx, r)
	}
	p.Text = planText(p.Plan)

	return p, err
}

// planBulk lists the tasks that are selected, or all that match the query.
func planBulk(ctx context.Context, r *Request) ([]plannedTask, error) {
	o := client.TaskListOptions{Query: client.QueryTerm("name", r.Query["task"]...)}
	if r.Query.Get("scope") == "all" {
		var err error
		if o, err = listOptions(r); err != nil {
			return nil, err
		}
	} else if o.Query == "" {
		return nil, task.Invalid(task.CodeRequired, "task", "no task is selected; go back, and select some or all")
	}
	o.Sort, o.Recent, o.Brief, o.Complete, o.Limit = client.SortName, 0, true, true, maxBulk+1

	list, err := r.API.Tasks.List(ctx, o)
	if err != nil {
		return nil, err
	}
	if len(list) > maxBulk {
		return nil, task.Invalid(task.CodeTooMany, "q", "more than %s tasks match, which is the most that one action changes; add terms to the query", wording.Grouped(maxBulk))
	}

	var plan []plannedTask
	for _, t := range list {
		plan = append(plan, plannedTask{Namespace: t.Namespace, Name: t.Name, UID: t.UID, Revision: t.Revision, Schedule: wording.ScheduleText(t.Spec)})
	}

	return plan, nil
}

// planText encodes a plan: four words for each task.
func planText(plan []plannedTask) string {
	var b strings.Builder
	for _, t := range plan {
		fmt.Fprintf(&b, "%s %s %s %d\n", t.Namespace, t.Name, t.UID, t.Revision)
	}
	return b.String()
}

// parsePlan decodes a plan.
func parsePlan(text string) ([]plannedTask, error) {
	words := strings.Fields(text)
	if len(words)%4 != 0 || len(words) == 0 || len(words) > 4*maxBulk {
		return nil, task.Invalid(task.CodeBadValue, "plan", "the list of tasks is not complete; open the preview again")
	}

	var plan []plannedTask
	for w := range slices.Chunk(words, 4) {
		revision, err := strconv.ParseInt(w[3], 10, 64)
		if err != nil || revision <= 0 {
			return nil, task.Invalid(task.CodeBadValue, "plan", "%s is not a revision; open the preview again", task.Quote(w[3]))
		}
		plan = append(plan, plannedTask{Namespace: w[0], Name: w[1], UID: w[2], Revision: revision})
	}

	return plan, nil
}

// runBulk carries out a plan.
func runBulk(ctx context.Context, r *Request) (Done, error) {
	verb := r.Form.Get("do")
	if !slices.Contains(bulkVerbs, verb) {
		return Done{}, task.Invalid(task.CodeBadValue, "do", "%s: use %s", task.Quote(verb), strings.Join(bulkVerbs, ", "))
	}
	plan, err := parsePlan(r.Form.Get("plan"))
	if err != nil {
		return Done{}, err
	}

	if typed := strings.TrimSpace(r.Form.Get("count")); verb == "delete" && typed != strconv.Itoa(len(plan)) {
		return Done{}, task.Invalid(task.CodeBadValue, "count", "%s: type %d to confirm", task.Quote(typed), len(plan))
	}
	pause := client.PauseRequest{}
	if verb == "pause" {
		if pause, err = pauseRequest(r, r.Zone("").String()); err != nil {
			return Done{}, err
		}
	}

	b := &bulkRun{r: r, verb: verb, pause: pause, report: bulkReport{Past: pastOf(verb)}}
	if err := b.runAll(ctx, plan); err != nil {
		return Done{}, err
	}

	if b.report.Done < len(plan) {
		return Done{Result: &b.report}, nil
	}
	to, err := link("/ui/tasks", map[string][]string{}, []any{"q", r.Form.Get("q"), "ns", r.Form.Get("ns")})

	return Done{To: to, Message: fmt.Sprintf("%s %s", b.report.Past, countText(b.report.Done, "task"))}, err
}

// bulkRun changes the tasks of a plan.
type bulkRun struct {
	r     *Request
	verb  string
	pause client.PauseRequest

	mu     sync.Mutex
	report bulkReport
	fatal  error // concerns all tasks
}

// runAll changes the tasks, several at a time. It returns an error only if nothing was changed.
func (b *bulkRun) runAll(ctx context.Context, plan []plannedTask) error {
	ctx, cancel := context.WithTimeout(ctx, bulkTimeout)
	defer cancel()

	change := b.change
	if b.verb == "delete" {
		nameOf := func(t plannedTask) depgraph.Task { return depgraph.Task{Namespace: t.Namespace, Name: t.Name} }
		order := depgraph.PlanDeletion(ctx, b.r.API.Tasks, plan, nameOf)
		change = func(ctx context.Context, t plannedTask) error {
			order.Wait(ctx, nameOf(t))
			defer order.Finish(nameOf(t))
			return b.change(ctx, t)
		}
	}

	work := make(chan plannedTask)
	all, ctx := callgroup.WithContext(ctx)
	for range min(bulkParallel, len(plan)) {
		all.Go(func() error {
			for t := range work {
				b.note(ctx, t, change(ctx, t), cancel)
			}

			return nil
		})
	}

feed:
	for i, t := range plan {
		select {
		case work <- t:
		case <-ctx.Done():
			b.mu.Lock()
			b.report.Rest += len(plan) - i
			b.mu.Unlock()
			break feed
		}
	}
	close(work)
	_ = all.Wait()

	slices.Sort(b.report.Changed)
	slices.SortFunc(b.report.Failed, func(x, y bulkFailure) int { return strings.Compare(x.Task, y.Task) })
	if b.report.Done == 0 && b.fatal != nil {
		return b.fatal
	}

	return nil
}

// change changes one task, if it is still as it was in the preview.
func (b *bulkRun) change(ctx context.Context, t plannedTask) error {
	tasks := b.r.API.Tasks
	switch b.verb {
	case "pause":
		_, err := tasks.PauseWith(ctx, t.Namespace, t.Name, b.pause, t.Revision)
		return err
	case "resume":
		_, err := tasks.Resume(ctx, t.Namespace, t.Name, t.Revision)
		return err
	case "delete":
		return tasks.Delete(ctx, t.Namespace, t.Name, t.Revision)
	}

	_, err := tasks.TriggerWith(ctx, t.Namespace, t.Name, client.TriggerRequest{IdempotencyKey: b.r.Form.Get(formKeyField)}, t.Revision)

	return err
}

// note records the outcome of one task. An error that concerns all tasks ends the action.
func (b *bulkRun) note(ctx context.Context, t plannedTask, err error, end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()

	name := t.Namespace + "/" + t.Name
	var e *client.Error
	switch {
	case err == nil:
		b.report.Done++
	case errors.As(err, &e) && e.Code == client.CodeInUse: // a conflict, too, but the task has not changed
		b.report.Failed = append(b.report.Failed, bulkFailure{name, e.Message})
	case errors.Is(err, task.ErrStale), errors.Is(err, task.ErrNotFound), errors.Is(err, task.ErrConflict):
		b.report.Changed = append(b.report.Changed, name)
	case ctx.Err() != nil && !errors.Is(err, task.ErrUnknown):
		b.report.Rest++
	default:
		p := problemOf(err)
		b.report.Failed = append(b.report.Failed, bulkFailure{name, p.Message})
		if p.away() || isUnauthorized(err) {
			b.fatal = err
			end()
		}
	}
}

// bulkCommand returns a command line with the same tasks.
func bulkCommand(v *View) []string {
	if v.Query.Get("scope") == "all" {
		return tasksCommand(v)
	}

	do := v.Query.Get("do")
	if !slices.Contains(bulkVerbs, do) {
		return []string{"carillon", "task"}
	}

	return commandWith([]string{"carillon", "task", do, "--dry-run"}, v.Query["task"])
}

// mayAnywhere reports whether the viewer may do something with tasks of a namespace, or of any if it is empty.
func mayAnywhere(r *Request, verb, ns string) (bool, error) {
	spaces := []string{ns}
	if ns == "" {
		spaces = r.Namespaces()
	}

	for _, ns := range spaces {
		if may, err := r.May(verb, "tasks", ns); err != nil || may {
			return may, err
		}
	}

	return false, nil
}
