package kvmem

import (
	"maps"
	"slices"
	"time"
)

// Copy returns another store with the present content, like a member that was restored from a snapshot of this one. It has the leases with
// their keys, but they do not expire. It has nothing of the history: older revisions are compacted.
func (s *Store) Copy() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()

	c := New(s.cfg)
	c.first, c.revision, c.compacted, c.lastLease = s.revision, s.revision, s.revision, s.lastLease
	for _, key := range s.keys {
		if v := s.items[key].versionAt(s.revision); v != nil {
			c.items[key], c.keys = &item{versions: []version{*v}}, append(c.keys, key)
		}
	}

	for id, l := range s.leases {
		copied := &lease{id: id, ttl: l.ttl, keys: maps.Clone(l.keys)}
		copied.timer = time.AfterFunc(time.Duration(l.ttl)*time.Second, func() { c.expireLease(copied) })
		copied.timer.Stop()
		c.leases[id] = copied
	}

	return c
}

// Bump raises the revision of a copy that nobody has written to, and marks all older revisions as compacted, as etcdutl does with
// --bump-revision and --mark-compacted.
func (s *Store) Bump(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if len(s.log) > 0 || revision < s.revision {
		panic("kvmem: the revision of a store that was written to cannot be raised")
	}
	s.first, s.revision, s.compacted = revision, revision, revision
}

// Become replaces the content of the store by that of another one, which must not be used any more and has no leases. To the clients of the
// store, that is an etcd that was away and comes back with another content: their watches end, and their leases are gone. Events returns
// the changes of the other store from then on.
func (s *Store) Become(other *Store) {
	other.mu.Lock()
	defer other.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()

	if len(other.leases) > 0 {
		panic("kvmem: a store with leases cannot replace another one")
	}

	for _, l := range s.leases {
		l.timer.Stop()
	}
	for w := range s.watches {
		close(w.gone)
	}

	s.first, s.revision, s.compacted, s.items, s.keys, s.log = other.first, other.revision, other.compacted, other.items, other.keys, slices.Clone(other.log)
	s.leases, s.watches, s.lastLease = map[int64]*lease{}, map[*watch]struct{}{}, max(s.lastLease, other.lastLease)
}
