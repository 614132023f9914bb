package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// NewRepairs returns the counter of the differences that a component has found and repaired by
// reading again what it follows by a watch (see kv.RepairsMetric). who names the component.
func NewRepairs(who string) prometheus.Counter { return kv.NewRepairs(who) }

// ShardKeys lists the keys that FollowShard lists, in their order and without values. All are
// read at one revision, which it returns. This is cheaper than reading the values, which etcd
// does not keep in memory.
func (s Shards) ShardKeys(ctx context.Context, shard int) ([]ShardEvent, int64, error) {
	all, rev, err := s.getRange(ctx, s.keys.PartsIn(shard), s.keys.Watermark(shard)+"\x00", 0, clientv3.WithKeysOnly())
	if err != nil {
		return nil, 0, fmt.Errorf("list the keys of shard %d: %w", shard, err)
	}

	return shardEvents(s.keys, all), rev, nil
}

// HistoryKeys lists a page of the current keys of a shard's dead runs and history, without
// values. The page begins after the key after, which is empty for the first page. next is the
// key after which the following page begins, or empty if there is none.
//
// splits are names of tasks (namespace/name) in order that divide the tasks of the shard into
// parts of similar sizes. They change only what a page costs (see kv.Pages).
func (s Shards) HistoryKeys(ctx context.Context, shard int, after string, splits []string) (events []ShardEvent, next string, err error) {
	for _, dir := range []string{s.keys.Shard(shard) + "dead/", s.keys.History(shard)} {
		if after >= clientv3.GetPrefixRangeEnd(dir) {
			continue
		}

		page, next, _, err := s.keyPage(ctx, dir, after, pageSize, splits)
		if err != nil {
			return nil, "", fmt.Errorf("list the history of shard %d: %w", shard, err)
		}

		events = append(events, shardEvents(s.keys, page)...)

		if next != "" {
			return events, next, nil
		}
	}

	return events, "", nil
}

// keyPage reads a page of the current keys in a directory, without values, and returns the
// revision. The page begins after the key after, or with the first key. next is the key after which the following page
// begins, or empty if there is none.
func (s Shards) keyPage(ctx context.Context, dir, after string, size int, splits []string) (page []*mvccpb.KeyValue, next string, rev int64, err error) {
	from := max(dir, after+"\x00")
	pages := kv.NewPages(s.etcd, from, clientv3.GetPrefixRangeEnd(dir), size, clientv3.WithKeysOnly())
	pages.UseSplits(dir, splits, 1)

	page, rev, err = s.nextPage(ctx, pages, 0)
	if err != nil {
		return nil, "", 0, err
	}

	// A page that is not the last one is full.
	if pages.More() {
		next = string(page[len(page)-1].Key)
	}

	return page, next, rev, nil
}

// shardEvents returns the events of the keys that have the form of a record of a shard.
func shardEvents(keys record.Keys, kvs []*mvccpb.KeyValue) []ShardEvent {
	events := make([]ShardEvent, 0, len(kvs))
	for _, e := range kvs {
		if ev, ok := shardEvent(keys, string(e.Key), e); ok {
			events = append(events, ev)
		}
	}

	return events
}

// RecordsNow reads the current state of some records of a shard. A record that is absent is
// returned as a deletion with the revision of the read.
func (s Shards) RecordsNow(ctx context.Context, keys []string) ([]ShardEvent, error) {
	return s.RecordsAt(ctx, keys, 0)
}

// RecordsAt is like RecordsNow, but reads at a revision; 0 means now. It fails if the revision
// has been compacted. Without a revision, records of different requests (100 each) may be read
// at different revisions.
func (s Shards) RecordsAt(ctx context.Context, keys []string, rev int64) ([]ShardEvent, error) {
	events := make([]ShardEvent, 0, len(keys))

	for some := range slices.Chunk(keys, 100) {
		ops := make([]clientv3.Op, len(some))
		for i, key := range some {
			ops[i] = clientv3.OpGet(key, clientv3.WithRev(rev))
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("read records: %w: %w", task.ErrUnavailable, err)
		}

		r := kv.Result{Responses: res.Responses}

		for i, key := range some {
			ev, ok := shardEvent(s.keys, key, readAt(r, i))
			if !ok {
				continue
			}

			if ev.Deleted {
				ev.Mod = cmp.Or(rev, res.Header.Revision)
			}

			events = append(events, ev)
		}
	}

	return events, nil
}

// A Sighting is the state of an attempt and of its node at one revision. It determines whether
// an attempt may be declared lost: its record is there and its node is not.
type Sighting struct {
	Gone        bool  // the record of the attempt does not exist
	record.Held       // if the record cannot be read, what its key contains
	Err         error // why the record cannot be read
	NodePresent bool  // the key of the node exists
	Revision    int64 // the revision of the read
}

// Sightings reads attempts, each at the same revision as the key of its node.
func (s Shards) Sightings(ctx context.Context, runs []record.RunKey) ([]Sighting, error) {
	list := make([]Sighting, 0, len(runs))
	for some := range slices.Chunk(runs, 60) { // two reads each, of the 128 that etcd allows
		ops := make([]clientv3.Op, 0, 2*len(some))
		for _, k := range some {
			ops = append(ops, clientv3.OpGet(s.keys.Run(k.Node, k.Ref, k.Run)), clientv3.OpGet(s.keys.Node(k.Node), clientv3.WithKeysOnly()))
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("read attempts and their nodes: %w: %w", task.ErrUnavailable, err)
		}

		r := kv.Result{Responses: res.Responses}

		for i, k := range some {
			list = append(list, newSighting(s.keys, k, readAt(r, 2*i), readAt(r, 2*i+1) != nil, res.Header.Revision))
		}
	}

	return list, nil
}

// newSighting returns the Sighting of the attempt k. e is its record, or nil.
func newSighting(keys record.Keys, k record.RunKey, e *mvccpb.KeyValue, present bool, rev int64) Sighting {
	v := Sighting{Gone: e == nil, NodePresent: present, Revision: rev}

	if e == nil {
		return v
	}

	if v.Held, v.Err = record.DecodeHeld(keys, e); v.Err != nil {
		// The scheduler needs enough of an unreadable attempt to declare it lost one day.
		at, _ := task.TimeOfRunID(k.Run)
		v.Held = record.Held{Mod: e.ModRevision, Create: e.CreateRevision, Assigned: task.Assigned{Run: task.Run{
			ID: k.Run, Namespace: k.Ref.Namespace, Task: k.Ref.Name, Shard: k.Ref.Shard, Node: k.Node, Token: e.CreateRevision,
			ScheduledTime: task.At(at), Attempt: 1, Trigger: task.TriggerOfRunID(k.Run),
		}}}
	}

	return v
}

// deadPageSize is the number of dead runs in a page of DeadKeys.
const deadPageSize = 8000

// DeadKeys lists a page of the current keys of a shard's dead runs, without values, and returns
// the revision of the list. The page begins after the key after, which is empty for the first
// page. next is the key after which the following page begins, or empty if there is none.
func (s Shards) DeadKeys(ctx context.Context, shard int, after string) (events []ShardEvent, next string, rev int64, err error) {
	page, next, rev, err := s.keyPage(ctx, s.keys.Shard(shard)+"dead/", after, deadPageSize, nil)
	if err != nil {
		return nil, "", 0, fmt.Errorf("list the dead runs of shard %d: %w", shard, err)
	}

	return shardEvents(s.keys, page), next, rev, nil
}
