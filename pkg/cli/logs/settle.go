package logs

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// settle is how long a line of one of several runs that are followed is held back, so
	// that what was printed before it elsewhere stands before it: nodes send within a
	// tenth of a second what is written.
	settle = 250 * time.Millisecond
	// MostUnsettled is how many bytes are held back for that.
	mostUnsettled = 1 << 20
)

// pendingLine is what is held back.
type pendingLine struct {
	s        *streamBuffer
	text     []byte
	printed  task.Time // as its line says
	at, came time.Time // for its turn; when it was read
}

// put writes what a strand has printed, in its turn.
func (m *Merger) put(s *streamBuffer, text []byte) {
	switch {
	case m.patient, s.prefix == "": // it comes in order, or alone
		m.write(s, s.at, text)
		return
	case s.at.IsZero(): // nobody knows its turn
		m.releaseTo(func(u pendingLine) bool { return u.s.RunOutput == s.RunOutput })
		m.write(s, s.at, text)
		return
	}
	u := pendingLine{s: s, text: slices.Clone(text), printed: s.at, at: s.at.Time, came: time.Now()}
	if u.at.Before(s.last) { // its next attempt is on a node whose clock is behind
		u.at = s.last
	}
	s.last = u.at
	i := len(m.unsettled)
	for i > 0 && m.unsettled[i-1].at.After(u.at) {
		i--
	}
	m.unsettled = slices.Insert(m.unsettled, i, u)
	if m.unsettledBytes += len(text); m.unsettledBytes > mostUnsettled {
		m.release(max(1, len(m.unsettled)/2))
	}
	if m.settling == nil {
		m.settling = time.AfterFunc(settle, m.settled)
	}
}

// settled writes what has been held back for long enough.
func (m *Merger) settled() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.releaseTo(func(u pendingLine) bool { return now.Sub(u.came) >= settle })
	if m.settling = nil; len(m.unsettled) > 0 {
		oldest := slices.MinFunc(m.unsettled, func(a, b pendingLine) int { return a.came.Compare(b.came) })
		m.settling = time.AfterFunc(settle-now.Sub(oldest.came), m.settled)
	}
}

// releaseTo writes what is held back, up to the last for which that holds.
func (m *Merger) releaseTo(is func(pendingLine) bool) {
	for i, u := range slices.Backward(m.unsettled) {
		if is(u) {
			m.release(i + 1)
			return
		}
	}
}

func (m *Merger) release(n int) {
	for _, u := range m.unsettled[:n] {
		m.unsettledBytes -= len(u.text)
		m.write(u.s, u.printed, u.text)
	}
	m.unsettled = slices.Delete(m.unsettled, 0, n)
}
