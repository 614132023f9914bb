package kvmem

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/status"
)

// Config is what a store is made with; its zero value is an etcd with the usual settings.
type Config struct {
	// Revision is that of the empty store; default 1, as in etcd.
	Revision int64
	// MinTTL is the shortest lease in seconds that is granted; default 2, which follows from etcd's election timeout of
	// one second.
	MinTTL int64
}

// Store is the server. It is safe for concurrent use.
type Store struct {
	cfg Config

	mu        sync.Mutex
	first     int64 // the revision before the first change
	revision  int64
	compacted int64 // what is older cannot be read
	items     map[string]*item
	keys      []string // of items, sorted
	log       [][]*mvccpb.Event
	leases    map[int64]*lease
	lastLease int64
	watches   map[*watch]struct{}
	full      bool
	frozen    chan struct{} // closed at the thaw; nil while the store runs
	closed    bool
}

// item is a key that may be read at some revision.
type item struct{ versions []version }

// version is a key's content from a revision on.
type version struct {
	mod, create, number, lease int64
	value                      []byte
	deleted                    bool
}

// New makes an empty store. Close ends its timers.
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

// Close stops the leases' clocks. Clients are closed by themselves.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.closed = true
	for _, l := range s.leases {
		l.timer.Stop()
	}
}

// Revision is that of the latest change.
func (s *Store) Revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// Events are all changes since the store was made, in order, those that are compacted away included. Nobody may change
// them.
func (s *Store) Events() []*mvccpb.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.log...)
}

// SetFull makes the store refuse what puts something, as etcd does at its quota, until it is unset.
func (s *Store) SetFull(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

// Freeze stops the store as an etcd that has no leader stops: requests wait, and so do the clocks of leases. Thaw ends
// it.
func (s *Store) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		s.frozen = make(chan struct{})
	}
}

// Thaw ends a freeze. A new leader gives every lease its whole time again; with extend false the old one is back, and
// drops at once what has expired meanwhile.
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

// lockUnfrozen waits while the store is frozen, and returns with mu held unless it fails.
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

func headerAt(revision int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: 1, MemberId: 1, RaftTerm: 2, Revision: revision}
}

// versionAt is the version of an item at a revision; nil if it was absent.
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

// span is a range of keys as etcd's requests give it: one key, [key, end), or all from key on if end is "\x00".
type span struct{ key, end string }

func spanOf(key, end []byte) span { return span{string(key), string(end)} }

func (r span) contains(key string) bool {
	switch r.end {
	case "":
		return key == r.key
	case "\x00":
		return key >= r.key
	}

	return key >= r.key && key < r.end
}

func (r span) isEmpty() bool { return r.end != "" && r.end != "\x00" && r.end <= r.key }

// visitRange calls visit with the keys of a range that were there at a revision, in order.
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

// addVersion appends a version to a key, and moves the key from its former lease to the new one.
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

// compactBefore forgets what is older than a revision, except in the log.
func (s *Store) compactBefore(revision int64) {
	s.compacted = revision
	s.keys = slices.DeleteFunc(s.keys, func(key string) bool {
		it := s.items[key]
		keep := 0 // the version that is read at the revision itself
		for i, v := range it.versions {
			if v.mod <= revision {
				keep = i
			}
		}

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

// eventsSince are the changes of a range from a revision on, one slice for each revision that has any.
func (s *Store) eventsSince(revision int64, wanted func(*mvccpb.Event) bool) (batches [][]*mvccpb.Event) {
	for i := max(0, revision-s.first-1); i < int64(len(s.log)); i++ {
		if some := filterEvents(s.log[i], wanted); len(some) > 0 {
			batches = append(batches, some)
		}
	}

	return batches
}

func filterEvents(events []*mvccpb.Event, wanted func(*mvccpb.Event) bool) (some []*mvccpb.Event) {
	for _, e := range events {
		if wanted(e) {
			some = append(some, e)
		}
	}

	return some
}

// keysOf are the keys of a set, sorted.
func keysOf(set map[string]struct{}) []string {
	keys := make([]string, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}

	slices.SortFunc(keys, strings.Compare)

	return keys
}
