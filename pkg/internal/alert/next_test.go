package alert

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestNextTick(t *testing.T) {
	now := time.Date(2026, 11, 24, 8, 20, 0, 0, time.UTC)
	pausedBy := func(by string, until time.Time) func(*task.Entry) {
		return func(e *task.Entry) {
			e.Paused, e.Own = true, &task.Own{Pauses: []task.Pause{{By: task.NewActor(by)}}}
			if !until.IsZero() {
				e.Own.Pauses[0].Until = task.At(until)
			}
		}
	}

	for name, c := range map[string]struct {
		edit func(*task.Entry)
		next string
		none string
	}{
		"it ticks":                  {func(*task.Entry) {}, "09:00", ""},
		"it is paused":              {pausedBy("", time.Time{}), "", "paused"},
		"a person has paused it":    {pausedBy("ann", time.Time{}), "", "paused by ann"},
		"it has failed too often":   {pausedBy(task.PausedByFailures, time.Time{}), "", "paused after failures"},
		"its pause ends":            {pausedBy("ann", now.Add(2*time.Hour)), "11:00", ""},
		"it is a shadow":            {func(e *task.Entry) { e.Shadow = true }, "", "the task is a shadow"},
		"it is triggered":           {func(e *task.Entry) { e.Schedule = task.Schedules{"@manual"} }, "", "it runs only when it is triggered"},
		"it runs at boot":           {func(e *task.Entry) { e.Schedule = task.Schedules{"@reboot"} }, "", "it runs at the next boot of a matching node"},
		"its schedule has ended":    {func(e *task.Entry) { e.End = task.At(now) }, "", "the schedule has ended"},
		"it has run often enough":   {func(e *task.Entry) { e.MaxRuns, e.Own = 3, &task.Own{Runs: 3} }, "", "the schedule has ended"},
		"its schedule is not known": {func(e *task.Entry) { e.Schedule = task.Schedules{"0 25 * * *"} }, "", ""},
	} {
		e := task.Entry{Schedule: task.Schedules{"0 * * * *"}, Timezone: "UTC"}
		c.edit(&e)
		next, none := NextTick(&e, now)
		shown := ""
		if !next.IsZero() {
			shown = next.UTC().Format("15:04")
		}
		if shown != c.next || none != c.none {
			t.Errorf("%s: %q, %q; want %q, %q", name, shown, none, c.next, c.none)
		}
	}
}
