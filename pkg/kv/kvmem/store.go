package kvmem

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Config holds the settings of a store. The zero value is an etcd with default settings.
type Config struct {
	// Revision is the revision of the empty store. The default is 1, as in etcd.
	Revision int64
	// MinTTL is the shortest TTL of a lease, in seconds. The default is 2, which follows from etcd's default election
	// timeout of one second.
	MinTTL int64
}

// Store is the server. It is safe for concurrent use.
type Store struct {
	cfg Config

	mu        sync.Mutex
	first     int64               // the revision of the empty store
	revision  int64               // the revision of the last change
	compacted int64               // older revisions cannot be read
	items     map[string]*item    // the keys that exist at some readable revision
	keys      []string            // the keys of items, sorted
	log       [][]*mvccpb.Event   // all changes, one slice for each revision from first+1 on
	leases    map[int64]*lease    // by id
	lastLease int64               // the id of the last lease that was granted
	watches   map[*watch]struct{} // the open watches
	full      bool                // see SetFull
	frozen    chan struct{}       // closed by Thaw; nil unless the store is frozen
	closed    bool
}

// item is a key with its versions, the oldest first.
type item struct{ versions []version }

// version is the content of a key from its mod revision on.
type version struct {
	// number is the version number of etcd: 1 after the creation of the key, and one more with each put.
	mod, create, number, lease int64
	value                      []byte
	deleted                    bool
}

// New returns an empty store. Close stops its timers.
func New(cfg Config) *Store {
	if cfg.Revision == 0 {
		cfg.Revision = 1
	}

	if cfg.MinTTL == 0 {
		cfg.MinTTL = 2
	}

	return &Store{
		cfg: cfg, first: cfg.Revision, revision: cfg.Revision, items: map[string]*item{},
		leases: map[int64]*lease{}, lastLease: 0x7000_0000_0000, watches: map[*watch]struct{}{},
	}
}

// Close stops the timers of the leases. Further requests fail. Clients have to be closed separately.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.closed = true
	for _, l := range s.leases {
		l.timer.Stop()
	}
}

// Revision returns the revision of the last change.
func (s *Store) Revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// Events returns all changes since the store was created, in order, including those that have been compacted. The
// caller must not modify them.
func (s *Store) Events() []*mvccpb.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.log...)
}

// SetFull makes the store refuse requests with puts, like an etcd that has exceeded its quota, until it is called
// with false.
func (s *Store) SetFull(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

// Freeze stops the store like an etcd that has lost its leader: requests wait, and no lease expires, until Thaw is
// called.
func (s *Store) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		s.frozen = make(chan struct{})
	}
}

// Thaw ends a freeze. With extend, a new leader was elected, which gives every lease its full TTL again. Without it,
// the former leader continues, and leases that have expired meanwhile are revoked at once.
func (s *Store) Thaw(extend bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.frozen == nil {
		return
	}

	close(s.frozen)
	s.frozen = nil
	for _, l := range s.sortedLeases() {
		if extend {
			l.renew()
		} else if !time.Now().Before(l.expiry) {
			s.revokeLease(l)
		}
	}
}

// lockUnfrozen waits while the store is frozen. If it returns nil, the caller holds s.mu.
func (s *Store) lockUnfrozen(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return status.FromContextError(err).Err()
		}

		s.mu.Lock()
		frozen := s.frozen
		switch {
		case s.closed:
			s.mu.Unlock()
			return rpctypes.ErrGRPCStopped
		case frozen == nil:
			return nil
		}
		s.mu.Unlock()

		select {
		case <-frozen:
		case <-ctx.Done():
		}
	}
}

func (s *Store) newHeader() *pb.ResponseHeader { return headerAt(s.revision) }

// headerAt returns the header of a response at a revision.
func headerAt(revision int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: 1, MemberId: 1, RaftTerm: 2, Revision: revision}
}

// versionAt returns the version of a key at a revision, or nil if the key was absent.
func (it *item) versionAt(revision int64) *version {
	for i := len(it.versions) - 1; i >= 0; i-- {
		if v := &it.versions[i]; v.mod <= revision {
			if v.deleted {
				return nil
			}
			return v
		}
	}

	return nil
}

// span is a range of keys in the form of etcd's requests: one key, [key, end), or all keys from key on if end is
// "\x00".
type span struct{ key, end string }

func spanOf(key, end []byte) span { return span{string(key), string(end)} }

// contains reports whether key is in the range.
func (s span) contains(key string) bool {
	switch s.end {
	case "":
		return key == s.key
	case "\x00":
		return key >= s.key
	}

	return key >= s.key && key < s.end
}

// isEmpty reports whether the range cannot contain a key.
func (s span) isEmpty() bool { return s.end != "" && s.end != "\x00" && s.end <= s.key }

// visitRange calls visit with the keys of a range that existed at a revision, in order.
func (s *Store) visitRange(r span, revision int64, visit func(key string, v *version)) {
	if r.end == "" {
		if it := s.items[r.key]; it != nil {
			if v := it.versionAt(revision); v != nil {
				visit(r.key, v)
			}
		}

		return
	}

	from, _ := slices.BinarySearch(s.keys, r.key)
	for _, key := range s.keys[from:] {
		if !r.contains(key) {
			return
		}

		if v := s.items[key].versionAt(revision); v != nil {
			visit(key, v)
		}
	}
}

func (v *version) keyValue(key string) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: []byte(key), Value: v.value, CreateRevision: v.create, ModRevision: v.mod, Version: v.number, Lease: v.lease,
	}
}

// addVersion adds a version to a key, and moves the key from its previous lease to the new one.
func (s *Store) addVersion(key string, v version) {
	it := s.items[key]
	if it == nil {
		it = &item{}
		s.items[key] = it
		at, _ := slices.BinarySearch(s.keys, key)
		s.keys = slices.Insert(s.keys, at, key)
	}

	if n := len(it.versions); n > 0 {
		if l := s.leases[it.versions[n-1].lease]; l != nil {
			delete(l.keys, key)
		}
	}

	if l := s.leases[v.lease]; l != nil {
		l.keys[key] = struct{}{}
	}

	it.versions = append(it.versions, v)
}

// compactBefore removes the versions that cannot be read at the revision or later. It keeps the log.
func (s *Store) compactBefore(revision int64) {
	s.compacted = revision
	s.keys = slices.DeleteFunc(s.keys, func(key string) bool {
		it := s.items[key]
		// keep is the index of the version that is read at the revision itself.
		keep := 0
		for i, v := range it.versions {
			if v.mod <= revision {
				keep = i
			}
		}

		// A deletion before the revision is not read by anybody.
		if it.versions[keep].deleted && it.versions[keep].mod <= revision {
			keep++
		}

		if it.versions = it.versions[keep:]; len(it.versions) > 0 {
			return false
		}

		delete(s.items, key)

		return true
	})
}

// eventsSince returns the wanted changes from a revision on, in one slice for each revision that has any.
func (s *Store) eventsSince(revision int64, wanted func(*mvccpb.Event) bool) (batches [][]*mvccpb.Event) {
	for i := max(0, revision-s.first-1); i < int64(len(s.log)); i++ {
		if some := filterEvents(s.log[i], wanted); len(some) > 0 {
			batches = append(batches, some)
		}
	}

	return batches
}

// filterEvents returns the wanted events.
func filterEvents(events []*mvccpb.Event, wanted func(*mvccpb.Event) bool) (some []*mvccpb.Event) {
	for _, e := range events {
		if wanted(e) {
			some = append(some, e)
		}
	}

	return some
}

// keysOf returns the keys of a set in order, so that a simulation can be repeated.
func keysOf(set map[string]struct{}) []string {
	keys := make([]string, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}

	slices.SortFunc(keys, strings.Compare)

	return keys
}

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
func (c clientView) lockStore(ctx context.Context) error {
	if c.life.Err() != nil {
		return status.Error(codes.Canceled, "kvmem: the client is closed")
	}
	return c.Store.lockUnfrozen(ctx)
}

// errNotHere is the error of operations that an in-memory store does not support.
var errNotHere = errors.New("kvmem: not in this store")

// maintenance implements clientv3.Maintenance. Methods that it does not define panic, because the embedded interface
// is nil.
type maintenance struct {
	clientv3.Maintenance
	clientView
}

func (m maintenance) Status(ctx context.Context, _ string) (*clientv3.StatusResponse, error) {
	if err := m.lockStore(ctx); err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}

	defer m.mu.Unlock()

	return &clientv3.StatusResponse{
		Header: m.newHeader(), Version: etcdVersion, Leader: 1, RaftTerm: 2,
		RaftIndex: uint64(m.revision), RaftAppliedIndex: uint64(m.revision),
		DbSize: 1 << 20, DbSizeInUse: 1 << 20, DbSizeQuota: 8 << 30,
	}, nil
}

func (m maintenance) AlarmList(ctx context.Context) (*clientv3.AlarmResponse, error) {
	if err := m.lockStore(ctx); err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}

	defer m.mu.Unlock()

	resp := &clientv3.AlarmResponse{Header: m.newHeader()}
	if m.full {
		resp.Alarms = []*pb.AlarmMember{{MemberID: 1, Alarm: pb.AlarmType_NOSPACE}}
	}

	return resp, nil
}

func (m maintenance) Defragment(context.Context, string) (*clientv3.DefragmentResponse, error) {
	return nil, errNotHere
}

// cluster implements clientv3.Cluster. Methods that change the members panic.
type cluster struct {
	clientv3.Cluster
	clientView
}

func (c cluster) MemberList(ctx context.Context, _ ...clientv3.OpOption) (*clientv3.MemberListResponse, error) {
	if err := c.lockStore(ctx); err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}
	defer c.mu.Unlock()
	return &clientv3.MemberListResponse{Header: c.newHeader(), Members: []*pb.Member{{ID: 1, Name: "memory"}}}, nil
}
