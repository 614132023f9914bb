package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ExpireTask buries a task that is over, as the owner of its shard: if the fences
// hold, the entry is still the one known by its mod revision, and nothing of the
// task waits. That nothing of it is active is the caller's to know, who dispatches
// nothing of it until this returns. It returns task.ErrConflict if anything of that
// is otherwise, or if the shard's watermark was written meanwhile; then nothing is
// changed. If nobody knows (task.ErrUnknown), it may still happen, but not after the
// next commit of the shard.
func (s Tasks) ExpireTask(ctx context.Context, f Fences, ref record.Ref, entryMod int64, t record.Tombstone) error {
	old, err := s.Revisions(ctx, ref)
	if err != nil {
		return err
	}

	watermark := s.keys.Watermark(ref.Shard)
	mark, err := s.getOne(ctx, watermark)
	if err != nil {
		return err
	}

	queue := s.keys.QueueOf(ref)
	res, err := s.writeTxn(ctx, kv.Txn{
		If: []clientv3.Cmp{
			f.Owner.Compare(), f.Node.Compare(), isUnchanged(s.keys.Spec(ref), old.Task.Revision), isUnchanged(s.keys.Entry(ref), entryMod),
			isUnchanged(watermark, mark.GetModRevision()),
			isAbsent(queue).WithRange(clientv3.GetPrefixRangeEnd(queue)),
		},
		Then: append(s.removalOps(ref), s.putTombstone(ref, t)),
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("delete task %s, which is over: %w", ref, err)
	}

	return nil
}
