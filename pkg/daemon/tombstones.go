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
	// idempotencyAge is how long the record of a request with an idempotency key is kept. It bounds the space of these records: each
	// takes about 250 bytes, and a caller can create hundreds per second.
	idempotencyAge = time.Hour
	// tombstonesEvery is the interval at which the leader removes older ones. One pass examines up to
	// tombstonesMost of them, and the next one continues from there.
	tombstonesEvery = 10 * time.Minute
	tombstonesMost  = 10_000
	// idempotencyMost is tombstonesMost for records of requests: as many as can be created until the next pass.
	idempotencyMost = 500_000
)

// tombstoneSweeper removes old tombstones, and old records of requests, while the node leads.
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
		age   time.Duration
		most  int
		do    func(ctx context.Context, before task.Time, after string, most int) (removed int, next string, err error)
		after string
	}
	sweeps := []*sweep{
		{what: "tasks", age: tombstoneAge, most: tombstonesMost, do: t.store.SweepTombstones},
		{what: "secrets", age: tombstoneAge, most: tombstonesMost, do: t.store.SweepSecrets},
		{what: "requests", age: idempotencyAge, most: idempotencyMost, do: t.store.SweepIdempotency},
	}

	for {
		for _, s := range sweeps {
			if t.clock.checkClock() != nil { // with a wrong clock, ages are wrong, too
				continue
			}

			before := task.At(t.env.Now().Add(-s.age))
			removed, next, err := s.do(ctx, before, s.after, s.most)
			if err != nil && ctx.Err() == nil {
				t.log.Warn("could not remove old records", zap.String("of", s.what), zap.Error(err))
			}

			if s.after = next; removed > 0 {
				t.log.Info("removed old records", zap.Int(s.what, removed))
			}
		}

		if !clock.Sleep(ctx, tombstonesEvery) {
			return ctx.Err()
		}
	}
}
