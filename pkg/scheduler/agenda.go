package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
)

// agenda holds which tasks the next plan examines, and when the worker must examine tasks again. It affects
// only when a task is examined, never what is decided. So it stays as it is when a commit fails.
type agenda struct {
	// toExamine are the tasks that the next plan examines, each once: something waits, or an attempt needs
	// attention.
	toExamine []*taskstate.Task
	// examineLater holds tasks that are to be examined at a later time, in Unix milliseconds. Unlike examineAllAt, they
	// may be far in the future, and only these tasks are examined then.
	examineLater     map[*taskstate.Task]int64
	nextExamineLater int64     // the earliest of examineLater, or 0 if there is none
	lastExamined     time.Time // when all tasks with waiting or active runs were last examined
	examineAllAt     time.Time // when to examine them all next, or zero
}

// examineAgainAt notes that the task must be examined again at an instant in Unix milliseconds. It replaces an
// earlier note for the task.
func (a *agenda) examineAgainAt(t *taskstate.Task, until int64) {
	a.examineLater[t] = until
	if a.nextExamineLater == 0 || until < a.nextExamineLater {
		a.nextExamineLater = until
	}
}

// moveDueTasks moves the tasks whose time has come from examineLater to toExamine. now is in Unix milliseconds.
func (a *agenda) moveDueTasks(now int64) {
	if a.nextExamineLater == 0 || now < a.nextExamineLater {
		return
	}

	a.nextExamineLater = 0
	for t, until := range a.examineLater {
		if until <= now {
			delete(a.examineLater, t)
			a.examineNext(t)
		} else if a.nextExamineLater == 0 || until < a.nextExamineLater {
			a.nextExamineLater = until
		}
	}
}

// takeToExamine returns the tasks to examine, ordered by name so that plans are deterministic, and empties the
// list. The caller clears Task.IsListed of each.
func (a *agenda) takeToExamine() []*taskstate.Task {
	tasks := a.toExamine
	a.toExamine = nil
	slices.SortFunc(tasks, taskstate.ByName)

	return tasks
}

// maxIdleSleep is the longest time that a worker sleeps without reading the clock. A timer counts neither
// the time during which a machine was suspended nor steps of the clock.
const maxIdleSleep = 5 * time.Second

// examineAll notes all tasks that have waiting or active runs.
func (s *shardState) examineAll() {
	for _, t := range s.active.Tasks {
		s.examineNext(t)
	}
}

// examineAllBy makes the worker examine all tasks with waiting or active runs at t or earlier.
func (a *agenda) examineAllBy(t time.Time) {
	if a.examineAllAt.IsZero() || t.Before(a.examineAllAt) {
		a.examineAllAt = t
	}
}

// examineNext notes that the next plan must examine the task.
func (a *agenda) examineNext(t *taskstate.Task) {
	if t.SetListed(true) {
		a.toExamine = append(a.toExamine, t)
	}
}

// hasWork reports whether there may be something to decide at now, or a history to read.
func (s *shardState) hasWork(now time.Time) bool {
	return len(s.due) > 0 && s.due[0].DueAt() <= now.UnixMilli() || len(s.toExamine) > 0 || len(s.uncovered) > 0 || len(s.purges) > 0 || len(s.unread) > 0 ||
		len(s.aside.ready(now.UnixMilli())) > 0
}
