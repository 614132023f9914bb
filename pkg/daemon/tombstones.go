package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// tombstoneAge is how long a deleted task, or secret, is remembered.
	tombstoneAge = 7 * 24 * time.Hour
	// tombstonesEvery is how often a leader looks for older ones, at no more than
	// tombstonesMost of them: the next look goes on from there.
	tombstonesEvery = time.Hour
	tombstonesMost  = 10_000
)

// tombstoneSweeper is the leader's part in forgetting deleted tasks and secrets.
type tombstoneSweeper struct {
	store *store.Store
	clock *clockMonitor // says what is old
	env   Environment
	log   *zap.Logger
}

// run sweeps until ctx ends.
func (t *tombstoneSweeper) run(ctx context.Context) error {
	type sweep struct {
		what  string
		do    func(ctx context.Context, before task.Time, after string, most int) (removed int, next string, err error)
		after string
	}
	sweeps := []*sweep{{what: "tasks", do: t.store.SweepTombstones}, {what: "secrets", do: t.store.SweepSecrets}}

	for {
		for _, s := range sweeps {
			if t.clock.checkClock() != nil { // a clock that is wrong says nothing about age
				continue
			}

			before := task.At(t.env.Now().Add(-tombstoneAge))
			removed, next, err := s.do(ctx, before, s.after, tombstonesMost)
			if err != nil && ctx.Err() == nil {
				t.log.Warn("could not remove old tombstones", zap.String("of", s.what), zap.Error(err))
			}

			if s.after = next; removed > 0 {
				t.log.Info("removed old tombstones", zap.Int(s.what, removed))
			}
		}

		if !clock.Sleep(ctx, tombstonesEvery) {
			return ctx.Err()
		}
	}
}
