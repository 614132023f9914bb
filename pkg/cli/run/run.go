// Package run implements "carillon run": it lists, shows, cancels, pauses, resumes, retries, reruns and dismisses
// runs. Package logs prints their output.
package run

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/logs"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/cli/watch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon run".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "run",
		Aliases: []string{"runs"},
		Short:   "Manage runs",
		Long:    "Show and manage runs: waiting, active and ended ones.\n\n" + selection.RunHelp,
	}
	cmd.AddCommand(listCommand(f), getCommand(f), logs.Command(f), pauseCommand(f), resumeCommand(f), cancelCommand(f), retryCommand(f), rerunCommand(f), dismissCommand(f), replayCommand(f))

	return cmd
}

// ListFlags are the filters of lists of runs.
type ListFlags struct {
	States       []string
	Since, Until string
	Limit        int
}

// Bind declares the flags.
func (l *ListFlags) Bind(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&l.States, "state", nil, "list only runs in these `STATES`, such as failed,timed_out")
	cmd.Flags().StringVar(&l.Since, "since", "", "list only runs of ticks since this `TIME`, or within a duration such as 2h")
	cmd.Flags().StringVar(&l.Until, "until", "", "list only runs of ticks before this `TIME`, or older than a duration such as 2h")
	cmd.Flags().IntVar(&l.Limit, "limit", 0, "show at most `N` results (0: no limit)")
	complete.RegisterFixed(cmd, "state", stateNames(task.States())...)
}

// Filter converts the flags to options of the client. Local times are in the given zone.
func (l *ListFlags) Filter(f *factory.Factory, zone *time.Location) (client.RunListOptions, error) {
	out := client.RunListOptions{Limit: l.Limit}

	if l.Limit < 0 {
		return out, failure.Usage("--limit %d: must not be negative", l.Limit)
	}

	var err error
	if out.States, err = readStates(l.States, task.States()); err != nil {
		return out, err
	}
	if out.Since, err = f.ParseTime("since", l.Since, zone, schedule.Past); err != nil {
		return out, err
	}
	if out.Until, err = f.ParseTime("until", l.Until, zone, schedule.Past); err != nil {
		return out, err
	}
	if !out.Since.IsZero() && !out.Until.IsZero() && !out.Until.After(out.Since) {
		return out, failure.Usage("--until %s: is not after --since %s", task.Quote(l.Until), task.Quote(l.Since))
	}

	return out, nil
}

// listOptions contains the flags of "carillon run list".
type listOptions struct {
	ListFlags
	task, node, reason string
	selector           string // selects runs by the labels of their tasks
	parts, dead, watch bool
}

// listCommand returns "carillon run list".
func listCommand(f *factory.Factory) *cobra.Command {
	var l listOptions
	cmd := &cobra.Command{
		Use:     "list [TASK...]",
		Aliases: []string{"ls"},
		Short:   "List runs, newest first",
		Long: "List runs, newest first: waiting, active and ended runs, and ticks that did not run. Name tasks or use -l to list only\n" +
			"their runs. Times without an offset are in your time zone.\n\n" +
			"With --dead, list only dead runs: runs that failed, timed out or were lost and have no attempt left, and cancelled runs\n" +
			"of workflows. The list contains the newest 100 of each task, 20 of a workflow. To remove a run from it, use carillon run retry or carillon run dismiss.\n\n" +
			"With --parts or --node, the parts of runs are listed like runs.",
		Example: `  carillon run list --limit 20
  carillon run list --state running,queued -A
  carillon run list nightly-backup --since 24h
  carillon run list --state failed,timed_out --since 2026-11-20 --node db-1 -o json
  carillon run list -l team=data --since 24h
  carillon run list --state running -w
  carillon run list index --parts --state failed
  carillon run list --dead -A
  carillon run list --reason restored -A`,
		ValidArgsFunction: complete.Tasks(f),
	}
	l.ListFlags.Bind(cmd)
	cmd.Flags().BoolVar(&l.parts, "parts", false, "also list the parts of runs")
	cmd.Flags().BoolVar(&l.dead, "dead", false, "list only dead runs: runs that failed and have no attempt left")
	cmd.Flags().StringVar(&l.task, "task", "", "list only runs of this `TASK`")
	cmd.Flags().StringVarP(&l.selector, "selector", "l", "", "list only runs of tasks whose labels match this `SELECTOR`, such as team=data")
	cmd.Flags().StringVar(&l.node, "node", "", "list only runs on this `NODE`")
	cmd.Flags().StringVar(&l.reason, "reason", "", "list only runs and ticks whose state has this `REASON`, such as restored")
	complete.RegisterFixed(cmd, "reason", reasonNames()...)
	watch.BindFlag(cmd, &l.watch)
	complete.Register(cmd, "task", complete.Tasks(f))
	complete.Register(cmd, "node", complete.Nodes(f))
	cmd.RunE = func(cmd *cobra.Command, words []string) error { return listRuns(f, cmd, l, words) }

	return cmd
}

// reasonNames returns the names of all reasons.
func reasonNames() (names []string) {
	for _, r := range task.Reasons() {
		names = append(names, r.Name)
	}

	return names
}

// listRuns lists or watches runs.
func listRuns(f *factory.Factory, cmd *cobra.Command, l listOptions, words []string) error {
	ctx := cmd.Context()
	filter, err := l.Filter(f, f.Zone(output.ReaderZone))
	switch {
	case err != nil:
		return err
	case len(words) > 0 && l.task != "":
		return failure.Usage("names and --task cannot be used together")
	case l.selector != "" && (len(words) > 0 || l.task != ""):
		return failure.Usage("names and -l cannot be used together")
	case l.watch && (l.dead || len(words) > 1):
		return failure.Usage("--watch requires one task or none, and cannot be used with --dead")
	case l.parts && l.dead:
		return failure.Usage("--parts and --dead cannot be used together: only whole runs can be dead")
	case l.task != "":
		words = []string{l.task}
	}

	if _, err := task.ParseSelector(l.selector); err != nil {
		return task.Under("selector", err)
	}

	filter.Reason = l.reason
	filter.Namespace, filter.Node, filter.Parts, filter.Dead, filter.Selector = f.Scope(), l.node, l.parts, l.dead, l.selector
	filter.Progress = !l.dead && (f.Format == output.FormatWide || len(f.Columns) > 0 && f.WantsColumn("PROGRESS"))

	c, err := f.Connect()
	if err != nil {
		return err
	}

	z, err := view.ZonesOf(f, cmd, c, filter.Namespace)
	if err != nil {
		return err
	}

	if l.watch {
		if len(words) == 1 {
			r, err := selection.ParseRef(f, words[0])
			if err != nil {
				return err
			}
			filter.Namespace, filter.Task = r.Namespace, r.Name
		}

		return watchRuns(ctx, f, c, filter, z)
	}

	runs, err := runsIn(ctx, f, c, filter, words)
	if err != nil {
		return err
	}

	return output.EmitList(&f.Printer, runs, selection.RunName, func(wide bool) *output.Table {
		g := view.RunTable(f, runs, true, wide, z)
		if len(runs) == 0 {
			g.Empty = l.emptyText(ctx, f, c, words)
		}
		return g
	})
}

// emptyText returns the text for a list without runs.
func (l *listOptions) emptyText(ctx context.Context, f *factory.Factory, c *client.Client, words []string) string {
	what := "no runs"
	switch {
	case l.dead:
		what = "no dead runs"
	case len(l.States) > 0 || l.Since != "" || l.Until != "" || l.node != "":
		what = "no matching runs"
	}

	namespace, query := f.Scope(), ""
	if len(words) > 0 || l.selector != "" {
		namespace, query, _ = selection.Query(f, words, l.selector) // words and the selector have been used already
	}

	return selection.Nothing(ctx, f, c, what, namespace, query)
}

// runsIn lists the runs of the tasks that words select, or of all tasks.
func runsIn(ctx context.Context, f *factory.Factory, c *client.Client, filter client.RunListOptions, words []string) ([]task.Run, error) {
	if len(words) == 0 {
		return c.Runs.List(ctx, filter)
	}

	chosen, err := selection.Find(ctx, f, c, words, selection.Flags{})
	if err != nil {
		return nil, err
	}

	parts := make([][]task.Run, len(chosen.Refs))
	err = batch.Parallel(ctx, len(parts), func(i int) (err error) {
		part, r := filter, chosen.Refs[i]
		part.Namespace, part.Task = r.Namespace, r.Name
		parts[i], err = c.Runs.List(ctx, part)
		return selection.ExplainMissing(ctx, f, c, r, err)
	})

	if err != nil {
		return nil, err
	}

	runs := slices.Concat(parts...)
	slices.SortStableFunc(runs, func(a, b task.Run) int { return b.ScheduledTime.Compare(a.ScheduledTime.Time) })

	if filter.Limit > 0 && len(runs) > filter.Limit {
		runs = runs[:filter.Limit]
	}

	return runs, nil
}

// watchRuns implements run list -w.
func watchRuns(ctx context.Context, f *factory.Factory, c *client.Client, filter client.RunListOptions, z view.Zones) error {
	selector, err := task.ParseSelector(filter.Selector)
	if err != nil {
		return task.Under("selector", err)
	}

	w := &watch.List[task.Run]{Factory: f, Client: c, Events: client.EventOptions{Namespace: filter.Namespace, Task: filter.Task, Kinds: []string{task.EventRun}}}
	w.Affects = func(e task.Event) (string, bool) { return e.Namespace + "/" + e.Task + "/" + e.Run, true }
	w.Key = func(r task.Run) string { return r.Namespace + "/" + r.Task + "/" + r.ID }
	w.Read = func(ctx context.Context, limit int) ([]task.Run, error) {
		all := filter
		if limit > 0 && (all.Limit == 0 || limit < all.Limit) {
			all.Limit = limit
		}
		return c.Runs.List(ctx, all)
	}

	w.Reread = func(ctx context.Context, keys []string) ([]task.Run, error) {
		list := make([]*task.Run, len(keys))
		err := batch.Parallel(ctx, len(keys), func(i int) error {
			part := strings.SplitN(keys[i], "/", 3)
			r, err := c.Runs.Get(ctx, part[0], part[1], part[2])
			listed := err == nil && matchesFilter(filter, r)
			if listed && selector != nil { // a run has no labels, so those of its task are read
				var owner client.Task
				owner, err = c.Tasks.Get(ctx, part[0], part[1])
				listed = err == nil && selector.Matches(owner.Labels)
			}

			if listed {
				list[i] = &r
			}

			if err != nil && failure.IsUnreachable(err) {
				return err
			}

			return nil // any other error means that the run is gone
		})

		var found []task.Run
		for _, r := range list {
			if r != nil {
				found = append(found, *r)
			}
		}

		return found, err
	}

	w.Table = func(list []task.Run, wide bool) *output.Table { return view.RunTable(f, list, true, wide, z) }
	w.Name, w.Comparable = selection.RunName, func(r task.Run) any { return r }
	w.Removed = func(key string) any {
		part := strings.SplitN(key, "/", 3)
		return watch.Removed{Namespace: part[0], Name: part[1], ID: part[2], Left: true}
	}

	return w.Run(ctx)
}

// matchesFilter reports whether a run matches a filter, with the same rules as the server.
func matchesFilter(f client.RunListOptions, r task.Run) bool {
	states := f.States
	if f.State != "" {
		states = append(slices.Clone(states), f.State)
	}

	return (f.Parts || f.Node != "" || !task.IsPart(r.ID)) && (f.Reason == "" || r.Reason == f.Reason) && (len(states) == 0 || slices.Contains(states, r.State)) && (f.Node == "" || r.Node == f.Node) &&
		(f.Since.IsZero() || !r.ScheduledTime.Before(f.Since)) && (f.Until.IsZero() || r.ScheduledTime.Before(f.Until))
}

// watchRun implements run get -w. It ends with the run.
func watchRun(ctx context.Context, f *factory.Factory, c *client.Client, r task.Run, zone string) error {
	w := &watch.List[ShownRun]{Factory: f, Client: c, Events: client.EventOptions{Namespace: r.Namespace, Task: r.Task, Kinds: []string{task.EventRun}}}
	w.Affects = func(e task.Event) (string, bool) {
		parent, _, isPart := task.ParentOf(e.Run)
		return "", e.Run == r.ID || isPart && parent == r.ID
	}
	w.Read = func(ctx context.Context, _ int) ([]ShownRun, error) {
		now, err := c.Runs.Get(ctx, r.Namespace, r.Task, r.ID)
		if err != nil {
			return nil, err
		}
		shown, err := withSteps(ctx, c, now, maxShownItems)
		return []ShownRun{shown}, err
	}

	w.Table = func(list []ShownRun, wide bool) *output.Table {
		return view.RunTable(f, []task.Run{list[0].Run}, true, wide, view.Zones{"": zone})
	}

	w.Page = func(list []ShownRun) string {
		d := &output.Details{Printer: &f.Printer}
		describeRun(f, d, list[0], zone)
		return d.String()
	}

	name := func(r ShownRun) string { return selection.RunName(r.Run) }
	w.Key, w.Name, w.Comparable = name, name, func(r ShownRun) any { return r }
	w.Removed = func(key string) any { return watch.Removed{ID: key, Left: true} }
	w.Done = func(list []ShownRun) bool { return len(list) == 1 && list[0].State.Final() }
	w.Moving = func(list []ShownRun) bool { return len(list) == 1 && list[0].State.Active() } // the progress of an active run changes without events

	return w.Run(ctx)
}
