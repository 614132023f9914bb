package task

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	schedulecmd "github.com/carillonhq/carillon/pkg/cli/schedule"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/cli/watch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
)

// getCommand returns "carillon task get".
func getCommand(f *factory.Factory) *cobra.Command {
	var p selection.Flags
	var generation int64
	var follow bool
	cmd := &cobra.Command{
		Use:   "get TASK...",
		Short: "Show tasks with all fields",
		Long:  "Show tasks with all fields. You can edit the output of -o yaml and apply it again.",
		Example: `  carillon task get nightly-backup
  carillon task get nightly-backup -o yaml > nightly-backup.yaml
  carillon task get nightly-backup --generation 7
  carillon task get -l team=data -o json
  carillon task get nightly-backup -w`,
		ValidArgsFunction: complete.Tasks(f),
	}
	p.Bind(cmd, false)
	watch.BindFlag(cmd, &follow)
	cmd.Flags().Int64Var(&generation, "generation", 0, "show this `VERSION` of the task, if it is still kept (see task history --versions)")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		c, err := f.Connect()
		if err != nil {
			return err
		}

		if cmd.Flags().Changed("generation") {
			if !namesOne(words) || generation < 1 {
				return failure.Usage("--generation requires a positive number and exactly one task")
			}

			r, err := selection.ParseRef(f, words[0])
			if err != nil {
				return err
			}

			return showVersion(f, cmd, c, r, generation)
		}

		if follow {
			return watchTask(f, cmd, c, words, p)
		}

		ch, err := selection.Find(ctx, f, c, words, p)
		if err != nil {
			return err
		}

		found, failed := batch.Run(ctx, f, "read", "read", "task", ch.Refs, func(ctx context.Context, r selection.Ref) (client.Task, string, error) {
			t, err := c.Tasks.Get(ctx, r.Namespace, r.Name)
			return t, "", selection.ExplainMissing(ctx, f, c, r, err)
		})

		if failed != nil && len(found) == 0 {
			return failed
		}
		if err := emitTasks(f, cmd, c, found, namesOne(words)); err != nil {
			return err
		}

		return failed
	}

	return cmd
}

// emitTasks prints the tasks.
func emitTasks(f *factory.Factory, cmd *cobra.Command, c *client.Client, found []client.Task, one bool) error {
	if one {
		f.AboutTask(found[0].Timezone)
	}

	if one && f.Format != output.FormatWide {
		t := found[0]
		return output.EmitOne(&f.Printer, t, selection.TaskName(f, t), func(d *output.Details) { describeTask(f, cmd, c, d, t) })
	}

	if f.Format != output.FormatTable {
		return output.EmitList(&f.Printer, found, func(t client.Task) string { return selection.TaskName(f, t) }, func(wide bool) *output.Table { return taskTable(f, found, wide) })
	}

	for i, t := range found {
		if i > 0 {
			if err := f.Print("\n"); err != nil {
				return err
			}
		}

		if err := output.EmitOne(&f.Printer, t, "", func(d *output.Details) { describeTask(f, cmd, c, d, t) }); err != nil {
			return err
		}
	}

	return nil
}

// describeTask adds the details of a task for people: the fields that differ from their defaults, the next
// ticks and the last runs.
func describeTask(f *factory.Factory, cmd *cobra.Command, c *client.Client, d *output.Details, t client.Task) {
	describeSpec(f, d, t)
	describePause(f, d, t)
	d.Field("Frozen", "%s", view.FrozenText(cmd.Context(), f, c, t.Namespace))
	d.Field("Uid", "%s, generation %d, revision %d", t.UID, t.Generation, t.Revision)
	d.Field("Created", "%s", f.PastTime(t.CreatedAt, t.Timezone))
	describeWritten(f, d, t)
	d.StyledField("State", stateCell(f, t))
	d.StyledField("Next", strings.Join(nextCells(f, t)[:1], "")+leftWords(f, t))

	d.Field("Then", "%s", wording.DependentsText(t.Dependents))
	d.Field("Waiting", "%s", waitingWords(f, t))

	if t.NoNext != "" {
		d.Field("No more ticks", "%s", t.NoNext)
	}

	d.Section("Alerts", openAlerts(f, cmd, c, t))
	d.Section("Next ticks", ticksAhead(f, cmd, c, t))
	d.Section("Last runs", lastRuns(f, cmd, c, t))
}

// describeWritten adds who changed a task last, and when.
func describeWritten(f *factory.Factory, d *output.Details, t client.Task) {
	words := f.PastTime(t.UpdatedAt, t.Timezone)
	if t.UpdatedBy != nil {
		words += " by " + t.UpdatedBy.String()
	}

	if t.Change != "" {
		words += ": " + strings.ReplaceAll(t.Change, "_", " ")
	}

	d.Field("Changed", "%s", words)
}

// describeSpec adds the fields that users define.
func describeSpec(f *factory.Factory, d *output.Details, t client.Task) {
	d.Field("Name", "%s", t.Name)
	d.Field("Namespace", "%s", t.Namespace)
	d.Field("Description", "%s", t.Description)
	d.Field("Labels", "%s", output.Labels(t.Labels))
	d.Field("Schedule", "%s", strings.Join(t.Schedule, "\n"))
	d.Field("In words", "%s", schedulecmd.InWords(t.Spec))
	d.Field("Time zone", "%s", t.Timezone)

	if !t.Start.IsZero() {
		d.Field("Starts", "%s", f.DateTime(t.Start, t.Timezone))
	}

	if !t.End.IsZero() {
		d.Field("Ends", "%s", f.DateTime(t.End, t.Timezone))
	}

	for _, field := range wording.TaskFields(t) {
		value := field.Value
		if !field.Code {
			value = f.Plain(value)
		}
		d.Field(field.Name, "%s", value)
	}
}

// leftWords returns the time until the next tick in parentheses, or "" if there is none.
func leftWords(f *factory.Factory, t client.Task) string {
	if t.Next.IsZero() || t.Paused {
		return ""
	}
	return " (" + f.TimeLeft(t.Next) + ")"
}

// openAlerts returns the open alerts of a task, and for each of its receivers, whether it was notified or gets no messages. Like
// ticksAhead and lastRuns, it returns additional information, so its errors are ignored.
func openAlerts(f *factory.Factory, cmd *cobra.Command, c *client.Client, t client.Task) string {
	all, err := c.Alerts.ListByTask(cmd.Context(), t.Namespace, t.Name)
	if err != nil {
		return ""
	}

	g := &output.Table{Headers: []string{"", ""}}
	at := view.PastOrFuture(f)
	if all.Rule != nil {
		g.AddRow("rule "+all.Rule.Name, output.OneLine(wording.AlertsText(&all.Rule.Alerts)))
	}

	receivers := all.Receivers
	for i := range all.Items {
		a := &all.Items[i]
		if !a.IsOpen() {
			continue
		}

		works := "nobody works on it"
		if k := a.Acknowledged; k != nil {
			works = output.OneLine(k.By.Name()) + " works on it"
		}
		g.AddRow(string(a.Kind), fmt.Sprintf("%s, since %s; %s", wording.AlertProblem(&a.Alert, at), at(a.Since), works))
		receivers = a.Receivers
	}
	if all.Silence != nil {
		g.AddRow("silence", wording.AlertSilenceText(all.Silence, at))
	}

	for i := range receivers {
		r := &receivers[i]
		g.AddRow(r.Receiver, f.Plain(cmp.Or(wording.AlertReceiverText(r, false, at), "is notified when an alert opens")))
	}

	if len(g.Rows) == 0 {
		return ""
	}

	return f.RenderIndented(g)
}

// ticksAhead and lastRuns return additional information, so their errors are ignored.
func ticksAhead(f *factory.Factory, cmd *cobra.Command, c *client.Client, t client.Task) string {
	if t.Next.IsZero() {
		return ""
	}

	const few = 3
	list, err := c.Ticks.ListByTask(cmd.Context(), t.Namespace, t.Name, few, time.Time{})
	if err != nil {
		return ""
	}

	return f.RenderIndented(view.TickTable(f, list, t.Timezone))
}

// lastRuns returns a table of the latest runs, or "".
func lastRuns(f *factory.Factory, cmd *cobra.Command, c *client.Client, t client.Task) string {
	const few = 5
	runs, err := c.Runs.ListByTask(cmd.Context(), t.Namespace, t.Name, client.RunListOptions{Limit: few})
	if err != nil || len(runs) == 0 {
		return ""
	}

	return f.RenderIndented(view.RunTable(f, runs, false, false, view.Zones{"": t.Timezone}))
}
