package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A Past describes a record in the history of a task.
type Past struct {
	ID        string // the last part of the key: the run id, with a suffix if it is a late result
	Late      bool   // a late result, which changes no outcome (G12)
	Succeeded bool   // set only if states were requested
	Mod       int64  // mod revision
	Create    int64  // create revision; runs have ended in this order
}

// History lists the records in the history of a task in the order of their keys, which is that
// of their ticks. With states, it reads their values; a record that cannot be read counts as
// not succeeded. Without, it reads keys only.
func (s Shards) History(ctx context.Context, ref record.Ref, states bool) ([]Past, error) {
	prefix := s.keys.HistoryOf(ref)
	var opts []clientv3.OpOption
	if !states {
		opts = append(opts, clientv3.WithKeysOnly())
	}

	all, _, err := s.getAll(ctx, prefix, opts...)
	if err != nil {
		return nil, fmt.Errorf("list history of %s: %w", ref, err)
	}

	return pastOf(prefix, all, states), nil
}

// pastOf describes the records of a history whose keys begin with prefix.
func pastOf(prefix string, all []*mvccpb.KeyValue, states bool) []Past {
	past := make([]Past, len(all))
	for i, e := range all {
		past[i].ID = string(e.Key)[len(prefix):]
		past[i].Late = strings.Contains(past[i].ID, record.LateMark)
		past[i].Mod, past[i].Create = e.ModRevision, e.CreateRevision
		if states {
			r, err := record.DecodeRunValue(e.Value)
			past[i].Succeeded = err == nil && r.State == task.Succeeded
		}
	}

	return past
}

// Run returns the id of the run to which the record belongs.
func (p Past) Run() string {
	run, _, _ := strings.Cut(p.ID, record.LateMark)
	return run
}

// maxTrims is how many records one transaction deletes at most.
const maxTrims = 96

// TrimHistory deletes the given records from the history of a task. It deletes key by key, so
// that a record which was added since they were listed remains, wherever it is.
//
// It compares the fences but not the watermark, so it can run while a commit is in flight. It
// only deletes, so it works while etcd is full. It returns task.ErrFenced if a fence does not
// hold; transactions before that remain applied.
func (s Shards) TrimHistory(ctx context.Context, f Fences, ref record.Ref, gone []Past) error {
	history := s.keys.HistoryOf(ref) // not keys.Ended: an id that looks like that of a part is also to go
	for some := range slices.Chunk(gone, maxTrims) {
		ops := make([]clientv3.Op, len(some))
		for i, p := range some {
			ops[i] = clientv3.OpDelete(history + p.ID)
		}

		res, err := s.writeTxn(ctx, kv.Txn{If: []clientv3.Cmp{f.Owner.Compare(), f.Node.Compare()}, Then: ops})
		if err == nil && !res.Succeeded {
			err = task.ErrFenced
		}

		if err != nil {
			return fmt.Errorf("trim history of %s: %w", ref, err)
		}
	}

	return nil
}

// KeepDead is how many dead runs of a task are kept, and KeepDeadFlows how many of a workflow, which have their plans and
// results, too.
const (
	KeepDead      = 100
	KeepDeadFlows = 20
)

// TrimDead deletes the dead runs of a task except the given number that were written last,
// whatever the times of their ticks. It compares the fences as TrimHistory does.
func (s Shards) TrimDead(ctx context.Context, f Fences, ref record.Ref, keep int) error {
	all, _, err := s.getAll(ctx, s.keys.Dead(ref), clientv3.WithKeysOnly())
	if err != nil || len(all) <= keep {
		return err
	}

	// The order of the keys is that of the ticks. A retry may have kept the run of an old tick
	// going until now, so the order of the writes counts.
	slices.SortStableFunc(all, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) })

	for some := range slices.Chunk(all[:len(all)-keep], maxTrims) {
		t := kv.Txn{If: []clientv3.Cmp{f.Owner.Compare(), f.Node.Compare()}}
		for _, e := range some {
			t.Then = append(t.Then, clientv3.OpDelete(string(e.Key)))
		}

		res, err := s.writeTxn(ctx, t)
		if err == nil && !res.Succeeded {
			err = task.ErrFenced
		}

		if err != nil {
			return fmt.Errorf("trim the dead runs of %s: %w", ref, err)
		}
	}

	return nil
}

// HistoriesAtOnce is how many histories a caller of HistoriesOf may request at once. Each may
// have thousands of keys.
const HistoriesAtOnce = 20

// HistoriesOf lists the keys of the histories of some tasks, without values, at one revision,
// which it returns. It omits late results, because they do not end runs.
func (s Shards) HistoriesOf(ctx context.Context, refs []record.Ref) (keys [][]ShardEvent, rev int64, err error) {
	ops := make([]clientv3.Op, len(refs))
	for i, ref := range refs {
		prefix := s.keys.HistoryOf(ref)
		ops[i] = clientv3.OpGet(prefix, withPrefix(prefix), clientv3.WithKeysOnly())
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, 0, fmt.Errorf("list histories: %w: %w", task.ErrUnavailable, err)
	}

	for _, r := range res.Responses {
		keys = append(keys, endEvents(s.keys, r.GetResponseRange().Kvs))
	}

	return keys, res.Header.Revision, nil
}

// endEvents returns the events of the records that are ends of runs.
func endEvents(keys record.Keys, kvs []*mvccpb.KeyValue) []ShardEvent {
	return slices.DeleteFunc(shardEvents(keys, kvs), func(ev ShardEvent) bool { return ev.Kind != record.KindEnded || ev.Late })
}

// HistorySample is a part of the tasks of a shard: those with names (namespace/name) from From on, and before To. An empty
// name means no bound.
type HistorySample struct {
	Shard    int
	From, To string
}

// SampleHistory counts the tasks and the history records in some samples. Their ratio is an estimate for the whole
// cluster. etcd visits every key that it counts, so callers choose small samples.
func (s Shards) SampleHistory(ctx context.Context, samples []HistorySample) (tasks, records int64, err error) {
	var ops []clientv3.Op
	for _, sample := range samples {
		entries, history := s.keys.Entries(sample.Shard), s.keys.History(sample.Shard)
		ops = append(ops, countBetween(entries, sample.From, sample.To), countBetween(history, sample.From, sample.To))
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return 0, 0, fmt.Errorf("count the history of some tasks: %w: %w", task.ErrUnavailable, err)
	}

	for i, r := range res.Responses {
		if i%2 == 0 {
			tasks += r.GetResponseRange().Count
		} else {
			records += r.GetResponseRange().Count
		}
	}

	return tasks, records, nil
}

// countBetween counts the keys below a prefix from one name on and before another one.
func countBetween(prefix, from, to string) clientv3.Op {
	end := clientv3.GetPrefixRangeEnd(prefix)
	if to != "" {
		end = prefix + to
	}

	return clientv3.OpGet(prefix+from, clientv3.WithRange(end), clientv3.WithCountOnly())
}
