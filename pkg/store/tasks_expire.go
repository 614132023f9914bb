package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ExpireTask deletes a task whose ttl has expired, on behalf of the owner of its shard, and
// leaves a tombstone. It requires that the fences hold, that the spec is unchanged since
// ExpireTask read it, that the entry still has the mod revision entryMod, and that no run of
// the task waits. The caller guarantees that no attempt is active, and dispatches no run of the
// task until ExpireTask returns.
//
// It returns task.ErrConflict if a condition does not hold, or if the shard's watermark was
// written during the call. Then nothing is changed. After task.ErrUnknown, the transaction may
// still be applied, but not after the next commit of the shard, because it compares the
// watermark.
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
			// The comparison of the watermark ensures that a delayed copy of this transaction
			// cannot delete runs that a later commit has dispatched or queued.
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
		return fmt.Errorf("delete ended task %s: %w", ref, err)
	}

	return nil
}
