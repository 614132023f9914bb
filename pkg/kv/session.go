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
)

const defaultTTL = 10 * time.Second

// SessionConfig says how to open a session.
type SessionConfig struct {
	// TTL is how long the lease outlives its last renewal; default 10 s. etcd counts in whole seconds and has a
	// minimum, so that it may grant more.
	TTL time.Duration
	// Saved, if set, is told of the lease before anything can be attached to it, and must have persisted it when it
	// returns. Its error ends the attempt, and the lease.
	Saved func(clientv3.LeaseID) error
	// Alive, if set, is asked before each renewal. Its error ends the session: what the lease stands for is not there
	// any more. The lease is left to expire; Close ends it at once.
	Alive  func() error
	Logger *zap.Logger // may be nil
}

// Session is a lease that is kept alive.
//
//	open ──renewed──▶ open ──revoked, or TTL without an answer, or not alive, or ctx ended──▶ done
//
// Done is a hint that may come late (the lease was revoked a moment ago) but not later than the time at which etcd may
// drop a lease that nobody renewed. Hence no write may rest on it alone.
type Session struct {
	client *Client
	lease  clientv3.LeaseID
	log    *zap.Logger
	stop   context.CancelFunc
	alive  func() error
	done   chan struct{}
	joined chan struct{}

	mu      sync.Mutex
	ttl     time.Duration
	renewed time.Time
	err     error
}

// OpenSession grants a lease, has it saved, and keeps it alive until ctx ends or the lease is lost. When ctx ends the
// lease is left to expire; Close ends it at once.
func OpenSession(ctx context.Context, c *Client, cfg SessionConfig) (*Session, error) {
	sent := time.Now()
	ttl := orDefault(cfg.TTL, defaultTTL)

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

// Lease is the session's lease.
func (s *Session) Lease() clientv3.LeaseID { return s.lease }

// TTL is what etcd granted.
func (s *Session) TTL() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ttl
}

// Done is closed when the lease is known to be lost, or TTL after LastRenewal, or when the session ends.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err says why the session is done; nil while it is not.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// LastRenewal is when the last renewal that etcd acknowledged, or the grant, was sent. It carries a monotonic reading.
func (s *Session) LastRenewal() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewed
}

// Close stops the renewals, waits for their goroutine, and revokes the lease: all keys attached to it go. A lease that
// is gone already is no error. It may be called again after a failure.
func (s *Session) Close(ctx context.Context) error {
	s.stop()
	<-s.joined
	return s.revokeLease(ctx)
}

func (s *Session) revokeLease(ctx context.Context) error {
	if _, err := s.client.Revoke(ctx, s.lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke lease %x: %w", s.lease, err)
	}
	return nil
}

// keepAlive renews every third of the TTL, faster after a failure, until the lease is lost.
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

func (s *Session) runRenewals(ctx context.Context) error {
	var failure error
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

		if time.Now().After(end) { // both were ready, after a pause of the process
			continue
		}

		if s.alive != nil {
			if err := s.alive(); err != nil {
				return fmt.Errorf("lease %x is not renewed any more: %w", s.lease, err)
			}
		}

		wait := s.TTL() / 3
		failure = s.renewLease(ctx, end)
		if errors.Is(failure, rpctypes.ErrLeaseNotFound) {
			return failure
		}

		if failure != nil {
			wait = jitter(s.TTL() / 20)
		}

		next.Reset(wait)
	}
}

// renewLease asks once, for a third of the TTL at most, so that a lost answer leaves time to ask again.
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

	s.renewed, s.ttl = sent, time.Duration(resp.TTL)*time.Second

	return nil
}
