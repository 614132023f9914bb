package kvmem

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// version is that of the etcd whose behaviour the conformance suite holds the store against.
const etcdVersion = "3.7.3"

// Client returns a client of the store, which lives until Close or the end of ctx. What is put around its KV, Watcher
// and Lease is seen by those who use it; kv.Wrap gives it deadlines.
func (s *Store) Client(ctx context.Context) *clientv3.Client {
	c := clientv3.NewCtxClient(ctx)
	d := door{Store: s, life: c.Ctx()}
	c.KV = clientv3.NewKVFromKVClient(remote{d}, nil)
	c.Watcher = &watcher{door: d, done: make(chan struct{})}
	c.Lease = leases{d}
	c.Maintenance = maintenance{door: d}
	c.Cluster = cluster{door: d}

	return c
}

// door is the store as one client reaches it, for as long as that is not closed.
type door struct {
	*Store
	life context.Context // of the client
}

// lockStore returns with the store's mu held unless it fails, with an error as gRPC gives it.
func (d door) lockStore(ctx context.Context) error {
	if d.life.Err() != nil {
		return status.Error(codes.Canceled, "kvmem: the client is closed")
	}
	return d.Store.lockUnfrozen(ctx)
}

// errNotHere is the answer to what a store in memory has no use for.
var errNotHere = errors.New("kvmem: not in this store")

// maintenance is clientv3.Maintenance; what is not here panics, by the nil interface.
type maintenance struct {
	clientv3.Maintenance
	door
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

// cluster is clientv3.Cluster; what changes members panics.
type cluster struct {
	clientv3.Cluster
	door
}

func (s cluster) MemberList(ctx context.Context, _ ...clientv3.OpOption) (*clientv3.MemberListResponse, error) {
	if err := s.lockStore(ctx); err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}
	defer s.mu.Unlock()
	return &clientv3.MemberListResponse{Header: s.newHeader(), Members: []*pb.Member{{ID: 1, Name: "memory"}}}, nil
}
