package board

import (
	"context"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// fakeWorker answers at once with one task, or not at all.
type fakeWorker struct{ silent bool }

func (w *fakeWorker) ShardID() int         { return 0 }
func (w *fakeWorker) OwnerRevision() int64 { return 1 }
func (w *fakeWorker) Serving() bool        { return true }
func (w *fakeWorker) Undecided() int64     { return 0 }

func (w *fakeWorker) RequestSummary(g *Summary) {
	if !w.silent {
		g.Tasks = 1
		g.Shown <- g
	}
}

func TestCollector_DoesNotKeepThePartOfACallerThatIsGone(t *testing.T) {
	w := &fakeWorker{silent: true}
	c := NewCollector("n1", &Recent{}, func() []Worker { return []Worker{w} })
	q := task.BoardQuery{Span: time.Minute, Limit: 10}

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	c.Part(gone, q, start)

	w.silent = false
	if p := c.Part(t.Context(), q, start); p.Counts().Tasks != 1 || p.Counts().Serving != 1 {
		t.Errorf("the next caller gets %d tasks of %d shards", p.Counts().Tasks, p.Counts().Serving)
	}

	// Another one within boardAge gets the same part.
	w.silent = true
	if p := c.Part(t.Context(), q, start); p.Counts().Tasks != 1 {
		t.Errorf("the part is not kept: %d tasks", p.Counts().Tasks)
	}
}
