package store

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Tasks reads and writes what users define: the specs (tasks/), the entries from which the
// owner of a shard decides (shards/<k>/tasks/), former versions (versions/) and the tombstones
// of deleted tasks (deleted/).
//
// A write changes the spec and the entry of a task at one revision, and only if both are
// unchanged since the writer read them (G7, G14). If it may give the task ticks, it also puts
// the shard's key revised, so that no owner that has not received the edit passes those ticks
// (G4).
type Tasks struct{ *conn }

// Stored is a task as it was read from etcd: its spec, its entry, and the revisions that a
// write compares.
type Stored struct {
	Ref      record.Ref
	Task     task.Task // Task.Revision is the mod revision of the spec; 0: there is no spec
	Entry    task.Entry
	EntryMod int64 // mod revision of the entry; 0: there is no entry

	// MarkBy, if set, makes a write fail if the watermark of the shard is later. It is for
	// edits that write the time from which they count (see "Edits that an owner has not seen"
	// in docs/architecture.md).
	MarkBy task.Time

	// Links is what a write changes of the links to the sources of the task. A deletion does not need it.
	Links LinkChange

	// Force deletes a task even if other tasks run after it.
	Force bool

	// NoRoom states that etcd is so full that deletions shall make room: see task.Cluster.LedgerLimit. Only Revisions sets it.
	NoRoom bool

	rawSpec, rawEntry []byte // the values as they were read
}

// CreateTask writes the spec and the entry of a new task, and returns the revision. It deletes
// the tombstone of a deleted task of that name. It returns task.ErrExists if the spec or the
// entry exists.
func (s Tasks) CreateTask(ctx context.Context, ref record.Ref, t task.Task, e task.Entry) (int64, error) {
	res, err := s.createTask(ctx, Stored{Ref: ref, Task: t, Entry: e}, nil, Idempotency{})
	return res.Revision, err
}

// CreateTaskOnce is like CreateTask for a request that must create at most one task, and with the links of st. It returns
// task.ErrConflict if an earlier copy of the request has created one (TaskOf returns its uid), or if the links have changed since
// they were read. It also returns the freezes that are in force at the revision of the write: reading them in the same transaction
// saves a request.
func (s Tasks) CreateTaskOnce(ctx context.Context, st Stored, once Idempotency) (FreezeRecord, error) {
	res, err := s.createTask(ctx, st, nil, once, clientv3.OpGet(s.keys.Freezes()))
	if err != nil {
		return FreezeRecord{}, err
	}

	return freezeRecord(readAt(res, 0), res.Revision), nil
}

// UndeleteTask is like CreateTaskOnce for a task whose tombstone has a revision. If another request has deleted the
// task again, swept the tombstone or created the task, it returns task.ErrConflict. So the task that comes back is the one that
// the caller has read and may see.
func (s Tasks) UndeleteTask(ctx context.Context, tombstone DeletedTask, st Stored) (FreezeRecord, error) {
	same := []clientv3.Cmp{isUnchanged(s.keys.Tombstone(st.Ref), tombstone.Revision)}
	res, err := s.createTask(ctx, st, same, Idempotency{}, clientv3.OpGet(s.keys.Freezes()))
	if errors.Is(err, task.ErrExists) {
		return FreezeRecord{}, fmt.Errorf("undelete task %s: %w", st.Ref, task.ErrConflict)
	}
	if err != nil {
		return FreezeRecord{}, err
	}

	return freezeRecord(readAt(res, 0), res.Revision), nil
}

// createTask creates a task if also some comparisons hold. The transaction begins with some reads, whose results are the first
// responses.
func (s Tasks) createTask(ctx context.Context, st Stored, also []clientv3.Cmp, once Idempotency, reads ...clientv3.Op) (kv.Result, error) {
	ref := st.Ref
	linked := s.linkTxn(&st)
	txn := kv.Txn{
		If:   slices.Concat(also, []clientv3.Cmp{isAbsent(s.keys.Spec(ref)), isAbsent(s.keys.Entry(ref))}, linked.If),
		Then: slices.Concat(reads, s.putNew(ref, st.Task, &st.Entry), linked.Then, []clientv3.Op{clientv3.OpDelete(s.keys.Tombstone(ref))}),
	}

	// What else than the task can make the comparisons fail is read then, to tell which of them did.
	if s.remember(&txn, once, record.Idempotency{UID: st.Task.UID, At: st.Task.CreatedAt}); once.Key != "" {
		txn.Else = append(txn.Else, clientv3.OpGet(s.keys.IdempotencyRecord(once.Key)))
	}
	if len(linked.If) > 0 {
		txn.Else = append(txn.Else, clientv3.OpGet(s.keys.Spec(ref), clientv3.WithKeysOnly()), clientv3.OpGet(s.keys.Entry(ref), clientv3.WithKeysOnly()))
	}

	res, err := s.writeTxn(ctx, txn)
	switch {
	case err != nil:
		return kv.Result{}, fmt.Errorf("create task %s: %w", ref, err)
	case res.Succeeded:
		return res, nil
	}

	first := 0
	if once.Key != "" {
		first = 1
	}
	err = task.ErrExists

	switch {
	// An earlier copy of the request has created the task, or has used the key for another one.
	case first == 1 && readAt(res, 0) != nil:
		err = task.ErrConflict
	// The links were checked before another writer changed some, or a source was deleted.
	case len(linked.If) > 0 && readAt(res, first) == nil && readAt(res, first+1) == nil:
		err = task.ErrConflict
	}

	return kv.Result{}, fmt.Errorf("create task %s: %w", ref, err)
}

// putSpec returns the put of a spec. The revision is not part of the value.
func (s Tasks) putSpec(ref record.Ref, t task.Task) clientv3.Op {
	t.Revision = 0
	return clientv3.OpPut(s.keys.Spec(ref), record.Encode(t))
}

// putNew returns the operations that create a task.
func (s Tasks) putNew(ref record.Ref, t task.Task, e *task.Entry) []clientv3.Op {
	return append([]clientv3.Op{s.putSpec(ref, t), clientv3.OpPut(s.keys.Entry(ref), record.Encode(e))}, s.bootOps(ref, nil, e)...)
}

// putOver returns the operations that replace the spec and the entry of old and keep the former
// spec as a version. Fields of the old values that this version of Carillon does not know are
// preserved.
func (s Tasks) putOver(old *Stored, t task.Task, e *task.Entry) []clientv3.Op {
	t.Revision = 0
	return slices.Concat([]clientv3.Op{
		clientv3.OpPut(s.keys.Spec(old.Ref), record.KeepUnknownFields(old.rawSpec, record.Encode(t), reflect.TypeFor[task.Task]())),
		clientv3.OpPut(s.keys.Entry(old.Ref), record.KeepUnknownFields(old.rawEntry, record.Encode(e), reflect.TypeFor[task.Entry]())),
	}, s.bootOps(old.Ref, &old.Entry, e), s.putVersion(old))
}

// Task reads a task. It returns task.ErrNotFound if the task does not exist, and
// task.ErrInvalid if a record cannot be read.
func (s Tasks) Task(ctx context.Context, ref record.Ref) (Stored, error) {
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.Spec(ref)), clientv3.OpGet(s.keys.Entry(ref))).Commit()
	if err != nil {
		return Stored{Ref: ref}, fmt.Errorf("read task %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	r := kv.Result{Responses: res.Responses}
	return storedFrom(ref, readAt(r, 0), readAt(r, 1))
}

// UpdateTask replaces the task old by t and e, and returns the revision. It returns
// task.ErrConflict if the spec or the entry has changed since old was read, if the watermark
// is later than old.MarkBy, or if the links have changed since old.Links was checked.
func (s Tasks) UpdateTask(ctx context.Context, old Stored, t task.Task, e task.Entry) (int64, error) {
	linked := s.linkTxn(&Stored{Ref: old.Ref, Task: t, Entry: e, Links: old.Links})
	res, err := s.writeTxn(ctx, kv.Txn{
		If: slices.Concat(s.compareWatermark(&old),
			[]clientv3.Cmp{isUnchanged(s.keys.Spec(old.Ref), old.Task.Revision), isUnchanged(s.keys.Entry(old.Ref), old.EntryMod)}, linked.If),
		Then: slices.Concat(s.putOver(&old, t, &e), linked.Then, s.revisionPuts(Change{Old: &old, New: &Stored{Ref: old.Ref, Entry: e}})),
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("update task %s: %w", old.Ref, err)
	case !res.Succeeded:
		return 0, fmt.Errorf("update task %s: %w", old.Ref, task.ErrConflict)
	}

	return res.Revision, nil
}

// compareWatermark returns the comparison of the shard's watermark with st.MarkBy, if that is
// set. etcd compares the values as text. A watermark record begins with its time, so the order
// of the texts is that of the times.
func (s Tasks) compareWatermark(st *Stored) []clientv3.Cmp {
	if st.MarkBy.IsZero() {
		return nil
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.Value(s.keys.Watermark(st.Ref.Shard)), "<", record.WatermarkAfter(st.MarkBy))}
}

// DeleteTaskLeavingTombstone deletes a task with its queue, history, ledger, dead runs and versions, and leaves a
// tombstone. It returns task.ErrConflict if the spec or the entry has changed since old was
// read, and ErrDependents if other tasks run after it, unless old.Force is set. It does not touch active
// attempts: the owner of the shard cancels them when it receives the deletion of the entry. If etcd is full, it
// deletes the task without a tombstone, because a full etcd accepts deletions only.
func (s Tasks) DeleteTaskLeavingTombstone(ctx context.Context, old Stored, t record.Tombstone) (int64, error) {
	rev, err := s.removeTask(ctx, old, s.putTombstone(old.Ref, t))
	if NoSpace(err) {
		return s.removeTask(ctx, old)
	}
	return rev, err
}

// removeTask deletes the task old, with further operations in the same transaction.
func (s Tasks) removeTask(ctx context.Context, old Stored, more ...clientv3.Op) (int64, error) {
	removal, err := s.removalTxn(ctx, &old)
	if err != nil {
		return 0, fmt.Errorf("delete task %s: %w", old.Ref, err)
	}

	removal.If = append(removal.If, isUnchanged(s.keys.Spec(old.Ref), old.Task.Revision), isUnchanged(s.keys.Entry(old.Ref), old.EntryMod))
	removal.Then = append(removal.Then, more...)

	res, err := s.writeTxn(ctx, removal)
	switch {
	case err != nil:
		return 0, fmt.Errorf("delete task %s: %w", old.Ref, err)
	case !res.Succeeded && readAt(res, 0) != nil:
		return 0, fmt.Errorf("delete task %s: %w", old.Ref, ErrDependents)
	case !res.Succeeded:
		return 0, fmt.Errorf("delete task %s: %w", old.Ref, task.ErrConflict)
	}

	return res.Revision, nil
}

// removalTxn returns what deletes all records of a task, except attempts in inboxes and the tombstone. Without Force, the
// transaction fails if other tasks run after the task, and then reads the first of them.
//
// The records of those that run after it remain. A new task of its name has these dependents, as their own records say.
func (s Tasks) removalTxn(ctx context.Context, old *Stored) (t kv.Txn, err error) {
	ref := old.Ref
	t.Then = []clientv3.Op{
		clientv3.OpDelete(s.keys.Spec(ref)), clientv3.OpDelete(s.keys.Entry(ref)), clientv3.OpDelete(s.keys.BootTask(ref)), clientv3.OpDelete(s.keys.Sent(ref)),
	}
	for _, prefix := range []string{s.keys.QueueOf(ref), s.keys.Parts(ref), s.keys.HistoryOf(ref), s.keys.Dead(ref), s.keys.Versions(ref), s.keys.LedgerOf(ref), s.keys.Triggers(ref), s.keys.RunDataOf(ref)} {
		t.Then = append(t.Then, clientv3.OpDelete(prefix, withPrefix(prefix)))
	}

	sources, err := s.sourcesOf(ctx, old)
	if err != nil {
		return t, err
	}
	for _, source := range sources {
		t.Then = append(t.Then, clientv3.OpDelete(s.keys.Subscriber(source, ref.Name)))
	}

	if !old.Force {
		dependents := s.keys.Subscribers(ref)
		t.If = []clientv3.Cmp{isAbsent(dependents).WithRange(clientv3.GetPrefixRangeEnd(dependents))}
		t.Else = []clientv3.Op{clientv3.OpGet(dependents, withPrefix(dependents), clientv3.WithKeysOnly(), clientv3.WithLimit(1))}
	}

	return t, nil
}

// Revisions reads the revisions that the deletion of a task compares, and as much of the spec and the entry
// as can be read, so that a task with unreadable records can be deleted. It returns
// task.ErrNotFound if the task has neither a spec nor an entry.
func (s Tasks) Revisions(ctx context.Context, ref record.Ref) (Stored, error) {
	st := Stored{Ref: ref}
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.Spec(ref)), clientv3.OpGet(s.keys.Entry(ref)), clientv3.OpGet(s.keys.Cluster())).Commit()
	if err != nil {
		return st, fmt.Errorf("read task %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	r := kv.Result{Responses: res.Responses}
	if e := readAt(r, 0); e != nil {
		st.Task, _ = record.DecodeTask(e.Value, e.ModRevision) // as far as it can be read
	}

	if e := readAt(r, 1); e != nil {
		st.EntryMod = e.ModRevision
		st.Entry, _ = record.DecodeEntry(e.Value)
	}

	if e := readAt(r, 2); e != nil {
		cluster, err := record.Decode[task.Cluster](e.Value)
		st.NoRoom = err == nil && cluster.LedgerLimit != nil && *cluster.LedgerLimit == 0
	}

	if st.Task.Revision == 0 && st.EntryMod == 0 {
		return st, fmt.Errorf("task %s: %w", ref, task.ErrNotFound)
	}

	return st, nil
}

// CountTasks counts the tasks of a namespace or, if namespace is empty, of the cluster.
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

// Tasks lists a page of specs in the order of their keys, of one namespace or, if namespace is
// empty, of all. after is the value that the previous page returned as next, or empty for the
// first page. A spec that cannot be read is listed with its name and the error only.
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
		return nil, "", task.Invalid(task.CodeBadValue, "page", "is not a page token of this list")
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

// An owner decides by the entries that its watch has delivered, and the watch may be late.
// If an entry loses ticks meanwhile, the commit that decides one of them compares the entry
// and fails (G7). If an entry gains ticks, no commit compares it, and the watermark passes
// the new ticks, which then count as decided although they have no outcome (G4).
//
// Therefore each write that may give an entry ticks also puts the key shards/<k>/revised.
// The key has no value; only its mod revision matters. A commit that moves the watermark's
// time compares it, and fails if the owner has not received the edit.
//
// A new task does not need this: the field seen of the watermark shows that the owner had
// not received its entry.

// BeginsTicks reports whether an edit may give an entry ticks that it did not have. A false
// positive only costs a commit that is decided again; a false negative would lose ticks.
func BeginsTicks(old, edited task.Entry) bool {
	if !edited.Ticks() {
		return false
	}

	oldSilence, _ := old.Silence()
	silence, _ := edited.Silence()

	switch {
	case old.UID != edited.UID: // the entry was absent or unreadable
		return true
	case !old.Timing().Same(edited.Timing()), !old.Anchor.Equal(edited.Anchor.Time):
		return true
	case !old.From.Equal(edited.From.Time):
		return true
	case old.Paused && (!edited.Paused || !old.Ticks() || silence.Before(oldSilence.Time)):
		return true
	case old.MaxRuns != 0 && (edited.MaxRuns == 0 || edited.MaxRuns > old.MaxRuns):
		return true
	}

	return old.Shadow && !edited.Shadow
}

// revisionPuts returns the puts of the keys revised for the shards whose tasks may get new
// ticks, one for each shard. They must come after the puts of the entries in a transaction.
// Then the watch delivers the entries first, so an owner that has received the key also has the
// edits to which it belongs.
func (s Tasks) revisionPuts(changes ...Change) []clientv3.Op {
	var ops []clientv3.Op
	done := map[int]bool{}

	for _, c := range changes {
		shard := c.New.Ref.Shard
		if c.Old != nil && !done[shard] && BeginsTicks(c.Old.Entry, c.New.Entry) {
			done[shard] = true
			ops = append(ops, clientv3.OpPut(s.keys.Revised(shard), ""))
		}
	}

	return ops
}

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

// TombstoneAge is how long the tombstone of a deleted task or secret is kept. A task can be undeleted until then.
const TombstoneAge = 7 * 24 * time.Hour

// DeletedTask is the tombstone of a task, with its mod revision.
type DeletedTask struct {
	Ref      record.Ref // without its shard
	Revision int64
	record.Tombstone
}

// Tombstone reads the tombstone of a task. It returns task.ErrNotFound if there is none.
func (s Tasks) Tombstone(ctx context.Context, ref record.Ref) (DeletedTask, error) {
	res, err := s.readKey(ctx, s.keys.Tombstone(ref))
	if err != nil {
		return DeletedTask{}, fmt.Errorf("read the tombstone of task %s: %w", ref, err)
	}
	if len(res.Kvs) == 0 {
		return DeletedTask{}, fmt.Errorf("tombstone of task %s: %w", ref, task.ErrNotFound)
	}

	d := DeletedTask{Ref: ref, Revision: res.Kvs[0].ModRevision}
	d.Tombstone, err = record.Decode[record.Tombstone](res.Kvs[0].Value)
	if err != nil {
		return d, fmt.Errorf("tombstone of task %s: %w", ref, err)
	}

	return d, nil
}

// ListDeleted reads up to limit tombstones of a namespace, by name, beginning after a name. more reports whether there are
// others. Tombstones that cannot be read are left out.
func (s Tasks) ListDeleted(ctx context.Context, namespace, after string, limit int) (list []DeletedTask, next string, err error) {
	prefix := s.keys.TombstonesIn(namespace)
	pages := kv.NewPages(s.etcd, max(prefix, prefix+after+"\x00"), clientv3.GetPrefixRangeEnd(prefix), limit)

	page, _, err := s.nextPage(ctx, pages, 0)
	if err != nil {
		return nil, "", fmt.Errorf("list the deleted tasks of namespace %s: %w", namespace, err)
	}

	for _, e := range page {
		name := strings.TrimPrefix(string(e.Key), prefix)
		if pages.More() {
			next = name
		}
		if t, err := record.Decode[record.Tombstone](e.Value); err == nil {
			list = append(list, DeletedTask{record.Ref{Namespace: namespace, Name: name}, e.ModRevision, t})
		}
	}

	return list, next, nil
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

// ExpireTask deletes a task whose ttl has expired, on behalf of the owner of its shard, and
// leaves a tombstone. It requires that the fences hold, that the spec is unchanged since
// ExpireTask read it, that the entry still has the mod revision entryMod, and that no run of
// the task waits. The caller guarantees that no attempt is active, and dispatches no run of the
// task until ExpireTask returns.
//
// It returns task.ErrConflict if a condition does not hold, or if the shard's watermark was
// written during the call, and ErrDependents if other tasks run after the task. Then nothing is changed. After task.ErrUnknown, the transaction may
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

	removal, err := s.removalTxn(ctx, &old)
	if err != nil {
		return err
	}

	queue := s.keys.QueueOf(ref)
	// The comparison of the watermark ensures that a delayed copy of this transaction cannot delete runs that a later commit has
	// dispatched or queued.
	removal.If = append(removal.If, f.Owner.Compare(), f.Node.Compare(), isUnchanged(s.keys.Spec(ref), old.Task.Revision), isUnchanged(s.keys.Entry(ref), entryMod),
		isUnchanged(watermark, mark.GetModRevision()), isAbsent(queue).WithRange(clientv3.GetPrefixRangeEnd(queue)))
	removal.Then = append(removal.Then, s.putTombstone(ref, t))

	res, err := s.writeTxn(ctx, removal)
	switch {
	case err != nil || res.Succeeded:
	case readAt(res, 0) != nil:
		err = ErrDependents
	default:
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("delete ended task %s: %w", ref, err)
	}

	return nil
}
