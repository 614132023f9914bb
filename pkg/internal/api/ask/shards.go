package ask

import (
	"context"
	"maps"
	"slices"
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
	// splitsTimeout is how long a request waits for splits.
	splitsTimeout = 250 * time.Millisecond
)

// Splits returns names of tasks in order, among those that the caller may read, which divide these tasks into parts of
// similar sizes (see store.BriefPage). They may be a minute old, and older while the owners do not answer, and contain
// deleted tasks. Splits returns none if nobody is able to answer quickly. within is nil for all namespaces.
func (a *Asker) Splits(ctx context.Context, namespace string, within []string) []string {
	q := Question{Namespace: namespace, Within: within, Order: readmodel.ByName, Splits: splitEvery}
	e := a.splits.entryOf(q.Key(), "")
	old, known := e.old()

	answer, under, mine := e.shared(time.Time{}, nil, splitsFor)
	switch {
	case answer != nil:
		return answer.splits
	case mine:
		e.lead(under, func() (Answer, error) {
			// An answer without names replaces nothing: the owners may be away. They are not asked again for a while.
			names := a.askSplits(ctx, httpapi.CallerOf(ctx), &q)
			if len(names) == 0 {
				names = old.splits
			}
			return Answer{splits: names}, nil
		})
	case known:
		return old.splits // only the first answer is worth a wait
	}

	select {
	case <-under.done:
		return under.answer.splits
	case <-ctx.Done():
		return nil
	}
}

// askSplits asks all scheduling nodes for splits. It returns those that arrive in time. The names of some shards are
// as good as those of all, with larger parts.
func (a *Asker) askSplits(ctx context.Context, caller httpapi.Caller, q *Question) (names []string) {
	// Others may wait for the answer: it does not end with this caller.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), splitsTimeout)
	defer cancel()

	answers, _ := a.askNodes(ctx, caller, q, a.schedulingNodes(ctx), nil)
	for _, answer := range answers {
		names = append(names, answer.Splits...)
	}

	slices.Sort(names)

	return slices.Compact(names)
}

// shardSize is the number of tasks of a shard, and when its owner was asked.
type shardSize struct {
	tasks int
	at    time.Time // on the monotonic clock
}

// ShardSizes returns the number of tasks of each shard, as its owner knows it. The owners keep these numbers, so they scan
// nothing, and answer also when they are busy. Only callers who may read the cluster may learn them.
//
// The numbers contain what the caller has written within ten seconds. A shard whose owner does not answer has its last
// known number for ten minutes, and is not in the result if none is known.
func (a *Asker) ShardSizes(ctx context.Context) map[int]int {
	caller := httpapi.CallerOf(ctx)
	wrote, needed := a.cache.lastWrite(caller.Who)
	old, _ := a.sizes.old()

	answer, under, mine := a.sizes.shared(wrote, needed, shareFor)
	if mine {
		a.sizes.lead(under, func() (Answer, error) {
			// No task is in none of the namespaces, so the owners visit no rows. Others may wait for the answer: it does not end
			// with this caller.
			q, now := Question{Within: []string{}, MinRevisions: needed}, time.Now()
			ctx := context.WithoutCancel(ctx)
			answers, _ := a.askNodes(ctx, caller, &q, a.schedulingNodes(ctx), nil)

			return Answer{sizes: updateSizes(old.sizes, answers, needed, now), needed: needed}, nil
		})
	}

	if answer == nil {
		select {
		case <-under.done:
			answer = &under.answer
		case <-ctx.Done():
			return nil
		}
	}

	sizes := make(map[int]int, len(answer.sizes))
	for shard, s := range answer.sizes {
		if shard < a.Shards {
			sizes[shard] = s.tasks
		}
	}

	return sizes
}

// updateSizes returns the numbers of the shards for which nodes have answered, and former ones of all others. If two nodes
// answer for a shard, the newer owner key counts. Former numbers of shards in needed are dropped, because they may lack what
// the caller has written.
func updateSizes(former map[int]shardSize, answers map[string]readmodel.NodeAnswer, needed Revisions, now time.Time) map[int]shardSize {
	sizes := maps.Clone(former)
	maps.DeleteFunc(sizes, func(shard int, s shardSize) bool {
		_, written := needed[shard]
		return written || now.Sub(s.at) > keepFor
	})
	if sizes == nil {
		sizes = map[int]shardSize{}
	}

	owners := map[int]int64{}
	for _, answer := range answers {
		for _, s := range answer.Shards {
			if known, ok := owners[s.Shard]; !ok || s.Owner > known {
				owners[s.Shard], sizes[s.Shard] = s.Owner, shardSize{s.Rows, now}
			}
		}
	}

	return sizes
}

// maxRecentAge is how old what an owner remembers may be. A watch without events gives a sign of life about every two
// seconds, so an owner that has heard nothing for longer may lack many runs, and a list of runs does not say how old it is.
const maxRecentAge = 30 * time.Second

// RecentRuns returns the newest runs in the queues and the histories of the shards, as the owners remember them. It returns
// false if it does not know them, because an owner does not answer or is far behind. q selects only namespaces. Runs
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
