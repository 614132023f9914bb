package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/task"
)

func (a *app) runGet() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "get RUN",
		Short: "Show a run: when, where, how it ended, what it said",
		Long:  "Show a run: when, where, how far it is or how it ended, what results it gave, and the end of its output.\n\n" + runNames,
		Example: `  carillon run get nightly-backup
  carillon run get nightly-backup@-1
  carillon run get nightly-backup@2026-03-29T02:30 -o json
  carillon run get nightly-backup -w`,
		Args:              args(1, 1, "the run"),
		ValidArgsFunction: a.completeRuns,
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on until the run has ended: redraw on a terminal, else a line for each change")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		r, err := a.findRun(cmd.Context(), c, words[0])
		if err != nil {
			return err
		}
		if r.State.Active() { // lists do not tell how far it is
			if now, err := c.Run(cmd.Context(), r.Namespace, r.Task, r.ID); err == nil {
				r = now
			}
		}
		if r, err = inFull(cmd.Context(), c, r); err != nil {
			return err
		}
		zone := ""
		if a.human() {
			if t, err := c.Get(cmd.Context(), r.Namespace, r.Task); err == nil {
				zone = t.Timezone // else the task is gone, and UTC will do
			}
		}
		if watch {
			return a.watchRun(cmd.Context(), c, r, zone)
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
	d.field("Not enforced", "%s", strings.Join(r.Unenforced, ", "))
	d.field("Trigger", "%s", strings.ReplaceAll(r.Trigger, "_", " "))
	d.field("Asked for by", "%s", r.CreatedBy)
	d.field("With env", "%s", strings.Join(r.EnvNames, ", "))
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
	d.painted("Progress", a.progressLine(r))
	d.field("Paused", "%s", a.pauseWords(r, at))
	d.field("Used", "%s", usedWords(r.Usage))
	d.field("Node", "%s", r.Node)
	if r.Attempt > 0 && r.Fan == nil { // its parts have attempts
		d.field("Attempt", "%d, token %d", r.Attempt, r.Token)
	}
	d.field("Decided by", "%s", deciderWords(r))
	d.field("Cancelled by", "%s", r.CancelledBy)
	d.field("In place of", "%s", r.RetryOf)
	d.field("Checkpoint", "%s", cut(oneLine(r.Checkpoint), 200))
	if r.BadLines > 0 {
		d.field("Bad lines", "%d in CARILLON_TALK", r.BadLines)
	}
	if len(r.Attempts) > 0 {
		g := &grid{heads: []string{"ATTEMPT", "RESULT", "NODE", "STARTED", "TOOK"}}
		for _, t := range r.Attempts {
			past := task.Run{State: t.State, Reason: t.Reason, ExitCode: t.ExitCode, Signal: t.Signal, StartedAt: t.StartedAt, EndedAt: t.EndedAt}
			g.add(fmt.Sprintf("attempt %d", t.Attempt), a.result(past), first(oneLine(t.Node), a.none()), at(t.StartedAt), a.tookWords(past))
		}
		d.section("Attempts before", a.bare(g))
	}
	a.describeTalk(d, r)
	a.describeParts(d, r, at)
	if r.OutputTail != "" {
		title := "Output"
		if r.Truncated || int64(len(r.OutputTail)) < r.OutputBytes {
			title = fmt.Sprintf("Output, the end of %s", size(r.OutputBytes))
		}
		d.section(title, printable(r.OutputTail))
	}
}

// usedWords is what the processes of a run took.
func usedWords(u task.Usage) string {
	var words []string
	add := func(v int64, format, text string) {
		if v > 0 {
			words = append(words, fmt.Sprintf(format, text))
		}
	}
	add(u.CPUMS, "%s CPU", span(time.Duration(u.CPUMS)*time.Millisecond))
	add(u.MemoryPeak, "%s memory", size(u.MemoryPeak))
	add(u.IORead, "%s read", size(u.IORead))
	add(u.IOWritten, "%s written", size(u.IOWritten))
	return strings.Join(words, ", ")
}

func deciderWords(r task.Run) string {
	if r.Owner == "" {
		return fmt.Sprintf("shard %d", r.Shard)
	}
	return fmt.Sprintf("%s, shard %d", r.Owner, r.Shard)
}
