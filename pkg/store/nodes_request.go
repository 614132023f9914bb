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

// NodeRequest requests that a node takes a state. Only the node itself can change its state,
// because it stores the state on disk for its next start. When an operator sends the request to
// another node, that node writes it into etcd, so that it does not have to forward the
// operator's credentials. The node deletes the request when its record has the state. The
// writer deletes it if the node takes too long.
type NodeRequest struct {
	Instance string    `json:"instance"` // the instance that the request is for; a later one ignores it
	State    string    `json:"state"`    // the requested state
	By       string    `json:"by"`       // the user who requested it
	At       task.Time `json:"at"`
	Mod      int64     `json:"-"` // mod revision of the key
}

// RequestNodeState writes a request for the instance of the node n, and returns its mod
// revision. It replaces an earlier request that the node has not carried out. It returns
// task.ErrConflict if that instance is not present any more.
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

// NodeRequestPending reports whether the request with that mod revision still exists.
func (s Nodes) NodeRequestPending(ctx context.Context, node string, mod int64) (bool, error) {
	e, err := s.getOne(ctx, s.keys.NodeRequest(node))
	if err != nil {
		return false, fmt.Errorf("read the request to node %s: %w", node, err)
	}
	return e != nil && e.ModRevision == mod, nil
}

// DeleteNodeRequest deletes the request with that mod revision. It returns false if that
// request does not exist any more.
func (s Nodes) DeleteNodeRequest(ctx context.Context, node string, mod int64) (bool, error) {
	key := s.keys.NodeRequest(node)
	res, err := s.writeAlone(ctx, kv.Txn{If: []clientv3.Cmp{isUnchanged(key, mod)}, Then: []clientv3.Op{clientv3.OpDelete(key)}})
	if err != nil {
		return false, fmt.Errorf("delete the request to node %s: %w", node, err)
	}

	return res.Succeeded, nil
}

// FollowNodeRequests calls obey with each request to a node, until ctx ends or obey returns an
// error. About once in every relist, it delivers a request that still exists again.
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
			r = NodeRequest{} // a request that cannot be read is for no instance
		}

		r.Mod = last.ModRevision

		return obey(r)
	})
}
