package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

func (s *Store) putNode(n task.Node, lease clientv3.LeaseID) clientv3.Op {
	n.Shards, n.Revision = 0, 0
	return clientv3.OpPut(s.keys.Node(n.Name), encode(n), clientv3.WithLease(lease))
}

// Register creates the leased key by which a node is present, and returns the
// fence that every write of this session carries. task.ErrExists, with the node
// that holds the name, if it is taken; ErrFormat if it could not read what the
// others write; task.ErrConflict if the cluster's record has just changed. An unknown outcome is settled by the
// instance and the lease in the record.
func (s *Store) Register(ctx context.Context, n task.Node, lease clientv3.LeaseID) (kv.Fence, *task.Node, error) {
	key := s.keys.Node(n.Name)
	guards := []clientv3.Cmp{absent(key)}
	if known := s.format.cluster.Load(); known > 0 {
		guards = append(guards, unchanged(s.keys.Cluster(), known)) // the format in force is one that it understands
	}
	n.Format, n.Writes = s.Understands(), s.Format()
	res, err := s.writeAlone(ctx, kv.Txn{
		If:   guards,
		Then: []clientv3.Op{s.putNode(n, lease)},
		Else: []clientv3.Op{clientv3.OpGet(key)},
	})
	if err == nil && !res.Succeeded && readAt(res, 0) == nil {
		if err = s.refresh(ctx); err == nil {
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
	holder, _ := s.decodeNode(e) // an unreadable holder holds the name all the same
	if e.Lease == int64(lease) && holder.Instance == n.Instance {
		return kv.CreateFence(key, e.CreateRevision), nil, nil // an earlier copy of this very write
	}
	return kv.Fence{}, &holder, fmt.Errorf("register node %s: %w", n.Name, task.ErrExists)
}

// Announce rewrites the node's record: its state, its load, its clock.
// task.ErrFenced if the session is gone.
func (s *Store) Announce(ctx context.Context, session kv.Fence, n task.Node, lease clientv3.LeaseID) error {
	n.Format, n.Writes = s.Understands(), s.Format()
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
func (s *Store) Leave(ctx context.Context, session kv.Fence, node string) error {
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

func (s *Store) decodeNode(e *mvccpb.KeyValue) (task.Node, error) {
	n, err := decode[task.Node](e.Value)
	n.Name, n.Revision = string(e.Key)[len(s.keys.Nodes()):], e.CreateRevision
	return n, err
}

// DecodeNodes reads a snapshot of nodes/. What cannot be read is left out: such
// a node gets neither shards nor runs.
func (s *Store) DecodeNodes(all []*mvccpb.KeyValue) []task.Node {
	nodes := make([]task.Node, 0, len(all))
	for _, e := range all {
		if n, err := s.decodeNode(e); err == nil {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Node reads one node that is present. task.ErrNotFound if it is not.
func (s *Store) Node(ctx context.Context, name string) (task.Node, error) {
	e, err := s.getOne(ctx, s.keys.Node(name))
	if err == nil && e == nil {
		err = task.ErrNotFound
	}
	if err != nil {
		return task.Node{}, fmt.Errorf("read node %s: %w", name, err)
	}
	return s.decodeNode(e)
}

// Nodes lists the nodes that are present.
func (s *Store) Nodes(ctx context.Context) ([]task.Node, error) {
	all, _, err := s.getAll(ctx, s.keys.Nodes())
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return s.DecodeNodes(all), nil
}

// Token reads an API token's record. task.ErrNotFound if there is none.
func (s *Store) Token(ctx context.Context, id string) (Token, error) {
	e, err := s.getOne(ctx, s.keys.Token(id))
	if err != nil {
		return Token{}, fmt.Errorf("read token: %w", err)
	}
	if e == nil {
		return Token{}, fmt.Errorf("token: %w", task.ErrNotFound)
	}
	return decode[Token](e.Value)
}

// FoundToken is a token's record, or why there is none: task.ErrNotFound, or
// task.ErrInvalid if it is damaged.
type FoundToken struct {
	Token Token
	Err   error
}

// FindTokens reads the records of several tokens, of at most 128, at once.
func (s *Store) FindTokens(ctx context.Context, ids []string) ([]FoundToken, error) {
	ops := make([]clientv3.Op, len(ids))
	for i, id := range ids {
		ops[i] = clientv3.OpGet(s.keys.Token(id))
	}
	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("read %d tokens: %w: %w", len(ids), task.ErrUnavailable, err)
	}

	found := make([]FoundToken, len(ids))
	for i := range ids {
		if e := readAt(kv.Result{Responses: res.Responses}, i); e != nil {
			found[i].Token, found[i].Err = decode[Token](e.Value)
		} else {
			found[i].Err = fmt.Errorf("token: %w", task.ErrNotFound)
		}
	}
	return found, nil
}

// HasTokens reports whether the cluster has any token.
func (s *Store) HasTokens(ctx context.Context) (bool, error) {
	res, err := s.get(ctx, s.keys.Tokens(), below(s.keys.Tokens()), clientv3.WithCountOnly())
	if err != nil {
		return false, fmt.Errorf("look for tokens: %w", err)
	}
	return res.Count > 0, nil
}

// CreateFirstToken writes a token's record if the cluster has no token at all.
// task.ErrExists if it has.
func (s *Store) CreateFirstToken(ctx context.Context, id string, t Token) error {
	none := kv.CreateIs(s.keys.Tokens(), 0).WithPrefix()
	return s.createToken(ctx, none, id, t)
}

// CreateToken writes a token's record, new. task.ErrExists if there is one.
func (s *Store) CreateToken(ctx context.Context, id string, t Token) error {
	return s.createToken(ctx, absent(s.keys.Token(id)), id, t)
}

func (s *Store) createToken(ctx context.Context, free clientv3.Cmp, id string, t Token) error {
	res, err := s.writeAlone(ctx, kv.Txn{If: []clientv3.Cmp{free}, Then: []clientv3.Op{clientv3.OpPut(s.keys.Token(id), encode(t))}})
	if err == nil && !res.Succeeded {
		err = task.ErrExists
	}
	if err != nil {
		return fmt.Errorf("create token: %w", err)
	}
	return nil
}
