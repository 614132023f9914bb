package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// applyConflict abandons a plan whose commit failed a comparison, and applies the records that have
// changed. It returns errReload if the shard has to be opened again.
func (s *shardState) applyConflict(p *plan, c *store.Conflict, now time.Time) error {
	s.applyAbandoned(p)
	s.takeConflict(p, c, now)
	s.countFailures(p, c)
	err := s.setAsideFailing(p, now)
	s.rows.Flush(s.applied)

	return err
}

// takeConflict applies the records that a failed commit found changed, so that the next plan differs from this
// one. The watch may deliver them much later. An entry that was deleted or created again is forgotten until the
// watch delivers its current state.
func (s *shardState) takeConflict(p *plan, c *store.Conflict, now time.Time) {
	// Attempts come first: a queue record may show that one of them has ended, and that attempt must not be
	// considered active afterwards.
	for _, key := range c.Runs {
		if t := s.takeConflictingAttempt(key); t != nil {
			// The watch normally delivers the change before this.
			s.examineAgainAt(t, now.Add(100*time.Millisecond))
		}
	}

	for _, ev := range c.Records {
		t := s.TaskOf(&ev)

		switch ev.Kind {
		case record.KindEntry:
			// If the entry was created again, it belongs to another task of the same name.
			if ev.Deleted || ev.Create != t.Create {
				s.forgetTask(t)
			} else {
				s.applyEntry(&ev)
			}
		case record.KindQueued:
			s.applyQueued(&ev, now)

			// Events of the record that are still on their way are older than this read. They must not put the
			// run back into the queue.
			if ev.Deleted {
				s.gone[t.FullName()+"/"+ev.Run] = ev.Mod
			}
		case record.KindPart:
			delete(s.purges, ev.Key)
			s.applyPart(&ev)
		case record.KindEnded, record.KindDead:
			// If the record still exists, the watch or the reconciliation reports it again.
			delete(s.purges, ev.Key)

			// A range of skipped ticks cannot be extended: its record has changed or was deleted.
			s.endSpan(t)
		}

		s.examineNext(t)
	}

	// Freezes may allow or forbid runs of any task.
	if c.Freezes != nil {
		s.examineAll()
	}

	// The session of a node has changed, but the known nodes do not show it yet. Leave the node out until
	// they do. Attempts on that node are examined from the start, because what was read of them belongs to
	// the old session.
	for _, node := range c.Nodes {
		s.examineAllBy(now.Add(placement.Suspicion))

		for _, slot := range p.reserved {
			if slot.node.Name == node {
				s.placement.Suspect(node, slot.node.Revision, now)
			}
		}

		for i := range p.changes {
			s.watchAnew(p.changes[i].task, func(a *taskstate.Attempt) bool { return a.Node == node })
		}
	}
}

// takeConflictingAttempt handles the key of an inbox record that a rejected commit found changed, deleted,
// or existing where the commit wanted to create it. If the run is not known to be active, the record
// exists, whoever created it, so the run counts as active from now on. takeConflictingAttempt
// returns the run's task, or nil if the task is not known.
func (s *shardState) takeConflictingAttempt(key string) *taskstate.Task {
	k, ok := s.Keys.ParseRun(key)
	if !ok {
		return nil
	}

	t := s.Tasks.Get(k.Ref.String())
	if t == nil {
		return nil
	}

	if t.Holds(k.Run) {
		// The attempt is known: what was read of it is out of date.
		s.watchAnew(t, func(a *taskstate.Attempt) bool { return a.Run == k.Run })
		return t
	}

	s.addFoundAttempt(t, taskstate.Attempt{Run: k.Run, Node: k.Node})

	return t
}

// forgetTask drops an entry that was deleted, or that now belongs to another task, until the watch delivers
// its current state.
func (s *shardState) forgetTask(t *taskstate.Task) {
	t.Bad = false
	s.noEntry(t)
}

// watchAnew discards what was read of the attempts for which the function returns true. They are read again
// from the start, so the time until an attempt is lost starts over.
func (s *shardState) watchAnew(t *taskstate.Task, which func(*taskstate.Attempt) bool) {
	for _, a := range t.Active() {
		if which(a) {
			a.Watch = nil
			s.rows.Touch(t)
		}
	}
}
