package kv_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/wake"
)

func mirror(t *testing.T, c *kv.Client, cfg kv.FollowConfig) *kv.Mirror {
	t.Helper()
	m, stop := startMirror(t.Context(), c, cfg)
	t.Cleanup(stop)

	return m
}

func startMirror(ctx context.Context, c *kv.Client, cfg kv.FollowConfig) (*kv.Mirror, func()) {
	ctx, cancel := context.WithCancel(ctx)
	m := kv.NewMirror(c, cfg)
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()

	return m, func() { cancel(); <-done }
}

func TestMirror_TellsOfChanges(t *testing.T) {
	c := kvtest.Memory(t)
	put(t, c, "p/b", "1")
	m := mirror(t, c, prefixed("p/"))
	first := wake.NewSignal()
	m.Subscribe(first)
	within(t, time.Minute, "ready", m.Ready())
	within(t, time.Minute, "the first signal", first)

	before := m.Snapshot()
	if before.Get("p/b") == nil || before.Get("p/a") != nil || before.Get("p/c") != nil {
		t.Errorf("the first snapshot holds %v", before.KVs)
	}

	second := wake.NewSignal()
	unsubscribe := m.Subscribe(second)
	within(t, time.Minute, "a subscriber's first signal", second)
	rev := put(t, c, "p/a", "1")
	within(t, time.Minute, "the signal", first)
	within(t, time.Minute, "the subscriber's signal", second)

	after := m.Snapshot()
	if e := after.Get("p/a"); e == nil || e.ModRevision != rev || after.Revision != rev {
		t.Errorf("revision %d holds %v", after.Revision, after.KVs)
	}

	if len(before.KVs) != 1 || before.Get("p/a") != nil {
		t.Error("a snapshot has changed")
	}

	unsubscribe()
	put(t, c, "p/a", "2")
	within(t, time.Minute, "the signal", first)

	select {
	case <-second:
		t.Error("a former subscriber is notified")
	default:
	}
}

// Whatever is written, and however the watch is disturbed, the mirror becomes equal to etcd.
func TestMirror_EqualsEtcd(t *testing.T) {
	t.Parallel()
	server := kvtest.StartServer(t)
	proxy := server.Proxy()
	broken := proxy.Client(kv.Config{CallTimeout: time.Second})
	w := spoil(broken)
	c := server.Client()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		prefix := fmt.Sprintf("p%d/", n)
		cfg := prefixed(prefix)
		cfg.StallAfter, cfg.Relist = 2*time.Second, rapid.SampledFrom([]time.Duration{0, 10 * time.Millisecond}).Draw(rt, "relist")
		m, stop := startMirror(t.Context(), broken, cfg)
		defer stop()

		key := rapid.Map(rapid.IntRange(0, 9), func(i int) string { return fmt.Sprint(prefix, i) })
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) { put(t, c, key.Draw(rt, "key"), "v") },
			"delete": func(rt *rapid.T) {
				if _, err := c.Delete(t.Context(), key.Draw(rt, "key")); err != nil {
					rt.Fatal(err)
				}
			},
			"txn": func(rt *rapid.T) {
				a, b := key.Draw(rt, "put"), key.Draw(rt, "delete")
				if a == b {
					rt.Skip()
				}

				if _, err := kv.Direct(c).Commit(t.Context(), kv.Txn{Then: []clientv3.Op{clientv3.OpPut(a, "w"), clientv3.OpDelete(b)}}); err != nil {
					rt.Fatal(err)
				}
			},
			"compact": func(rt *rapid.T) { _, _ = c.Compact(t.Context(), put(t, c, "tick", "")) },
			"close":   func(*rapid.T) { w.closeAll() },
			"cut":     func(*rapid.T) { proxy.Cut(); proxy.Mend() },
			"":        func(rt *rapid.T) { inOrder(rt, m.Snapshot()) },
		})

		rev := put(t, c, prefix+"end", "v")
		eventually(t, "the end", func() bool { return m.Snapshot().Revision >= rev })
		equal(t, c, prefix, m.Snapshot())
	})
}

func inOrder(t interface{ Fatalf(string, ...any) }, s kv.Snapshot) {
	for i := 1; i < len(s.KVs); i++ {
		if string(s.KVs[i-1].Key) >= string(s.KVs[i].Key) {
			t.Fatalf("%s comes before %s", s.KVs[i-1].Key, s.KVs[i].Key)
		}
	}
}

func equal(t *testing.T, c *kv.Client, prefix string, s kv.Snapshot) {
	t.Helper()
	key, end := kv.Prefix(prefix)

	want, _, err := kv.List(t.Context(), c, key, end, 0)
	if err != nil {
		t.Fatal(err)
	}

	if len(s.KVs) != len(want) {
		t.Fatalf("%d keys, want %d", len(s.KVs), len(want))
	}

	for i, e := range want {
		if got := s.KVs[i]; got.String() != e.String() || s.Get(string(e.Key)) != got {
			t.Fatalf("%v, want %v", got, e)
		}
	}
}

func TestPendingDiffs_EndWithAReplayedEventOrAreLost(t *testing.T) {
	var d kv.PendingDiffs
	d.Resolve("none", 9)

	for _, key := range []string{"told", "told too early", "never told"} {
		d.Add(key, 5)
	}

	d.Resolve("told", 5)
	d.Resolve("told too early", 4)

	if n := d.Lost(time.Hour); n != 0 {
		t.Errorf("%d are lost at once", n)
	}

	if n := d.Lost(0); n != 2 {
		t.Errorf("%d are lost, want 2", n)
	}

	if n := d.Lost(0); n != 0 {
		t.Errorf("%d are lost twice", n)
	}

	d.Add("a", 1)
	d.Clear()

	if n := d.Lost(0); n != 0 {
		t.Errorf("%d are lost that a new watch cannot tell of", n)
	}
}
