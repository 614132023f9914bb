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
	// tombstoneAge is how long the tombstone of a deleted task or secret is kept.
	tombstoneAge = 7 * 24 * time.Hour
	// tombstonesEvery is the interval at which the leader removes older ones. One pass examines up to
	// tombstonesMost of them, and the next one continues from there.
	tombstonesEvery = time.Hour
	tombstonesMost  = 10_000
)

// tombstoneSweeper removes old tombstones while the node leads.
type tombstoneSweeper struct {
	store *store.Store
	clock *clockMonitor // ages are computed only while the clock is trusted
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
			if t.clock.checkClock() != nil { // with a wrong clock, ages are wrong, too
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
