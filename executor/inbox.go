package executor

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Inbox is the part of the store that the executor uses. *store.Store implements it. The executor calls all methods
// outside its loop, with a deadline or with a context that ends. The store documents each method and its errors.
type Inbox interface {
	// FollowInbox and FollowFreezes list, then watch. They return only with an error.
	FollowInbox(ctx context.Context, node string, relist time.Duration, apply func(store.InboxBatch) error) error
	FollowFreezes(ctx context.Context, relist time.Duration, apply func(store.FreezeRecord) error) error
	// Rewrite compares the record's mod revision and the session. Its errors include task.ErrConflict and
	// task.ErrFenced, after which nothing was written. After any other error the outcome is unknown.
	Rewrite(ctx context.Context, session kv.Fence, h record.Held) (mod int64, err error)
	// Finish retries until the outcome is known or ctx ends. store.ErrLate and task.ErrConflict are final answers.
	Finish(ctx context.Context, h record.Held, end task.Run, next *task.Waiting) error
	// HandBack compares the record's mod revision only, so it also works after the session has ended.
	HandBack(ctx context.Context, h record.Held) error
	// Cleared is true only if no process of the instance is left.
	Cleared(ctx context.Context, instance string) (bool, error)
}

var _ Inbox = (*store.Store)(nil)
