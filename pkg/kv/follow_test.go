package kv_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// watcher is a Watcher that can disturb the watches of a client.
type watcher struct {
	clientv3.Watcher
	mu      sync.Mutex
	cut     chan struct{} // closed to close the open watches
	swallow func(key string) bool
	opened  atomic.Int32
	beats   atomic.Int32
}

func spoil(c *kv.Client) *watcher {
	w := &watcher{Watcher: c.Watcher, cut: make(chan struct{}), swallow: func(string) bool { return false }}
	c.Watcher = w
	return w
}

func (w *watcher) RequestProgress(ctx context.Context) error {
	w.beats.Add(1)
	return w.Watcher.RequestProgress(ctx)
}

// closeAll closes the open watches without an error.
func (w *watcher) closeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()

	close(w.cut)
	w.cut = make(chan struct{})
}

// stall drops everything that the watches on key receive, including watches that are opened later, until it is called
// with "".
func (w *watcher) stall(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.swallow = func(k string) bool { return key != "" && k == key }
}

func (w *watcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	w.mu.Lock()
	cut := w.cut // before the watch is counted, because the test closes the channel when the count changes
	w.mu.Unlock()

	w.opened.Add(1)
	in := w.Watcher.Watch(ctx, key, opts...)
	out := make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for {
			select {
			case <-cut:
				return
			case <-ctx.Done():
				return
			case r, ok := <-in:
				if !ok {
					return
				}

				w.mu.Lock()
				drop := w.swallow(key)
				w.mu.Unlock()

				if drop {
					continue
				}

				select {
				case out <- r:
				case <-cut:
					return
				case <-ctx.Done():
					return
				}
			}
		}
	}()

	return out
}

func prefixed(p string) kv.FollowConfig {
	key, end := kv.Prefix(p)
	return kv.FollowConfig{Key: key, End: end}
}

func TestFollow_ListsThenWatches(t *testing.T) {
	c := kvtest.Start(t)
	put(t, c, "p/a", "1")
	rev := put(t, c, "p/b", "2")
	put(t, c, "q/a", "elsewhere")
	f := follow(t, c, prefixed("p/"))
	eventually(t, "the first list", func() bool { return f.revision() > rev })

	if b := f.first(); !b.Reset || len(b.KVs) != 2 || b.Revision != rev+1 {
		t.Errorf("the first batch is %+v", b)
	}

	put(t, c, "p/c", "3")

	if _, err := c.Delete(t.Context(), "p/a"); err != nil {
		t.Fatal(err)
	}

	eventually(t, "a put and a deletion", func() bool { return f.value("p/c") == "3" && f.value("p/a") == "" })

	if n := f.resetCount(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

func TestFollow_InProcess(t *testing.T) {
	c := embeddedtest.StartServer(t).InProcess()
	f := follow(t, c, prefixed("p/"))
	put(t, c, "p/a", "1")
	eventually(t, "the put", func() bool { return f.value("p/a") == "1" })
	put(t, c, "q/a", "1")
	put(t, c, "p/b", "2")
	eventually(t, "the next put", func() bool { return f.value("p/b") == "2" })

	if n := f.resetCount(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

// putMany puts the keys p/00000 and following.
func putMany(t *testing.T, c *kv.Client, keys int) {
	t.Helper()

	for i := 0; i < keys; i += 100 {
		var ops []clientv3.Op
		for j := i; j < i+100; j++ {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("p/%05d", j), "v"))
		}

		if _, err := kv.Direct(c).Commit(t.Context(), kv.Txn{Then: ops}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFollow_ListsInPagesAtOneRevision(t *testing.T) {
	c := kvtest.Memory(t)
	const keys = 2500
	putMany(t, c, keys)

	key, end := kv.Prefix("p/")
	kvs, rev, err := kv.List(t.Context(), c, key, end, 0)
	if err != nil || len(kvs) != keys {
		t.Fatalf("%d keys, %v", len(kvs), err)
	}

	for i, e := range kvs {
		if string(e.Key) != fmt.Sprintf("p/%05d", i) {
			t.Fatalf("key %d is %s", i, e.Key)
		}
	}

	if _, err := c.Delete(t.Context(), "p/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}

	if old, at, err := kv.List(t.Context(), c, key, end, rev); err != nil || len(old) != keys || at != rev {
		t.Errorf("%d keys at %d, %v", len(old), at, err)
	}
}

func TestFollow_BeginsAtARevision(t *testing.T) {
	c := kvtest.Memory(t)
	cfg := prefixed("p/")
	cfg.Revision = put(t, c, "p/a", "1")
	newest := put(t, c, "p/a", "2")
	f := follow(t, c, cfg)
	eventually(t, "the event after the list", func() bool { return f.value("p/a") == "2" })

	if b := f.first(); b.Revision != cfg.Revision || string(b.KVs[0].Value) != "1" {
		t.Errorf("the first batch is %+v", b)
	}

	if _, err := c.Compact(t.Context(), newest); err != nil {
		t.Fatal(err)
	}

	g := follow(t, c, cfg)
	eventually(t, "the newest list", func() bool { return g.revision() >= newest })

	if b := g.first(); b.Revision != newest {
		t.Errorf("after a compaction the first batch is %+v", b)
	}
}

// A watch that catches up receives many revisions in one response, here more than the default limits of gRPC and
// etcd.
func TestFollow_CatchesUpWithMuch(t *testing.T) {
	t.Parallel()
	c := kvtest.Start(t)
	cfg := prefixed("p/")
	cfg.Revision = put(t, c, "p/a", "0")

	const writes = 12
	for i := range writes {
		put(t, c, "p/a", fmt.Sprint(i, strings.Repeat("v", 1<<20)))
	}

	f := follow(t, c, cfg)
	eventually(t, "the last of many", func() bool { return strings.HasPrefix(f.value("p/a"), fmt.Sprint(writes-1)) })

	if n := f.resetCount(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

func TestFollow_SingleKey(t *testing.T) {
	c := kvtest.Memory(t)
	put(t, c, "leader/1", "neighbour")
	f := follow(t, c, kv.FollowConfig{Key: "leader"})
	put(t, c, "leader", "me")
	eventually(t, "the key", func() bool { return f.value("leader") == "me" })

	if f.value("leader/1") != "" {
		t.Error("a single key reaches its neighbours")
	}
}

func TestFollow_WatchesMoreThanItLists(t *testing.T) {
	c := kvtest.Memory(t)
	put(t, c, "p/queue/a", "1")
	put(t, c, "p/history/a", "1")
	cfg := prefixed("p/queue/")
	cfg.WatchKey, cfg.WatchEnd = kv.Prefix("p/")
	f := follow(t, c, cfg)
	eventually(t, "the list", func() bool { return f.value("p/queue/a") == "1" })

	if f.value("p/history/a") != "" {
		t.Error("the list reaches too far")
	}

	put(t, c, "p/history/b", "1")
	eventually(t, "an event beside the list", func() bool { return f.value("p/history/b") == "1" })
}

func TestFollow_SurvivesClosedWatch(t *testing.T) {
	c := kvtest.Memory(t)
	w := spoil(c)
	core, logs := observer.New(zap.InfoLevel)
	cfg := prefixed("p/")
	cfg.StallAfter, cfg.Logger = time.Minute, zap.New(core) // only closed watches are counted
	f := follow(t, c, cfg)
	eventually(t, "the watch", func() bool { return w.opened.Load() == 1 && f.resetCount() == 1 })

	for n := range 3 {
		w.closeAll()
		put(t, c, "p/a", fmt.Sprint(n))
		eventually(t, "a new watch", func() bool { return int(w.opened.Load()) >= n+2 }) // a busy machine may need more than one
		eventually(t, "the put", func() bool { return f.value("p/a") == fmt.Sprint(n) })
	}

	wantEachOnce(t, f, 3)

	if lost, back := logs.FilterLevelExact(zap.WarnLevel).Len(), logs.FilterLevelExact(zap.InfoLevel).Len(); lost != 3 || back != 3 {
		t.Errorf("%d losses and %d returns were logged for 3 closed watches", lost, back)
	}
}

func TestFollow_SurvivesStalledWatch(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	w := spoil(c)
	cfg := prefixed("p/")
	cfg.StallAfter = time.Second // a pause of the machine does not silence three watches in a row for a second
	f := follow(t, c, cfg)
	neighbour := prefixed("q/")
	neighbour.StallAfter = cfg.StallAfter
	g := follow(t, c, neighbour)
	put(t, c, "p/a", "1")
	eventually(t, "the put", func() bool { return f.value("p/a") == "1" })
	w.stall("p/")
	put(t, c, "p/a", "2")
	eventually(t, "a list after silent watches", func() bool { return f.value("p/a") == "2" })
	w.stall("")
	put(t, c, "p/a", "3")
	eventually(t, "a put after the stall", func() bool { return f.value("p/a") == "3" })

	if n := g.resetCount(); n != 1 {
		t.Errorf("the neighbour, which did not stall, was listed %d times", n)
	}
}

// The header of a response with events may have a much later revision than the events.
func TestFollow_BelievesEventsNotTheirHeader(t *testing.T) {
	c := kvtest.Memory(t)
	c.Watcher = boastful{c.Watcher}
	f := follow(t, c, prefixed("p/"))

	for i := range 5 {
		rev := put(t, c, "p/a", fmt.Sprint(i))
		eventually(t, "the put", func() bool { return f.value("p/a") == fmt.Sprint(i) })
		if got := f.revision(); got != rev {
			t.Fatalf("revision %d is claimed, %d is delivered", got, rev)
		}
	}
}

// boastful is a Watcher whose headers are a thousand revisions ahead of their events.
type boastful struct{ clientv3.Watcher }

func (b boastful) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in, out := b.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for r := range in {
			if len(r.Events) > 0 {
				r.Header.Revision += 1000
			}

			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
		}
	}()

	return out
}

func TestFollow_SurvivesFrozenConnection(t *testing.T) {
	t.Parallel()
	s := kvtest.StartServer(t)
	p := s.Proxy()
	core, logs := observer.New(zap.WarnLevel)
	cfg := prefixed("p/")
	cfg.StallAfter, cfg.Logger = time.Second, zap.New(core)
	f := follow(t, p.Client(kv.Config{CallTimeout: 300 * time.Millisecond}), cfg)
	put(t, s.Client(), "p/a", "1")
	eventually(t, "the put", func() bool { return f.value("p/a") == "1" })
	p.Freeze()
	put(t, s.Client(), "p/a", "2")
	eventually(t, "the loss", func() bool { return logs.Len() > 0 })
	p.Mend()
	eventually(t, "what happened meanwhile", func() bool { return f.value("p/a") == "2" })
	put(t, s.Client(), "p/a", "3")
	eventually(t, "what happens now", func() bool { return f.value("p/a") == "3" })

	if got := f.told("p/a"); len(got) < 2 || f.resetCount() != 1 {
		t.Errorf("the events contain %v after %d lists", got, f.resetCount())
	}
}

// The connection is cut, and the missed revisions are compacted.
func TestFollow_SurvivesCompaction(t *testing.T) {
	s := kvtest.StartServer(t)
	p := s.Proxy()
	core, logs := observer.New(zap.WarnLevel)
	cfg := prefixed("p/")
	cfg.StallAfter, cfg.Logger = time.Minute, zap.New(core)
	f := follow(t, p.Client(kv.Config{}), cfg)
	put(t, s.Client(), "p/gone", "1")
	eventually(t, "the put", func() bool { return f.value("p/gone") == "1" })
	p.Cut()

	if _, err := s.Client().Delete(t.Context(), "p/gone"); err != nil {
		t.Fatal(err)
	}

	rev := put(t, s.Client(), "p/a", "2")
	put(t, s.Client(), "q/a", "1")

	if _, err := s.Client().Compact(t.Context(), rev+1); err != nil {
		t.Fatal(err)
	}

	p.Mend()
	eventually(t, "the content after the compaction", func() bool { return f.value("p/a") == "2" && f.value("p/gone") == "" })

	if n := f.resetCount(); n != 2 {
		t.Errorf("%d resets", n)
	}

	if n := logs.FilterFieldKey("error").Len(); n == 0 {
		t.Error("no loss was logged")
	}
}

func TestFollow_SurvivesRestart(t *testing.T) {
	s := kvtest.StartServer(t)
	core, logs := observer.New(zap.WarnLevel)
	cfg := prefixed("p/")
	cfg.StallAfter, cfg.Logger = time.Minute, zap.New(core) // only the server that stops ends watches
	f := follow(t, s.Client(), cfg)
	put(t, s.Client(), "p/a", "1")
	eventually(t, "the put", func() bool { return f.value("p/a") == "1" })
	s.Stop()
	eventually(t, "the loss", func() bool { return logs.Len() > 0 })
	s.Restart()
	put(t, s.Dial(), "p/b", "2") // the other client is not connected yet
	eventually(t, "a put after the restart", func() bool { return f.value("p/a") == "1" && f.value("p/b") == "2" })

	if n := f.resetCount(); n != 1 {
		t.Errorf("%d lists", n)
	}

	if n := logs.Len(); n != 1 {
		t.Errorf("%d losses were logged: %v", n, logs.All())
	}
}

func TestFollow_SlowApplyIsNoStall(t *testing.T) {
	t.Parallel()
	c := kvtest.Start(t)
	hold := make(chan struct{})
	cfg := prefixed("p/")
	cfg.StallAfter = 500 * time.Millisecond
	f := followHeld(t, c, cfg, hold)
	hold <- struct{}{} // the first list

	const writes = 300
	for i := range writes {
		put(t, c, "p/a", fmt.Sprint(i))
	}

	time.Sleep(3 * cfg.StallAfter) // apply takes this long
	close(hold)
	eventually(t, "all writes", func() bool { return f.value("p/a") == fmt.Sprint(writes-1) })

	if n := f.resetCount(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

func TestFollow_ReturnsApplysError(t *testing.T) {
	c := kvtest.Memory(t)
	enough := errors.New("enough")
	err := kv.Follow(t.Context(), c, prefixed("p/"), func(kv.Batch) error { return enough })
	if !errors.Is(err, enough) {
		t.Error(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	err = kv.Follow(ctx, c, prefixed("p/"), func(kv.Batch) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFollow_Relists(t *testing.T) {
	c := kvtest.Memory(t)
	cfg := prefixed("p/")
	cfg.Relist = 50 * time.Millisecond
	f := follow(t, c, cfg)

	for i := range 200 {
		put(t, c, "p/a", fmt.Sprint(i)) // the follower checks that nothing is delivered twice or out of order
		time.Sleep(time.Millisecond)    // so that lists happen between the writes
	}

	eventually(t, "three lists, and the last write", func() bool { return f.resetCount() >= 3 && f.value("p/a") == "199" })
}

// Three hundred goroutines follow ranges without changes. The progress probes of a few streams keep all of them
// alive.
func TestFollow_ManyShareFewPulses(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	count := counters(t, c)
	w := spoil(c)
	const many = 300
	const stall = 6 * time.Second // on a busy machine it may take long to open all watches

	follows := make([]*follower, many)
	for i := range follows {
		cfg := prefixed(fmt.Sprintf("p/%03d/", i))
		cfg.StallAfter = stall
		follows[i] = follow(t, c, cfg)
	}

	eventually(t, "all watches", func() bool { return w.opened.Load() >= many }) // a busy machine may need more

	for _, f := range follows {
		listed(t, f)
	}

	began, before := time.Now(), w.beats.Load()
	put(t, c, "elsewhere", "1")
	const streams = 4
	eventually(t, "more beats", func() bool { return w.beats.Load() >= before+4*streams })

	for _, f := range follows {
		if n := f.resetCount(); n != 1 {
			t.Fatalf("%d resets of a quiet range", n)
		}
	}

	open := streams + int32(count("carillon_watch_stalls_total")) // after each stall, the next watches of the class use another stream
	if beats, due := w.beats.Load()-before, open*(int32(time.Since(began)/(stall/3))+2); beats > due {
		t.Errorf("%d beats in %s, at most %d are due", beats, time.Since(began), due)
	}
}

// Nothing is written at all. etcd answers no progress request for a watch that starts at a future revision.
func TestFollow_IdleStoreIsNoStall(t *testing.T) {
	t.Parallel()
	s := embeddedtest.StartServer(t)
	var watchers []*watcher
	var follows []*follower
	for _, c := range []*kv.Client{s.Client(), s.InProcess()} {
		watchers = append(watchers, spoil(c))
		cfg := prefixed("p/")
		cfg.StallAfter = time.Second
		follows = append(follows, follow(t, c, cfg))
	}

	for i, f := range follows {
		eventually(t, "twelve beats, four times what a stall takes", func() bool { return watchers[i].beats.Load() >= 12 })
		if n := f.resetCount(); n != 1 {
			t.Errorf("%d resets", n)
		}
	}
}

// The content of a store that was restored from an older snapshot, or of another store, is not delivered.
func TestFollow_RefusesAStoreThatWentBack(t *testing.T) {
	s, other := kvtest.StartServer(t), kvtest.StartServer(t)
	p := s.Proxy()
	core, logs := observer.New(zap.WarnLevel)
	cfg := prefixed("p/")
	cfg.StallAfter, cfg.Logger = time.Minute, zap.New(core) // watches are opened only because of the store
	c := p.Client(kv.Config{})
	w := spoil(c)

	for i := range 10 {
		put(t, s.Client(), "p/a", fmt.Sprint(i))
	}

	put(t, other.Client(), "p/a", "old")
	f := follow(t, c, cfg)
	eventually(t, "the last put", func() bool { return f.value("p/a") == "9" })
	opened := w.opened.Load()
	p.Redirect(other)
	eventually(t, "the loss", func() bool { return logs.Len() > 0 })
	time.Sleep(300 * time.Millisecond) // time for a few attempts

	if f.value("p/a") != "9" || w.opened.Load() != opened {
		t.Errorf("it delivers %q, with %d watches", f.value("p/a"), w.opened.Load())
	}

	p.Redirect(s)
	put(t, s.Client(), "p/a", "10")
	eventually(t, "a put to the right store", func() bool { return f.value("p/a") == "10" })
}

func TestFollow_PassesSignsOfLifeOnIfTheyAreRequested(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)

	// Both watches share a stream, so both receive the same signs.
	signsOf := func(requested bool) <-chan kv.Batch {
		signs := make(chan kv.Batch, 100)
		cfg := prefixed("p/")
		cfg.StallAfter, cfg.Progress = time.Second, requested
		go func() {
			_ = kv.Follow(t.Context(), c, cfg, func(b kv.Batch) error {
				if b.Progress {
					signs <- b
				}
				return nil
			})
		}()

		return signs
	}

	silent, signs := signsOf(false), signsOf(true)

	for range 3 {
		if b := within(t, time.Minute, "a sign of life", signs); len(b.Events)+len(b.KVs) > 0 || b.Reset || b.Replayed {
			t.Errorf("a sign of life with content: %+v", b)
		}
	}

	if len(silent) > 0 {
		t.Error("signs of life that nobody has requested")
	}
}

// A progress notification may answer a request that is older than a watch, and may overtake events that the watch
// still has to catch up with. It must not advance the revision, because these events would then be dropped as
// delivered already.
func TestFollow_ProgressDoesNotMoveTheRevisionOn(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	w := spoil(c)
	cfg := prefixed("p/")
	cfg.StallAfter = time.Second
	f := follow(t, c, cfg)
	rev := put(t, c, "p/a", "1")
	eventually(t, "the put", func() bool { return f.value("p/a") == "1" })
	put(t, c, "elsewhere", "1")
	beats, before := w.beats.Load(), f.revision()
	eventually(t, "some beats, all but the last of them answered", func() bool { return w.beats.Load() >= beats+5 })

	if before != rev || f.revision() != rev {
		t.Errorf("delivered up to %d, then %d; the last event was at %d", before, f.revision(), rev)
	}
}
