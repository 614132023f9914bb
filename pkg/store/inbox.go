package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Inbox gives a node access to the attempts that are assigned to it (runs/<node>/).
//
// An attempt ends exactly once. Finish moves it from the inbox to the history, or to the
// queue if another attempt follows, in a transaction that compares the fencing token. A
// result that arrives after the attempt was declared lost changes no outcome (G12).
type Inbox struct{ *conn }

// ErrLate means that the attempt had already been declared lost when its result arrived.
// The result is recorded as late, unless the task no longer exists, and changes no outcome.
var ErrLate = errors.New("the attempt was declared lost before its result arrived")

// InboxEvent is the current record of an attempt in a node's inbox, or its deletion.
type InboxEvent struct {
	*record.Held // nil if the record is deleted, cannot be read, or is only replayed
	Key          string
	Mod          int64 // the record's mod revision; for a deletion, the revision of the deletion
	Deleted      bool
	Err          error // not nil if the record cannot be read
}

// InboxBatch is a step of what a node receives about its inbox.
type InboxBatch struct {
	Reset    bool // Events is the whole inbox
	Replayed bool // see kv.Batch.Replayed; Events contain only keys and revisions
	Events   []InboxEvent
	Revision int64 // see kv.Batch.Revision
}

// FollowInbox calls apply with a node's whole inbox, and then with every change of it in
// order, until ctx ends or apply returns an error. It lists the inbox again when it may
// have missed changes, and about once every relist. Changes that a list contained before
// the watch delivered them come later as replayed events (see kv.Batch).
func (s Inbox) FollowInbox(ctx context.Context, node string, relist time.Duration, apply func(InboxBatch) error) error {
	prefix := s.keys.Inbox(node)
	cfg := kv.FollowConfig{Key: prefix, End: clientv3.GetPrefixRangeEnd(prefix), Name: "inbox", Dedicated: true, Relist: relist, Replayed: true}
	return kv.Follow(ctx, s.etcd, cfg, func(b kv.Batch) error {
		out := InboxBatch{Reset: b.Reset, Replayed: b.Replayed, Revision: b.Revision, Events: make([]InboxEvent, 0, len(b.KVs)+len(b.Events))}
		for _, e := range b.KVs {
			out.Events = append(out.Events, inboxEvent(s.keys, e))
		}

		// A replayed event has no record: the list has delivered a record that is at least as new.
		for _, e := range b.Events {
			if deleted := e.Type == clientv3.EventTypeDelete; deleted || b.Replayed {
				out.Events = append(out.Events, InboxEvent{Key: string(e.Kv.Key), Mod: e.Kv.ModRevision, Deleted: deleted})
				continue
			}
			out.Events = append(out.Events, inboxEvent(s.keys, e.Kv))
		}

		return apply(out)
	})
}

// inboxEvent returns the event for the present record e.
func inboxEvent(keys record.Keys, e *mvccpb.KeyValue) InboxEvent {
	ev := InboxEvent{Key: string(e.Key), Mod: e.ModRevision, Held: new(record.Held)}
	if ev.Err = record.DecodeHeldInto(keys, ev.Key, e, ev.Held); ev.Err != nil {
		ev.Held = nil
	}
	return ev
}

// Rewrite replaces an attempt's record, for example to adopt the attempt or to report
// that it runs. The transaction requires that the record has the mod revision h.Mod and
// that the node's session holds. Rewrite returns the new mod revision, task.ErrConflict
// if the record has changed or is gone, and task.ErrFenced if the session has ended.
func (s Inbox) Rewrite(ctx context.Context, session kv.Fence, h record.Held) (int64, error) {
	key := s.keys.Run(h.Node, h.Ref(), h.ID)
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(key, h.Mod), session.Compare()},
		Then: []clientv3.Op{opPut(key, record.EncodeAssigned(&h.Assigned, record.Encode(h.Action)))},
		Else: []clientv3.Op{clientv3.OpGet(session.Key)}, // to distinguish the two causes
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("rewrite run %s of %s: %w", h.ID, h.Ref(), err)
	case res.Succeeded:
		return res.Revision, nil
	case !session.Holds(readAt(res, 0)):
		return 0, fmt.Errorf("rewrite run %s of %s: %w", h.ID, h.Ref(), task.ErrFenced)
	}

	return 0, fmt.Errorf("rewrite run %s of %s: %w", h.ID, h.Ref(), task.ErrConflict)
}

// Finish records the end of an attempt or, if next is not nil, queues the next attempt.
// A run that failed and has no next attempt is also put among the dead runs of its task,
// unless somebody ended it on purpose. Finish retries until the outcome is known or ctx
// ends.
//
// A nil error means that the end is recorded. ErrLate means that the attempt had been
// declared lost, which remains its outcome. task.ErrConflict is possible only with next:
// the record has changed, for example by a cancel, and the caller must read it again.
func (s Inbox) Finish(ctx context.Context, h record.Held, end task.Run, next *task.Waiting) error {
	var wait conflictBackoff

	for {
		err := s.finishOnce(ctx, h, end, next)
		if err == nil || errors.Is(err, ErrLate) || errors.Is(err, task.ErrConflict) {
			return err
		}
		if perr := wait.waitBackoff(ctx); perr != nil {
			return fmt.Errorf("finish run %s of %s: %w", h.ID, h.Ref(), errors.Join(perr, err))
		}
	}
}

// finishOnce sends one transaction of Finish. If its comparison fails, finishOnce reads
// where the run is, to distinguish a changed record, an earlier copy of this finish, and
// an attempt that was declared lost.
func (s Inbox) finishOnce(ctx context.Context, h record.Held, end task.Run, next *task.Waiting) error {
	ref := h.Ref()
	end.Token = h.Create // the token distinguishes this record from that of another attempt
	run, ended := s.keys.Run(h.Node, ref, h.ID), s.keys.Ended(ref, h.ID)

	// A final end compares only the create revision, which is the token: a cancel or a pause that
	// was requested meanwhile does not change that the attempt has ended. A retry compares the mod
	// revision, because a cancelled run must not be retried.
	t := kv.Txn{If: []clientv3.Cmp{kv.CreateIs(run, h.Create)}, ResolvedByCaller: true}
	if next != nil {
		queued := s.keys.Queued(ref, h.ID)
		t.If = append(t.If, isUnchanged(run, h.Mod), isAbsent(queued))
		t.Then = []clientv3.Op{clientv3.OpDelete(run), opPut(queued, record.EncodeWaiting(*next))}
	} else {
		t.Then = []clientv3.Op{clientv3.OpDelete(run), opPut(ended, record.EncodeEnded(end))}
		if record.NeedsDeadLetter(h, end) {
			t.Then = append(t.Then, opPut(s.keys.DeadRun(ref, h.ID), record.EncodeDead(h, end)))
		}
	}

	res, err := s.writeTxn(ctx, t)
	if err != nil || res.Succeeded {
		return err
	}

	// These reads are not in the transaction's Else branch, because they would double
	// the cost of every finish.
	found, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(run), clientv3.OpGet(s.keys.Queued(ref, h.ID)), clientv3.OpGet(ended)).Commit()
	if err != nil {
		return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}

	// The record is still there with the same token, so only the comparison of its mod revision
	// has failed.
	res = kv.Result{Revision: found.Header.Revision, Responses: found.Responses}
	if e := readAt(res, 0); e != nil && e.CreateRevision == h.Create {
		return fmt.Errorf("finish run %s of %s: %w", h.ID, ref, task.ErrConflict)
	}
	if known, err := s.onRecord(ctx, res, h, end); known || err != nil {
		return err
	}

	return s.recordLate(ctx, h, end)
}

// onRecord reports whether an earlier copy of a finish was applied. If so, a record of
// the run contains this token with this end, wherever the run is now. res contains the
// run's records in the queue and in the history.
//
// If no record of the run is left, its record has been trimmed or purged. Whether that
// record came from this finish or from a loss can no longer be determined, and a late
// result would have nothing to refer to. So onRecord reports true.
func (s Inbox) onRecord(ctx context.Context, res kv.Result, h record.Held, end task.Run) (bool, error) {
	ref := h.Ref()

	if e := readAt(res, 1); e != nil { // an attempt waits: queued by this finish, or after a loss
		w, err := record.DecodeWaiting(record.ShardKey{Kind: record.KindQueued, Ref: ref, Run: h.ID}, e.Value)
		return err == nil && recordedAs(w.Run, h, end.State), nil
	}

	if e := readAt(res, 2); e != nil {
		r, err := record.DecodeEnded(record.ShardKey{Kind: record.KindEnded, Ref: ref, Run: h.ID}, e.Value)
		return err == nil && (r.Token == h.Create && r.State == end.State || recordedAs(r, h, end.State)), nil
	}

	// The next attempt may be in the inbox of any node. Read at the same revision as the
	// records above, so that an attempt that moves between the reads is not missed.
	active, err := Runs(s).activeOf(ctx, ref, res.Revision)
	active = slices.DeleteFunc(active, func(a record.Held) bool { return a.ID != h.ID })
	if err == nil && len(active) == 0 && task.IsPart(h.ID) {
		return s.onRecordOfParent(ctx, h, end)
	}

	return err == nil && len(active) == 0 || slices.ContainsFunc(active, func(a record.Held) bool {
		return recordedAs(a.Run, h, end.State)
	}), err
}

// recordedAs reports whether a later record of the run contains the end of attempt h with this state.
func recordedAs(r task.Run, h record.Held, state task.State) bool {
	for _, a := range r.Attempts {
		if a.Token == h.Create {
			return a.State == state
		}
	}

	return countedAsUnsent(r, h)
}

// countedAsUnsent reports whether a later record of the run counts attempt h as unsent. Attempts that were not sent have no
// entry of their own, but only these: every other attempt is listed with its number, also a lost one.
func countedAsUnsent(r task.Run, h record.Held) bool {
	listed := slices.ContainsFunc(r.Attempts, func(a task.Attempt) bool { return a.Attempt == h.Attempt })
	return r.UnsentCount() > h.UnsentCount() && r.Attempt > h.Attempt && !listed
}

// recordLate stores a late result under a separate key, if the task still exists. It
// always returns an error: ErrLate, or the error of the write. The comparison that the
// key is absent fails without harm if an earlier copy has stored it.
func (s Inbox) recordLate(ctx context.Context, h record.Held, end task.Run) error {
	ref := h.Ref()
	late := s.keys.Late(ref, h.ID, h.Create)
	_, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{isAbsent(late), clientv3.Compare(clientv3.CreateRevision(s.keys.Entry(ref)), ">", 0)},
		Then: []clientv3.Op{opPut(late, record.EncodeEnded(end))},
	})
	if err != nil {
		return err
	}

	return fmt.Errorf("run %s of %s: %w", h.ID, ref, ErrLate)
}

// HandBack returns an attempt that was never started to the queue. It returns
// task.ErrConflict if the attempt's record has changed or if a cancel was requested.
func (s Inbox) HandBack(ctx context.Context, h record.Held) error {
	ref := h.Ref()

	if h.CancelRequested {
		return fmt.Errorf("hand back run %s of %s: %w: it is cancelled", h.ID, ref, task.ErrConflict)
	}

	run, queued := s.keys.Run(h.Node, ref, h.ID), s.keys.Queued(ref, h.ID)
	w := task.Waiting{Run: h.Unpaused(), Env: h.Env}
	// The run waits as if it had not been dispatched. Its next attempt gets another token.
	w.PausedMS = 0
	w.State, w.Reason = task.Queued, task.ReasonHandBack
	w.Node, w.Token, w.DispatchedAt, w.StartedAt = "", 0, task.Time{}, task.Time{}
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(run, h.Mod), isAbsent(queued)},
		Then: []clientv3.Op{clientv3.OpDelete(run), opPut(queued, record.EncodeWaiting(w))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("hand back run %s of %s: %w", h.ID, ref, err)
	}

	return nil
}

// clearedFor is the lifetime of the record that an instance is cleared. It is much
// longer than any node waits for the attempts of that instance.
const clearedFor = 48 * time.Hour

// PutCleared records that no process of a dead instance is left. Repeated calls are
// harmless. The record's lease expires after clearedFor.
func (s Inbox) PutCleared(ctx context.Context, instance string, at task.Time) error {
	key := s.keys.Cleared(instance)
	lease, err := s.etcd.Grant(ctx, int64(clearedFor/time.Second))
	if err != nil {
		return fmt.Errorf("record that instance %s is cleared: %w: %w", instance, task.ErrUnavailable, err)
	}

	res, err := s.writeAlone(ctx, kv.Txn{
		If:   []clientv3.Cmp{isAbsent(key)},
		Then: []clientv3.Op{clientv3.OpPut(key, record.Encode(record.Timestamp{At: at}), clientv3.WithLease(lease.ID))},
	})
	// The record may exist, so its lease must not be revoked. If it does not, the lease expires.
	if errors.Is(err, task.ErrUnknown) {
		return fmt.Errorf("record that instance %s is cleared: %w", instance, err)
	}

	if err != nil || !res.Succeeded { // the record was not written now, so the lease is not needed
		_, rerr := s.etcd.Revoke(ctx, lease.ID)
		err = errors.Join(err, rerr)
	}

	if err != nil {
		return fmt.Errorf("record that instance %s is cleared: %w", instance, err)
	}

	return nil
}

// Cleared reports whether PutCleared has recorded that no process of the instance is
// left.
func (s Inbox) Cleared(ctx context.Context, instance string) (bool, error) {
	e, err := s.getOne(ctx, s.keys.Cleared(instance))
	return e != nil, err
}

// onRecordOfParent is onRecord for a part whose own record is gone. The history record of
// its parent says how the part's last attempt ended. It says nothing about earlier
// attempts of the part; for these, onRecordOfParent reports true.
func (s Inbox) onRecordOfParent(ctx context.Context, h record.Held, end task.Run) (bool, error) {
	ref := h.Ref()
	parent, index, _ := task.ParentOf(h.ID)

	e, err := s.getOne(ctx, s.keys.Ended(ref, parent))
	if e == nil || err != nil {
		return err == nil, err
	}

	r, err := record.DecodeEnded(record.ShardKey{Kind: record.KindEnded, Ref: ref, Run: parent}, e.Value)
	if err != nil || r.Fan == nil {
		return true, nil
	}

	return !slices.ContainsFunc(r.Fan.Parts, func(p task.Part) bool {
		return p.Index == index && p.Token == h.Create && p.State != end.State
	}), nil
}

// Inbox lists the attempts of one node. It omits records that cannot be read.
func (s Inbox) Inbox(ctx context.Context, node string) ([]record.Held, error) {
	all, _, err := s.getAll(ctx, s.keys.Inbox(node))
	return record.DecodeAllHeld(s.keys, all), err
}
