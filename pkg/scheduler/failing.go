package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/board"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// failure is the last run of a task to end, if it failed, timed out or was lost: for
// the board alone, nothing is decided by it. Only tasks that fail have one.
//
// A worker hears of every end by the watch. What was before it opened its shard is
// told by the dead runs (see recaller), by which lists of the API go alone: these
// have a task failing as long as one of them is there and no run has succeeded since.
type failure struct {
	mod int64 // of the record
	board.Failure
}

func failureOf(mod int64, r task.Run, inARow int) *failure {
	return &failure{mod: mod, Failure: board.Failure{
		Run: r.ID, State: r.State, Reason: knownReason(r.Reason), ExitCode: r.ExitCode, Node: r.Node, Ended: r.EndedAt.UnixMilli(), InARow: inARow,
	}}
}

// knownReason is a reason without the record that it was read from.
func knownReason(text string) string {
	r, _ := task.ReasonOf(text)
	return r.Name
}

// failures are the tasks of a shard whose last run to end failed.
type failures struct {
	failing map[*taskstate.Task]*failure

	// endedWhileRecalling has the tasks whose runs have ended, or whose dead runs were dismissed, while
	// former failures are read: the last revision of each. nil: all former failures are known.
	endedWhileRecalling map[string]int64
}

func newFailures() failures {
	return failures{failing: map[*taskstate.Task]*failure{}, endedWhileRecalling: map[string]int64{}}
}

// noteOutcome takes note of how a run of t ended. It reports whether that is a new end of a run.
func (s *failures) noteOutcome(t *taskstate.Task, ev *store.ShardEvent) (e taskstate.End, news bool) {
	e = taskstate.End{Mod: ev.Mod, State: record.StateOf(ev.Value)}
	before := s.failing[t]
	if ev.Late || !e.Ran() || before != nil && ev.Mod <= before.mod {
		return e, false
	}

	if s.endedWhileRecalling != nil {
		s.endedWhileRecalling[t.FullName()] = ev.Mod
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

	s.failing[t] = failureOf(ev.Mod, r, n)

	return e, true
}

// noteDismissed takes note that a dead run is off its list: a person has dismissed it or
// had it run again. A task whose last failure that was is not failing any more.
func (s *failures) noteDismissed(t *taskstate.Task, ev *store.ShardEvent) {
	if f := s.failing[t]; f == nil || f.Run != ev.Run || ev.Mod <= f.mod {
		return
	}

	delete(s.failing, t)

	if s.endedWhileRecalling != nil {
		s.endedWhileRecalling[t.FullName()] = ev.Mod
	}
}

// restore takes what had failed before the shard was opened, unless the watch has
// told of a later end of the task. tasks are those of the shard, by their names.
func (s *failures) restore(r *recollection, tasks map[string]*taskstate.Task) {
	for name, f := range r.failing {
		t := tasks[name]
		if t == nil || t.Orphan(f.Run) || t.Bad || s.endedWhileRecalling[name] > f.mod {
			continue
		}

		if now := s.failing[t]; now == nil {
			s.failing[t] = f
		}
	}

	if !r.more {
		s.endedWhileRecalling = nil
	}
}
