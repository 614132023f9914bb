package scheduler

import "github.com/carillonhq/carillon/pkg/task"

// end ends a run that waits, without its having run. false: there is no room.
func (p *plan) end(t *taskState, q *waiting, state task.State, reason string) bool {
	if !p.fits(t, 2, 2*roomForRecord) {
		return false
	}
	p.commit.GuardEntry(t.fullName(), t.mod)
	p.finish(t, q, state, reason)
	return true
}

// finish takes a run out of the queue and puts its end into history. What else is
// said of the task in this revision must not touch the run again.
func (p *plan) finish(t *taskState, q *waiting, state task.State, reason string) {
	end := q.Run
	end.State, end.Reason, end.EndedAt = state, reason, task.At(p.now)
	p.dequeue(t, q)
	p.commit.Record(t.ref(p.s.shard), end)
	p.lookAfterCommit(t) // another may start now
}

// drop ends the n oldest ticks that wait, for one that comes. Ticks that are caught up
// with stay, since they take no room. There has to be room in the commit.
func (p *plan) drop(t *taskState, n int) {
	for _, q := range t.queue() {
		if n == 0 {
			return
		}

		isTick := q.Trigger != task.TriggerManual && q.Reason != task.ReasonCatchUp
		if isTick && !q.dispatchedBefore() && !t.holds(q.ID) {
			p.finish(t, q, task.Skipped, task.ReasonDropped)
			p.changeOf(t).started = true // so that the queue is left alone in this revision
			n--
		}
	}
}

// expire ends a run that could not start before its deadline.
func (p *plan) expire(t *taskState, q *waiting) bool {
	reason := task.ReasonDeadline
	if (q.Reason == task.ReasonNoNode || q.Reason == task.ReasonCount) && t.how.Rule.Free(t.doing()) {
		reason = q.Reason
	}
	return p.end(t, q, task.Missed, reason)
}

// newestReason is why the newest tick of t waits that has not begun.
func (t *taskState) newestReason() string {
	for i := len(t.queue()) - 1; i >= 0; i-- {
		if q := t.queue()[i]; q.Trigger != task.TriggerManual && !q.dispatchedBefore() {
			return q.Reason
		}
	}
	return task.ReasonOverlap
}
