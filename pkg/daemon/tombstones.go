package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// remember is how long a deleted task, or secret, is remembered.
	remember = 7 * 24 * time.Hour
	// tombstonesEvery is how often a leader looks for older ones, at no more than
	// tombstonesMost of them: the next look goes on from there.
	tombstonesEvery = time.Hour
	tombstonesMost  = 10_000
)

// sweepTombstones is the leader's part in forgetting deleted tasks and secrets.
func (n *Node) sweepTombstones(ctx context.Context) error {
	type sweep struct {
		what  string
		do    func(ctx context.Context, before task.Time, after string, most int) (removed int, next string, err error)
		after string
	}
	sweeps := []*sweep{{what: "tasks", do: n.store.SweepTombstones}, {what: "secrets", do: n.store.SweepSecrets}}
	for {
		for _, s := range sweeps {
			if n.clock.check() != nil { // what is old, the clock tells
				continue
			}
			before := task.At(n.outside.Now().Add(-remember))
			removed, next, err := s.do(ctx, before, s.after, tombstonesMost)
			if err != nil && ctx.Err() == nil {
				n.log.Warn("old tombstones could not be removed", zap.String("of", s.what), zap.Error(err))
			}
			if s.after = next; removed > 0 {
				n.log.Info("forgot what was deleted", zap.Int(s.what, removed))
			}
		}
		if !clock.Sleep(ctx, tombstonesEvery) {
			return ctx.Err()
		}
	}
}
