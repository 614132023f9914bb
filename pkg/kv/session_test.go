package kv_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

const ttl = 5 * time.Second // long enough for a busy machine to be silent for two or three seconds

func open(t *testing.T, ctx context.Context, c *kv.Client, cfg kv.SessionConfig) *kv.Session {
	t.Helper()

	if cfg.TTL == 0 {
		cfg.TTL = ttl
	}

	s, err := kv.OpenSession(ctx, c, cfg)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})

	return s
}

func alive(t *testing.T, c *kv.Client, lease clientv3.LeaseID) bool {
	t.Helper()
	resp, err := c.TimeToLive(t.Context(), lease)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Fatal(err)
	}

	return err == nil && resp.TTL >= 0 // in whole seconds; -1 if the lease does not exist
}

func TestSession_IsRenewed(t *testing.T) {
	t.Parallel()
	c := kvtest.Start(t)
	s := open(t, t.Context(), c, kv.SessionConfig{})
	first := s.LastRenewal()
	eventually(t, "renewals for longer than the TTL", func() bool {
		select {
		case <-s.Done():
			t.Fatalf("done: %v", s.Err())
		default:
		}

		return s.LastRenewal().Sub(first) > ttl
	})

	if !alive(t, c, s.Lease()) || s.TTL() != ttl || s.Err() != nil {
		t.Errorf("ttl %s, err %v", s.TTL(), s.Err())
	}

	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	within(t, time.Minute, "done", s.Done())

	if alive(t, c, s.Lease()) {
		t.Error("the lease outlives Close")
	}

	if err := s.Close(t.Context()); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func TestSession_SavedBeforeUse(t *testing.T) {
	c := kvtest.Memory(t)
	var saved clientv3.LeaseID
	s := open(t, t.Context(), c, kv.SessionConfig{Saved: func(id clientv3.LeaseID) error {
		saved = id
		if resp, err := c.TimeToLive(t.Context(), id, clientv3.WithAttachedKeys()); err != nil || len(resp.Keys) > 0 {
			t.Errorf("something is attached already: %v, %v", resp, err)
		}
		return nil
	}})

	if saved == 0 || saved != s.Lease() {
		t.Errorf("saved lease %x, used %x", saved, s.Lease())
	}

	full := errors.New("disk full")
	_, err := kv.OpenSession(t.Context(), c, kv.SessionConfig{TTL: ttl, Saved: func(id clientv3.LeaseID) error {
		saved = id
		return full
	}})

	if !errors.Is(err, full) {
		t.Errorf("%v, want the saver's error", err)
	}

	if alive(t, c, saved) {
		t.Error("a lease that was not saved lives on")
	}
}

func TestSession_DoneWhenRevoked(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	s := open(t, t.Context(), c, kv.SessionConfig{})
	if _, err := c.Revoke(t.Context(), s.Lease()); err != nil {
		t.Fatal(err)
	}

	within(t, time.Minute, "done, at the next renewal", s.Done())

	if !errors.Is(s.Err(), rpctypes.ErrLeaseNotFound) {
		t.Error(s.Err())
	}
}

func TestSession_DoneWhenSilent(t *testing.T) {
	t.Parallel()
	server := kvtest.StartServer(t)
	p := server.Proxy()
	s := open(t, t.Context(), p.Client(kv.Config{}), kv.SessionConfig{TTL: 2 * time.Second})
	p.Freeze()
	within(t, time.Minute, "done", s.Done())

	if age := time.Since(s.LastRenewal()); age < s.TTL() {
		t.Errorf("done %s after the last renewal was sent, want %s", age, s.TTL())
	}

	p.Mend()
}

func TestSession_OutlivesShortOutage(t *testing.T) {
	t.Parallel()
	server := kvtest.StartServer(t)
	p := server.Proxy()
	s := open(t, t.Context(), p.Client(kv.Config{}), kv.SessionConfig{TTL: 9 * time.Second})

	for range 2 {
		p.Cut()
		began := time.Now()
		time.Sleep(50 * time.Millisecond) // the outage
		p.Mend()
		eventually(t, "a renewal after the outage", func() bool { return s.LastRenewal().After(began) })
	}

	select {
	case <-s.Done():
		t.Error(s.Err())
	default:
	}
}

func TestSession_EndsWithItsContext(t *testing.T) {
	c := kvtest.Memory(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := open(t, ctx, c, kv.SessionConfig{TTL: time.Minute})
	cancel()
	within(t, time.Minute, "done", s.Done())

	if !alive(t, c, s.Lease()) {
		t.Error("the lease was revoked, not left to expire")
	}

	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSession_InProcess(t *testing.T) {
	t.Parallel()
	c := embeddedtest.StartServer(t).InProcess()
	s := open(t, t.Context(), c, kv.SessionConfig{})
	first := s.LastRenewal()
	eventually(t, "a renewal", func() bool { return s.LastRenewal().After(first) })
}

// tardy answers the first successful renewal late, and no later one.
type tardy struct {
	clientv3.Lease
	mu       sync.Mutex
	sent     time.Time // when that renewal was sent
	answered bool
}

func (t *tardy) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	t.mu.Lock()
	answered := t.answered
	if !answered {
		t.sent = time.Now()
	}
	t.mu.Unlock()

	if answered {
		<-ctx.Done()
		return nil, ctx.Err()
	}

	resp, err := t.Lease.KeepAliveOnce(ctx, id)
	t.mu.Lock()
	t.answered = err == nil
	t.mu.Unlock()

	time.Sleep(100 * time.Millisecond) // the latency of the answer

	return resp, err
}

// The lease may expire TTL after etcd has received the renewal, not after the answer has arrived. Only counting from
// the moment of sending is safe.
func TestSession_CountsFromTheSending(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	l := &tardy{Lease: c.Lease}
	c.Lease = l
	s := open(t, t.Context(), c, kv.SessionConfig{})
	first := s.LastRenewal()
	eventually(t, "a renewal", func() bool { return s.LastRenewal().After(first) })
	renewed := s.LastRenewal()
	l.mu.Lock()
	defer l.mu.Unlock()

	if renewed.After(l.sent) {
		t.Errorf("renewed %s after the renewal was sent", renewed.Sub(l.sent))
	}
}

// failing fails the first renewals.
type failing struct {
	clientv3.Lease
	fails atomic.Int32
}

func (f *failing) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	if f.fails.Add(-1) >= 0 {
		return nil, rpctypes.ErrNoLeader
	}
	return f.Lease.KeepAliveOnce(ctx, id)
}

func TestSession_FailedRenewalIsNoLoss(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	l := &failing{Lease: c.Lease}
	l.fails.Store(3)
	c.Lease = l
	s := open(t, t.Context(), c, kv.SessionConfig{})
	first := s.LastRenewal()
	eventually(t, "a renewal after three failures", func() bool { return s.LastRenewal().After(first) })

	if l.fails.Load() >= 0 || s.Err() != nil {
		t.Error(s.Err())
	}
}

func TestSession_EndsWhenNothingStandsBehindIt(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	var gone atomic.Bool
	why := errors.New("the engine stands still")
	s := open(t, t.Context(), c, kv.SessionConfig{Alive: func() error {
		if gone.Load() {
			return why
		}
		return nil
	}})

	first := s.LastRenewal()
	eventually(t, "a renewal", func() bool { return s.LastRenewal().After(first) })
	gone.Store(true)
	eventually(t, "the end", func() bool { return s.Err() != nil })

	if !errors.Is(s.Err(), why) {
		t.Errorf("it ended with %v", s.Err())
	}
}
