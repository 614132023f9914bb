package logs

import (
	"container/heap"
	"context"
	"io"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxOpen is the maximum number of outputs that are read at the same time to merge them. If more runs overlap,
// the output of those that began last follows the output of the others.
const maxOpen = 32

// printByTime prints the outputs of runs, merged by the times of their lines. runs must be sorted by their
// beginnings. Output without times is placed at the beginning of its run.
func (m *Merger) printByTime(ctx context.Context, c *client.Client, runs []task.Run, o client.LogOptions) error {
	errs := make([]error, len(runs))
	var open byTime
	defer func() {
		for _, s := range open {
			s.closeSource()
		}
	}()

	// more reads the next piece of a source. It returns false at the end or after an error.
	more := func(s *orderedPiece) bool {
		p, err := s.nextPiece()
		if err != nil {
			s.closeSource()
			if err != io.EOF {
				errs[s.place] = err
			}
			return false
		}

		if s.piece = p; !p.Time.IsZero() {
			s.at = p.Time.Time
		}

		return true
	}

	for next := 0; ; {
		// Open all runs that began before the next piece to print.
		for next < len(runs) && len(open) < maxOpen && (len(open) == 0 || !beginOf(runs[next]).After(open[0].at)) {
			s, err := m.openSource(ctx, c, runs[next], o)
			if errs[next] = err; err != nil && (m.IsHopeless(err) || ctx.Err() != nil) {
				return err
			}

			if err == nil {
				if first := (&orderedPiece{source: s, place: next, at: beginOf(runs[next])}); more(first) {
					heap.Push(&open, first)
				}
			}

			next++
		}

		if len(open) == 0 {
			if next == len(runs) {
				break
			}
			continue
		}

		s := open[0]
		if err := s.output.addPiece(s.piece); err != nil {
			return err
		}

		if more(s) {
			heap.Fix(&open, 0)
		} else {
			heap.Pop(&open)
		}
	}

	return batch.ForEach(ctx, m.Factory, errs, func(err error) error { return err })
}

// orderedPiece is a source with its next piece.
type orderedPiece struct {
	*source
	place int
	piece client.LogPiece
	at    time.Time
}

// byTime is a heap of sources, ordered by the times of their next pieces.
type byTime []*orderedPiece

func (b byTime) Len() int { return len(b) }
func (b byTime) Less(i, j int) bool {
	if c := b[i].at.Compare(b[j].at); c != 0 {
		return c < 0
	}
	return b[i].place < b[j].place
}
func (b byTime) Swap(i, j int) { b[i], b[j] = b[j], b[i] }
func (b *byTime) Push(x any)   { *b = append(*b, x.(*orderedPiece)) }
func (b *byTime) Pop() any {
	last := (*b)[len(*b)-1]
	*b = (*b)[:len(*b)-1]
	return last
}

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
