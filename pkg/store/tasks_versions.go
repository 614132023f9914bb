package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// KeepVersions is how many former versions of a task are kept, in addition to the spec, which
// is the version in force.
const KeepVersions = 10

// putVersion returns the operations that keep the spec of old as a version, byte for byte, and
// delete versions that are too old. Each write increases the generation by one, and the keys of
// versions are ordered by generation, so the old ones are a range.
func (s Tasks) putVersion(old *Stored) []clientv3.Op {
	if len(old.rawSpec) == 0 {
		return nil
	}

	generation := old.Task.Generation
	ops := []clientv3.Op{clientv3.OpPut(s.keys.Version(old.Ref, generation), string(old.rawSpec))}
	if generation > KeepVersions {
		ops = append(ops, clientv3.OpDelete(s.keys.Versions(old.Ref), clientv3.WithRange(s.keys.Version(old.Ref, generation-KeepVersions+1))))
	}

	return ops
}

// Versions reads the versions of a task at one revision, the newest first: the version in
// force, whose Revision is that of its key, and the former versions that are kept. A former
// version that cannot be read has only its generation.
//
// If the task does not exist, the error is task.ErrNotFound, and gone is its tombstone, if
// there is one.
func (s Tasks) Versions(ctx context.Context, ref record.Ref) (list []task.Task, gone *record.Tombstone, err error) {
	former := s.keys.Versions(ref)
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.Spec(ref)), clientv3.OpGet(former, withPrefix(former)), clientv3.OpGet(s.keys.Tombstone(ref))).Commit()
	if err != nil {
		return nil, nil, fmt.Errorf("read the versions of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	read := kv.Result{Responses: res.Responses}
	spec := readAt(read, 0)
	if spec == nil {
		gone, err := record.DecodeTombstone(readAt(read, 2))
		if err != nil {
			return nil, nil, fmt.Errorf("tombstone of task %s: %w", ref, err)
		}
		return nil, gone, fmt.Errorf("task %s: %w", ref, task.ErrNotFound)
	}

	t, err := record.DecodeTask(spec.Value, spec.ModRevision)
	if err != nil {
		return nil, nil, fmt.Errorf("task %s: %w", ref, err)
	}

	list = append(list, t)
	kvs := res.Responses[1].GetResponseRange().Kvs
	for _, e := range slices.Backward(kvs) {
		v, err := record.DecodeTask(e.Value, 0)
		if err != nil {
			n, _ := strconv.ParseInt(strings.TrimPrefix(string(e.Key), former), 10, 64)
			v = task.Task{Generation: n}
		}

		list = append(list, v)
	}

	return list, nil, nil
}

// putTombstone returns the put of a tombstone.
func (s Tasks) putTombstone(ref record.Ref, t record.Tombstone) clientv3.Op {
	return clientv3.OpPut(s.keys.Tombstone(ref), record.Encode(t))
}

// SweepTombstones deletes the tombstones of tasks that were deleted before a time, and those
// that cannot be read. It reads about most of them, beginning after the key after, which is
// empty for the first call. next is the key after which the following call should begin, or
// empty after the last tombstone.
func (s Tasks) SweepTombstones(ctx context.Context, before task.Time, after string, most int) (removed int, next string, err error) {
	return s.sweepOld(ctx, s.keys.Tombstones(), after, most, func(e *mvccpb.KeyValue) bool {
		stone, err := record.Decode[record.Tombstone](e.Value)
		return err != nil || stone.DeletedAt.Before(before.Time)
	})
}
