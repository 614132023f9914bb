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

// A Past is a record of a task's history.
type Past struct {
	ID        string // the run's, with a mark if it is a late result
	Late      bool   // it is no outcome of its run, but stands beside it
	Succeeded bool   // not told by keys alone
	Mod       int64  // mod revision: in this order the records were written
}

// History lists the records of a task's history, the oldest first; with states
// it reads them, else only their keys. One that cannot be read did not succeed.
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

	past := make([]Past, len(all))
	for i, e := range all {
		past[i].ID = string(e.Key)[len(prefix):]
		past[i].Late = strings.Contains(past[i].ID, record.LateMark)
		past[i].Mod = e.ModRevision
		if states {
			r, err := record.DecodeRunValue(e.Value)
			past[i].Succeeded = err == nil && r.State == task.Succeeded
		}
	}

	return past, nil
}

// Run is the id of the run that a record is about.
func (p Past) Run() string {
	run, _, _ := strings.Cut(p.ID, record.LateMark)
	return run
}

const mostTrims = 96 // deletes in one transaction

// TrimHistory deletes records of a task's history, and no others: what has come
// since they were listed stays, wherever it lies. It only deletes, under the
// fences without the watermark, so that it works while etcd is full and beside a
// commit in flight.
func (s Shards) TrimHistory(ctx context.Context, f Fences, ref record.Ref, gone []Past) error {
	for some := range slices.Chunk(gone, mostTrims) {
		ops := make([]clientv3.Op, len(some))
		for i, p := range some {
			ops[i] = clientv3.OpDelete(s.keys.Ended(ref, p.ID))
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

// KeepDead is how many dead runs of a task stay on record.
const KeepDead = 100

// TrimDead deletes all but KeepDead of a task's dead runs, under the fences, as
// TrimHistory does. Those that died last stay, whenever their ticks were.
func (s Shards) TrimDead(ctx context.Context, f Fences, ref record.Ref) error {
	all, _, err := s.getAll(ctx, s.keys.Dead(ref), clientv3.WithKeysOnly())
	if err != nil || len(all) <= KeepDead {
		return err
	}

	slices.SortStableFunc(all, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) })

	for some := range slices.Chunk(all[:len(all)-KeepDead], mostTrims) {
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

// HistoriesAtOnce is how many histories HistoriesOf lists at most: each may have
// thousands of keys.
const HistoriesAtOnce = 20

// HistoriesOf lists the keys of some tasks' histories, without values, at one
// revision, which it returns. Late results are left out: they are no ends.
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

func endEvents(keys record.Keys, kvs []*mvccpb.KeyValue) []ShardEvent {
	return slices.DeleteFunc(shardEvents(keys, kvs), func(ev ShardEvent) bool { return ev.Kind != record.KindEnded || ev.Late })
}
