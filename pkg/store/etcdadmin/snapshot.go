package etcdadmin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// ErrNeedsRoot means that etcd has users, and allows snapshots only to those with its role root.
var ErrNeedsRoot = errors.New("etcd allows snapshots only to users with its role root")

// Snapshot is a snapshot of a member's database, while it is received. Reading it holds a transaction in the member, so the caller
// should read it quickly, and must close it.
type Snapshot struct {
	io.ReadCloser
	// AtLeast is a revision that the snapshot contains: everything that etcd had acknowledged when it was requested.
	AtLeast int64
	DBSize  int64 // the size of the member's database, in bytes
}

// OpenSnapshot requests a snapshot from the member to which a client is connected. The client must have only this endpoint; empty is
// the etcd in this process. A linearizable read of the same member precedes the snapshot, so the member has applied
// everything that was acknowledged before the call. A member that has no leader, or no vote, is refused by that read.
func OpenSnapshot(ctx context.Context, c *kv.Client, endpoint string) (*Snapshot, error) {
	st, err := c.Status(ctx, endpoint)
	if err != nil {
		return nil, snapshotError("read the status of etcd", err)
	}

	read, err := c.Get(ctx, "\x00", clientv3.WithCountOnly())
	if err != nil {
		return nil, snapshotError("read the current revision of etcd", err)
	}

	r, err := c.Snapshot(ctx)
	if err != nil {
		return nil, snapshotError("request a snapshot of etcd", err)
	}

	// etcd refuses a snapshot only when it is read.
	var first [1]byte
	if _, err := io.ReadFull(r, first[:]); err != nil {
		return nil, errors.Join(snapshotError("read a snapshot of etcd", err), r.Close())
	}

	return &Snapshot{ReadCloser: &prefixed{first: first[:], ReadCloser: r}, AtLeast: read.Header.Revision, DBSize: st.DbSize}, nil
}

// snapshotError returns the error of a call with what was tried.
func snapshotError(what string, err error) error {
	code := status.Code(err)
	if code == codes.PermissionDenied || errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserEmpty) {
		return fmt.Errorf("%s: %w: %w", what, ErrNeedsRoot, err)
	}

	return fmt.Errorf("%s: %w: %w", what, task.ErrUnavailable, err)
}

// prefixed returns the bytes in first, and then those of the reader.
type prefixed struct {
	first []byte
	io.ReadCloser
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.first) > 0 {
		n := copy(b, p.first)
		p.first = p.first[n:]
		return n, nil
	}

	return p.ReadCloser.Read(b)
}

// choiceTimeout limits how long the choice of a member takes.
const choiceTimeout = 5 * time.Second

// SnapshotHolder returns the node that should take a snapshot of an embedded etcd: one whose member has a vote and does not lead, so that
// a snapshot disturbs the cluster the least. It returns nil if this node should: because its own member is such a one, or no other node
// has one, or etcd is not embedded.
func (s Etcd) SnapshotHolder(ctx context.Context, self string) (*task.Node, error) {
	if len(s.etcd.Endpoints()) > 0 {
		return nil, nil
	}

	members := s.Members(ctx, choiceTimeout)
	if members[0].copyable() {
		return nil, nil
	}

	nodes, err := s.nodes.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("choose the node that makes the backup: %w", err)
	}

	for _, n := range nodes { // in the order of their names
		if n.Name == self || n.Member == nil {
			continue
		}

		at := slices.IndexFunc(members, func(m Member) bool { return m.ID == n.Member.ID })
		if at >= 0 && members[at].copyable() {
			return &n, nil
		}
	}

	return nil, nil
}

// copyable reports whether a snapshot should come from the member.
func (m *Member) copyable() bool { return m.Err == nil && !m.Leader && !m.Learner && m.id != 0 }

// Dialer connects to one endpoint of an etcd that is not embedded.
type Dialer func(ctx context.Context, endpoint string) (*kv.Client, error)

// OpenSnapshot requests a snapshot from the embedded member, or from an endpoint that does not lead, if there is one. It connects to this
// endpoint with dial.
func (s Etcd) OpenSnapshot(ctx context.Context, dial Dialer) (*Snapshot, error) {
	endpoints := s.etcd.Endpoints()
	if len(endpoints) == 0 {
		return OpenSnapshot(ctx, s.etcd, "")
	}

	chosen := endpoints[0]
	for _, m := range s.Members(ctx, choiceTimeout) {
		if m.copyable() && slices.Contains(endpoints, m.Endpoint) {
			chosen = m.Endpoint
			break
		}
	}

	c, err := dial(ctx, chosen)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", chosen, err)
	}

	snapshot, err := OpenSnapshot(ctx, c, chosen)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("etcd at %s: %w", chosen, err), c.Close())
	}

	snapshot.ReadCloser = closingBoth{snapshot.ReadCloser, c}

	return snapshot, nil
}

// closingBoth closes a client after the reader that uses it.
type closingBoth struct {
	io.ReadCloser
	client *kv.Client
}

func (c closingBoth) Close() error { return errors.Join(c.ReadCloser.Close(), c.client.Close()) }
