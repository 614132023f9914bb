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
	defer w.report()

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
		w.e.burials.askAll(p.deletions, w.poke)
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
			w.observe(p)
			w.went()
			conflicts = 0
			if w.comesDue(now) {
				return nil // of what is left, a thousand parts may be, each of which takes a commit
			}
		case errors.As(err, &conflict):
			if conflict.Freezes != nil {
				w.e.learn(conflict.Freezes)
			}
			if err := w.rejected(p, conflict, now); err != nil {
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

// observe counts what a plan has decided. Its commit has succeeded.
func (w *worker) observe(p *plan) {
	w.e.metrics.decided(p.counts)
	w.e.recent.decided(p)

	for _, c := range p.claims {
		if c.late >= 0 {
			w.e.metrics.lateness.Observe(c.late.Seconds())
		}
	}
}

// wants reports whether there may be something to decide at now.
func (s *shardState) wants(now time.Time) bool {
	return len(s.due) > 0 && s.due[0].dueAt() <= now.UnixMilli() || len(s.looks) > 0 || len(s.uncovered) > 0 || len(s.purges) > 0 || len(s.unread) > 0
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

// rejected takes what a lost commit has found changed: the plan is abandoned, and what was found
// counts. errReload: the shard has to be opened again.
func (s *shardState) rejected(p *plan, c *store.Conflict, now time.Time) error {
	s.abandoned(p)
	s.settle(p, c, now)

	return s.setAside(p)
}

// settle takes the records that a lost commit found changed: the new value if
// it is the same creation; else the record is gone until the watch brings news.
func (s *shardState) settle(p *plan, c *store.Conflict, now time.Time) {
	failed := map[*taskState]bool{} // each once, however many of its records have changed
	// Attempts first: a queue record may tell that one of them has ended, and it
	// must not be taken for one that is there after all.
	for _, key := range c.Runs {
		s.wakeAt(now.Add(100 * time.Millisecond))
		if t := s.settleRun(key); t != nil {
			failed[t] = true
		}
	}
	for _, ev := range c.Records {
		t := s.taskOf(&ev)
		switch ev.Kind {
		case store.KindEntry:
			if ev.Deleted || ev.Create != t.create {
				s.forget(t)
			} else {
				s.applyEntry(&ev)
			}
		case store.KindQueued:
			s.applyQueued(&ev, now)
		case store.KindEnded, store.KindDead, store.KindPart:
			delete(s.purges, ev.Key) // if it is there, the watch will tell
			s.spanEnds(t)            // it cannot be extended
		}
		failed[t] = ev.Kind != store.KindEnded && ev.Kind != store.KindDead && ev.Kind != store.KindPart || failed[t]
		s.look(t)
	}
	if c.Freezes != nil {
		s.lookAtAll()
	}
	for _, node := range c.Nodes {
		s.wakeAt(now.Add(suspicion))
		for _, n := range p.reserved {
			if n.Name == node {
				s.placement.Suspect(node, n.Revision, now)
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
func (s *shardState) settleRun(key string) *taskState {
	parts := strings.Split(key, "/") // …/node/shard/namespace/name/run
	n := len(parts)
	node, name, run := parts[n-5], parts[n-3]+"/"+parts[n-2], parts[n-1]
	t := s.tasks[name]
	if t == nil {
		return nil
	}
	if t.holds(run) {
		t.watchAnew(func(a *attempt) bool { return a.run == run })
		return t
	}
	s.activate(t, &attempt{run: run, node: node})
	s.placement.Occupy(node)
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
func (s *shardState) forget(t *taskState) {
	t.bad = false
	s.noEntry(t)
}

// mostFailures is how many commits in a row may fail for a task.
const mostFailures = 20

// setAside ends it with a task that fails commit after commit: it goes alone, but
// it goes first, and would hold up all others. What is known of it may be wrong:
// the shard is opened again, once. If that does not help, the task has no ticks
// until its records change.
func (s *shardState) setAside(p *plan) error {
	for i := range p.changes {
		t := p.changes[i].task

		switch name := t.fullName(); {
		case t.failed < mostFailures:
		case !s.stubborn[name]:
			s.stubborn[name] = true
			return fmt.Errorf("%w: commits for task %s fail", errReload, name)
		default:
			delete(s.stubborn, name)
			s.notify(notice{kind: taskSetAside, task: name})
			t.bad = true
			s.count(t)
			s.due.set(t, 0)
			delete(s.uncovered, t)
			t.failed = 0
		}
	}
	return nil
}
