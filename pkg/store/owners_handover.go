package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handover names the node that is to load a shard before it owns it. The leader
// writes it, the node answers in it, and it goes with the move.
type Handover struct {
	To    string    `json:"to"`
	Since task.Time `json:"since"` // by the leader's clock; for display
	// Ready is the session of To, as the create revision of its node key, under
	// which it has said that it has loaded the shard; 0: not yet. Of another
	// session it says nothing: what that had loaded is gone, maybe.
	Ready int64 `json:"ready,omitempty"`

	Shard    int   `json:"-"`
	Revision int64 `json:"-"` // mod revision of the key; 0: it is not there
}

// DecodeHandovers reads a snapshot of moves/. A record that cannot be read names
// nobody.
func DecodeHandovers(keys Keys, all []*mvccpb.KeyValue) []Handover {
	list := make([]Handover, 0, len(all))
	for _, e := range all {
		shard, ok := keys.ParseHandover(string(e.Key))
		if !ok {
			continue
		}
		h, err := decode[Handover](e.Value)
		if err != nil {
			h = Handover{}
		}
		h.Shard, h.Revision = shard, e.ModRevision
		list = append(list, h)
	}
	return list
}

// Lineup is what a leader plans with, all of it at one revision.
type Lineup struct {
	Nodes     []task.Node
	Owners    []Owner
	Handovers []Handover
}

// Lineup reads nodes/, owners/ and moves/ at one revision.
func (s Owners) Lineup(ctx context.Context) (l Lineup, err error) {
	var ops []clientv3.Op
	for _, prefix := range []string{s.keys.Nodes(), s.keys.Owners(), s.keys.Handovers()} {
		ops = append(ops, clientv3.OpGet(prefix, below(prefix)))
	}
	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return l, fmt.Errorf("read nodes, owners and moves: %w: %w", task.ErrUnavailable, err)
	}
	at := func(i int) []*mvccpb.KeyValue { return res.Responses[i].GetResponseRange().Kvs }
	return Lineup{DecodeNodes(s.keys, at(0)), DecodeOwners(s.keys, at(1)), DecodeHandovers(s.keys, at(2))}, nil
}

// Prepare writes handovers, anew or in the place of those that were read (their
// Revision), in chunks, under the leader's term. Errors are those of Assign.
func (s Owners) Prepare(ctx context.Context, term kv.Fence, list []Handover, now task.Time) error {
	return inChunks(list, func(chunk []Handover) error {
		var t kv.Txn
		for _, h := range chunk {
			key := s.keys.Handover(h.Shard)
			t.If = append(t.If, unchanged(key, h.Revision))
			t.Then = append(t.Then, clientv3.OpPut(key, encode(Handover{To: h.To, Since: now})))
		}
		if err := s.lead(ctx, term, t); err != nil {
			return fmt.Errorf("prepare %d shards: %w", len(chunk), err)
		}
		return nil
	})
}

// Withdraw deletes handovers as they were read, in chunks, under the leader's
// term. Errors are those of Assign.
func (s Owners) Withdraw(ctx context.Context, term kv.Fence, list []Handover) error {
	return inChunks(list, func(chunk []Handover) error {
		var t kv.Txn
		for _, h := range chunk {
			key := s.keys.Handover(h.Shard)
			t.If = append(t.If, unchanged(key, h.Revision))
			t.Then = append(t.Then, clientv3.OpDelete(key))
		}
		if err := s.lead(ctx, term, t); err != nil {
			return fmt.Errorf("withdraw %d shards: %w", len(chunk), err)
		}
		return nil
	})
}

// TellReady says, under the present session of the node that h names, that it
// has loaded the shard. task.ErrConflict if the handover is another by now, or
// the session is over.
func (s Owners) TellReady(ctx context.Context, session kv.Fence, h Handover) error {
	key := s.keys.Handover(h.Shard)
	ready := Handover{To: h.To, Since: h.Since, Ready: session.CreateRevision}
	res, err := s.writeAlone(ctx, kv.Txn{
		If:   []clientv3.Cmp{unchanged(key, h.Revision), session.Compare()},
		Then: []clientv3.Op{clientv3.OpPut(key, encode(ready))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}
	if err != nil {
		return fmt.Errorf("tell that shard %d is loaded: %w", h.Shard, err)
	}
	return nil
}
