package scheduler

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// round decides all that is due at one now: in one commit, or in as many as it
// takes. A commit that changed nothing because something moved is decided again.
func (w *worker) round(ctx context.Context) error {
	now := w.e.cfg.Now().Truncate(time.Millisecond)
	if !w.wakes.IsZero() && !now.Before(w.wakes) {
		w.wakes = time.Time{}
		w.lookAtAll()
	}
	if err := w.watchAttempts(ctx, now); err != nil {
		return err
	}
	for {
		p := w.plan(now)
		if p.idle() {
			return nil
		}
		began := time.Now()
		rev, err := w.e.cfg.Store.Commit(ctx, p.commit)
		w.e.metrics.commit.Observe(time.Since(began).Seconds())
		w.e.metrics.commits.WithLabelValues(result(err)).Inc()
		var conflict *store.Conflict
		switch {
		case err == nil:
			p.done(rev)
		case errors.As(err, &conflict):
			p.undo()
			w.settle(p, conflict, now)
		case errors.Is(err, task.ErrUnavailable):
			// Nothing was written: etcd has no space, or is too busy. Later.
			p.undo()
			w.log.Debug("commit refused", zap.Error(err))
			w.wakeAt(now.Add(time.Second))
			if !sleep(ctx, 250*time.Millisecond) {
				return ctx.Err()
			}
			return nil
		default:
			p.undo()
			return err
		}
	}
}

func result(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, task.ErrConflict):
		return "conflict"
	case errors.Is(err, task.ErrFenced):
		return "fenced"
	case errors.Is(err, store.ErrMoved):
		return "moved"
	}
	return "error"
}

// settle takes the records that a lost commit found changed: the new value if
// it is the same creation; else the record is gone until the watch brings news.
func (w *worker) settle(p *plan, c *store.Conflict, now time.Time) {
	for _, ev := range c.Records {
		t := w.task(ev.Ref)
		t.failed++
		switch ev.Kind {
		case store.KindEntry:
			if ev.Deleted || ev.Create != t.create {
				w.forget(t)
				continue
			}
			w.applyEntry(&ev)
		case store.KindQueued:
			w.applyQueued(&ev)
		}
		w.look(t)
	}
	for _, node := range c.Nodes {
		w.e.cfg.Fleet.Suspect(node, now)
		w.wakeAt(now.Add(suspicion))
	}
	if len(c.Runs) > 0 {
		w.wakeAt(now.Add(100 * time.Millisecond))
	}
	for t := range p.touched {
		if len(c.Runs) > 0 {
			t.failed++ // one of them; alone it will show which
		}
		for _, a := range t.active {
			a.watch = watch{}
		}
	}
}

// forget drops an entry that is gone, or another's, until the watch tells more.
func (w *worker) forget(t *taskState) {
	w.setBad(t, false)
	t.present, t.schedule = false, nil
	w.due.set(t, time.Time{})
	delete(w.uncovered, t)
}
