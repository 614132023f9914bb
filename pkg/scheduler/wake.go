package scheduler

import "time"

// rest has the worker look at a task at an instant, in ms, that is far away, maybe.
func (s *shardState) rest(t *taskState, until int64) {
	s.rests[t] = until
	if s.restUntil == 0 || until < s.restUntil {
		s.restUntil = until
	}
}

// lookAtRested looks at the tasks whose rest is over.
func (s *shardState) lookAtRested(now int64) {
	if s.restUntil == 0 || now < s.restUntil {
		return
	}
	s.restUntil = 0
	for t, until := range s.rests {
		if until <= now {
			delete(s.rests, t)
			s.look(t)
		} else if s.restUntil == 0 || until < s.restUntil {
			s.restUntil = until
		}
	}
}

// maxIdleSleep is how long a worker sleeps at most without a look at the clock: a
// timer counts neither the time that a laptop was suspended nor steps of the clock.
const maxIdleSleep = 5 * time.Second

func (s *shardState) lookAtAll() {
	for _, t := range s.active.tasks {
		s.look(t)
	}
}

// wakeAt makes the worker look again at t, at the latest.
func (s *shardState) wakeAt(t time.Time) {
	if s.wakes.IsZero() || t.Before(s.wakes) {
		s.wakes = t
	}
}

// look notes that what waits for the task, or its attempts, want a look.
func (s *shardState) look(t *taskState) {
	if !t.looked {
		t.looked = true
		s.looks = append(s.looks, t)
	}
}
