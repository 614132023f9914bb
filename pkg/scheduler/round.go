package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// round decides all that is due at one now: in one commit, or in as many as it
// takes. A commit that changed nothing because something moved is decided again.
func (w *worker) round(ctx context.Context) error {
	clock := w.e.cfg.Now()
	now := clock.Truncate(time.Millisecond)
	// A clock that was set back would put what waits off for as long.
	// (clock, not now: a wake-up between two milliseconds would be waited for
	// without a pause.)
	if !w.wakes.IsZero() && (!clock.Before(w.wakes) || clock.Sub(w.looked) >= glance) {
		w.wakes, w.looked = time.Time{}, clock
		w.lookAtAll()
	}
	w.goOn(clock)
	// Not now: what is cut to milliseconds has lost its monotonic reading, and
	// a step of the clock must not shorten a wait.
	if err := w.watchAttempts(ctx, clock); err != nil {
		return err
	}
	w.rested(now.UnixMilli())
	for conflicts := 0; ; {
		w.studies(ctx, now.UnixMilli())
		if !w.wants(now) {
			return nil
		}
		p := w.plan(now)
		w.e.burials.askAll(p.deletions)
		if p.idle() {
			p.commit = nil
			if len(w.unread) > 0 {
				continue
			}
			return nil
		}
		if err := w.e.cfg.May(); err != nil {
			w.abandoned(p)
			return fmt.Errorf("%w: %w", task.ErrFenced, err)
		}
		began := time.Now()
		rev, err := w.e.cfg.Store.Commit(ctx, p.commit)
		w.e.metrics.commit.Observe(time.Since(began).Seconds())
		w.e.metrics.commits.WithLabelValues(result(err)).Inc()
		if p.commit.Settled != "" {
			w.e.metrics.settled.WithLabelValues(p.commit.Settled).Inc()
		}
		var conflict *store.Conflict
		switch {
		case err == nil:
			w.committed(p, rev)
			w.report(p)
			w.went()
			conflicts = 0
			if w.comesDue(now) {
				return nil // of what is left, a thousand parts may be, each of which takes a commit
			}
		case errors.As(err, &conflict):
			w.abandoned(p)
			w.settle(p, conflict, now)
			if err := w.setAside(p); err != nil {
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
			if conflicts++; conflicts == mostConflicts {
				// Records change faster than we commit: see first what is new.
				w.wakeAt(now)
				if !sleep(ctx, 20*time.Millisecond) {
					return ctx.Err()
				}
				return nil
			}
		case errors.Is(err, task.ErrUnavailable):
			// Nothing was written: etcd has no space, or is too busy. Later.
			w.abandoned(p)
			w.log.Debug("commit refused", zap.Error(err))
			w.wakeAt(now.Add(time.Second))
			if !sleep(ctx, 250*time.Millisecond) {
				return ctx.Err()
			}
			return nil
		default:
			w.abandoned(p)
			return err
		}
	}
}

// report counts what a plan has decided, and logs its notices. Its commit has succeeded.
func (w *worker) report(p *plan) {
	w.e.metrics.decided(p.counts)
	w.e.recent.decided(p)
	for _, c := range p.claims {
		if c.late >= 0 {
			w.e.metrics.lateness.Observe(c.late.Seconds())
		}
	}

	for _, n := range p.notices {
		switch n.kind {
		case taskPaused:
			w.e.metrics.paused.Inc()
			w.log.Info("a task is paused: it failed too often", zap.String("task", n.task), zap.Int("failures", n.failures))
		case partNowhere:
			w.log.Error("a part of a run is nowhere on record; it is lost", zap.String("task", n.task), zap.String("run", n.run))
		}
	}
}

// wants reports whether there may be something to decide at now.
func (w *worker) wants(now time.Time) bool {
	return len(w.due) > 0 && w.due[0].dueAt() <= now.UnixMilli() || len(w.looks) > 0 || len(w.uncovered) > 0 || len(w.purges) > 0 || len(w.unread) > 0
}

// comesDue reports whether all is decided that was due at now, and something has
// fallen due since.
func (w *worker) comesDue(now time.Time) bool {
	return len(w.due) > 0 && w.due[0].dueAt() > now.UnixMilli() && w.due[0].dueAt() <= w.e.cfg.Now().UnixMilli()
}

// mostConflicts is how many commits in a row a round may lose.
const mostConflicts = 10

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
	failed := map[*taskState]bool{} // each once, however many of its records have changed
	// Attempts first: a queue record may tell that one of them has ended, and it
	// must not be taken for one that is there after all.
	for _, key := range c.Runs {
		w.wakeAt(now.Add(100 * time.Millisecond))
		if t := w.settleRun(key); t != nil {
			failed[t] = true
		}
	}
	for _, ev := range c.Records {
		t := w.taskOf(&ev)
		switch ev.Kind {
		case store.KindEntry:
			if ev.Deleted || ev.Create != t.create {
				w.forget(t)
			} else {
				w.applyEntry(&ev)
			}
		case store.KindQueued:
			w.applyQueued(&ev)
		case store.KindEnded, store.KindDead, store.KindPart:
			delete(w.purges, ev.Key) // if it is there, the watch will tell
			w.spanEnds(t)            // it cannot be extended
		}
		failed[t] = ev.Kind != store.KindEnded && ev.Kind != store.KindDead && ev.Kind != store.KindPart || failed[t]
		w.look(t)
	}
	if c.Freezes != nil {
		w.e.learn(c.Freezes)
		w.lookAtAll()
	}
	for _, node := range c.Nodes {
		w.wakeAt(now.Add(suspicion))
		for _, n := range p.reserved {
			if n.Name == node {
				w.placement.Suspect(node, n.Revision, now)
			}
		}
		for i := range p.changes {
			p.changes[i].task.watchAnew(func(a *attempt) bool { return a.node == node })
		}
	}
	for t, yes := range failed {
		if yes {
			t.failed++
		}
	}
}

// settleRun takes note of an attempt that a lost commit found changed, gone, or
// there where it wanted to put it: then it is in that inbox, whoever put it there.
// It returns the run's task; nil if that is not known.
func (w *worker) settleRun(key string) *taskState {
	parts := strings.Split(key, "/") // …/node/shard/namespace/name/run
	n := len(parts)
	node, name, run := parts[n-5], parts[n-3]+"/"+parts[n-2], parts[n-1]
	t := w.tasks[name]
	if t == nil {
		return nil
	}
	if t.holds(run) {
		t.watchAnew(func(a *attempt) bool { return a.run == run })
		return t
	}
	w.activate(t, &attempt{run: run, node: node})
	w.placement.Occupy(node)
	return t
}

// watchAnew forgets what was found out of some attempts.
func (t *taskState) watchAnew(which func(*attempt) bool) {
	for _, a := range t.active() {
		if which(a) {
			a.watch = nil
		}
	}
}

// forget drops an entry that is gone, or another's, until the watch tells more.
func (w *worker) forget(t *taskState) {
	w.setBad(t, false)
	w.noEntry(t)
}

// mostFailures is how many commits in a row may fail for a task.
const mostFailures = 20

// setAside ends it with a task that fails commit after commit: it goes alone, but
// it goes first, and would hold up all others. What is known of it may be wrong:
// the shard is opened again, once. If that does not help, the task has no ticks
// until its records change.
func (w *worker) setAside(p *plan) error {
	for i := range p.changes {
		t := p.changes[i].task

		switch name := t.fullName(); {
		case t.failed < mostFailures:
		case !w.stubborn[name]:
			w.stubborn[name] = true
			return fmt.Errorf("%w: commits for task %s fail", errReload, name)
		default:
			delete(w.stubborn, name)
			w.log.Error("a task is set aside: every commit for it fails", zap.String("task", name))
			w.e.metrics.aside.Inc()
			w.setBad(t, true)
			w.count(t)
			w.due.set(t, 0)
			delete(w.uncovered, t)
			t.failed = 0
		}
	}
	return nil
}
