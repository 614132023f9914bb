package cli

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func (a *app) scheduleCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "schedule", Short: "Try schedules out, without a server"}
	cmd.AddCommand(a.scheduleNext())
	return cmd
}

func (a *app) scheduleNext() *cobra.Command {
	var f struct {
		timezone, from string
		count          int
		dst            task.DST
	}
	cmd := &cobra.Command{
		Use:   "next EXPR...",
		Short: "Show when a schedule ticks, without a server",
		Long: "Show when a schedule ticks, computed here, without a server. Several expressions count as one schedule.\n" +
			"@every counts from --from.",
		Example: `  carillon schedule next "30 2 * * *" --timezone Europe/Berlin
  carillon schedule next "30 2 * * *" --timezone Europe/Berlin --from 2027-03-27 --count 3
  carillon schedule next "@every 90s" -o json`,
		Args:              args(1, -1, "the expression"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&f.timezone, "timezone", "UTC", "time zone, such as Europe/Berlin")
	cmd.Flags().StringVar(&f.from, "from", "", "ticks after this time (default now)")
	cmd.Flags().IntVar(&f.count, "count", 5, "how many")
	cmd.Flags().StringVar(&f.dst.Gap, "dst-gap", "", "ticks whose local time does not exist: run-after (default) or skip")
	cmd.Flags().StringVar(&f.dst.Fold, "dst-fold", "", "ticks whose local time exists twice: first (default) or both")
	completeFixed(cmd, "dst-gap", task.GapRunAfter, task.GapSkip)
	completeFixed(cmd, "dst-fold", task.FoldFirst, task.FoldBoth)
	cmd.RunE = func(_ *cobra.Command, exprs []string) error {
		zone, err := schedule.Location(f.timezone)
		if err != nil {
			return err
		}
		from, err := readFrom(f.from, zone)
		if err != nil {
			return err
		}
		if from.IsZero() {
			from = a.now()
		}
		ticks, err := schedule.Upcoming(task.Timing{Schedule: exprs, Timezone: f.timezone, DST: f.dst}, from, from, f.count)
		if err != nil {
			return unquotedHint(err, exprs)
		}
		list := make([]client.Occurrence, len(ticks))
		for i, t := range ticks {
			list[i] = client.Occurrence{Time: task.At(t.Time), Local: t.Local.Format("2006-01-02T15:04:05.000Z07:00"), Note: t.Note}
		}
		return emitList(a, list, func(o client.Occurrence) string { return stamp(o.Time) },
			func(bool) *grid { return a.occurrenceGrid(list, f.timezone) })
	}
	return cmd
}

// unquotedHint notices an expression that the shell took apart.
func unquotedHint(err error, exprs []string) error {
	var fault *task.Error
	if len(exprs) < 4 || !errors.As(err, &fault) || strings.ContainsAny(strings.Join(exprs, ""), " @") {
		return err
	}
	return usage("%s", err.Error()).hinting("put the expression in quotes: carillon schedule next %q", strings.Join(exprs, " "))
}
