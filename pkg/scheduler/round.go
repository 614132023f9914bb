package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// runRound decides all that is due at one now: in one commit, or in as many as it
// takes. A commit that changed nothing because something moved is decided again.
func (w *worker) runRound(ctx context.Context) error {
	defer w.logNotices()

	wallClock := w.e.cfg.Now()
	now := wallClock.Truncate(time.Millisecond)

	// A clock that was set back would put what waits off for as long.
	// (wallClock, not now: a wake-up between two milliseconds would be waited for
	// without a pause.)
	if !w.wakes.IsZero() && (!wallClock.Before(w.wakes) || wallClock.Sub(w.looked) >= maxIdleSleep) {
		w.wakes, w.looked = time.Time{}, wallClock
		w.lookAtAll()
	}

	w.grantTokens(wallClock)

	// Not now: what is cut to milliseconds has lost its monotonic reading, and
	// a step of the clock must not shorten a wait.
	if err := w.watchAttempts(ctx, wallClock); err != nil {
		return err
	}

	w.lookAtRested(now.UnixMilli())

	for conflicts := 0; ; {
		w.readHistories(ctx, now.UnixMilli())

		if !w.hasWork(now) {
			return nil
		}

		p := w.planRound(now)
		w.e.ttlDeleter.AskAll(p.deletions, w.wakeUp)

		if p.isEmpty() {
			p.commit = nil
			if len(w.unread) > 0 {
				continue
			}
			return nil
		}

		if err := w.e.cfg.May(); err != nil {
			w.applyAbandoned(p)
			return fmt.Errorf("%w: %w", task.ErrFenced, err)
		}

		began := time.Now()
		rev, err := w.e.cfg.Store.Commit(ctx, p.commit)
		w.e.metrics.commit.Observe(time.Since(began).Seconds())
		w.e.metrics.commits.WithLabelValues(result(err)).Inc()

		if p.commit.ResolvedAs != "" {
			w.e.metrics.settled.WithLabelValues(p.commit.ResolvedAs).Inc()
		}

		var conflict *store.Conflict
		switch {
		case err == nil:
			w.applyCommitted(p, rev)
			w.observePlan(p)
			w.noteProgress()
			conflicts = 0

			if w.comesDue(now) {
				return nil // of what is left, a thousand parts may be, each of which takes a commit
			}
		case errors.As(err, &conflict):
			if conflict.Freezes != nil {
				w.e.learnFreezes(conflict.Freezes)
			}

			if err := w.applyConflict(p, conflict, now); err != nil {
				return err
			}

			if conflict.Revised != nil {
				if err := w.learnRevised(ctx, *conflict.Revised); err != nil {
					return err
				}
				if conflict.OnlyRevised() {
					continue // after a few of them the next commit does not compare it
				}
			}

			if conflicts++; conflicts == maxConflictsPerRound {
				// Records change faster than we commit: see first what is new.
				w.wakeAt(now)

				if !clock.Sleep(ctx, 20*time.Millisecond) {
					return ctx.Err()
				}

				return nil
			}
		case errors.Is(err, task.ErrUnavailable):
			// Nothing was written: etcd has no space, or is too busy. Later.
			w.applyAbandoned(p)
			w.log.Debug("commit refused", zap.Error(err))
			w.wakeAt(now.Add(time.Second))

			if !clock.Sleep(ctx, 250*time.Millisecond) {
				return ctx.Err()
			}

			return nil
		default:
			w.applyAbandoned(p)
			return err
		}
	}
}

// observePlan counts what a plan has decided. Its commit has succeeded.
func (w *worker) observePlan(p *plan) {
	w.e.metrics.countOutcomes(p.counts)

	if skipped := p.counts.skipped + p.counts.missed; skipped > 0 || len(p.claims) > 0 {
		w.e.recent.AddDecided(p.now, skipped, p.lateness)
	}

	for _, c := range p.claims {
		if c.late >= 0 {
			w.e.metrics.lateness.Observe(c.late.Seconds())
		}
	}
}

// comesDue reports whether all is decided that was due at now, and something has
// fallen due since.
func (w *worker) comesDue(now time.Time) bool {
	return len(w.due) > 0 && w.due[0].DueAt() > now.UnixMilli() && w.due[0].DueAt() <= w.e.cfg.Now().UnixMilli()
}

// maxConflictsPerRound is how many commits in a row a round may lose.
const maxConflictsPerRound = 10

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
