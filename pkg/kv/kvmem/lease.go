package kvmem

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// maxTTL is the longest TTL that etcd grants, in seconds.
const maxTTL = 9_000_000_000

// lease is a lease of the store.
type lease struct {
	id, ttl int64               // ttl in seconds
	keys    map[string]struct{} // the keys that are attached to it
	expiry  time.Time           // when it expires unless it is renewed
	timer   *time.Timer         // calls expireLease at expiry
}

// renew gives the lease its full TTL again.
func (l *lease) renew() {
	d := time.Duration(l.ttl) * time.Second
	l.expiry = time.Now().Add(d)
	l.timer.Reset(d)
}

// expireLease is called by the timer of a lease. It does nothing if the lease was renewed at the last moment, or
// while the store is frozen; Thaw handles those leases.
func (s *Store) expireLease(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil && !s.closed && s.leases[l.id] == l && !time.Now().Before(l.expiry) {
		s.revokeLease(l)
	}
}

// revokeLease removes a lease and deletes its keys in one revision.
func (s *Store) revokeLease(l *lease) {
	l.timer.Stop()
	c := s.beginChange()

	for _, key := range keysOf(l.keys) {
		c.deleteRange(span{key: key})
	}

	delete(s.leases, l.id)
	c.commitChange()
}

// Revoke ends a lease early, as an operator could do. It reports whether the lease existed.
func (s *Store) Revoke(id clientv3.LeaseID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	l := s.leases[int64(id)]
	if l != nil {
		s.revokeLease(l)
	}

	return l != nil
}

// Leases returns the ids of the present leases, in the order in which they were granted.
func (s *Store) Leases() (ids []clientv3.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, l := range s.sortedLeases() {
		ids = append(ids, clientv3.LeaseID(l.id))
	}

	return ids
}

// sortedLeases returns the leases in the order in which they were granted.
func (s *Store) sortedLeases() []*lease {
	return slices.SortedFunc(maps.Values(s.leases), func(a, b *lease) int { return cmp.Compare(a.id, b.id) })
}

// leases implements clientv3.Lease.
type leases struct{ clientView }

var _ clientv3.Lease = leases{}

func (le leases) lockStore(ctx context.Context) error {
	return clientv3.ContextError(ctx, le.clientView.lockStore(ctx))
}

// Grant grants leases with ascending ids, so that a simulation can be repeated.
func (le leases) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	if err := le.lockStore(ctx); err != nil {
		return nil, err
	}

	defer le.mu.Unlock()

	switch {
	case ttl > maxTTL:
		return nil, rpctypes.ErrLeaseTTLTooLarge
	case le.full:
		return nil, rpctypes.ErrNoSpace
	}

	le.lastLease++
	l := &lease{id: le.lastLease, ttl: max(ttl, le.cfg.MinTTL), keys: map[string]struct{}{}}
	l.timer = time.AfterFunc(time.Duration(l.ttl)*time.Second, func() { le.expireLease(l) })
	l.renew()
	le.Store.leases[l.id] = l

	return &clientv3.LeaseGrantResponse{ResponseHeader: le.newHeader(), ID: clientv3.LeaseID(l.id), TTL: l.ttl}, nil
}

func (le leases) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	if err := le.lockStore(ctx); err != nil {
		return nil, err
	}

	defer le.mu.Unlock()

	l := le.Store.leases[int64(id)]
	if l == nil {
		return nil, rpctypes.ErrLeaseNotFound
	}

	le.revokeLease(l)

	return &clientv3.LeaseRevokeResponse{Header: le.newHeader()}, nil
}

// TimeToLive reports the remaining time of a lease; -1 if the lease does not exist.
func (le leases) TimeToLive(ctx context.Context, id clientv3.LeaseID, opts ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	if err := le.lockStore(ctx); err != nil {
		return nil, err
	}

	defer le.mu.Unlock()

	resp := &clientv3.LeaseTimeToLiveResponse{ResponseHeader: le.newHeader(), ID: id, TTL: -1}

	l := le.Store.leases[int64(id)]
	if l == nil {
		return resp, nil
	}

	resp.TTL, resp.GrantedTTL = int64(time.Until(l.expiry)/time.Second), l.ttl
	// clientv3 does not expose the content of opts. The only option requests the keys.
	if len(opts) > 0 {
		for _, key := range keysOf(l.keys) {
			resp.Keys = append(resp.Keys, []byte(key))
		}
	}

	return resp, nil
}

func (le leases) Leases(ctx context.Context) (*clientv3.LeaseLeasesResponse, error) {
	if err := le.lockStore(ctx); err != nil {
		return nil, err
	}

	defer le.mu.Unlock()

	resp := &clientv3.LeaseLeasesResponse{ResponseHeader: le.newHeader()}
	for _, l := range le.sortedLeases() {
		resp.Leases = append(resp.Leases, clientv3.LeaseStatus{ID: clientv3.LeaseID(l.id)})
	}

	return resp, nil
}

// KeepAliveOnce renews a lease.
func (le leases) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	if err := le.lockStore(ctx); err != nil {
		return nil, err
	}

	defer le.mu.Unlock()

	l := le.Store.leases[int64(id)]
	if l == nil {
		return nil, rpctypes.ErrLeaseNotFound
	}

	l.renew()

	return &clientv3.LeaseKeepAliveResponse{ResponseHeader: le.newHeader(), ID: id, TTL: l.ttl}, nil
}

// KeepAlive renews the lease every third of its TTL until ctx ends, the client is closed, or the lease is gone. It
// drops answers that the caller does not receive.
func (le leases) KeepAlive(ctx context.Context, id clientv3.LeaseID) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(le.life, cancel)
	answers := make(chan *clientv3.LeaseKeepAliveResponse, clientv3.LeaseResponseChSize)
	go func() {
		defer close(answers)
		defer cancel()
		defer stop()

		for {
			resp, err := le.KeepAliveOnce(ctx, id)
			if err != nil {
				return
			}

			select {
			case answers <- resp:
			default:
			}

			wait := time.NewTimer(time.Duration(resp.TTL) * time.Second / 3)
			select {
			case <-wait.C:
			case <-ctx.Done():
				wait.Stop()
				return
			}
		}
	}()

	return answers, nil
}

// Close does nothing: the goroutines of KeepAlive end with the client.
func (le leases) Close() error { return nil }
