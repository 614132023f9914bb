package why

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// version is one version of the task, with the time during which it was in force.
type version struct {
	task.Task
	until    time.Time   // zero: it is still in force
	by       *task.Actor // who made the next version
	change   string      // what made the next version: one of the task.Change constants
	schedule *schedule.Schedule
	// vague is set if the schedule has @every and its anchor is not on record any more. Its ticks cannot be
	// computed then.
	vague bool
}

// startTime returns when the version came into force.
func (v *version) startTime() time.Time { return v.UpdatedAt.Time }

// inForce converts the version to the form of the API.
func (v *version) inForce() *task.VersionInForce {
	return &task.VersionInForce{Generation: v.Generation, Since: v.UpdatedAt, Until: task.At(v.until), By: v.UpdatedBy, Change: v.Change,
		Schedule: v.Schedule, Timezone: v.Timezone, DST: v.DST, ReplacedBy: v.by}
}

// versionsInForce returns the versions on record, the oldest first. It stops at a missing version, because
// nothing shows when an older one was in force.
func versionsInForce(f *Facts) []version {
	if f.Task == nil {
		return nil
	}

	all := []version{{Task: *f.Task}}
	for _, t := range slices.Backward(f.Versions) {
		next := all[len(all)-1]
		if t.UID == f.Task.UID && t.Generation == next.Generation-1 {
			all = append(all, version{Task: t, until: next.startTime(), by: next.UpdatedBy, change: next.Change})
		}
	}

	slices.Reverse(all)

	for i := range all {
		all[i].parseSchedule(f, all[:i+1])
	}

	return all
}

// parseSchedule parses the version's schedule. upTo contains the versions up to this one. The anchor of @every
// is the start of the first version with the same ticks.
func (v *version) parseSchedule(f *Facts, upTo []version) {
	timing := v.Timing()

	if v.until.IsZero() && f.Entry != nil && f.Entry.Generation == v.Generation {
		v.schedule, _ = schedule.Parse(f.Entry.Timing(), f.Entry.Anchor.Time) // in the entry, H is already replaced
		return
	}

	timing.Schedule = resolveHashes(timing.Schedule, v.Namespace, v.Name)
	anchor, known := v.CreatedAt.Time, false
	for _, u := range slices.Backward(upTo) {
		if !task.SameTicks(u.Spec, v.Spec) {
			known = true
			break
		}

		anchor = u.startTime()
		known = u.Generation == 1
	}

	v.schedule, _ = schedule.Parse(timing, anchor)
	v.vague = !known && hasAnchor(v.Schedule)
}

// inForce returns the version to which a tick at an instant belongs, or nil if it is not on record or did not
// exist. A version has no tick at the instant at which it was made.
func inForce(all []version, at time.Time) *version {
	for i := range slices.Backward(all) {
		if v := &all[i]; v.startTime().Before(at) {
			return v
		}
	}

	return nil
}

// cutOff returns the version that caused a tick never to be decided although it was due: the first later
// version with other ticks or another pause state. It returns nil if there is none.
func cutOff(all []version, v *version, tick time.Time) *version {
	old := v
	for i := range all {
		n := &all[i]
		if n.Generation <= v.Generation {
			continue
		}
		if !n.startTime().Before(tick) && (!task.SameTicks(old.Spec, n.Spec) || n.Paused != old.Paused) {
			return n
		}

		old = n
	}

	return nil
}

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
