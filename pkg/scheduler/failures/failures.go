// Package failures knows which tasks of a shard are failing: those whose last run to end failed, timed
// out or was lost. It is for the board alone: nothing is decided by it.
//
// A worker hears of every end by its watch, and notes it in a Set. What ended before the worker opened
// its shard, a Reader finds in the dead runs. The lists of the API go by the dead runs alone: for them
// a task fails as long as it has a dead run after which no run of it succeeded.
package failures

import (
	"iter"
	"maps"

	"github.com/carillonhq/carillon/pkg/scheduler/board"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Failure is the last run of a task to end, if it failed, timed out or was lost.
type Failure struct {
	Mod int64 // the mod revision of its record
	board.Failure
}

func newFailure(mod int64, r task.Run, inARow int) *Failure {
	return &Failure{Mod: mod, Failure: board.Failure{
		Run: r.ID, State: r.State, Reason: knownReason(r.Reason), ExitCode: r.ExitCode, Node: r.Node, Ended: r.EndedAt.UnixMilli(), InARow: inARow,
	}}
}

// knownReason is a reason without the record that it was read from.
func knownReason(text string) string {
	r, _ := task.ReasonOf(text)
	return r.Name
}

// Set has the tasks of a shard that are failing. Only the shard's worker uses it.
type Set struct {
	failing map[*taskstate.Task]*Failure

	// endedWhileReading has, by name, the tasks of which a run has ended, or a dead run was dismissed, since
	// the set was made: the last revision of each. It is nil when the reader has delivered all that failed before.
	endedWhileReading map[string]int64
}

// NewSet returns a set for a shard that is opened. It waits for what a Reader finds.
func NewSet() Set {
	return Set{failing: map[*taskstate.Task]*Failure{}, endedWhileReading: map[string]int64{}}
}

// Len is the number of tasks that are failing.
func (s *Set) Len() int { return len(s.failing) }

// All returns the failing tasks with their last failures, in no particular order.
func (s *Set) All() iter.Seq2[*taskstate.Task, *Failure] { return maps.All(s.failing) }

// Forget removes a task that no longer exists.
func (s *Set) Forget(t *taskstate.Task) { delete(s.failing, t) }

// NoteEnd notes how a run of t ended. It returns that end, and reports whether it is a new end of a run.
func (s *Set) NoteEnd(t *taskstate.Task, ev *store.ShardEvent) (e taskstate.End, isNew bool) {
	e = taskstate.End{Mod: ev.Mod, State: record.StateOf(ev.Value)}
	before := s.failing[t]
	if ev.Late || !e.Ran() || before != nil && ev.Mod <= before.Mod {
		return e, false
	}

	if s.endedWhileReading != nil {
		s.endedWhileReading[t.FullName()] = ev.Mod
	}

	if !e.Failed() {
		delete(s.failing, t)
		return e, true
	}

	r, err := record.DecodeEnded(ev.ShardKey, ev.Value)
	if err != nil {
		return e, true
	}

	n := 1
	if before != nil {
		n += before.InARow
	}

	s.failing[t] = newFailure(ev.Mod, r, n)

	return e, true
}

// NoteDismissed notes that a dead run was removed: somebody dismissed it or ran it again. If it was
// the task's last failure, the task is not failing any more.
func (s *Set) NoteDismissed(t *taskstate.Task, ev *store.ShardEvent) {
	if f := s.failing[t]; f == nil || f.Run != ev.Run || ev.Mod <= f.Mod {
		return
	}

	delete(s.failing, t)

	if s.endedWhileReading != nil {
		s.endedWhileReading[t.FullName()] = ev.Mod
	}
}

// Restore adds what failed before the shard was opened, unless the watch has told of a later end of
// the task. tasks are those of the shard, by namespace/name.
func (s *Set) Restore(found *Found, tasks map[string]*taskstate.Task) {
	for name, f := range found.Failing {
		t := tasks[name]
		if t == nil || t.Orphan(f.Run) || t.Bad || s.endedWhileReading[name] > f.Mod {
			continue
		}

		if s.failing[t] == nil {
			s.failing[t] = f
		}
	}

	if !found.More {
		s.endedWhileReading = nil
	}
}
