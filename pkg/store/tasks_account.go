package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Account is everything that etcd contains about a task around a period of time, read at one
// revision.
type Account struct {
	Task      *task.Task        // nil: absent or unreadable
	Entry     *task.Entry       // nil: absent or unreadable
	EntryMade int64             // create revision of the entry; 0: absent
	Versions  []task.Task       // former versions, the oldest first
	Deleted   *record.Tombstone // nil: there is no readable tombstone
	Runs      []task.Run        // waiting and active runs, and those that ended around the period; the newest first
	Late      []task.Run        // late results of the period
	Dead      []string          // ids of dead runs
	Newer     int64             // the number of ended runs that are newer than all in Runs
	// CutAt is zero unless the period has too many ended runs. Then it is the time of the last
	// tick up to which they were read.
	CutAt     task.Time
	Broken    []string          // keys of records that cannot be read
	Owner     *record.Owner     // nil: the shard never had an owner
	Watermark *record.Watermark // nil: absent or unreadable
	Nodes     []task.Node       // those that are present
	Freezes   *task.Freezes     // nil: absent or unreadable
	Revision  int64             // of all reads
}

// These constants limit how many records of each kind an Account reads.
const (
	accountBefore = 256  // ended before the period; a range of ticks, or a long run, may extend into it
	accountWithin = 2000 // ended in the period
	accountAfter  = 32   // ended after the period, such as the run that replaced another
	accountQueue  = 500
	accountDead   = 200
)

// Account reads what etcd contains about a task and its ticks from one time to another, both
// included.
func (s Tasks) Account(ctx context.Context, ref record.Ref, from, to time.Time) (Account, error) {
	k := s.keys
	versions, history := k.Versions(ref), k.HistoryOf(ref)
	// The id of a run begins with the time of its tick, so the runs of the period are a range
	// of keys. The suffix "-" is removed so that the range begins before all ids with that
	// time.
	first, behind := history+task.RunID(from, ""), history+task.RunID(to.Add(time.Millisecond), "")
	first, behind = strings.TrimSuffix(first, "-"), strings.TrimSuffix(behind, "-")
	end := clientv3.GetPrefixRangeEnd(history)
	newestFirst := clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend)
	ops := []clientv3.Op{
		clientv3.OpGet(k.Spec(ref)), clientv3.OpGet(k.Entry(ref)), clientv3.OpGet(k.Tombstone(ref)),
		clientv3.OpGet(k.Owner(ref.Shard)), clientv3.OpGet(k.Watermark(ref.Shard)), clientv3.OpGet(k.Freezes()),
		clientv3.OpGet(versions, withPrefix(versions)),
		clientv3.OpGet(k.Nodes(), withPrefix(k.Nodes())),
		clientv3.OpGet(k.QueueOf(ref), withPrefix(k.QueueOf(ref)), clientv3.WithLimit(accountQueue)),
		clientv3.OpGet(history, clientv3.WithRange(first), newestFirst, clientv3.WithLimit(accountBefore)),
		clientv3.OpGet(first, clientv3.WithRange(behind), clientv3.WithLimit(accountWithin)),
		clientv3.OpGet(behind, clientv3.WithRange(end), clientv3.WithLimit(accountAfter)),
		clientv3.OpGet(behind, clientv3.WithRange(end), clientv3.WithCountOnly()),
		clientv3.OpGet(k.Dead(ref), withPrefix(k.Dead(ref)), clientv3.WithKeysOnly(), clientv3.WithLimit(accountDead)),
	}
	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return Account{}, fmt.Errorf("read the record of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	a := Account{Revision: res.Header.Revision}
	read := kv.Result{Responses: res.Responses}
	many := func(n int) []*mvccpb.KeyValue { return res.Responses[n].GetResponseRange().Kvs }
	a.readTask(k, ref, readAt(read, 0), readAt(read, 1), readAt(read, 2), many(6))
	a.readShard(k, readAt(read, 3), readAt(read, 4), readAt(read, 5))
	a.Nodes = record.DecodeNodes(s.keys, many(7))

	// The attempts are spread over the inboxes. They are read at the same revision.
	active, err := Runs(s).activeOf(ctx, ref, a.Revision)
	if err != nil {
		return Account{}, err
	}

	byID := map[string]task.Run{}

	for _, n := range []int{8, 9, 10, 11} {
		a.readRuns(k, many(n), byID)
	}

	// An active attempt takes precedence over a queue record with the same id.
	for _, h := range active {
		byID[h.ID] = h.Run
	}

	// Newer counts what was cut off within the period and what is after it.
	a.Runs = record.SortRuns(byID)
	within := res.Responses[10].GetResponseRange()
	a.Newer = within.Count - int64(len(within.Kvs)) + res.Responses[12].GetResponseRange().Count - int64(len(many(11)))
	if within.More {
		a.CutAt = lastTick(s.keys, within.Kvs)
	}

	for _, e := range many(13) {
		if sk, ok := k.ParseShard(string(e.Key)); ok {
			a.Dead = append(a.Dead, sk.Run)
		}
	}

	return a, nil
}

// countBroken records that a record cannot be read, and reports whether err says so.
func (a *Account) countBroken(e *mvccpb.KeyValue, err error) bool {
	if err != nil {
		a.Broken = append(a.Broken, string(e.Key))
	}
	return err != nil
}

// readTask decodes the records of the task itself.
func (a *Account) readTask(keys record.Keys, ref record.Ref, spec, entry, tomb *mvccpb.KeyValue, versions []*mvccpb.KeyValue) {
	if spec != nil {
		if t, err := record.DecodeTask(spec.Value, spec.ModRevision); !a.countBroken(spec, err) {
			a.Task = &t
		}
	}

	if entry != nil {
		a.EntryMade = entry.CreateRevision
		if e, err := record.DecodeEntry(entry.Value); !a.countBroken(entry, err) {
			a.Entry = &e
		}
	}

	if tomb != nil {
		if d, err := record.DecodeTombstone(tomb); !a.countBroken(tomb, err) {
			a.Deleted = d
		}
	}

	for _, v := range versions {
		if t, err := record.DecodeTask(v.Value, v.ModRevision); !a.countBroken(v, err) {
			a.Versions = append(a.Versions, t)
		}
	}
}

// readShard decodes the records of the task's shard and the freezes.
func (a *Account) readShard(keys record.Keys, owner, watermark, freezes *mvccpb.KeyValue) {
	if owner != nil {
		if list := record.DecodeOwners(keys, []*mvccpb.KeyValue{owner}); len(list) == 1 {
			a.Owner = &list[0]
		}
	}

	if watermark != nil {
		if w, err := record.DecodeWatermark(watermark.Value); !a.countBroken(watermark, err) {
			a.Watermark = &w
		}
	}

	if freezes != nil {
		if f, err := record.Decode[task.Freezes](freezes.Value); !a.countBroken(freezes, err) {
			a.Freezes = &f
		}
	}
}

// readRuns decodes records of runs into byID, and late results into a.Late.
func (a *Account) readRuns(keys record.Keys, all []*mvccpb.KeyValue, byID map[string]task.Run) {
	for _, e := range all {
		k, ok := keys.ParseShard(string(e.Key))
		if !ok {
			continue
		}

		if k.Late {
			if r, err := record.DecodeEnded(k, e.Value); !a.countBroken(e, err) {
				a.Late = append(a.Late, r)
			}
			continue
		}

		if r, readable := record.DecodeRun(keys, e); readable {
			byID[r.ID] = r
			continue
		}

		a.Broken = append(a.Broken, string(e.Key))
	}
}

// lastTick returns the time of the last tick to which the history records belong.
func lastTick(keys record.Keys, all []*mvccpb.KeyValue) task.Time {
	last := record.NewestRun(keys, all)
	switch {
	case last == nil:
		return task.Time{}
	case last.Count > 1:
		return last.Last
	}

	return last.ScheduledTime
}

// KeyOf is a key, or a prefix that ends in "/", of a task.
type KeyOf struct {
	Key     string
	What    string // the kind of record
	Present bool   // the key, or a key with the prefix, exists
}

// KeysOf returns the keys of a task: those of its records, and those of its shard on which it
// depends.
func (s Tasks) KeysOf(ctx context.Context, ref record.Ref) ([]KeyOf, error) {
	list := []KeyOf{
		{Key: s.keys.Spec(ref), What: "spec"}, {Key: s.keys.Entry(ref), What: "entry"},
		{Key: s.keys.QueueOf(ref), What: "queue"}, {Key: s.keys.HistoryOf(ref), What: "history"},
		{Key: s.keys.Parts(ref), What: "parts"},
		{Key: s.keys.Dead(ref), What: "dead"}, {Key: s.keys.Versions(ref), What: "versions"},
		{Key: s.keys.Watermark(ref.Shard), What: "watermark"}, {Key: s.keys.Owner(ref.Shard), What: "owner"},
	}
	ops := make([]clientv3.Op, len(list))
	for i, k := range list {
		ops[i] = clientv3.OpGet(k.Key, clientv3.WithCountOnly())
		if strings.HasSuffix(k.Key, "/") {
			ops[i] = clientv3.OpGet(k.Key, withPrefix(k.Key), clientv3.WithCountOnly())
		}
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("look for the keys of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	for i, r := range res.Responses {
		list[i].Present = r.GetResponseRange().Count > 0
	}

	active, err := Runs(s).ActiveOf(ctx, ref)
	if err != nil {
		return nil, err
	}

	for _, h := range active {
		list = append(list, KeyOf{Key: s.keys.Run(h.Node, ref, h.ID), What: "inbox", Present: true})
	}

	return list, nil
}
