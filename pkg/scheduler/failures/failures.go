// Package failures tracks which tasks of a shard are failing: those with a dead run after which no run
// succeeded. It is for the board only, and no decision depends on it.
//
// A worker's watch delivers every end of a run, and the worker adds it to a Set. A Reader finds earlier
// failures in the dead runs.
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
	Mod int64 // mod revision of its record
	board.Failure
}

// newFailure returns the failure of run r. It copies no more of the record than the board shows. inARow is
// the number of consecutive failures.
func newFailure(mod int64, r task.Run, inARow int) *Failure {
	return &Failure{Mod: mod, Failure: board.Failure{
		Run: r.ID, State: r.State, Reason: knownReason(r.Reason), ExitCode: r.ExitCode, Node: r.Node, Ended: r.EndedAt.UnixMilli(), InARow: inARow,
	}}
}

// knownReason returns a reason as a constant string, which does not keep the record in memory from which
// text was read.
func knownReason(text string) string {
	r, _ := task.ReasonOf(text)
	return r.Name
}

// Set holds the failing tasks of a shard. Only the shard's worker uses it.
type Set struct {
	failing map[*taskstate.Task]*Failure

	// endedWhileReading holds, by name, the tasks of which a run has ended or a dead run was dismissed
	// since the set was created, with the last revision of each. It takes precedence over what a Reader
	// finds. It is nil when the Reader has delivered everything.
	endedWhileReading map[string]int64
}

// NewSet returns an empty set for a shard that is being opened.
func NewSet() Set {
	return Set{failing: map[*taskstate.Task]*Failure{}, endedWhileReading: map[string]int64{}}
}

// Len returns the number of failing tasks.
func (s *Set) Len() int { return len(s.failing) }

// All returns the failing tasks with their last failures, in no particular order.
func (s *Set) All() iter.Seq2[*taskstate.Task, *Failure] { return maps.All(s.failing) }

// Forget removes a task that no longer exists.
func (s *Set) Forget(t *taskstate.Task) { delete(s.failing, t) }

// NoteEnd adds the end of a run of t. It returns that end, and reports whether it is a new end of a run
// that succeeded or failed.
func (s *Set) NoteEnd(t *taskstate.Task, ev *store.ShardEvent) (e taskstate.End, isNew bool) {
	e = taskstate.End{Mod: ev.Mod, State: record.StateOf(ev.Value)}
	before := s.failing[t]

	// Only a newer end of a run that succeeded or failed matters. A cancelled run says nothing about the
	// task.
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

	// A failure: decode the whole record, because the board shows its details.
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

// NoteDismissed handles the removal of a dead run: somebody dismissed it or started it again. left is the
// number of dead runs of the task that remain after its last success, and known reports whether all of them
// are known. The task is failing until none is left, as in lists.
func (s *Set) NoteDismissed(t *taskstate.Task, ev *store.ShardEvent, left int, known bool) {
	f := s.failing[t]
	if f == nil || ev.Mod <= f.Mod || left > 0 || !known && f.Run != ev.Run {
		return
	}

	delete(s.failing, t)

	if s.endedWhileReading != nil {
		s.endedWhileReading[t.FullName()] = ev.Mod
	}
}

// Restore adds failures from before the shard was opened, unless a later end of the same task is known.
// tasks are those of the shard.
func (s *Set) Restore(found *Found, tasks *taskstate.Tasks) {
	for name, f := range found.Failing {
		t := tasks.Get(name)
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
