package why

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// A version is a version of the task and the time in which it was in force.
type version struct {
	task.Task
	until    time.Time // zero: it is in force
	by       string    // who made the next one
	change   string    // and what that was
	schedule *schedule.Schedule
	// vague: it has @every, and from when that counts is not on record any more.
	vague bool
}

func (v *version) startTime() time.Time { return v.UpdatedAt.Time }

func (v *version) inForce() *task.VersionInForce {
	return &task.VersionInForce{Generation: v.Generation, Since: v.UpdatedAt, Until: task.At(v.until), By: v.UpdatedBy, Change: v.Change,
		Schedule: v.Schedule, Timezone: v.Timezone, DST: v.DST, ReplacedBy: v.by}
}

// versionsInForce is the versions that are on record, the oldest first. A version that is
// missing among them ends it: what is older is not taken for what was in force.
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

// parseSchedule reads the version's schedule; upTo are the versions up to it.
func (v *version) parseSchedule(f *Facts, upTo []version) {
	timing := v.Timing()

	if v.until.IsZero() && f.Entry != nil && f.Entry.Generation == v.Generation {
		v.schedule, _ = schedule.Parse(f.Entry.Timing(), f.Entry.Anchor.Time) // the entry's has H resolved
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

// inForce is the version whose tick an instant would be; nil if that is not on
// record, or there was none. A version has no tick at the instant at which it is
// made.
func inForce(all []version, at time.Time) *version {
	for i := range slices.Backward(all) {
		if v := &all[i]; v.startTime().Before(at) {
			return v
		}
	}

	return nil
}

// cutOff is the version that took a tick away which was due and not yet decided:
// the first after it that has other ticks, begins anew, or is paused; nil if none
// did.
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
