package taskstate

import (
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/task"
)

// Doing is what t does now.
func (t *Task) Doing() (d tickpolicy.Activity) {
	if t.Activity == nil {
		return d
	}

	d.Active = t.Attempts()
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
		case q.Trigger != task.TriggerManual:
			d.Ticks++

			switch q.Reason {
			case task.ReasonCatchUp:
				d.Late++
			case task.ReasonOverlap, task.ReasonLimit:
				d.Held++
			}
		}
	}

	return d
}

// Replacer is the newest tick of t that waits to replace others; nil if none does.
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

// Replaces reports whether t's active attempts are to end for a tick that waits.
func (t *Task) Replaces(now int64) bool {
	return len(t.Active()) > 0 && t.Replacer(func(q *Waiting) bool { return q.Expired(now) }) != nil
}

// Expired reports whether a waiting run can not start any more: it has not begun,
// and its start deadline has passed. Handed back, it has not begun to run.
func (q *Waiting) Expired(now int64) bool {
	return !q.StartBefore.IsZero() && q.Attempt <= 1 && !q.UnderWay() && now > q.StartBefore.UnixMilli()
}

// NewestReason is why the newest tick of t waits that has not begun.
func (t *Task) NewestReason() string {
	for i := len(t.Queue()) - 1; i >= 0; i-- {
		if q := t.Queue()[i]; q.Trigger != task.TriggerManual && !q.DispatchedBefore() {
			return q.Reason
		}
	}

	return task.ReasonOverlap
}

// TicksToDrop is how many waiting ticks of t may be dropped for one that comes.
func (t *Task) TicksToDrop() int {
	if t.Activity == nil || !t.Policy.Rule.Oldest {
		return 0
	}
	return t.Policy.Rule.TicksToDrop(t.Doing())
}

// StartBefore is the start deadline of a tick; zero: it has none.
func (t *Task) StartBefore(tick int64) task.Time {
	if t.Policy.Deadline == 0 {
		return task.Time{}
	}
	return task.At(Instant(t.Due(tick)).Add(t.Policy.Deadline))
}
