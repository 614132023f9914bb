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
func (s Tasks) Account(ctx context.Context, ref record.Ref, from, to time.Time) (record.Account, error) {
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
		clientv3.OpGet(k.LedgerOf(ref), withPrefix(k.LedgerOf(ref))),
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

	for _, n := range []int{8, 9, 10, 11} {
		a.ReadRuns(k, many(n), byID)
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
	}

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
		{Key: s.keys.LedgerOf(ref), What: "ledger"},
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
