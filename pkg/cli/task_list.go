package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// listing is what the flags and words of task list ask for.
type listing struct {
	pick
	words           []string
	failing, paused bool
	sort            string
	limit           int
	watch           bool
}

func (l *listing) bind(cmd *cobra.Command) {
	l.pick.bind(cmd, false)
	f := cmd.Flags()
	f.BoolVar(&l.failing, "failing", false, "only tasks of which a run has failed for good, and none has succeeded since")
	f.BoolVar(&l.paused, "paused", false, "only tasks that are paused")
	f.StringVar(&l.sort, "sort", client.SortName, "by `ORDER`: name, next, last (the latest first) or lateness (of the last run)")
	f.IntVar(&l.limit, "limit", 0, "at most so many (0: all)")
	bindWatch(cmd, &l.watch)
	completeFixed(cmd, "sort", sorts...)
}

var sorts = []string{client.SortName, client.SortNext, client.SortLast, client.SortLateness}

func (l *listing) check() error {
	if l.limit < 0 {
		return failure.Usage("--limit %d: must not be negative", l.limit)
	}
	if !slices.Contains(sorts, l.sort) {
		e := failure.Usage("--sort %s: use %s", task.Quote(l.sort), strings.Join(sorts, ", "))
		if near := task.Nearest(l.sort, sorts); near != "" {
			e.Hint = "did you mean: --sort " + near
		}
		return e
	}
	if _, err := task.ParseSelector(l.selector); err != nil {
		return task.Under("selector", err)
	}
	return nil
}

func (a *app) taskList() *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:     "list [NAME|GLOB...]",
		Aliases: []string{"ls"},
		Short:   "List tasks: when they run next, how they fared",
		Long: "List tasks: when they run next, how they fared. The server looks for those that match, and sorts. LAST 10 are the\n" +
			"last runs and ticks that did not run, the newest at the right. Further columns: -o wide, or --columns.",
		Example: `  carillon task list
  carillon task list -A --sort next --limit 20
  carillon task list --failing
  carillon task list -l team=data -o json
  carillon task list 'nightly-*' -w
  carillon task list --columns name,state,left`,
		ValidArgsFunction: a.completeTasks,
	}
	l.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		l.words = words
		if err := l.check(); err != nil {
			return err
		}
		o, err := a.listOptions(l)
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		if l.watch {
			return a.watchTasks(cmd.Context(), c, o)
		}
		list, err := a.listed(cmd.Context(), c, o)
		if err == nil {
			err = a.unmatched(cmd.Context(), c, l, list)
		}
		if err != nil {
			return err
		}
		a.noteFrozen(cmd.Context(), c, a.scope())
		return output.EmitList(&a.Printer, list, a.taskName, func(wide bool) *output.Table { return a.taskGrid(list, wide) })
	}
	return cmd
}

// recentRuns is how many past runs a list shows, in the column LAST 10.
const (
	recentRuns   = 10
	recentColumn = "LAST 10"
)

// listOptions are the options of the client for what was asked for.
func (a *app) listOptions(l listing) (client.ListOptions, error) {
	o := client.ListOptions{Namespace: a.scope(), Selector: l.selector, Failing: l.failing, Paused: l.paused, Sort: l.sort, Limit: l.limit}
	if a.ForPeople() && a.WantsColumn(recentColumn) {
		o.Recent = recentRuns
	}
	o.Brief = a.Format == output.FormatName && l.sort == client.SortName && !l.watch
	var err error
	o.Namespace, o.Names, err = a.patterns(l.words)
	return o, err
}

// mostSorted is how many tasks the server sorts: whoever wants more gets all, and
// sorts them here, which costs the server less than to sort them for each page.
const mostSorted = 5000

// listed reads the tasks that a list is of.
func (a *app) listed(ctx context.Context, c *client.Client, o client.ListOptions) ([]client.Task, error) {
	if o.Limit > 0 && o.Limit <= mostSorted || o.Sort == client.SortName {
		return c.List(ctx, o)
	}
	order, limit := orders[o.Sort], o.Limit
	o.Sort, o.Limit = client.SortName, 0
	list, err := c.List(ctx, o)
	slices.SortStableFunc(list, func(x, y client.Task) int { return cmp.Compare(order(x), order(y)) })
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	return list, err
}

// orders are the places of tasks in lists, as the server computes them.
var orders = map[string]func(client.Task) int64{
	client.SortNext: func(t client.Task) int64 {
		if t.Next.IsZero() {
			return never
		}
		return t.Next.UnixMilli()
	},
	client.SortLast: func(t client.Task) int64 {
		if t.LastRun == nil {
			return never
		}
		return -t.LastRun.LastSeen().UnixMilli()
	},
	client.SortLateness: func(t client.Task) int64 {
		if t.LastRun == nil || t.LastRun.LatenessMS == nil {
			return never
		}
		return -*t.LastRun.LatenessMS
	},
}

const never = 1<<63 - 1

// unmatched is an error if a word stands for no task at all: it names something,
// as a file's name does for ls. Where other filters apply, an empty list is an answer.
func (a *app) unmatched(ctx context.Context, c *client.Client, l listing, list []client.Task) error {
	if l.failing || l.paused || l.selector != "" || l.limit > 0 && len(list) >= l.limit {
		return nil
	}
	all := make([]ref, len(list))
	for i, t := range list {
		all[i] = ref{t.Namespace, t.Name}
	}
	for _, word := range l.words {
		if isGlob(word) || a.allNamespaces {
			if !slices.ContainsFunc(all, func(r ref) bool { return a.matches(word, r) }) {
				return failure.NotFound("no task matches %s", task.Quote(word))
			}
			continue
		}
		r, err := a.ref(word)
		if err == nil && !slices.Contains(all, r) {
			return a.missing(ctx, c, r, &client.Error{Status: 404, Code: client.CodeNotFound,
				Message: "task " + task.Quote(a.show(r)) + " does not exist"})
		}
	}
	return nil
}

func (a *app) taskGrid(list []client.Task, wide bool) *output.Table {
	g := &output.Table{Empty: "no tasks" + a.inScope()}
	if a.allNamespaces {
		g.Headers = append(g.Headers, "NAMESPACE")
	}
	g.Headers = append(g.Headers, "NAME", "SCHEDULE", "NEXT", "LEFT", "LAST", "RESULT", recentColumn)
	if wide {
		g.Headers = append(g.Headers, "STATE", "LATE", "NODE", "OVERLAP", "LABELS", "REVISION", "DESCRIPTION")
	}
	for _, t := range list {
		var row []string
		if a.allNamespaces {
			row = append(row, t.Namespace)
		}
		row = append(row, t.Name, scheduleWords(t.Spec))
		row = append(row, a.nextCells(t)...)
		row = append(row, a.lastCells(t)...)
		row = append(row, a.recentCell(t))
		if wide {
			node, late := "", a.NoValue()
			if t.LastRun != nil {
				node, late = t.LastRun.Node, a.lateWords(*t.LastRun)
			}
			row = append(row, a.stateCell(t), late, node, t.Overlap, output.Labels(t.Labels), fmt.Sprint(t.Revision), output.OneLine(t.Description))
		}
		g.AddRow(row...)
	}
	return g
}

// recentCell are the signs of the last runs, the newest at the right.
func (a *app) recentCell(t client.Task) string {
	var b strings.Builder
	for _, r := range slices.Backward(t.Recent) {
		b.WriteString(a.StateSign(r.State))
	}
	return cmp.Or(b.String(), a.NoValue())
}

// stateCell is how a task stands, in a word.
func (a *app) stateCell(t client.Task) string {
	switch t.State {
	case client.TaskFailing, client.TaskUnreadable:
		return a.Paint(output.Red, t.State)
	case client.TaskPaused, client.TaskFrozen:
		return a.Paint(output.Yellow, t.State)
	case client.TaskRunning, client.TaskWaiting:
		return a.Paint(output.Cyan, t.State)
	}
	return cmp.Or(output.OneLine(t.State), a.NoValue())
}

func (a *app) inScope() string {
	if a.allNamespaces {
		return ""
	}
	return " in namespace " + a.namespace()
}

// scheduleWords is a schedule and, unless it is UTC, where it counts.
func scheduleWords(s task.Spec) string {
	words := output.OneLine(strings.Join(s.Schedule, ", "))
	if s.Timezone == "" || s.Timezone == "UTC" {
		return words
	}
	return words + " " + strings.ReplaceAll(output.OneLine(s.Timezone[strings.LastIndex(s.Timezone, "/")+1:]), "_", " ")
}

// nextCells are NEXT and LEFT.
func (a *app) nextCells(t client.Task) []string {
	switch {
	case t.Paused:
		return []string{a.Paint(output.Yellow, a.pausedWords(t)), a.NoValue()}
	case t.Next.IsZero() && manual(t.Spec):
		return []string{"when triggered", a.NoValue()}
	case t.NoNext != "":
		return []string{"no more ticks", a.NoValue()}
	case t.Next.IsZero():
		return []string{a.NoValue(), a.NoValue()}
	}
	return []string{a.FutureTime(t.Next, t.Timezone), a.TimeLeft(t.Next)}
}

// lastCells are LAST and RESULT.
func (a *app) lastCells(t client.Task) []string {
	if t.LastRun == nil {
		return []string{a.NoValue(), a.NoValue()}
	}
	r := *t.LastRun
	last := a.PastTime(r.LastSeen(), t.Timezone)
	if !r.State.Active() && r.State != task.Queued {
		if d := took(r, a.Now()); d >= 0 {
			last += ", " + output.Duration(d)
		}
	}
	return []string{last, a.result(r)}
}

// took is how long an attempt has run, up to now if it still does; negative if
// it has not started.
func took(r task.Run, now time.Time) time.Duration {
	switch {
	case r.StartedAt.IsZero():
		return -1
	case r.EndedAt.IsZero():
		return max(now.Sub(r.StartedAt.Time), 0)
	}
	return max(r.EndedAt.Sub(r.StartedAt.Time), 0)
}
