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

// MaxTogether is how many tasks one transaction reads or writes at most. Each takes two
// comparisons and two operations, and etcd allows 128 of both.
const MaxTogether = 60

// Change is the creation of a task, or its replacement.
type Change struct {
	Old *Stored // the task as it was read; its revisions are compared; nil: the task must not exist
	New *Stored // Ref, Task, Entry and Links are written
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
	revised, linked := map[int]bool{}, map[string]bool{}
	for i, c := range changes {
		ops += 2 + len(c.New.Links.Added) + len(c.New.Links.Removed) // no more comparisons than operations
		if ns := c.New.Ref.Namespace; len(c.New.Links.Added) > 0 && !linked[ns] {
			linked[ns] = true
			ops++ // the key of the graph
		}
		if ranAtBoot := c.Old != nil && c.Old.Entry.Schedule.AtBoot(); ranAtBoot != c.New.Entry.Schedule.AtBoot() {
			ops++ // the key that says so
		}
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
// changes must concern different tasks, none of which is a source that another one gets, and must not be more than Fitting allows.
// Their values
// together must be smaller than etcd's limit of 1.5 MiB for a request.
//
// It returns task.ErrConflict if one of the tasks or a link is not as its change requires. Then found
// contains the current state of each task, in the same order and at one revision.
//
// It deletes the tombstones of tasks that are created again, as far as the transaction has
// room. The leader deletes the others later.
func (s Tasks) ChangeTasks(ctx context.Context, changes []Change) (rev int64, found []Found, err error) {
	txn := kv.Txn{
		If:   make([]clientv3.Cmp, 0, 2*len(changes)),
		Then: make([]clientv3.Op, 0, 2*len(changes)),
	}

	refs := make([]record.Ref, len(changes))
	for i, c := range changes {
		refs[i] = c.New.Ref
	}

	// If a comparison fails, the transaction returns the present state of all tasks without another request. New tasks
	// rarely fail, and reads are part of what etcd writes to its log, so they are read in a request of their own.
	readsInTxn := slices.ContainsFunc(changes, func(c Change) bool { return c.Old != nil })
	if readsInTxn {
		txn.Else = s.readsOf(refs)
	}

	stored := make([]*Stored, len(changes))
	for i, c := range changes {
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
			txn.Then = append(txn.Then, s.putNew(c.New.Ref, c.New.Task, &c.New.Entry)...)
		}
		stored[i] = c.New
	}

	linked := s.linkTxn(stored...)
	txn.If, txn.Then = append(txn.If, linked.If...), append(txn.Then, linked.Then...)

	// The keys revised must follow all entries (see revisionPuts).
	txn.Then = append(txn.Then, s.revisionPuts(changes...)...)
	for _, c := range changes {
		if c.Old == nil && len(txn.Then) < maxChangeOps {
			txn.Then = append(txn.Then, clientv3.OpDelete(s.keys.Tombstone(c.New.Ref)))
		}
	}

	res, err := s.writeTxn(ctx, txn)
	if err != nil {
		return 0, nil, fmt.Errorf("change tasks (%d): %w", len(changes), err)
	}
	if res.Succeeded {
		return res.Revision, nil, nil
	}

	if readsInTxn {
		found = foundIn(res, refs)
	} else if found, err = s.FindTasks(ctx, refs); err != nil {
		return 0, nil, fmt.Errorf("change tasks (%d): %w", len(changes), err)
	}

	return 0, found, fmt.Errorf("change tasks (%d): %w", len(changes), task.ErrConflict)
}

// FindTasks reads at most MaxTogether tasks at one revision. The result has the order of refs.
func (s Tasks) FindTasks(ctx context.Context, refs []record.Ref) ([]Found, error) {
	res, err := s.etcd.Txn(ctx).Then(s.readsOf(refs)...).Commit()
	if err != nil {
		return nil, fmt.Errorf("read tasks (%d): %w: %w", len(refs), task.ErrUnavailable, err)
	}

	return foundIn(kv.Result{Responses: res.Responses}, refs), nil
}

// readsOf returns the reads of the records of tasks: of each its spec and its entry.
func (s Tasks) readsOf(refs []record.Ref) []clientv3.Op {
	ops := make([]clientv3.Op, 0, 2*len(refs))
	for _, r := range refs {
		ops = append(ops, clientv3.OpGet(s.keys.Spec(r)), clientv3.OpGet(s.keys.Entry(r)))
	}

	return ops
}

// foundIn returns the tasks that the reads of readsOf found.
func foundIn(res kv.Result, refs []record.Ref) []Found {
	found := make([]Found, len(refs))
	for i, r := range refs {
		found[i].Stored, found[i].Err = storedFrom(r, readAt(res, 2*i), readAt(res, 2*i+1))
	}

	return found
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
