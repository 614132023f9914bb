package kv_test

import (
	"context"
	"flag"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
)

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "30") // some of them use a real etcd
	_ = flag.Set("test.parallel", "4") // most tests wait for elections, leases and timeouts
	leaktest.Main(m)
}

// eventually waits until cond holds, and fails the test after a minute.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)

	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// within receives a value from a channel, and fails the test after d.
func within[T any](t *testing.T, d time.Duration, what string, c <-chan T) T {
	t.Helper()

	select {
	case v := <-c:
		return v
	case <-time.After(d):
		t.Fatalf("not in %s: %s", d, what)
		panic("unreachable")
	}
}

func dial(t *testing.T, endpoint string) *kv.Client {
	t.Helper()
	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = c.Close() })

	return c
}

func put(t *testing.T, c *kv.Client, key, value string) int64 {
	t.Helper()
	resp, err := c.Put(t.Context(), key, value)
	if err != nil {
		t.Fatal(err)
	}

	return resp.Header.Revision
}

// follower calls Follow and keeps what it delivers, as a consumer would.
type follower struct {
	mu      sync.Mutex
	batches []kv.Batch
	values  map[string]string
	rev     int64
	resets  int
	page    int
	more    bool
	hold    chan struct{} // if set, each call of apply receives from it
	cancel  context.CancelFunc
	ended   chan error
}

func follow(t *testing.T, c *kv.Client, cfg kv.FollowConfig) *follower {
	t.Helper()
	return followHeld(t, c, cfg, nil)
}

func followHeld(t *testing.T, c *kv.Client, cfg kv.FollowConfig, hold chan struct{}) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{values: map[string]string{}, hold: hold, cancel: cancel, ended: make(chan error, 1)}
	go func() { f.ended <- kv.Follow(ctx, c, cfg, f.apply(t)) }()
	t.Cleanup(func() {
		cancel()

		select {
		case <-f.ended:
		case <-time.After(time.Minute):
			t.Error("Follow did not return")
		}

		close(f.ended)
	})

	return f
}

func (f *follower) apply(t *testing.T) func(kv.Batch) error {
	return func(b kv.Batch) error {
		if f.hold != nil {
			<-f.hold
		}

		f.mu.Lock()
		defer f.mu.Unlock()

		if b.Revision < f.rev {
			t.Errorf("went back from revision %d to %d", f.rev, b.Revision)
		}

		if f.more && b.Page != 0 && (b.Page != f.page+1 || b.Revision != f.rev) || !f.more && b.Page != 0 || b.More && !b.Reset {
			t.Errorf("page %d of revision %d after page %d of revision %d", b.Page, b.Revision, f.page, f.rev)
		}

		if f.more && !b.Reset {
			t.Error("events within a list")
		}

		if f.page, f.more = b.Page, b.More; b.Reset && b.Page == 0 {
			f.resets++
			f.values = map[string]string{}
		}

		for _, e := range b.KVs {
			f.values[string(e.Key)] = string(e.Value)
		}

		for _, e := range b.Events {
			if e.Kv.ModRevision <= f.rev || e.Kv.ModRevision > b.Revision {
				t.Errorf("event of revision %d in a batch from %d to %d", e.Kv.ModRevision, f.rev, b.Revision)
			}

			if e.Type == clientv3.EventTypeDelete {
				delete(f.values, string(e.Kv.Key))
			} else {
				f.values[string(e.Kv.Key)] = string(e.Kv.Value)
			}
		}

		f.rev = b.Revision
		f.batches = append(f.batches, b)

		return nil
	}
}

func (f *follower) value(key string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.values[key]
}

func (f *follower) revision() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rev
}

func (f *follower) resetCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resets
}

func (f *follower) first() kv.Batch {
	f.mu.Lock()
	defer f.mu.Unlock()

	if len(f.batches) == 0 {
		return kv.Batch{}
	}

	return f.batches[0]
}
