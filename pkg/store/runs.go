package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// Runs are the runs of a task, the newest first: waiting, active and ended, as
// they were at one revision. Results that came too late are left out.
func (s *Store) Runs(ctx context.Context, ref Ref) ([]task.Run, error) {
	queue, history := s.keys.QueueOf(ref), s.keys.HistoryOf(ref)
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(queue, below(queue)), clientv3.OpGet(history, below(history))).Commit()
	if err != nil {
		return nil, fmt.Errorf("list runs of %s: %w: %w", ref, task.ErrUnavailable, err)
	}
	byID := map[string]task.Run{}
	for _, r := range res.Responses {
		for _, e := range r.GetResponseRange().Kvs {
			if run, ok := s.recorded(e); ok {
				byID[run.ID] = run
			}
		}
	}
	active, err := s.activeOf(ctx, ref, res.Header.Revision)
	if err != nil {
		return nil, err
	}
	for _, h := range active {
		byID[h.ID] = h.Run
	}
	return sortRuns(byID), nil
}

// recorded decodes a record of queue or history.
func (s *Store) recorded(e *mvccpb.KeyValue) (task.Run, bool) {
	k, ok := s.keys.ParseShard(string(e.Key))
	if !ok || k.Late {
		return task.Run{}, false
	}
	switch k.Kind {
	case KindQueued:
		w, err := DecodeWaiting(k, e.Value)
		return w.Run, err == nil
	case KindEnded, KindPart:
		r, err := DecodeEnded(k, e.Value)
		return r, err == nil
	}
	return task.Run{}, false
}

// ByTime orders runs with the newest first.
func ByTime(a, b task.Run) int {
	return cmp.Or(b.ScheduledTime.Compare(a.ScheduledTime.Time), strings.Compare(b.ID, a.ID))
}

func sortRuns(byID map[string]task.Run) []task.Run {
	runs := make([]task.Run, 0, len(byID))
	for _, r := range byID {
		runs = append(runs, r)
	}
	slices.SortFunc(runs, ByTime)
	return runs
}

// ShardRuns are the waiting and ended runs of several shards, of one namespace
// or of all (""), at most limit per shard and kind, the newest records of each
// task's key order last. Active ones are Active's.
func (s *Store) ShardRuns(ctx context.Context, shards []int, namespace string) ([]task.Run, error) {
	byID := map[string]task.Run{}
	for chunk := range slices.Chunk(shards, 50) {
		var ops []clientv3.Op
		for _, id := range chunk {
			for _, prefix := range []string{s.keys.Queue(id), s.keys.History(id)} {
				if namespace != "" {
					prefix += namespace + "/"
				}
				ops = append(ops, clientv3.OpGet(prefix, below(prefix)))
			}
		}
		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("list runs: %w: %w", task.ErrUnavailable, err)
		}
		for _, r := range res.Responses {
			for _, e := range r.GetResponseRange().Kvs {
				if run, ok := s.recorded(e); ok {
					byID[run.Namespace+"/"+run.Task+"/"+run.ID] = run
				}
			}
		}
	}
	return sortRuns(byID), nil
}

// lastEnded is a task's newest record of history that counts; nil if there is none.
func (s *Store) lastEnded(ctx context.Context, ref Ref) (*task.Run, error) {
	all, _, err := s.getAll(ctx, s.keys.HistoryOf(ref))
	return s.newest(all), err
}

// newest is the last of the records that counts; nil if none does.
func (s *Store) newest(all []*mvccpb.KeyValue) *task.Run {
	for _, e := range slices.Backward(all) {
		if run, ok := s.recorded(e); ok {
			return &run
		}
	}
	return nil
}

// Held is an attempt in an inbox, with what a write that changes it compares.
type Held struct {
	task.Assigned
	Mod    int64 // mod revision
	Create int64 // create revision: the fencing token
}

// Ref is where the attempt's task lives.
func (h Held) Ref() Ref { return Ref{Namespace: h.Namespace, Name: h.Task, Shard: h.Shard} }

func (s *Store) held(e *mvccpb.KeyValue) (h Held, err error) {
	err = s.readHeld(string(e.Key), e, &h)
	return h, err
}

// readHeld is held for one who has the key as a string, and a place for it.
func (s *Store) readHeld(key string, e *mvccpb.KeyValue, h *Held) error {
	k, ok := s.keys.ParseRun(key)
	if !ok {
		return fmt.Errorf("%w: %q is not the key of a run", task.ErrInvalid, key)
	}
	h.Mod, h.Create = e.ModRevision, e.CreateRevision
	return decodeHeld(k, e.CreateRevision, e.Value, &h.Assigned)
}

// Active lists all attempts in all inboxes; those that cannot be read are left out.
func (s *Store) Active(ctx context.Context) ([]Held, error) {
	all, _, err := s.getAll(ctx, s.keys.Runs())
	return s.heldOf(all), err
}

// Inbox lists the attempts of one node; those that cannot be read are left out.
func (s *Store) Inbox(ctx context.Context, node string) ([]Held, error) {
	all, _, err := s.getAll(ctx, s.keys.Inbox(node))
	return s.heldOf(all), err
}

func (s *Store) heldOf(all []*mvccpb.KeyValue) []Held {
	var list []Held
	for _, e := range all {
		if h, err := s.held(e); err == nil {
			list = append(list, h)
		}
	}
	return list
}

// ActiveOf lists the attempts of one task, on whatever node.
func (s *Store) ActiveOf(ctx context.Context, ref Ref) ([]Held, error) {
	return s.activeOf(ctx, ref, 0)
}

// activeOf lists a task's attempts as they were at a revision (0: now). It steps
// from inbox to inbox, so that its cost follows the number of nodes and not
// that of active runs.
func (s *Store) activeOf(ctx context.Context, ref Ref, rev int64) ([]Held, error) {
	var list []Held
	end := clientv3.GetPrefixRangeEnd(s.keys.Runs())
	for from := s.keys.Runs(); ; {
		res, err := s.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly(), clientv3.WithRev(rev))
		if err != nil {
			return nil, fmt.Errorf("find attempts of %s: %w", ref, err)
		}
		if len(res.Kvs) == 0 {
			return list, nil
		}
		node, _, _ := strings.Cut(strings.TrimPrefix(string(res.Kvs[0].Key), s.keys.Runs()), "/")
		part, _, err := s.getAllAt(ctx, s.keys.InboxOf(node, ref), rev)
		if err != nil {
			return nil, fmt.Errorf("find attempts of %s: %w", ref, err)
		}
		list = append(list, s.heldOf(part)...)
		from = clientv3.GetPrefixRangeEnd(s.keys.Inbox(node))
	}
}

// CancelQueued ends a waiting run as cancelled. task.ErrNotFound if it does not
// wait, task.ErrConflict if it is taken just now.
func (s *Store) CancelQueued(ctx context.Context, ref Ref, id string, who string, now time.Time) (task.Run, error) {
	key := s.keys.Queued(ref, id)
	e, err := s.getOne(ctx, key)
	if err != nil {
		return task.Run{}, err
	}
	if e == nil {
		return task.Run{}, fmt.Errorf("waiting run %s of %s: %w", id, ref, task.ErrNotFound)
	}
	w, err := DecodeWaiting(ShardKey{Kind: KindQueued, Ref: ref, Run: id}, e.Value)
	if err != nil {
		return task.Run{}, err
	}
	if w.UnderWay() {
		return s.cancelParent(ctx, ref, w, e.ModRevision, who)
	}
	end := w.Run
	end.State, end.Reason, end.CancelledBy, end.EndedAt = task.Cancelled, task.ReasonCancelled, who, task.At(now)
	res, err := s.write(ctx, kv.Txn{
		If:   []clientv3.Cmp{unchanged(key, e.ModRevision)},
		Then: []clientv3.Op{clientv3.OpDelete(key), opPut(s.keys.Ended(ref, id), encodeEnded(end))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}
	if err != nil {
		return task.Run{}, fmt.Errorf("cancel run %s of %s: %w", id, ref, err)
	}
	return end, nil
}

// CancelActive asks the attempt's node to end it. task.ErrConflict if the
// record is no longer what was read.
func (s *Store) CancelActive(ctx context.Context, h Held, who string) (task.Run, error) {
	if h.CancelRequested {
		return h.Run, nil
	}
	h.CancelRequested, h.CancelledBy = true, who
	return s.askNode(ctx, h, "cancel")
}

// FindRuns finds runs by the beginning of their id, in one namespace, whatever
// their task: waiting, active and ended, as they were at one revision; no parts of
// them. It reads keys only, of every shard.
func (s *Store) FindRuns(ctx context.Context, shards int, namespace, idPrefix string, most int) ([]Ref, []string, error) {
	var refs []Ref
	var ids []string
	add := func(ref Ref, id string) {
		if ref.Namespace == namespace && strings.HasPrefix(id, idPrefix) && len(ids) < most && !task.IsPart(id) {
			for i := range ids {
				if ids[i] == id && refs[i] == ref {
					return
				}
			}
			refs, ids = append(refs, ref), append(ids, id)
		}
	}
	all, rev, err := s.getAll(ctx, s.keys.Runs(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, nil, fmt.Errorf("find run: %w", err)
	}
	for _, e := range all {
		if k, ok := s.keys.ParseRun(string(e.Key)); ok {
			add(k.Ref, k.Run)
		}
	}
	for id := range shards {
		for _, prefix := range []string{s.keys.Queue(id), s.keys.History(id)} {
			all, _, err := s.getAllAt(ctx, prefix+namespace+"/", rev, clientv3.WithKeysOnly()) // a run that moves meanwhile is in one place
			if err != nil {
				return nil, nil, fmt.Errorf("find run: %w", err)
			}
			for _, e := range all {
				if k, ok := s.keys.ParseShard(string(e.Key)); ok && !k.Late {
					add(k.Ref, k.Run)
				}
			}
		}
	}
	return refs, ids, nil
}
