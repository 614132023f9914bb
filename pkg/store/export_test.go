package store

import (
	"context"
)

// DeleteTask is like DeleteTaskLeavingTombstone, but leaves no tombstone, as if etcd were full.
func (s Tasks) DeleteTask(ctx context.Context, old Stored) (int64, error) {
	return s.removeTask(ctx, old)
}
