package state

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/task"
)

// Doing counts what t is doing at now (Unix milliseconds), for the overlap policy. Parts do not count, because their run
// does, and neither do runs of a deleted task of the same name.
func (t *Task) Doing(now int64) (d tickpolicy.Activity) {
	if t.Activity == nil {
		return d
	}

	d.Active = t.Attempts()
	d.TargetDown, _ = t.TargetDown(now)
	joins := t.JoinsLate()
	if joins {
		d.Catching = slices.ContainsFunc(t.Activity.Active, func(a *Attempt) bool { return a.CaughtUp && !t.Orphan(a.Run) })
	}

	for _, q := range t.Activity.Queue {
		if task.IsPart(q.ID) || t.Orphan(q.ID) {
			continue
		}

		if !q.UnderWay() {
			d.All++
		}

		switch {
		case q.DispatchedBefore():
			d.Begun++
			d.Catching = d.Catching || joins && q.Trigger == task.TriggerCatchUp
		case q.Trigger == task.TriggerAfter:
			d.After++
		case q.HasTick():
			// Manual and triggered runs count as waiting (All), but not as ticks.
			d.Ticks++

			switch q.Reason {
			case task.ReasonCatchUp:
				d.Late++
			case task.ReasonOverlap, task.ReasonLimit, task.ReasonTarget:
				d.Held++
			}
		}
	}

	return d
}

// JoinsLate reports whether ticks of t that are on time join late ones.
func (t *Task) JoinsLate() bool { return t.Policy != nil && t.Policy.Rule.JoinsLate() }

// WaitsForTurn reports whether a waiting run is a late tick that has not been dispatched yet.
func (w *Waiting) WaitsForTurn() bool {
	return w.Reason == task.ReasonCatchUp && w.HasTick() && !w.DispatchedBefore()
}

// IsPlainManual reports whether a run is a manual run that has not been dispatched, and that may start at any time.
func (w *Waiting) IsPlainManual() bool {
	return w.Trigger == task.TriggerManual && !w.DispatchedBefore() && w.NotBefore.IsZero() && w.StartBefore.IsZero() && w.Fan == nil
}

// LateTurn returns the late tick that starts before the next tick on time, or nil. now is in Unix milliseconds.
// Only one tick on time may pass the late ticks that wait. After that, the oldest late tick is the next to start.
// A new owner does not know that a tick has passed, so another one may.
func (t *Task) LateTurn(now int64) *Waiting {
	if t.Activity == nil || !t.Activity.LatePassed || !t.Policy.Rule.HasOneTurn(t.Doing(now)) {
		return nil
	}

	for _, q := range t.Activity.Queue {
		if q.WaitsForTurn() && !t.Orphan(q.ID) && !t.Holds(q.ID) && !q.Expired(now) {
			return q
		}
	}

	return nil
}

// TargetDown reports whether a run of t, or a part of one, waits for its target at now (Unix milliseconds), or tries it
// again after that. If only attempts are the reason, until is when that ends at the latest.
//
// Such an attempt counts, because otherwise all ticks that wait would start whenever a run tries its target again. But
// it counts only for a while: an attempt that was not sent ends soon, and one that was sent may take hours.
func (t *Task) TargetDown(now int64) (down bool, until int64) {
	if t.Activity == nil || !t.IsHTTP() {
		return false, 0
	}

	for _, q := range t.Activity.Queue {
		if q.WaitsForTarget() && !t.Orphan(q.ID) {
			return true, 0
		}
	}

	for _, a := range t.Activity.Active {
		// More time left than the maximum means that the clock was set back.
		left := a.ProbeUntil - now
		if left > 0 && left <= task.MaxUnsentBackoff.Milliseconds() && !t.Orphan(a.Run) {
			down, until = true, max(until, a.ProbeUntil)
		}
	}

	return down, until
}

// Replacer returns the newest tick or triggered run of t that waits to replace active runs, or nil if there is none. It
// skips ticks for which expired returns true. Every owner recognizes such a tick by its reason.
func (t *Task) Replacer(expired func(*Waiting) bool) *Waiting {
	if t.Policy == nil || t.Policy.Overlap != task.OverlapReplace {
		return nil
	}

	for i := len(t.Queue()) - 1; i >= 0; i-- {
		q := t.Queue()[i]
		if q.Trigger != task.TriggerManual && !q.DispatchedBefore() && q.Reason == task.ReasonOverlap && !expired(q) {
			return q
		}
	}

	return nil
}

// Replaces reports whether t's active attempts must be cancelled because a tick waits to replace them. now
// is in Unix milliseconds.
func (t *Task) Replaces(now int64) bool {
	return len(t.Active()) > 0 && t.Replacer(func(q *Waiting) bool { return q.Expired(now) }) != nil
}

// ReplacesAttempt reports whether an attempt of t must be cancelled because a tick waits to replace it. The parts of a workflow
// end because their run is replaced, which first cleans up. While the record of a run cannot be read, its parts may be such.
func (t *Task) ReplacesAttempt(a *Attempt, now int64) bool {
	if parent, _, isPart := task.ParentOf(a.Run); isPart && t.Activity != nil && slices.Contains(t.Activity.Unreadable, parent) {
		return false
	}

	return t.Replaces(now) && t.StepOf(a.Run) == nil
}

// Expired reports whether a waiting run cannot start any more, because its start deadline has passed before
// its first attempt began (G22). A run that was handed back has not begun, so its deadline still applies. So does that of
// a run that sent nothing: its record keeps the deadline.
func (w *Waiting) Expired(now int64) bool {
	return !w.StartBefore.IsZero() && w.CountedAttempt() <= 1 && !w.UnderWay() && now > w.StartBefore.UnixMilli()
}

// NewestReason returns why the newest tick of t waits that was not dispatched before.
func (t *Task) NewestReason() string {
	for i := len(t.Queue()) - 1; i >= 0; i-- {
		if q := t.Queue()[i]; q.HasTick() && !q.DispatchedBefore() {
			return q.Reason
		}
	}

	return task.ReasonOverlap
}

// TicksToDrop returns how many waiting ticks of t may have to be dropped if one more tick comes at now (Unix
// milliseconds).
func (t *Task) TicksToDrop(now int64) int {
	if t.Activity == nil || !t.Policy.Rule.Oldest {
		return 0
	}
	return t.Policy.Rule.TicksToDrop(t.Doing(now))
}

// StartBefore returns the start deadline of a tick, or zero if it has none.
func (t *Task) StartBefore(tick int64) task.Time {
	if t.Policy.Deadline == 0 {
		return task.Time{}
	}
	return task.At(Instant(t.Due(tick)).Add(t.Policy.Deadline))
}

// MissedSchedule is a task's schedule for the missed policy. It implements tickpolicy.Ticks.
type MissedSchedule struct {
	*schedule.Schedule
	t *Task
}

// NewMissedSchedule returns the schedule of a task whose entry can be read.
func NewMissedSchedule(t *Task) MissedSchedule {
	s := t.Schedule()
	return MissedSchedule{&s, t}
}

// DueBy returns an instant with this property: the ticks up to it are exactly those that are due at the
// instant at.
func (s MissedSchedule) DueBy(at time.Time) time.Time { return Instant(s.t.LastDue(at.UnixMilli())) }
