package ask

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

// sizeCache holds the last known number of tasks of each shard. The zero value is empty.
type sizeCache struct {
	// asking is held while the owners are asked, so that callers at the same time share an answer. It also protects the
	// other fields.
	asking   sync.Mutex
	asked    time.Time // on the monotonic clock; zero: never
	answered time.Time // when that was over
	needed   Revisions // the last answer contains these revisions
	sizes    map[int]shardSize
}

// shardSize is the number of tasks of a shard, and when its owner was asked.
type shardSize struct {
	tasks int
	at    time.Time
}

// ShardSizes returns the number of tasks of each shard, as its owner knows it. The owners keep these numbers, so they scan
// nothing, and answer also when they are busy. Only callers who may read the cluster may learn them.
//
// The numbers contain what the caller has written within ten seconds. A shard whose owner does not answer has its last
// known number for ten minutes, and is not in the result if none is known.
func (a *Asker) ShardSizes(ctx context.Context) map[int]int {
	caller := httpapi.CallerOf(ctx)
	wrote, needed := a.cache.lastWrite(caller.Who)

	c := &a.sizes
	c.asking.Lock()
	defer c.asking.Unlock()

	if now := time.Now(); !c.isFresh(now, wrote, needed) {
		// No task is in none of the namespaces, so the owners visit no rows.
		q := Question{Within: []string{}, MinRevisions: needed}
		answers, _ := a.askNodes(ctx, caller, &q, a.schedulingNodes(ctx), nil)
		if ctx.Err() == nil {
			c.asked, c.answered, c.needed = now, time.Now(), needed
		}
		c.take(answers, needed, now)
	}

	sizes := make(map[int]int, len(c.sizes))
	for shard, s := range c.sizes {
		if shard < a.Shards {
			sizes[shard] = s.tasks
		}
	}

	return sizes
}

// isFresh reports whether a caller gets the last answer. It must be from after what the caller has written, and contain it.
// Asking may take longer than shareFor, if a node hangs. Those that wait meanwhile must not ask one after the other, so the
// end of asking counts.
func (c *sizeCache) isFresh(now, wrote time.Time, needed Revisions) bool {
	return now.Sub(c.answered) <= shareFor && c.asked.After(wrote) && c.needed.cover(needed)
}

// take replaces the numbers of the shards for which nodes have answered. If two nodes answer for a shard, the newer owner
// key counts. Former numbers of shards in needed are dropped, because they may lack what the caller has written.
func (c *sizeCache) take(answers map[string]readmodel.NodeAnswer, needed Revisions, now time.Time) {
	if c.sizes == nil {
		c.sizes = map[int]shardSize{}
	}
	maps.DeleteFunc(c.sizes, func(shard int, s shardSize) bool {
		_, written := needed[shard]
		return written || now.Sub(s.at) > keepFor
	})

	owners := map[int]int64{}
	for _, answer := range answers {
		for _, s := range answer.Shards {
			if known, ok := owners[s.Shard]; !ok || s.Owner > known {
				owners[s.Shard], c.sizes[s.Shard] = s.Owner, shardSize{s.Rows, now}
			}
		}
	}
}
