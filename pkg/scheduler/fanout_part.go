package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/fanout"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// partRun returns the run record of a part before its first attempt.
func (r *parentRun) partRun(index int) task.Run {
	return fanout.PartRun(r.q, index, r.plan.s.node, r.plan.now)
}

// assignNextPart assigns the first part that can start to its node, or ends it if it is lost or too late. done
// reports whether the plan changes the run by that. ok is false if the commit has no room.
func (r *parentRun) assignNextPart() (done, ok bool) {
	t, q := r.t, r.q

	// No part may start any more. They end one after another, without their stagger.
	if reason, message := r.plan.whyForbidden(t, q); reason != "" {
		return r.failPart(reason, message)
	}

	// With stagger, the next part has its turn at NotBefore.
	if at := q.NotBefore.Time; at.After(r.plan.now) {
		r.plan.s.examineAgainAt(t, at)
		return false, true
	}

	for at, index := range q.Fan.Left {
		n, gone, found := r.nodeOf(index, nil)
		switch {
		case gone:
			// The part's node has been away for too long.
			return r.losePart(at)
		case !found && q.Fan.Nodes == nil && r.tooLate():
			// Parts that may run on any node wait for one, until the start deadline.
			return r.missPart(at)
		case !found && q.Fan.Nodes == nil:
			return false, true
		case !found:
			// The part must run on its own node, which is not available. Another part may start.
			continue
		case r.plan.isStarting(t):
			// The commit starts a run of the task already (G11). The next commit continues.
			r.plan.s.placement.Release(n.Name, t.Pool())
			r.plan.examineAfterCommit(t)
			return false, true
		}

		if !r.plan.reserveRoom(t, 4+t.EntryRecords(), 3*roomForTask(t)+len(q.Fan.Nodes)*roomForPart/8+roomForCheckpoints(q.Fan)) {
			r.plan.s.placement.Release(n.Name, t.Pool())
			return false, false
		}

		// The same commit takes the part off the run's record and puts it into an inbox, so a part starts
		// at most once (G9).
		w := q.Waiting
		w.Fan = r.fanNow().Without(at)
		if q.Fan.Stagger > 0 {
			w.NotBefore = task.At(r.plan.now.Add(q.Fan.Stagger.Std()))
		}

		r.plan.attempt.Run, r.plan.attempt.Env = r.partRun(index), q.Env
		r.plan.dispatchRun(t, n, -1)
		r.plan.commit.Dispatch(&r.plan.attempt, t.Action(), n.Revision)
		r.plan.commit.GuardEntry(t.FullName(), t.Mod)
		r.rewriteQueueRecord(w)

		return true, true
	}

	return false, true
}

// losePart ends the part at index at of Fan.Left, because its node has been away for lost_after. The
// results are those of assignNextPart.
func (r *parentRun) losePart(at int) (done, ok bool) {
	t, q := r.t, r.q

	if !r.plan.reserveRoom(t, 3, roomForTask(t)+roomForRecord+roomForCheckpoints(q.Fan)) {
		return false, false
	}

	end := r.partRun(q.Fan.Left[at])
	end.State, end.Reason, end.Node = task.Lost, task.ReasonNodeGone, q.Fan.Nodes[q.Fan.Left[at]]
	w := q.Waiting
	w.Fan = r.fanNow().Without(at)
	r.endUnassigned(w, end)

	return true, true
}

// failPart ends the next part, because the run must not start any more (whyForbidden). The results are those of
// assignNextPart.
func (r *parentRun) failPart(reason, message string) (done, ok bool) {
	t, q := r.t, r.q

	if !r.plan.reserveRoom(t, 3, roomForTask(t)+roomForRecord+roomForCheckpoints(q.Fan)) {
		return false, false
	}

	end := r.partRun(q.Fan.Left[0])
	end.State, end.Reason, end.Message = task.Failed, reason, message
	w := q.Waiting
	w.Fan, w.NotBefore = r.fanNow().Without(0), task.Time{}
	r.plan.commit.GuardEntry(t.FullName(), t.Mod) // another version of the task may be allowed (G7)
	r.endUnassigned(w, end)

	return true, true
}

// endUnassigned ends a part that was never assigned. w is the run's new record, from which the part is removed.
func (r *parentRun) endUnassigned(w task.Waiting, end task.Run) {
	end.EndedAt, end.Attempt = task.At(r.plan.now), 0
	r.plan.addEffect(partEnded{task: r.t, end: &end})
	r.rewriteQueueRecord(w)
}

// tooLate reports whether the start deadline of a run's next part has passed. The deadline is as long as
// that of the run, and counts from the part's turn (G22). If it has not passed, the worker wakes up when it
// does.
func (r *parentRun) tooLate() bool {
	until := fanout.StartBefore(r.q)
	if until.IsZero() {
		return false
	}

	if r.plan.now.After(until) {
		return true
	}

	r.plan.s.examineAgainAt(r.t, until.Truncate(deadlineStep).Add(deadlineStep))

	return false
}

// missPart ends a part for which no node was available before its start deadline. With stagger, the next
// part has its turn when it would have had it if this one had started in time. The results are those of
// assignNextPart.
func (r *parentRun) missPart(at int) (done, ok bool) {
	t, q := r.t, r.q

	if !r.plan.reserveRoom(t, 3, roomForTask(t)+roomForRecord+roomForCheckpoints(q.Fan)) {
		return false, false
	}

	end := r.partRun(q.Fan.Left[at])
	end.State, end.Reason = task.Missed, task.ReasonNoNode
	w := q.Waiting
	w.Fan = r.fanNow().Without(at)
	w.NotBefore = fanout.NextTurn(q)

	r.endUnassigned(w, end)

	return true, true
}

// nodeOf chooses the node of a part and counts a slot of it. A part with its own node gets only that
// one. gone means that this node has been away for lost_after. If ok is false, no slot is counted. part is
// the part's queue record if it has had attempts, else nil.
func (r *parentRun) nodeOf(index int, part *taskstate.Waiting) (n *task.Node, gone, ok bool) {
	t, q := r.t, r.q

	// The part may run on any node.
	if index >= len(q.Fan.Nodes) {
		n, ok = r.plan.pickPart(t, index, part)
		return n, false, ok
	}

	name := q.Fan.Nodes[index]
	if n, ok = r.plan.s.placement.ReserveNamed(name, t.Want(), r.plan.now); ok {
		if r.plan.namespaceOf(t).accepts(n) {
			delete(q.Away, name)
			return n, false, true
		}

		// The namespace's selector has changed since the run began. For this part, it is as if the node were away.
		r.plan.s.placement.Release(name, t.Pool())
	}

	// The time since which the node has been away is kept even if the plan fails, because it is true in any
	// case.
	since, known := q.Away[name]
	if !known {
		if q.Away == nil {
			q.Away = map[string]time.Time{}
		}
		since = r.plan.now
		q.Away[name] = since
	}

	if until := since.Add(r.plan.cluster.EffectiveLostAfter().Std()); r.plan.now.Before(until) {
		r.plan.s.examineAgainAt(t, until)
		return nil, false, false
	}

	return nil, true, false
}

// retryPart decides a part in the queue, which waits for another attempt: it starts it, ends it, or lets it
// wait. It returns false if the commit has no room.
func (p *plan) retryPart(t *taskstate.Task, q *taskstate.Waiting) bool {
	parent, index := t.ParentOf(q.ID), 0
	if parent != nil {
		_, index, _ = task.ParentOf(q.ID)
	}

	switch {
	case parent == nil && t.KnowsParent(q.ID):
		// The record of the part's run cannot be read, so its state is unknown. The part waits.
		return true
	case parent == nil:
		// The part's run has ended. Delete the leftover record.
		if !p.reserveRoom(t, 1, roomForRecord) {
			return false
		}
		p.dequeueRun(t, q)
		return true
	case parent.Fan.Cancel != "":
		return p.endWaitingPart(t, q, parent, task.Cancelled, parent.Fan.Cancel)
	case p.isFrozen(t):
		return true
	}

	if at := t.NotBefore(q); at.After(p.now) {
		p.s.examineAgainAt(t, at)
		return true
	}

	if reason, _ := p.whyForbidden(t, q); reason != "" {
		return p.endWaitingPart(t, q, parent, task.Failed, reason)
	}

	// A commit starts at most one run of the task (G11).
	if p.isStarting(t) {
		p.examineAfterCommit(t)
		return true
	}

	r := parentRun{plan: p, t: t, q: parent}
	n, gone, ok := r.nodeOf(index, q)
	switch {
	case gone:
		return p.endWaitingPart(t, q, parent, task.Lost, task.ReasonNodeGone)
	case !ok && parent.Fan.Nodes == nil && q.Attempt <= 1 && r.tooLate():
		// The node handed the part back before it started, so its start deadline still applies.
		return p.endWaitingPart(t, q, parent, task.Missed, task.ReasonNoNode)
	case !ok:
		return true
	case !p.reserveRoom(t, 2+t.EntryRecords(), (1+t.EntryRecords())*roomForTask(t)):
		p.s.placement.Release(n.Name, t.Pool())
		return false
	}

	p.attempt.Run, p.attempt.Env = q.Run, q.Env
	p.dispatchRun(t, n, -1)
	p.commit.Dispatch(&p.attempt, t.Action(), n.Revision)
	p.commit.GuardEntry(t.FullName(), t.Mod)
	p.commit.GuardQueued(t.Ref(p.s.Shard), parent.ID, parent.Mod) // the run must not have been cancelled
	p.dequeueRun(t, q)

	return true
}

// endWaitingPart ends a part that is in the queue. It returns false if the commit has no room.
func (p *plan) endWaitingPart(t *taskstate.Task, q, parent *taskstate.Waiting, state task.State, reason string) bool {
	if !p.reserveRoom(t, 3, 2*roomForRecord) {
		return false
	}

	end := q.Run
	end.State, end.Reason, end.EndedAt, end.CancelledBy = state, reason, task.At(p.now), parent.CancelledBy
	if forbidden, message := p.whyForbidden(t, q); reason == forbidden {
		end.Message = message
		p.commit.GuardEntry(t.FullName(), t.Mod) // another version of the task may be allowed (G7)
	}

	p.dequeueRun(t, q)
	p.addEffect(partEnded{task: t, end: &end, waited: true})
	p.examineAfterCommit(t)

	return true
}
