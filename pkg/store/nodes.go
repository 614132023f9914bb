package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Nodes reads and writes which nodes are present (nodes/), and what operators ask of
// them (requests/).
//
// A node's key has a lease: it is there as long as the node's session. Its create
// revision is the fence that each write of the session carries.
type Nodes struct{ *conn }

func (s Nodes) putNode(n task.Node, lease clientv3.LeaseID) clientv3.Op {
	n.Shards, n.Revision = 0, 0
	return clientv3.OpPut(s.keys.Node(n.Name), record.Encode(n), clientv3.WithLease(lease))
}

// Register creates the leased key by which a node is present, and returns the
// fence that every write of this session carries. task.ErrExists, with the node
// that holds the name, if it is taken; ErrFormat if it could not read what the
// others write; task.ErrConflict if the cluster's record has just changed. An unknown outcome is settled by the
// instance and the lease in the record.
func (s Nodes) Register(ctx context.Context, n task.Node, lease clientv3.LeaseID) (kv.Fence, *task.Node, error) {
	key := s.keys.Node(n.Name)
	guards := []clientv3.Cmp{isAbsent(key)}
	if known := s.format.cluster.Load(); known > 0 {
		guards = append(guards, isUnchanged(s.keys.Cluster(), known)) // the format in force is one that it understands
	}

	n.Format, n.Writes = s.format.understood, s.format.inUse()
	res, err := s.writeAlone(ctx, kv.Txn{
		If:   guards,
		Then: []clientv3.Op{s.putNode(n, lease)},
		Else: []clientv3.Op{clientv3.OpGet(key)},
	})
	if err == nil && !res.Succeeded && readAt(res, 0) == nil {
		if err = Cluster(s).refreshRecord(ctx); err == nil {
			err = fmt.Errorf("%w: the cluster's record has changed", task.ErrConflict)
		}
	}

	if err != nil {
		return kv.Fence{}, nil, fmt.Errorf("register node %s: %w", n.Name, err)
	}
	if res.Succeeded {
		return kv.CreateFence(key, res.Revision), nil, nil
	}

	e := readAt(res, 0)
	holder, _ := record.DecodeNode(s.keys, e) // an unreadable holder holds the name all the same
	if e.Lease == int64(lease) && holder.Instance == n.Instance {
		return kv.CreateFence(key, e.CreateRevision), nil, nil // an earlier copy of this very write
	}

	return kv.Fence{}, &holder, fmt.Errorf("register node %s: %w", n.Name, task.ErrExists)
}

// Announce rewrites the node's record: its state, its load, its clock.
// task.ErrFenced if the session is gone.
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

// Leave deletes the node's record if its inbox is empty. task.ErrConflict if it
// is not, or the session is gone.
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

// Node reads one node that is present. task.ErrNotFound if it is not.
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
