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

func (a *app) runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "run",
		Aliases: []string{"runs"},
		Short:   "What ran, runs or waits: look, read output, pause, cancel, retry",
		Long:    "What ran, runs or waits.\n\n" + runNames,
	}
	cmd.AddCommand(a.runList(), a.runGet(), a.runLogs(), a.runPause(), a.runResume(), a.runCancel(), a.runRetry(), a.runDismiss())
	return cmd
}

// runFlags are the filters of lists of runs.
type runFlags struct {
	states       []string
	since, until string
	limit        int
}

func (f *runFlags) bind(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.states, "state", nil, "only runs in these `STATES`, such as failed,timed_out")
	cmd.Flags().StringVar(&f.since, "since", "", "only runs of ticks from a `TIME` on, or for a duration such as 2h")
	cmd.Flags().StringVar(&f.until, "until", "", "only runs of ticks before a `TIME`, or before a duration ago")
	cmd.Flags().IntVar(&f.limit, "limit", 0, "at most so many (0: all)")
	completeFixed(cmd, "state", stateNames(task.States())...)
}

// filter is what the flags say; local times are of the zone.
func (f *runFlags) filter(a *app, zone *time.Location) (client.RunFilter, error) {
	out := client.RunFilter{Limit: f.limit}
	if f.limit < 0 {
		return out, failure.Usage("--limit %d: must not be negative", f.limit)
	}
	var err error
	if out.States, err = readStates(f.states, task.States()); err != nil {
		return out, err
	}
	if out.Since, err = a.ago("since", f.since, zone); err != nil {
		return out, err
	}
	if out.Until, err = a.ago("until", f.until, zone); err != nil {
		return out, err
	}
	if !out.Since.IsZero() && !out.Until.IsZero() && !out.Until.After(out.Since) {
		return out, failure.Usage("--until %s: is not after --since %s", task.Quote(f.until), task.Quote(f.since))
	}
	return out, nil
}

// ago reads a time that has passed, or how long ago it was; zero if there is none.
func (a *app) ago(flag, text string, zone *time.Location) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return a.Now().Add(-d), nil
	}
	t, err := readFrom(text, zone)
	if err != nil {
		return t, failure.Usage("--%s %s: use a duration such as 2h, or a time such as 2026-11-20, 2026-11-20T22:00 or 2026-11-20T22:00:00Z", flag, task.Quote(text))
	}
	return t, nil
}

// runListing is what the flags of run list ask for.
type runListing struct {
	runFlags
	task, node         string
	selector           string // matches the labels of tasks
	parts, dead, watch bool
}

func (a *app) runList() *cobra.Command {
	var l runListing
	cmd := &cobra.Command{
		Use:     "list [TASK...]",
		Aliases: []string{"ls"},
		Short:   "List runs, newest first",
		Long: "List runs, newest first: what waits and runs, what ended, and ticks that did not run; of the tasks that are named, or\n" +
			"whose labels match -l, or of all. With --dead only those that failed, timed out or were lost and have no attempt left:\n" +
			"`carillon run retry` and `dismiss` take them off that list; it has the newest 100 of a task. With --parts, or --node, the\n" +
			"parts of runs are listed like runs. Times without an offset are of your zone.",
		Example: `  carillon run list --limit 20
  carillon run list --state running,queued -A
  carillon run list nightly-backup --since 24h
  carillon run list --state failed,timed_out --since 2026-11-20 --node db-1 -o json
  carillon run list -l team=data --since 24h
  carillon run list --state running -w
  carillon run list index --parts --state failed
  carillon run list --dead -A`,
		ValidArgsFunction: a.completeTasks,
	}
	l.runFlags.bind(cmd)
	cmd.Flags().BoolVar(&l.parts, "parts", false, "the parts of runs, too")
	cmd.Flags().BoolVar(&l.dead, "dead", false, "only runs that have no attempt left")
	cmd.Flags().StringVar(&l.task, "task", "", "only runs of this task")
	cmd.Flags().StringVarP(&l.selector, "selector", "l", "", "runs of tasks whose labels match, such as team=data")
	cmd.Flags().StringVar(&l.node, "node", "", "only runs on this node")
	bindWatch(cmd, &l.watch)
	complete(cmd, "task", a.completeTasks)
	complete(cmd, "node", a.completeNodes)
	cmd.RunE = func(cmd *cobra.Command, words []string) error { return a.listRuns(cmd, l, words) }
	return cmd
}

func (a *app) listRuns(cmd *cobra.Command, l runListing, words []string) error {
	ctx := cmd.Context()
	f, err := l.filter(a, a.Zone(output.ReaderZone))
	switch {
	case err != nil:
		return err
	case len(words) > 0 && l.task != "":
		return failure.Usage("names and --task exclude each other")
	case l.selector != "" && (len(words) > 0 || l.task != ""):
		return failure.Usage("names and -l exclude each other")
	case l.watch && (l.dead || len(words) > 1):
		return failure.Usage("--watch is for the runs of one task, or of all, and not for --dead")
	case l.parts && l.dead:
		return failure.Usage("--parts and --dead exclude each other: a run is dead, not its parts")
	case l.task != "":
		words = []string{l.task}
	}
	if _, err := task.ParseSelector(l.selector); err != nil {
		return task.Under("selector", err)
	}
	f.Namespace, f.Node, f.Parts, f.Dead, f.Selector = a.scope(), l.node, l.parts, l.dead, l.selector
	f.Progress = !l.dead && (a.Format == output.FormatWide || len(a.Columns) > 0 && a.WantsColumn("PROGRESS"))
	c, err := a.connect()
	if err != nil {
		return err
	}
	z, err := a.zonesOf(cmd, c, f.Namespace)
	if err != nil {
		return err
	}
	if l.watch {
		if len(words) == 1 {
			r, err := a.ref(words[0])
			if err != nil {
				return err
			}
			f.Namespace, f.Task = r.namespace, r.name
		}
		return a.watchRuns(ctx, c, f, z)
	}
	runs, err := a.runsIn(ctx, c, f, words)
	if err != nil {
		return err
	}
	return output.EmitList(&a.Printer, runs, runName, func(wide bool) *output.Table {
		g := a.runGrid(runs, true, wide, z)
		if g.Empty = "no runs" + a.inScope(); l.dead {
			g.Empty = "no dead runs" + a.inScope()
		}
		return g
	})
}

// runsIn lists runs of some tasks, which names and globs stand for, or of all.
func (a *app) runsIn(ctx context.Context, c *client.Client, f client.RunFilter, words []string) ([]task.Run, error) {
	if len(words) == 0 {
		return c.ListRuns(ctx, f)
	}
	chosen, err := a.tasks(ctx, c, words, pick{})
	if err != nil {
		return nil, err
	}
	parts := make([][]task.Run, len(chosen.refs))
	err = parallel(ctx, len(parts), func(i int) (err error) {
		part, r := f, chosen.refs[i]
		part.Namespace, part.Task = r.namespace, r.name
		parts[i], err = c.ListRuns(ctx, part)
		return a.missing(ctx, c, r, err)
	})
	if err != nil {
		return nil, err
	}
	runs := slices.Concat(parts...)
	slices.SortStableFunc(runs, func(a, b task.Run) int { return b.ScheduledTime.Compare(a.ScheduledTime.Time) })
	if f.Limit > 0 && len(runs) > f.Limit {
		runs = runs[:f.Limit]
	}
	return runs, nil
}

func runName(r task.Run) string { return r.ID }

// zones are the time zones of tasks, by "namespace/name"; "" is everyone's.
type zones map[string]string

func (z zones) of(r task.Run) string {
	if zone, ok := z[""]; ok {
		return zone
	}
	return z[r.Namespace+"/"+r.Task]
}

// zonesOf is the zones for a list of runs of many tasks: each its own only if
// that is asked for, for it means to read all tasks; else one, the reader's.
func (a *app) zonesOf(cmd *cobra.Command, c *client.Client, namespace string) (zones, error) {
	if !a.ForPeople() || a.TimeMode != output.TimeTask {
		return zones{"": output.ReaderZone}, nil
	}
	z := zones{}
	for t, err := range c.All(cmd.Context(), client.ListOptions{Namespace: namespace}) {
		if err != nil {
			return nil, err
		}
		z[t.Namespace+"/"+t.Name] = t.Timezone
	}
	return z, nil
}

func (a *app) runGrid(runs []task.Run, many, wide bool, z zones) *output.Table {
	g := &output.Table{}
	if a.allNamespaces && many {
		g.Headers = append(g.Headers, "NAMESPACE")
	}
	if many {
		g.Headers = append(g.Headers, "TASK")
	}
	g.Headers = append(g.Headers, "RUN", "TICK", "RESULT", "NODE", "LATE", "TOOK")
	if wide {
		g.Headers = append(g.Headers, "PROGRESS", "TRIGGER", "ATTEMPT", "OWNER", "SHARD", "TOKEN", "MESSAGE")
	}
	for _, r := range runs {
		var row []string
		if a.allNamespaces && many {
			row = append(row, r.Namespace)
		}
		if many {
			row = append(row, r.Task)
		}
		row = append(row, r.ID, a.tickWords(r, z.of(r)), a.result(r), cmp.Or(output.OneLine(r.Node), a.NoValue()), a.lateWords(r), a.tookWords(r))
		if wide {
			row = append(row, a.progressCell(r), r.Trigger, fmt.Sprint(r.Attempt), cmp.Or(r.Owner, a.NoValue()), fmt.Sprint(r.Shard), fmt.Sprint(r.Token), output.OneLine(r.Message))
		}
		g.AddRow(row...)
	}
	return g
}

// tickWords is when a run was due; of a manual one, that it was asked for.
func (a *app) tickWords(r task.Run, timezone string) string {
	words := a.tickTime(r.ScheduledTime, timezone)
	if r.Trigger == task.TriggerManual {
		return words + " (manual)"
	}
	if r.Count > 1 && !r.Last.IsZero() {
		words += a.Plain(" … ") + a.tickTime(r.Last, timezone)
	}
	return words
}

// tickTime is like coming, for the past: the weekday alone says enough only of
// the last few days.
func (a *app) tickTime(t task.Time, timezone string) string {
	if d := a.Now().Sub(t.Time); a.TimeMode == output.TimeRelative && d >= 0 && d < 6*24*time.Hour {
		local := t.In(a.Zone(timezone))
		return local.Format("Mon ") + output.ClockTime(local)
	}
	return a.FutureTime(t, timezone)
}

func (a *app) lateWords(r task.Run) string {
	if r.LatenessMS == nil {
		return a.NoValue()
	}
	return output.Duration(time.Duration(*r.LatenessMS) * time.Millisecond)
}

func (a *app) tookWords(r task.Run) string {
	if d := took(r, a.Now()); d >= 0 {
		return output.Duration(d)
	}
	return a.NoValue()
}

// result is how a run stands, in a word or three, with its symbol.
func (a *app) result(r task.Run) string { return a.StateText(r.State, a.bareResult(r)) }

func (a *app) bareResult(r task.Run) string {
	words := output.OneLine(strings.ReplaceAll(string(r.State), "_", " "))
	why := output.OneLine(strings.ReplaceAll(r.Reason, "_", " "))
	switch {
	case r.State == task.Failed && r.Reason == task.ReasonShutdown: // whatever it made of the signal
		words = why
	case r.State == task.Failed && r.Reason == task.ReasonOutput:
		words = why
	case r.State == task.Failed && r.Reason == task.ReasonOOM: // whichever of its processes that was
		words = "out of memory"
	case r.State == task.Failed && r.Reason == task.ReasonLimits: // by a signal, or by what a shell makes of that
		words = "over its limit"
	case r.State == task.Failed && slices.Contains([]string{task.ReasonHost, task.ReasonSecret, task.ReasonPolicy}, r.Reason):
		words = fmt.Sprintf("not started (%s)", why)
	case r.State == task.Failed && r.Signal != "":
		words = "signal " + output.OneLine(r.Signal)
	case r.State == task.Failed && r.ExitCode != nil:
		words = fmt.Sprintf("exit %d", *r.ExitCode)
	case r.State == task.Failed && r.Reason == task.ReasonStart:
		words = "could not start"
	case r.State == task.Paused:
		words += " (" + output.Duration(r.PausedFor(a.Now())) + ")"
	case r.State == task.Dispatched && r.PausedBy != "":
		words += " (held)"
	case r.State == task.Running && r.PausedBy != "":
		words += " (pausing)"
	case r.State == task.Cancelled && r.Reason == task.ReasonCancelled:
	case r.State == task.Skipped, r.State == task.Queued, r.State == task.Missed, r.State == task.Cancelled:
		if why != "" {
			words += " (" + why + ")"
		}
	}
	if r.Fan != nil {
		words += ", " + partWords(r)
	}
	if r.Count > 1 {
		words += fmt.Sprintf(" ×%d", r.Count)
	}
	if r.Attempt > 1 {
		words += fmt.Sprintf(", attempt %d", r.Attempt)
	}
	if a.ASCII {
		words = strings.ReplaceAll(words, "×", "x")
	}
	return words
}
