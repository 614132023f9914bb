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

		if err := s.commitAsLeader(ctx, term, t); err != nil {
			return fmt.Errorf("prepare %d shards: %w", len(chunk), err)
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

		if err := s.commitAsLeader(ctx, term, t); err != nil {
			return fmt.Errorf("withdraw %d shards: %w", len(chunk), err)
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
