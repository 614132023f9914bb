package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// inbox is an inbox that may contain attempts.
type inbox struct {
	node    string
	running int // how many attempts it had when its node last announced itself; -1: not known
}

// ActiveOf lists the attempts of one task on all nodes.
func (s Runs) ActiveOf(ctx context.Context, ref record.Ref) ([]record.Held, error) {
	return s.activeOf(ctx, ref, 0)
}

// activeOf lists a task's attempts at one revision; 0 means the latest. It reads the part of each inbox that belongs to the
// task, so its cost depends on the number of nodes and not on the number of active runs.
func (s Runs) activeOf(ctx context.Context, ref record.Ref, rev int64) ([]record.Held, error) {
	inboxes, rev, err := s.inboxes(ctx, rev, clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("find attempts of %s: %w", ref, err)
	}

	var list []record.Held
	var ops []clientv3.Op
	for _, in := range inboxes {
		ops = append(ops, opBelow(s.keys.InboxOf(in.node, ref), rev))
	}

	err = s.eachRange(ctx, ops, func(_ int, kvs []*mvccpb.KeyValue, _ bool) { list = append(list, record.DecodeAllHeld(s.keys, kvs)...) })
	if err != nil {
		return nil, fmt.Errorf("find attempts of %s: %w", ref, err)
	}

	return list, nil
}

// fewRanges is how many ranges ActiveKeysOf reads rather than an inbox as a whole: two requests.
const fewRanges = 200

// ActiveKeysOf lists the keys of the attempts of some tasks on all nodes, at one revision, in no particular order. It
// reads each inbox for each task, or as a whole if that is less, so its cost depends on the numbers of nodes and tasks and
// not on the number of active runs.
//
// A whole inbox costs more than its keys: etcd also visits those that were deleted since the last compaction. On a node
// with a hundred runs a second, these are tens of thousands, and 40 ms.
func (s Runs) ActiveKeysOf(ctx context.Context, refs []record.Ref) ([]record.RunKey, error) {
	inboxes, rev, err := s.inboxes(ctx, 0)
	if err != nil {
		return nil, fmt.Errorf("find active runs: %w", err)
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

	var whole, parts []clientv3.Op
	var small []inbox
	addParts := func(in inbox) {
		for _, ref := range refs {
			parts = append(parts, opBelow(s.keys.InboxOf(in.node, ref), rev, clientv3.WithKeysOnly()))
		}
	}

	few := len(inboxes)*len(refs) <= fewRanges
	for _, in := range inboxes {
		if !few && in.running >= 0 && in.running+1 < len(refs) {
			small = append(small, in)
			whole = append(whole, opBelow(s.keys.Inbox(in.node), rev, clientv3.WithKeysOnly(), clientv3.WithLimit(int64(2*len(refs)))))
		} else {
			addParts(in)
		}
	}

	// An inbox may have become larger since its node announced its size.
	err = s.eachRange(ctx, whole, func(i int, kvs []*mvccpb.KeyValue, more bool) {
		if more {
			addParts(small[i])
		} else {
			collect(kvs)
		}
	})
	if err == nil {
		err = s.eachRange(ctx, parts, func(_ int, kvs []*mvccpb.KeyValue, _ bool) { collect(kvs) })
	}
	if err != nil {
		return nil, fmt.Errorf("find active runs: %w", err)
	}

	return list, nil
}

// inboxes returns the inboxes that may contain attempts at a revision, and that revision; 0 means the latest. opts apply
// to the reading of the nodes: with keys only, no sizes are known.
//
// Those are the inboxes of the nodes that are present, and those of absent nodes whose attempts are not declared lost
// yet. No list of the latter exists. They are found in the gaps between the former, which are usually empty. A search
// from one inbox to the next would not do: for each range, etcd counts all keys up to its end.
func (s Runs) inboxes(ctx context.Context, rev int64, opts ...clientv3.OpOption) ([]inbox, int64, error) {
	present, rev, err := s.getAllAt(ctx, s.keys.Nodes(), rev, opts...)
	if err != nil {
		return nil, 0, err
	}

	list := make([]inbox, len(present))
	for i, e := range present {
		list[i] = inbox{strings.TrimPrefix(string(e.Key), s.keys.Nodes()), -1}
		if n, err := record.DecodeNode(s.keys, e); err == nil {
			list[i].running = n.Running
		}
	}

	// The order of the inboxes is that of their keys: "a-b/" comes before "a/".
	slices.SortFunc(list, func(a, b inbox) int { return strings.Compare(s.keys.Inbox(a.node), s.keys.Inbox(b.node)) })

	type gap struct{ from, end string }
	var gaps []gap
	from := s.keys.Runs()
	for _, in := range list {
		key := s.keys.Inbox(in.node)
		gaps = append(gaps, gap{from, key})
		from = clientv3.GetPrefixRangeEnd(key)
	}
	gaps = append(gaps, gap{from, clientv3.GetPrefixRangeEnd(s.keys.Runs())})

	for len(gaps) > 0 {
		gaps = slices.DeleteFunc(gaps, func(g gap) bool { return g.from >= g.end })
		var ops []clientv3.Op
		for _, g := range gaps {
			ops = append(ops, clientv3.OpGet(g.from, clientv3.WithRange(g.end), clientv3.WithRev(rev), clientv3.WithKeysOnly(), clientv3.WithLimit(1)))
		}

		var rest []gap
		err := s.eachRange(ctx, ops, func(i int, kvs []*mvccpb.KeyValue, _ bool) {
			if len(kvs) == 0 {
				return
			}

			// This is the first key of an inbox of an absent node. Others may follow it.
			node, _, _ := strings.Cut(strings.TrimPrefix(string(kvs[0].Key), s.keys.Runs()), "/")
			list = append(list, inbox{node, -1})
			rest = append(rest, gap{clientv3.GetPrefixRangeEnd(s.keys.Inbox(node)), gaps[i].end})
		})
		if err != nil {
			return nil, 0, err
		}

		gaps = rest
	}

	return list, rev, nil
}

// opBelow returns the read of all keys with a prefix at a revision.
func opBelow(prefix string, rev int64, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(prefix, append(opts, withPrefix(prefix), clientv3.WithRev(rev))...)
}

// eachRange executes reads, many in a transaction, and calls f for each of them in order. more reports that the limit of
// the read has cut its keys.
func (s *conn) eachRange(ctx context.Context, reads []clientv3.Op, f func(i int, kvs []*mvccpb.KeyValue, more bool)) error {
	return s.eachResponse(ctx, reads, func(i int, r *etcdserverpb.RangeResponse) { f(i, r.Kvs, r.More) })
}

// eachResponse is eachRange for callers that also need the number of keys in the range.
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
