package httpapi

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
)

// subjectShare is the part of a node's slots that one subject may hold: one in subjectShare.
const subjectShare = 4

// Slots counts the requests that hold something for a long time, such as a watch or a connection to another node. It limits
// them for the whole node and for each subject, so that no subject can keep all others out. The zero value is ready to use,
// by several goroutines.
type Slots struct {
	mu        sync.Mutex
	total     int
	bySubject map[string]int
}

// Acquire takes one of most slots for a request, or returns a failure if the node or the subject of the caller has none left.
// The caller must call release when the request has ended. what says what these requests do at the node, in messages.
func (s *Slots) Acquire(c *Call, most int, what, node string) (release func(), err error) {
	release, err = s.AcquireLater(c.Context(), most, what, node)
	if err != nil {
		SuggestRetry(c)
	}

	return release, err
}

// SuggestRetry adds the header to an answer that tells when to try again after slots were busy.
func SuggestRetry(c *Call) { c.Writer.Header().Set("Retry-After", "2") }

// AcquireLater is like Acquire, except that it does not touch the answer, which may have begun. ctx is that of the request.
func (s *Slots) AcquireLater(ctx context.Context, most int, what, node string) (release func(), err error) {
	caller := CallerOf(ctx)
	subject := caller.Who

	s.mu.Lock()
	defer s.mu.Unlock()

	var busy *Failure
	switch {
	case s.total >= most:
		busy = Fail(http.StatusTooManyRequests, client.CodeBusy, "%d callers already %s at node %s", s.total, what, node).
			WithHint("try again, or use another node")
	case s.bySubject[subject] >= most/subjectShare:
		busy = Fail(http.StatusTooManyRequests, client.CodeBusy, "%d requests of %s already %s at node %s, the most for one subject", s.bySubject[subject], caller.Name(), what, node).
			WithHint("end some of them, or use another node")
	}
	if busy != nil {
		return nil, busy
	}

	if s.bySubject == nil {
		s.bySubject = map[string]int{}
	}
	s.total++
	s.bySubject[subject]++

	return func() { s.release(subject) }, nil
}

func (s *Slots) release(subject string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.total--
	if s.bySubject[subject]--; s.bySubject[subject] == 0 {
		delete(s.bySubject, subject)
	}
}

// Held returns how many slots are taken.
func (s *Slots) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.total
}

// maxRecentSubjects is the number of subjects beyond which those without a recent action are removed from memory.
const maxRecentSubjects = 1024

// SubjectRate limits how often each subject does something within a second. The zero value is ready to use, by several
// goroutines.
type SubjectRate struct {
	mu     sync.Mutex
	recent map[string][]time.Time // within the last second
}

// Allow counts an action, unless the subject has made most of them within the last second.
func (r *SubjectRate) Allow(subject string, most int, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.recent == nil {
		r.recent = map[string][]time.Time{}
	}
	if len(r.recent) >= maxRecentSubjects {
		for s, times := range r.recent {
			if !isRecent(times[len(times)-1], now) {
				delete(r.recent, s)
			}
		}
	}

	var recent []time.Time
	for _, at := range r.recent[subject] {
		if isRecent(at, now) {
			recent = append(recent, at)
		}
	}
	if len(recent) >= most {
		return false
	}
	r.recent[subject] = append(recent, now)

	return true
}

// isRecent reports whether an instant lies within the last second. The clock may have been set back.
func isRecent(at, now time.Time) bool {
	age := now.Sub(at)
	return age >= 0 && age < time.Second
}
