package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// A Past is a record of a task's history.
type Past struct {
	ID        string // the run's, with a mark if it is a late result
	Succeeded bool   // not told by keys alone
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
		if states {
			r, err := decodeRun(e.Value)
			past[i].Succeeded = err == nil && r.State == task.Succeeded
		}
	}
	return past, nil
}

const (
	fewRecords = 16 // are deleted key by key: a range has to be held against all writes under way
	mostTrims  = 96 // deletes in one transaction
)

// TrimHistory deletes records of a task's history. each is a row of neighbours:
// nothing that is to stay may lie between the first and the last of it. It only
// deletes, under the fences without the watermark, so that it works while etcd
// is full and beside a commit in flight.
func (s *Store) TrimHistory(ctx context.Context, f Fences, ref Ref, each [][]Past) error {
	var ops []clientv3.Op
	for _, row := range each {
		if len(row) > fewRecords {
			ops = append(ops, clientv3.OpDelete(s.keys.Ended(ref, row[0].ID), clientv3.WithRange(s.keys.Ended(ref, row[len(row)-1].ID)+"\x00")))
			continue
		}
		for _, p := range row {
			ops = append(ops, clientv3.OpDelete(s.keys.Ended(ref, p.ID)))
		}
	}
	for len(ops) > 0 {
		some := ops[:min(len(ops), mostTrims)]
		ops = ops[len(some):]
		res, err := s.write(ctx, kv.Txn{If: []clientv3.Cmp{f.Owner.Compare(), f.Node.Compare()}, Then: some})
		if err == nil && !res.Succeeded {
			err = task.ErrFenced
		}
		if err != nil {
			return fmt.Errorf("trim history of %s: %w", ref, err)
		}
	}
	return nil
}
