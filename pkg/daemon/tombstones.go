package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// remember is how long a deleted task is remembered.
	remember = 7 * 24 * time.Hour
	// tombstonesEvery is how often a leader looks for older ones, at no more than
	// tombstonesMost of them: the next look goes on from there.
	tombstonesEvery = time.Hour
	tombstonesMost  = 10_000
)

// sweepTombstones is the leader's part in forgetting deleted tasks.
func (n *Node) sweepTombstones(ctx context.Context) error {
	after := ""
	for {
		if n.clock.check() == nil { // what is old, the clock tells
			before := task.At(n.outside.Now().Add(-remember))
			removed, next, err := n.store.SweepTombstones(ctx, before, after, tombstonesMost)
			if err != nil && ctx.Err() == nil {
				n.log.Warn("old tombstones could not be removed", zap.Error(err))
			}
			if after = next; removed > 0 {
				n.log.Info("forgot deleted tasks", zap.Int("tasks", removed))
			}
		}
		if !pause(ctx, tombstonesEvery) {
			return ctx.Err()
		}
	}
}
