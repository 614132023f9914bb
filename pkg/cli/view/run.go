// Package view formats runs, ticks, freezes and facts of nodes for all commands: tables and texts that several
// commands use. It changes nothing. The only thing it asks the server is whether something is frozen.
package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// zoneOf returns the time zone for a run.
func (z Zones) zoneOf(r task.Run) string {
	if zone, ok := z[""]; ok {
		return zone
	}
	return z[r.Namespace+"/"+r.Task]
}

// barLength is the width of a progress bar in characters.
const barLength = 20

// RunDuration returns how long an attempt ran, or has been running. It is negative if the attempt has not
// started.
func RunDuration(r task.Run, now time.Time) time.Duration { return wording.RunDuration(r, now) }

// Zones contains the time zones of tasks by "namespace/name". "" is the zone for all tasks.
type Zones map[string]string

// ZonesOf returns the zones for a list of runs of several tasks. With --time task, it reads all tasks to get
// the zone of each; otherwise it returns the user's zone.
func ZonesOf(f *factory.Factory, cmd *cobra.Command, c *client.Client, namespace string) (Zones, error) {
	if !f.ForPeople() || f.TimeMode != output.TimeTask {
		return Zones{"": output.ReaderZone}, nil
	}

	z := Zones{}
	for t, err := range c.Tasks.All(cmd.Context(), client.TaskListOptions{Namespace: namespace}) {
		if err != nil {
			return nil, err
		}
		z[t.Namespace+"/"+t.Name] = t.Timezone
	}

	return z, nil
}

// messageColumn is the header of the last column of wide tables of runs.
const messageColumn = "MESSAGE"

// RunTable returns a table of runs. many adds the names of the tasks, wide adds columns.
func RunTable(f *factory.Factory, runs []task.Run, many, wide bool, z Zones) *output.Table {
	g := &output.Table{}
	if f.AllNamespaces && many {
		g.Headers = append(g.Headers, "NAMESPACE")
	}

	if many {
		g.Headers = append(g.Headers, "TASK")
	}

	g.Headers = append(g.Headers, "RUN", "TICK", "RESULT", "NODE", "LATE", "TOOK")
	if wide {
		g.Headers = append(g.Headers, "PROGRESS", "TRIGGER", "ATTEMPT", "OWNER", "SHARD", "TOKEN", messageColumn)
	}

	for _, r := range runs {
		var row []string
		if f.AllNamespaces && many {
			row = append(row, r.Namespace)
		}

		if many {
			row = append(row, r.Task)
		}

		row = append(row, r.ID, tickText(f, r, z.zoneOf(r)), RunResult(f, r), cmp.Or(output.OneLine(r.Node), f.NoValue()), Lateness(f, r), TookText(f, r))
		if wide {
			row = append(row, ProgressText(f, r), r.Trigger, fmt.Sprint(r.Attempt), cmp.Or(r.Owner, f.NoValue()), fmt.Sprint(r.Shard), fmt.Sprint(r.Token), output.OneLine(r.Message))
		}

		g.AddRow(row...)
	}

	return g
}

// tickText formats the tick of a run, and states whether the run was triggered manually, or by another task.
func tickText(f *factory.Factory, r task.Run, timezone string) string {
	words := f.RecentTime(r.ScheduledTime, timezone)

	switch {
	case r.IsBootRun():
		return words + " (boot of " + r.TargetNode + ")"
	case r.Trigger == task.TriggerManual:
		return words + " (manual)"
	case r.Trigger == task.TriggerAfter && len(r.Causes) > 0:
		words += " (after " + r.Causes[0].Task + ")"
	case r.Trigger == task.TriggerAfter:
		words += " (after)"
	}

	if r.Count > 1 && !r.Last.IsZero() {
		words += f.Plain(" … ") + f.RecentTime(r.Last, timezone)
	}

	return words
}

// Lateness formats how long after its due time a run started.
func Lateness(f *factory.Factory, r task.Run) string {
	if r.LatenessMS == nil {
		return f.NoValue()
	}
	return task.Duration(time.Duration(*r.LatenessMS) * time.Millisecond).Approximate()
}

// TookText formats how long a run took, or has taken so far.
func TookText(f *factory.Factory, r task.Run) string {
	if d := RunDuration(r, f.Now()); d >= 0 {
		return task.Duration(d).Approximate()
	}
	return f.NoValue()
}

// RunResult describes the state of a run in a few words, with its symbol.
func RunResult(f *factory.Factory, r task.Run) string {
	return f.StateText(r.State, PlainRunResult(f, r))
}

// PlainRunResult is like RunResult, without the symbol.
func PlainRunResult(f *factory.Factory, r task.Run) string {
	return f.Plain(wording.RunResult(r, f.Now()))
}

// EndText describes how long an ended run took, and where it ran.
func EndText(f *factory.Factory, r task.Run) string {
	var words string
	if d := RunDuration(r, f.Now()); d >= 0 {
		words = " after " + task.Duration(d).Approximate()
	}

	if r.Node != "" {
		words += " on " + r.Node
	}

	return f.Plain("·") + " " + selection.Name(f, r.Namespace, r.Task) + words
}

// percentWords formats a percentage, such as "40%" or "33.3%".
func percentWords(p *task.Progress) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", min(max(*p.Percent, 0), 100)), ".0") + "%"
}

// ProgressText describes the progress of a run in a few words.
func ProgressText(f *factory.Factory, r task.Run) string {
	switch p := r.Progress; {
	case p == nil || p.Percent == nil && p.Silent == "":
		return f.NoValue()
	case p.Silent != "":
		return "unknown"
	case p.Text == "":
		return percentWords(p)
	default:
		return percentWords(p) + " " + output.OneLine(p.Text)
	}
}

// ProgressBar returns the progress of a run with a bar, or "" if it has not reported any.
func ProgressBar(f *factory.Factory, r task.Run) string {
	p := r.Progress
	switch {
	case p == nil || p.Percent == nil && p.Silent == "":
		return ""
	case p.Silent != "":
		return "unknown: " + output.OneLine(p.Silent)
	}

	full, empty := "█", "░"
	if f.ASCII {
		full, empty = "#", "."
	}

	n := int(min(max(*p.Percent, 0), 100) / 100 * barLength)
	words := f.Paint(output.Cyan, strings.Repeat(full, n)+strings.Repeat(empty, barLength-n)) + " " + ProgressText(f, r)
	if old := f.Now().Sub(p.At.Time); old > time.Minute {
		words += " (said " + task.Duration(old).Approximate() + " ago)"
	}

	return words
}

// Timestamp formats a time as in JSON.
func Timestamp(t task.Time) string {
	b, _ := t.MarshalText() // never fails
	return string(b)
}

// TickTable returns a table of ticks, with their times in a zone and in UTC, and the times at which they fall
// due if there is jitter.
func TickTable(f *factory.Factory, list []client.Occurrence, timezone string) *output.Table {
	jitter := slices.ContainsFunc(list, func(o client.Occurrence) bool { return !o.DueAt.IsZero() })
	g := &output.Table{Headers: []string{"TIME", "UTC", "LEFT", "NOTE"}, Empty: "no upcoming ticks"}
	if jitter {
		g.Headers = slices.Insert(g.Headers, 2, "DUE")
	}

	for _, o := range list {
		due := DueAt(o)
		row := []string{f.WeekdayDate(o.Time, timezone), o.Time.UTC().Format("2006-01-02 15:04:05"), f.TimeLeftOrPast(due), wording.TickNote(o)}
		if jitter {
			row = slices.Insert(row, 2, f.ClockMillis(due, timezone))
		}

		g.AddRow(row...)
	}

	return g
}

// DueAt returns the time at which a tick falls due.
func DueAt(o client.Occurrence) task.Time {
	if o.DueAt.IsZero() {
		return o.Time
	}
	return o.DueAt
}

// IsAfterCompletion reports whether ticks depend on the ends of runs. Then only one tick is known in advance.
func IsAfterCompletion(exprs task.Schedules) bool {
	return len(exprs) == 1 && strings.HasSuffix(exprs[0], " after completion")
}

// ScheduleText formats a schedule, with its time zone unless that is UTC.
func ScheduleText(s task.Spec) string { return wording.ScheduleText(s) }

// WhatFollows explains why only one tick is listed if ticks depend on the ends of runs.
const WhatFollows = "the next tick depends on when this run ends"

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
	words := f.RecentTime(l.First, timezone)

	switch {
	case l.Kind == task.LedgerRequested:
		return words + " (manual)"
	case l.Kind == task.LedgerHour:
		return words + " (one hour)"
	case l.Last.After(l.First.Time):
		words += f.Plain(" … ") + f.RecentTime(l.Last, timezone)
	}

	return words
}

// namedTicks lists the ticks of an hour that are known to have failed, or not to have run.
func namedTicks(f *factory.Factory, l task.LedgerLine, timezone string) string {
	words := make([]string, len(l.Named))
	for i, tick := range l.Named {
		words[i] = f.ClockTime(tick, timezone)
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
