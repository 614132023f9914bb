package logs

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// reorderWindow is how long a line is held back if several runs are followed, so that earlier lines from
	// other nodes can be printed before it. Nodes send output within 0.1 s.
	reorderWindow = 250 * time.Millisecond
	// maxPendingBytes is the maximum number of bytes that are held back.
	maxPendingBytes = 1 << 20
)

// pendingLine is a line that is held back.
type pendingLine struct {
	s        *streamBuffer
	text     []byte
	printed  task.Time // the time to print; zero if unknown
	at, came time.Time // at: determines the order; came: when it was read
}

// enqueueOutput prints text of a stream, or holds it back until its turn.
func (m *Merger) enqueueOutput(s *streamBuffer, text []byte) {
	switch {
	case m.patient, s.prefix == "": // the order is known already, or there is only one run
		m.writeOutput(s, s.at, text)
		return
	case s.at.IsZero(): // without a time its place is unknown; it must only stay behind earlier output of its run
		m.releaseTo(func(u pendingLine) bool { return u.s.RunOutput == s.RunOutput })
		m.writeOutput(s, s.at, text)
		return
	}

	u := pendingLine{s: s, text: slices.Clone(text), printed: s.at, at: s.at.Time, came: time.Now()}
	if u.at.Before(s.last) { // the clock of the node of its next attempt may be behind
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

// releaseDue prints the lines that have been held back for long enough.
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

// releaseTo prints all lines up to the last one for which is returns true.
func (m *Merger) releaseTo(is func(pendingLine) bool) {
	for i, u := range slices.Backward(m.pending) {
		if is(u) {
			m.writePending(i + 1)
			return
		}
	}
}

// writePending prints the first n lines that are held back.
func (m *Merger) writePending(n int) {
	for _, u := range m.pending[:n] {
		m.pendingBytes -= len(u.text)
		m.writeOutput(u.s, u.printed, u.text)
	}
	m.pending = slices.Delete(m.pending, 0, n)
}
