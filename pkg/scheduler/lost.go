package scheduler

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// watch is what a worker has found out of an attempt whose node is gone, or
// whose task is.
type watch struct {
	held  store.Held
	since time.Time // when the node was read as absent, with this record; zero: not yet
	lost  bool      // it was so all along: the attempt is lost
	// orphan: its task is gone, and it is to be asked to end; asked: it has been.
	orphan bool
	asked  bool
}

// watchAttempts follows the attempts, of the tasks that want a look, whose node
// is gone or whose task is. An attempt is lost when its node was absent and its
// record unchanged at two readings that lie LostAfter apart, or ClearedAfter if
// its instance is proved dead; the commit compares both once more.
func (w *worker) watchAttempts(ctx context.Context, now time.Time) error {
	cleared := map[string]bool{} // by instance, in this round
	for _, t := range w.looks {
		for _, a := range t.active() {
			if err := w.watchAttempt(ctx, t, a, now, cleared); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				w.wakeAt(now.Add(time.Second)) // etcd is away: look again
				return nil
			}
		}
	}
	return nil
}

func (w *worker) watchAttempt(ctx context.Context, t *taskState, a *attempt, now time.Time, cleared map[string]bool) error {
	if a.watch != nil {
		a.watch.lost, a.watch.orphan = false, false
	}
	if _, present := w.e.cfg.Fleet.Present(a.node); present {
		if a.watch != nil {
			a.watch.since = time.Time{}
		}
		if !t.orphan(a.run) || a.watched().asked {
			return nil
		}
		h, _, err := w.readAttempt(ctx, t, a)
		if err != nil || h == nil {
			return err
		}
		a.watch.held, a.watch.orphan, a.watch.asked = *h, !h.CancelRequested, h.CancelRequested
		return nil
	}
	if a.watched().since.IsZero() {
		h, present, err := w.readAttempt(ctx, t, a)
		if err != nil || h == nil {
			return err
		}
		if present { // its record cannot be read, or has not come to us
			w.wakeAt(now.Add(w.e.cfg.ClearedAfter))
			return nil
		}
		a.watch.held, a.watch.since = *h, w.e.cfg.Now() // after the reading, not before
		w.wakeAt(now.Add(w.e.cfg.ClearedAfter))
		return nil
	}
	waited := now.Sub(a.watch.since)
	ripe := waited >= w.e.cfg.LostAfter
	if !ripe && waited >= w.e.cfg.ClearedAfter {
		dead, err := w.cleared(ctx, a.watch.held.Instance, cleared)
		if err != nil {
			return err
		}
		ripe = dead
	}
	if !ripe {
		again := w.e.cfg.ClearedAfter
		if waited < again {
			again -= waited
		}
		w.wakeAt(now.Add(again))
		return nil
	}
	h, present, err := w.readAttempt(ctx, t, a)
	switch {
	case err != nil || h == nil:
		return err
	case present || h.Mod != a.watch.held.Mod:
		a.watch = nil
		w.wakeAt(now.Add(w.e.cfg.ClearedAfter))
	default:
		a.watch.lost = true
	}
	return nil
}

func (w *worker) cleared(ctx context.Context, instance string, known map[string]bool) (bool, error) {
	if dead, ok := known[instance]; ok {
		return dead, nil
	}
	dead, err := w.e.cfg.Store.Cleared(ctx, instance)
	if err == nil {
		known[instance] = dead
	}
	return dead, err
}

// readAttempt reads an attempt's record and whether its node is present; nil if
// the record is gone (the watch will tell how it ended) or unreadable.
func (w *worker) readAttempt(ctx context.Context, t *taskState, a *attempt) (*store.Held, bool, error) {
	h, present, err := w.e.cfg.Store.Attempt(ctx, store.RunKey{Node: a.node, Ref: t.ref(w.shard), Run: a.run})
	switch {
	case errors.Is(err, task.ErrNotFound):
		return nil, false, nil
	case errors.Is(err, task.ErrInvalid):
		w.log.Error("an attempt's record cannot be read", zap.String("task", t.fullName()), zap.String("run", a.run), zap.Error(err))
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	return &h, present, nil
}
