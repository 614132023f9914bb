package store

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// DeadRuns are a task's, the newest first. Those that cannot be read are left out.
func (s Runs) DeadRuns(ctx context.Context, ref record.Ref) ([]record.Dead, error) {
	all, _, err := s.getAll(ctx, s.keys.Dead(ref))
	if err != nil {
		return nil, fmt.Errorf("list the dead runs of %s: %w", ref, err)
	}

	var list []record.Dead
	for _, e := range all {
		if d, ok := record.DecodeDead(s.keys, e); ok {
			list = append(list, d)
		}
	}

	slices.SortFunc(list, func(a, b record.Dead) int { return record.ByTime(a.Run, b.Run) })

	return list, nil
}

// ShardDead are the dead runs of several shards, of one namespace or of all (""),
// in no order.
func (s Runs) ShardDead(ctx context.Context, shards []int, namespace string) ([]task.Run, error) {
	var runs []task.Run
	prefixes := make([]string, len(shards))
	for i, id := range shards {
		prefixes[i] = s.keys.Shard(id) + "dead/"
		if namespace != "" {
			prefixes[i] += namespace + "/"
		}
	}

	for chunk := range slices.Chunk(prefixes, 100) {
		ops := make([]clientv3.Op, len(chunk))
		for i, p := range chunk {
			ops[i] = clientv3.OpGet(p, withPrefix(p))
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("list dead runs: %w: %w", task.ErrUnavailable, err)
		}

		for _, r := range res.Responses {
			for _, e := range r.GetResponseRange().Kvs {
				if d, ok := record.DecodeDead(s.keys, e); ok {
					runs = append(runs, d.Run)
				}
			}
		}
	}

	return runs, nil
}

// Revive queues a run in place of a dead one, in one transaction. task.ErrConflict
// if the task or the dead run has changed since they were read, task.ErrUnknown if
// nobody knows whether it happened.
func (s Runs) Revive(ctx context.Context, st Stored, d record.Dead, w task.Waiting) error {
	if st.EntryMod == 0 {
		return fmt.Errorf("run %s of %s again: its entry: %w", d.ID, st.Ref, task.ErrNotFound)
	}

	dead, queued := s.keys.DeadRun(st.Ref, d.ID), s.keys.Queued(st.Ref, w.ID)
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(dead, d.Mod), isAbsent(queued), isUnchanged(s.keys.Entry(st.Ref), st.EntryMod)},
		Then: []clientv3.Op{clientv3.OpDelete(dead), opPut(queued, record.EncodeWaiting(w))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("run %s of %s again: %w", d.ID, st.Ref, err)
	}

	return nil
}

// Dismiss takes a dead run off the record. task.ErrConflict if it has changed.
//
// A deletion cannot say whose it is: the record names who in a revision of its own, from
// which the event of the deletion has it. If only that is written, the run is dead as
// before, and can be dismissed again. The run's history stays as it is: whoever owns its
// shard takes a record that is written anew for another end.
func (s Runs) Dismiss(ctx context.Context, ref record.Ref, d record.Dead, who string) error {
	key := s.keys.DeadRun(ref, d.ID)
	d.DismissedBy = who

	marked, err := s.writeDead(ctx, key, d.Mod, opPut(key, record.EncodeWaiting(d.Waiting)))
	if err == nil {
		_, err = s.writeDead(ctx, key, marked, clientv3.OpDelete(key))
	}

	if err != nil {
		return fmt.Errorf("dismiss run %s of %s: %w", d.ID, ref, err)
	}

	return nil
}

// writeDead changes the record of a dead run that was read at a mod revision, and returns
// the revision of the change.
func (s Runs) writeDead(ctx context.Context, key string, mod int64, op clientv3.Op) (int64, error) {
	res, err := s.writeTxn(ctx, kv.Txn{If: []clientv3.Cmp{isUnchanged(key, mod)}, Then: []clientv3.Op{op}})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}
	return res.Revision, err
}
