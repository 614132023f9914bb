package executor

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
)

// following keeps those who follow the inbox and the freezes, for the latest session.
type following struct {
	e      *Executor
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newFollowing(e *Executor) *following { return &following{e: e, cancel: func() {}} }

// restart follows anew. The former one may still have a batch to hand in: it
// is told that it is too late.
func (f *following) restart(ctx context.Context, session int) {
	f.cancel()
	ctx, f.cancel = context.WithCancel(ctx)
	f.wg.Go(func() { f.e.follow(ctx, session) })
	f.wg.Go(func() { f.e.followFreezes(ctx, session) })
}

// stop ends following. Nobody takes batches any more.
func (f *following) stop() {
	f.cancel()
	f.wg.Wait()
}

// follow hands the inbox to the loop until ctx ends, and lists it again every
// minute or so.
func (e *Executor) follow(ctx context.Context, session int) {
	for ctx.Err() == nil {
		err := e.cfg.Inbox.FollowInbox(ctx, e.cfg.Node, e.reread, func(b store.InboxBatch) error { return e.hand(ctx, b, session) })

		if ctx.Err() != nil {
			return
		}

		e.log.Warn("following the inbox ended", zap.Error(err))

		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// hand gives a batch to the loop, and waits until it is taken: so the watch
// runs no faster than the state can follow.
func (e *Executor) hand(ctx context.Context, b store.InboxBatch, session int) error {
	if !b.Reset && !b.Echo && len(b.Events) == 0 {
		return nil
	}

	x := batch{InboxBatch: b, session: session, taken: make(chan error, 1)}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case e.batches <- x:
		return <-x.taken
	}
}
