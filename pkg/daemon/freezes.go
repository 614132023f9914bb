package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// freezes holds the freezes as the watch last reported them.
type freezes struct {
	is atomic.Pointer[store.FreezeRecord] // nil: not read yet
}

// knownFreezes returns the freezes and the mod revision of their record, which commits compare (G21).
func (f *freezes) knownFreezes() (*task.Freezes, int64) {
	if r := f.is.Load(); r != nil {
		return &r.Freezes, r.Mod
	}
	return nil, 0 // if there is a record, the commit fails and reads it
}

// followFreezes updates the scheduler's view of the freezes and wakes the workers
// when they change, because waiting runs may continue. The executor follows them separately,
// anew with each session.
func (n *Node) followFreezes(ctx context.Context) error {
	return n.store.FollowFreezes(ctx, time.Minute, func(r store.FreezeRecord) error {
		before := n.freezes.is.Swap(&r)
		if before != nil && before.Mod == r.Mod || before == nil && r.Mod == 0 {
			return nil
		}

		n.log.Info("freezes have changed", zap.Int("holding", len(r.Holding)), zap.Int64("rev", r.Mod))
		n.engine.WakeWorkers()

		return nil
	})
}
