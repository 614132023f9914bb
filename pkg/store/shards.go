package store

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Shards gives the owner of a shard, or a node that is about to become its owner, access to the
// keys below shards/<k>/. It delivers them as pages and changes, and writes the commits that
// decide ticks.
//
// Every write compares the fences of the owner. So a node that has lost the shard, or its
// session, writes nothing, however late its request arrives (G1, G2).
type Shards struct{ *conn }

// ShardEvent is the current state of a record in a shard, or its deletion. Value is not
// decoded, because the reader does not need most values. The functions of package record decode
// it.
type ShardEvent struct {
	record.ShardKey
	Key     string
	Task    string // namespace/name
	Mod     int64  // mod revision; for a deletion, the revision of the deletion, or 0 if it is not known
	Create  int64  // create revision; 0 for a deletion
	Deleted bool
	Value   []byte
}

// KeyValue returns the record as etcd returns it.
func (ev *ShardEvent) KeyValue() *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(ev.Key), Value: ev.Value, CreateRevision: ev.Create, ModRevision: ev.Mod}
}

// ShardBatch is a step of what a worker receives about its shard: a page of its content at a
// revision, or changes.
type ShardBatch struct {
	Reset    bool // Events is a page of the content, without history and dead runs
	First    bool // set with Reset on the first page: the worker must discard what it knew before
	More     bool // set with Reset: another page follows
	Progress bool // the watch has only given a sign of life; no other field is set
	Events   []ShardEvent
	Revision int64 // if More is not set, everything up to this revision has been delivered
}

// shardEvent returns the event for the present value e of a key. A nil e means that the key is
// absent. It returns false if the key does not have the form of a record of a shard.
func shardEvent(keys record.Keys, key string, e *mvccpb.KeyValue) (ShardEvent, bool) {
	k, name, ok := keys.ParseShardTask(key)
	if e == nil {
		return ShardEvent{ShardKey: k, Key: key, Task: name, Deleted: true}, ok
	}
	return ShardEvent{ShardKey: k, Key: key, Task: name, Mod: e.ModRevision, Create: e.CreateRevision, Value: e.Value}, ok
}

// pageSize is the number of records in a page when a shard is loaded, or its history listed.
const pageSize = 1000

// FollowShard delivers a shard to apply. First it lists the shard at revision rev, in pages:
// the ended parts, the queue, the key revised, the entries and the watermark. Then it delivers
// every change of the shard in order, including changes of the history and of the dead runs,
// until ctx ends or apply returns an error.
//
// Another Reset means that changes may have been missed. A watch that is lost and resumed
// misses none (see kv.Follow).
//
// It omits keys that do not have the form of a record. It also omits changes of the watermark,
// because the owner itself makes them. Instead of a batch that contains nothing else, and for each
// sign of life of the watch, it delivers a batch with Progress set.
func (s Shards) FollowShard(ctx context.Context, shard int, rev int64, apply func(ShardBatch) error) error {
	return s.followShard(ctx, shard, rev, func() bool { return false }, apply)
}

// FollowStandbyShard is like FollowShard for a node that does not own the shard yet. It begins
// with the current state. While marks returns true, it delivers a change of the watermark as a
// batch without events, so that the reader knows up to which revision it has received
// everything.
func (s Shards) FollowStandbyShard(ctx context.Context, shard int, marks func() bool, apply func(ShardBatch) error) error {
	return s.followShard(ctx, shard, 0, marks, apply)
}

// followShard implements FollowShard and FollowStandbyShard. rev is 0 for the current
// revision.
func (s Shards) followShard(ctx context.Context, shard int, rev int64, marks func() bool, apply func(ShardBatch) error) error {
	// The keys of a shard are ordered by kind: dead, history, parts, queue, revised, tasks,
	// watermark. So the range from parts/ to the watermark has everything except the dead
	// runs and the history, which may be large. The watch covers the whole shard.
	dir := s.keys.Shard(shard)
	cfg := kv.FollowConfig{
		Key: s.keys.PartsIn(shard), End: s.keys.Watermark(shard) + "\x00",
		WatchKey: dir, WatchEnd: clientv3.GetPrefixRangeEnd(dir),
		Revision: rev, Name: "shard", PageSize: pageSize, Progress: true,
	}
	return kv.Follow(ctx, s.etcd, cfg, func(b kv.Batch) error {
		if b.Progress {
			return apply(ShardBatch{Progress: true})
		}

		out := ShardBatch{Reset: b.Reset, First: b.Reset && b.Page == 0, More: b.More, Revision: b.Revision}
		out.Events = make([]ShardEvent, 0, len(b.KVs)+len(b.Events))
		for _, e := range b.KVs {
			if ev, ok := shardEvent(s.keys, string(e.Key), e); ok {
				out.Events = append(out.Events, ev)
			}
		}

		// news means that the batch contains something that has to be delivered.
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
			out = ShardBatch{Progress: true}
		}

		return apply(out)
	})
}

// ActiveKey is the key of an attempt in an inbox, with its revisions.
type ActiveKey struct {
	record.RunKey
	Mod, Create int64
}

// ScanActive lists the keys of the attempts in all inboxes, and returns the revision of the
// list. It reads no values, so etcd answers it from its index.
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

// Queue lists the waiting runs of a shard, and then the parts that have ended. A part moves
// from the queue to the ended parts, never back. So a part that ends between the two reads is
// in at least one of them.
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

// Attempt reads an attempt, and whether its node is present, at one revision. It returns
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

// Mark returns the time up to which the ticks of a shard are decided. It returns ErrDamaged if
// the shard has no watermark.
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

// ShardRecords contains the watermark of a shard and the number of its waiting runs, for display.
type ShardRecords struct {
	Watermark record.Watermark
	Queued    int
}

// ShardRecords reads the records of all shards, by number. The watermark is the zero value if
// it is missing or cannot be read.
func (s Shards) ShardRecords(ctx context.Context, shards int) ([]ShardRecords, error) {
	list := make([]ShardRecords, 0, shards)
	const chunk = 60 // with two operations each, of the 128 that etcd allows
	for first := 0; first < shards; first += chunk {
		var ops []clientv3.Op
		for id := first; id < min(first+chunk, shards); id++ {
			queue := s.keys.Queue(id)
			ops = append(ops, clientv3.OpGet(s.keys.Watermark(id)), clientv3.OpGet(queue, withPrefix(queue), clientv3.WithCountOnly()))
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("read shards: %w: %w", task.ErrUnavailable, err)
		}

		for i := 0; i+1 < len(res.Responses); i += 2 {
			r := ShardRecords{Queued: int(res.Responses[i+1].GetResponseRange().Count)}
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

// CountEntries returns the number of tasks of each of some shards. etcd visits each of these tasks, and writes wait
// meanwhile. So callers that need the numbers often ask the owners, who know them.
func (s Shards) CountEntries(ctx context.Context, shards []int) (map[int]int, error) {
	counts := make(map[int]int, len(shards))
	for chunk := range slices.Chunk(shards, 100) { // etcd allows 128 operations
		ops := make([]clientv3.Op, len(chunk))
		for i, id := range chunk {
			entries := s.keys.Entries(id)
			ops[i] = clientv3.OpGet(entries, withPrefix(entries), clientv3.WithCountOnly())
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("count the tasks of some shards: %w: %w", task.ErrUnavailable, err)
		}

		for i, r := range res.Responses {
			counts[chunk[i]] = int(r.GetResponseRange().Count)
		}
	}

	return counts, nil
}

// TasksOfShards returns the number of tasks of each shard, by number: those that are known, and for the others how many
// entries etcd counts.
func (s Shards) TasksOfShards(ctx context.Context, shards int, known map[int]int) ([]int, error) {
	var unknown []int
	for id := range shards {
		if _, ok := known[id]; !ok {
			unknown = append(unknown, id)
		}
	}

	counted, err := s.CountEntries(ctx, unknown)
	if err != nil {
		return nil, err
	}

	tasks := make([]int, shards)
	for id := range tasks {
		tasks[id] = known[id] + counted[id] // it is in one of them
	}

	return tasks, nil
}
