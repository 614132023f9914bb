package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// partRun is the run that a part is, before its first attempt.
func (r *parentRun) partRun(index int) task.Run {
	q := r.q

	return task.Run{
		ID: task.PartID(q.ID, index), UID: q.UID, Namespace: q.Namespace, Task: q.Task, Shard: q.Shard, ScheduledTime: q.ScheduledTime,
		DueAt: q.DueAt, Trigger: task.TriggerPart, Owner: r.s.node, Attempt: 1, CreatedAt: task.At(r.now), PartCount: q.Fan.Count,
		StatusReport: task.StatusReport{Checkpoint: q.Fan.Checkpoints[index]}, Requests: task.Requests{CreatedBy: q.CreatedBy, EnvNames: q.EnvNames},
	}
}

// giveOut gives the first part that can go to its node; done says that the commit
// does something about the run. ok is false if there is no room.
func (r *parentRun) giveOut() (done, ok bool) {
	t, q := r.t, r.q

	if at := q.NotBefore.Time; at.After(r.now) {
		r.s.wakeAt(at)
		return false, true
	}

	for at, index := range q.Fan.Left {
		n, gone, found := r.nodeOf(index, nil)
		switch {
		case gone:
			return r.losePart(at)
		case !found && q.Fan.Nodes == nil && r.tooLate():
			return r.missPart(at)
		case !found && q.Fan.Nodes == nil:
			return false, true
		case !found:
			continue
		case r.isStarting(t):
			r.s.placement.Release(n.Name)
			r.lookAfterCommit(t)
			return false, true
		}

		if !r.reserveRoom(t, 4+t.EntryRecords(), 3*roomForTask(t)+len(q.Fan.Nodes)*roomForPart/8+roomForCheckpoints(q.Fan)) {
			r.s.placement.Release(n.Name)
			return false, false
		}

		w := q.Waiting
		w.Fan = r.fanNow().Without(at)
		if q.Fan.Stagger > 0 {
			w.NotBefore = task.At(r.now.Add(q.Fan.Stagger.Std()))
		}

		r.attempt.Run, r.attempt.Env = r.partRun(index), q.Env
		r.dispatchRun(t, n, -1)
		r.commit.Dispatch(&r.attempt, t.Action(), n.Revision)
		r.commit.GuardEntry(t.FullName(), t.Mod)
		r.rewriteQueueRecord(w)

		return true, true
	}

	return false, true
}

// losePart ends a part whose node has been away for as long as lost attempts are
// waited for.
func (r *parentRun) losePart(at int) (done, ok bool) {
	t, q := r.t, r.q

	if !r.reserveRoom(t, 3, roomForTask(t)+roomForRecord+roomForCheckpoints(q.Fan)) {
		return false, false
	}

	end := r.partRun(q.Fan.Left[at])
	end.State, end.Reason, end.Node = task.Lost, task.ReasonNodeGone, q.Fan.Nodes[q.Fan.Left[at]]
	w := q.Waiting
	w.Fan = r.fanNow().Without(at)
	r.endLeft(w, end)

	return true, true
}

// endLeft ends a part that was never given out, which the record of its run does not
// have left any more.
func (r *parentRun) endLeft(w task.Waiting, end task.Run) {
	end.EndedAt, end.Attempt = task.At(r.now), 0
	r.addEffect(partEnded{task: r.t, end: &end})
	r.rewriteQueueRecord(w)
}

// tooLate reports whether the start deadline of a run's next part has passed: it is as
// long as that of the run, and counts from the part's turn. If not, it is waited for.
func (r *parentRun) tooLate() bool {
	q := r.q

	until := q.StartBefore.Time
	if until.IsZero() {
		return false
	}

	if due := q.Due(); q.NotBefore.After(due) { // its turn, with stagger
		until = until.Add(q.NotBefore.Sub(due))
	}

	if r.now.After(until) {
		return true
	}

	r.s.wakeAt(until.Truncate(deadlineStep).Add(deadlineStep))

	return false
}

// missPart ends a part for which no node was there before its start deadline. The turn
// of the next one comes as if this one had been given out in time.
func (r *parentRun) missPart(at int) (done, ok bool) {
	t, q := r.t, r.q

	if !r.reserveRoom(t, 3, roomForTask(t)+roomForRecord+roomForCheckpoints(q.Fan)) {
		return false, false
	}

	end := r.partRun(q.Fan.Left[at])
	end.State, end.Reason = task.Missed, task.ReasonNoNode
	w := q.Waiting
	w.Fan = r.fanNow().Without(at)
	if q.Fan.Stagger > 0 {
		turn := q.DispatchedAt.Time
		if !q.NotBefore.IsZero() {
			turn = q.NotBefore.Time
		}
		w.NotBefore = task.At(turn.Add(q.Fan.Stagger.Std()))
	}

	r.endLeft(w, end)

	return true, true
}

// nodeOf picks the node for a part of a run: its own, if it has one. gone: that has
// been away for too long. part is the part's own record if it has had attempts, else nil.
func (r *parentRun) nodeOf(index int, part *taskstate.Waiting) (n *task.Node, gone, ok bool) {
	t, q := r.t, r.q

	if index >= len(q.Fan.Nodes) {
		n, ok = r.pickPart(t, index, part)
		return n, false, ok
	}

	name := q.Fan.Nodes[index]
	if n, ok = r.s.placement.ReserveNamed(name, t.Secret, r.now); ok {
		delete(q.Away, name)
		return n, false, true
	}

	since, known := q.Away[name]
	if !known {
		if q.Away == nil {
			q.Away = map[string]time.Time{}
		}
		since = r.now
		q.Away[name] = since
	}

	if until := since.Add(r.lostAfter()); r.now.Before(until) {
		r.s.wakeAt(until)
		return nil, false, false
	}

	return nil, true, false
}

// retryPart sees to a part that waits for another attempt. false: there is no room.
func (p *plan) retryPart(t *taskstate.Task, q *taskstate.Waiting) bool {
	parent, index := t.ParentOf(q.ID), 0
	if parent != nil {
		_, index, _ = task.ParentOf(q.ID)
	}

	switch {
	case parent == nil && t.KnowsParent(q.ID): // it cannot be read: nobody knows
		return true
	case parent == nil:
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
		p.s.wakeAt(at)
		return true
	}

	if p.isStarting(t) {
		p.lookAfterCommit(t)
		return true
	}

	r := parentRun{plan: p, t: t, q: parent}
	n, gone, ok := r.nodeOf(index, q)
	switch {
	case gone:
		return p.endWaitingPart(t, q, parent, task.Lost, task.ReasonNodeGone)
	case !ok && parent.Fan.Nodes == nil && q.Attempt <= 1 && r.tooLate(): // handed back unstarted
		return p.endWaitingPart(t, q, parent, task.Missed, task.ReasonNoNode)
	case !ok:
		return true
	case !p.reserveRoom(t, 2+t.EntryRecords(), (1+t.EntryRecords())*roomForTask(t)):
		p.s.placement.Release(n.Name)
		return false
	}

	p.attempt.Run, p.attempt.Env = q.Run, q.Env
	p.dispatchRun(t, n, -1)
	p.commit.Dispatch(&p.attempt, t.Action(), n.Revision)
	p.commit.GuardEntry(t.FullName(), t.Mod)
	p.commit.GuardQueued(t.Ref(p.s.Shard), parent.ID, parent.Mod) // it is not to end
	p.dequeueRun(t, q)

	return true
}

// endWaitingPart ends a part out of the queue.
func (p *plan) endWaitingPart(t *taskstate.Task, q, parent *taskstate.Waiting, state task.State, reason string) bool {
	if !p.reserveRoom(t, 2, 2*roomForRecord) {
		return false
	}

	end := q.Run
	end.State, end.Reason, end.EndedAt, end.CancelledBy = state, reason, task.At(p.now), parent.CancelledBy
	p.dequeueRun(t, q)
	p.addEffect(partEnded{task: t, end: &end, waited: true})
	p.lookAfterCommit(t)

	return true
}
