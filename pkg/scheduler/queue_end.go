package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// endQueued ends a waiting run that will not start. It returns false if the commit has no room.
func (p *plan) endQueued(t *taskstate.Task, q *taskstate.Waiting, state task.State, reason string) bool {
	if !p.reserveRoom(t, 2, 2*roomForRecord) {
		return false
	}

	// The decision follows from the task's policy, which must be unchanged (G7).
	p.commit.GuardEntry(t.FullName(), t.Mod)
	p.finishQueued(t, q, state, reason)

	return true
}

// finishQueued deletes the queue record of a run and records its end. The caller must not change the run
// again in this plan.
func (p *plan) finishQueued(t *taskstate.Task, q *taskstate.Waiting, state task.State, reason string) {
	end := q.Run
	end.State, end.Reason, end.EndedAt = state, reason, task.At(p.now)
	if state == task.Missed && q.Unsent != nil {
		end.Message = "its request was not sent: " + q.Unsent.Message
	}

	p.dequeueRun(t, q)
	p.commit.Record(t.Ref(p.s.Shard), end)
	p.examineAfterCommit(t) // another run may start now
}

// dropOldest ends the n oldest waiting ticks, to make room for a new one. Ticks that are caught up stay,
// because the limit of the queue does not count them. The caller has made room in the commit.
func (p *plan) dropOldest(t *taskstate.Task, n int) {
	for _, q := range t.Queue() {
		if n == 0 {
			return
		}

		isTick := q.Trigger != task.TriggerManual && q.Reason != task.ReasonCatchUp
		if isTick && !q.DispatchedBefore() && !t.Holds(q.ID) {
			p.finishQueued(t, q, task.Skipped, task.ReasonDropped)
			p.changeOf(t).started = true // the plan leaves the rest of the queue alone
			n--
		}
	}
}

// expireQueued ends a run that could not start before its deadline. The reason is what the run waited for
// (no node, or too few nodes), unless other runs of the task would have kept it from starting anyway.
func (p *plan) expireQueued(t *taskstate.Task, q *taskstate.Waiting) bool {
	reason := task.ReasonDeadline
	if (q.Reason == task.ReasonNoNode || q.Reason == task.ReasonCount) && t.Policy.Rule.Free(t.Doing(p.now.UnixMilli())) {
		reason = q.Reason
	}
	return p.endQueued(t, q, task.Missed, reason)
}
