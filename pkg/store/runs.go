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

// Runs reads and writes runs as users see them, wherever they are stored: in a queue, in
// an inbox, among the parts of a fan-out, in the history or among the dead runs.
//
// It starts no run and ends no active attempt. The owner of the shard dispatches the runs
// that it enqueues, and the node of an attempt carries out requests to cancel or to
// pause. Each write requires that the record is unchanged since it was read.
type Runs struct{ *conn }

// Runs returns the waiting, active and ended runs of a task at one revision, the newest
// first. It omits late results.
func (s Runs) Runs(ctx context.Context, ref record.Ref) ([]task.Run, error) {
	queue, history := s.keys.QueueOf(ref), s.keys.HistoryOf(ref)
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(queue, withPrefix(queue)), clientv3.OpGet(history, withPrefix(history))).Commit()
	if err != nil {
		return nil, fmt.Errorf("list runs of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	byID := map[string]task.Run{}
	for _, r := range res.Responses {
		for _, e := range r.GetResponseRange().Kvs {
			if run, ok := record.DecodeRun(s.keys, e); ok {
				byID[run.ID] = run
			}
		}
	}

	// The inboxes are read at the same revision as the other places, so a run that moves is found
	// in exactly one of them.
	active, err := s.activeOf(ctx, ref, res.Header.Revision)
	if err != nil {
		return nil, err
	}

	for _, h := range active {
		byID[h.ID] = h.Run
	}

	return record.SortRuns(byID), nil
}

// ShardRuns returns the waiting and ended runs of several shards, in one namespace or, if
// namespace is empty, in all. It reads 50 shards at a revision. Active returns the active
// runs.
func (s Runs) ShardRuns(ctx context.Context, shards []int, namespace string) ([]task.Run, error) {
	byID := map[string]task.Run{}
	for chunk := range slices.Chunk(shards, 50) {
		var ops []clientv3.Op
		for _, id := range chunk {
			for _, prefix := range []string{s.keys.Queue(id), s.keys.History(id)} {
				if namespace != "" {
					prefix += namespace + "/"
				}
				ops = append(ops, clientv3.OpGet(prefix, withPrefix(prefix)))
			}
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("list runs: %w: %w", task.ErrUnavailable, err)
		}

		for _, r := range res.Responses {
			for _, e := range r.GetResponseRange().Kvs {
				if run, ok := record.DecodeRun(s.keys, e); ok {
					byID[run.Namespace+"/"+run.Task+"/"+run.ID] = run
				}
			}
		}
	}

	return record.SortRuns(byID), nil
}

// lastEnded returns the run that record.NewestRun selects from a task's history, or nil
// if there is none.
func (s Runs) lastEnded(ctx context.Context, ref record.Ref) (*task.Run, error) {
	all, _, err := s.getAll(ctx, s.keys.HistoryOf(ref))
	return record.NewestRun(s.keys, all), err
}

// Active lists the attempts in all inboxes. It omits records that cannot be read.
func (s Runs) Active(ctx context.Context) ([]record.Held, error) {
	all, _, err := s.getAll(ctx, s.keys.Runs())
	return record.DecodeAllHeld(s.keys, all), err
}

// CancelActive requests that the attempt's node ends the attempt. It returns
// task.ErrConflict if the record has changed since it was read.
func (s Runs) CancelActive(ctx context.Context, h record.Held, who *task.Actor) (task.Run, error) {
	if h.CancelRequested {
		return h.Run, nil
	}
	h.CancelRequested, h.CancelledBy = true, who
	return s.askNode(ctx, h, "cancel")
}

// ProveCancel checks that the caller may cancel an attempt now, and that the attempt is still in its inbox. It is for an
// attempt whose node is asked directly, because etcd is full: nothing is written, so no comparison can refuse a caller
// whose rights are gone by then. It returns task.ErrConflict if the attempt is gone, or if what decides about the
// caller's rights has changed. The Store must be one of Store.As.
func (s Runs) ProveCancel(ctx context.Context, h record.Held) error {
	holds, err := s.proveAs(ctx, kv.CreateIs(s.keys.Run(h.Node, h.Ref(), h.ID), h.Create))
	if err == nil && !holds {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("cancel run %s of %s: %w", h.ID, h.Ref(), err)
	}

	return nil
}

// Attempts reads several attempts. The result is nil for an attempt that is gone or that
// cannot be read.
func (s Runs) Attempts(ctx context.Context, runs []record.RunKey) ([]*record.Held, error) {
	keys := make([]string, len(runs))
	for i, k := range runs {
		keys[i] = s.keys.Run(k.Node, k.Ref, k.Run)
	}

	list := make([]*record.Held, len(runs))
	err := s.eachKey(ctx, keys, func(i int, e *mvccpb.KeyValue) {
		if e == nil {
			return
		}

		if h, err := record.DecodeHeld(s.keys, e); err == nil {
			list[i] = &h
		}
	})

	if err != nil {
		return nil, fmt.Errorf("read attempts: %w", err)
	}

	return list, nil
}

// RunByID returns one run or one part by its whole id, at one revision, or task.ErrNotFound. It reads only the keys that can
// contain its record, so its cost depends on the number of nodes, and not on the number of parts or of other runs.
//
// The record of an ended part may be gone, because the record of its run then contains its result.
func (s Runs) RunByID(ctx context.Context, ref record.Ref, id string) (task.Run, error) {
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.Queued(ref, id)), clientv3.OpGet(s.keys.Ended(ref, id))).Commit()
	if err != nil {
		return task.Run{}, fmt.Errorf("read run %s of %s: %w: %w", id, ref, task.ErrUnavailable, err)
	}

	for _, r := range res.Responses {
		for _, e := range r.GetResponseRange().Kvs {
			if run, ok := record.DecodeRun(s.keys, e); ok {
				return run, nil
			}
		}
	}

	// The inboxes are read at the same revision, so a run that moves is found in exactly one place.
	var found []record.Held
	read := func(node string, rev int64) clientv3.Op {
		return clientv3.OpGet(s.keys.Run(node, ref, id), clientv3.WithRev(rev))
	}

	err = s.eachInbox(ctx, res.Header.Revision, read, func(kvs []*mvccpb.KeyValue) {
		found = append(found, record.DecodeAllHeld(s.keys, kvs)...)
	})
	if err == nil && len(found) == 0 {
		err = task.ErrNotFound
	}
	if err != nil {
		return task.Run{}, fmt.Errorf("find run %s of %s: %w", id, ref, err)
	}

	return found[0].Run, nil
}

// cancelParent requests the end of a run that has parts. The owner of its shard then ends
// the parts: with force also those that clean up. It returns task.ErrConflict if the record has changed since it was read.
func (s Runs) cancelParent(ctx context.Context, ref record.Ref, w task.Waiting, mod int64, force bool, who *task.Actor) (task.Run, error) {
	fan := *w.Fan
	force = force && fan.Flow != nil && !fan.Flow.Forced
	if fan.Cancel != "" && !force {
		return w.Run, nil
	}

	if fan.Cancel == "" {
		fan.Cancel, w.CancelledBy = task.ReasonCancelled, who
	}
	if force {
		flow := *fan.Flow
		flow.Forced, fan.Flow = true, &flow
	}
	w.Fan = &fan

	key := s.keys.Queued(ref, w.ID)
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(key, mod)},
		Then: []clientv3.Op{opPut(key, record.EncodeWaiting(w))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return task.Run{}, fmt.Errorf("cancel run %s of %s: %w", w.ID, ref, err)
	}

	return w.Run, nil
}

// PartsOf returns the recorded parts of a run that is under way, by index: parts in
// inboxes, in the queue, and ended parts. It reads these places one after the other. If a
// part moves meanwhile, the record that is read last is returned.
func (s Runs) PartsOf(ctx context.Context, ref record.Ref, parent string) (map[int]task.Run, error) {
	parts := map[int]task.Run{}
	add := func(r task.Run) {
		if of, i, is := task.ParentOf(r.ID); is && of == parent {
			parts[i] = r
		}
	}

	// A part moves from an inbox to the queue or to the ended parts, and from the queue to an inbox
	// or to the ended parts. The ended parts are read last, so an end is never overlooked.
	active, err := s.ActiveOf(ctx, ref)
	if err != nil {
		return nil, err
	}

	for _, h := range active {
		add(h.Run)
	}

	for _, prefix := range []string{s.keys.QueueOf(ref), s.keys.Parts(ref)} {
		all, _, err := s.getAll(ctx, prefix+parent+"-")
		if err != nil {
			return nil, fmt.Errorf("read the parts of run %s of %s: %w", parent, ref, err)
		}

		for _, e := range all {
			if run, ok := record.DecodeRun(s.keys, e); ok {
				add(run)
			}
		}
	}

	return parts, nil
}
