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

// Receiver is the entry of a task that alerts name as their receiver, as it was read.
type Receiver struct {
	Ref   record.Ref
	Entry task.Entry
	Mod   int64 // mod revision of the entry; 0: there is no such task
	Err   error // the entry cannot be read
}

// Receives reports whether the task can be read and is a receiver.
func (r *Receiver) Receives() bool { return r.Mod != 0 && r.Err == nil && r.Entry.Receiver != nil }

// Receivers reads the entries of receivers.
func (s Alerts) Receivers(ctx context.Context, refs []record.Ref) ([]Receiver, error) {
	keys := make([]string, len(refs))
	list := make([]Receiver, len(refs))
	for i, ref := range refs {
		keys[i], list[i].Ref = s.keys.Entry(ref), ref
	}

	err := s.eachKey(ctx, keys, func(i int, e *mvccpb.KeyValue) {
		if e != nil {
			list[i].Mod = e.ModRevision
			list[i].Entry, list[i].Err = record.DecodeEntry(e.Value)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read receivers: %w", err)
	}

	return list, nil
}

// WriteSent replaces the record of what was sent to a receiver, unless it has changed since sent was read. With runs, it also queues
// these in the same transaction, so that a message is recorded if and only if it is sent (G59). It then also compares
// the entry of the receiver, and the mod revision of the freezes: a run that is queued during a freeze waits until it ends. It returns
// the revision of the write, task.ErrFenced if the leader's term is over, and task.ErrConflict if something has changed.
func (s Alerts) WriteSent(ctx context.Context, term kv.Fence, to Receiver, sent task.AlertsSent, freezes int64, runs ...task.Waiting) (int64, error) {
	key := s.keys.SentTo(to.Ref)
	t := kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(key, sent.Mod)},
		Then: []clientv3.Op{clientv3.OpPut(key, record.Encode(sent))},
	}

	if len(runs) > 0 {
		t.If = append(t.If, isUnchanged(s.keys.Entry(to.Ref), to.Mod), isUnchanged(s.keys.Freezes(), freezes))
	}
	for _, w := range runs {
		queued := s.keys.Queued(to.Ref, w.ID)
		t.If = append(t.If, isAbsent(queued))
		t.Then = append(t.Then, opPut(queued, record.EncodeWaiting(w)))
	}

	rev, err := s.commitAsLeader(ctx, term, t)
	if err != nil {
		return 0, fmt.Errorf("write what was sent to %s: %w", to.Ref, err)
	}

	return rev, nil
}

// DeleteSent deletes the record of what was sent to a task that is no receiver any more, if both are as they were read.
func (s Alerts) DeleteSent(ctx context.Context, term kv.Fence, to Receiver, mod int64) error {
	key := s.keys.SentTo(to.Ref)
	_, err := s.commitAsLeader(ctx, term, kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(key, mod), isUnchanged(s.keys.Entry(to.Ref), to.Mod)},
		Then: []clientv3.Op{clientv3.OpDelete(key)},
	})
	if err != nil {
		return fmt.Errorf("delete what was sent to %s: %w", to.Ref, err)
	}

	return nil
}

// PutClusterAlert writes the alert about a problem of the cluster, unless its record has changed since a was read.
func (s Alerts) PutClusterAlert(ctx context.Context, term kv.Fence, a task.Alert) error {
	return s.writeClusterAlert(ctx, term, a, clientv3.OpPut(s.keys.ClusterAlert(a.Code), record.EncodeAlert(a)))
}

// DeleteClusterAlert deletes the alert about a problem of the cluster, unless its record has changed since a was read.
func (s Alerts) DeleteClusterAlert(ctx context.Context, term kv.Fence, a task.Alert) error {
	return s.writeClusterAlert(ctx, term, a, clientv3.OpDelete(s.keys.ClusterAlert(a.Code)))
}

func (s Alerts) writeClusterAlert(ctx context.Context, term kv.Fence, a task.Alert, op clientv3.Op) error {
	t := kv.Txn{If: []clientv3.Cmp{isUnchanged(s.keys.ClusterAlert(a.Code), a.Mod)}, Then: []clientv3.Op{op}}
	if _, err := s.commitAsLeader(ctx, term, t); err != nil {
		return fmt.Errorf("write the alert %s of the cluster: %w", a.Code, err)
	}

	return nil
}

// PutHeartbeat records that the leader was able to write at a time, unless the record has changed since its mod revision mod.
func (s Alerts) PutHeartbeat(ctx context.Context, term kv.Fence, at task.Time, mod int64) error {
	return s.writeHeartbeat(ctx, term, mod, clientv3.OpPut(s.keys.Heartbeat(), record.Encode(record.Timestamp{At: at})))
}

// DeleteHeartbeat deletes the record of PutHeartbeat, unless it has changed since its mod revision mod.
func (s Alerts) DeleteHeartbeat(ctx context.Context, term kv.Fence, mod int64) error {
	return s.writeHeartbeat(ctx, term, mod, clientv3.OpDelete(s.keys.Heartbeat()))
}

func (s Alerts) writeHeartbeat(ctx context.Context, term kv.Fence, mod int64, op clientv3.Op) error {
	t := kv.Txn{If: []clientv3.Cmp{isUnchanged(s.keys.Heartbeat(), mod)}, Then: []clientv3.Op{op}}
	if _, err := s.commitAsLeader(ctx, term, t); err != nil {
		return fmt.Errorf("write the heartbeat of the leader: %w", err)
	}

	return nil
}

// ClusterAlerts reads the alerts about the cluster.
func (s Alerts) ClusterAlerts(ctx context.Context) ([]task.Alert, error) {
	all, _, err := s.getAll(ctx, s.keys.ClusterAlerts())
	if err != nil {
		return nil, fmt.Errorf("read the alerts of the cluster: %w", err)
	}

	var list []task.Alert
	for _, e := range all {
		if a, _, ok, err := record.DecodeAlert(s.keys, e); ok && err == nil {
			list = append(list, a)
		}
	}

	return list, nil
}

// DeleteSilences deletes silences that are as they were read.
func (s Alerts) DeleteSilences(ctx context.Context, term kv.Fence, silences []task.AlertSilence) error {
	return inChunks(silences, func(chunk []task.AlertSilence) error {
		var t kv.Txn
		for _, silence := range chunk {
			key := s.keys.Silence(silence.Namespace, silence.ID)
			t.If = append(t.If, isUnchanged(key, silence.Mod))
			t.Then = append(t.Then, clientv3.OpDelete(key))
		}

		if _, err := s.commitAsLeader(ctx, term, t); err != nil {
			return fmt.Errorf("delete silences (%d): %w", len(chunk), err)
		}

		return nil
	})
}

// NamespaceRevisions returns the create revisions of the records of namespaces. A silence of an earlier namespace with the same
// name is void. A namespace that does not exist is left out.
func (s Alerts) NamespaceRevisions(ctx context.Context, names []string) (map[string]int64, error) {
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = s.keys.Namespace(name)
	}

	created := make(map[string]int64, len(names))
	err := s.eachKey(ctx, keys, func(i int, e *mvccpb.KeyValue) {
		if e != nil {
			created[names[i]] = e.CreateRevision
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read namespaces: %w", err)
	}

	return created, nil
}

// MessageRun is the run of a message to a receiver.
type MessageRun struct {
	Ref record.Ref
	ID  string

	Queued *task.Waiting // it waits; nil otherwise
	Ended  *task.Run     // it has ended; nil otherwise
}

// FindMessageRuns reads where the runs of messages are. A run that is neither queued nor ended is active, or its record is gone:
// RunByID tells which.
func (s Alerts) FindMessageRuns(ctx context.Context, runs []MessageRun) error {
	keys := make([]string, 0, 2*len(runs))
	for _, r := range runs {
		keys = append(keys, s.keys.Queued(r.Ref, r.ID), s.keys.Ended(r.Ref, r.ID))
	}

	err := s.eachKey(ctx, keys, func(i int, e *mvccpb.KeyValue) {
		if e == nil {
			return
		}

		r := &runs[i/2]
		if i%2 == 1 {
			if run, ok := record.DecodeRun(s.keys, e); ok {
				r.Ended = &run
			}
			return
		}

		w, err := record.DecodeWaiting(record.ShardKey{Kind: record.KindQueued, Ref: r.Ref, Run: r.ID}, e.Value)
		if err != nil {
			w = task.Waiting{Run: task.Run{ID: r.ID}} // its owner deals with it
		}
		r.Queued = &w
	})
	if err != nil {
		return fmt.Errorf("read the runs of messages: %w", err)
	}

	return nil
}

// AlertSubject is the task of an alert, with what a message says about it.
type AlertSubject struct {
	Ref  record.Ref
	Run  string // the run that the alert names; "" if it names none
	Keep int    // how many of the newest records of its history are read

	Task    *task.Task  // nil: it was deleted, or cannot be read
	Entry   *task.Entry // as Task
	Found   *task.Run   // Run; nil if its record is gone
	History []task.Run  // the newest records, the newest first
}

// subjectsAtOnce is how many subjects one request reads. Each needs five operations, and etcd allows 128.
const subjectsAtOnce = 20

// ReadSubjects reads the tasks of alerts, each at one revision.
func (s Alerts) ReadSubjects(ctx context.Context, list []AlertSubject) error {
	for len(list) > 0 {
		chunk := list[:min(len(list), subjectsAtOnce)]
		list = list[len(chunk):]

		var ops []clientv3.Op
		for _, a := range chunk {
			run := a.Run
			if run == "" {
				run = "-" // no run has this ID
			}
			history := s.keys.HistoryOf(a.Ref)
			ops = append(ops, clientv3.OpGet(s.keys.Spec(a.Ref)), clientv3.OpGet(s.keys.Entry(a.Ref)),
				clientv3.OpGet(s.keys.Ended(a.Ref, run)), clientv3.OpGet(s.keys.DeadRun(a.Ref, run)),
				clientv3.OpGet(history, withPrefix(history), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(int64(a.Keep))))
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return fmt.Errorf("read the tasks of alerts: %w: %w", task.ErrUnavailable, err)
		}

		for i := range chunk {
			s.readSubject(&chunk[i], kv.Result{Responses: res.Responses[5*i : 5*i+5]})
		}
	}

	return nil
}

// readSubject decodes what was read about a subject, as far as it can be read.
func (s Alerts) readSubject(a *AlertSubject, res kv.Result) {
	if e := readAt(res, 0); e != nil {
		if t, err := record.DecodeTask(e.Value, e.ModRevision); err == nil {
			a.Task = &t
		}
	}
	if e := readAt(res, 1); e != nil {
		if entry, err := record.DecodeEntry(e.Value); err == nil {
			a.Entry = &entry
		}
	}

	// The record of a dead run is kept longer than that in the history, which is the more complete one.
	if e := readAt(res, 3); e != nil {
		if d, ok := record.DecodeDead(s.keys, e); ok {
			a.Found = &d.Run
		}
	}
	if e := readAt(res, 2); e != nil {
		if run, ok := record.DecodeRun(s.keys, e); ok {
			a.Found = &run
		}
	}

	for _, e := range res.Responses[4].GetResponseRange().Kvs {
		if k, ok := s.keys.ParseShard(string(e.Key)); !ok || k.Late {
			continue
		}
		if run, ok := record.DecodeRun(s.keys, e); ok {
			a.History = append(a.History, run)
		}
	}
}
