package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// freezes are those that hold, as far as the node knows.
type freezes struct {
	is atomic.Pointer[store.FreezeRecord]
}

func (f *freezes) knownFreezes() (*task.Freezes, int64) {
	if r := f.is.Load(); r != nil {
		return &r.Freezes, r.Mod
	}
	return nil, 0 // a commit that does not know them fails, and tells
}

// followFreezes keeps the scheduler's view of the freezes, and has the workers look
// again when they change: what has waited may go on. The executor has a view of its
// own, which begins anew with each session.
func (n *Node) followFreezes(ctx context.Context) error {
	return n.store.FollowFreezes(ctx, time.Minute, func(r store.FreezeRecord) error {
		before := n.freezes.is.Swap(&r)
		if before != nil && before.Mod == r.Mod || before == nil && r.Mod == 0 {
			return nil
		}

		n.log.Info("freezes have changed", zap.Int("holding", len(r.Holding)), zap.Int64("rev", r.Mod))
		n.engine.Look()

		return nil
	})
}
