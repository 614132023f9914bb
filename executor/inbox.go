package executor

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Inbox is the part of the store that the executor uses. *store.Store implements it.
type Inbox interface {
	FollowInbox(ctx context.Context, node string, relist time.Duration, apply func(store.InboxBatch) error) error
	FollowFreezes(ctx context.Context, relist time.Duration, apply func(store.FreezeRecord) error) error
	Rewrite(ctx context.Context, session kv.Fence, h record.Held) (mod int64, err error)
	Finish(ctx context.Context, h record.Held, end task.Run, next *task.Waiting) error
	HandBack(ctx context.Context, h record.Held) error
	Cleared(ctx context.Context, instance string) (bool, error)
}

var _ Inbox = (*store.Store)(nil)
