package scheduler

// rest has the worker look at a task at an instant, in ms, that is far away, maybe.
func (w *worker) rest(t *taskState, until int64) {
	w.rests[t] = until
	if w.restUntil == 0 || until < w.restUntil {
		w.restUntil = until
	}
}

// rested looks at the tasks whose rest is over.
func (w *worker) rested(now int64) {
	if w.restUntil == 0 || now < w.restUntil {
		return
	}
	w.restUntil = 0
	for t, until := range w.rests {
		if until <= now {
			delete(w.rests, t)
			w.look(t)
		} else if w.restUntil == 0 || until < w.restUntil {
			w.restUntil = until
		}
	}
}
