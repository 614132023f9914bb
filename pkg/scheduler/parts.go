package scheduler

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A run with parts has a queue record from when it begins until all of its parts have ended. The record lists
// the parts that are left to assign. Every other part has exactly one of these records:
//
//   - an inbox record, while a node has it,
//   - a queue record, while it waits for another attempt,
//   - a record under parts/, when it has ended and its run has not.
//
// When the run moves to history, its record contains how each part ended, and the records under parts/ are
// deleted. See "Fan out" in docs/architecture.md.

// roomForPart is a generous estimate of the size in bytes of one part in the records of its run.
const roomForPart = 512

// roomForFan is by how many bytes the record of a run with parts may exceed another's, before it is known
// for how many nodes it is.
const roomForFan = 64 << 10

// roomForCheckpoints returns the size in bytes of the checkpoints with which a run's parts begin.
func roomForCheckpoints(f *task.Fan) int {
	if len(f.Checkpoints) == 0 {
		return 0
	}
	return task.MaxPartCheckpoints
}

// tellEvery is the minimum time between two writes of a run's record that only update how many of its parts
// have ended.
const tellEvery = time.Second

// planFanOut returns the parts that a run of t has if it begins now, or the reason why it must wait. The
// nodes of parts with their own node are chosen here, once. It counts no slots.
func (p *plan) planFanOut(t *state.Task) (*task.Fan, string) {
	f, reason := state.NewFan(t.Policy.Target, p.s.ports.placement.Rank(p.wantOf(t), p.now))
	if reason != "" {
		p.examineWhenNodesMayAppear(t)
	}

	return f, reason
}

// beginFanOut returns the record of a run that has its parts from now on. No part is assigned to a node by
// that.
func (p *plan) beginFanOut(run task.Run, f *task.Fan) task.Run {
	run.State, run.Reason, run.Fan, run.NotBefore = task.Running, "", f, task.Time{}
	if run.Owner == "" {
		run.Owner = p.s.ports.node
	}

	run.DispatchedAt = task.At(p.now)
	return run
}

// fanOut makes a tick a run with parts. Its record is put into the queue, where it stays until all parts
// have ended.
func (p *plan) fanOut(t *state.Task, run task.Run, f *task.Fan) {
	p.endSpan(t)
	if f.Flow != nil {
		p.putRunData(t, run.ID)
	}

	// The run counts as active from the next plan on, so the queue must wait for that (G8).
	p.changeOf(t).started = true
	p.addEffect(runEnqueued{t, &state.Waiting{Waiting: task.Waiting{Run: p.beginFanOut(run, f)}}})
	p.examineAfterCommit(t)

	if !run.HasTick() {
		return
	}

	if t.Policy.MaxRuns > 0 {
		p.countRun(t, run.ScheduledTime.UnixMilli())
	}

	p.counts.run++
}

// startParent gives a run that has waited its parts. If it cannot start now, startParent records why. It
// returns false if the commit has no room. A run that repeats failed parts has its fan already (q.Fan).
func (p *plan) startParent(t *state.Task, q *state.Waiting) bool {
	// A run that repeats the failed parts of another has its fan from the API.
	f, reason := q.Fan, ""
	var err error
	begins := f == nil
	switch {
	case begins && t.IsWorkflow():
		f, reason, err = p.beginFlow(t)
	case begins:
		f, reason = p.planFanOut(t)
	case f.Flow != nil:
		reason, err = p.retryFlow(t, q)
	}

	if reason != "" || err != nil {
		if q.Paced() {
			p.reserved.returnToken()
		}
		if failed := (*flowError)(nil); errors.As(err, &failed) {
			return p.failQueued(t, q, failed.reason, failed.message)
		}

		// A plan is read before the next decision, so nobody needs to know that the run waits for it.
		return reason == task.ReasonPlan || p.waitsFor(t, q, reason)
	}

	records, size := p.roomToBegin(t)
	if !p.reserveRoom(t, 2+records, roomForTask(t)+roomForCheckpoints(f)+size) {
		if q.Paced() {
			p.reserved.returnToken()
		}
		return false
	}

	p.commit.GuardEntry(t.FullName(), t.Mod)
	if begins && f.Flow != nil {
		p.putRunData(t, q.ID) // a retry has its data from the API
	}
	w := q.Waiting
	w.Run = p.beginFanOut(w.Run, f)
	r := parentRun{plan: p, t: t, q: q}
	r.rewriteQueueRecord(w)

	// The first part is assigned in the next commit, which knows the new record.
	p.changeOf(t).started = true

	return true
}

// parentRun is what a plan decides about one run with parts: which part is assigned to a node, missed or
// lost, and when the run itself ends.
type parentRun struct {
	plan *plan
	t    *state.Task
	q    *state.Waiting // the run's queue record, which contains the parts that are left to assign

	// ended is how many parts have ended, and succeeded how many of these succeeded. decideRun sets them.
	ended, succeeded int
}

// decideRun ends the run if all of its parts have ended, cancels it if it is replaced, and otherwise
// assigns the next part if it may. It assigns at most one part in a plan. It returns false if the commit
// has no room.
func (r *parentRun) decideRun(what tickpolicy.Turn) bool {
	if r.q.Fan.Flow != nil {
		return r.decideFlow(what)
	}

	f := r.q.Fan
	r.ended, r.succeeded = r.t.CountEnded(r.q)

	// active counts the parts that are in an inbox or wait for another attempt.
	active := f.Count - f.Kept - len(f.Left) - r.ended
	ending := f.Cancel != ""

	switch {
	case active == 0 && (ending || len(f.Left) == 0):
		return r.endRun()
	case !ending && r.plan.s.isRestored(r.q.Create):
		return r.cancelRun(task.ReasonRestored)
	case !ending && what == tickpolicy.TurnReplaced:
		return r.cancelRun(task.ReasonReplaced)
	case !ending && what == tickpolicy.TurnStart && len(f.Left) > 0 && !r.plan.isFrozen(r.t):
		// Nothing starts while the task is frozen (G21).
		if done, ok := r.assignNextPart(); done || !ok {
			return ok
		}
	}

	// No part was assigned. Check whether the record of a part has disappeared, and update the counts.
	if active > 0 && !r.loseMissingParts() {
		return false
	}

	return r.writeCounts()
}

// rewriteQueueRecord replaces the run's queue record. The commit compares its mod revision.
func (r *parentRun) rewriteQueueRecord(w task.Waiting) {
	r.plan.addEffect(runRequeued{r.t, r.q, &w})
	r.plan.examineAfterCommit(r.t)
}

// fanNow returns a copy of the run's fan with the current counts.
func (r *parentRun) fanNow() *task.Fan {
	f := *r.q.Fan
	f.Ended, f.Succeeded = r.ended, r.succeeded
	return &f
}

// writeCounts writes how many parts have ended, if that has changed, but at most once in tellEvery. It
// returns false if the commit has no room.
func (r *parentRun) writeCounts() bool {
	q := r.q
	if q.Fan.Ended == r.ended && q.Fan.Succeeded == r.succeeded {
		return true
	}

	// A ToldAt far in the future means that the clock was set back. Write in that case.
	if at := q.Parts.ToldAt.Add(tellEvery); r.plan.now.Before(at) && q.Parts.ToldAt.Sub(r.plan.now) < tellEvery {
		r.plan.s.agenda.examineAgainAt(r.t, at)
		return true
	}

	if !r.plan.reserveRoom(r.t, 1, roomForTask(r.t)+roomForCheckpoints(q.Fan)) {
		return false
	}

	w := q.Waiting
	w.Fan = r.fanNow()
	r.rewriteQueueRecord(w)

	return true
}

// cancelRun ends the run for a reason. Its record contains the reason from now on, so no part starts any
// more, and the next plans cancel the active ones. It returns false if the commit has no room.
func (r *parentRun) cancelRun(reason string) bool {
	if !r.plan.reserveRoom(r.t, 2, roomForTask(r.t)+roomForCheckpoints(r.q.Fan)) {
		return false
	}

	// The task's policy must still be the one that requires this (G7).
	r.plan.commit.GuardEntry(r.t.FullName(), r.t.Mod)
	w, f := r.q.Waiting, *r.q.Fan
	f.Cancel, w.Fan = reason, &f

	// Without its plan, no cleanup can run. Cleanup of a run of the backup may have run before.
	if f.Flow != nil && (reason == task.ReasonBadRecord || r.plan.s.isRestored(r.q.Create)) {
		w.Fan = state.CopyFlow(f)
		w.Fan.Flow.Forced = true
	}

	r.rewriteQueueRecord(w)

	return true
}

// endRun moves a run whose parts have all ended to history. If it failed, it also becomes a dead run. It
// returns false if the commit has no room.
func (r *parentRun) endRun() bool {
	t, q := r.t, r.q

	size := len(q.Message) + q.Fan.Count*roomForPart + state.RoomForPartDetails + task.MaxPartCheckpoints + 4*roomForRecord
	if !r.plan.reserveRoom(t, 3, min(size, roomForParent)) {
		return false
	}

	end := state.ConcludeParts(t, q, r.plan.now)
	if end.State == task.Lost {
		end.Message = r.plan.s.fences.Gap.String()
	}
	ref := t.Ref(r.plan.s.records.Shard)
	r.plan.dequeueRun(t, q)
	r.plan.commit.Record(ref, end)

	if end.State == task.Failed || end.State == task.Lost {
		r.plan.commit.PutParentDeadLetter(ref, end, q.Env)
	}

	// Another run may start now, and the records of the parts can be deleted.
	r.plan.examineAfterCommit(t)

	return true
}

// roomForParent is the largest size in bytes of the two records of a run with MaxParts parts.
const roomForParent = 640<<10 + state.RoomForPartDetails + task.MaxPartCheckpoints

// loseMissingParts ends the parts of a run that have no record anywhere: they are not left, not in an
// inbox, not in the queue, and have not ended. That happens only if somebody deleted the record. Such a
// part is lost when it has been missing for lost_after; until then, its record may only be unknown to this
// worker. It returns false if the commit has no room.
func (r *parentRun) loseMissingParts() bool {
	t, q := r.t, r.q

	nowhere := state.MissingParts(t, q)
	if len(nowhere) == 0 {
		q.Parts.Missing = time.Time{}
		return true
	}

	// A time in the future means that the clock was set back.
	if q.Parts.Missing.IsZero() || r.plan.now.Before(q.Parts.Missing) {
		q.Parts.Missing = r.plan.now
	}

	// The watch may be late, or may have lost an event. With the defaults, the reconciliation finds that
	// before lost_after has passed. In any case, the commit requires that there is no record of the part's
	// end.
	if until := q.Parts.Missing.Add(r.plan.settings.cluster.EffectiveLostAfter().Std()); r.plan.now.Before(until) {
		r.plan.s.agenda.examineAgainAt(t, until)
		return true
	}

	return r.endWithoutRecords(nowhere)
}

// endWithoutRecords ends parts that have no record. The commit requires that no record of their end exists.
func (r *parentRun) endWithoutRecords(nowhere map[int]bool) bool {
	t := r.t

	for _, i := range slices.Sorted(maps.Keys(nowhere)) {
		if !r.plan.reserveRoom(t, 3, roomForTask(t)) {
			return false
		}

		end := r.partRun(i)
		end.State, end.Reason, end.EndedAt, end.Message = task.Lost, task.ReasonBadEntry, task.At(r.plan.now), "its record no longer exists"
		r.plan.addEffect(partEnded{task: t, end: &end})
		r.plan.addEffect(noticeGiven{notice{kind: partNowhere, task: t.FullName(), run: end.ID}})
	}

	return true
}

// applyPart applies the record of a part that has ended. It exists until the run is in history, or until
// the task is gone.
func (s *shardState) applyPart(ev *store.ShardEvent) {
	t := s.records.TaskOf(ev)

	if ev.Deleted {
		delete(s.purges, ev.Key)

		if t.Activity != nil {
			delete(t.Activity.Returned, ev.Run)
		}

		// The next tick or the ttl may wait until nothing of the run is left.
		if t.DependsOnPast() {
			s.agenda.examineNext(t)
		}

		s.dropTask(t)

		return
	}

	s.applyAttemptEnd(t, ev.Run, ev.Mod)
	end, err := record.DecodeEnded(ev.ShardKey, ev.Value)
	if err == nil && !end.State.Final() {
		err = errors.New("it has no final state")
	}
	if err != nil {
		// A record that cannot be read counts as a failure, so that the run can end (G19).
		end = task.Run{ID: ev.Run, State: task.Failed, Reason: task.ReasonBadEntry}
		s.addNotice(notice{kind: partUnreadable, task: t.FullName(), run: ev.Run, err: err})
	}

	// Other steps may need all results of a step, which are not part of what the record of its run keeps.
	var results map[string]string
	if end.Step != "" && end.Item == nil {
		results = end.Results
	}

	s.notePartEnded(t, ev.Run, end.AsPart(), results, ev.Mod)
}

// notePartEnded notes that a part has ended. mod is the revision of its record. results has the results of a step without map.
func (s *shardState) notePartEnded(t *state.Task, id string, p task.Part, results map[string]string, mod int64) {
	parent, _, ok := task.ParentOf(id)
	if !ok {
		return
	}

	l := s.ensureActivity(t)
	if l.Returned == nil {
		l.Returned = map[string]state.Returned{}
	}

	l.Returned[id] = state.Returned{Part: p, Parent: parent, Mod: mod, Results: results}
	s.agenda.examineNext(t)
}

// forgetParts requests the deletion of the records of parts whose run has ended. Each is requested once:
// the parts stay known until the watch has reported the deletion.
func (p *plan) forgetParts(t *state.Task) {
	if t.Activity == nil || len(t.Activity.Returned) == 0 {
		return
	}

	ref := t.Ref(p.s.records.Shard)

	for id, r := range t.Activity.Returned {
		key := p.s.records.Keys.Ended(ref, id)
		if _, purged := p.s.gone[key]; !purged && !t.KnowsParent(id) {
			p.s.purges[key] = r.Mod
		}
	}
}

// partRun returns the run record of a part before its first attempt.
func (r *parentRun) partRun(index int) task.Run {
	if r.q.Fan.Flow != nil {
		return state.StepRun(r.q, r.q.Fan, index, r.plan.s.ports.node, r.plan.now)
	}
	return state.PartRun(r.q, index, r.plan.s.ports.node, r.plan.now)
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
		r.plan.s.agenda.examineAgainAt(t, at)
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
			r.plan.s.ports.placement.Release(n.Name, r.poolOf(index))
			r.plan.examineAfterCommit(t)
			return false, true
		}

		if !r.plan.reserveRoom(t, 4+t.EntryRecords(), 3*roomForTask(t)+len(q.Fan.Nodes)*roomForPart/8+roomForCheckpoints(q.Fan)) {
			r.plan.s.ports.placement.Release(n.Name, r.poolOf(index))
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
		r.plan.dispatchRun(t, n, true)
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
	until := state.PartStartBefore(r.q)
	if until.IsZero() {
		return false
	}

	if r.plan.now.After(until) {
		return true
	}

	r.plan.s.agenda.examineAgainAt(r.t, until.Truncate(deadlineStep).Add(deadlineStep))

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
	w.NotBefore = state.NextPartTurn(q)

	r.endUnassigned(w, end)

	return true, true
}

// poolOf returns whose slots a part takes.
func (r *parentRun) poolOf(index int) placement.Pool {
	return r.t.PoolOf(task.PartID(r.q.ID, index))
}

// nodeOf chooses the node of a part and counts a slot of it. A part with its own node gets only that
// one. gone means that this node has been away for lost_after. If ok is false, no slot is counted. part is
// the part's queue record if it has had attempts, else nil.
func (r *parentRun) nodeOf(index int, part *state.Waiting) (n *task.Node, gone, ok bool) {
	t, q := r.t, r.q

	// The part may run on any node.
	if index >= len(q.Fan.Nodes) {
		n, ok = r.plan.pickPart(t, task.PartID(q.ID, index), part)
		return n, false, ok
	}

	name := q.Fan.Nodes[index]
	if n, ok = r.plan.s.ports.placement.ReserveNamed(name, t.WantOf(task.PartID(q.ID, index)), r.plan.now); ok {
		if r.plan.namespaceOf(t).accepts(n) {
			delete(q.Parts.Away, name)
			return n, false, true
		}

		// The namespace's selector has changed since the run began. For this part, it is as if the node were away.
		r.plan.s.ports.placement.Release(name, r.poolOf(index))
	}

	// The time since which the node has been away is kept even if the plan fails, because it is true in any
	// case.
	since, known := q.Parts.Away[name]
	if !known {
		if q.Parts.Away == nil {
			q.Parts.Away = map[string]time.Time{}
		}
		since = r.plan.now
		q.Parts.Away[name] = since
	}

	if until := since.Add(r.plan.settings.cluster.EffectiveLostAfter().Std()); r.plan.now.Before(until) {
		r.plan.s.agenda.examineAgainAt(t, until)
		return nil, false, false
	}

	return nil, true, false
}

// retryPart decides a part in the queue, which waits for another attempt: it starts it, ends it, or lets it
// wait. It returns false if the commit has no room.
func (p *plan) retryPart(t *state.Task, q *state.Waiting) bool {
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
	case p.s.isRestored(parent.Create):
		return p.endWaitingPart(t, q, parent, task.Lost, task.ReasonRestored, "")
	case parent.Fan.CutsPart(index) != "":
		return p.endWaitingPart(t, q, parent, task.Cancelled, parent.Fan.CutsPart(index), "")
	case p.isFrozen(t):
		return true
	case parent.Fan.Flow != nil:
		return p.retryStep(t, q, parent, index)
	}

	if at := t.NotBefore(q); at.After(p.now) {
		p.s.agenda.examineAgainAt(t, at)
		return true
	}

	if reason, message := p.whyForbidden(t, q); reason != "" {
		return p.endWaitingPart(t, q, parent, task.Failed, reason, message)
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
		return p.endWaitingPart(t, q, parent, task.Lost, task.ReasonNodeGone, "")
	case !ok && parent.Fan.Nodes == nil && q.Attempt <= 1 && r.tooLate():
		// The node handed the part back before it started, so its start deadline still applies.
		return p.endWaitingPart(t, q, parent, task.Missed, task.ReasonNoNode, "")
	case !ok:
		return true
	case !p.reserveRoom(t, 2+t.EntryRecords(), (1+t.EntryRecords())*roomForTask(t)):
		p.s.ports.placement.Release(n.Name, r.poolOf(index))
		return false
	}

	p.attempt.Run, p.attempt.Env = q.Run, q.Env
	p.dispatchRun(t, n, true)
	p.commit.GuardEntry(t.FullName(), t.Mod)
	p.commit.GuardQueued(t.Ref(p.s.records.Shard), parent.ID, parent.Mod) // the run must not have been cancelled
	p.dequeueRun(t, q)

	return true
}

// endWaitingPart ends a part that is in the queue. It returns false if the commit has no room.
func (p *plan) endWaitingPart(t *state.Task, q, parent *state.Waiting, state task.State, reason, message string) bool {
	if !p.reserveRoom(t, 3, 2*roomForRecord) {
		return false
	}

	end := q.Run
	end.State, end.Reason, end.EndedAt, end.CancelledBy = state, reason, task.At(p.now), parent.CancelledBy
	if state == task.Failed {
		end.Message = message
		p.commit.GuardEntry(t.FullName(), t.Mod) // another version of the task may be allowed (G7)
	}

	p.dequeueRun(t, q)
	p.addEffect(partEnded{task: t, end: &end, waited: true})
	p.examineAfterCommit(t)

	return true
}
