package task

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// statsCommand returns "carillon task stats".
func statsCommand(f *factory.Factory) *cobra.Command {
	var since string
	cmd := &cobra.Command{
		Use:   "stats TASK",
		Short: "Show statistics about the runs of a task",
		Long: "Show statistics about the runs of a task: how many succeeded, how long they took, how late they started, and why\n" +
			"they failed.\n\n" +
			"They cover the runs in the task's history, which history.keep and history.keep_for limit, and what the ledger\n" +
			"remembers of earlier ones. The success rate is the share of successful runs, of those that were not cancelled.\n\n" +
			"Percentiles and retries are of the runs in the history only. For all successful runs there are a mean and a maximum.\n" +
			"With --since, the number of runs in a line of the ledger that began earlier is estimated.",
		Example: `  carillon task stats nightly-backup
  carillon task stats nightly-backup --since 7d
  carillon task stats nightly-backup -o json | jq .duration.p95_ms`,
		Args:              factory.Args(1, 1, "the task's name"),
		ValidArgsFunction: complete.Task(f),
	}
	cmd.Flags().StringVar(&since, "since", "", "include only ticks since this `TIME`, or within a duration such as 7d (default: all that are remembered)")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := factory.RefuseEmpty(cmd, "since"); err != nil {
			return err
		}

		r, err := selection.ParseRef(f, words[0])
		if err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		if f.ForPeople() || since != "" { // times are in the task's zone
			t, err := c.Tasks.Get(cmd.Context(), r.Namespace, r.Name)
			if err != nil {
				return selection.ExplainMissing(cmd.Context(), f, c, r, err)
			}
			if err := aboutTask(f, t, since); err != nil {
				return err
			}
		}

		from, err := f.ParseTime("since", since, f.Zone(output.ReaderZone), schedule.Past)
		if err != nil {
			return err
		}
		if from.After(f.Now()) {
			return failure.Usage("--since %s: is in the future", task.Quote(since))
		}

		stats, err := c.Tasks.Stats(cmd.Context(), r.Namespace, r.Name, from)
		if err != nil {
			return selection.ExplainMissing(cmd.Context(), f, c, r, err)
		}

		return output.EmitOne(&f.Printer, stats, selection.Name(f, r.Namespace, r.Name), func(d *output.Details) { showStats(f, d, stats) })
	}

	return cmd
}

// showStats prints statistics for people.
func showStats(f *factory.Factory, d *output.Details, s client.TaskStats) {
	d.Field("Task", "%s", selection.Show(f, selection.Ref{Namespace: s.Namespace, Name: s.Task}))
	d.Field("Since", "%s", statsPeriod(f, s))
	d.Field("Runs", "%s", wording.OutcomesText(s))

	if s.SuccessRate != nil {
		d.Field("Success", "%s", wording.Percent(*s.SuccessRate))
	} else if s.History.Record == task.RecordFailures {
		d.Field("Success", "not known: successful runs are not kept (history.record: failures)")
	}

	measured := measuredText(s)
	d.Field("Duration", "%s", withSuffix(wording.QuantilesText(s.Duration, true), measured))
	d.Field("Lateness", "%s", withSuffix(wording.QuantilesText(s.Lateness, false), measured))
	if text := wording.SuccessfulText(s); text != "" {
		d.Field("Overall", "%s (of %s successful runs)", text, wording.Grouped(int(s.Successful.Count)))
	}

	if s.Retries > 0 {
		d.Field("Retries", "%s", withSuffix(fmt.Sprintf("%d, in %s", s.Retries, output.Plural(int64(s.RetriedRuns), "run")), measured))
	}

	d.Field("Skipped", "%s", wording.ReasonsText(s.Skipped))
	d.Field("Missed", "%s", wording.ReasonsText(s.Missed))

	var failures []string
	for _, e := range s.Failures {
		failures = append(failures, fmt.Sprintf("%s: %d", f.Plain(wording.FailureText(e)), e.Runs))
	}
	d.Field("Failures", "%s", strings.Join(failures, ", "))

	var signs strings.Builder
	for _, state := range s.Recent {
		signs.WriteString(f.StateSign(state))
	}
	d.StyledField("Last", signs.String())
}

// measuredText states which runs the quantiles are of; "" if they are of all.
func measuredText(s client.TaskStats) string {
	if s.Ledger == nil {
		return ""
	}

	return fmt.Sprintf(" (of the %s in the history)", output.Plural(int64(s.Runs-s.Ledger.Runs), "run"))
}

// withSuffix appends a suffix to a text; "" stays empty.
func withSuffix(text, suffix string) string {
	if text == "" {
		return ""
	}

	return text + suffix
}

// statsPeriod states which ticks the statistics cover.
func statsPeriod(f *factory.Factory, s client.TaskStats) string {
	if s.Ledger != nil {
		return ledgerPeriod(f, s)
	}

	if s.KeptSince.IsZero() {
		return "nothing is kept: the task has not run yet"
	}

	whole := s.Since.IsZero() || s.Since.Before(s.KeptSince.Time)
	from := s.Since
	if whole {
		from = s.KeptSince
	}

	text := f.DateTime(from, output.ReaderZone)
	if whole && s.Kept >= s.History.Keep {
		text += fmt.Sprintf("; older records are removed (history.keep: %d)", s.History.Keep)
	}

	return text
}

// ledgerPeriod is statsPeriod for statistics that include ticks of the ledger.
func ledgerPeriod(f *factory.Factory, s client.TaskStats) string {
	text := f.DateTime(s.Ledger.Since, output.ReaderZone)
	if s.Ledger.Approximate {
		text += " (the counts are approximate)"
	}

	if s.KeptSince.IsZero() {
		text += "; all of it is counted in the ledger"
	} else {
		text += fmt.Sprintf("; before %s as counted in the ledger", f.DateTime(s.KeptSince, output.ReaderZone))
	}

	if s.Ledger.Unreadable > 0 {
		text += fmt.Sprintf("; %s could not be read", output.Plural(s.Ledger.Unreadable, "record"))
	}

	return text
}
