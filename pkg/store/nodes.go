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

// Nodes reads and writes the records of the nodes that are present (nodes/), and the requests
// of operators to them (requests/).
//
// The key of a node is leased: it exists as long as the session of the node. Its create
// revision is the fence that every write of the session compares (G2).
type Nodes struct{ *conn }

// putNode returns the put of a node's record under its lease, without the fields that are
// computed on reading.
func (s Nodes) putNode(n task.Node, lease clientv3.LeaseID) clientv3.Op {
	n.Shards, n.Revision = 0, 0
	return clientv3.OpPut(s.keys.Node(n.Name), record.Encode(n), clientv3.WithLease(lease))
}

// Register creates the leased key by which a node is present, and returns the fence that every
// write of this session must compare. The caller has decided by the record c of the cluster that
// the node may join: by its identity and its epoch. Register adopts the format of records in c,
// and creates the key only if the record of the cluster is still c. A record without a mod
// revision stands for a cluster that has none yet. It returns one of these errors:
//
//   - task.ErrExists, with the node that holds the name, if the name is taken.
//   - ErrFormat, if this version cannot read what the others may write.
//   - task.ErrConflict, if the cluster's record has changed since c was read. The caller must
//     read the record and decide again, because the new record may be that of a restored etcd.
//
// After an unknown outcome the caller may call it again: it recognizes its own record by the
// instance and the lease.
func (s Nodes) Register(ctx context.Context, n task.Node, lease clientv3.LeaseID, c ClusterRecord) (kv.Fence, *task.Node, error) {
	if err := Cluster(s).obeyRecord(c); err != nil {
		return kv.Fence{}, nil, fmt.Errorf("register node %s: %w", n.Name, err)
	}

	key := s.keys.Node(n.Name)
	n.Format, n.Writes = s.format.understood, s.format.inUse()

	res, err := s.writeAlone(ctx, kv.Txn{
		If:   []clientv3.Cmp{isAbsent(key), isUnchanged(s.keys.Cluster(), c.Mod)},
		Then: []clientv3.Op{s.putNode(n, lease)},
		Else: []clientv3.Op{clientv3.OpGet(key)},
	})
	if err == nil && !res.Succeeded && readAt(res, 0) == nil {
		err = fmt.Errorf("%w: the cluster's record has changed", task.ErrConflict) // the name is free, so the other comparison failed
	}

	if err != nil {
		return kv.Fence{}, nil, fmt.Errorf("register node %s: %w", n.Name, err)
	}
	if res.Succeeded {
		return kv.CreateFence(key, res.Revision), nil, nil
	}

	e := readAt(res, 0)
	holder, _ := record.DecodeNode(s.keys, e) // an unreadable record holds the name as well
	if e.Lease == int64(lease) && holder.Instance == n.Instance {
		return kv.CreateFence(key, e.CreateRevision), nil, nil // written by an earlier copy of this request
	}

	return kv.Fence{}, &holder, fmt.Errorf("register node %s: %w", n.Name, task.ErrExists)
}

// Announce replaces the record of a node: its state, its load and its clock. It returns
// task.ErrFenced if the session has ended.
func (s Nodes) Announce(ctx context.Context, session kv.Fence, n task.Node, lease clientv3.LeaseID) error {
	n.Format, n.Writes = s.format.understood, s.format.inUse()
	res, err := s.writeAlone(ctx, kv.Txn{If: []clientv3.Cmp{session.Compare()}, Then: []clientv3.Op{s.putNode(n, lease)}})
	if err == nil && !res.Succeeded {
		err = task.ErrFenced
	}

	if err != nil {
		return fmt.Errorf("announce node %s: %w", n.Name, err)
	}

	return nil
}

// Leave deletes the record of a node if its inbox is empty. It returns task.ErrConflict if the
// inbox is not empty or the session has ended.
func (s Nodes) Leave(ctx context.Context, session kv.Fence, node string) error {
	inbox := s.keys.Inbox(node)
	none := kv.CreateIs(inbox, 0).WithPrefix()

	res, err := s.writeAlone(ctx, kv.Txn{If: []clientv3.Cmp{session.Compare(), none}, Then: []clientv3.Op{clientv3.OpDelete(session.Key)}})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("leave as node %s: %w", node, err)
	}

	return nil
}

// Node reads a node that is present. It returns task.ErrNotFound if the node is not present.
func (s Nodes) Node(ctx context.Context, name string) (task.Node, error) {
	e, err := s.getOne(ctx, s.keys.Node(name))
	if err == nil && e == nil {
		err = task.ErrNotFound
	}

	if err != nil {
		return task.Node{}, fmt.Errorf("read node %s: %w", name, err)
	}

	return record.DecodeNode(s.keys, e)
}

// Nodes lists the nodes that are present.
func (s Nodes) Nodes(ctx context.Context) ([]task.Node, error) {
	all, _, err := s.getAll(ctx, s.keys.Nodes())
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return record.DecodeNodes(s.keys, all), nil
}

// NodeRequest requests that a node takes a state. Only the node itself can change its state,
// because it stores the state on disk for its next start. When an operator sends the request to
// another node, that node writes it into etcd, so that it does not have to forward the
// operator's credentials. The node deletes the request when its record has the state. The
// writer deletes it if the node takes too long.
type NodeRequest struct {
	Instance string      `json:"instance"` // the instance that the request is for; a later one ignores it
	State    string      `json:"state"`    // the requested state
	By       *task.Actor `json:"by"`       // the user who requested it
	At       task.Time   `json:"at"`
	Mod      int64       `json:"-"` // mod revision of the key
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
