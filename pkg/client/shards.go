package client

import (
	"context"

	"github.com/carillonhq/carillon/pkg/task"
)

// ShardsService reads the shards of the cluster.
type ShardsService struct{ conn *connection }

// List returns all shards, with their owners.
func (s *ShardsService) List(ctx context.Context) ([]task.Shard, error) {
	return getItems[task.Shard](ctx, s.conn, "/v1/shards")
}
