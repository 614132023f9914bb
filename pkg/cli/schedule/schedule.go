// Package schedule implements "carillon schedule": it computes the ticks of expressions, explains them, and
// finds mistakes in those of files and tasks.
package schedule

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon schedule".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{Use: "schedule", Short: "Try and check schedules, without a server"}
	cmd.AddCommand(nextCommand(f), explainCommand(f), lintCommand(f))
	return cmd
}

// timingFlags are the flags that determine ticks, in addition to the expressions.
type timingFlags struct {
	timezone, from, start, end, name string
	dst                              task.DST
	jitter                           time.Duration
}

// bindFlags declares the flags.
func (f *timingFlags) bindFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.timezone, "timezone", "UTC", "time `ZONE`, such as Europe/Berlin")
	cmd.Flags().StringVar(&f.from, "from", "", "show ticks after this `TIME`, such as tomorrow or 2027-03-28, in --timezone (default now; see help times)")
	cmd.Flags().StringVar(&f.dst.Gap, "dst-gap", "", "`POLICY` for ticks whose local time does not exist: run-after (default) or skip")
	cmd.Flags().StringVar(&f.dst.Fold, "dst-fold", "", "`POLICY` for ticks whose local time exists twice: first (default) or both")
	cmd.Flags().StringVar(&f.start, "start", "", "no ticks before this `TIME`, in --timezone")
	cmd.Flags().StringVar(&f.end, "end", "", "no ticks after this `TIME`, in --timezone")
	factory.DurationVar(cmd.Flags(), &f.jitter, "jitter", 0, "delay each tick by up to this `DURATION`")
	cmd.Flags().StringVar(&f.name, "name", "", "`NAME` of the task, which determines the values of H")
	complete.RegisterFixed(cmd, "dst-gap", task.GapRunAfter, task.GapSkip)
	complete.RegisterFixed(cmd, "dst-fold", task.FoldFirst, task.FoldBoth)
}

// parseTiming converts the flags and expressions to a timing, and returns the time from which ticks are listed.
func parseTiming(f *factory.Factory, flags timingFlags, exprs []string) (t task.Timing, from time.Time, err error) {
	zone, err := schedule.Location(flags.timezone)
	if err != nil {
		return t, from, err
	}

	f.AboutTask(flags.timezone)
	if from, err = f.ParseTime("from", flags.from, zone, schedule.Nearest); err != nil {
		return t, from, err
	}

	if from.IsZero() {
		from = f.Now()
	}

	t = task.Timing{Schedule: exprs, Timezone: flags.timezone, DST: flags.dst, Jitter: task.Duration(flags.jitter)}

	return t, from, parseBounds(f, &t, flags.start, flags.end)
}

// nextCommand returns "carillon schedule next".
func nextCommand(f *factory.Factory) *cobra.Command {
	var flags timingFlags
	var count int
	cmd := &cobra.Command{
		Use:   "next EXPR...",
		Short: "Show the next ticks of a schedule",
		Long: "Show the next ticks of a schedule. The command computes them locally, without a server. Several expressions form\n" +
			"one schedule. @every and @in count from --from. H depends on --name and --namespace.",
		Example: `  carillon schedule next "30 2 * * *" --timezone Europe/Berlin
  carillon schedule next "30 2 * * *" --timezone Europe/Berlin --from 2027-03-27 --count 3
  carillon schedule next "H H(2-5) * * *" --name nightly-backup --jitter 30s
  carillon schedule next "0 9 LW * *" --start 2027-01-01 --end 2027-06-30
  carillon schedule next "@every 90s" -o json`,
		Args:              factory.Args(1, -1, "the expression"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.bindFlags(cmd)
	cmd.Flags().IntVar(&count, "count", 5, "show the next `N` ticks")
	cmd.RunE = func(_ *cobra.Command, exprs []string) error {
		timing, from, err := parseTiming(f, flags, exprs)
		if err != nil {
			return err
		}

		ticks, err := upcomingTicks(f, timing, from, flags.name, count)
		if err != nil {
			return unquotedHint(err, exprs, "next")
		}

		if len(ticks) > 0 && f.ForPeople() && view.IsAfterCompletion(exprs) {
			f.Note(view.WhatFollows)
		}

		list := convertOccurrences(f, ticks, flags.jitter)

		return output.EmitList(&f.Printer, list, func(o client.Occurrence) string { return view.Timestamp(o.Time) },
			func(bool) *output.Table {
				return withDueBefore(f, view.TickTable(f, list, flags.timezone), list, flags.timezone)
			})
	}

	return cmd
}

// convertOccurrences converts ticks to the form of the API.
func convertOccurrences(f *factory.Factory, ticks []schedule.Occurrence, jitter time.Duration) []client.Occurrence {
	list := make([]client.Occurrence, len(ticks))
	for i, t := range ticks {
		list[i] = client.Occurrence{Time: task.At(t.Time), Local: t.Local.Format("2006-01-02T15:04:05.000Z07:00"), Note: t.Note}
		if jitter > 0 {
			list[i].DueBefore = task.At(t.Before)
		}
	}

	return list
}

// upcomingTicks returns the ticks of a task with this name. Without a name, H is invalid.
func upcomingTicks(f *factory.Factory, t task.Timing, from time.Time, name string, count int) ([]schedule.Occurrence, error) {
	exprs, err := schedule.Resolve(t.Schedule, t.Timezone, from)
	if err != nil {
		return nil, err
	}

	if t.Schedule = exprs; name != "" {
		if err := task.CheckName("name", name); err != nil {
			return nil, err
		}
		if t.Schedule, err = schedule.Spread(exprs, f.Namespace(), name); err != nil {
			return nil, err
		}
	}

	return schedule.Upcoming(t, from, from, count)
}

// withDueBefore adds a column with the latest due time of each tick, if there is jitter.
func withDueBefore(f *factory.Factory, g *output.Table, list []client.Occurrence, timezone string) *output.Table {
	if len(list) == 0 || list[0].DueBefore.IsZero() {
		return g
	}

	g.Headers = slices.Insert(g.Headers, 1, "DUE BEFORE")
	for i, o := range list {
		g.Rows[i] = slices.Insert(g.Rows[i], 1, f.ExactTime(o.DueBefore, timezone))
	}

	return g
}

// parseBounds parses start and end as in a task file. A local time that does not exist or exists twice is
// invalid.
func parseBounds(f *factory.Factory, t *task.Timing, start, end string) (err error) {
	for _, b := range []struct {
		field, text string
		at          *task.Time
	}{{"start", start, &t.Start}, {"end", end, &t.End}} {
		if b.text == "" {
			continue
		}
		if *b.at, err = manifest.Instant(b.field, b.text, t.Timezone, f.Now()); err != nil {
			return err
		}
	}

	return nil
}

// unquotedHint adds a hint if the shell has split an expression that was not quoted.
func unquotedHint(err error, exprs []string, verb string) error {
	var fault *task.Error
	if len(exprs) < 4 || !errors.As(err, &fault) || strings.ContainsAny(strings.Join(exprs, ""), " @") {
		return err
	}
	return failure.Usage("%s", err.Error()).WithHint("put the expression in quotes: carillon schedule %s %q", verb, strings.Join(exprs, " "))
}
