package task

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
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
	d.Field("Runs", "%s", runsText(s))

	if s.SuccessRate != nil {
		d.Field("Success", "%s", percentText(*s.SuccessRate))
	} else if s.History.Record == task.RecordFailures {
		d.Field("Success", "not known: successful runs are not kept (history.record: failures)")
	}

	d.Field("Duration", "%s", quantilesText(s.Duration, true))
	d.Field("Lateness", "%s", quantilesText(s.Lateness, false))

	if s.Retries > 0 {
		d.Field("Retries", "%d, in %s", s.Retries, output.Plural(int64(s.RetriedRuns), "run"))
	}

	d.Field("Skipped", "%s", reasonsText(s.Skipped))
	d.Field("Missed", "%s", reasonsText(s.Missed))

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

// runsText returns the number of runs, and how they ended.
func runsText(s client.TaskStats) string {
	var parts []string
	for _, state := range task.States() {
		if n := s.Outcomes[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, strings.ReplaceAll(string(state), "_", " ")))
		}
	}

	text := fmt.Sprint(s.Runs)
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}

	return text
}

// percentText formats a share. Only a share of 1 is 100 %.
func percentText(share float64) string {
	const almost = 0.9995
	if share < 1 && share >= almost {
		share = 0.999
	}

	return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*share), ".0") + "%"
}

// quantilesText formats a distribution; "" if there is none.
func quantilesText(q *client.Quantiles, all bool) string {
	if q == nil {
		return ""
	}

	text := func(ms int64) string { return task.Duration(time.Duration(ms) * time.Millisecond).Approximate() }
	if !all {
		return fmt.Sprintf("p50 %s, p99 %s, max %s", text(q.P50MS), text(q.P99MS), text(q.MaxMS))
	}

	return fmt.Sprintf("p50 %s, p95 %s, p99 %s, max %s", text(q.P50MS), text(q.P95MS), text(q.P99MS), text(q.MaxMS))
}

// reasonsText returns the number of ticks that did not run, and why; "" if there are none.
func reasonsText(reasons map[string]int64) string {
	var sum int64
	names := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(reasons[b], reasons[a]), strings.Compare(a, b))
	})

	parts := make([]string, len(names))
	for i, name := range names {
		sum += reasons[name]
		parts[i] = fmt.Sprintf("%s %d", strings.ReplaceAll(name, "_", " "), reasons[name])
	}

	if sum == 0 {
		return ""
	}

	return fmt.Sprintf("%s: %s", output.Plural(sum, "tick"), strings.Join(parts, ", "))
}
