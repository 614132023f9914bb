package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// cancelParent requests the end of a run that has parts. The owner of its shard then ends
// the parts. It returns task.ErrConflict if the record has changed since it was read.
func (s Runs) cancelParent(ctx context.Context, ref record.Ref, w task.Waiting, mod int64, who string) (task.Run, error) {
	if w.Fan.Cancel != "" {
		return w.Run, nil
	}

	fan := *w.Fan
	fan.Cancel, w.Fan, w.CancelledBy = task.ReasonCancelled, &fan, who
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
