package logs

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// reorderWindow is how long a line of one of several runs that are followed is held back, so
	// that what was printed before it elsewhere stands before it: nodes send within a
	// tenth of a second what is written.
	reorderWindow = 250 * time.Millisecond
	// maxPendingBytes is how many bytes are held back for that.
	maxPendingBytes = 1 << 20
)

// pendingLine is what is held back.
type pendingLine struct {
	s        *streamBuffer
	text     []byte
	printed  task.Time // as its line says
	at, came time.Time // for its turn; when it was read
}

// enqueueOutput writes what a stream has printed, in its turn.
func (m *Merger) enqueueOutput(s *streamBuffer, text []byte) {
	switch {
	case m.patient, s.prefix == "": // it comes in order, or alone
		m.writeOutput(s, s.at, text)
		return
	case s.at.IsZero(): // nobody knows its turn
		m.releaseTo(func(u pendingLine) bool { return u.s.RunOutput == s.RunOutput })
		m.writeOutput(s, s.at, text)
		return
	}

	u := pendingLine{s: s, text: slices.Clone(text), printed: s.at, at: s.at.Time, came: time.Now()}
	if u.at.Before(s.last) { // its next attempt is on a node whose clock is behind
		u.at = s.last
	}

	s.last = u.at
	i := len(m.pending)
	for i > 0 && m.pending[i-1].at.After(u.at) {
		i--
	}

	m.pending = slices.Insert(m.pending, i, u)
	if m.pendingBytes += len(text); m.pendingBytes > maxPendingBytes {
		m.writePending(max(1, len(m.pending)/2))
	}

	if m.releaseTimer == nil {
		m.releaseTimer = time.AfterFunc(reorderWindow, m.releaseDue)
	}
}

// releaseDue writes what has been held back for long enough.
func (m *Merger) releaseDue() {
	m.mu.Lock()
	defer m.mu.Unlock()

	now := time.Now()
	m.releaseTo(func(u pendingLine) bool { return now.Sub(u.came) >= reorderWindow })

	if m.releaseTimer = nil; len(m.pending) > 0 {
		oldest := slices.MinFunc(m.pending, func(a, b pendingLine) int { return a.came.Compare(b.came) })
		m.releaseTimer = time.AfterFunc(reorderWindow-now.Sub(oldest.came), m.releaseDue)
	}
}

// releaseTo writes what is held back, up to the last for which that holds.
func (m *Merger) releaseTo(is func(pendingLine) bool) {
	for i, u := range slices.Backward(m.pending) {
		if is(u) {
			m.writePending(i + 1)
			return
		}
	}
}

func (m *Merger) writePending(n int) {
	for _, u := range m.pending[:n] {
		m.pendingBytes -= len(u.text)
		m.writeOutput(u.s, u.printed, u.text)
	}
	m.pending = slices.Delete(m.pending, 0, n)
}
