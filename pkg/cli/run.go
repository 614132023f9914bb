package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func (a *app) runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "run",
		Aliases: []string{"runs"},
		Short:   "What ran, runs or waits: look, read output, cancel, retry",
		Long:    "What ran, runs or waits.\n\n" + runNames,
	}
	cmd.AddCommand(a.runList(), a.runGet(), a.runLogs(), a.runCancel(), a.runRetry(), a.runDismiss())
	return cmd
}

func bindRunFilter(cmd *cobra.Command, state *string, limit *int) {
	cmd.Flags().StringVar(state, "state", "", "only runs in this state, such as failed")
	cmd.Flags().IntVar(limit, "limit", 0, "at most so many (0: all)")
	var states []string
	for _, s := range task.States() {
		states = append(states, string(s))
	}
	completeFixed(cmd, "state", states...)
}

func runFilter(state string, limit int) (client.RunFilter, error) {
	f := client.RunFilter{State: task.State(state), Limit: limit}
	if state != "" && !f.State.Known() {
		words := make([]string, 0, len(task.States()))
		for _, s := range task.States() {
			words = append(words, string(s))
		}
		e := usage("--state %s: use %s", quote(state), strings.Join(words, ", "))
		if near := nearest(state, words); near != "" {
			e.Hint = "did you mean: --state " + near
		}
		return f, e
	}
	if limit < 0 {
		return f, usage("--limit %d: must not be negative", limit)
	}
	return f, nil
}

func (a *app) runList() *cobra.Command {
	var state, taskWord, node string
	var limit int
	var dead bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List runs, newest first",
		Long: "List runs, newest first: what waits and runs, what ended, and ticks that did not run. With --dead only those that\n" +
			"failed, timed out or were lost and have no attempt left: `carillon run retry` and `dismiss` take them off that list;\n" +
			"it has the newest 100 of a task.",
		Example: `  carillon run list --limit 20
  carillon run list --state running -A
  carillon run list --task nightly-backup --node db-1 -o json
  carillon run list --dead -A
  carillon run list --dead nightly-backup`,
		ValidArgsFunction: a.completeTasks,
	}
	cmd.Flags().BoolVar(&dead, "dead", false, "only runs that have no attempt left, of the tasks that are named or of all")
	bindRunFilter(cmd, &state, &limit)
	cmd.Flags().StringVar(&taskWord, "task", "", "only runs of this task")
	cmd.Flags().StringVar(&node, "node", "", "only runs on this node")
	_ = cmd.RegisterFlagCompletionFunc("task", a.completeTasks) // the flag is there
	_ = cmd.RegisterFlagCompletionFunc("node", a.completeNodes)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		f, err := runFilter(state, limit)
		switch {
		case err != nil:
			return err
		case len(words) > 0 && !dead:
			return deadOnly(words[0])
		case len(words) > 0 && taskWord != "":
			return usage("names and --task exclude each other")
		}
		f.Namespace, f.Node = a.scope(), node
		var r ref
		if taskWord != "" {
			if r, err = a.ref(taskWord); err != nil {
				return err
			}
			f.Namespace, f.Task = r.namespace, r.name
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		var runs []task.Run
		if dead {
			runs, err = a.listDead(cmd.Context(), c, f, words)
		} else {
			runs, err = c.ListRuns(cmd.Context(), f)
		}
		if err != nil && taskWord != "" {
			err = a.missing(cmd.Context(), c, r, err)
		}
		if err != nil {
			return err
		}
		z, err := a.zonesOf(cmd, c, f.Namespace)
		if err != nil {
			return err
		}
		return emitList(a, runs, runName, func(wide bool) *grid {
			g := a.runGrid(runs, true, wide, z)
			if g.empty = "no runs" + a.inScope(); dead {
				g.empty = "no dead runs" + a.inScope()
			}
			return g
		})
	}
	return cmd
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
	if !a.human() || a.timeMode != timeTask {
		return zones{"": readersZone}, nil
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

func (a *app) runGrid(runs []task.Run, many, wide bool, z zones) *grid {
	g := &grid{}
	if a.allNamespaces && many {
		g.heads = append(g.heads, "NAMESPACE")
	}
	if many {
		g.heads = append(g.heads, "TASK")
	}
	g.heads = append(g.heads, "RUN", "TICK", "RESULT", "NODE", "LATE", "TOOK")
	if wide {
		g.heads = append(g.heads, "TRIGGER", "ATTEMPT", "OWNER", "SHARD", "TOKEN", "MESSAGE")
	}
	for _, r := range runs {
		var row []string
		if a.allNamespaces && many {
			row = append(row, r.Namespace)
		}
		if many {
			row = append(row, r.Task)
		}
		row = append(row, r.ID, a.tickWords(r, z.of(r)), a.result(r), first(r.Node, a.none()), a.lateWords(r), a.tookWords(r))
		if wide {
			row = append(row, r.Trigger, fmt.Sprint(r.Attempt), first(r.Owner, a.none()), fmt.Sprint(r.Shard), fmt.Sprint(r.Token), oneLine(r.Message))
		}
		g.add(row...)
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
		words += a.plain(" … ") + a.tickTime(r.Last, timezone)
	}
	return words
}

// tickTime is like coming, for the past: the weekday alone says enough only of
// the last few days.
func (a *app) tickTime(t task.Time, timezone string) string {
	if d := a.now().Sub(t.Time); a.timeMode == timeRelative && d >= 0 && d < 6*24*time.Hour {
		local := t.In(a.zone(timezone))
		return local.Format("Mon ") + clock(local)
	}
	return a.coming(t, timezone)
}

func (a *app) lateWords(r task.Run) string {
	if r.LatenessMS == nil {
		return a.none()
	}
	return span(time.Duration(*r.LatenessMS) * time.Millisecond)
}

func (a *app) tookWords(r task.Run) string {
	if d := took(r, a.now()); d >= 0 {
		return span(d)
	}
	return a.none()
}

// result is how a run stands, in a word or three, with its symbol.
func (a *app) result(r task.Run) string { return a.symbol(r.State, a.bareResult(r)) }

func (a *app) bareResult(r task.Run) string {
	words := oneLine(strings.ReplaceAll(string(r.State), "_", " "))
	why := oneLine(strings.ReplaceAll(r.Reason, "_", " "))
	switch {
	case r.State == task.Failed && r.Signal != "":
		words = "signal " + oneLine(r.Signal)
	case r.State == task.Failed && r.ExitCode != nil:
		words = fmt.Sprintf("exit %d", *r.ExitCode)
	case r.State == task.Failed && r.Reason == task.ReasonStart:
		words = "could not start"
	case r.State == task.Cancelled && r.Reason == task.ReasonCancelled:
	case r.State == task.Skipped, r.State == task.Queued, r.State == task.Missed, r.State == task.Cancelled:
		if why != "" {
			words += " (" + why + ")"
		}
	}
	if r.Count > 1 {
		words += fmt.Sprintf(" ×%d", r.Count)
	}
	if r.Attempt > 1 {
		words += fmt.Sprintf(", attempt %d", r.Attempt)
	}
	if a.ascii {
		words = strings.ReplaceAll(words, "×", "x")
	}
	return words
}

func (a *app) runGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get RUN",
		Short: "Show a run: when, where, how it ended, what it said",
		Long:  "Show a run: when, where, how it ended, and the end of its output.\n\n" + runNames,
		Example: `  carillon run get nightly-backup
  carillon run get nightly-backup@-1
  carillon run get nightly-backup@2026-03-29T02:30 -o json`,
		Args:              args(1, 1, "the run"),
		ValidArgsFunction: a.completeRuns,
	}
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		r, err := a.findRun(cmd.Context(), c, words[0])
		if err != nil {
			return err
		}
		zone := ""
		if a.human() {
			if t, err := c.Get(cmd.Context(), r.Namespace, r.Task); err == nil {
				zone = t.Timezone // else the task is gone, and UTC will do
			}
		}
		return emitOne(a, r, r.ID, func(d *details) { a.describeRun(d, r, zone) })
	}
	return cmd
}

func (a *app) describeRun(d *details, r task.Run, zone string) {
	at := func(t task.Time) string {
		if t.IsZero() {
			return ""
		}
		words := exact(t.In(a.zone(zone)))
		if a.timeMode == timeRelative {
			words += " (" + a.gone(t, zone) + ")"
		}
		return words
	}
	d.field("Run", "%s", r.ID)
	d.field("Task", "%s", a.named(r.Namespace, r.Task))
	d.painted("Result", a.result(r))
	d.field("Reason", "%s", strings.ReplaceAll(r.Reason, "_", " "))
	d.field("Message", "%s", r.Message)
	d.field("Trigger", "%s", strings.ReplaceAll(r.Trigger, "_", " "))
	d.field("Tick", "%s", at(r.ScheduledTime))
	if r.Count > 1 {
		d.field("Last tick", "%s", at(r.Last))
	}
	d.field("Not before", "%s", at(r.NotBefore))
	d.field("Dispatched", "%s", at(r.DispatchedAt))
	d.field("Started", "%s", at(r.StartedAt))
	d.field("Ended", "%s", at(r.EndedAt))
	if r.LatenessMS != nil {
		d.field("Late", "%s", a.lateWords(r))
	}
	if took(r, a.now()) >= 0 {
		d.field("Took", "%s", a.tookWords(r))
	}
	d.field("Node", "%s", r.Node)
	if r.Attempt > 0 {
		d.field("Attempt", "%d, token %d", r.Attempt, r.Token)
	}
	d.field("Decided by", "%s", deciderWords(r))
	d.field("Cancelled by", "%s", r.CancelledBy)
	d.field("In place of", "%s", r.RetryOf)
	if len(r.Attempts) > 0 {
		g := &grid{heads: []string{"ATTEMPT", "RESULT", "NODE", "STARTED", "TOOK"}}
		for _, t := range r.Attempts {
			past := task.Run{State: t.State, Reason: t.Reason, ExitCode: t.ExitCode, Signal: t.Signal, StartedAt: t.StartedAt, EndedAt: t.EndedAt}
			g.add(fmt.Sprintf("attempt %d", t.Attempt), a.result(past), first(t.Node, a.none()), at(t.StartedAt), a.tookWords(past))
		}
		d.section("Attempts before", a.bare(g))
	}
	if r.OutputTail != "" {
		title := "Output"
		if r.Truncated || int64(len(r.OutputTail)) < r.OutputBytes {
			title = fmt.Sprintf("Output, the end of %s", size(r.OutputBytes))
		}
		d.section(title, printable(r.OutputTail))
	}
}

func deciderWords(r task.Run) string {
	if r.Owner == "" {
		return fmt.Sprintf("shard %d", r.Shard)
	}
	return fmt.Sprintf("%s, shard %d", r.Owner, r.Shard)
}

func (a *app) runCancel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel RUN...",
		Short: "End runs: what waits goes, what runs is stopped",
		Long:  "End runs. One that waits ends at once; one that runs gets SIGTERM, and SIGKILL after the task's grace.\n\n" + runNames,
		Example: `  carillon run cancel nightly-backup
  carillon run cancel 20261120T220500.000Z-k3f9`,
		Args:              args(1, -1, "the run"),
		ValidArgsFunction: a.completeRuns,
	}
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		var ended []task.Run
		failed := together(cmd.Context(), a, words, func(word string) error {
			r, err := a.findRun(cmd.Context(), c, word)
			if err == nil {
				r, err = c.Cancel(cmd.Context(), r.Namespace, r.Task, r.ID)
			}
			if err != nil {
				return err
			}
			ended = append(ended, r)
			if r.State.Final() {
				a.say("cancelled %s", r.ID)
			} else {
				a.say("asked %s to end; %s tells when it has", r.ID, "carillon run get "+r.ID)
			}
			return nil
		})
		if err := emitChanged(a, ended, len(words), runName); err != nil {
			return err
		}
		return failed
	}
	return cmd
}
