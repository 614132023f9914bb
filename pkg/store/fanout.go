package store

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// BuryParent puts a run whose parts have failed among the dead of its task, as that
// which repeats these parts would begin.
func (c *Commit) BuryParent(ref Ref, end task.Run, env map[string]string) {
	end.Fan = end.Fan.Again()
	c.put(c.keys.DeadRun(ref, end.ID), encodeWaiting(task.Waiting{Run: end, Env: env}))
}

// GuardQueued demands that a waiting run's record is the one known.
func (c *Commit) GuardQueued(ref Ref, id string, mod int64) { c.knownAt(c.keys.Queued(ref, id), mod) }

// EndPart ends a part that is in no inbox and does not wait: it has never been given
// out, or nobody knows where it is. No record may tell of it.
func (c *Commit) EndPart(ref Ref, end task.Run) {
	c.knownAt(c.keys.Queued(ref, end.ID), 0)
	key := c.keys.Ended(ref, end.ID)
	c.knownAt(key, 0)
	c.put(key, encodeEnded(end))
}

// onRecordOfParent is onRecord for a part of which there is no record any more: that of
// its run says how its last attempt ended. Of the former ones nobody can tell.
func (s *Store) onRecordOfParent(ctx context.Context, h Held, end task.Run) (bool, error) {
	ref := h.Ref()
	parent, index, _ := task.ParentOf(h.ID)
	e, err := s.getOne(ctx, s.keys.Ended(ref, parent))
	if e == nil || err != nil {
		return err == nil, err
	}
	r, err := DecodeEnded(ShardKey{Kind: KindEnded, Ref: ref, Run: parent}, e.Value)
	if err != nil || r.Fan == nil {
		return true, nil
	}
	return !slices.ContainsFunc(r.Fan.Parts, func(p task.Part) bool {
		return p.Index == index && p.Token == h.Create && p.State != end.State
	}), nil
}

// cancelParent asks for the end of a run that has parts: whoever owns its shard has
// them end. task.ErrConflict if its record is no longer what was read.
func (s *Store) cancelParent(ctx context.Context, ref Ref, w task.Waiting, mod int64, who string) (task.Run, error) {
	if w.Fan.Cancel != "" {
		return w.Run, nil
	}
	fan := *w.Fan
	fan.Cancel, w.Fan, w.CancelledBy = task.ReasonCancelled, &fan, who
	key := s.keys.Queued(ref, w.ID)
	res, err := s.write(ctx, kv.Txn{
		If:   []clientv3.Cmp{unchanged(key, mod)},
		Then: []clientv3.Op{opPut(key, encodeWaiting(w))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}
	if err != nil {
		return task.Run{}, fmt.Errorf("cancel run %s of %s: %w", w.ID, ref, err)
	}
	return w.Run, nil
}

// parentStep is what a new version of the record of a run with parts tells; false:
// nothing but of parts.
func parentStep(c *change, now task.Waiting) (action string, ok bool) {
	var before task.Waiting
	if c.before != nil {
		before, _ = decodeWaiting(c.before.Value)
	}
	switch {
	case !before.UnderWay():
		return task.ActionStarted, true
	case before.Fan.Cancel == "" && now.Fan.Cancel != "":
		return task.ActionCancelling, true
	}
	return "", false
}

// PartsOf are the parts of a run that is under way, as far as they are on record:
// those that have ended, wait to be tried again, or are in inboxes. They are read one
// after another: of a part that moves meanwhile the later record counts.
func (s *Store) PartsOf(ctx context.Context, ref Ref, parent string) (map[int]task.Run, error) {
	parts := map[int]task.Run{}
	add := func(r task.Run) {
		if of, i, is := task.ParentOf(r.ID); is && of == parent {
			parts[i] = r
		}
	}
	active, err := s.ActiveOf(ctx, ref)
	if err != nil {
		return nil, err
	}
	for _, h := range active {
		add(h.Run)
	}
	for _, prefix := range []string{s.keys.QueueOf(ref), s.keys.Parts(ref)} {
		all, _, err := s.getAll(ctx, prefix+parent+"-")
		if err != nil {
			return nil, fmt.Errorf("read the parts of run %s of %s: %w", parent, ref, err)
		}
		for _, e := range all {
			if run, ok := s.recorded(e); ok {
				add(run)
			}
		}
	}
	return parts, nil
}
