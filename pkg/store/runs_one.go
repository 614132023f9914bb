package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

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
