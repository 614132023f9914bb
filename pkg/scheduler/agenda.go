package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
)

// agenda says which tasks the next plan looks at, and when the worker has to look again at what
// waits. It never changes what is decided, only when something is looked at, so it stays as it is
// when a commit fails.
type agenda struct {
	looks     []*taskstate.Task         // what waits for them, or their attempts, want a look
	rests     map[*taskstate.Task]int64 // until when they want no look; Unix milliseconds
	restUntil int64                     // the first of them; 0: none
	looked    time.Time                 // when all that waits was looked at last
	wakes     time.Time                 // when a waiting run or a lost attempt wants a look; zero if none
}

// lookAgainAt has the worker look at a task at an instant, in ms, that is far away, maybe.
func (a *agenda) lookAgainAt(t *taskstate.Task, until int64) {
	a.rests[t] = until
	if a.restUntil == 0 || until < a.restUntil {
		a.restUntil = until
	}
}

// lookAtRested looks at the tasks whose rest is over.
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

// takeLooks returns the tasks that want a look, in the order of their names. None wants one after that.
func (a *agenda) takeLooks() []*taskstate.Task {
	looks := a.looks
	a.looks = nil
	slices.SortFunc(looks, taskstate.ByName)

	return looks
}

// maxIdleSleep is how long a worker sleeps at most without a look at the clock: a
// timer counts neither the time that a laptop was suspended nor steps of the clock.
const maxIdleSleep = 5 * time.Second

// lookAtAll has all tasks looked at of which something waits or runs.
func (s *shardState) lookAtAll() {
	for _, t := range s.active.Tasks {
		s.addLook(t)
	}
}

// wakeAt makes the worker look again at t, at the latest.
func (a *agenda) wakeAt(t time.Time) {
	if a.wakes.IsZero() || t.Before(a.wakes) {
		a.wakes = t
	}
}

// addLook notes that what waits for the task, or its attempts, want a look.
func (a *agenda) addLook(t *taskstate.Task) {
	if !t.Looked {
		t.Looked = true
		a.looks = append(a.looks, t)
	}
}
