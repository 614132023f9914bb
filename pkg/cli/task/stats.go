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
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
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
			"They cover what the task's history still contains, which is limited by history.keep. The success rate is the share\n" +
			"of successful runs, of those that were not cancelled.",
		Example: `  carillon task stats nightly-backup
  carillon task stats nightly-backup --since 7d
  carillon task stats nightly-backup -o json | jq .duration.p95_ms`,
		Args:              factory.Args(1, 1, "the task's name"),
		ValidArgsFunction: complete.Task(f),
	}
	cmd.Flags().StringVar(&since, "since", "", "include only ticks since this `TIME`, or within a duration such as 7d (default: all that are kept)")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := factory.RefuseEmpty(cmd, "since"); err != nil {
			return err
		}

		r, err := selection.ParseRef(f, words[0])
		if err != nil {
			return err
		}

		from, err := f.ParseBeginning("since", since)
		if err != nil {
			return err
		}
		if from.After(f.Now()) {
			return failure.Usage("--since %s: is in the future", task.Quote(since))
		}

		c, err := f.Connect()
		if err != nil {
			return err
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

	d.Field("Duration", "%s", wording.QuantilesText(s.Duration, true))
	d.Field("Lateness", "%s", wording.QuantilesText(s.Lateness, false))

	if s.Retries > 0 {
		d.Field("Retries", "%d, in %s", s.Retries, output.Plural(int64(s.RetriedRuns), "run"))
	}

	d.Field("Skipped", "%s", wording.ReasonsText(s.Skipped))
	d.Field("Missed", "%s", wording.ReasonsText(s.Missed))

	var failures []string
	for _, e := range s.Failures {
		words := view.PlainRunResult(f, task.Run{State: e.State, Reason: e.Reason, ExitCode: e.ExitCode, Signal: e.Signal})
		failures = append(failures, fmt.Sprintf("%s: %d", words, e.Runs))
	}
	d.Field("Failures", "%s", strings.Join(failures, ", "))

	var signs strings.Builder
	for _, state := range s.Recent {
		signs.WriteString(f.StateSign(state))
	}
	d.StyledField("Last", signs.String())
}

// statsPeriod states which ticks the statistics cover.
func statsPeriod(f *factory.Factory, s client.TaskStats) string {
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
