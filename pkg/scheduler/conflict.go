package scheduler

import (
	"fmt"
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
	err := s.setAside(p)
	s.rows.Flush(s.applied)

	return err
}

// takeConflict applies the records that a failed commit found changed. An entry that was deleted or created
// again is forgotten until the watch delivers its current state. takeConflict also counts the failure for
// each task concerned.
func (s *shardState) takeConflict(p *plan, c *store.Conflict, now time.Time) {
	// failed counts a task once, however many of its records have changed.
	failed := map[*taskstate.Task]bool{}

	// Attempts come first: a queue record may show that one of them has ended, and that attempt must not be
	// considered active afterwards.
	for _, key := range c.Runs {
		// The watch normally delivers the change before this.
		s.examineAllBy(now.Add(100 * time.Millisecond))
		if t := s.takeConflictingAttempt(key); t != nil {
			failed[t] = true
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
		case record.KindEnded, record.KindDead, record.KindPart:
			// If the record still exists, the watch or the reconciliation reports it again.
			delete(s.purges, ev.Key)

			// The record of a part that has ended was deleted already, so the part is no longer known.
			if ev.Kind == record.KindPart && ev.Deleted && t.Activity != nil {
				delete(t.Activity.Returned, ev.Run)
			}

			// A range of skipped ticks cannot be extended: its record has changed or was deleted.
			s.endSpan(t)
		}

		// Conflicts about history do not count as failures of the task: purges and ranges are given up
		// above, so the next commit does not depend on these records.
		failed[t] = ev.Kind != record.KindEnded && ev.Kind != record.KindDead && ev.Kind != record.KindPart || failed[t]
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
			watchAnew(p.changes[i].task, func(a *taskstate.Attempt) bool { return a.Node == node })
		}
	}

	for t, yes := range failed {
		if yes {
			t.Failed++
		}
	}
}

// takeConflictingAttempt handles the key of an inbox record that a rejected commit found changed, deleted,
// or existing where the commit wanted to create it. If the run is not known to be active, the record
// exists, whoever created it, so the run counts as active from now on. takeConflictingAttempt returns the
// run's task, or nil if the task is not known.
func (s *shardState) takeConflictingAttempt(key string) *taskstate.Task {
	k, ok := s.Keys.ParseRun(key)
	if !ok {
		return nil // cannot happen: the commit wrote or compared the key of an attempt
	}

	t := s.Tasks.Get(k.Ref.String())
	if t == nil {
		return nil
	}

	if t.Holds(k.Run) {
		// The attempt is known: what was read of it is out of date.
		watchAnew(t, func(a *taskstate.Attempt) bool { return a.Run == k.Run })
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

// maxFailedCommits is how many commits in a row may fail for a task before it is set aside.
const maxFailedCommits = 20

// setAside handles tasks for which every commit fails. Such a task is committed alone, but it is decided
// first, so it would delay all other tasks (G19). What is known of it may be wrong, so the first time the
// shard is opened again: setAside returns errReload. If that does not help, the task gets no ticks until
// one of its records changes.
func (s *shardState) setAside(p *plan) error {
	for i := range p.changes {
		t := p.changes[i].task

		switch name := t.FullName(); {
		case t.Failed < maxFailedCommits:
		case !s.reopenedFor[name]:
			s.reopenedFor[name] = true
			return fmt.Errorf("%w: commits for task %s fail", errReload, name)
		default:
			delete(s.reopenedFor, name)
			s.addNotice(notice{kind: taskSetAside, task: name})

			// Bad has the same effect as an entry that cannot be read: no ticks, and the queue waits.
			t.Bad = true
			s.census.Count(t)
			s.rows.Touch(t)
			s.due.Set(t, 0)
			delete(s.uncovered, t)
			t.Failed = 0
		}
	}

	return nil
}

// watchAnew discards what was read of the attempts for which the function returns true. They are read again
// from the start, so the time until an attempt is lost starts over.
func watchAnew(t *taskstate.Task, which func(*taskstate.Attempt) bool) {
	for _, a := range t.Active() {
		if which(a) {
			a.Watch = nil
		}
	}
}
