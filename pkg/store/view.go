package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// NoSpace reports whether an error of this package came of etcd being over its
// quota. Such a write may have been applied all the same.
func NoSpace(err error) bool {
	return kv.NoSpace(err)
}

// Revisions reads what a delete of a task compares, and of its spec what can be
// read: a task whose records cannot be can be deleted all the same.
// task.ErrNotFound if it has neither spec nor entry.
func (s *Store) Revisions(ctx context.Context, ref Ref) (Stored, error) {
	st := Stored{Ref: ref}
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.Spec(ref)), clientv3.OpGet(s.keys.Entry(ref))).Commit()
	if err != nil {
		return st, fmt.Errorf("read task %s: %w: %w", ref, task.ErrUnavailable, err)
	}
	r := kv.Result{Responses: res.Responses}
	if e := readAt(r, 0); e != nil {
		st.Task, _ = DecodeTask(e.Value, e.ModRevision) // as far as it can be read
	}
	if e := readAt(r, 1); e != nil {
		st.EntryMod = e.ModRevision
	}
	if st.Task.Revision == 0 && st.EntryMod == 0 {
		return st, fmt.Errorf("task %s: %w", ref, task.ErrNotFound)
	}
	return st, nil
}

// Entries reads the entries of several tasks; nil where there is none, or none
// that can be read.
func (s *Store) Entries(ctx context.Context, refs []Ref) ([]*task.Entry, error) {
	keys := make([]string, len(refs))
	for i, ref := range refs {
		keys[i] = s.keys.Entry(ref)
	}
	list := make([]*task.Entry, len(refs))
	err := s.eachKey(ctx, keys, func(i int, e *mvccpb.KeyValue) {
		if e == nil {
			return
		}
		if entry, err := DecodeEntry(e.Value); err == nil {
			list[i] = &entry
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	return list, nil
}

// Attempts reads several attempts; nil where one is gone or cannot be read.
func (s *Store) Attempts(ctx context.Context, runs []RunKey) ([]*Held, error) {
	keys := make([]string, len(runs))
	for i, k := range runs {
		keys[i] = s.keys.Run(k.Node, k.Ref, k.Run)
	}
	list := make([]*Held, len(runs))
	err := s.eachKey(ctx, keys, func(i int, e *mvccpb.KeyValue) {
		if e == nil {
			return
		}
		if h, err := s.held(e); err == nil {
			list[i] = &h
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read attempts: %w", err)
	}
	return list, nil
}

// eachKey reads keys, many in one request, and calls f for each, in order; with nil
// for one that is not there.
func (s *Store) eachKey(ctx context.Context, keys []string, f func(i int, e *mvccpb.KeyValue)) error {
	i := 0
	return s.eachOf(ctx, keys, func(r *etcdserverpb.RangeResponse) {
		var e *mvccpb.KeyValue
		if len(r.Kvs) > 0 {
			e = r.Kvs[0]
		}
		f(i, e)
		i++
	})
}

// eachOf is eachKey for who wants to know the revision, too.
func (s *Store) eachOf(ctx context.Context, keys []string, f func(*etcdserverpb.RangeResponse)) error {
	for chunk := range slices.Chunk(keys, 100) {
		ops := make([]clientv3.Op, len(chunk))
		for i, key := range chunk {
			ops[i] = clientv3.OpGet(key)
		}
		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		}
		for _, r := range res.Responses {
			f(r.GetResponseRange())
		}
	}
	return nil
}

// KeyOf is a key, or a prefix that ends in "/", that belongs to a task.
type KeyOf struct {
	Key     string
	What    string
	Present bool
}

// KeysOf are the keys that belong to a task: its records, and those of its
// shard on which it depends.
func (s *Store) KeysOf(ctx context.Context, ref Ref) ([]KeyOf, error) {
	list := []KeyOf{
		{Key: s.keys.Spec(ref), What: "spec"}, {Key: s.keys.Entry(ref), What: "entry"},
		{Key: s.keys.QueueOf(ref), What: "queue"}, {Key: s.keys.HistoryOf(ref), What: "history"},
		{Key: s.keys.Parts(ref), What: "parts"},
		{Key: s.keys.Dead(ref), What: "dead"}, {Key: s.keys.Versions(ref), What: "versions"},
		{Key: s.keys.Watermark(ref.Shard), What: "watermark"}, {Key: s.keys.Owner(ref.Shard), What: "owner"},
	}
	ops := make([]clientv3.Op, len(list))
	for i, k := range list {
		ops[i] = clientv3.OpGet(k.Key, clientv3.WithCountOnly())
		if strings.HasSuffix(k.Key, "/") {
			ops[i] = clientv3.OpGet(k.Key, below(k.Key), clientv3.WithCountOnly())
		}
	}
	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("look for the keys of %s: %w: %w", ref, task.ErrUnavailable, err)
	}
	for i, r := range res.Responses {
		list[i].Present = r.GetResponseRange().Count > 0
	}
	active, err := s.ActiveOf(ctx, ref)
	if err != nil {
		return nil, err
	}
	for _, h := range active {
		list = append(list, KeyOf{Key: s.keys.Run(h.Node, ref, h.ID), What: "inbox", Present: true})
	}
	return list, nil
}

// Totals are counts over the whole cluster, at one revision, and its leader.
type Totals struct {
	Tasks, ActiveRuns int64
	Leader            string // the node that leads; "" if none does
}

// Totals reads them.
func (s *Store) Totals(ctx context.Context) (Totals, error) {
	specs, runs, leader := s.keys.Specs(), s.keys.Runs(), s.keys.Leader()
	// An election's leader is the candidate whose key was created first.
	first := []clientv3.OpOption{below(leader), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(1)}
	res, err := s.etcd.Txn(ctx).Then(
		clientv3.OpGet(specs, below(specs), clientv3.WithCountOnly()),
		clientv3.OpGet(runs, below(runs), clientv3.WithCountOnly()),
		clientv3.OpGet(leader, first...),
	).Commit()
	if err != nil {
		return Totals{}, fmt.Errorf("count tasks and runs: %w: %w", task.ErrUnavailable, err)
	}
	t := Totals{Tasks: res.Responses[0].GetResponseRange().Count, ActiveRuns: res.Responses[1].GetResponseRange().Count}
	if e := readAt(kv.Result{Responses: res.Responses}, 2); e != nil {
		t.Leader = string(e.Value)
	}
	return t, nil
}
