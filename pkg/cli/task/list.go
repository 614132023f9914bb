package task

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/cli/watch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// listFlags contains the flags and words of "carillon task list".
type listFlags struct {
	selection.Flags
	words           []string // names and globs
	query           string
	failing, paused bool
	workflow        bool
	sort            string
	limit           int
	watch           bool
	complete        bool
}

// bindFlags declares the flags.
func (l *listFlags) bindFlags(cmd *cobra.Command) {
	l.Flags.Bind(cmd, false)
	f := cmd.Flags()
	f.BoolVar(&l.failing, "failing", false, "list only failing tasks: a run failed, timed out or was lost with its attempts used up, and no later one has succeeded; not if it was dismissed or started again")
	f.BoolVar(&l.paused, "paused", false, "list only paused tasks")
	f.BoolVar(&l.workflow, "workflow", false, "list only workflows: tasks with steps")
	f.StringVar(&l.sort, "sort", client.SortName, "sort in this `ORDER`: name, next, last (the latest end first), lateness or duration (of the last run), or failures (in a row)")
	f.IntVar(&l.limit, "limit", 0, "show at most `N` results (0: no limit)")
	f.BoolVar(&l.complete, "complete", false, "fail if tasks may be missing because some shards do not answer, instead of printing a note")
	bindTerms(cmd)
	watch.BindFlag(cmd, &l.watch)
	complete.RegisterFixed(cmd, "sort", sortKeys...)
}

// sortKeys are the values of --sort.
var sortKeys = []string{client.SortName, client.SortNext, client.SortLast, client.SortLateness, client.SortDuration, client.SortFailures}

// checkFlags checks the flags.
func (l *listFlags) checkFlags() error {
	if l.limit < 0 {
		return failure.Usage("--limit %d: must not be negative", l.limit)
	}

	if !slices.Contains(sortKeys, l.sort) {
		e := failure.Usage("--sort %s: use %s", task.Quote(l.sort), strings.Join(sortKeys, ", "))
		if near := task.Nearest(l.sort, sortKeys); near != "" {
			e.Hint = "did you mean: --sort " + near
		}
		return e
	}

	return nil
}

// listCommand returns "carillon task list".
func listCommand(f *factory.Factory) *cobra.Command {
	var l listFlags
	cmd := &cobra.Command{
		Use:     "list [NAME|GLOB... | QUERY]",
		Aliases: []string{"ls"},
		Short:   "List tasks with their next tick and last runs",
		Long: "List tasks with their state, their next tick and their last runs. The server filters and sorts.\n\n" +
			"If one of the words has a colon or a tilde, all words together are a query, such as state:failed label:team=data.\n" +
			"carillon help queries describes the terms. Otherwise, the words are names or globs of tasks.\n\n" +
			"Lists by name or prefix come from etcd; all others come from the nodes that own the shards. A line below the list\n" +
			"names the shards whose tasks are missing, and says how old the list is. With --complete, the command fails instead.\n\n" +
			"LAST 10 shows the last ten runs and ticks that did not run, the newest on the right. For more columns,\n" +
			"use -o wide or --columns.",
		Example: `  carillon task list
  carillon task list -A --sort next --limit 20
  carillon task list --failing
  carillon task list -l team=data -o json
  carillon task list state:failed 'last:<1d' -label:team=test
  carillon task list --sort failures --limit 10
  carillon task list 'nightly-*' -w
  carillon task list --columns name,state,left`,
		ValidArgsFunction: complete.Query(f),
	}
	l.bindFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		l.words, l.query = splitQuery(cmd, words)
		if err := l.checkFlags(); err != nil {
			return err
		}

		o, err := listOptions(f, l)
		if err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}
		if l.watch {
			return watchedTasks(f, c, o, l).Run(cmd.Context())
		}

		var info client.ListInfo
		o.Info = info.Include
		list, err := c.Tasks.List(cmd.Context(), o)
		if err == nil {
			err = unmatchedWordError(cmd.Context(), f, c, l, list)
		}

		if err != nil {
			return err
		}

		view.NoteFrozen(cmd.Context(), f, c, f.Scope())

		if err := output.EmitList(&f.Printer, list, func(t client.Task) string { return selection.TaskName(f, t) }, func(wide bool) *output.Table {
			g := taskTable(f, list, wide)
			if len(list) == 0 {
				g.Empty = selection.NoTasks(cmd.Context(), f, c, o.Namespace, o.Query)
			}
			return g
		}); err != nil {
			return err
		}

		view.NoteOwners(f, info, len(list))

		return nil
	}

	return cmd
}

// recentRuns is the number of runs in the column LAST 10.
const (
	recentRuns   = 10
	recentColumn = "LAST 10"
)

// listOptions converts the flags and words to options of the client.
func listOptions(f *factory.Factory, l listFlags) (client.TaskListOptions, error) {
	o := client.TaskListOptions{Sort: l.sort, Limit: l.limit, Complete: l.complete}
	if f.ForPeople() && f.WantsColumn(recentColumn) {
		o.Recent = recentRuns
	}

	o.Brief = f.Format == output.FormatName && l.sort == client.SortName && !l.watch
	var err error
	o.Namespace, o.Query, err = selection.Query(f, l.words, l.Selector, flagTerm(l.failing, "state", client.TaskFailing), flagTerm(l.paused, "state", client.TaskPaused),
		flagTerm(l.workflow, "action", "workflow"), l.query)

	return o, err
}

// flagTerm returns the term of a query that a flag such as --failing stands for, if the flag is given.
func flagTerm(given bool, key, value string) string {
	if !given {
		return ""
	}
	return client.QueryTerm(key, value)
}

// unmatchedWordError returns an error if a word matches no task at all, as ls does for a missing file. If other
// filters apply, an empty list is a valid result.
func unmatchedWordError(ctx context.Context, f *factory.Factory, c *client.Client, l listFlags, list []client.Task) error {
	if l.failing || l.paused || l.workflow || l.query != "" || l.Selector != "" || l.limit > 0 && len(list) >= l.limit {
		return nil
	}

	all := make([]selection.Ref, len(list))
	for i, t := range list {
		all[i] = selection.Ref{Namespace: t.Namespace, Name: t.Name}
	}

	for _, word := range l.words {
		if selection.IsGlob(word) || f.AllNamespaces {
			if !slices.ContainsFunc(all, func(r selection.Ref) bool { return selection.Matches(f, word, r) }) {
				return failure.NotFound("no task matches %s", task.Quote(word))
			}
			continue
		}

		r, err := selection.ParseRef(f, word)
		if err == nil && !slices.Contains(all, r) {
			return selection.ExplainMissing(ctx, f, c, r, &client.Error{Status: 404, Code: client.CodeNotFound,
				Message: "task " + task.Quote(selection.Show(f, r)) + " does not exist"})
		}
	}

	return nil
}

// taskTable returns the table of tasks.
func taskTable(f *factory.Factory, list []client.Task, wide bool) *output.Table {
	g := &output.Table{Empty: "no tasks" + selection.InScope(f)}
	if f.AllNamespaces {
		g.Headers = append(g.Headers, "NAMESPACE")
	}

	g.Headers = append(g.Headers, "NAME", "SCHEDULE", "NEXT", "LEFT", "LAST", "RESULT", recentColumn)
	if wide {
		g.Headers = append(g.Headers, "STATE", "LATE", "NODE", "OVERLAP", "LABELS", "REVISION", "DESCRIPTION")
	}

	for _, t := range list {
		var row []string
		if f.AllNamespaces {
			row = append(row, t.Namespace)
		}

		row = append(row, t.Name, view.ScheduleText(t.Spec))
		row = append(row, nextCells(f, t)...)
		row = append(row, lastCells(f, t)...)
		row = append(row, recentCell(f, t))
		if wide {
			node, late := "", f.NoValue()
			if t.LastRun != nil {
				node, late = t.LastRun.Node, view.Lateness(f, *t.LastRun)
			}
			row = append(row, stateCell(f, t), late, node, t.Overlap, output.Labels(t.Labels), fmt.Sprint(t.Revision), output.OneLine(t.Description))
		}

		g.AddRow(row...)
	}

	return g
}

// recentCell returns the symbols of the last runs, with the newest on the right.
func recentCell(f *factory.Factory, t client.Task) string {
	var b strings.Builder
	for _, r := range slices.Backward(t.Recent) {
		b.WriteString(f.StateSign(r.State))
	}
	return cmp.Or(b.String(), f.NoValue())
}

// stateCell returns the state of a task.
func stateCell(f *factory.Factory, t client.Task) string {
	switch t.State {
	case client.TaskFailing, client.TaskUnreadable:
		return f.Paint(output.Red, t.State)
	case client.TaskPaused, client.TaskFrozen:
		return f.Paint(output.Yellow, t.State)
	case client.TaskRunning, client.TaskWaiting:
		return f.Paint(output.Cyan, t.State)
	}

	return cmp.Or(output.OneLine(t.State), f.NoValue())
}

// nextCells returns the cells NEXT and LEFT.
func nextCells(f *factory.Factory, t client.Task) []string {
	switch {
	case t.Paused:
		return []string{f.Paint(output.Yellow, view.PausedText(f, t)), f.NoValue()}
	case t.Next.IsZero() && !t.Schedule.HasTicks():
		return []string{wording.WithoutTicks(t.Spec), f.NoValue()}
	case t.NoNext != "":
		return []string{"no more ticks", f.NoValue()}
	case t.Next.IsZero():
		return []string{f.NoValue(), f.NoValue()}
	}

	return []string{f.FutureTime(t.Next, t.Timezone), f.TimeLeft(t.Next)}
}

// lastCells returns the cells LAST and RESULT.
func lastCells(f *factory.Factory, t client.Task) []string {
	if t.LastRun == nil {
		return []string{f.NoValue(), f.NoValue()}
	}

	r := *t.LastRun
	last := f.PastTime(r.LastSeen(), t.Timezone)
	if !r.State.Active() && r.State != task.Queued {
		if d := view.RunDuration(r, f.Now()); d >= 0 {
			last += ", " + task.Duration(d).Approximate()
		}
	}

	return []string{last, view.RunResult(f, r)}
}
