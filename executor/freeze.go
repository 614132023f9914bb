package executor

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
)

// freezes is what the loop knows of what is frozen.
type freezes struct {
	known bool // it was read under the latest session: before, nothing starts
	is    store.FreezeRecord
}

// Froze is the mod revision of the record of freezes that the executor obeys: of
// what that freezes nothing starts any more. 0: there is none, or none is known.
func (e *Executor) Froze() int64 { return e.froze.Load() }

// followFreezes tells the loop of the freezes until ctx ends. What it reads first
// is newer than the session: a freeze that held before the node was present is
// known before anything starts.
func (e *Executor) followFreezes(ctx context.Context, session int) {
	for ctx.Err() == nil {
		err := e.cfg.Inbox.FollowFreezes(ctx, e.reread, func(r store.FreezeRecord) error {
			e.tell(func() { e.hearFreezes(session, r) })
			return nil
		})

		if ctx.Err() != nil {
			return
		}

		e.log.Warn("following the freezes ended", zap.Error(err))

		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (e *Executor) hearFreezes(session int, r store.FreezeRecord) {
	if session != e.session.id || e.freezes.known && e.freezes.is.Mod == r.Mod {
		return
	}

	e.freezes = freezes{known: true, is: r}
	for _, a := range e.all {
		if a.phase == phaseWaiting {
			e.touch(a)
		}
	}
}

func (e *Executor) isFrozen(a *attempt) bool {
	if !e.freezes.known {
		return true
	}
	return len(e.freezes.is.Holding) > 0 && e.freezes.is.Of(a.Namespace) != nil
}

// obey says which freezes hold here, once nothing is on its way to its start that
// was decided before they were known.
func (e *Executor) obey() {
	if !e.freezes.known || e.freezes.is.Mod == e.froze.Load() {
		return
	}

	for _, a := range e.all {
		if a.phase == phaseRunning && a.startedAt.IsZero() && e.isFrozen(a) {
			return
		}
	}

	e.froze.Store(e.freezes.is.Mod)

	if e.cfg.Obeyed != nil {
		e.cfg.Obeyed()
	}
}
