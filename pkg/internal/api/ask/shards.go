package ask

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

const (
	// splitEvery is how many tasks a part has on average. A part is what a list by name reads too much: etcd counts it
	// within 0.1 ms. For a million tasks, there are 4,000 names.
	splitEvery = 250
	// splitsFor is how long splits are used before the owners are asked again.
	splitsFor = time.Minute
	// splitsWithin is how long a request waits for splits.
	splitsWithin = 250 * time.Millisecond
	// maxSplitSets is for how many selections of namespaces the splits are kept.
	maxSplitSets = 32
)

// splitCache holds the splits of selections of namespaces. The zero value is empty.
type splitCache struct {
	mu   sync.Mutex
	sets map[string]*splitSet
}

// splitSet is the splits of one selection.
type splitSet struct {
	asking sync.Mutex // held by the request that asks the owners

	mu    sync.Mutex
	names []string
	asked time.Time // on the monotonic clock; zero: never
}

// Splits returns names of tasks in order, among those that the caller may read, which divide these tasks into parts of
// similar sizes (see store.BriefPage). They may be a minute old, and older while the owners do not answer, and contain
// deleted tasks. Splits returns none if nobody is able to answer quickly. within is nil for all namespaces.
func (a *Asker) Splits(ctx context.Context, namespace string, within []string) []string {
	q := Question{Namespace: namespace, Within: within, Order: readmodel.ByName, Splits: splitEvery}
	set := a.splits.setOf(q.Key())

	names, asked := set.read()
	if time.Since(asked) <= splitsFor {
		return names
	}

	// One request asks the owners. The others wait for the first answer, but not for newer ones.
	if asked.IsZero() {
		set.asking.Lock()
	} else if !set.asking.TryLock() {
		return names
	}
	defer set.asking.Unlock()

	if names, asked = set.read(); time.Since(asked) > splitsFor {
		names = set.keep(a.askSplits(ctx, httpapi.CallerOf(ctx), &q))
	}

	return names
}

// askSplits asks all scheduling nodes for splits. It returns those that arrive in time. The names of some shards are
// as good as those of all, with larger parts.
func (a *Asker) askSplits(ctx context.Context, caller httpapi.Caller, q *Question) (names []string) {
	// Others may wait for the answer: it does not end with this caller.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), splitsWithin)
	defer cancel()

	answers, _ := a.askNodes(ctx, caller, q, a.schedulingNodes(ctx), nil)
	for _, answer := range answers {
		names = append(names, answer.Splits...)
	}

	slices.Sort(names)

	return slices.Compact(names)
}

// setOf returns the set of a selection.
func (c *splitCache) setOf(key string) *splitSet {
	c.mu.Lock()
	defer c.mu.Unlock()

	set := c.sets[key]
	if set != nil {
		return set
	}

	if c.sets == nil || len(c.sets) >= maxSplitSets {
		c.sets = map[string]*splitSet{}
	}

	set = &splitSet{}
	c.sets[key] = set

	return set
}

// read returns the splits, and when the owners were asked.
func (s *splitSet) read() (names []string, asked time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.names, s.asked
}

// keep stores what the owners have answered, and returns the splits that are in force. An answer without names replaces
// nothing: the owners may be away.
func (s *splitSet) keep(names []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.asked = time.Now(); len(names) > 0 {
		s.names = names
	}

	return s.names
}

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

// maxRecentAge is how old what an owner remembers may be. A watch without events gives a sign of life about every two
// seconds, so an owner that has heard nothing for longer may lack many runs, and a list of runs does not say how old it is.
const maxRecentAge = 30 * time.Second

// RecentRuns returns the newest runs in the queues and the histories of the shards, as the owners remember them. It returns
// false if it does not know them, because an owner does not answer or is far behind. q selects nothing but namespaces. Runs
// that were queued or have ended in the last moments may be missing, except for those that the caller has queued, and some
// may be active or gone.
func (a *Asker) RecentRuns(c *httpapi.Call, q Question) (readmodel.RecentRuns, bool) {
	caller := httpapi.CallerOf(c.Context())
	_, q.MinRevisions = a.cache.lastWrite(caller.Who)
	answers, failures := a.askNodes(c.Context(), caller, &q, a.schedulingNodes(c.Context()), nil)
	list := inOrder(answers)
	if len(failures) > 0 || len(readmodel.Superseded(list)) > 0 {
		return readmodel.RecentRuns{}, false
	}

	known := make([]bool, a.Shards)
	var all readmodel.RecentRuns
	for _, answer := range list {
		for _, s := range answer.Shards {
			if s.Shard >= 0 && s.Shard < len(known) {
				known[s.Shard] = s.AgeMS <= maxRecentAge.Milliseconds()
			}
		}
		if answer.Recent != nil {
			all.Merge(*answer.Recent, q.Runs.Limit)
		} else if len(answer.Shards) > 0 {
			return readmodel.RecentRuns{}, false
		}
	}

	for _, is := range known {
		if !is {
			return readmodel.RecentRuns{}, false
		}
	}

	return all, true
}
