package why

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// version is one version of the task, with the time during which it was in force.
type version struct {
	task.Task
	until    time.Time // zero: it is still in force
	by       string    // who made the next version
	change   string    // what made the next version: one of the task.Change constants
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
