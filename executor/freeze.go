package executor

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/store"
)

// freezes is the record of freezes as the loop last received it.
type freezes struct {
	known bool               // it was read under the latest session; until then nothing starts
	is    store.FreezeRecord // valid only if known is set
}

// Froze returns the mod revision of the record of freezes that the executor obeys: no attempt
// that this record freezes starts any more (G21). It returns 0 if there is no such record or
// none was read yet.
func (e *Executor) Froze() int64 { return e.froze.Load() }

// followFreezes passes the freezes to the loop until ctx ends. The first read is newer than
// the session, so the node knows a freeze from before it was present before it starts anything.
func (e *Executor) followFreezes(ctx context.Context, session int) {
	for ctx.Err() == nil {
		err := e.cfg.Inbox.FollowFreezes(ctx, e.reread, func(r store.FreezeRecord) error {
			e.callInLoop(func() { e.hearFreezes(session, r) })
			return nil
		})

		if ctx.Err() != nil {
			return
		}

		e.log.Warn("the watch of freezes ended", zap.Error(err))

		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// hearFreezes stores a record of freezes that was read under the given session, and
// touches all waiting attempts. It ignores a record that was read under an earlier session,
// because that may be older than the latest join.
func (e *Executor) hearFreezes(session int, r store.FreezeRecord) {
	if session != e.session.id || e.freezes.known && e.freezes.is.Mod == r.Mod {
		return
	}

	e.freezes = freezes{known: true, is: r}
	for _, a := range e.all {
		if a.phase == phaseWaiting {
			e.markDirty(a)
		}
	}
}

// isFrozen reports whether the attempt must not start because of a freeze. While the freezes
// are unknown, every attempt counts as frozen.
func (e *Executor) isFrozen(a *attempt) bool {
	if !e.freezes.known {
		return true
	}
	return len(e.freezes.is.Holding) > 0 && e.freezes.is.Of(a.Namespace) != nil
}

// obeyFreezes publishes the revision of the freezes for Froze. It waits until no frozen attempt is
// between the decision to start it and its start: such an attempt was decided before the
// freeze was known, and would start after the node had confirmed the freeze (G21).
func (e *Executor) obeyFreezes() {
	if !e.freezes.known || e.freezes.is.Mod == e.froze.Load() {
		return
	}

	waits := false
	for _, a := range e.all {
		if a.phase == phaseRunning && a.startedAt.IsZero() && e.isFrozen(a) && !a.revokeStart() {
			waits = true
		}
	}
	if waits {
		return
	}

	e.froze.Store(e.freezes.is.Mod)

	if e.cfg.Obeyed != nil {
		e.cfg.Obeyed()
	}
}

// revokeStart calls off the start of an HTTP attempt that has sent nothing yet, and reports whether it never will. Its
// target may not answer for a long time, so a freeze does not wait for it. The attempt returns to phaseWaiting.
func (a *attempt) revokeStart() bool {
	if a.remote == nil || !a.remote.permit.revoke() {
		return false
	}

	a.orders.Kill(process.Kill{Cause: process.CauseCancel}) // it does not start, so this is not recorded
	return true
}
