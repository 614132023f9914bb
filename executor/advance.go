package executor

import (
	"time"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

// advanceAttempts decides about attempts and executes the decisions: about all attempts if all is
// set, otherwise about those that are dirty. It returns when no attempt is dirty and
// nothing more can start. It never waits: a step that finds its queue full is postponed. The
// loop ends because each step either changes what the next decision is, or marks the attempt
// as busy, or puts it into a backlog.
func (e *Executor) advanceAttempts(all bool) {
	// One view for the whole pass: all attempts are decided at the same time and under the same session.
	v := view{now: time.Now(), boot: e.clocks.boot(), session: e.session.id, fenced: e.session.fenced, draining: e.draining, stopping: e.stopping}

	if all {
		if e.session.id > 0 {
			// Before the decisions, because they depend on when the sessions were last renewed.
			e.renewSessions()
		}

		for i := len(e.all) - 1; i >= 0; i-- { // backward: forget moves the last attempt into the freed place
			e.decideAttempt(e.all[i], v)
		}

		e.askCleared(v)
		e.dropLateCancels()
	}

	for again := true; again; {
		for i := 0; i < len(e.dirty); i++ { // decideAttempt may append to it
			e.dirty[i].isDirty = false
			e.decideAttempt(e.dirty[i], v)
		}

		clear(e.dirty)
		e.dirty = e.dirty[:0]
		// The writers may have made room for attempts that found their queue full.
		for a := e.toRecord.nextFromBacklog(); a != nil; a = e.toRecord.nextFromBacklog() {
			e.decideAttempt(a, v)
		}

		for a := e.toWrite.nextFromBacklog(); a != nil; a = e.toWrite.nextFromBacklog() {
			e.decideAttempt(a, v)
		}

		again = e.startReady(v) || len(e.dirty) > 0
	}

	e.publishCounts()
}

// publishCounts updates the values that other goroutines and the metrics read, and ends waiting
// calls of Drain when nothing of this instance is left. After a join it waits for the first
// list of the inbox, because before that the inbox may hold more.
func (e *Executor) publishCounts() {
	running := e.countPhase(phaseRunning)
	e.running.Store(int64(running))
	e.runningHTTP.Store(int64(e.targets.used))
	e.free.Store(int64(max(0, e.cfg.Slots-e.inUse-e.claims)))
	e.metrics.waiting.Set(float64(e.countPhase(phaseWaiting)))
	e.metrics.paused.Set(float64(e.paused))
	e.metrics.unrecorded.Set(float64(e.countPhase(phaseEnded)))
	for s, n := range e.targets.states {
		e.metrics.targets[s].Set(float64(n))
	}

	e.obeyFreezes()

	if len(e.drainers) > 0 && e.settledAll() && (e.listed || e.session.id == 0) {
		for _, c := range e.drainers {
			close(c)
		}
		e.drainers = nil
	}
}

// decideAttempt decides about one attempt and executes the decision. It ignores an attempt that was
// forgotten.
func (e *Executor) decideAttempt(a *attempt, v view) {
	if a.place < 0 {
		return
	}

	v.overdue = e.isOverdue(a, v.boot)
	if a.foreign {
		// Any of three facts is enough: cleared/<instance> was read, lost_after has passed since the first join
		// (the instance was gone by then, because this one could not have joined otherwise), or the daemon has
		// proof of its own, such as the lock of the data directory.
		v.dead = e.dead[a.Instance] || v.boot > e.firstJoin+a.EffectiveLostAfter().Std() || e.cfg.Dead(a.Instance)
	}

	v.behind, v.frozen = e.leaving[a.key] > 0, e.isFrozen(a)
	step := nextStep(a, v)
	if step != doReady {
		e.leaveTargetQueue(a)
	}

	switch step {
	case doForget:
		e.removeAttempt(a)
	case doAdopt, doMark:
		e.rewriteRecord(a)
	case doReady:
		e.queueReady(a, v)
	case doCancel:
		a.setResult(e.cfg.Node, process.Result{State: task.Cancelled, Reason: a.cancelReason(), EndedAt: v.now})
		e.attemptEnded(a)
	case doMiss:
		a.setResult(e.cfg.Node, process.Result{State: task.Missed, Reason: task.ReasonDeadline, EndedAt: v.now,
			Message: "it was in the inbox of " + e.cfg.Node + " and had not started"})
		e.attemptEnded(a)
	case doLose:
		a.end = &ending{attempt: a, run: a.endOfLost(v.now, e.session.Gap)}
		e.attemptEnded(a)
	case doHandBack:
		e.handBack(a)
	case doKill:
		k := killFor(a, v)

		// A repeated kill only shortens the grace period. The cause remains the first one, and the metric counts
		// each attempt once.
		if a.killed.Cause == process.CauseNone {
			a.killed = k
			e.metrics.kills.WithLabelValues(k.Cause.String()).Inc()
		}

		a.killed.Grace = k.Grace
		a.orders.Kill(k)
	case doTurn:
		// A new order starts without the error of the previous one.
		a.pauseSent, a.Err = a.PauseRequested, nil
		a.orders.SetPaused(a.pauseSent)
		e.markDirty(a)
	case doRecord:
		e.recordEnd(a)
	}
}

// startReady starts attempts that are ready, oldest first, until the slots are used up or
// MaxUnfinished results are unrecorded. It reports whether it started anything. It starts
// nothing while the session may have expired, because others may then take the node for
// gone and a freeze no longer waits for it (G21). Each kind of action has its own slots.
func (e *Executor) startReady(v view) (started bool) {
	if e.session.id == 0 || !e.session.keyExists(v.boot) {
		return false // the next check tries again
	}

	for e.mayHaveMoreEnds() && len(e.slotless) > 0 {
		started = e.startReadyAttempt(e.slotless.takeFirst(), v) || started
	}

	for e.mayHaveMoreEnds() && len(e.processes) > 0 && e.inUse < e.cfg.Slots {
		started = e.startReadyAttempt(e.processes.takeFirst(), v) || started
	}

	for e.mayHaveMoreEnds() {
		next := e.targets.Next()
		if next == nil {
			break
		}

		if e.startReadyAttempt(next.attempt, v) {
			started = true
		} else {
			e.targets.End(next, targetUnknown)
		}
	}

	return started
}

// mayHaveMoreEnds reports whether fewer than MaxUnfinished results are unrecorded.
func (e *Executor) mayHaveMoreEnds() bool { return e.countPhase(phaseEnded) < e.cfg.MaxUnfinished }

// queueReady adds an attempt that is ready to those that wait for a slot.
func (e *Executor) queueReady(a *attempt, v view) {
	switch {
	case e.runners[a.kind] == nil:
		e.slotless.addAttempt(a) // it is a no-op, or fails
	case a.kind == task.KindHTTP:
		e.awaitTarget(a, v)
	default:
		e.processes.addAttempt(a)
	}
}

// startReadyAttempt starts an attempt from the ready heap and reports whether it did. It decides again
// first: the attempt may have been cancelled, frozen or forgotten since it became ready.
func (e *Executor) startReadyAttempt(a *attempt, v view) bool {
	if a.place < 0 {
		return false
	}

	v.overdue = e.isOverdue(a, v.boot)
	v.behind, v.frozen = e.leaving[a.key] > 0, e.isFrozen(a)
	if nextStep(a, v) != doReady {
		e.markDirty(a) // decideAttempt has to act on what has changed since
		return false
	}

	switch {
	case e.runners[a.kind] != nil:
		e.startAttempt(a)
	case a.kind == task.KindNoop:
		a.setResult(e.cfg.Node, process.Result{State: task.Succeeded, StartedAt: v.now, EndedAt: v.now})
		e.observeLateness(a, v.now)
		e.attemptEnded(a)
	default:
		a.setResult(e.cfg.Node, process.Result{State: task.Failed, Reason: task.ReasonStart, EndedAt: v.now,
			Message: "the version of this node does not support the action"})
		e.attemptEnded(a)
	}

	return true
}

// attemptEnded moves an attempt whose end is known to phaseEnded. In that phase, the end is recorded.
func (e *Executor) attemptEnded(a *attempt) {
	e.metrics.countEnd(a.kind, a.end.run.State)
	e.setPhase(a, phaseEnded)
}

// observeLateness observes the start lateness of a tick's first attempt. Catch-up runs and parts do
// not count.
func (e *Executor) observeLateness(a *attempt, started time.Time) {
	if max(a.Attempt, 1) == 1 && a.Trigger != task.TriggerCatchUp && a.Trigger != task.TriggerPart {
		e.metrics.lateness.Observe(started.Sub(a.dueAt()).Seconds())
	}
}
