package scheduler

import (
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// enqueueRun puts the run of a tick into the queue. reason says why it waits.
func (p *plan) enqueueRun(t *state.Task, run task.Run, reason string) {
	p.endSpan(t)
	run.State, run.Reason = task.Queued, reason
	p.addEffect(runEnqueued{t, &state.Waiting{Waiting: task.Waiting{Run: run}}})

	if t.Policy.MaxRuns > 0 {
		p.countRun(t, run.ScheduledTime.UnixMilli())
	}

	p.counts.addNotRun(task.Queued, reason, 1)
}

// serveQueue examines the waiting runs of a task in the order of their ids. It dispatches those that may
// start now and ends those that must not start any more. It stops early if the commit has no room; the task
// is then examined again.
func (p *plan) serveQueue(t *state.Task) {
	if t.BeingDeleted() { // nothing is dispatched while a ttl deletion is under way
		return
	}

	now := p.now.UnixMilli()
	begun := t.DispatchedWaiting()

	// Waiting runs that were dispatched before count as active. A run counts only those that precede it,
	// otherwise two of them would wait for each other forever. Runs with parts precede the others, because
	// their parts are active; there are more of them than the limit only if the limit was lowered. parents
	// and others count the runs that precede q.
	parents, others := 0, t.Parents()
	replacer := t.Replacer(func(q *state.Waiting) bool { return q.Expired(now) })
	targetDown, _ := t.TargetDown(now)
	p.examineAfterProbe(t)

	// manualWait means that a plain manual run has to wait. All later ones wait for the same reason.
	manualWait := false

	for _, q := range t.Queue() {
		// The run belongs to no task that exists, or an attempt of it is already in an inbox. Delete its
		// record.
		if !t.Present || !t.Bad && q.UID != t.UID() || t.Holds(q.ID) {
			if !p.reserveRoom(t, 1, roomForRecord) {
				return
			}
			p.dequeueRun(t, q)
			continue
		}

		if manualWait && q.IsPlainManual() && !p.s.isRestored(q.Create) {
			continue
		}

		if t.Bad {
			// The entry cannot be read, so the action and the policies are unknown. The queue waits.
			return
		}

		if p.s.isRestored(q.Create) && !task.IsPart(q.ID) && !q.UnderWay() {
			ended, ok := p.endRestored(t, q)
			if !ok {
				return
			}
			if ended {
				continue
			}
		}

		if task.IsPart(q.ID) {
			if !p.retryPart(t, q) {
				return
			}
			continue
		}

		// The run has its parts: assign, end or cancel some of them.
		if q.UnderWay() {
			c := tickpolicy.Candidate{Manual: q.Trigger == task.TriggerManual, Begun: true}
			r := parentRun{plan: p, t: t, q: q}
			if !r.decideRun(t.Policy.Rule.DecideWaitingRun(c, replacer != nil, t.Attempts(), parents)) {
				return
			}

			parents++
			continue
		}

		// Nothing of a frozen task starts (G21), but start deadlines still expire. The task is examined
		// again when the freezes change.
		if p.isFrozen(t) {
			what := tickpolicy.TurnWait
			if q.Expired(now) {
				what = tickpolicy.TurnExpire
			}

			if !p.applyTurn(t, q, what) {
				return
			}

			continue
		}

		if p.isStarting(t) {
			// A commit starts at most one run of a task, so that fencing tokens differ (G11). The next
			// commit continues.
			p.examineAfterCommit(t)
			return
		}

		c := tickpolicy.Candidate{
			Manual: q.Trigger == task.TriggerManual, Begun: q.DispatchedBefore(), Expired: q.Expired(now), Replacer: q == replacer, Newer: replacer != nil && q.ID > replacer.ID,
			Late: q.WaitsForTurn(), TargetDown: targetDown,
		}

		// A run that was not dispatched before comes after all that were.
		ahead := begun
		if c.Begun {
			ahead = others
			others++
		}

		turn := t.Policy.Rule.DecideWaitingRun(c, replacer != nil, t.Attempts(), ahead)
		manualWait = manualWait || turn == tickpolicy.TurnWait && q.IsPlainManual()

		if !p.applyTurn(t, q, turn) {
			return
		}
	}
}

// applyTurn carries out the decision about a waiting run. It returns false if the commit has no room.
func (p *plan) applyTurn(t *state.Task, q *state.Waiting, what tickpolicy.Turn) bool {
	switch what {
	case tickpolicy.TurnExpire:
		return p.expireQueued(t, q)
	case tickpolicy.TurnReplaced:
		return p.endQueued(t, q, task.Cancelled, task.ReasonReplaced)
	}

	// The run waits or starts. Wake up when its start deadline passes, to record it as missed (G22).
	if !q.StartBefore.IsZero() && q.CountedAttempt() <= 1 {
		p.s.agenda.examineAgainAt(t, q.StartBefore.Truncate(deadlineStep).Add(deadlineStep))
	}

	// A retry waits for its backoff.
	if at := t.NotBefore(q); at.After(p.now) {
		p.s.agenda.examineAgainAt(t, at)
		return true
	}

	return what != tickpolicy.TurnStart || p.startWaiting(t, q)
}

// examineAfterProbe makes the worker examine t again when an attempt no longer counts as a sign that the target is down:
// then ticks that waited for that may start.
func (p *plan) examineAfterProbe(t *state.Task) {
	if _, until := t.TargetDown(p.now.UnixMilli()); until != 0 {
		p.s.agenda.examineAgainAt(t, state.Instant(until))
	}
}

// deadlineStep is the resolution at which the worker wakes up for start deadlines. A run that is past its
// deadline never starts, so only its record is late by up to this.
const deadlineStep = 100 * time.Millisecond

// startWaiting moves a run from the queue to an inbox. If it cannot start now, startWaiting records why in
// its queue record. A run that must not start any more ends (whyForbidden). It returns false if the
// commit has no room.
func (p *plan) startWaiting(t *state.Task, q *state.Waiting) bool {
	if reason, message := p.whyForbidden(t, q); reason != "" {
		return p.failQueued(t, q, reason, message)
	}

	if q.Paced() && !p.reserved.takeToken(t, p.settings.clock) {
		// No token. Keep the reason no_node, if that is why the run waited before.
		return q.Reason == task.ReasonNoNode || p.waitsFor(t, q, task.ReasonCatchUp)
	}
	if q.Fan != nil || t.IsWorkflow() || t.Policy.Target.FansOut() && !q.DispatchedBefore() {
		return p.startParent(t, q)
	}

	n, ok := p.pickForAttempt(t, q)
	if ok && p.reserveRoom(t, 2+t.EntryRecords(), (1+t.EntryRecords())*roomForTask(t)) {
		p.attempt.Run, p.attempt.Env = q.Run, q.Env
		p.dispatchRun(t, n, true)

		// The task must be unchanged: it may have been paused, updated or deleted (G7).
		p.commit.GuardEntry(t.FullName(), t.Mod)
		p.dequeueRun(t, q)

		return true
	}

	// The run does not start, so release what was reserved.
	if q.Paced() {
		p.reserved.returnToken()
	}

	if ok {
		p.s.ports.placement.Release(n.Name, t.PoolOf(q.ID))
		return false
	}

	return p.waitsFor(t, q, task.ReasonNoNode)
}

// waitsFor writes the reason why a run waits into its queue record. It writes nothing if the record has
// that reason already, or if the run was dispatched before: such a record keeps the reason for which the
// last attempt ended. It returns false if the commit has no room.
func (p *plan) waitsFor(t *state.Task, q *state.Waiting, reason string) bool {
	if q.Reason == reason || q.DispatchedBefore() {
		return true
	}
	// By its reason, a tick on time joins this run. With another one, it would be skipped, or replace the run.
	if t.JoinsLate() && q.WaitsForTurn() {
		return true
	}
	if !p.reserveRoom(t, 1, roomForTask(t)) {
		return false
	}

	w := q.Waiting
	w.Reason = reason
	p.addEffect(runRequeued{t, q, &w})

	return true
}

// dequeueRun deletes the queue record of a run. The commit compares its mod revision.
func (p *plan) dequeueRun(t *state.Task, q *state.Waiting) {
	p.addEffect(runDequeued{t, q})
}

// endQueued ends a waiting run that will not start. It returns false if the commit has no room.
func (p *plan) endQueued(t *state.Task, q *state.Waiting, state task.State, reason string) bool {
	records, size := 2, 2*roomForRecord
	if isWaitingRetry(q) || state == task.Lost {
		records, size = 3, size+sizeOfEnd(&q.Run, q.Env, true) // it becomes a dead run
	}
	if !p.reserveRoom(t, records, size) {
		return false
	}

	// The decision follows from the task's policy, which must be unchanged (G7).
	p.commit.GuardEntry(t.FullName(), t.Mod)
	p.finishQueued(t, q, state, reason)

	return true
}

// finishQueued deletes the queue record of a run and records its end. The caller must not change the run
// again in this plan.
func (p *plan) finishQueued(t *state.Task, q *state.Waiting, state task.State, reason string) {
	end := q.Run
	end.State, end.Reason, end.EndedAt = state, reason, task.At(p.now)
	switch {
	case reason == task.ReasonRestored:
		end.Message = p.s.fences.Gap.String()
	case state == task.Missed && q.Unsent != nil:
		end.Message = "its request was not sent: " + q.Unsent.Message
	}

	p.dequeueRun(t, q)
	p.commit.Record(t.Ref(p.s.records.Shard), end)
	switch {
	case isWaitingRetry(q):
		p.commit.PutParentDeadLetter(t.Ref(p.s.records.Shard), end, q.Env)
	case state == task.Lost:
		p.commit.PutDeadLetter(record.Held{Assigned: task.Assigned{Run: end, Env: q.Env}}, end)
	}
	p.examineAfterCommit(t) // another run may start now
}

// isWaitingRetry reports whether a run that has not begun retries a run of a workflow, whose dead run was deleted for it. Unless it begins,
// it becomes a dead run in its place, so what it keeps is not lost.
func isWaitingRetry(q *state.Waiting) bool { return q.Fan != nil && q.Fan.Flow != nil }

// dropOldest ends the n oldest waiting ticks, to make room for a new one. Ticks that are caught up stay,
// because the limit of the queue does not count them. The caller has made room in the commit.
func (p *plan) dropOldest(t *state.Task, n int) {
	for _, q := range t.Queue() {
		if n == 0 {
			return
		}

		isOnTime := q.HasTick() && q.Reason != task.ReasonCatchUp
		if isOnTime && !q.DispatchedBefore() && !t.Holds(q.ID) {
			p.finishQueued(t, q, task.Skipped, task.ReasonDropped)
			p.changeOf(t).started = true // the plan leaves the rest of the queue alone
			n--
		}
	}
}

// expireQueued ends a run that could not start before its deadline. The reason is what the run waited for
// (no node, or too few nodes), unless other runs of the task would have kept it from starting anyway.
func (p *plan) expireQueued(t *state.Task, q *state.Waiting) bool {
	reason := task.ReasonDeadline
	if (q.Reason == task.ReasonNoNode || q.Reason == task.ReasonCount) && t.Policy.Rule.Free(t.Doing(p.now.UnixMilli())) {
		reason = q.Reason
	}
	return p.endQueued(t, q, task.Missed, reason)
}

// The record of a namespace limits what its tasks may be. The API checks a task against it when the task is
// written, and puts the record's revision into the entry. The record may be tightened after that. So the owner
// checks the task again when one of its runs would start and the record has another revision by then. A run of a
// task that the record does not allow any more ends as failed, with the reason namespace, and has no further
// attempt. The node selector of the record applies whenever a run is placed.

// limitsOf returns the limits by a version of a namespace's record, which remember the results of such checks.
func (s *shardState) limitsOf(name string, n *task.Namespace) *state.NamespaceLimits {
	return s.limits.Of(name, n, func() {
		for t := range s.records.Tasks.All() {
			t.Checked = 0
		}
	})
}

// planNamespace is a namespace as a plan sees it. A plan keeps the one that it needed last, because many tasks of a
// shard are in the same namespace.
type planNamespace struct {
	s      *shardState
	name   string
	record *task.Namespace // nil: there is none
}

// namespaceOf returns the namespace of a task.
func (p *plan) namespaceOf(t *state.Task) planNamespace {
	name, _, _ := strings.Cut(t.FullName(), "/")
	if name != p.namespace.name {
		p.namespace = planNamespace{p.s, name, p.settings.namespaces.Namespace(name)}
	}

	return p.namespace
}

// outputOf returns what an attempt of a task is told about its output. The namespace may have begun to record reads of output
// after the task was written. Then the output is not mailed, because nothing records who reads a mail (G34).
func (p *plan) outputOf(t *state.Task) task.Output { return p.outputWithin(t, t.Policy.Output) }

// outputWithin is like outputOf for what a definition of a task says about output.
func (p *plan) outputWithin(t *state.Task, o task.Output) task.Output {
	if len(o.Mail) > 0 {
		if n := p.namespaceOf(t).record; n == nil || n.AuditReads {
			o.Mail, o.MailWhen, o.MailFrom = nil, "", ""
		}
	}

	return o
}

// allows reports whether the namespace's record allows a task as it is. Without a record nothing may run.
func (n planNamespace) allows(t *state.Task) bool {
	if n.record == nil {
		return false
	}

	// The API has checked the task against this version.
	asWritten := n.record.Revision == t.Policy.NamespaceRev
	if asWritten && n.record.Nodes == "" {
		return true
	}

	l := n.s.limitsOf(n.name, n.record)

	return !l.Broken() && (asWritten || l.Allows(t))
}

// refusal returns why the namespace's record does not allow a task, for people.
func (n planNamespace) refusal(t *state.Task) string {
	if n.record == nil {
		return "there is no namespace " + n.name + " any more"
	}

	l := n.s.limitsOf(n.name, n.record)
	if l.Broken() {
		return "the node selector of namespace " + n.name + " cannot be read"
	}

	return "namespace " + n.name + " no longer allows " + l.Refusal(t)
}

// isFrozen reports whether nothing in the task's namespace may start (G21).
func (p *plan) isFrozen(t *state.Task) bool {
	if p.settings.freezes == nil || len(p.settings.freezes.Holding) == 0 {
		return false
	}
	namespace, _, _ := strings.Cut(t.FullName(), "/")
	return p.settings.freezes.Of(namespace) != nil
}

// A task says what a manual run may give in addition to it (task.Accept). The API checks this when the run is requested.
// The task may have changed by the time the run starts, also into one for which other arguments would be dangerous. So
// the owner checks it again before each attempt.

// whyForbidden returns why a waiting run must not start: the reason, and a message for people. The reason is "" if
// the run may start.
func (p *plan) whyForbidden(t *state.Task, q *state.Waiting) (reason, message string) {
	if n := p.namespaceOf(t); !n.allows(t) {
		return task.ReasonNamespace, n.refusal(t)
	}
	if err := t.Policy.Accept.Check(q.Input()); err != nil {
		return task.ReasonAccept, notAccepted(err).message
	}

	// The parts of a run that has no steps cannot become those of a workflow.
	if t.IsWorkflow() && (q.Fan != nil && q.Fan.Flow == nil || task.IsPart(q.ID)) {
		return task.ReasonAccept, "its task has become a workflow after the run began"
	}

	return "", ""
}

// failTick ends the run of a tick whose task the namespace does not allow, without starting it. It does not count
// for max_runs. The caller has made room for a history record and a dead letter.
func (p *plan) failTick(t *state.Task, tick int64, id, trigger string) {
	p.endSpan(t)
	run := p.newRun(t, tick, id, trigger)
	run.Attempt = 0
	p.failRun(t, run, nil, task.ReasonNamespace, p.namespaceOf(t).refusal(t))
	p.counts.run++
}

// failQueued ends a waiting run that must not start, because of whyForbidden. It returns false if the commit has no
// room.
func (p *plan) failQueued(t *state.Task, q *state.Waiting, reason, message string) bool {
	size := 3 * roomForTask(t)
	if q.Fan != nil {
		size += 2 * roomForCheckpoints(q.Fan)
	}

	if !p.reserveRoom(t, 3, size) {
		return false
	}

	p.commit.GuardEntry(t.FullName(), t.Mod) // another version of the task may be allowed (G7)
	p.dequeueRun(t, q)
	p.failRun(t, q.Run, q.Env, reason, message)
	p.examineAfterCommit(t)

	return true
}

// failRun records the end of a run that must not start. The run is also a dead run: somebody may start it again when it
// is allowed.
func (p *plan) failRun(t *state.Task, end task.Run, env map[string]string, reason, message string) {
	end.State, end.Reason, end.Message, end.EndedAt = task.Failed, reason, message, task.At(p.now)
	p.commit.Record(t.Ref(p.s.records.Shard), end)
	p.commit.PutDeadLetter(record.Held{Assigned: task.Assigned{Run: end, Env: env}}, end)
	if reason == task.ReasonBadRecord {
		p.addEffect(badPlanForgotten{t})
	}
}
