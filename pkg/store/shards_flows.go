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

// The data of a run of a workflow (task.RunData) is not part of the shard, so its owner neither loads nor watches it. It exists as
// long as the run has a queue record or is dead:
//
//   - The commit that begins a run puts it; a retry gets it from the API.
//   - The commit that ends the run deletes it, unless the run becomes dead.
//   - The transaction that dismisses a dead run deletes it.
//   - SweepRunData deletes what is left otherwise: by a dead run that was trimmed.
//   - The transaction that deletes the task deletes it.

// PutRunData puts the data of a run of a workflow.
func (c *Commit) PutRunData(ref record.Ref, run string, data []byte) {
	c.addPut(c.keys.RunData(ref, run), data)
}

// DeleteRunData deletes the data of a run of a workflow.
func (c *Commit) DeleteRunData(ref record.Ref, run string) {
	c.writes = append(c.writes, writing{key: c.keys.RunData(ref, run)})
	c.bytes += len(ref.Namespace) + len(ref.Name) + len(run) + 64
}

// PlanSource is where the plan of a workflow is read: from the data of a run or, without one, from the spec of the task.
type PlanSource struct {
	Ref record.Ref
	Run string
}

// PlanRecord is what was read of a PlanSource.
type PlanRecord struct {
	Spec  *task.Task    // nil unless the spec was requested, exists and can be read
	Data  *task.RunData // nil unless the data of a run was requested, exists and can be read
	Err   error         // why the record cannot be read; it matches task.ErrNotFound if there is none
	Bytes int           // the size of the record
}

// ReadPlans reads the plans of workflows, at most 100, in one request. It returns one record for each source.
func (s Shards) ReadPlans(ctx context.Context, sources []PlanSource) ([]PlanRecord, error) {
	ops := make([]clientv3.Op, len(sources))
	for i, src := range sources {
		key := s.keys.RunData(src.Ref, src.Run)
		if src.Run == "" {
			key = s.keys.Spec(src.Ref)
		}
		ops[i] = clientv3.OpGet(key)
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("read the plans of workflows: %w: %w", task.ErrUnavailable, err)
	}

	read := kv.Result{Responses: res.Responses}
	list := make([]PlanRecord, len(sources))
	for i, src := range sources {
		e := readAt(read, i)
		switch {
		case e == nil:
			list[i].Err = task.ErrNotFound
			continue
		case src.Run == "":
			if t, err := record.DecodeTask(e.Value, e.ModRevision); err != nil {
				list[i].Err = err
			} else {
				list[i].Spec = &t
			}
		default:
			if d, err := record.Decode[task.RunData](e.Value); err != nil {
				list[i].Err = err
			} else {
				list[i].Data = &d
			}
		}

		list[i].Bytes = len(e.Value)
	}

	return list, nil
}

// SweepRunData deletes the data of runs of a task that have neither a queue record nor are dead. All three are listed at one
// revision, and each deletion compares the mod revision of the data, so the data of a run that begins meanwhile stays. It
// compares the fences as TrimHistory does.
func (s Shards) SweepRunData(ctx context.Context, f Fences, ref record.Ref) error {
	data, queue, dead := s.keys.RunDataOf(ref), s.keys.QueueOf(ref), s.keys.Dead(ref)
	var ops []clientv3.Op
	for _, prefix := range []string{data, queue, dead} {
		ops = append(ops, clientv3.OpGet(prefix, withPrefix(prefix), clientv3.WithKeysOnly()))
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return fmt.Errorf("list the data of runs of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	needed := map[string]bool{}
	for i, prefix := range []string{queue, dead} {
		for _, e := range res.Responses[1+i].GetResponseRange().Kvs {
			needed[string(e.Key)[len(prefix):]] = true
		}
	}

	type leftover struct {
		key string
		mod int64
	}
	var left []leftover
	for _, e := range res.Responses[0].GetResponseRange().Kvs {
		if !needed[string(e.Key)[len(data):]] {
			left = append(left, leftover{string(e.Key), e.ModRevision})
		}
	}

	for some := range slices.Chunk(left, maxTrims/2) {
		t := kv.Txn{If: []clientv3.Cmp{f.Owner.Compare(), f.Node.Compare()}}
		for _, l := range some {
			t.If = append(t.If, isUnchanged(l.key, l.mod))
			t.Then = append(t.Then, clientv3.OpDelete(l.key))
		}

		// If a record has changed, it was written again for its run. The next sweep decides again.
		if _, err := s.writeTxn(ctx, t); err != nil {
			return fmt.Errorf("delete the data of runs of %s: %w", ref, err)
		}
	}

	return nil
}
