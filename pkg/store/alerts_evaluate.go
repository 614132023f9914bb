package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// AlertReading is what ReadToEvaluate reads, at one revision.
type AlertReading struct {
	Revision int64
	Freezes  FreezeRecord
	Tasks    []TaskReading // in the order of the request
}

// TaskReading is what the records of a task say, without the values of its history and its dead runs.
type TaskReading struct {
	Ref        record.Ref
	Entry      *task.Entry // nil: the task does not exist, or its entry cannot be read
	EntryMod   int64       // mod revision of the entry; 0: the task does not exist
	Unreadable bool        // the entry cannot be read
	History    []ShardEvent
	Dead       []ShardEvent
	Alerts     []task.Alert
	HasQueued  bool  // a run of the task is in the queue
	Watermark  int64 // mod revision of the shard's watermark
}

// EvaluateAtOnce is how many tasks ReadToEvaluate reads at once. etcd allows 128 operations.
const EvaluateAtOnce = 20

// ReadToEvaluate reads the records of some tasks from which alerts are evaluated, at most EvaluateAtOnce. readsDead is set if the dead runs
// of any task may be such that are no failures; otherwise, only those of tasks may that are or were workflows.
func (s Alerts) ReadToEvaluate(ctx context.Context, refs []record.Ref, readsDead bool) (AlertReading, error) {
	const each = 6 // operations
	ops := make([]clientv3.Op, 0, each*len(refs)+1)
	for _, ref := range refs {
		history, dead, alerts, queue := s.keys.HistoryOf(ref), s.keys.Dead(ref), s.keys.AlertsOf(ref), s.keys.QueueOf(ref)
		ops = append(ops,
			clientv3.OpGet(s.keys.Entry(ref)),
			clientv3.OpGet(history, withPrefix(history), clientv3.WithKeysOnly()),
			clientv3.OpGet(dead, withPrefix(dead), clientv3.WithKeysOnly()),
			clientv3.OpGet(alerts, withPrefix(alerts)),
			clientv3.OpGet(queue, withPrefix(queue), clientv3.WithKeysOnly(), clientv3.WithLimit(1)),
			clientv3.OpGet(s.keys.Watermark(ref.Shard), clientv3.WithKeysOnly()),
		)
	}
	ops = append(ops, clientv3.OpGet(s.keys.Freezes()))

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return AlertReading{}, fmt.Errorf("read tasks to evaluate their alerts: %w: %w", task.ErrUnavailable, err)
	}

	read := kv.Result{Responses: res.Responses}
	r := AlertReading{Revision: res.Header.Revision, Freezes: freezeRecord(readAt(read, len(ops)-1), res.Header.Revision), Tasks: make([]TaskReading, len(refs))}

	for i, ref := range refs {
		t, first := &r.Tasks[i], each*i
		kvs := func(n int) []*mvccpb.KeyValue { return res.Responses[first+n].GetResponseRange().Kvs }

		t.Ref = ref
		if e := readAt(read, first); e != nil {
			t.EntryMod = e.ModRevision
			if entry, err := record.DecodeEntry(e.Value); err == nil {
				t.Entry = &entry
			} else {
				t.Unreadable = true
			}
		}

		t.History, t.Dead = endEvents(s.keys, kvs(1)), shardEvents(s.keys, kvs(2))
		t.Alerts = s.decodeAlerts(kvs(3))
		t.HasQueued, t.Watermark = len(kvs(4)) > 0, readAt(read, first+5).GetModRevision()
	}

	return r, s.dropNoFailures(ctx, &r, readsDead)
}

// dropNoFailures removes the dead runs that are no failures: those of workflows that were cancelled, and those that a restore has lost. Only
// their values say that.
func (s Alerts) dropNoFailures(ctx context.Context, r *AlertReading, readsAll bool) error {
	var ops []clientv3.Op
	for i := range r.Tasks {
		t := &r.Tasks[i]
		if t.Entry == nil {
			continue
		}

		// A task that was edited may have been a workflow before.
		if mayBeWorkflow := t.Entry.Action.Workflow != nil || t.Entry.Generation > 1; !mayBeWorkflow && !readsAll {
			continue
		}

		for _, ev := range t.Dead {
			ops = append(ops, clientv3.OpGet(ev.Key, clientv3.WithRev(r.Revision)))
		}
	}
	if len(ops) == 0 {
		return nil
	}

	noFailure := map[string]bool{}
	err := s.eachResponse(ctx, ops, func(_ int, res *etcdserverpb.RangeResponse) {
		for _, e := range res.Kvs {
			noFailure[string(e.Key)] = !record.IsDeadFailure(e.Value)
		}
	})
	if err != nil {
		return fmt.Errorf("read dead runs to evaluate alerts: %w", err)
	}

	for i := range r.Tasks {
		t := &r.Tasks[i]
		t.Dead = slices.DeleteFunc(t.Dead, func(ev ShardEvent) bool { return noFailure[ev.Key] })
	}

	return nil
}

// decodeAlerts decodes the alerts among some records. One that cannot be read has only what its key says.
func (s Alerts) decodeAlerts(kvs []*mvccpb.KeyValue) (list []task.Alert) {
	for _, e := range kvs {
		if a, _, ok, _ := record.DecodeAlert(s.keys, e); ok {
			list = append(list, a)
		}
	}

	return list
}

// AlertFacts says what AlertFactsAt reads, and what it has read.
type AlertFacts struct {
	WantSpec, WantLedger, WantTombstone bool

	UpdatedAt time.Time // of the spec
	UpdatedBy *task.Actor
	Ledger    [][]byte // the values of the chunks, in the order of their keys
	DeletedBy *task.Actor
}

// AlertFactsAt reads further records of a task at a revision. A record that is absent or cannot be read leaves its fields
// empty.
func (s Alerts) AlertFactsAt(ctx context.Context, ref record.Ref, rev int64, facts *AlertFacts) error {
	ledger := s.keys.LedgerOf(ref)

	var ops []clientv3.Op
	for _, get := range []struct {
		wanted bool
		op     clientv3.Op
	}{
		{facts.WantSpec, clientv3.OpGet(s.keys.Spec(ref), clientv3.WithRev(rev))},
		{facts.WantTombstone, clientv3.OpGet(s.keys.Tombstone(ref), clientv3.WithRev(rev))},
		{facts.WantLedger, clientv3.OpGet(ledger, withPrefix(ledger), clientv3.WithRev(rev))},
	} {
		if get.wanted {
			ops = append(ops, get.op)
		}
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return fmt.Errorf("read the spec or the ledger of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	read, n := kv.Result{Responses: res.Responses}, 0
	if facts.WantSpec {
		if e := readAt(read, n); e != nil {
			if t, err := record.Decode[task.Task](e.Value); err == nil {
				facts.UpdatedAt, facts.UpdatedBy = t.UpdatedAt.Time, t.UpdatedBy
			}
		}
		n++
	}
	if facts.WantTombstone {
		if t, err := record.DecodeTombstone(readAt(read, n)); err == nil && t != nil {
			facts.DeletedBy = t.DeletedBy
		}
		n++
	}
	if facts.WantLedger {
		for _, e := range res.Responses[n].GetResponseRange().Kvs {
			facts.Ledger = append(facts.Ledger, e.Value)
		}
	}

	return nil
}

// InboxRun is a run of a task that may be in the inbox of a node.
type InboxRun struct{ Run, Node string }

// ActiveRecord is the record of a waiting or active run.
type ActiveRecord struct {
	Run         task.Run
	Node        string // "": it is in the queue
	Create, Mod int64
}

// maxActiveRead is how many waiting runs of a task ActiveRunsAt reads: the oldest ones.
const maxActiveRead = 100

// ActiveRunsAt reads the waiting runs of a task, and its attempts among some inboxes, at a revision. isWhole is false if more runs wait. A
// record that is absent, or that cannot be read, is left out.
func (s Alerts) ActiveRunsAt(ctx context.Context, ref record.Ref, rev int64, inboxes []InboxRun) (found []ActiveRecord, isWhole bool, err error) {
	queue := s.keys.QueueOf(ref)
	ops := []clientv3.Op{clientv3.OpGet(queue, withPrefix(queue), clientv3.WithRev(rev), clientv3.WithLimit(maxActiveRead))}
	for _, in := range inboxes {
		ops = append(ops, clientv3.OpGet(s.keys.Run(in.Node, ref, in.Run), clientv3.WithRev(rev)))
	}

	err = s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) {
		if i == 0 {
			isWhole = !r.More
		}

		for _, e := range r.Kvs {
			one, ok := s.decodeActive(e)
			if !ok {
				isWhole = false
				continue
			}
			found = append(found, one)
		}
	})
	if err != nil {
		return nil, false, fmt.Errorf("read the active runs of %s: %w", ref, err)
	}

	return found, isWhole, nil
}

// decodeActive decodes a record of the queue or of an inbox.
func (s Alerts) decodeActive(e *mvccpb.KeyValue) (r ActiveRecord, ok bool) {
	r = ActiveRecord{Create: e.CreateRevision, Mod: e.ModRevision}
	if run, ok := record.DecodeRun(s.keys, e); ok {
		r.Run = run
		return r, true
	}

	h, err := record.DecodeHeld(s.keys, e)
	r.Run, r.Node = h.Run, h.Node

	return r, err == nil
}

// AlertWrite is a new version of the record of an alert, with the evidence for it.
type AlertWrite struct {
	Shard int
	Alert task.Alert // Mod is that of the record that was read; 0: there was none

	// What the alert was decided from must be unchanged: the freezes and the entry, by their mod revisions, and everything in
	// the history and among the dead runs of the task, as it was at a revision.
	Revision          int64
	Freezes, EntryMod int64
	Dead              *AlertDead   // a dead run that must be unchanged; nil: none
	Active            *AlertActive // a waiting or active run that must be unchanged; nil: none
	Rules             *AlertRules  // the rules of the namespace that must be unchanged; nil: the task has alerts of its own, or does not exist
}

// AlertRules are the rules of a namespace, as they were known when an alert of a task without alerts of its own was decided. If the rule
// that applies is unchanged and none was written since, that rule still applies: rules that were deleted did not.
type AlertRules struct {
	Revision int64  // no rule was written after it
	Name     string // the rule that applies; "": none
	Mod      int64
}

// AlertDead is a dead run with its mod revision.
type AlertDead struct {
	Run string
	Mod int64
}

// AlertActive is a waiting or active run with the create revision of its record and, if it must not be rewritten either, with its mod
// revision.
type AlertActive struct {
	Run, Node   string // without a node, it is in the queue
	Create, Mod int64
}

// ref returns the task of the alert.
func (w *AlertWrite) ref() record.Ref {
	return record.Ref{Namespace: w.Alert.Namespace, Name: w.Alert.Task, Shard: w.Shard}
}

// PutAlert writes the record of an alert of a task as the owner of its shard. It returns the mod revision of the record,
// task.ErrFenced if a fence does not hold, and task.ErrConflict if something has changed since the alert was decided. Then
// nothing is written.
//
// Only what is added or changed in history and dead runs is newer than a revision. A record that was deleted since does not make
// a verdict wrong, with one exception: an opening needs a dead run that is still there (AlertWrite.Dead). If all dead runs were gone
// at the revision, a deletion changes nothing.
func (s Alerts) PutAlert(ctx context.Context, f Fences, w *AlertWrite) (int64, error) {
	ref := w.ref()
	key, history, dead := s.keys.Alert(ref, w.Alert.Kind), s.keys.HistoryOf(ref), s.keys.Dead(ref)

	t := kv.Txn{
		If: []clientv3.Cmp{
			f.Owner.Compare(), f.Node.Compare(), isUnchanged(s.keys.Freezes(), w.Freezes), isUnchanged(s.keys.Entry(ref), w.EntryMod), isUnchanged(key, w.Alert.Mod),
			noneNewer(history, w.Revision), noneNewer(dead, w.Revision),
		},
		Then: []clientv3.Op{clientv3.OpPut(key, record.EncodeAlert(w.Alert))},
	}
	if w.Dead != nil {
		t.If = append(t.If, isUnchanged(s.keys.DeadRun(ref, w.Dead.Run), w.Dead.Mod))
	}
	if a := w.Active; a != nil {
		run := s.keys.Queued(ref, a.Run)
		if a.Node != "" {
			run = s.keys.Run(a.Node, ref, a.Run)
		}
		t.If = append(t.If, kv.CreateIs(run, a.Create))
		if a.Mod != 0 {
			t.If = append(t.If, isUnchanged(run, a.Mod))
		}
	}
	if r := w.Rules; r != nil {
		t.If = append(t.If, noneNewer(s.keys.AlertRulesOf(ref.Namespace), r.Revision))
		if r.Name != "" {
			t.If = append(t.If, isUnchanged(s.keys.AlertRule(ref.Namespace, r.Name), r.Mod))
		}
	}
	if w.Alert.Kind == task.AlertMaxDuration && !w.Alert.IsOpen() {
		t.If = append(t.If, noneNewer(s.keys.QueueOf(ref), w.Revision)) // a run that ended an attempt may wait for the next one
	}

	res, err := s.commitFenced(ctx, f, t)
	if err != nil {
		return 0, fmt.Errorf("write the alert %s of %s: %w", w.Alert.Kind, ref, err)
	}

	return res.Revision, nil
}

// noneNewer is a comparison that holds if no key with a prefix was written after a revision.
func noneNewer(prefix string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(prefix), "<", revision+1).WithPrefix()
}

// PutMoreAlerts writes the record that counts the alerts of a shard for one receiver that have no record of their own. The errors
// are those of PutAlert.
func (s Alerts) PutMoreAlerts(ctx context.Context, f Fences, shard int, a task.Alert) (int64, error) {
	key := s.keys.AlertsMore(shard, a.Namespace, a.Receiver)
	t := kv.Txn{
		If:   []clientv3.Cmp{f.Owner.Compare(), f.Node.Compare(), isUnchanged(key, a.Mod)},
		Then: []clientv3.Op{clientv3.OpPut(key, record.EncodeAlert(a))},
	}

	res, err := s.commitFenced(ctx, f, t)
	if err != nil {
		return 0, fmt.Errorf("write the number of alerts of %s in shard %d for %s: %w", a.Namespace, shard, a.Receiver, err)
	}

	return res.Revision, nil
}

// maxAlertDeletions is how many alerts one transaction deletes.
const maxAlertDeletions = 50

// DeleteAlerts deletes alerts of a shard that are unchanged since they were read. The errors are those of PutAlert;
// transactions before that remain applied.
func (s Alerts) DeleteAlerts(ctx context.Context, f Fences, shard int, alerts []task.Alert) error {
	for some := range slices.Chunk(alerts, maxAlertDeletions) {
		t := kv.Txn{If: []clientv3.Cmp{f.Owner.Compare(), f.Node.Compare()}}
		for i := range some {
			key := s.keys.Alert(record.Ref{Namespace: some[i].Namespace, Name: some[i].Task, Shard: shard}, some[i].Kind)
			if some[i].Kind == task.AlertMore {
				key = s.keys.AlertsMore(shard, some[i].Namespace, some[i].Receiver)
			}

			t.If = append(t.If, isUnchanged(key, some[i].Mod))
			t.Then = append(t.Then, clientv3.OpDelete(key))
		}

		if err := s.writeFenced(ctx, f, t); err != nil {
			return fmt.Errorf("delete alerts of shard %d: %w", shard, err)
		}
	}

	return nil
}

// AlertsOfShards reads the alerts of some shards, by shard. Those of different shards may be read at different revisions.
func (s Alerts) AlertsOfShards(ctx context.Context, shards []int) (map[int][]task.Alert, error) {
	all := make(map[int][]task.Alert, len(shards))

	for some := range slices.Chunk(shards, 100) { // etcd allows 128 operations
		ops := make([]clientv3.Op, len(some))
		for i, shard := range some {
			prefix := s.keys.AlertsIn(shard)
			ops[i] = clientv3.OpGet(prefix, withPrefix(prefix), clientv3.WithLimit(rangePage))
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("read the alerts of shards: %w: %w", task.ErrUnavailable, err)
		}

		for i, shard := range some {
			r := res.Responses[i].GetResponseRange()
			kvs := r.Kvs
			if r.More {
				if kvs, _, err = s.getAll(ctx, s.keys.AlertsIn(shard)); err != nil {
					return nil, fmt.Errorf("read the alerts of shard %d: %w", shard, err)
				}
			}

			all[shard] = s.decodeAlerts(kvs)
		}
	}

	return all, nil
}
