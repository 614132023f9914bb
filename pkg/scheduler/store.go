package scheduler

import (
	"context"

	"github.com/carillonhq/carillon/pkg/scheduler/pastruns"
	"github.com/carillonhq/carillon/pkg/scheduler/reconcile"
	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// Store is everything that a scheduler needs of the store. Each of its parts has its own interface,
// for the code that needs it.
type Store interface {
	shardFollower
	committer
	attemptReader
	reconcile.Store
	recordReader
	pastruns.Store
	retention.HistoryTrimmer
	retention.TaskExpirer
}

// shardFollower reads a shard and follows its changes. See store.Shards for the methods.
type shardFollower interface {
	Keys() record.Keys
	FollowShard(ctx context.Context, shard int, rev int64, apply func(store.ShardBatch) error) error
	FollowStandbyShard(ctx context.Context, shard int, marks func() bool, apply func(store.ShardBatch) error) error
	Queue(ctx context.Context, shard int) ([]store.ShardEvent, error)
}

// committer writes as the owner of a shard.
type committer interface {
	commitMaker
	Open(ctx context.Context, shard int, f store.Fences) (record.Watermark, int64, error)
	Commit(ctx context.Context, c *store.Commit) (int64, error)
}

// attemptReader reads which attempts are active, and which instances are proved dead.
type attemptReader interface {
	ScanActive(ctx context.Context) ([]store.ActiveKey, int64, error)
	Sightings(ctx context.Context, runs []record.RunKey) ([]store.Sighting, error)
	Cleared(ctx context.Context, instance string) (bool, error)
}

// recordReader reads records of a shard again, to compare them with what a watch has delivered.
type recordReader interface {
	RecordsNow(ctx context.Context, keys []string) ([]store.ShardEvent, error)
}
