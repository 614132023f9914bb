package retention

import (
	"maps"
	"sync"
	"time"
)

const (
	warnEvery = time.Hour
	maxWarned = 1000 // tasks of which the last warning is remembered
)

// warnings limits how often the log warns of each task. The zero value is ready to use.
type warnings struct {
	mu   sync.Mutex
	last map[string]time.Time // when it warned of which task
}

// noteFailure reports whether to warn of a task whose trim failed: once an hour, and of a limited number of tasks.
func (w *warnings) noteFailure(name string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	isOver := func(_ string, at time.Time) bool { return now.Sub(at) >= warnEvery }
	if at, known := w.last[name]; known && !isOver(name, at) {
		return false
	}

	if len(w.last) >= maxWarned {
		maps.DeleteFunc(w.last, isOver)
		if len(w.last) >= maxWarned {
			return false
		}
	}

	if w.last == nil {
		w.last = map[string]time.Time{}
	}
	w.last[name] = now

	return true
}
