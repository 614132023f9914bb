package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
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
func (s *Store) History(ctx context.Context, ref Ref, states bool) ([]Past, error) {
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
		past[i].Late = strings.Contains(past[i].ID, lateMark)
		past[i].Mod = e.ModRevision
		if states {
			r, err := decodeRun(e.Value)
			past[i].Succeeded = err == nil && r.State == task.Succeeded
		}
	}
	return past, nil
}

// Run is the id of the run that a record is about.
func (p Past) Run() string {
	run, _, _ := strings.Cut(p.ID, lateMark)
	return run
}

const mostTrims = 96 // deletes in one transaction

// TrimHistory deletes records of a task's history, and no others: what has come
// since they were listed stays, wherever it lies. It only deletes, under the
// fences without the watermark, so that it works while etcd is full and beside a
// commit in flight.
func (s *Store) TrimHistory(ctx context.Context, f Fences, ref Ref, gone []Past) error {
	for some := range slices.Chunk(gone, mostTrims) {
		ops := make([]clientv3.Op, len(some))
		for i, p := range some {
			ops[i] = clientv3.OpDelete(s.keys.Ended(ref, p.ID))
		}
		res, err := s.write(ctx, kv.Txn{If: []clientv3.Cmp{f.Owner.Compare(), f.Node.Compare()}, Then: ops})
		if err == nil && !res.Succeeded {
			err = task.ErrFenced
		}
		if err != nil {
			return fmt.Errorf("trim history of %s: %w", ref, err)
		}
	}
	return nil
}
