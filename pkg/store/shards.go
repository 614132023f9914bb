package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Shards is the access of a shard's owner, or of a node that is to own it: everything
// below shards/<k>/ as pages and changes, and the commits that decide ticks.
//
// Each write carries the owner's fences, so that a node that lost the shard or its own
// session writes nothing, however late its request arrives.
type Shards struct{ *conn }

// ShardEvent is a record of a shard as it is now, or its end. Its value is the
// reader's to decode, with the functions of this package: most need not be.
type ShardEvent struct {
	record.ShardKey
	Key     string
	Task    string // namespace/name
	Mod     int64  // mod revision; of a deletion, the revision at which it happened (0 if not known)
	Create  int64  // create revision; 0 if deleted
	Deleted bool
	Value   []byte
}

// ShardBatch is what a worker learns of its shard: everything as of a revision,
// or what has happened since.
type ShardBatch struct {
	Reset    bool // Events is a page of the shard, without its history
	First    bool // with Reset: what was known before is void
	More     bool // with Reset: another page follows
	Events   []ShardEvent
	Revision int64 // everything up to here is in, when no page is to come
}

// shardEvent is the event that a key of a shard has the value e; nil: it is gone.
// false if it is no key of ours.
func shardEvent(keys record.Keys, key string, e *mvccpb.KeyValue) (ShardEvent, bool) {
	k, name, ok := keys.ParseShardTask(key)
	if e == nil {
		return ShardEvent{ShardKey: k, Key: key, Task: name, Deleted: true}, ok
	}
	return ShardEvent{ShardKey: k, Key: key, Task: name, Mod: e.ModRevision, Create: e.CreateRevision, Value: e.Value}, ok
}

// pageSize is how many records of a shard come together when it is loaded.
const pageSize = 1000

// FollowShard calls apply with the parts that have ended, the queue, the entries and the watermark of a
// shard as they were at revision rev, in pages, then with every change of the
// shard, history included, in order, until ctx ends or apply returns an error.
// Another Reset means that changes may have been missed; a watch that is lost is
// resumed, and misses none (see kv.Follow). Keys that are none of ours are left
// out, and so are the watermark's changes, as the owner makes them itself: a batch
// with nothing else is not delivered.
func (s Shards) FollowShard(ctx context.Context, shard int, rev int64, apply func(ShardBatch) error) error {
	return s.followShard(ctx, shard, rev, func() bool { return false }, apply)
}

// FollowStandbyShard is FollowShard for a node that does not own the shard yet: it
// begins with the shard as it is now, and as long as marks says so, a change of
// the watermark is told by a batch without events, so that the reader knows up to
// which revision it has seen everything.
func (s Shards) FollowStandbyShard(ctx context.Context, shard int, marks func() bool, apply func(ShardBatch) error) error {
	return s.followShard(ctx, shard, 0, marks, apply)
}

func (s Shards) followShard(ctx context.Context, shard int, rev int64, marks func() bool, apply func(ShardBatch) error) error {
	dir := s.keys.Shard(shard)
	cfg := kv.FollowConfig{
		Key: s.keys.PartsIn(shard), End: s.keys.Watermark(shard) + "\x00",
		WatchKey: dir, WatchEnd: clientv3.GetPrefixRangeEnd(dir),
		Revision: rev, Name: "shard", PageSize: pageSize,
	}
	return kv.Follow(ctx, s.etcd, cfg, func(b kv.Batch) error {
		out := ShardBatch{Reset: b.Reset, First: b.Reset && b.Page == 0, More: b.More, Revision: b.Revision}
		out.Events = make([]ShardEvent, 0, len(b.KVs)+len(b.Events))
		for _, e := range b.KVs {
			if ev, ok := shardEvent(s.keys, string(e.Key), e); ok {
				out.Events = append(out.Events, ev)
			}
		}

		news := b.Reset
		for _, e := range b.Events {
			ev, ok := shardEvent(s.keys, string(e.Kv.Key), e.Kv)
			if ev.Kind == record.KindWatermark {
				news = news || marks()
				continue
			}

			news = true

			if ok {
				ev.Deleted = e.Type == clientv3.EventTypeDelete
				out.Events = append(out.Events, ev)
			}
		}

		if !news {
			return nil
		}

		return apply(out)
	})
}

// ActiveKey is an attempt found by its key.
type ActiveKey struct {
	record.RunKey
	Mod, Create int64
}

// ScanActive lists the keys of all attempts in all inboxes, and the revision at
// which it did. It reads no values.
func (s Shards) ScanActive(ctx context.Context) ([]ActiveKey, int64, error) {
	all, rev, err := s.getAll(ctx, s.keys.Runs(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, 0, fmt.Errorf("scan active runs: %w", err)
	}

	keys := make([]ActiveKey, 0, len(all))
	for _, e := range all {
		if k, ok := s.keys.ParseRun(string(e.Key)); ok {
			keys = append(keys, ActiveKey{RunKey: k, Mod: e.ModRevision, Create: e.CreateRevision})
		}
	}

	return keys, rev, nil
}

// Queue lists what waits in a shard now, and then the parts of it that have ended.
// A part that ends meanwhile is in the one or in the other: it goes from the queue
// to them.
func (s Shards) Queue(ctx context.Context, shard int) ([]ShardEvent, error) {
	var events []ShardEvent
	for _, prefix := range []string{s.keys.Queue(shard), s.keys.PartsIn(shard)} {
		all, _, err := s.getAll(ctx, prefix)
		if err != nil {
			return nil, fmt.Errorf("list the queue of shard %d: %w", shard, err)
		}
		events = append(events, shardEvents(s.keys, all)...)
	}

	return events, nil
}

// Attempt reads an attempt and whether its node is present, at one revision.
// task.ErrNotFound if the attempt is gone.
func (s Shards) Attempt(ctx context.Context, k record.RunKey) (h record.Held, nodePresent bool, err error) {
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.Run(k.Node, k.Ref, k.Run)), clientv3.OpGet(s.keys.Node(k.Node))).Commit()
	if err != nil {
		return h, false, fmt.Errorf("read run %s of %s: %w: %w", k.Run, k.Ref, task.ErrUnavailable, err)
	}

	r := kv.Result{Responses: res.Responses}
	e := readAt(r, 0)
	if e == nil {
		return h, false, fmt.Errorf("run %s of %s: %w", k.Run, k.Ref, task.ErrNotFound)
	}

	h, err = record.DecodeHeld(s.keys, e)

	return h, readAt(r, 1) != nil, err
}

// Mark is up to when the ticks of a shard are decided.
func (s Shards) Mark(ctx context.Context, shard int) (task.Time, error) {
	e, err := s.getOne(ctx, s.keys.Watermark(shard))
	if err == nil && e == nil {
		err = ErrDamaged
	}

	if err != nil {
		return task.Time{}, fmt.Errorf("read the watermark of shard %d: %w", shard, err)
	}

	w, err := record.DecodeWatermark(e.Value)

	return w.Time, err
}

// ShardRecords are the watermark and the counts of one shard, for display.
type ShardRecords struct {
	Watermark     record.Watermark
	Tasks, Queued int
}

// ShardRecords reads what there is to show of every shard. A watermark that is
// missing or cannot be read is zero.
func (s Shards) ShardRecords(ctx context.Context, shards int) ([]ShardRecords, error) {
	list := make([]ShardRecords, 0, shards)
	const chunk = 40
	for first := 0; first < shards; first += chunk {
		var ops []clientv3.Op
		for id := first; id < min(first+chunk, shards); id++ {
			entries, queue := s.keys.Entries(id), s.keys.Queue(id)
			ops = append(ops, clientv3.OpGet(s.keys.Watermark(id)),
				clientv3.OpGet(entries, withPrefix(entries), clientv3.WithCountOnly()),
				clientv3.OpGet(queue, withPrefix(queue), clientv3.WithCountOnly()))
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("read shards: %w: %w", task.ErrUnavailable, err)
		}

		for i := 0; i+2 < len(res.Responses); i += 3 {
			r := ShardRecords{
				Tasks:  int(res.Responses[i+1].GetResponseRange().Count),
				Queued: int(res.Responses[i+2].GetResponseRange().Count),
			}
			if e := res.Responses[i].GetResponseRange().Kvs; len(e) == 1 {
				if w, err := record.DecodeWatermark(e[0].Value); err == nil {
					r.Watermark = w
				}
			}

			list = append(list, r)
		}
	}

	return list, nil
}
