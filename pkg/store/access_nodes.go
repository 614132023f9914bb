package store

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// PutNodeLimit is PutRole for a limit of nodes.
func (s Access) PutNodeLimit(ctx context.Context, mod int64, l task.NodeLimit, now time.Time) (int64, error) {
	l.Revision = 0
	return s.putAccess(ctx, s.keys.NodeLimit(l.Name), mod, record.Encode(l), now)
}

// DeleteNodeLimit deletes a limit of nodes.
func (s Access) DeleteNodeLimit(ctx context.Context, name string, mod int64, now time.Time) error {
	return s.deleteAccess(ctx, s.keys.NodeLimit(name), mod, now)
}
