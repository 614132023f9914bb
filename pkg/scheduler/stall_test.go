package scheduler

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// stuckStore is a store whose commits do not return while it is stuck.
type stuckStore struct {
	Store
	stuck atomic.Bool
}

func (s *stuckStore) Commit(ctx context.Context, c *store.Commit) (int64, error) {
	if s.stuck.Load() {
		<-ctx.Done()
		return 0, task.ErrUnknown
	}
	return s.Store.Commit(ctx, c)
}

func TestEngine_FindsAWorkerThatStandsStillAndHasItBeginAnew(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		s := &stuckStore{}
		r := w.run("n1", func(e *Engine) { s.Store, e.cfg.Store = e.cfg.Store, s })
		w.create("a", allow, every("100ms"))
		w.eventually("it fires", func() bool { return len(w.active("a")) > 1 })

		const age = 30 * time.Second
		if shards, all := r.Stalled(time.Now(), age); len(shards) > 0 || all != nil {
			t.Errorf("shards %v stall: %v", shards, all)
		}

		s.stuck.Store(true)
		w.eventually("it stalls", func() bool {
			shards, all := r.Stalled(time.Now(), 300*time.Millisecond)
			return slices.Equal(shards, []int{0}) && all != nil
		})

		s.stuck.Store(false)
		n, beats := len(w.active("a")), r.Beats()
		r.Restart(0)
		w.eventually("it goes on", func() bool { return len(w.active("a")) > n+2 })
		w.eventually("it beats", func() bool { return r.Beats() > beats })
	})
}

func TestWorker_CommitsNothingThatItMayNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("* * * * * *"))
	h.decide(1)
	n := len(w.active("a"))
	why := errors.New("the clock has jumped")
	h.e.cfg.MayCommit = func() error { return why }
	if err := h.try(2); !errors.Is(err, why) || !errors.Is(err, task.ErrFenced) {
		t.Errorf("the round ends with %v", err)
	}

	if got := len(w.active("a")); got != n {
		t.Errorf("%d runs, %d before", got, n)
	}
}
