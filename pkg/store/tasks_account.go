package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// These constants limit how many records of each kind an Account reads.
const (
	accountBefore = 256  // ended before the period: a long run may extend into it
	accountWithin = 2000 // ended in the period, or waiting since then
	accountAfter  = 32   // ended after the period, such as the run that replaced another
	accountQueue  = 500  // the oldest of those that wait, and the newest
	accountDead   = 2000
)

// Account reads what etcd contains about a task and its ticks from one time to another, both
// included. If there are too many records, Account.Unread contains the ticks whose records were not read.
func (s Tasks) Account(ctx context.Context, ref record.Ref, from, to time.Time) (record.Account, error) {
	k := s.keys
	versions, history := k.Versions(ref), k.HistoryOf(ref)
	// The id of a run begins with the time of its tick, so the runs of the period are a range
	// of keys. The suffix "-" is removed so that the range begins before all ids with that
	// time.
	firstID, behindID := strings.TrimSuffix(task.RunID(from, ""), "-"), strings.TrimSuffix(task.RunID(to.Add(time.Millisecond), ""), "-")
	first, behind := history+firstID, history+behindID
	end := clientv3.GetPrefixRangeEnd(history)
	queue := k.QueueOf(ref)
	newestFirst := clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend)
	ops := []clientv3.Op{
		clientv3.OpGet(k.Spec(ref)), clientv3.OpGet(k.Entry(ref)), clientv3.OpGet(k.Tombstone(ref)),
		clientv3.OpGet(k.Owner(ref.Shard)), clientv3.OpGet(k.Watermark(ref.Shard)), clientv3.OpGet(k.Freezes()),
		clientv3.OpGet(versions, withPrefix(versions)),
		clientv3.OpGet(k.Nodes(), withPrefix(k.Nodes())),
		clientv3.OpGet(queue, withPrefix(queue), clientv3.WithLimit(accountQueue)),
		clientv3.OpGet(history, clientv3.WithRange(first), newestFirst, clientv3.WithLimit(accountBefore)),
		clientv3.OpGet(first, clientv3.WithRange(behind), clientv3.WithLimit(accountWithin)),
		clientv3.OpGet(behind, clientv3.WithRange(end), clientv3.WithLimit(accountAfter)),
		clientv3.OpGet(behind, clientv3.WithRange(end), clientv3.WithCountOnly()),
		clientv3.OpGet(k.Dead(ref), withPrefix(k.Dead(ref)), clientv3.WithKeysOnly(), clientv3.WithLimit(accountDead)),
		clientv3.OpGet(k.LedgerOf(ref), withPrefix(k.LedgerOf(ref))),
		clientv3.OpGet(queue+firstID, clientv3.WithRange(queue+behindID), clientv3.WithLimit(accountWithin)),
		clientv3.OpGet(queue, withPrefix(queue), newestFirst, clientv3.WithLimit(accountQueue)),
	}
	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return record.Account{}, fmt.Errorf("read the record of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	a := record.Account{Revision: res.Header.Revision}
	read := kv.Result{Responses: res.Responses}
	many := func(n int) []*mvccpb.KeyValue { return res.Responses[n].GetResponseRange().Kvs }
	a.ReadTask(k, ref, readAt(read, 0), readAt(read, 1), readAt(read, 2), many(6))
	a.ReadShard(k, readAt(read, 3), readAt(read, 4), readAt(read, 5))
	a.Nodes = record.DecodeNodes(s.keys, many(7))

	// The attempts are spread over the inboxes. They are read at the same revision.
	active, err := Runs(s).activeOf(ctx, ref, a.Revision)
	if err != nil {
		return record.Account{}, err
	}

	byID := map[string]task.Run{}

	for _, n := range []int{8, 9, 10, 11, 15, 16} {
		a.ReadRuns(k, many(n), byID)
	}

	// A range of ticks may extend into the period. It is the last record of a tick before, because a range contains no tick
	// with a record of its own. Many requested runs may follow it.
	before := res.Responses[9].GetResponseRange()
	if before.More && !slices.ContainsFunc(before.Kvs, func(e *mvccpb.KeyValue) bool { return isOfTick(history, e) }) {
		e, err := s.lastTickBefore(ctx, history, string(before.Kvs[len(before.Kvs)-1].Key), a.Revision)
		if err != nil {
			return record.Account{}, fmt.Errorf("read the record of %s: %w", ref, err)
		}
		a.ReadRuns(k, e, byID)
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
		a.CutAt = record.LastTick(s.keys, within.Kvs)
		a.Unread = append(a.Unread, record.Period{From: task.At(a.CutAt.Add(time.Millisecond)), To: task.At(to)})
	}

	a.Unread = append(a.Unread, unreadOf(queue, from, to, res.Responses[8].GetResponseRange(), res.Responses[15].GetResponseRange(), many(16))...)

	for _, e := range many(13) {
		if sk, ok := k.ParseShard(string(e.Key)); ok {
			a.Dead = append(a.Dead, sk.Run)
		}
	}

	for _, e := range many(14) {
		a.Ledger = append(a.Ledger, e.Value)
	}

	return a, nil
}

// isOfTick reports whether a key in the history is that of a tick's record, and not of a requested run or a late result.
func isOfTick(history string, e *mvccpb.KeyValue) bool {
	id := strings.TrimPrefix(string(e.Key), history)
	return !strings.Contains(id, record.LateMark) && task.TriggerOfRunID(id) == task.TriggerSchedule
}

// lastTickBefore returns the last record of a tick in a history before a key; nil if there is none.
func (s Tasks) lastTickBefore(ctx context.Context, history, key string, rev int64) ([]*mvccpb.KeyValue, error) {
	all, _, err := s.getRange(ctx, history, key, rev, clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}

	for _, e := range slices.Backward(all) {
		if isOfTick(history, e) {
			res, err := s.readKey(ctx, string(e.Key), clientv3.WithRev(rev))
			if err != nil {
				return nil, err
			}
			return res.Kvs, nil
		}
	}

	return nil, nil
}

// unreadOf returns the periods whose waiting runs were not read. These are the periods between the oldest and the newest runs that
// were read, without the part of the requested period that was read.
func unreadOf(queue string, from, to time.Time, oldest, within *etcdserverpb.RangeResponse, newest []*mvccpb.KeyValue) []record.Period {
	if !oldest.More || len(newest) == 0 {
		return nil
	}

	timeOf := func(e *mvccpb.KeyValue) time.Time {
		at, _ := task.TimeOfRunID(strings.TrimPrefix(string(e.Key), queue))
		return at
	}

	// The first and the last run that were not read may have been due in the same millisecond as the ones beside them.
	unread := record.Period{From: task.At(timeOf(oldest.Kvs[len(oldest.Kvs)-1])), To: task.At(timeOf(newest[len(newest)-1]))}
	readTo := to
	if within.More {
		readTo = timeOf(within.Kvs[len(within.Kvs)-1]).Add(-time.Millisecond)
	}

	parts := []record.Period{
		{From: unread.From, To: task.At(earlier(unread.To.Time, from.Add(-time.Millisecond)))},
		{From: task.At(later(unread.From.Time, readTo.Add(time.Millisecond))), To: unread.To},
	}

	return slices.DeleteFunc(parts, func(p record.Period) bool { return p.To.Before(p.From.Time) })
}

// earlier returns the earlier one of two times, and later the later one.
func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
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
		{Key: s.keys.LedgerOf(ref), What: "ledger"}, {Key: s.keys.BootTask(ref), What: "boot"},
		{Key: s.keys.Subscribers(ref), What: "subscribers"}, {Key: s.keys.Sent(ref), What: "sent"}, {Key: s.keys.Triggers(ref), What: "triggers"},
		{Key: s.keys.RunDataOf(ref), What: "rundata"},
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

// TaskLedger is what etcd contains about a task's ledger, at one revision.
type TaskLedger struct {
	Task    task.Task
	Chunks  [][]byte     // the values of the chunks, in the order of their keys; package ledger reads them
	Cluster task.Cluster // the default and the limit of the time for which ledgers remember ticks

	Revision int64 // at which all was read
}

// Ledger reads the ledger of a task. It returns task.ErrNotFound if
// the task does not exist.
func (s Tasks) Ledger(ctx context.Context, ref record.Ref) (TaskLedger, error) {
	chunks := s.keys.LedgerOf(ref)
	res, err := s.etcd.Txn(ctx).Then(
		clientv3.OpGet(s.keys.Spec(ref)), clientv3.OpGet(s.keys.Entry(ref)), clientv3.OpGet(s.keys.Cluster()),
		clientv3.OpGet(chunks, withPrefix(chunks)),
	).Commit()
	if err != nil {
		return TaskLedger{}, fmt.Errorf("read the ledger of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	read := kv.Result{Responses: res.Responses}
	st, err := storedFrom(ref, readAt(read, 0), readAt(read, 1))
	if err != nil {
		return TaskLedger{}, err
	}

	l := TaskLedger{Task: st.Task, Revision: res.Header.Revision}
	if e := readAt(read, 2); e != nil {
		c, err := DecodeCluster(e)
		if err != nil {
			return TaskLedger{}, fmt.Errorf("read the cluster's record: %w", err)
		}
		l.Cluster = c.Cluster
	}

	for _, e := range res.Responses[3].GetResponseRange().Kvs {
		l.Chunks = append(l.Chunks, e.Value)
	}

	return l, nil
}
