package store

import (
	"context"
	"fmt"
	"slices"
	"time"

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

// DeadData is the data of a dead run of a workflow, with the mod revision at which it was read.
type DeadData struct {
	task.RunData
	Mod int64
}

// DeadRunData returns the data of a dead run of a workflow, or task.ErrNotFound.
func (s Runs) DeadRunData(ctx context.Context, ref record.Ref, run string) (DeadData, error) {
	e, err := s.getOne(ctx, s.keys.RunData(ref, run))
	if err == nil && e == nil {
		err = task.ErrNotFound
	}
	if err != nil {
		return DeadData{}, fmt.Errorf("read the steps of run %s of %s: %w", run, ref, err)
	}

	d, err := record.Decode[task.RunData](e.Value)
	if err != nil {
		return DeadData{}, fmt.Errorf("read the steps of run %s of %s: %w", run, ref, err)
	}

	return DeadData{d, e.ModRevision}, nil
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
	return s.revive(ctx, st, d, w, once, nil)
}

// ReviveFlow is ReviveOnce for a run of a workflow. The transaction also puts the data of the new run, made from those of the dead one,
// which it deletes. So the new run has its plan and the results that it keeps when its owner sees it.
func (s Runs) ReviveFlow(ctx context.Context, st Stored, d record.Dead, w task.Waiting, once Idempotency, old DeadData, data task.RunData) error {
	was, is := s.keys.RunData(st.Ref, d.ID), s.keys.RunData(st.Ref, w.ID)

	return s.revive(ctx, st, d, w, once, &kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(was, old.Mod), isAbsent(is)},
		Then: []clientv3.Op{clientv3.OpDelete(was), opPut(is, []byte(record.Encode(data)))},
	})
}

// revive is ReviveOnce with more in its transaction, or nil.
func (s Runs) revive(ctx context.Context, st Stored, d record.Dead, w task.Waiting, once Idempotency, more *kv.Txn) error {
	if st.EntryMod == 0 {
		return fmt.Errorf("retry run %s of %s: its entry: %w", d.ID, st.Ref, task.ErrNotFound)
	}

	dead, queued := s.keys.DeadRun(st.Ref, d.ID), s.keys.Queued(st.Ref, w.ID)
	t := kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(dead, d.Mod), isAbsent(queued), isUnchanged(s.keys.Entry(st.Ref), st.EntryMod)},
		Then: []clientv3.Op{clientv3.OpDelete(dead), opPut(queued, record.EncodeWaiting(w))},
	}
	s.remember(&t, once, record.Idempotency{Run: w.ID})
	if more != nil {
		t.If, t.Then = append(t.If, more.If...), append(t.Then, more.Then...)
	}

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
//
// If the alert about failures of the task is open, and no other dead run keeps it open, the second transaction also closes it.
func (s Runs) Dismiss(ctx context.Context, ref record.Ref, d record.Dead, who *task.Actor, now time.Time) error {
	key := s.keys.DeadRun(ref, d.ID)
	d.DismissedBy = who

	marked, err := s.writeDead(ctx, key, d.Mod, opPut(key, record.EncodeWaiting(d.Waiting)))
	if err == nil {
		err = s.deleteDismissed(ctx, ref, d, marked, task.AlertClose{At: task.At(now), Why: task.AlertDismissed, By: who})
	}

	if err != nil {
		return fmt.Errorf("dismiss run %s of %s: %w", d.ID, ref, err)
	}

	return nil
}

// maxDismissals is how often a dismissal tries to close the alert of the task with the deletion of the dead run. Each time but
// the last, another run has died meanwhile, or the alert has changed.
const maxDismissals = 3

// deleteDismissed deletes a dead run with the mod revision mod, with the data of a workflow.
func (s Runs) deleteDismissed(ctx context.Context, ref record.Ref, d record.Dead, mod int64, how task.AlertClose) error {
	key, run := s.keys.DeadRun(ref, d.ID), d.ID
	gone := []clientv3.Op{clientv3.OpDelete(key)}
	if d.Fan != nil && d.Fan.Flow != nil {
		gone = append(gone, clientv3.OpDelete(s.keys.RunData(ref, run)))
	}

	for range maxDismissals {
		closing, err := s.alertToClose(ctx, ref, run, how)
		if err != nil {
			return err
		}
		if closing == nil {
			break
		}

		res, err := s.writeTxn(ctx, kv.Txn{If: append(closing.If, isUnchanged(key, mod)), Then: append(closing.Then, gone...)})
		if err != nil || res.Succeeded {
			return err
		}
	}

	// An alert that stays open is closed by the owner of the shard.
	_, err := s.writeDead(ctx, key, mod, gone...)

	return err
}

// alertToClose returns what closes the alert about failures of a task together with the deletion of a dead run, or nil if the alert
// is not open, or another dead run keeps it open: one that was created after the last success that the alert knows.
func (s Runs) alertToClose(ctx context.Context, ref record.Ref, run string, how task.AlertClose) (*kv.Txn, error) {
	alert, dead := s.keys.Alert(ref, task.AlertFailures), s.keys.Dead(ref)

	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(alert), clientv3.OpGet(dead, withPrefix(dead))).Commit()
	if err != nil {
		return nil, fmt.Errorf("read the alert: %w: %w", task.ErrUnavailable, err)
	}

	e := readAt(kv.Result{Responses: res.Responses}, 0)
	if e == nil {
		return nil, nil
	}

	a, _, _, err := record.DecodeAlert(s.keys, e)
	if err != nil || !a.IsOpen() || !task.RunBelongs(run, a.UID) {
		return nil, nil
	}

	for _, other := range res.Responses[1].GetResponseRange().Kvs {
		if id := string(other.Key)[len(dead):]; id == run || other.CreateRevision <= a.Base {
			continue
		}
		if record.IsDeadFailure(other.Value) {
			return nil, nil
		}
	}

	a.Closed = &how

	return &kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(alert, a.Mod), noneNewer(dead, res.Header.Revision)},
		Then: []clientv3.Op{clientv3.OpPut(alert, record.EncodeAlert(a))},
	}, nil
}

// writeDead applies op if the record of a dead run still has the mod revision mod. It returns
// the revision of the write.
func (s Runs) writeDead(ctx context.Context, key string, mod int64, ops ...clientv3.Op) (int64, error) {
	res, err := s.writeTxn(ctx, kv.Txn{If: []clientv3.Cmp{isUnchanged(key, mod)}, Then: ops})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}
	return res.Revision, err
}
