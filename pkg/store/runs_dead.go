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

// DeadRuns returns the dead runs of a task, the newest first. It omits those that cannot be
// read.
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

// ShardDead returns the dead runs of several shards, of one namespace or, if namespace is
// empty, of all, in no particular order.
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

// Revive deletes the dead run d and queues the run w, in one transaction. It returns
// task.ErrConflict if the task or the dead run has changed since they were read, and
// task.ErrUnknown if the outcome is unknown.
func (s Runs) Revive(ctx context.Context, st Stored, d record.Dead, w task.Waiting) error {
	return s.ReviveOnce(ctx, st, d, w, Idempotency{})
}

// ReviveOnce is like Revive for a request that must queue at most one run. It also returns
// task.ErrConflict if an earlier copy of the request has queued a run: RunOf returns it.
func (s Runs) ReviveOnce(ctx context.Context, st Stored, d record.Dead, w task.Waiting, once Idempotency) error {
	if st.EntryMod == 0 {
		return fmt.Errorf("retry run %s of %s: its entry: %w", d.ID, st.Ref, task.ErrNotFound)
	}

	dead, queued := s.keys.DeadRun(st.Ref, d.ID), s.keys.Queued(st.Ref, w.ID)
	t := kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(dead, d.Mod), isAbsent(queued), isUnchanged(s.keys.Entry(st.Ref), st.EntryMod)},
		Then: []clientv3.Op{clientv3.OpDelete(dead), opPut(queued, record.EncodeWaiting(w))},
	}
	s.remember(&t, once, w.ID)

	res, err := s.writeTxn(ctx, t)
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("retry run %s of %s: %w", d.ID, st.Ref, err)
	}

	return nil
}

// Dismiss deletes a dead run. It returns task.ErrConflict if the dead run has changed since it
// was read.
//
// A deletion cannot contain who requested it. Therefore a first transaction adds the name to
// the record, and the event of the deletion gets it from there (G26). If only the first
// transaction is applied, the run is dead as before and can be dismissed again. The history
// record of the run is not changed: the owner of the shard would count a rewritten record as
// another end.
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

// writeDead applies op if the record of a dead run still has the mod revision mod. It returns
// the revision of the write.
func (s Runs) writeDead(ctx context.Context, key string, mod int64, op clientv3.Op) (int64, error) {
	res, err := s.writeTxn(ctx, kv.Txn{If: []clientv3.Cmp{isUnchanged(key, mod)}, Then: []clientv3.Op{op}})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}
	return res.Revision, err
}
