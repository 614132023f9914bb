package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// MaxTogether is how many tasks one transaction reads or writes at most. Each takes two
// comparisons and two operations, and etcd allows 128 of both.
const MaxTogether = 60

// Change is the creation of a task, or its replacement.
type Change struct {
	Old *Stored // the task as it was read; its revisions are compared; nil: the task must not exist
	New *Stored // Ref, Task and Entry are written
}

// Found is the current state of a task. Err is task.ErrNotFound if it does not exist, and
// task.ErrInvalid if a record cannot be read.
type Found struct {
	Stored
	Err error
}

// These constants limit one transaction of ChangeTasks.
const (
	maxChangeOps = 2 * MaxTogether
	// maxFormer is the maximum size of the former specs that are kept as versions, in bytes.
	// The caller limits the size of what it writes.
	maxFormer = 256 << 10
)

// Fitting returns how many of the changes fit into one transaction, counted from the first. It
// is at least one. A change of an existing task needs more room than a new task, because the
// former spec is kept.
func Fitting(changes []Change) int {
	ops, former := 0, 0
	revised := map[int]bool{}
	for i, c := range changes {
		ops += 2
		if c.Old != nil {
			ops += 2 // at most one further comparison
			former += len(c.Old.rawSpec)

			if shard := c.New.Ref.Shard; !revised[shard] && BeginsTicks(c.Old.Entry, c.New.Entry) {
				revised[shard] = true
				ops++
			}
		}

		if i > 0 && (ops > maxChangeOps || former > maxFormer) {
			return i
		}
	}

	return len(changes)
}

// ChangeTasks applies all changes at one revision, which it returns, or none of them. The
// changes must concern different tasks, and must not be more than Fitting allows. Their values
// together must be smaller than etcd's limit of 1.5 MiB for a request.
//
// It returns task.ErrConflict if one of the tasks is not as its change requires. Then found
// contains the current state of each task, in the same order.
//
// It deletes the tombstones of tasks that are created again, as far as the transaction has
// room. The leader deletes the others later.
func (s Tasks) ChangeTasks(ctx context.Context, changes []Change) (rev int64, found []Found, err error) {
	txn := kv.Txn{
		If:   make([]clientv3.Cmp, 0, 2*len(changes)),
		Then: make([]clientv3.Op, 0, 2*len(changes)),
		Else: make([]clientv3.Op, 0, 2*len(changes)),
	}
	for _, c := range changes {
		spec, entry := s.keys.Spec(c.New.Ref), s.keys.Entry(c.New.Ref)
		var specMod, entryMod int64
		if c.Old != nil {
			specMod, entryMod = c.Old.Task.Revision, c.Old.EntryMod
		}

		txn.If = append(txn.If, isUnchanged(spec, specMod), isUnchanged(entry, entryMod))
		if c.Old != nil {
			txn.If = append(txn.If, s.compareWatermark(c.Old)...)
			txn.Then = append(txn.Then, s.putOver(c.Old, c.New.Task, &c.New.Entry)...)
		} else {
			txn.Then = append(txn.Then, s.putSpec(c.New.Ref, c.New.Task), clientv3.OpPut(entry, record.Encode(&c.New.Entry)))
		}

		// If a comparison fails, the present state of all tasks is returned without another request.
		txn.Else = append(txn.Else, clientv3.OpGet(spec), clientv3.OpGet(entry))
	}

	// The keys revised must follow all entries (see revisionPuts).
	txn.Then = append(txn.Then, s.revisionPuts(changes...)...)
	for _, c := range changes {
		if c.Old == nil && len(txn.Then) < maxChangeOps {
			txn.Then = append(txn.Then, clientv3.OpDelete(s.keys.Tombstone(c.New.Ref)))
		}
	}

	res, err := s.writeTxn(ctx, txn)
	if err != nil {
		return 0, nil, fmt.Errorf("change %d tasks: %w", len(changes), err)
	}
	if res.Succeeded {
		return res.Revision, nil, nil
	}

	for i, c := range changes {
		found = append(found, foundAt(res, i, c.New.Ref))
	}

	return 0, found, fmt.Errorf("change %d tasks: %w", len(changes), task.ErrConflict)
}

// FindTasks reads at most MaxTogether tasks at one revision. The result has the order of refs.
func (s Tasks) FindTasks(ctx context.Context, refs []record.Ref) ([]Found, error) {
	ops := make([]clientv3.Op, 0, 2*len(refs))
	for _, r := range refs {
		ops = append(ops, clientv3.OpGet(s.keys.Spec(r)), clientv3.OpGet(s.keys.Entry(r)))
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("read %d tasks: %w: %w", len(refs), task.ErrUnavailable, err)
	}

	found := make([]Found, len(refs))
	for i, r := range refs {
		found[i] = foundAt(kv.Result{Responses: res.Responses}, i, r)
	}

	return found, nil
}

// foundAt returns the task whose spec and entry are the i-th pair of reads in res.
func foundAt(res kv.Result, i int, ref record.Ref) Found {
	st, err := storedFrom(ref, readAt(res, 2*i), readAt(res, 2*i+1))
	return Found{st, err}
}

// storedFrom decodes the two records of a task. The entry may be absent.
func storedFrom(ref record.Ref, spec, entry *mvccpb.KeyValue) (Stored, error) {
	st := Stored{Ref: ref}

	if spec == nil {
		return st, fmt.Errorf("task %s: %w", ref, task.ErrNotFound)
	}

	st.rawSpec = spec.Value
	var err error
	if st.Task, err = record.DecodeTask(spec.Value, spec.ModRevision); err != nil {
		return st, fmt.Errorf("task %s: %w", ref, err)
	}

	// A task without an entry does not fire. An update or a deletion repairs that.
	if entry != nil {
		st.EntryMod, st.rawEntry = entry.ModRevision, entry.Value
		if st.Entry, err = record.DecodeEntry(entry.Value); err != nil {
			return st, fmt.Errorf("entry of task %s: %w", ref, err)
		}
	}

	return st, nil
}
