package executor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/outputmail"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// clearedReadInterval is the minimum time between two reads of the same cleared/<instance>. It is short, because
	// the runs of a dead instance wait for this record, and long enough that the reads do not burden etcd.
	clearedReadInterval = 2 * time.Second
	// returnAfter is how long the node keeps an attempt that it cannot start before it
	// hands it back. By then the node has announced that it takes no runs, so the attempt
	// is not dispatched to it again.
	returnAfter = 3 * time.Second
)

// startAttempt starts an attempt that is not a no-op, on its own goroutine. The
// callbacks do not touch the state: they leave messages for the loop. The attempt is in phaseRunning
// before the goroutine exists, so the slot is taken at once.
func (e *Executor) startAttempt(a *attempt) {
	j := e.session
	a.orders = process.NewOrders()
	a.killed, a.startedAt, a.reported = process.Kill{}, time.Time{}, reportedCheckpoint{}
	a.pauseSent, a.PauseState = false, process.PauseState{}
	e.setPhase(a, phaseRunning)
	o, held := a.orders, a.Held
	// held is the record at the time of the decision. Records are replaced and never modified, so the attempt's
	// goroutines can read it.
	spec := process.Attempt{
		Assigned: held.Assigned, Token: held.Create, Session: j.id, MaxSilence: mostSilenceOfGuardian(held.EffectiveLostAfter().Std()),
		// Preparing a process takes time, and the loop's decision may be outdated when it is
		// ready. MayStart checks again that the session and the start deadline still allow it.
		MayStart: func() error {
			if !j.mayStart(held, e.clocks.boot()) || tooLate(held, time.Now()) {
				return process.ErrTooLate
			}
			return nil
		},
		OnStarted:    func(at time.Time) { e.callInLoop(func() { e.attemptStarted(a, j, at) }) },
		OnCheckpoint: func(checkpoint string) { e.callInLoop(func() { a.reported.checkpoint = &checkpoint; e.markDirty(a) }) },
		OnPause:      func(s process.PauseState) { e.callInLoop(func() { e.pauseReported(a, o, s) }) },
	}

	run := e.runners[a.kind].RunAttempt
	if a.kind == task.KindHTTP {
		run = e.prepareRemote(a, j, &spec)
	}

	e.attempts.Go(func() {
		r := run(spec, o)
		e.callInLoop(func() { e.runEnded(a, r) })
	})
}

// attemptStarted notes that an attempt has a process, or sends its request. If the node rejoined while the process was
// being started, the guardian did not know the attempt yet and is given its session now.
func (e *Executor) attemptStarted(a *attempt, j *joinedSession, at time.Time) {
	a.startedAt = at
	e.observeLateness(a, at)

	switch {
	case a.kind == task.KindHTTP:
		e.targets.Sent(a.target)
	case a.session != j.id:
		e.cfg.Guardian.SetSession(a.processMark(), a.session)
	}
}

// runEnded notes that nothing of an attempt runs any more: no process, no request. An attempt that did not start
// returns to phaseWaiting.
func (e *Executor) runEnded(a *attempt, r process.Result) {
	if a.kind == task.KindHTTP {
		e.remoteEnded(a, r)
	}

	if a.recordGone {
		if e.leaving[a.key]--; e.leaving[a.key] <= 0 {
			delete(e.leaving, a.key)
		}
	}

	if r.NotStarted { // the token is unused: the attempt may still be started, cancelled or handed back
		a.orders, a.killed = nil, process.Kill{}
		if a.mustHandBack = r.HandBack; a.mustHandBack {
			e.log.Warn("returned an attempt to its owner", zap.String("task", a.Namespace+"/"+a.Task), zap.String("run", a.ID), zap.String("reason", r.Message))
			a.failedAt, a.notBefore = a.Mod, time.Now().Add(returnAfter)
		}

		e.setPhase(a, phaseWaiting)

		return
	}

	// A SIGKILL that the daemon did not send, while the attempt is overdue, came from the
	// guardian. The result is then that of a silent node, not of a signal.
	if r.Signal == "SIGKILL" && r.Reason == task.ReasonSignal && e.isOverdue(a, e.clocks.boot()) {
		r.SetCause(process.CauseSilent, 0)
		if a.killed.Cause == process.CauseNone {
			e.metrics.kills.WithLabelValues("guardian").Inc()
		}
	}

	if r.Reason == task.ReasonCancelled {
		r.Reason = a.cancelReason()
	}

	a.setResult(e.cfg.Node, r)
	e.attemptEnded(a)
	e.log.Debug("an attempt ended", zap.String("task", a.Namespace+"/"+a.Task), zap.String("run", a.ID),
		zap.String("state", string(r.State)), zap.String("reason", r.Reason))
}

// isOverdue reports whether the attempt's session had no contact with etcd for so long that
// the attempt may soon be declared lost; see joined.isOverdue.
func (e *Executor) isOverdue(a *attempt, boot time.Duration) bool {
	j := e.sessions[a.session]
	return j != nil && j.isOverdue(a.Held, boot)
}

// rewriteRecord writes an attempt's record under the latest session, which adopts it. The write
// also records the checkpoint, and whether the attempt is running or paused. rewriteRecord does
// not wait for the answer; recordRewritten processes it.
func (e *Executor) rewriteRecord(a *attempt) {
	if e.toWrite.isFull() {
		e.toWrite.addToBacklog(a)
		return
	}

	j, h := e.session, new(*a.Held)

	// The queue has space, and only the loop sends, so the send below does not block.
	if !a.startedAt.IsZero() && a.phase == phaseRunning {
		a.describeIn(h)
	}

	a.reported.copyTo(&h.Run)
	a.busy = true
	e.toWrite.jobs <- func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, writeLimit)
		defer cancel()

		mod, err := e.cfg.Inbox.Rewrite(ctx, j.Fence, *h)
		// After a conflict or a timeout nothing is assumed about the record: the inbox shows it.
		e.callInLoop(func() { e.recordRewritten(a, j, h, mod, err) })
	}
}

// recordRewritten processes the answer to a rewrite. task.ErrFenced means that the session j has
// ended, so nothing more is written under it until the next join.
func (e *Executor) recordRewritten(a *attempt, j *joinedSession, h *record.Held, mod int64, err error) {
	if err != nil {
		j.fenced = j.fenced || errors.Is(err, task.ErrFenced)
		e.writeFailed(a, h.Mod, err, "rewrite", retryWrite)
		return
	}

	a.busy = false
	// The watch may have shown this revision, or a newer one, before the answer arrived. Otherwise the written
	// record is the current one, and there is no need to wait for the watch.
	if mod > a.Mod {
		h.Mod = mod
		a.setHeld(h)
	}

	if a.session != j.id {
		// The record had not changed between the list and this write, so it was not declared lost, and it cannot
		// have been handed back. The attempt belongs to the session j from now on (G10).
		e.metrics.adopted.Inc()
		e.attemptAdopted(a, j)
	}

	e.markDirty(a)
}

// writeFailed notes that a write which compared the revision mod failed. It is retried when the
// inbox shows a newer revision of the record, or after pause. If the outcome is unknown and
// the write was applied, the inbox shows that.
func (e *Executor) writeFailed(a *attempt, mod int64, err error, operation string, pause time.Duration) {
	a.busy, a.failedAt, a.notBefore = false, mod, time.Now().Add(pause)

	if !errors.Is(err, task.ErrConflict) && !errors.Is(err, task.ErrFenced) && !errors.Is(err, context.Canceled) {
		e.log.Warn("cannot record an attempt", zap.String("what", operation), zap.String("task", a.Namespace+"/"+a.Task),
			zap.String("run", a.ID), zap.Error(err))
	}

	e.markDirty(a)
}

// handBack returns an attempt that has not started to its shard's queue. After any error the
// outcome counts as unknown, and the attempt must not start until the record has changed; see
// mayBeHandedBack.
func (e *Executor) handBack(a *attempt) {
	if e.toWrite.isFull() {
		e.toWrite.addToBacklog(a)
		return
	}

	h := a.Held
	a.busy = true
	e.toWrite.jobs <- func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, writeLimit)
		defer cancel()

		err := e.cfg.Inbox.HandBack(ctx, *h)
		e.callInLoop(func() {
			if err != nil {
				// This holds for every error: even a conflict may be with an earlier copy of
				// the same request, which was applied.
				a.handBackMod = h.Mod
				e.writeFailed(a, h.Mod, err, "return to the queue", retryWrite)
				return
			}

			a.busy = false
			e.setPhase(a, phaseSettled)
		})
	}
}

// recordEnd gives an attempt's end to a finisher, which writes it to the history, or to the
// queue if another attempt follows.
func (e *Executor) recordEnd(a *attempt) {
	if e.toRecord.isFull() {
		e.toRecord.addToBacklog(a)
		return
	}

	x := a.end
	x.run.CancelledBy = a.CancelledBy // a cancel may have arrived after the end
	x.held, x.next = a.Held, nil
	if a.late != nil && x.late == nil {
		x.late, x.kept = &a.late.LateCancel, a.late.End != nil
	}

	if !a.noRetry {
		x.next = nextAttempt(a.Assigned, x.run, x.retryAfter, time.Now(), rand.Float64())
	}

	a.busy = true
	e.toRecord.jobs <- x
}

// endRecorded processes a finisher's answer. store.ErrLate means that the attempt had already
// been declared lost: that outcome is final, and the result is kept as late (G12).
func (e *Executor) endRecorded(x *ending) {
	a, err := x.attempt, x.err
	switch {
	case errors.Is(err, store.ErrLate):
		e.metrics.late.Inc()
		e.log.Warn("an attempt was declared lost before it ended", zap.String("task", a.Namespace+"/"+a.Task),
			zap.String("run", a.ID), zap.String("state", string(x.run.State)))
	case err != nil:
		if !errors.Is(err, task.ErrConflict) {
			x.run.OutputTail = "" // etcd may reject the record because of its size
		}
		e.writeFailed(a, x.held.Mod, err, "finish", retryFinish)
		return
	case x.next == nil && a.kind == task.KindProcess && a.Output.WantsMail(&x.run):
		e.mailer.Offer(outputmail.End{Attempt: a.Assigned, Run: x.run})
	}

	a.busy = false
	a.end, a.orders = nil, nil
	e.setPhase(a, phaseSettled)
}

// askCleared reads cleared/<instance>, at most every clearedReadInterval, for each other instance that
// has attempts in the inbox. The record proves that the instance is dead with all its
// processes, so its attempts can be declared lost at once.
func (e *Executor) askCleared(v view) {
	foreign := map[string]bool{}
	for _, a := range e.all {
		if a.foreign && a.phase == phaseWaiting && !a.recordGone {
			foreign[a.Instance] = true
		}
	}

	// Forget what is known of instances that no attempt belongs to any more, so that both maps stay small.
	for instance := range e.asked {
		if !foreign[instance] {
			delete(e.asked, instance)
			delete(e.dead, instance)
		}
	}

	for instance := range foreign {
		if e.dead[instance] || v.now.Sub(e.asked[instance]) < clearedReadInterval || e.toWrite.isFull() {
			continue
		}

		e.asked[instance] = v.now
		e.toWrite.jobs <- func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, writeLimit)
			defer cancel()

			cleared, err := e.cfg.Inbox.Cleared(ctx, instance)
			e.callInLoop(func() { e.clearedAnswered(instance, cleared, err) })
		}
	}
}

// clearedAnswered processes the answer for one instance. An error proves nothing.
func (e *Executor) clearedAnswered(instance string, cleared bool, err error) {
	if err != nil {
		e.log.Warn("cannot check whether an instance is cleared", zap.Error(fmt.Errorf("instance %s: %w", instance, err)))
	}

	if !cleared {
		return
	}

	e.dead[instance] = true
	for _, a := range e.all {
		if a.foreign && a.Instance == instance {
			e.markDirty(a)
		}
	}
}
