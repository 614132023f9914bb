package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/task"
)

// doing is what t does now.
func (t *taskState) doing() (d tickpolicy.Activity) {
	if t.activity == nil {
		return d
	}
	d.Active = t.attempts()
	for _, q := range t.activity.queue {
		if task.IsPart(q.ID) || t.orphan(q.ID) {
			continue
		}
		if !q.UnderWay() {
			d.All++
		}
		switch {
		case q.dispatchedBefore():
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

// replacer is the newest tick of t that waits to replace others; nil if none does.
func (t *taskState) replacer(expired func(*waiting) bool) *waiting {
	if t.how == nil || t.how.Overlap != task.OverlapReplace {
		return nil
	}
	for i := len(t.queue()) - 1; i >= 0; i-- {
		q := t.queue()[i]
		if q.Trigger != task.TriggerManual && !q.dispatchedBefore() && q.Reason == task.ReasonOverlap && !expired(q) {
			return q
		}
	}
	return nil
}

// replaces reports whether t's active attempts are to end for a tick that waits.
func (t *taskState) replaces(now int64) bool {
	return len(t.active()) > 0 && t.replacer(func(q *waiting) bool { return q.expired(now) }) != nil
}

// expired reports whether a waiting run can not start any more: it has not begun,
// and its start deadline has passed. Handed back, it has not begun to run.
func (q *waiting) expired(now int64) bool {
	return !q.StartBefore.IsZero() && q.Attempt <= 1 && !q.UnderWay() && now > q.StartBefore.UnixMilli()
}
