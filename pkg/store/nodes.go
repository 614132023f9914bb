package store

import (
	"context"
	"fmt"

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
