package logs

import (
	"container/heap"
	"context"
	"io"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// mostOpen is the maximum number of outputs that are read at the same time to merge them. If more runs overlap,
// the output of those that began last follows the output of the others.
const mostOpen = 32

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
		for next < len(runs) && len(open) < mostOpen && (len(open) == 0 || !beginOf(runs[next]).After(open[0].at)) {
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
