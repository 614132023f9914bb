package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// endQueued ends a run that waits, without its having run. false: there is no room.
func (p *plan) endQueued(t *taskstate.Task, q *taskstate.Waiting, state task.State, reason string) bool {
	if !p.reserveRoom(t, 2, 2*roomForRecord) {
		return false
	}

	p.commit.GuardEntry(t.FullName(), t.Mod)
	p.finishQueued(t, q, state, reason)

	return true
}

// finishQueued takes a run out of the queue and puts its end into history. What else is
// said of the task in this revision must not touch the run again.
func (p *plan) finishQueued(t *taskstate.Task, q *taskstate.Waiting, state task.State, reason string) {
	end := q.Run
	end.State, end.Reason, end.EndedAt = state, reason, task.At(p.now)
	p.dequeueRun(t, q)
	p.commit.Record(t.Ref(p.s.Shard), end)
	p.lookAfterCommit(t) // another may start now
}

// dropOldest ends the n oldest ticks that wait, for one that comes. Ticks that are caught up
// with stay, since they take no room. There has to be room in the commit.
func (p *plan) dropOldest(t *taskstate.Task, n int) {
	for _, q := range t.Queue() {
		if n == 0 {
			return
		}

		isTick := q.Trigger != task.TriggerManual && q.Reason != task.ReasonCatchUp
		if isTick && !q.DispatchedBefore() && !t.Holds(q.ID) {
			p.finishQueued(t, q, task.Skipped, task.ReasonDropped)
			p.changeOf(t).started = true // so that the queue is left alone in this revision
			n--
		}
	}
}

// expireQueued ends a run that could not start before its deadline.
func (p *plan) expireQueued(t *taskstate.Task, q *taskstate.Waiting) bool {
	reason := task.ReasonDeadline
	if (q.Reason == task.ReasonNoNode || q.Reason == task.ReasonCount) && t.Policy.Rule.Free(t.Doing()) {
		reason = q.Reason
	}
	return p.endQueued(t, q, task.Missed, reason)
}
