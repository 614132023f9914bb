package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
)

// defaultTTL is the time to live of a session's lease if SessionConfig.TTL is 0.
const defaultTTL = 10 * time.Second

// SessionConfig holds the settings of a session.
type SessionConfig struct {
	// TTL is how long the lease exists after its last renewal. The default is 10 s. etcd counts in whole
	// seconds and has a minimum, so it may grant more.
	TTL time.Duration
	// Saved, if set, is called with the id of the lease before any key can be attached to it. It must have
	// stored the id durably when it returns, so that a restarted daemon can revoke the lease of its
	// predecessor. If it returns an error, the lease is revoked and OpenSession fails.
	Saved func(clientv3.LeaseID) error
	// Alive, if set, is called before each renewal. If it returns an error, the session ends, because the
	// process that the lease represents no longer works. The lease is not revoked and expires after its TTL.
	// Close revokes it at once.
	Alive  func() error
	Logger *zap.Logger // may be nil
}

// Session is a lease that is kept alive.
//
//	open ──renewed──▶ open ──revoked, or TTL without an answer, or not alive, or ctx ended──▶ done
//
// Done is a hint. It may come late, because etcd may have revoked the lease a moment ago. But it comes no
// later than etcd may drop a lease that was not renewed. Therefore a write must not rely on Done alone. It
// compares a key that is attached to the lease (G2).
type Session struct {
	client *Client
	lease  clientv3.LeaseID
	log    *zap.Logger
	stop   context.CancelFunc // ends the renewals
	alive  func() error       // SessionConfig.Alive; may be nil
	done   chan struct{}      // closed when the session is done
	joined chan struct{}      // closed when the goroutine that renews has returned

	mu      sync.Mutex
	ttl     time.Duration // what etcd granted last
	renewed time.Time     // when the last successful renewal was sent, not when its answer arrived
	err     error         // why the session is done
}

// OpenSession grants a lease, calls cfg.Saved, and keeps the lease alive until ctx ends or the lease is lost.
// When ctx ends, the lease is not revoked and expires after its TTL. Close revokes it at once.
func OpenSession(ctx context.Context, c *Client, cfg SessionConfig) (*Session, error) {
	// The validity of the lease is counted from before the request, because etcd grants it at some time between the
	// request and the answer. So Done is closed early rather than late.
	sent := time.Now()
	ttl := orDefault(cfg.TTL, defaultTTL)

	// The TTL is rounded up to whole seconds.
	granted, err := c.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return nil, fmt.Errorf("open session: grant lease: %w", err)
	}

	loop, stop := context.WithCancel(ctx)
	s := &Session{
		client: c, lease: granted.ID, log: orNop(cfg.Logger).With(zap.Int64("lease", int64(granted.ID))), stop: stop, alive: cfg.Alive,
		done: make(chan struct{}), joined: make(chan struct{}),
		ttl: time.Duration(granted.TTL) * time.Second, renewed: sent,
	}

	if cfg.Saved != nil {
		if err := cfg.Saved(s.lease); err != nil {
			stop()
			return nil, errors.Join(fmt.Errorf("open session: save lease %x: %w", s.lease, err), s.revokeLease(context.WithoutCancel(ctx)))
		}
	}

	go s.keepAlive(loop)

	return s, nil
}

// Lease returns the id of the lease.
func (s *Session) Lease() clientv3.LeaseID { return s.lease }

// TTL returns the time to live that etcd granted, which may be more than SessionConfig.TTL.
func (s *Session) TTL() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ttl
}

// Done returns a channel that is closed when the lease is known to be lost, when TTL has passed since
// LastRenewal, or when the session has been closed.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err returns the reason why the session is done, or nil while it is not.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// LastRenewal returns the time at which the last renewal that etcd acknowledged was sent; before the first
// renewal, the time at which the grant was sent. The time has a monotonic reading.
func (s *Session) LastRenewal() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewed
}

// Close stops the renewals, waits for their goroutine, and revokes the lease, which deletes all keys attached
// to it. It returns nil if the lease did not exist any more. After an error it may be called again.
func (s *Session) Close(ctx context.Context) error {
	s.stop()
	<-s.joined
	return s.revokeLease(ctx)
}

// revokeLease revokes the lease. A lease that does not exist is not an error.
func (s *Session) revokeLease(ctx context.Context) error {
	if _, err := s.client.Revoke(ctx, s.lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke lease %x: %w", s.lease, err)
	}
	return nil
}

// keepAlive renews the lease until it is lost or ctx ends. Then it records the reason and closes done.
func (s *Session) keepAlive(ctx context.Context) {
	defer close(s.joined)

	err := s.runRenewals(ctx)
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()

	close(s.done)

	if ctx.Err() == nil {
		s.log.Warn("lost the session", zap.Error(err))
	}
}

// runRenewals renews the lease every third of its TTL, and sooner after a failure. It returns the reason why
// the session is done.
func (s *Session) runRenewals(ctx context.Context) error {
	var failure error // of the last renewal; reported if the lease then expires
	next := time.NewTimer(s.TTL() / 3)
	defer next.Stop()

	for {
		end := s.LastRenewal().Add(s.TTL())
		select {
		case <-ctx.Done():
			return fmt.Errorf("session closed: %w", context.Cause(ctx))
		case <-time.After(time.Until(end)):
			return errors.Join(fmt.Errorf("lease %x not renewed for %s", s.lease, s.TTL()), failure)
		case <-next.C:
		}

		// After a pause of the process, both timers are ready and select chooses at random. The lease may have expired
		// by now, so the next iteration has to end the session instead of renewing it.
		if time.Now().After(end) {
			continue
		}

		if s.alive != nil {
			if err := s.alive(); err != nil {
				return fmt.Errorf("lease %x is no longer renewed: %w", s.lease, err)
			}
		}

		wait := s.TTL() / 3
		failure = s.renewLease(ctx, end)
		// etcd does not have the lease any more. Every other error leaves open whether etcd has renewed it.
		if errors.Is(failure, rpctypes.ErrLeaseNotFound) {
			return failure
		}

		if failure != nil {
			wait = clock.Jitter(s.TTL() / 20)
		}

		next.Reset(wait)
	}
}

// renewLease sends one renewal and waits at most a third of the TTL for the answer, so that after a lost
// answer there is time for another attempt. It never waits beyond end, at which the lease may expire.
func (s *Session) renewLease(ctx context.Context, end time.Time) error {
	sent := time.Now()
	deadline := sent.Add(s.TTL() / 3)
	if end.Before(deadline) {
		deadline = end
	}

	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()

	resp, err := s.client.KeepAliveOnce(ctx, s.lease)
	if err != nil {
		return fmt.Errorf("renew lease %x: %w", s.lease, err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	// The new period is counted from when the request was sent; see OpenSession.
	s.renewed, s.ttl = sent, time.Duration(resp.TTL)*time.Second

	return nil
}
