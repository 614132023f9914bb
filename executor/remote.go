package executor

import (
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

// targetDownPrefix begins the message of an attempt that ended because the probe for which it waited was not sent.
const targetDownPrefix = "target is down: "

// remoteAttempt is what an HTTP attempt has while it runs, in addition to what all attempts have.
type remoteAttempt struct {
	guarded *guardian.RemoteHandle        // nil: no guardian
	session atomic.Pointer[joinedSession] // the session whose renewals allow it to continue
	permit  startPermit
}

// setSession notes that the attempt belongs to the session j.
func (r *remoteAttempt) setSession(j *joinedSession) {
	r.session.Store(j)
	r.guarded.SetSession(j.id)
}

// startPermit decides between the start of an attempt and an order that forbids it. The first of the two wins.
type startPermit struct{ state atomic.Int32 }

const (
	permitOpen int32 = iota
	permitTaken
	permitRevoked
)

// take reports whether the attempt may start. Then revoke fails.
func (p *startPermit) take() bool {
	return p.state.CompareAndSwap(permitOpen, permitTaken) || p.state.Load() == permitTaken
}

// revoke reports whether the attempt has not started and never will.
func (p *startPermit) revoke() bool {
	return p.state.CompareAndSwap(permitOpen, permitRevoked) || p.state.Load() == permitRevoked
}

// errFrozen means that an attempt did not start because its namespace was frozen while it connected.
var errFrozen = errors.New("not started: its namespace is frozen")

// prepareRemote prepares the start of an HTTP attempt under the session j. It returns the function that runs it.
func (e *Executor) prepareRemote(a *attempt, j *joinedSession, spec *process.Attempt) func(process.Attempt, *process.Orders) process.Result {
	remote := &remoteAttempt{guarded: e.cfg.Guardian.AnnounceRemote(j.id, spec.MaxSilence)}
	remote.session.Store(j)
	a.remote = remote

	held, mayStart, runner := a.Held, spec.MayStart, e.runners[task.KindHTTP]

	spec.MayStart = func() error {
		if err := mayStart(); err != nil {
			return err
		}
		if !remote.permit.take() {
			return errFrozen
		}
		return nil
	}

	// A renewal that the loop has seen counts, even if the node has joined again since the start.
	spec.MayContinue = func() error {
		if remote.session.Load().isOverdue(held, e.clocks.boot()) {
			return process.ErrTooLate
		}
		return nil
	}

	return func(spec process.Attempt, o *process.Orders) process.Result {
		if !e.flushAnnouncement(o) {
			return process.Result{State: task.Failed, Reason: task.ReasonStart, EndedAt: time.Now(), NotStarted: true}
		}
		return runner.RunAttempt(spec, o)
	}
}

// flushAnnouncement waits until the guardian knows that an HTTP attempt is in progress (G17). It returns false if the
// attempt is killed before. Without a guardian the attempt waits, for as long as it takes: if the daemon froze now, its
// request could still be sent after the attempt was declared lost.
func (e *Executor) flushAnnouncement(o *process.Orders) bool {
	for e.cfg.Guardian.WaitReady(o.CalledOff()) {
		if e.cfg.Guardian.Flush() == nil {
			return true
		}
	}

	return false
}

// remoteEnded releases what an HTTP attempt had while it ran. If the attempt was the probe of a target that is down, those
// that wait for the target end as well.
func (e *Executor) remoteEnded(a *attempt, r process.Result) {
	a.remote.guarded.Ended()
	a.remote = nil

	// The guardian kills the daemon soon, unless it learns that nothing is in progress any more.
	if a.killed.Cause == process.CauseSilent {
		e.cfg.Guardian.WithdrawRemotes()
	}

	outcome := targetUnknown
	switch {
	case r.NotStarted, r.TargetUnknown:
	case !a.startedAt.IsZero() || !r.StartedAt.IsZero():
		outcome = targetSent
	case r.Unsent:
		outcome = targetUnsent
	}

	for _, other := range e.targets.End(a.target, outcome) {
		other.attempt.targetDown = targetDownPrefix + strings.TrimPrefix(r.Message, process.NotSentPrefix)
		e.markDirty(other.attempt)
	}

	if r.Unsent {
		e.metrics.unsent.Inc()
	}
}

// awaitTarget adds an HTTP attempt that is ready to those that wait for their target. If it has waited for a probe that
// was not sent, it ends as well.
func (e *Executor) awaitTarget(a *attempt, v view) {
	if a.targetDown != "" {
		a.setResult(e.cfg.Node, process.Result{State: task.Failed, Reason: task.ReasonUnsent, Message: a.targetDown, EndedAt: v.now})
		e.metrics.unsent.Inc()
		e.attemptEnded(a)

		return
	}

	if a.target == nil {
		a.target = newTargetEntry(a)
	}

	e.targets.Add(a.target)
}

// leaveTargetQueue removes an attempt that is not ready, or not any more, from those that wait for their target.
func (e *Executor) leaveTargetQueue(a *attempt) {
	if a.target != nil {
		e.targets.Remove(a.target)
		a.targetDown = ""
	}
}
