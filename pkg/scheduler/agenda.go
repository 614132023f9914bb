package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
)

// agenda holds which tasks the next plan examines, and when the worker must examine tasks again. It affects
// only when a task is examined, never what is decided. So it stays as it is when a commit fails.
type agenda struct {
	// looks are the tasks that the next plan examines, each once: something waits, or an attempt needs
	// attention.
	looks []*taskstate.Task
	// rests holds tasks that are to be examined at a later time, in Unix milliseconds. Unlike wakes, they
	// may be far in the future, and only these tasks are examined then.
	rests     map[*taskstate.Task]int64
	restUntil int64     // the earliest of rests, or 0 if there is none
	looked    time.Time // when all tasks with waiting or active runs were last examined
	wakes     time.Time // when to examine them all next, or zero
}

// lookAgainAt notes that the task must be examined again at an instant in Unix milliseconds. It replaces an
// earlier note for the task.
func (a *agenda) lookAgainAt(t *taskstate.Task, until int64) {
	a.rests[t] = until
	if a.restUntil == 0 || until < a.restUntil {
		a.restUntil = until
	}
}

// lookAtRested moves the tasks whose time has come from rests to looks. now is in Unix milliseconds.
func (a *agenda) lookAtRested(now int64) {
	if a.restUntil == 0 || now < a.restUntil {
		return
	}

	a.restUntil = 0
	for t, until := range a.rests {
		if until <= now {
			delete(a.rests, t)
			a.addLook(t)
		} else if a.restUntil == 0 || until < a.restUntil {
			a.restUntil = until
		}
	}
}

// takeLooks returns the tasks to examine, ordered by name so that plans are deterministic, and empties the
// list. The caller clears what Task.Looked returns of each.
func (a *agenda) takeLooks() []*taskstate.Task {
	looks := a.looks
	a.looks = nil
	slices.SortFunc(looks, taskstate.ByName)

	return looks
}

// maxIdleSleep is the longest time that a worker sleeps without reading the clock. A timer counts neither
// the time during which a machine was suspended nor steps of the clock.
const maxIdleSleep = 5 * time.Second

// lookAtAll notes all tasks that have waiting or active runs.
func (s *shardState) lookAtAll() {
	for _, t := range s.active.Tasks {
		s.addLook(t)
	}
}

// wakeAt makes the worker examine all tasks with waiting or active runs at t or earlier.
func (a *agenda) wakeAt(t time.Time) {
	if a.wakes.IsZero() || t.Before(a.wakes) {
		a.wakes = t
	}
}

// addLook notes that the next plan must examine the task.
func (a *agenda) addLook(t *taskstate.Task) {
	if t.SetLooked(true) {
		a.looks = append(a.looks, t)
	}
}

// hasWork reports whether there may be something to decide at now, or a history to read.
func (s *shardState) hasWork(now time.Time) bool {
	return len(s.due) > 0 && s.due[0].DueAt() <= now.UnixMilli() || len(s.looks) > 0 || len(s.uncovered) > 0 || len(s.purges) > 0 || len(s.unread) > 0
}
