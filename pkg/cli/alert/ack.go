package alert

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// ackCommand returns "carillon alert ack".
func ackCommand(f *factory.Factory) *cobra.Command {
	var p selection.Flags
	var all bool
	cmd := &cobra.Command{
		Use:     "ack ALERT|GLOB... | -l SELECTOR | --all",
		Aliases: []string{"acknowledge"},
		Short:   "Say that you work on open alerts",
		Long: "Say that you work on open alerts. Others see it in lists and in messages, and an acknowledged alert is not sent again while\n" +
			"it stays open. If somebody else works on it already, you take it over.\n\n" + nameHelp,
		Example: `  carillon alert ack sync
  carillon alert ack shop/sync:failures
  carillon alert ack 'web-*' --dry-run
  carillon alert ack -l team=data --yes`,
		ValidArgsFunction: complete.OpenAlerts(f),
	}
	p.Bind(cmd, true)
	cmd.Flags().BoolVar(&all, "all", false, "acknowledge all open alerts of the namespace, or of all namespaces with -A")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		switch chosen := p.Selector != "" || all; {
		case p.Selector != "" && all, chosen && len(words) > 0:
			return failure.Usage("names, -l and --all cannot be used together")
		case !chosen && len(words) == 0:
			return failure.Usage("no alert given; name one or more alerts, or use -l or --all")
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		list, err := openAlerts(ctx, f, c, words, p.Selector)
		if err != nil {
			return err
		}

		names := make([]string, len(list))
		for i := range list {
			names[i] = shownName(f, &list[i])
		}

		broad := len(words) == 0 || slices.ContainsFunc(words, selection.IsGlob)
		if ok, err := f.Confirm(ctx, "acknowledge", "alert", names, broad && len(list) > 1, p.DryRun, false); !ok {
			return err
		}

		changed, failed := batch.Run(ctx, f, "acknowledge", "acknowledged", "alert", list, func(ctx context.Context, a task.AlertStatus) (task.AlertStatus, string, error) {
			now, err := acknowledge(ctx, c, &a)
			words := "acknowledged " + shownName(f, &a)
			if before := a.Acknowledged; before != nil && err == nil && before.Equal(now.Acknowledged) {
				words = fmt.Sprintf("%s is yours already, since %s", shownName(f, &a), f.PastTime(before.At, output.ReaderZone))
			} else if before != nil {
				words += ", which was acknowledged by " + output.OneLine(before.By.Name())
			}

			return now, words, err
		})
		if err := output.EmitChanged(&f.Printer, changed, len(list), func(a task.AlertStatus) string { return shownName(f, &a) }); err != nil {
			return err
		}

		return failed
	}

	return cmd
}

// acknowledge acknowledges an alert.
func acknowledge(ctx context.Context, c *client.Client, a *task.AlertStatus) (task.AlertStatus, error) {
	if a.Kind == task.AlertCluster {
		return c.Alerts.AcknowledgeCluster(ctx, a.Code)
	}
	return c.Alerts.Acknowledge(ctx, a.Namespace, a.Task, a.Kind)
}

// openAlerts returns the open alerts that names or a selector choose. Without both, they are all of the scope. Alerts that are only counted
// cannot be acknowledged, and are left out.
func openAlerts(ctx context.Context, f *factory.Factory, c *client.Client, words []string, selector string) ([]task.AlertStatus, error) {
	if len(words) == 0 {
		list, err := c.Alerts.List(ctx, client.AlertListOptions{Namespace: f.Scope(), Selector: selector})
		list = slices.DeleteFunc(list, func(a task.AlertStatus) bool { return a.Kind == task.AlertMore })
		overview.SortAlerts(list)

		return list, err
	}

	list, err := findNamed(ctx, f, c, words)
	if err != nil {
		return nil, err
	}

	open := slices.DeleteFunc(slices.Clone(list), func(a task.AlertStatus) bool { return !a.IsOpen() })
	if len(open) == 0 {
		a := &list[0]
		return nil, &failure.Error{Exit: failure.ExitConflict, Problem: failure.Problem{Code: client.CodeConflict,
			Message: fmt.Sprintf("%s was closed %s: %s", shownName(f, a), f.PastTime(a.Closed.At, output.ReaderZone), wording.AlertClosedText(a.Closed)),
			Hint:    "carillon alert list shows the open alerts"}}
	}

	return open, nil
}
