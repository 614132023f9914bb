package store

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// NodeRequest asks a node to take a state. Only the node itself can: it keeps its state
// over restarts. Another node that an operator asks writes the request into etcd rather
// than pass the operator's credentials on. The node deletes it when its record has the
// state; the writer deletes it when the node takes too long.
type NodeRequest struct {
	Instance string    `json:"instance"` // of the node: a later instance does not obey
	State    string    `json:"state"`
	By       string    `json:"by"`
	At       task.Time `json:"at"`
	Mod      int64     `json:"-"` // mod revision of its key
}

// RequestNodeState writes the request for the instance of a node that was read as n. A
// request that the node has not obeyed yet is replaced. task.ErrConflict if that
// instance is not present any more.
func (s Nodes) RequestNodeState(ctx context.Context, n task.Node, r NodeRequest) (mod int64, err error) {
	r.Instance = n.Instance
	res, err := s.writeAlone(ctx, kv.Txn{
		If:   []clientv3.Cmp{kv.CreateIs(s.keys.Node(n.Name), n.Revision)},
		Then: []clientv3.Op{clientv3.OpPut(s.keys.NodeRequest(n.Name), record.Encode(r))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return 0, fmt.Errorf("ask node %s for a state: %w", n.Name, err)
	}

	return res.Revision, nil
}

// NodeRequestPending reports whether the request of that mod revision is still there.
func (s Nodes) NodeRequestPending(ctx context.Context, node string, mod int64) (bool, error) {
	e, err := s.getOne(ctx, s.keys.NodeRequest(node))
	if err != nil {
		return false, fmt.Errorf("read the request to node %s: %w", node, err)
	}
	return e != nil && e.ModRevision == mod, nil
}

// DeleteNodeRequest deletes the request of that mod revision. false if it is not there
// any more.
func (s Nodes) DeleteNodeRequest(ctx context.Context, node string, mod int64) (bool, error) {
	key := s.keys.NodeRequest(node)
	res, err := s.writeAlone(ctx, kv.Txn{If: []clientv3.Cmp{isUnchanged(key, mod)}, Then: []clientv3.Op{clientv3.OpDelete(key)}})
	if err != nil {
		return false, fmt.Errorf("delete the request to node %s: %w", node, err)
	}

	return res.Succeeded, nil
}

// FollowNodeRequests calls obey with each request to a node, until ctx ends or obey
// returns an error. A request that stays is told again, about every relist.
func (s Nodes) FollowNodeRequests(ctx context.Context, node string, relist time.Duration, obey func(NodeRequest) error) error {
	cfg := kv.FollowConfig{Key: s.keys.NodeRequest(node), Name: "node requests", Relist: relist}
	return kv.Follow(ctx, s.etcd, cfg, func(b kv.Batch) error {
		var last *mvccpb.KeyValue
		if b.Reset && len(b.KVs) > 0 {
			last = b.KVs[0]
		}

		if n := len(b.Events); n > 0 && b.Events[n-1].Type != clientv3.EventTypeDelete {
			last = b.Events[n-1].Kv
		}

		if last == nil {
			return nil
		}

		r, err := record.Decode[NodeRequest](last.Value)
		if err != nil {
			r = NodeRequest{} // one that cannot be read is for no instance
		}

		r.Mod = last.ModRevision

		return obey(r)
	})
}
