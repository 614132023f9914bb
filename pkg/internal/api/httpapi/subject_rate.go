package httpapi

import (
	"sync"
	"time"
)

// maxRecentSubjects is the number of subjects from which on those without a recent action are removed from memory.
const maxRecentSubjects = 1024

// SubjectRate limits how often each subject does something within a second. The zero value is ready to use, by several
// goroutines.
type SubjectRate struct {
	mu     sync.Mutex
	recent map[string][]time.Time // within the last second
}

// Allow counts an action, unless the subject has made most of them within the last second.
func (l *SubjectRate) Allow(subject string, most int, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.recent == nil {
		l.recent = map[string][]time.Time{}
	}
	if len(l.recent) >= maxRecentSubjects {
		for s, times := range l.recent {
			if !isRecent(times[len(times)-1], now) {
				delete(l.recent, s)
			}
		}
	}

	var recent []time.Time
	for _, at := range l.recent[subject] {
		if isRecent(at, now) {
			recent = append(recent, at)
		}
	}
	if len(recent) >= most {
		return false
	}
	l.recent[subject] = append(recent, now)

	return true
}

// isRecent reports whether an instant lies within the last second. The clock may have been set back.
func isRecent(at, now time.Time) bool {
	age := now.Sub(at)
	return age >= 0 && age < time.Second
}
