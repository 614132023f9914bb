package alert

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/cli/watch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// listFlags are the flags of "carillon alert list".
type listFlags struct {
	selector string
	closed   bool
	watch    bool
}

// listCommand returns "carillon alert list".
func listCommand(f *factory.Factory) *cobra.Command {
	var l listFlags
	cmd := &cobra.Command{
		Use:     "list [ALERT|GLOB...]",
		Aliases: []string{"ls"},
		Short:   "List open alerts, the most severe first",
		Long: "List open alerts, the most severe first: since when, what is wrong, who works on it, and who was notified. With -o wide,\n" +
			"the list names the runs. With --closed, list the alerts that were closed in the last two hours. Alerts about the cluster\n" +
			"are listed with -A.\n\n" + nameHelp,
		Example: `  carillon alert list
  carillon alert list -A
  carillon alert list 'web-*' -o wide
  carillon alert list -l team=data -o json
  carillon alert list --closed
  carillon alert list -A -w`,
		ValidArgsFunction: complete.Alerts(f),
	}
	cmd.Flags().StringVarP(&l.selector, "selector", "l", "", "list only alerts of tasks whose labels match this `SELECTOR`, such as team=data")
	cmd.Flags().BoolVar(&l.closed, "closed", false, "list the alerts that were closed in the last two hours")
	watch.BindFlag(cmd, &l.watch)
	cmd.RunE = func(cmd *cobra.Command, words []string) error { return listAlerts(cmd.Context(), f, l, words) }

	return cmd
}

// listAlerts lists or watches alerts.
func listAlerts(ctx context.Context, f *factory.Factory, l listFlags, words []string) error {
	if l.selector != "" && len(words) > 0 {
		return failure.Usage("names and -l cannot be used together")
	}

	names, err := parseNames(f, words)
	if err != nil {
		return err
	}

	c, err := f.Connect()
	if err != nil {
		return err
	}

	o := client.AlertListOptions{Namespace: f.Scope(), Closed: l.closed, Selector: l.selector}
	if slices.ContainsFunc(names, func(n alertName) bool { return n.code != "" || n.task.Namespace != o.Namespace }) {
		o.Namespace = ""
	}

	read := func(ctx context.Context) ([]task.AlertStatus, error) {
		list, err := c.Alerts.List(ctx, o)
		list = slices.DeleteFunc(list, func(a task.AlertStatus) bool {
			return len(names) > 0 && !slices.ContainsFunc(names, func(n alertName) bool { return n.matches(&a) })
		})
		overview.SortAlerts(list)

		return list, err
	}
	table := func(list []task.AlertStatus, wide bool) *output.Table {
		g := openTable(f, list, wide)
		if l.closed {
			g = closedTable(f, list)
		}

		g.Empty += selection.InScope(f)
		if l.selector != "" || len(words) > 0 {
			g.Empty = "no matching alerts" + selection.InScope(f)
		}

		return g
	}

	if l.watch {
		return watchAlerts(ctx, f, c, o, read, table)
	}

	list, err := read(ctx)
	if err != nil {
		return err
	}

	return output.EmitList(&f.Printer, list, func(a task.AlertStatus) string { return shownName(f, &a) }, func(wide bool) *output.Table { return table(list, wide) })
}

// watchAlerts implements alert list -w.
func watchAlerts(ctx context.Context, f *factory.Factory, c *client.Client, o client.AlertListOptions,
	read func(context.Context) ([]task.AlertStatus, error), table func([]task.AlertStatus, bool) *output.Table) error {
	w := &watch.List[task.AlertStatus]{Factory: f, Client: c, Events: client.EventOptions{Namespace: o.Namespace, Kinds: []string{task.EventAlert}}}
	w.Affects = func(task.Event) (string, bool) { return "", true }
	w.Read = func(ctx context.Context, _ int) ([]task.AlertStatus, error) { return read(ctx) }
	w.Table, w.Key = table, func(a task.AlertStatus) string { return a.FullName() }
	w.Name = func(a task.AlertStatus) string { return shownName(f, &a) }
	w.Comparable = func(a task.AlertStatus) any { return a }
	w.Removed = func(key string) any { return watch.Removed{Name: key, Left: true} }
	w.Moving = func(list []task.AlertStatus) bool { return len(list) > 0 } // receivers are notified without events of alerts

	return w.Run(ctx)
}

// severityCell shows a severity. Colors repeat it.
func severityCell(f *factory.Factory, severity string) string {
	switch severity {
	case "critical", "error":
		return f.Paint(output.Red, severity)
	case "warning":
		return f.Paint(output.Yellow, severity)
	}

	return severity
}

// openTable returns the table of open alerts.
func openTable(f *factory.Factory, list []task.AlertStatus, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"ALERT", "SEVERITY", "SINCE", "PROBLEM", "ACKNOWLEDGED", "NOTIFIED"}, Empty: "no open alerts"}
	if wide {
		g.Headers = append(g.Headers, "OWNER", "RUN", "OPENINGS", "SILENCE")
	}

	for i := range list {
		a := &list[i]
		acknowledged := "nobody"
		if k := a.Acknowledged; k != nil {
			acknowledged = output.OneLine(k.By.Name()) + ", " + f.PastTime(k.At, output.ReaderZone)
		}

		row := []string{shownName(f, a), severityCell(f, a.Severity), f.PastTime(a.Since, output.ReaderZone),
			wording.AlertProblem(&a.Alert, view.PastOrFuture(f)), acknowledged, notifiedText(f, a)}
		if wide {
			silence := f.NoValue()
			if a.Silence != nil {
				silence = a.Silence.ID
			}
			row = append(row, cmp.Or(output.OneLine(a.Labels[task.LabelOwner]), f.NoValue()), cmp.Or(a.Run, f.NoValue()), fmt.Sprint(max(a.Openings, 1)), silence)
		}

		g.AddRow(row...)
	}

	return g
}

// closedTable returns the table of closed alerts.
func closedTable(f *factory.Factory, list []task.AlertStatus) *output.Table {
	g := &output.Table{Headers: []string{"ALERT", "SEVERITY", "CLOSED", "WHY", "LASTED", "NOTIFIED"}, Empty: "no alerts were closed in the last two hours"}
	for i := range list {
		a := &list[i]
		g.AddRow(shownName(f, a), a.Severity, f.PastTime(a.Closed.At, output.ReaderZone), wording.AlertClosedText(a.Closed),
			task.Duration(a.Closed.At.Sub(a.Since.Time)).Approximate(), notifiedText(f, a))
	}

	return g
}
