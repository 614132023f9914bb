package scheduler

// rest has the worker look at a task at an instant, in ms, that is far away, maybe.
func (s *shardState) rest(t *taskState, until int64) {
	s.rests[t] = until
	if s.restUntil == 0 || until < s.restUntil {
		s.restUntil = until
	}
}

// rested looks at the tasks whose rest is over.
func (s *shardState) rested(now int64) {
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
