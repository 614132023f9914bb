package view

import (
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

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
		local, due := o.Time.In(f.Zone(timezone)), DueAt(o)
		row := []string{local.Format("Mon ") + output.ExactTime(local), o.Time.UTC().Format("2006-01-02 15:04:05"), f.TimeLeftOrPast(due), wording.TickNote(o)}
		if jitter {
			row = slices.Insert(row, 2, due.In(f.Zone(timezone)).Format("15:04:05.000"))
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
