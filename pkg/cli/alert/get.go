package alert

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// getCommand returns "carillon alert get".
func getCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "get ALERT|GLOB...",
		Short: "Show alerts with what each receiver knows",
		Long: "Show alerts, open ones and those that were closed in the last two hours: what is wrong and since when, the run that failed,\n" +
			"who works on it, and for each receiver, which run has notified it and what keeps messages away from it.\n\n" + nameHelp,
		Example: `  carillon alert get sync
  carillon alert get shop/sync:failures
  carillon alert get cluster:not_evaluated
  carillon alert get sync -o json`,
		Args:              factory.Args(1, -1, "the alert, or its task,"),
		ValidArgsFunction: complete.Alerts(f),
		RunE: func(cmd *cobra.Command, words []string) error {
			ctx := cmd.Context()
			c, err := f.Connect()
			if err != nil {
				return err
			}

			list, err := findNamed(ctx, f, c, words)
			if err != nil {
				return err
			}

			name := func(a task.AlertStatus) string { return shownName(f, &a) }
			if len(list) == 1 && len(words) == 1 {
				return output.EmitOne(&f.Printer, list[0], name(list[0]), func(d *output.Details) { describeAlert(ctx, f, c, d, &list[0]) })
			}
			if f.Format != output.FormatTable {
				return output.EmitList(&f.Printer, list, name, func(wide bool) *output.Table { return openTable(f, list, wide) })
			}

			for i := range list {
				if i > 0 {
					if err := f.Print("\n"); err != nil {
						return err
					}
				}
				if err := output.EmitOne(&f.Printer, list[i], "", func(d *output.Details) { describeAlert(ctx, f, c, d, &list[i]) }); err != nil {
					return err
				}
			}

			return nil
		},
	}
}

// describeAlert adds the details of an alert: first what is wrong and where, then who works on it and who knows.
func describeAlert(ctx context.Context, f *factory.Factory, c *client.Client, d *output.Details, a *task.AlertStatus) {
	at := view.PastOrFuture(f)
	exact := func(t task.Time) string {
		words := f.ExactTime(t, output.ReaderZone)

		switch {
		case f.TimeMode != output.TimeRelative:
		case t.After(f.Now()): // the end of a silence
			words += " (in " + f.TimeLeft(t) + ")"
		default:
			words += " (" + f.PastTime(t, output.ReaderZone) + ")"
		}

		return words
	}

	d.Field("Alert", "%s", a.FullName())
	state := "open"
	if a.Closed != nil {
		state = "closed " + exact(a.Closed.At) + ": " + wording.AlertClosedText(a.Closed)
		if a.Closed.Run != "" {
			state += ", run " + a.Closed.Run
		}
	}
	d.Field("State", "%s", state)
	d.Field("Problem", "%s", wording.AlertProblem(&a.Alert, exact))
	d.Field("Since", "%s", exact(a.Since))
	if a.Openings > 1 {
		d.Field("Opened", "%s, %d times in all", exact(a.OpenedAt), a.Openings)
	}
	d.StyledField("Severity", severityCell(f, a.Severity))
	d.Field("Owner", "%s", a.Labels[task.LabelOwner])
	d.Field("Runbook", "%s", a.Labels[task.LabelRunbook])

	describeTask(ctx, f, c, d, a)

	switch k := a.Acknowledged; {
	case k != nil && a.IsOpen():
		d.Field("Works on it", "%s, since %s", k.By, exact(k.At))
	case k != nil:
		d.Field("Acknowledged", "%s by %s", exact(k.At), k.By)
	case a.IsOpen():
		d.Field("Works on it", "%s", "nobody")
	}
	if s := a.Silence; s != nil {
		d.Field("Silence", "%s: %s", s.ID, wording.AlertSilenceText(s, exact))
	}

	var receivers strings.Builder
	for i := range a.Receivers {
		r := &a.Receivers[i]
		fmt.Fprintf(&receivers, "  %s: %s\n", r.Receiver, f.Plain(wording.AlertReceiverText(r, !a.IsOpen(), at)))
	}
	if len(a.Receivers) == 0 {
		receivers.WriteString("  nobody: alerts.notify of the task is empty\n")
	}
	d.Section("Receivers", receivers.String())
}

// describeTask adds what is known of the task of an alert: its description, which often names the runbook, the run that failed, and what
// happens next. They are additional, so their errors are ignored.
func describeTask(ctx context.Context, f *factory.Factory, c *client.Client, d *output.Details, a *task.AlertStatus) {
	if a.Task == "" {
		return
	}

	if a.Run != "" {
		words := a.Run
		if r, err := c.Runs.Get(ctx, a.Namespace, a.Task, a.Run); err == nil {
			words += " " + view.RunResult(f, r)
			if r.Node != "" {
				words += " on " + r.Node
			}
			if r.Message != "" {
				words += ": " + output.Truncate(output.OneLine(r.Message), 200)
			}
		}
		d.StyledField("Run", output.Sanitize(words))
	}

	t, err := c.Tasks.Get(ctx, a.Namespace, a.Task)
	if err != nil {
		return
	}

	d.Field("Task", "%s", strings.ReplaceAll(t.State, "_", " ")+view.NextText(f, t))
	d.Field("Description", "%s", t.Description)
	if a.IsOpen() {
		d.Field("More", "carillon why %s", selection.Ref{Namespace: a.Namespace, Name: a.Task})
	}
}
