package executor

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
)

// inboxFollower runs the goroutines that follow the inbox and the freezes for the latest session.
type inboxFollower struct {
	e      *Executor
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// newInboxFollower returns an inboxFollower without goroutines. restartInSession starts them.
func newInboxFollower(e *Executor) *inboxFollower { return &inboxFollower{e: e, cancel: func() {}} }

// restartInSession follows under a new session. It does not wait for the follower of the earlier session,
// which may still hand in a batch; applyBatch rejects that with errSuperseded.
func (f *inboxFollower) restartInSession(ctx context.Context, session int) {
	f.cancel()
	ctx, f.cancel = context.WithCancel(ctx)
	f.wg.Go(func() { f.e.followInbox(ctx, session) })
	f.wg.Go(func() { f.e.followFreezes(ctx, session) })
}

// stop ends the followers and waits for the goroutines. The loop must have ended.
func (f *inboxFollower) stop() {
	f.cancel()
	f.wg.Wait()
}

// followInbox passes the inbox to the loop until ctx ends, and lists it again about every minute
// in case the watch has lost a change.
func (e *Executor) followInbox(ctx context.Context, session int) {
	for ctx.Err() == nil {
		err := e.cfg.Inbox.FollowInbox(ctx, e.cfg.Node, e.reread, func(b store.InboxBatch) error { return e.handBatch(ctx, b, session) })

		if ctx.Err() != nil {
			return
		}

		e.log.Warn("the watch of the inbox ended", zap.Error(err))

		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// handBatch gives a batch to the loop and waits until it is applied, so the watch cannot run ahead
// of the state.
func (e *Executor) handBatch(ctx context.Context, b store.InboxBatch, session int) error {
	if !b.Reset && !b.Replayed && len(b.Events) == 0 {
		return nil
	}

	x := inboxBatch{InboxBatch: b, session: session, taken: make(chan error, 1)}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case e.batches <- x:
		return <-x.taken
	}
}
