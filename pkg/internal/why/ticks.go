package why

import (
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// tickPrecision is the grain of ticks.
const tickPrecision = time.Millisecond

// isTick reports whether the version's schedule ticks at an instant, paused or not.
func (v *version) isTick(at time.Time) bool { return v.schedule != nil && v.schedule.At(at).Tick }

// nextTick is the first tick after an instant.
func (v *version) nextTick(after time.Time) (time.Time, bool) {
	if v.schedule == nil {
		return time.Time{}, false
	}
	return v.schedule.Next(after)
}

// previousTick is the last tick before an instant, and not before another.
func (v *version) previousTick(at, notBefore time.Time) (time.Time, bool) {
	if v.schedule == nil {
		return time.Time{}, false
	}
	last := v.schedule.At(at).Previous
	return last, !last.IsZero() && !last.Before(notBefore)
}

// tickNote says what is odd about a tick: schedule.NoteGap, NoteFold or "".
func (v *version) tickNote(tick time.Time) string {
	if v.schedule == nil {
		return ""
	}
	return v.schedule.At(tick).Note
}

// dueTime is when a tick falls due.
func (v *version) dueTime(tick time.Time) time.Time {
	if v.schedule == nil {
		return tick
	}
	return v.schedule.Due(tick, v.UID)
}

// lastDue is the last tick that is due at an instant.
func (v *version) lastDue(at time.Time) (time.Time, bool) {
	if v.schedule == nil {
		return time.Time{}, false
	}
	return v.schedule.LastDue(at, v.UID)
}

// completionPeriod is the period of a schedule that counts from the end of each run.
func (v *version) completionPeriod() (time.Duration, bool) {
	if v.schedule == nil {
		return 0, false
	}
	return v.schedule.AfterCompletion()
}

// isManual reports whether the schedule has no ticks.
func (v *version) isManual() bool { return v.schedule != nil && v.schedule.Manual() }

// resolveHashes are expressions with what follows from the task's name filled in.
func resolveHashes(exprs task.Schedules, namespace, name string) task.Schedules {
	if spread, err := schedule.Spread(exprs, namespace, name); err == nil {
		return spread
	}
	return exprs
}

// hasAnchor reports whether a schedule counts from an anchor.
func hasAnchor(exprs task.Schedules) bool {
	for _, e := range exprs {
		if strings.HasPrefix(strings.ToLower(strings.TrimSpace(e)), "@every") {
			return true
		}
	}

	return false
}

// gapSkips reports whether ticks fall into the gap that ends at an instant, and
// dst.gap skips them.
func (v *version) gapSkips(end time.Time) bool {
	timing := v.Timing()
	if timing.DST.Gap != task.GapSkip {
		return false
	}

	timing.Schedule, timing.DST.Gap = resolveHashes(timing.Schedule, v.Namespace, v.Name), task.GapRunAfter
	s, err := schedule.Parse(timing, v.CreatedAt.Time)

	return err == nil && s.At(end).Note == schedule.NoteGap
}
