package task

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	runcmd "github.com/carillonhq/carillon/pkg/cli/run"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
)

// historyCommand returns "carillon task history".
func historyCommand(f *factory.Factory) *cobra.Command {
	var flags runcmd.ListFlags
	var versions bool
	cmd := &cobra.Command{
		Use:   "history TASK",
		Short: "Show the runs of a task, newest first",
		Long: "Show the runs of a task, newest first: waiting, active and ended runs, and ticks that did not run.\n\n" +
			"After the runs that history.keep and history.keep_for keep, it shows what the ledger remembers of earlier ticks:\n" +
			"how many succeeded from one time to another, and which did not, and why. A line about several ticks is shown if one\n" +
			"of them matches --since and --until. A terminal shows 30 such lines, and all with --limit 0.\n\n" +
			"With -o json, runs and lines of the ledger are in one array. Only lines of the ledger have the field kind, which is\n" +
			"succeeded, exception, hour, requested, requested_more or unreadable. -o name prints only runs, as does\n" +
			"carillon run list TASK.\n\n" +
			"With --versions, show the versions of the task itself: who changed what, and when.",
		Example: `  carillon task history nightly-backup
  carillon task history nightly-backup --state failed --limit 5
  carillon task history nightly-backup -o jsonl
  carillon task history sync --since 7d --state failed,timed_out
  carillon task history sync -o json | jq '.[] | select(.kind == "exception")'
  carillon task history nightly-backup --versions`,
		Args:              factory.Args(1, 1, "the task's name"),
		ValidArgsFunction: complete.Task(f),
	}
	flags.Bind(cmd)
	cmd.Flags().BoolVar(&versions, "versions", false, "show the versions of the task instead of its runs")
	cmd.SetFlagErrorFunc(explainHistoryFlag)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		r, err := selection.ParseRef(f, words[0])
		if err != nil {
			return err
		}

		if versions && (len(flags.States) > 0 || flags.Since != "" || flags.Until != "") {
			return failure.Usage("--state, --since and --until cannot be used with --versions")
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		if versions {
			return showVersions(f, cmd, c, r, flags.Limit)
		}

		if f.ForPeople() || flags.Since != "" || flags.Until != "" { // times are in the task's zone
			t, err := c.Tasks.Get(cmd.Context(), r.Namespace, r.Name)
			if err != nil {
				return selection.ExplainMissing(cmd.Context(), f, c, r, err)
			}
			if err := aboutTask(f, t, flags.Since, flags.Until); err != nil {
				return err
			}
		}

		filter, err := flags.Filter(f, f.Zone(output.ReaderZone))
		if err != nil {
			return err
		}

		return showHistory(f, cmd, c, r, filter, flags.States)
	}

	return cmd
}

// explainHistoryFlag returns the error of a wrong flag. It has a hint for those who know the selector of other commands that list
// runs.
func explainHistoryFlag(cmd *cobra.Command, err error) error {
	failed := factory.FlagError(cmd, err)

	var fail *failure.Error
	if text := err.Error(); errors.As(failed, &fail) && (strings.HasPrefix(text, "unknown shorthand flag: 'l'") || text == "unknown flag: --selector") {
		fail.Hint = "history shows the runs of one task; for several tasks: carillon run list -l"
	}

	return failed
}

// showHistory prints the runs of a task that match a filter, and then what its ledger remembers of earlier ticks. states are the
// states that the user asked for.
func showHistory(f *factory.Factory, cmd *cobra.Command, c *client.Client, r selection.Ref, filter client.RunListOptions, states []string) error {
	runs, err := c.Runs.ListByTask(cmd.Context(), r.Namespace, r.Name, filter)
	if err != nil {
		return selection.ExplainMissing(cmd.Context(), f, c, r, err)
	}

	if f.Format == output.FormatName {
		return output.EmitList(&f.Printer, runs, selection.RunName, nil)
	}

	ledger, err := readLedger(cmd.Context(), c, r, filter, len(runs))
	if err != nil {
		return err
	}

	if _, terminal := f.Terminal(f.Out); terminal && f.ForPeople() && !cmd.Flags().Changed("limit") {
		ledger = shorten(ledger)
	}

	err = output.EmitList(&f.Printer, historyItems(runs, ledger.Lines), nil, func(wide bool) *output.Table {
		g := view.RunTable(f, runs, false, wide, view.Zones{"": output.ReaderZone})
		view.AddLedgerRows(f, g, ledger.Lines, output.ReaderZone)
		g.Empty = selection.Show(f, r) + " has not run yet"
		if len(states) > 0 {
			g.Empty = "no runs of " + selection.Show(f, r) + " are " + strings.Join(states, " or ")
		}

		return g
	})

	noteLedger(f, r, ledger)

	return err
}

// keysCommand returns "carillon task keys".
func keysCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys TASK",
		Short: "Show the etcd keys of a task",
		Long:  "Show the etcd keys of a task, and the etcdctl command that prints them without Carillon.",
		Example: `  carillon task keys nightly-backup
  carillon task keys nightly-backup -o name`,
		Args:              factory.Args(1, 1, "the task's name"),
		ValidArgsFunction: complete.Task(f),
	}
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		r, err := selection.ParseRef(f, words[0])
		if err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		keys, err := c.Tasks.ListKeys(cmd.Context(), r.Namespace, r.Name)
		if err != nil {
			return selection.ExplainMissing(cmd.Context(), f, c, r, err)
		}

		switch f.Format {
		case output.FormatJSON, output.FormatYAML, output.FormatJSONL:
			return output.EmitOne(&f.Printer, keys, "", nil)
		}

		err = output.EmitList(&f.Printer, keys.Items, func(k client.Key) string { return k.Key }, func(bool) *output.Table {
			g := &output.Table{Headers: []string{"RECORD", "EXISTS", "KEY"}}

			for _, k := range keys.Items {
				there := "yes"
				if !k.Present {
					there = f.NoValue()
				}
				g.AddRow(output.OneLine(k.What), there, output.OneLine(k.Key))
			}

			return g
		})

		if err == nil && f.ForPeople() && keys.Command != "" {
			err = f.Print(fmt.Sprintf("\n%s\n", output.Sanitize(keys.Command)))
		}

		return err
	}

	return cmd
}
