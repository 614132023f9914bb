package view

import (
	"cmp"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// AddLedgerRows adds lines of a ledger to a table of the runs of one task, with its time zone.
func AddLedgerRows(f *factory.Factory, g *output.Table, lines []task.LedgerLine, timezone string) {
	for _, l := range lines {
		row := make([]string, len(g.Headers))
		for i := range row {
			row[i] = f.NoValue()
		}

		copy(row, []string{
			cmp.Or(output.OneLine(l.Run), f.NoValue()), ledgerTicks(f, l, timezone), f.StateText(wording.LedgerState(l), f.Plain(wording.LedgerText(l))),
			cmp.Or(output.OneLine(l.Node), f.NoValue()), ledgerLateness(f, l), ledgerDuration(f, l),
		})

		if n := len(row); l.Kind == task.LedgerHour && g.Headers[n-1] == messageColumn {
			row[n-1] = f.Plain(namedTicks(f, l, timezone))
		}

		g.AddRow(row...)
	}
}

// ledgerTicks formats the ticks of a line.
func ledgerTicks(f *factory.Factory, l task.LedgerLine, timezone string) string {
	words := tickTime(f, l.First, timezone)

	switch {
	case l.Kind == task.LedgerRequested:
		return words + " (manual)"
	case l.Kind == task.LedgerHour:
		return words + " (one hour)"
	case l.Last.After(l.First.Time):
		words += f.Plain(" … ") + tickTime(f, l.Last, timezone)
	}

	return words
}

// namedTicks lists the ticks of an hour of which it is known that they did not succeed.
func namedTicks(f *factory.Factory, l task.LedgerLine, timezone string) string {
	words := make([]string, len(l.Named))
	for i, tick := range l.Named {
		words[i] = tick.In(f.Zone(timezone)).Format(time.TimeOnly)
	}

	if int64(len(words)) < l.Count {
		words = append(words, "…")
	}

	return strings.Join(words, ", ")
}

// ledgerLateness formats how late the runs of a line started.
func ledgerLateness(f *factory.Factory, l task.LedgerLine) string {
	if l.Kind != task.LedgerSucceeded {
		return f.NoValue()
	}

	return atMost(l.MaxLatenessMS, l.Count)
}

// ledgerDuration formats how long the runs of a line took.
func ledgerDuration(f *factory.Factory, l task.LedgerLine) string {
	switch {
	case l.Kind != task.LedgerSucceeded:
		return f.NoValue()
	case l.Count == 1:
		return atMost(l.MaxMS, 1)
	}

	return "mean " + milliseconds(l.MeanMS) + ", " + atMost(l.MaxMS, l.Count)
}

// atMost formats the longest of count durations.
func atMost(ms, count int64) string {
	if count == 1 {
		return milliseconds(ms)
	}

	return "max " + milliseconds(ms)
}

// milliseconds formats a duration.
func milliseconds(ms int64) string {
	return task.Duration(time.Duration(ms) * time.Millisecond).Approximate()
}
