package kvmem

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// etcdVersion is the version of etcd with which the conformance suite compares the store.
const etcdVersion = "3.7.3"

// Client returns a client of the store, which works until Close is called or ctx ends. A test may replace its KV,
// Watcher and Lease by decorators that inject faults. kv.Wrap adds deadlines.
func (s *Store) Client(ctx context.Context) *clientv3.Client {
	c := clientv3.NewCtxClient(ctx)
	d := clientView{Store: s, life: c.Ctx()}
	c.KV = clientv3.NewKVFromKVClient(remote{d}, nil)
	c.Watcher = &watcher{clientView: d, done: make(chan struct{})}
	c.Lease = leases{d}
	c.Maintenance = maintenance{clientView: d}
	c.Cluster = cluster{clientView: d}

	return c
}

// clientView is the store as one client accesses it. Its calls fail when the client has been closed.
type clientView struct {
	*Store
	life context.Context // ends when the client is closed
}

// lockStore waits while the store is frozen. If it returns nil, the caller holds the mutex of the store. Its errors
// have the form of gRPC.
func (d clientView) lockStore(ctx context.Context) error {
	if d.life.Err() != nil {
		return status.Error(codes.Canceled, "kvmem: the client is closed")
	}
	return d.Store.lockUnfrozen(ctx)
}

// errNotHere is the error of operations that an in-memory store does not support.
var errNotHere = errors.New("kvmem: not in this store")

// maintenance implements clientv3.Maintenance. Methods that it does not define panic, because the embedded interface
// is nil.
type maintenance struct {
	clientv3.Maintenance
	clientView
}

func (s maintenance) Status(ctx context.Context, _ string) (*clientv3.StatusResponse, error) {
	if err := s.lockStore(ctx); err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}

	defer s.mu.Unlock()

	return &clientv3.StatusResponse{
		Header: s.newHeader(), Version: etcdVersion, Leader: 1, RaftTerm: 2,
		RaftIndex: uint64(s.revision), RaftAppliedIndex: uint64(s.revision),
		DbSize: 1 << 20, DbSizeInUse: 1 << 20, DbSizeQuota: 8 << 30,
	}, nil
}

func (s maintenance) AlarmList(ctx context.Context) (*clientv3.AlarmResponse, error) {
	if err := s.lockStore(ctx); err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}

	defer s.mu.Unlock()

	resp := &clientv3.AlarmResponse{Header: s.newHeader()}
	if s.full {
		resp.Alarms = []*pb.AlarmMember{{MemberID: 1, Alarm: pb.AlarmType_NOSPACE}}
	}

	return resp, nil
}

func (s maintenance) Defragment(context.Context, string) (*clientv3.DefragmentResponse, error) {
	return nil, errNotHere
}

// cluster implements clientv3.Cluster. Methods that change the members panic.
type cluster struct {
	clientv3.Cluster
	clientView
}

func (s cluster) MemberList(ctx context.Context, _ ...clientv3.OpOption) (*clientv3.MemberListResponse, error) {
	if err := s.lockStore(ctx); err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}
	defer s.mu.Unlock()
	return &clientv3.MemberListResponse{Header: s.newHeader(), Members: []*pb.Member{{ID: 1, Name: "memory"}}}, nil
}
