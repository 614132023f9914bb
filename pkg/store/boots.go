package store

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Boots reads and writes what concerns the schedule @reboot.
//
// A key below boots/tasks/ names each task that has this schedule, so that a boot does not require to read all tasks. The
// transactions that write or delete an entry also write or delete that key (bootOps, removalOps). A record below boots/nodes/ says
// for which tasks the last boot of a node has been handled. The transaction that creates the runs of some tasks also writes
// this record, and compares it. So each task has one run for each boot, whichever leader continues.
type Boots struct{ *conn }

// BootTask is a task that runs at boot, as it was read.
type BootTask struct {
	Ref   record.Ref
	Since int64 // since which revision the task runs at boot
	Entry task.Entry
	Mod   int64 // mod revision of the entry; 0: there is no such task
	Err   error // the entry cannot be read
}

// Name returns the name of the task as Boot.After has it.
func (b *BootTask) Name() string { return b.Ref.Namespace + "/" + b.Ref.Name }

// MaxBootTasks is for how many tasks a transaction decides. Each takes up to two comparisons, and etcd allows 128 operations.
const MaxBootTasks = 50

// Boots reads the last boots of all nodes. A record that cannot be read has neither boot nor time, like that of a new node.
func (s Boots) Boots(ctx context.Context) ([]record.Boot, error) {
	all, _, err := s.getAll(ctx, s.keys.NodeBoots())
	if err != nil {
		return nil, fmt.Errorf("read the boots of nodes: %w", err)
	}

	list := make([]record.Boot, len(all))
	for i, e := range all {
		list[i], _ = record.DecodeBoot(s.keys, e)
	}

	return list, nil
}

// BootTasks reads up to MaxBootTasks tasks that run at boot, in the order of their names, beginning after a name, at one revision. more
// reports whether there are others. ref returns the reference of a task with its shard.
func (s Boots) BootTasks(ctx context.Context, after string, ref func(namespace, name string) record.Ref) (list []BootTask, more bool, err error) {
	prefix := s.keys.BootTasks()
	from := prefix
	if after != "" {
		from += after + "\x00"
	}

	res, err := s.readKey(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(MaxBootTasks))
	if err != nil {
		return nil, false, fmt.Errorf("list the tasks that run at boot: %w", err)
	}

	// A task that is created again after the list must not have the age of the former one.
	var entries []clientv3.Op
	for _, e := range res.Kvs {
		ns, name, _ := strings.Cut(strings.TrimPrefix(string(e.Key), prefix), "/")
		b := BootTask{Ref: ref(ns, name), Since: e.CreateRevision}
		list, entries = append(list, b), append(entries, clientv3.OpGet(s.keys.Entry(b.Ref), clientv3.WithRev(res.Header.Revision)))
	}

	err = s.eachResponse(ctx, entries, func(i int, r *etcdserverpb.RangeResponse) {
		for _, e := range r.Kvs {
			list[i].Mod = e.ModRevision
			list[i].Entry, list[i].Err = record.DecodeEntry(e.Value)
		}
	})
	if err != nil {
		return nil, false, fmt.Errorf("read the tasks that run at boot: %w", err)
	}

	return list, res.More, nil
}

// BootBasis is what the runs for a boot were decided from.
type BootBasis struct {
	Tasks   []BootTask // with and without a run
	Freezes int64      // the mod revision of the record of freezes
	Access  int64      // the mod revision of the access fence: limits of namespaces and nodes
}

// WriteBoot replaces the record of a boot, unless it has changed since b was read. In the same transaction, it queues the waiting
// runs, and records the other ones as ended, so that a task has its run if and only if the record says so (G62). It also
// compares what the runs were decided from. It returns the revision of the write, task.ErrFenced if the leader's term is over, and
// task.ErrConflict if something has changed.
func (s Boots) WriteBoot(ctx context.Context, term kv.Fence, b record.Boot, from BootBasis, runs []task.Run) (int64, error) {
	key := s.keys.NodeBoot(b.Node)
	t := kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(key, b.Mod), isUnchanged(s.keys.Freezes(), from.Freezes), isUnchanged(s.keys.Fence(), from.Access)},
		Then: []clientv3.Op{clientv3.OpPut(key, record.Encode(b))},
	}

	for _, one := range from.Tasks {
		t.If = append(t.If, isUnchanged(s.keys.Entry(one.Ref), one.Mod))
	}
	for _, r := range runs {
		ref := record.Ref{Namespace: r.Namespace, Name: r.Task, Shard: r.Shard}
		if r.State.Final() {
			t.Then = append(t.Then, opPut(s.keys.Ended(ref, r.ID), record.EncodeEnded(r)))
			continue
		}

		queued := s.keys.Queued(ref, r.ID)
		t.If = append(t.If, isAbsent(queued))
		t.Then = append(t.Then, opPut(queued, record.EncodeWaiting(task.Waiting{Run: r})))
	}

	rev, err := s.commitAsLeader(ctx, term, t)
	if err != nil {
		return 0, fmt.Errorf("write the boot of node %s: %w", b.Node, err)
	}

	return rev, nil
}

// DeleteBoot deletes the record of the last boot of a node, unless it has changed since b was read.
func (s Boots) DeleteBoot(ctx context.Context, term kv.Fence, b record.Boot) error {
	key := s.keys.NodeBoot(b.Node)
	_, err := s.commitAsLeader(ctx, term, kv.Txn{If: []clientv3.Cmp{isUnchanged(key, b.Mod)}, Then: []clientv3.Op{clientv3.OpDelete(key)}})
	if err != nil {
		return fmt.Errorf("delete the boot of node %s: %w", b.Node, err)
	}

	return nil
}

// bootOps returns the operations by which the key that names a task among those that run at boot follows its entry. old is nil for a
// new task.
func (s *conn) bootOps(ref record.Ref, old, now *task.Entry) []clientv3.Op {
	was, is := old != nil && old.Schedule.AtBoot(), now.Schedule.AtBoot()

	switch key := s.keys.BootTask(ref); {
	case is && !was:
		return []clientv3.Op{clientv3.OpPut(key, "")}
	case was && !is:
		return []clientv3.Op{clientv3.OpDelete(key)}
	}

	return nil
}
