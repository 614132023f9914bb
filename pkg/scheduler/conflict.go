package scheduler

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// hasWork reports whether there may be something to decide at now.
func (s *shardState) hasWork(now time.Time) bool {
	return len(s.due) > 0 && s.due[0].DueAt() <= now.UnixMilli() || len(s.looks) > 0 || len(s.uncovered) > 0 || len(s.purges) > 0 || len(s.unread) > 0
}

// applyConflict abandons a plan whose commit failed a compare, and applies the records that the commit found
// changed. It returns errReload if the shard has to be opened again.
func (s *shardState) applyConflict(p *plan, c *store.Conflict, now time.Time) error {
	s.applyAbandoned(p)
	s.takeConflict(p, c, now)

	return s.setAside(p)
}

// takeConflict applies the records that a failed commit found changed. An entry that was deleted or created
// again is forgotten until the watch delivers its current state.
func (s *shardState) takeConflict(p *plan, c *store.Conflict, now time.Time) {
	failed := map[*taskstate.Task]bool{} // counts a task once, however many of its records changed
	// Attempts come first: a queue record may show that one of them has ended, and that attempt must not
	// be considered active afterwards.
	for _, key := range c.Runs {
		s.wakeAt(now.Add(100 * time.Millisecond))
		if t := s.takeConflictingAttempt(key); t != nil {
			failed[t] = true
		}
	}

	for _, ev := range c.Records {
		t := s.TaskOf(&ev)

		switch ev.Kind {
		case record.KindEntry:
			if ev.Deleted || ev.Create != t.Create {
				s.forgetTask(t)
			} else {
				s.applyEntry(&ev)
			}
		case record.KindQueued:
			s.applyQueued(&ev, now)
		case record.KindEnded, record.KindDead, record.KindPart:
			delete(s.purges, ev.Key) // if it is there, the watch will tell
			if ev.Kind == record.KindPart && ev.Deleted && t.Activity != nil {
				delete(t.Activity.Returned, ev.Run)
			}
			s.endSpan(t) // it cannot be extended
		}

		failed[t] = ev.Kind != record.KindEnded && ev.Kind != record.KindDead && ev.Kind != record.KindPart || failed[t]
		s.addLook(t)
	}

	if c.Freezes != nil {
		s.lookAtAll()
	}

	for _, node := range c.Nodes {
		s.wakeAt(now.Add(placement.Suspicion))

		for _, n := range p.reserved {
			if n.Name == node {
				s.placement.Suspect(node, n.Revision, now)
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

// takeConflictingAttempt takes note of an attempt that a lost commit found changed, gone, or
// there where it wanted to put it: then it is in that inbox, whoever put it there.
// It returns the run's task; nil if that is not known.
func (s *shardState) takeConflictingAttempt(key string) *taskstate.Task {
	parts := strings.Split(key, "/") // …/node/shard/namespace/name/run
	n := len(parts)
	node, name, run := parts[n-5], parts[n-3]+"/"+parts[n-2], parts[n-1]

	t := s.Tasks[name]
	if t == nil {
		return nil
	}

	if t.Holds(run) {
		watchAnew(t, func(a *taskstate.Attempt) bool { return a.Run == run })
		return t
	}

	s.addActiveAttempt(t, &taskstate.Attempt{Run: run, Node: node})
	s.placement.Occupy(node)

	return t
}

// forgetTask drops an entry that is gone, or another's, until the watch tells more.
func (s *shardState) forgetTask(t *taskstate.Task) {
	t.Bad = false
	s.noEntry(t)
}

// maxFailedCommits is how many commits in a row may fail for a task.
const maxFailedCommits = 20

// setAside ends it with a task that fails commit after commit: it goes alone, but
// it goes first, and would hold up all others. What is known of it may be wrong:
// the shard is opened again, once. If that does not help, the task has no ticks
// until its records change.
func (s *shardState) setAside(p *plan) error {
	for i := range p.changes {
		t := p.changes[i].task

		switch name := t.FullName(); {
		case t.Failed < maxFailedCommits:
		case !s.stubborn[name]:
			s.stubborn[name] = true
			return fmt.Errorf("%w: commits for task %s fail", errReload, name)
		default:
			delete(s.stubborn, name)
			s.addNotice(notice{kind: taskSetAside, task: name})
			t.Bad = true
			s.census.Count(t)
			s.due.Set(t, 0)
			delete(s.uncovered, t)
			t.Failed = 0
		}
	}

	return nil
}

// watchAnew discards what is known about the attempts that which selects.
func watchAnew(t *taskstate.Task, which func(*taskstate.Attempt) bool) {
	for _, a := range t.Active() {
		if which(a) {
			a.Watch = nil
		}
	}
}
