package store

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Owners reads and writes the owner of each shard (owners/) and the handovers (moves/),
// which name a node that loads a shard before it becomes the owner.
//
// Only the leader assigns shards. Each of its writes compares the leader key of its term,
// and the owner keys and handovers that it replaces, so a former leader cannot write.
type Owners struct{ *conn }

// keepPrevious is the number of former owners that an owner record contains at most.
const keepPrevious = 5

// Owners lists the owners of all shards.
func (s Owners) Owners(ctx context.Context) ([]record.Owner, error) {
	all, _, err := s.getAll(ctx, s.keys.Owners())
	if err != nil {
		return nil, fmt.Errorf("list owners: %w", err)
	}
	return record.DecodeOwners(s.keys, all), nil
}

// Fleet reads nodes/ and owners/ at one revision.
func (s Owners) Fleet(ctx context.Context) ([]task.Node, []record.Owner, error) {
	nodes, owners := s.keys.Nodes(), s.keys.Owners()
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(nodes, withPrefix(nodes)), clientv3.OpGet(owners, withPrefix(owners))).Commit()
	if err != nil {
		return nil, nil, fmt.Errorf("read nodes and owners: %w: %w", task.ErrUnavailable, err)
	}

	return record.DecodeNodes(s.keys, res.Responses[0].GetResponseRange().Kvs), record.DecodeOwners(s.keys, res.Responses[1].GetResponseRange().Kvs), nil
}

// Move assigns a shard to another owner.
type Move struct {
	From record.Owner // as it was read; Fence 0 if the shard never had an owner
	To   string
	// Handover is the mod revision of the shard's handover, which the move deletes, or 0
	// if there is none.
	Handover int64
}

// Assign writes the owners of shards, several in each transaction. Each transaction
// compares the leader's term, and the owner keys and handovers as they were read. Assign
// returns task.ErrFenced if the term is over and task.ErrConflict if a compared key has
// changed. In both cases, earlier transactions of the list remain written.
func (s Owners) Assign(ctx context.Context, term kv.Fence, moves []Move, now task.Time) error {
	return inChunks(moves, func(chunk []Move) error {
		var t kv.Txn
		for _, m := range chunk {
			key := s.keys.Owner(m.From.Shard)
			// The new mod revision of this key is the fence of the next owner. It also ends the fence
			// of the former owner, whether that has received the change or not (G1).
			o := record.Owner{Node: m.To, Since: now, Term: term.CreateRevision}
			if m.From.Node != "" {
				o.Previous = append([]task.Assignment{{Node: m.From.Node, Since: m.From.Since}}, m.From.Previous...)
				o.Previous = o.Previous[:min(len(o.Previous), keepPrevious)]
			}

			t.If = append(t.If, isUnchanged(key, m.From.Fence))
			t.Then = append(t.Then, clientv3.OpPut(key, o.EncodeOver(m.From)))
			// The handover ends together with the move. If it has changed, for example because the
			// next owner answered, the leader has to plan again.
			if m.Handover != 0 {
				ahead := s.keys.Handover(m.From.Shard)
				t.If = append(t.If, isUnchanged(ahead, m.Handover))
				t.Then = append(t.Then, clientv3.OpDelete(ahead))
			}
		}

		if _, err := s.commitAsLeader(ctx, term, t); err != nil {
			return fmt.Errorf("assign shards (%d): %w", len(chunk), err)
		}

		return nil
	})
}

// inChunks calls do with successive parts of a list until it returns an error. A part
// has 60 elements at most, so that a transaction has room for two operations for each.
func inChunks[T any](list []T, do func([]T) error) error {
	for chunk := range slices.Chunk(list, 60) {
		if err := do(chunk); err != nil {
			return err
		}
	}

	return nil
}

// OwnerFence returns the fence under which o's node may write to the shard. It ends with
// any change of the owner key.
func (s Owners) OwnerFence(o record.Owner) kv.Fence {
	return kv.ModFence(s.keys.Owner(o.Shard), o.Fence)
}

// Lineup is the state from which a leader plans assignments, read at one revision.
type Lineup struct {
	Nodes     []task.Node
	Owners    []record.Owner
	Handovers []record.Handover
}

// Lineup reads nodes/, owners/ and moves/ at one revision.
func (s Owners) Lineup(ctx context.Context) (l Lineup, err error) {
	var ops []clientv3.Op
	for _, prefix := range []string{s.keys.Nodes(), s.keys.Owners(), s.keys.Handovers()} {
		ops = append(ops, clientv3.OpGet(prefix, withPrefix(prefix)))
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return l, fmt.Errorf("read nodes, owners and moves: %w: %w", task.ErrUnavailable, err)
	}

	at := func(i int) []*mvccpb.KeyValue { return res.Responses[i].GetResponseRange().Kvs }

	return Lineup{record.DecodeNodes(s.keys, at(0)), record.DecodeOwners(s.keys, at(1)), record.DecodeHandovers(s.keys, at(2))}, nil
}

// Prepare creates handovers, or replaces those with the mod revision in Revision, several
// in each transaction and under the leader's term. It returns the errors of Assign.
func (s Owners) Prepare(ctx context.Context, term kv.Fence, list []record.Handover, now task.Time) error {
	return inChunks(list, func(chunk []record.Handover) error {
		var t kv.Txn
		for _, h := range chunk {
			key := s.keys.Handover(h.Shard)
			t.If = append(t.If, isUnchanged(key, h.Revision))
			// The record has no answer yet, also if it replaces one that had.
			t.Then = append(t.Then, clientv3.OpPut(key, record.Encode(record.Handover{To: h.To, Since: now})))
		}

		if _, err := s.commitAsLeader(ctx, term, t); err != nil {
			return fmt.Errorf("prepare shards (%d): %w", len(chunk), err)
		}

		return nil
	})
}

// Withdraw deletes handovers that are unchanged since they were read, several in each
// transaction and under the leader's term. It returns the errors of Assign.
func (s Owners) Withdraw(ctx context.Context, term kv.Fence, list []record.Handover) error {
	return inChunks(list, func(chunk []record.Handover) error {
		var t kv.Txn
		for _, h := range chunk {
			key := s.keys.Handover(h.Shard)
			t.If = append(t.If, isUnchanged(key, h.Revision))
			t.Then = append(t.Then, clientv3.OpDelete(key))
		}

		if _, err := s.commitAsLeader(ctx, term, t); err != nil {
			return fmt.Errorf("withdraw shards (%d): %w", len(chunk), err)
		}

		return nil
	})
}

// TellReady records in the handover h that its node has loaded the shard. session is the
// current session of that node: the leader accepts the answer only while it lasts. It returns
// task.ErrConflict if the handover has changed or the session has ended.
func (s Owners) TellReady(ctx context.Context, session kv.Fence, h record.Handover) error {
	key := s.keys.Handover(h.Shard)
	ready := record.Handover{To: h.To, Since: h.Since, Ready: session.CreateRevision}
	res, err := s.writeAlone(ctx, kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(key, h.Revision), session.Compare()},
		Then: []clientv3.Op{clientv3.OpPut(key, record.Encode(ready))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("report that shard %d is loaded: %w", h.Shard, err)
	}

	return nil
}
