package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ActiveOf lists the attempts of one task on all nodes.
func (s Runs) ActiveOf(ctx context.Context, ref record.Ref) ([]record.Held, error) {
	return s.activeOf(ctx, ref, 0)
}

// activeOf lists a task's attempts at one revision; 0 means the latest. It reads the part of each inbox that belongs to the
// task, so its cost depends on the number of nodes and not on the number of active runs.
func (s Runs) activeOf(ctx context.Context, ref record.Ref, rev int64) ([]record.Held, error) {
	var list []record.Held
	read := func(node string, rev int64) clientv3.Op { return opBelow(s.keys.InboxOf(node, ref), rev) }

	err := s.eachInbox(ctx, rev, read, func(kvs []*mvccpb.KeyValue) { list = append(list, record.DecodeAllHeld(s.keys, kvs)...) })
	if err != nil {
		return nil, fmt.Errorf("find attempts of %s: %w", ref, err)
	}

	return list, nil
}

// eachInbox executes a read for each inbox that may contain attempts at a revision, and calls f for each answer; 0 means
// the latest revision. read returns the read of a node's inbox at the revision.
//
// Those are the inboxes of the nodes that are present, and those of absent nodes whose attempts are not declared lost
// yet. No list of the latter exists.
func (s Runs) eachInbox(ctx context.Context, rev int64, read func(node string, rev int64) clientv3.Op, f func([]*mvccpb.KeyValue)) error {
	present, rev, err := s.getAllAt(ctx, s.keys.Nodes(), rev, clientv3.WithKeysOnly())
	if err != nil {
		return err
	}

	known := make([]directory, len(present))
	for i, e := range present {
		known[i] = directory{s.keys.Runs(), strings.TrimPrefix(string(e.Key), s.keys.Nodes())}
	}

	reads := func(inbox directory) []clientv3.Op { return []clientv3.Op{read(inbox.name, rev)} }

	return s.eachDirectory(ctx, []string{s.keys.Runs()}, known, rev, reads, func(_ directory, _ int, r *etcdserverpb.RangeResponse) { f(r.Kvs) })
}

// fewRanges is how many ranges ActiveKeysOf reads rather than an inbox as a whole: two requests.
const fewRanges = 200

// ActiveKeysOf lists the keys of the attempts of some tasks on all nodes, at one revision, in no particular order. It
// reads each inbox for each task, or as a whole if that is less, so its cost depends on the numbers of nodes and tasks and
// not on the number of active runs.
//
// A whole inbox costs more than its keys: etcd also visits those that were deleted since the last compaction. On a node
// with a hundred runs a second, these are tens of thousands, and 40 ms.
//
// The inbox of a node that does not execute tasks is usually empty. It is not read by itself: eachDirectory finds it if
// there are attempts from the time when the node had the role.
func (s Runs) ActiveKeysOf(ctx context.Context, refs []record.Ref) ([]record.RunKey, error) {
	present, rev, err := s.getAll(ctx, s.keys.Nodes())
	if err != nil {
		return nil, fmt.Errorf("find active runs: %w", err)
	}

	var known []directory
	running := map[string]int{} // how many attempts a node had when it last announced itself
	for _, e := range present {
		n, err := record.DecodeNode(s.keys, e)
		if err == nil && n.Running == 0 && !n.Has(task.RoleExecutor) {
			continue
		}

		inbox := directory{s.keys.Runs(), strings.TrimPrefix(string(e.Key), s.keys.Nodes())}
		known = append(known, inbox)
		if err == nil {
			running[inbox.name] = n.Running
		}
	}

	wanted := make(map[record.Ref]bool, len(refs))
	for _, ref := range refs {
		wanted[ref] = true
	}

	var list []record.RunKey
	collect := func(kvs []*mvccpb.KeyValue) {
		for _, e := range kvs {
			if k, ok := s.keys.ParseRun(string(e.Key)); ok && wanted[k.Ref] {
				list = append(list, k)
			}
		}
	}

	partsOf := func(inbox directory) []clientv3.Op {
		parts := make([]clientv3.Op, len(refs))
		for i, ref := range refs {
			parts[i] = opBelow(s.keys.InboxOf(inbox.name, ref), rev, clientv3.WithKeysOnly())
		}
		return parts
	}

	few := len(known)*len(refs) <= fewRanges
	readsOf := func(inbox directory) []clientv3.Op {
		n, isKnown := running[inbox.name]
		if few || !isKnown || n+1 >= len(refs) {
			return partsOf(inbox)
		}
		return []clientv3.Op{opBelow(s.keys.Inbox(inbox.name), rev, clientv3.WithKeysOnly(), clientv3.WithLimit(int64(2*len(refs))))}
	}

	// An inbox may have become larger since its node announced its size. Only the read of a whole inbox has a limit.
	var larger []clientv3.Op
	err = s.eachDirectory(ctx, []string{s.keys.Runs()}, known, rev, readsOf, func(inbox directory, _ int, r *etcdserverpb.RangeResponse) {
		if r.More {
			larger = append(larger, partsOf(inbox)...)
		} else {
			collect(r.Kvs)
		}
	})
	if err == nil {
		err = s.eachResponse(ctx, larger, func(_ int, r *etcdserverpb.RangeResponse) { collect(r.Kvs) })
	}
	if err != nil {
		return nil, fmt.Errorf("find active runs: %w", err)
	}

	return list, nil
}

// opBelow returns the read of all keys with a prefix at a revision.
func opBelow(prefix string, rev int64, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(prefix, append(opts, withPrefix(prefix), clientv3.WithRev(rev))...)
}

// eachResponse executes reads, many in a transaction, and calls f for each answer in order.
func (s *conn) eachResponse(ctx context.Context, reads []clientv3.Op, f func(i int, r *etcdserverpb.RangeResponse)) error {
	i := 0
	for chunk := range slices.Chunk(reads, 100) {
		res, err := s.etcd.Txn(ctx).Then(chunk...).Commit()
		if err != nil {
			return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		}

		for _, r := range res.Responses {
			f(i, r.GetResponseRange())
			i++
		}
	}

	return nil
}

// PauseActive requests that the node of an attempt pauses it, or does not start it. If a pause
// was requested before, it changes nothing. It returns task.ErrConflict if the record has
// changed since h was read.
func (s Runs) PauseActive(ctx context.Context, h record.Held, who *task.Actor) (task.Run, error) {
	if h.PauseRequested {
		return h.Run, nil
	}
	h.PauseRequested, h.PausedBy, h.ResumedBy, h.Message = true, who, nil, ""
	return s.askNode(ctx, h, "pause")
}

// ResumeActive requests that the node of an attempt resumes it. If no pause is requested, it
// changes nothing. It returns task.ErrConflict if the record has changed since h was read.
func (s Runs) ResumeActive(ctx context.Context, h record.Held, who *task.Actor) (task.Run, error) {
	if !h.PauseRequested {
		return h.Run, nil
	}

	h.PauseRequested, h.ResumedBy = false, who
	// The node has not paused the attempt yet, so the pause is withdrawn.
	if h.State != task.Paused {
		h.PausedBy = nil
	}

	return s.askNode(ctx, h, "resume")
}

// askNode replaces the record of an attempt by h, which contains a new request. what names the
// request in errors.
func (s Runs) askNode(ctx context.Context, h record.Held, what string) (task.Run, error) {
	key := s.keys.Run(h.Node, h.Ref(), h.ID)
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(key, h.Mod)},
		Then: []clientv3.Op{opPut(key, record.EncodeAssigned(&h.Assigned, record.Encode(h.Action)))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return task.Run{}, fmt.Errorf("%s run %s of %s: %w", what, h.ID, h.Ref(), err)
	}

	return h.Run, nil
}
