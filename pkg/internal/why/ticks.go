package why

import (
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// tickPrecision is the resolution of ticks and of all recorded times.
const tickPrecision = time.Millisecond

// isTick reports whether the version's schedule has a tick at an instant. It ignores pauses.
func (v *version) isTick(at time.Time) bool { return v.schedule != nil && v.schedule.At(at).Tick }

// nextTick returns the first tick after an instant.
func (v *version) nextTick(after time.Time) (time.Time, bool) {
	if v.schedule == nil {
		return time.Time{}, false
	}
	return v.schedule.Next(after)
}

// previousTick returns the last tick before an instant, and false if it is before notBefore.
func (v *version) previousTick(at, notBefore time.Time) (time.Time, bool) {
	if v.schedule == nil {
		return time.Time{}, false
	}
	last := v.schedule.At(at).Previous
	return last, !last.IsZero() && !last.Before(notBefore)
}

// tickNote returns schedule.NoteGap or schedule.NoteFold if a clock change affects the tick, or "".
func (v *version) tickNote(tick time.Time) string {
	if v.schedule == nil {
		return ""
	}
	return v.schedule.At(tick).Note
}

// dueTime returns when a tick is due, including jitter.
func (v *version) dueTime(tick time.Time) time.Time {
	if v.schedule == nil {
		return tick
	}
	return v.schedule.Due(tick, v.UID)
}

// lastDue returns the last tick that is due at an instant.
func (v *version) lastDue(at time.Time) (time.Time, bool) {
	if v.schedule == nil {
		return time.Time{}, false
	}
	return v.schedule.LastDue(at, v.UID)
}

// completionPeriod returns the period of a schedule that counts from the end of each run. ok is false for other
// schedules.
func (v *version) completionPeriod() (time.Duration, bool) {
	if v.schedule == nil {
		return 0, false
	}
	return v.schedule.AfterCompletion()
}

// isManual reports whether the schedule is @manual.
func (v *version) isManual() bool { return v.schedule != nil && v.schedule.Manual() }

// resolveHashes replaces H in expressions by the values that follow from the task's name.
func resolveHashes(exprs task.Schedules, namespace, name string) task.Schedules {
	if spread, err := schedule.Spread(exprs, namespace, name); err == nil {
		return spread
	}
	return exprs
}

// hasAnchor reports whether a schedule counts from an anchor (@every).
func hasAnchor(exprs task.Schedules) bool {
	for _, e := range exprs {
		if strings.HasPrefix(strings.ToLower(strings.TrimSpace(e)), "@every") {
			return true
		}
	}

	return false
}

// gapSkips reports whether ticks fall into the gap that ends at an instant, and dst.gap skips them. It parses
// the schedule with the other setting of dst.gap, under which such ticks would move to the end of the gap.
func (v *version) gapSkips(end time.Time) bool {
	timing := v.Timing()
	if timing.DST.Gap != task.GapSkip {
		return false
	}

	timing.Schedule, timing.DST.Gap = resolveHashes(timing.Schedule, v.Namespace, v.Name), task.GapRunAfter
	s, err := schedule.Parse(timing, v.CreatedAt.Time)

	return err == nil && s.At(end).Note == schedule.NoteGap
}
