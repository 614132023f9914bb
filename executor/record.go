package executor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	askAgain = 2 * time.Second
	// returnAfter is how long an attempt that the node cannot start is kept before it is
	// handed back: by then the node has told that it takes none, and does not get it again.
	returnAfter = 3 * time.Second
)

// startProcess starts an attempt with a process of its own.
func (e *Executor) startProcess(a *attempt) {
	j := e.session
	a.orders = process.NewOrders()
	a.killed, a.startedAt, a.spoke = process.Kill{}, time.Time{}, spoke{}
	a.told, a.PauseState = false, process.PauseState{}
	e.move(a, phaseRunning)
	o, held := a.orders, a.Held
	spec := process.Attempt{
		Assigned: held.Assigned, Token: held.Create, Session: j.id, MaxSilence: mostSilenceOfGuardian(held.EffectiveLostAfter().Std()),
		MayStart: func() error {
			if !j.mayStart(held, e.clocks.boot()) || tooLate(held, time.Now()) {
				return process.ErrTooLate
			}
			return nil
		},
		OnStarted:    func(at time.Time) { e.tell(func() { e.started(a, j, at) }) },
		OnCheckpoint: func(checkpoint string) { e.tell(func() { a.spoke.checkpoint = &checkpoint; e.touch(a) }) },
		OnPause:      func(s process.PauseState) { e.tell(func() { e.stood(a, o, s) }) },
	}

	e.attempts.Go(func() {
		r := e.runAttempt(spec, o)
		e.tell(func() { e.processEnded(a, r) })
	})
}

// started notes that an attempt has a process. A rejoin since the launch could
// not tell the guardian, who did not know of it yet.
func (e *Executor) started(a *attempt, j *joined, at time.Time) {
	a.startedAt = at
	e.late(a, at)
	if a.session != j.id {
		e.cfg.Guardian.SetSession(a.leftover(), a.session)
	}
}

// processEnded notes that nothing of an attempt is left.
func (e *Executor) processEnded(a *attempt, r process.Result) {
	if a.gone {
		if e.leaving[a.key]--; e.leaving[a.key] <= 0 {
			delete(e.leaving, a.key)
		}
	}

	if r.NotStarted { // the token was not used: it may still be, or be cancelled, or handed back
		a.orders, a.killed = nil, process.Kill{}
		if a.returns = r.HandBack; a.returns {
			e.log.Warn("an attempt is handed back", zap.String("task", a.Namespace+"/"+a.Task), zap.String("run", a.ID), zap.String("reason", r.Message))
			a.failedAt, a.notBefore = a.Mod, time.Now().Add(returnAfter)
		}

		e.move(a, phaseWaiting)

		return
	}

	if r.Signal == "SIGKILL" && r.Reason == task.ReasonSignal && e.overdue(a, e.clocks.boot()) {
		r.SetCause(process.CauseSilent, 0) // the guardian was faster
		if a.killed.Cause == process.CauseNone {
			e.metrics.kills.WithLabelValues("guardian").Inc()
		}
	}

	if r.Reason == task.ReasonCancelled {
		r.Reason = a.cancelReason()
	}

	a.finish(e.cfg.Node, r)
	e.ended(a)
	e.log.Debug("an attempt ended", zap.String("task", a.Namespace+"/"+a.Task), zap.String("run", a.ID),
		zap.String("state", string(r.State)), zap.String("reason", r.Reason))
}

func (e *Executor) overdue(a *attempt, boot time.Duration) bool {
	j := e.sessions[a.session]
	return j != nil && j.overdue(a.Held, boot)
}

// rewrite adopts an attempt under the latest session; if it runs or stands still,
// the record says so from then on. It is not waited for.
func (e *Executor) rewrite(a *attempt) {
	if e.toWrite.full() {
		e.toWrite.later(a)
		return
	}

	j, h := e.session, new(*a.Held)

	if !a.startedAt.IsZero() && a.phase == phaseRunning {
		a.say(h)
	}

	a.spoke.put(&h.Run)
	a.busy = true
	e.toWrite.jobs <- func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, writeLimit)
		defer cancel()

		mod, err := e.cfg.Inbox.Rewrite(ctx, j.Fence, *h)
		e.tell(func() { e.rewritten(a, j, h, mod, err) })
	}
}

func (e *Executor) rewritten(a *attempt, j *joined, h *record.Held, mod int64, err error) {
	if err != nil {
		j.fenced = j.fenced || errors.Is(err, task.ErrFenced)
		e.failed(a, h.Mod, err, "rewrite", retryWrite)
		return
	}

	a.busy = false
	if mod > a.Mod {
		h.Mod = mod
		a.Held = h
	}

	if a.session != j.id {
		e.metrics.adopted.Inc()
		e.adopted(a, j)
	}

	e.touch(a)
}

// failed notes that a write failed; it is tried again when the record is seen to
// have changed, or after a pause. What is unknown shows itself in the inbox.
func (e *Executor) failed(a *attempt, mod int64, err error, what string, pause time.Duration) {
	a.busy, a.failedAt, a.notBefore = false, mod, time.Now().Add(pause)

	if !errors.Is(err, task.ErrConflict) && !errors.Is(err, task.ErrFenced) && !errors.Is(err, context.Canceled) {
		e.log.Warn("cannot write an attempt", zap.String("what", what), zap.String("task", a.Namespace+"/"+a.Task),
			zap.String("run", a.ID), zap.Error(err))
	}

	e.touch(a)
}

// handBack queues an unstarted attempt again.
func (e *Executor) handBack(a *attempt) {
	if e.toWrite.full() {
		e.toWrite.later(a)
		return
	}

	h := a.Held
	a.busy = true
	e.toWrite.jobs <- func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, writeLimit)
		defer cancel()

		err := e.cfg.Inbox.HandBack(ctx, *h)
		e.tell(func() {
			if err != nil {
				// Whatever the error says: a conflict, too, may be with an earlier copy of
				// the same request.
				a.handBackMod = h.Mod
				e.failed(a, h.Mod, err, "hand back", retryWrite)
				return
			}

			a.busy = false
			e.move(a, phaseSettled)
		})
	}
}

// record writes down how an attempt ended: in the history, or, if another
// attempt follows, in the queue.
func (e *Executor) record(a *attempt) {
	if e.toRecord.full() {
		e.toRecord.later(a)
		return
	}

	x := a.end
	x.run.CancelledBy = a.CancelledBy // a cancel may have come since
	x.held, x.next = a.Held, nil
	if !a.noRetry {
		x.next = Next(a.Assigned, x.run, time.Now(), rand.Float64())
	}

	a.busy = true
	e.toRecord.jobs <- x
}

func (e *Executor) recorded(x *ending) {
	a, err := x.attempt, x.err
	switch {
	case errors.Is(err, store.ErrLate):
		e.metrics.late.Inc()
		e.log.Warn("an attempt had been declared lost before its end", zap.String("task", a.Namespace+"/"+a.Task),
			zap.String("run", a.ID), zap.String("state", string(x.run.State)))
	case err != nil:
		if !errors.Is(err, task.ErrConflict) {
			x.run.OutputTail = "" // in case it is what etcd refuses
		}
		e.failed(a, x.held.Mod, err, "finish", retryFinish)
		return
	}

	a.busy = false
	a.end, a.orders = nil, nil
	e.move(a, phaseSettled)
}

// askCleared asks, now and then, whether the instances are proved dead whose
// attempts are in the inbox.
func (e *Executor) askCleared(v view) {
	foreign := map[string]bool{}
	for _, a := range e.all {
		if a.foreign && a.phase == phaseWaiting && !a.gone {
			foreign[a.Instance] = true
		}
	}

	for instance := range e.asked {
		if !foreign[instance] {
			delete(e.asked, instance)
			delete(e.dead, instance)
		}
	}

	for instance := range foreign {
		if e.dead[instance] || v.now.Sub(e.asked[instance]) < askAgain || e.toWrite.full() {
			continue
		}

		e.asked[instance] = v.now
		e.toWrite.jobs <- func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, writeLimit)
			defer cancel()

			cleared, err := e.cfg.Inbox.Cleared(ctx, instance)
			e.tell(func() { e.answered(instance, cleared, err) })
		}
	}
}

func (e *Executor) answered(instance string, cleared bool, err error) {
	if err != nil {
		e.log.Warn("cannot ask whether an instance is cleared", zap.Error(fmt.Errorf("instance %s: %w", instance, err)))
	}

	if !cleared {
		return
	}

	e.dead[instance] = true
	for _, a := range e.all {
		if a.foreign && a.Instance == instance {
			e.touch(a)
		}
	}
}
