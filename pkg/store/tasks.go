package store

import (
	"context"
	"fmt"
	"reflect"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Tasks reads and writes what users define: specs (tasks/), the entries by which the
// owner of a shard decides (shards/<k>/tasks/), former versions (versions/) and the
// tombstones of deleted tasks (deleted/).
//
// A write changes a task's spec and its entry at one revision, and only if both are as
// the writer has read them. If it may give a task ticks, it also puts the shard's key
// revised, so that no owner that has not heard of the edit passes those ticks.
type Tasks struct{ *conn }

// Stored is a task as it is in etcd: its spec, its entry, and what a write
// that changes them compares.
type Stored struct {
	Ref      record.Ref
	Task     task.Task // Revision is the mod revision of the spec's key
	Entry    task.Entry
	EntryMod int64

	// MarkBy, if it is set, has the task written over only as long as the watermark
	// of its shard is not later.
	MarkBy task.Time

	rawSpec, rawEntry []byte // as they were read
}

// CreateTask writes a spec and its entry, both new, and returns the revision; what
// is remembered of a deleted task of that name goes. task.ErrExists if either is
// there.
func (s Tasks) CreateTask(ctx context.Context, ref record.Ref, t task.Task, e task.Entry) (int64, error) {
	spec, entry := s.keys.Spec(ref), s.keys.Entry(ref)
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{isAbsent(spec), isAbsent(entry)},
		Then: []clientv3.Op{s.putSpec(ref, t), clientv3.OpPut(entry, record.Encode(e)), clientv3.OpDelete(s.keys.Tombstone(ref))},
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("create task %s: %w", ref, err)
	case !res.Succeeded:
		return 0, fmt.Errorf("create task %s: %w", ref, task.ErrExists)
	}

	return res.Revision, nil
}

func (s Tasks) putSpec(ref record.Ref, t task.Task) clientv3.Op {
	t.Revision = 0
	return clientv3.OpPut(s.keys.Spec(ref), record.Encode(t))
}

// putOver writes a spec and an entry over those of old, of which fields that
// this version does not know stay, and keeps the former spec as a version.
func (s Tasks) putOver(old *Stored, t task.Task, e *task.Entry) []clientv3.Op {
	t.Revision = 0
	return append([]clientv3.Op{
		clientv3.OpPut(s.keys.Spec(old.Ref), record.KeepUnknownFields(old.rawSpec, record.Encode(t), reflect.TypeFor[task.Task]())),
		clientv3.OpPut(s.keys.Entry(old.Ref), record.KeepUnknownFields(old.rawEntry, record.Encode(e), reflect.TypeFor[task.Entry]())),
	}, s.putVersion(old)...)
}

// Task reads a task. task.ErrNotFound if it is not there; task.ErrInvalid if a
// record cannot be read.
func (s Tasks) Task(ctx context.Context, ref record.Ref) (Stored, error) {
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.Spec(ref)), clientv3.OpGet(s.keys.Entry(ref))).Commit()
	if err != nil {
		return Stored{Ref: ref}, fmt.Errorf("read task %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	r := kv.Result{Responses: res.Responses}
	return storedFrom(ref, readAt(r, 0), readAt(r, 1))
}

// UpdateTask writes t and e over what was read as old, if neither has changed
// since, and returns the revision. task.ErrConflict if one has, or if the watermark
// is past old.MarkBy.
func (s Tasks) UpdateTask(ctx context.Context, old Stored, t task.Task, e task.Entry) (int64, error) {
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   append(s.compareWatermark(&old), isUnchanged(s.keys.Spec(old.Ref), old.Task.Revision), isUnchanged(s.keys.Entry(old.Ref), old.EntryMod)),
		Then: append(s.putOver(&old, t, &e), s.revisionPuts(Change{Old: &old, New: &Stored{Ref: old.Ref, Entry: e}})...),
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("update task %s: %w", old.Ref, err)
	case !res.Succeeded:
		return 0, fmt.Errorf("update task %s: %w", old.Ref, task.ErrConflict)
	}

	return res.Revision, nil
}

// compareWatermark compares the watermark of a task's shard with st.MarkBy. Their order as
// text is that in time: a watermark's record begins with its time.
func (s Tasks) compareWatermark(st *Stored) []clientv3.Cmp {
	if st.MarkBy.IsZero() {
		return nil
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.Value(s.keys.Watermark(st.Ref.Shard)), "<", record.WatermarkAfter(st.MarkBy))}
}

// DeleteTask deletes a task with all that is its own, and remembers nothing: its
// queue, its history, its dead runs and its versions, if it has not changed since
// it was read as old. Its active attempts are the owner's to cancel, which sees
// the entry go. task.ErrConflict if the task has changed.
func (s Tasks) DeleteTask(ctx context.Context, old Stored) (int64, error) {
	return s.removeTask(ctx, old)
}

// BuryTask is DeleteTask, and puts a tombstone in the task's place; none if etcd is
// full, which takes deletes only.
func (s Tasks) BuryTask(ctx context.Context, old Stored, t record.Tombstone) (int64, error) {
	rev, err := s.removeTask(ctx, old, s.putTombstone(old.Ref, t))
	if NoSpace(err) {
		return s.removeTask(ctx, old)
	}
	return rev, err
}

func (s Tasks) removeTask(ctx context.Context, old Stored, more ...clientv3.Op) (int64, error) {
	spec, entry := s.keys.Spec(old.Ref), s.keys.Entry(old.Ref)
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(spec, old.Task.Revision), isUnchanged(entry, old.EntryMod)},
		Then: append(s.removalOps(old.Ref), more...),
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("delete task %s: %w", old.Ref, err)
	case !res.Succeeded:
		return 0, fmt.Errorf("delete task %s: %w", old.Ref, task.ErrConflict)
	}

	return res.Revision, nil
}

// removalOps is what deletes all that is a task's own.
func (s Tasks) removalOps(ref record.Ref) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpDelete(s.keys.Spec(ref)), clientv3.OpDelete(s.keys.Entry(ref))}
	for _, prefix := range []string{s.keys.QueueOf(ref), s.keys.Parts(ref), s.keys.HistoryOf(ref), s.keys.Dead(ref), s.keys.Versions(ref)} {
		ops = append(ops, clientv3.OpDelete(prefix, withPrefix(prefix)))
	}
	return ops
}

// Tasks lists specs in the order of their keys: of one namespace, or of all if
// namespace is "". after is the last key of the page before ("" for the first).
// A spec that cannot be read is listed with its name alone.
func (s Tasks) Tasks(ctx context.Context, namespace, after string, limit int) (tasks []task.Task, next string, err error) {
	prefix := s.keys.Specs()
	if namespace != "" {
		prefix = s.keys.SpecsOf(namespace)
	}

	from := prefix
	if after != "" {
		from = s.keys.Specs() + after + "\x00"
	}

	end := clientv3.GetPrefixRangeEnd(prefix)
	if from < prefix || from >= end {
		return nil, "", task.Invalid(task.CodeBadValue, "page", "is not a page of this list")
	}

	res, err := s.readKey(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return nil, "", fmt.Errorf("list tasks: %w", err)
	}

	for _, e := range res.Kvs {
		ns, name, ok := s.keys.ParseSpec(string(e.Key))
		if !ok {
			continue
		}

		t, err := record.DecodeTask(e.Value, e.ModRevision)
		if err != nil {
			t = task.Task{Spec: task.Spec{Namespace: ns, Name: name, Description: "unreadable: " + err.Error()}, Revision: e.ModRevision}
		}

		tasks = append(tasks, t)
	}

	if res.More && len(res.Kvs) > 0 {
		next = string(res.Kvs[len(res.Kvs)-1].Key)[len(s.keys.Specs()):]
	}

	return tasks, next, nil
}

// Revisions reads what a delete of a task compares, and of its spec what can be
// read: a task whose records cannot be can be deleted all the same.
// task.ErrNotFound if it has neither spec nor entry.
func (s Tasks) Revisions(ctx context.Context, ref record.Ref) (Stored, error) {
	st := Stored{Ref: ref}
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.Spec(ref)), clientv3.OpGet(s.keys.Entry(ref))).Commit()
	if err != nil {
		return st, fmt.Errorf("read task %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	r := kv.Result{Responses: res.Responses}
	if e := readAt(r, 0); e != nil {
		st.Task, _ = record.DecodeTask(e.Value, e.ModRevision) // as far as it can be read
	}

	if e := readAt(r, 1); e != nil {
		st.EntryMod = e.ModRevision
	}

	if st.Task.Revision == 0 && st.EntryMod == 0 {
		return st, fmt.Errorf("task %s: %w", ref, task.ErrNotFound)
	}

	return st, nil
}

// CountTasks counts the tasks of a namespace, "" for all: those that a freeze stops.
func (s Tasks) CountTasks(ctx context.Context, namespace string) (int64, error) {
	prefix := s.keys.Specs()
	if namespace != "" {
		prefix = s.keys.SpecsOf(namespace)
	}

	res, err := s.readKey(ctx, prefix, withPrefix(prefix), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("count tasks: %w", err)
	}

	return res.Count, nil
}
