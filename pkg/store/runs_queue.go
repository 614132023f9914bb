package store

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Enqueue adds a run to the queue of a task and returns the revision of the write. It
// returns task.ErrNotFound if the task was read without an entry, because no owner would
// run it; task.ErrConflict if the entry has changed since it was read; and task.ErrExists
// if the run is already in the queue.
func (s Runs) Enqueue(ctx context.Context, st Stored, w task.Waiting) (int64, error) {
	return s.EnqueueOnce(ctx, st, w, Idempotency{})
}

// EnqueueOnce is like Enqueue for a request that must queue at most one run. It also returns
// task.ErrConflict if an earlier copy of the request has queued a run: RunOf returns it.
func (s Runs) EnqueueOnce(ctx context.Context, st Stored, w task.Waiting, once Idempotency) (int64, error) {
	if st.EntryMod == 0 {
		return 0, fmt.Errorf("queue run %s of %s: its entry: %w", w.ID, st.Ref, task.ErrNotFound)
	}

	key := s.keys.Queued(st.Ref, w.ID)
	t := kv.Txn{
		If:   []clientv3.Cmp{isAbsent(key), isUnchanged(s.keys.Entry(st.Ref), st.EntryMod)},
		Then: []clientv3.Op{opPut(key, record.EncodeWaiting(w))},
		Else: []clientv3.Op{clientv3.OpGet(key)},
	}
	s.remember(&t, once, record.Idempotency{Run: w.ID})

	res, err := s.writeTxn(ctx, t)
	switch {
	case err != nil:
		return 0, fmt.Errorf("queue run %s of %s: %w", w.ID, st.Ref, err)
	case res.Succeeded:
		return res.Revision, nil
	case readAt(res, 0) != nil:
		return 0, fmt.Errorf("queue run %s of %s: %w", w.ID, st.Ref, task.ErrExists)
	}

	return 0, fmt.Errorf("queue run %s of %s: %w", w.ID, st.Ref, task.ErrConflict)
}

// ManualRunsWait reports whether at least this many manual runs of a task are in its queue. Those that have begun their
// parts count, too.
func (s Runs) ManualRunsWait(ctx context.Context, ref record.Ref, most int) (bool, error) {
	prefix := s.keys.QueueOf(ref)

	// The queue is usually short, so counting its keys is enough.
	res, err := s.readKey(ctx, prefix, withPrefix(prefix), clientv3.WithCountOnly())
	if err != nil {
		return false, fmt.Errorf("count the waiting runs of %s: %w", ref, err)
	}

	if res.Count < int64(most) {
		return false, nil
	}

	all, _, err := s.getAll(ctx, prefix, clientv3.WithKeysOnly())
	if err != nil {
		return false, fmt.Errorf("list the waiting runs of %s: %w", ref, err)
	}

	n := 0
	for _, e := range all {
		if task.TriggerOfRunID(string(e.Key[len(prefix):])) == task.TriggerManual {
			n++
		}
	}

	return n >= most, nil
}

// CancelQueued ends a waiting run as cancelled; for a fan-out that is under way, it
// requests its end. It returns task.ErrNotFound if the run is not in the queue, and
// task.ErrConflict if its record changes during the call.
func (s Runs) CancelQueued(ctx context.Context, ref record.Ref, id string, who *task.Actor, now time.Time) (task.Run, error) {
	return s.cancelQueued(ctx, ref, id, false, who, now)
}

// ForceCancelQueued is CancelQueued for a run of a workflow whose cleanup must end, too. Of other runs it does the same as CancelQueued.
func (s Runs) ForceCancelQueued(ctx context.Context, ref record.Ref, id string, who *task.Actor, now time.Time) (task.Run, error) {
	return s.cancelQueued(ctx, ref, id, true, who, now)
}

func (s Runs) cancelQueued(ctx context.Context, ref record.Ref, id string, force bool, who *task.Actor, now time.Time) (task.Run, error) {
	key := s.keys.Queued(ref, id)
	e, err := s.getOne(ctx, key)
	if err != nil {
		return task.Run{}, err
	}
	if e == nil {
		return task.Run{}, fmt.Errorf("waiting run %s of %s: %w", id, ref, task.ErrNotFound)
	}

	w, err := record.DecodeWaiting(record.ShardKey{Kind: record.KindQueued, Ref: ref, Run: id}, e.Value)
	if err != nil {
		return task.Run{}, err
	}
	// A fan-out whose parts have begun cannot end before its parts do.
	if w.UnderWay() {
		return s.cancelParent(ctx, ref, w, e.ModRevision, force, who)
	}

	end := w.Run
	end.State, end.Reason, end.CancelledBy, end.EndedAt = task.Cancelled, task.ReasonCancelled, who, task.At(now)
	then := []clientv3.Op{clientv3.OpDelete(key), opPut(s.keys.Ended(ref, id), record.EncodeEnded(end))}

	// The run retries another run of a workflow, whose dead run was deleted for it. It becomes a dead run in its place, so what it keeps
	// is not lost.
	if w.Fan != nil && w.Fan.Flow != nil {
		then = append(then, opPut(s.keys.DeadRun(ref, id), record.EncodeWaiting(task.Waiting{Run: end, Env: w.Env})))
	}

	res, err := s.writeTxn(ctx, kv.Txn{If: []clientv3.Cmp{isUnchanged(key, e.ModRevision)}, Then: then})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return task.Run{}, fmt.Errorf("cancel run %s of %s: %w", id, ref, err)
	}

	return end, nil
}

// SetFlowPaused pauses or resumes a run of a workflow that is under way: while it is paused, none of its steps begins. It changes nothing if
// the run already is so. It returns task.ErrNotFound if the run is not one that is under way, and task.ErrConflict if its record
// changes during the call.
func (s Runs) SetFlowPaused(ctx context.Context, ref record.Ref, id string, paused bool, who *task.Actor, now time.Time) error {
	key := s.keys.Queued(ref, id)
	read, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(key), clientv3.OpGet(s.keys.Freezes())).Commit()
	if err != nil {
		return fmt.Errorf("read run %s of %s: %w: %w", id, ref, task.ErrUnavailable, err)
	}

	found := kv.Result{Responses: read.Responses}
	e, freezes := readAt(found, 0), freezeRecord(readAt(found, 1), read.Header.Revision).Freezes
	if e == nil {
		return fmt.Errorf("run %s of %s: %w", id, ref, task.ErrNotFound)
	}

	w, err := record.DecodeWaiting(record.ShardKey{Kind: record.KindQueued, Ref: ref, Run: id}, e.Value)
	switch {
	case err != nil:
		return err
	case !w.UnderWay() || w.Fan.Flow == nil:
		return fmt.Errorf("run %s of %s: %w", id, ref, task.ErrNotFound)
	case paused == !w.PausedAt.IsZero():
		return nil
	case paused:
		w.Fan.Flow.CountFreezes(&freezes, ref.Namespace, w.DispatchedAt.Time, now)
		w.PausedAt, w.PausedBy = task.At(now), who
	default:
		w.PausedMS = w.PausedFor(now).Milliseconds()
		w.Fan.Flow.SkipFreezes(now) // the pause has held the run
		w.PausedAt, w.PausedBy = task.Time{}, nil
	}

	res, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(key, e.ModRevision)},
		Then: []clientv3.Op{opPut(key, record.EncodeWaiting(w))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("pause run %s of %s: %w", id, ref, err)
	}

	return nil
}
