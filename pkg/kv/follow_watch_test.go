package kv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// told returns the values of key in the order of the delivered events. A deletion is "-".
func (f *follower) told(key string) (values []string) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, b := range f.batches {
		for _, e := range b.Events {
			switch {
			case string(e.Kv.Key) != key:
			case e.Type == clientv3.EventTypeDelete:
				values = append(values, "-")
			default:
				values = append(values, string(e.Kv.Value))
			}
		}
	}

	return values
}

// wantEachOnce requires one list, and the writes 0 to n-1 of p/a as events, each once and in order.
func wantEachOnce(t *testing.T, f *follower, n int) {
	t.Helper()
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint(i))
	}

	eventually(t, "the last write", func() bool { return f.value("p/a") == fmt.Sprint(n-1) })

	if got := f.told("p/a"); !slices.Equal(got, want) || f.resetCount() != 1 {
		t.Errorf("the events contain %v after %d lists, want 0 to %d", got, f.resetCount(), n-1)
	}
}

// listed waits for the first list.
func listed(t *testing.T, f *follower) {
	t.Helper()
	eventually(t, "the first list", func() bool { return f.resetCount() > 0 })
}

func TestFollow_TellsOfWhatHappenedWhileItWasAway(t *testing.T) {
	t.Parallel()

	for name, outage := range map[string]func(s *kvtest.Server, p *kvtest.Proxy, write func()){
		"cut":    func(_ *kvtest.Server, p *kvtest.Proxy, write func()) { p.Cut(); write(); p.Mend() },
		"frozen": func(_ *kvtest.Server, p *kvtest.Proxy, write func()) { p.Freeze(); write(); p.Mend() },
		"server stopped": func(s *kvtest.Server, p *kvtest.Proxy, write func()) {
			p.Cut()
			write()
			s.Restart()
			p.Mend()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kvtest.StartServer(t)
			p := s.Proxy()
			core, logs := observer.New(zap.InfoLevel)
			cfg := prefixed("p/")
			cfg.StallAfter, cfg.Logger = time.Second, zap.New(core)
			f := follow(t, p.Client(kv.Config{CallTimeout: 300 * time.Millisecond}), cfg)
			listed(t, f)
			put(t, s.Client(), "p/a", "0")
			eventually(t, "a write", func() bool { return f.value("p/a") == "0" })
			outage(s, p, func() {
				for i := 1; i < 6; i++ {
					put(t, s.Client(), "p/a", fmt.Sprint(i))
				}

				eventually(t, "the loss", func() bool { return logs.FilterLevelExact(zap.WarnLevel).Len() > 0 })
				// Many attempts fail meanwhile. None of them is logged, so there is nothing to wait for.
				time.Sleep(2400 * time.Millisecond)
			})

			put(t, s.Dial(), "p/a", "6") // after a restart, the other client is not connected yet
			wantEachOnce(t, f, 7)
		})
	}
}

// The watched range is wider than the listed one, and changes outside of the list are not missed either.
func TestFollow_MissesNothingOutsideOfItsList(t *testing.T) {
	t.Parallel()
	s := kvtest.StartServer(t)
	p := s.Proxy()
	core, logs := observer.New(zap.WarnLevel)
	cfg := prefixed("p/queue/")
	cfg.WatchKey, cfg.WatchEnd = kv.Prefix("p/")
	cfg.StallAfter, cfg.Logger = time.Second, zap.New(core)
	f := follow(t, p.Client(kv.Config{CallTimeout: 300 * time.Millisecond}), cfg)
	listed(t, f)
	before := logs.Len() // on a busy machine a watch may have stalled before
	p.Freeze()
	eventually(t, "the loss", func() bool { return logs.Len() > before })
	put(t, s.Client(), "p/a", "0")
	put(t, s.Client(), "p/a", "1")
	p.Mend()
	wantEachOnce(t, f, 2)
}

// The store can be read, but three resumed watches in a row receive nothing. Follow lists the range.
func TestFollow_ListsWhenResumedWatchesStaySilent(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	w := spoil(c)
	cfg := prefixed("p/")
	cfg.StallAfter = 500 * time.Millisecond
	f := follow(t, c, cfg)
	put(t, c, "p/a", "0")
	eventually(t, "the put", func() bool { return f.value("p/a") == "0" })
	opened := w.opened.Load()
	w.stall("p/")
	put(t, c, "p/a", "1")
	eventually(t, "a list", func() bool { return f.value("p/a") == "1" })

	if n := w.opened.Load() - opened; n < 3 {
		t.Errorf("listed after %d resumptions", n)
	}

	if n := f.resetCount(); n != 2 {
		t.Errorf("%d lists", n)
	}

	w.stall("")
	put(t, c, "p/a", "2")
	eventually(t, "the next put", func() bool { return f.value("p/a") == "2" })
}

// The delivered revision is compacted while no watch is open.
func TestFollow_ListsWhatIsCompactedAway(t *testing.T) {
	t.Parallel()
	s := kvtest.StartServer(t)
	p := s.Proxy()
	core, logs := observer.New(zap.WarnLevel)
	cfg := prefixed("p/")
	cfg.StallAfter, cfg.Logger = time.Second, zap.New(core)
	c := p.Client(kv.Config{CallTimeout: 300 * time.Millisecond})
	count := counters(t, c)
	w := spoil(c)
	f := follow(t, c, cfg)
	put(t, s.Client(), "p/a", "0")
	put(t, s.Client(), "p/gone", "0")
	eventually(t, "the puts", func() bool { return f.value("p/gone") == "0" })
	before := logs.Len() // on a busy machine a watch may have stalled before
	p.Freeze()
	eventually(t, "the loss", func() bool { return logs.Len() > before })

	if _, err := s.Client().Delete(t.Context(), "p/gone"); err != nil {
		t.Fatal(err)
	}

	put(t, s.Client(), "p/a", "1")
	rev := put(t, s.Client(), "p/a", "2")
	if _, err := s.Client().Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}

	p.Mend()
	eventually(t, "the list", func() bool { return f.value("p/a") == "2" && f.value("p/gone") == "" })
	put(t, s.Client(), "p/a", "3")
	eventually(t, "the next put", func() bool { return f.value("p/a") == "3" })

	if n := f.resetCount(); n != 2 {
		t.Errorf("%d lists", n)
	}

	// The watches are the first one, the one that reports the compaction, and one after each stall, including
	// the one that was frozen.
	eventually(t, "no more watches than it takes", func() bool {
		return float64(w.opened.Load()) == 2+count("carillon_watch_stalls_total")
	})
}

// A store that had gone back has another history, even if its revision is higher than the delivered one by now.
func TestFollow_ListsAStoreThatHadGoneBack(t *testing.T) {
	t.Parallel()
	s, other := kvtest.StartServer(t), kvtest.StartServer(t)
	p := s.Proxy()
	core, logs := observer.New(zap.WarnLevel)
	cfg := prefixed("p/")
	cfg.StallAfter, cfg.Logger = time.Second, zap.New(core)
	c := p.Client(kv.Config{CallTimeout: 300 * time.Millisecond})
	r := spoilReads(c, func(int) error { return nil })
	f := follow(t, c, cfg)

	for i := range 10 {
		put(t, s.Client(), "p/a", fmt.Sprint(i))
	}

	put(t, s.Client(), "p/b", "of the one")
	eventually(t, "the puts", func() bool { return f.value("p/b") == "of the one" })
	lostBefore := logs.Len()
	p.Redirect(other)
	eventually(t, "the loss", func() bool { return logs.Len() > lostBefore })
	before := r.n.Load()
	eventually(t, "a few attempts", func() bool { return r.n.Load() > before+3 })

	if f.value("p/a") != "9" || f.resetCount() != 1 {
		t.Errorf("it delivers %q", f.value("p/a"))
	}

	for i := range 20 {
		put(t, other.Client(), "p/a", fmt.Sprint("other", i))
	}

	eventually(t, "the other store", func() bool { return f.value("p/a") == "other19" && f.value("p/b") == "" })
}

// relay is a Watcher that opens watches on the server that the test selects.
type relay struct {
	clientv3.Watcher
	mu     sync.Mutex
	to     clientv3.Watcher
	before func() // called for each watch after lead
}

func (r *relay) lead(to clientv3.Watcher, before func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to, r.before = to, before
}

func (r *relay) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	r.mu.Lock()
	to, before := r.to, r.before
	r.mu.Unlock()

	if before != nil {
		before()
	}

	return to.Watch(ctx, key, opts...)
}

func (r *relay) RequestProgress(ctx context.Context) error {
	r.mu.Lock()
	to := r.to
	r.mu.Unlock()

	return to.RequestProgress(ctx)
}

// Watches are opened on a member that does not have the last writes yet: another server, which gets the same writes
// later. Follow gives up each such watch immediately, although StallAfter is too long for anything to count as
// stalled.
func TestFollow_LeavesAMemberThatIsBehind(t *testing.T) {
	leader, behind := kvtest.StartServer(t), kvtest.StartServer(t)
	c, member := leader.Dial(), behind.Dial()
	r := &relay{Watcher: c.Watcher, to: c.Watcher}
	c.Watcher = r
	w := spoil(c)
	write := func(c *kv.Client, from, to int) {
		for i := from; i < to; i++ {
			put(t, c, "p/a", fmt.Sprint(i))
		}
	}

	cfg := prefixed("p/")
	cfg.StallAfter = time.Hour
	f := follow(t, c, cfg)
	listed(t, f)
	write(leader.Client(), 0, 10)
	eventually(t, "the writes", func() bool { return f.value("p/a") == "9" })
	write(behind.Client(), 0, 5)
	n := 0
	r.lead(member.Watcher, func() {
		if n++; n == 3 {
			write(behind.Client(), 5, 12)
		}
	})

	w.closeAll()
	wantEachOnce(t, f, 12)
}

// After a list that failed, no watch can be resumed.
func TestFollow_BrokenRelistBeginsAgain(t *testing.T) {
	c := kvtest.Memory(t)
	fill(t, c, 25)
	cfg := paged("p/", 10)
	cfg.Relist = time.Second
	spoilReads(c, func(n int) error {
		if n == 4 { // the second page of the second list
			put(t, c, "p/025", "25") // an event for a watch that should not be open
			return errors.New("broken")
		}
		return nil
	})

	f := follow(t, c, cfg)
	eventually(t, "a whole list after the broken one", func() bool { return f.resetCount() >= 3 && f.value("p/025") == "25" })
	f.mu.Lock()
	defer f.mu.Unlock()

	broken := slices.IndexFunc(f.batches[3:], func(b kv.Batch) bool { return b.Reset && b.More }) + 3
	if b := f.batches[broken+1]; !b.Reset || b.Page != 0 {
		t.Errorf("after a broken list comes %+v", b)
	}
}

// All workers of a node lose the server with all their watches, and recover. The test does not run in parallel to the
// other crowd, because each of them uses the whole machine.
func TestFollow_CrowdResumesAfterARestart(t *testing.T) {
	s := kvtest.StartServer(t)
	const crowd = 256
	core, logs := observer.New(zap.WarnLevel)
	follows := make([]*follower, crowd)
	key := func(i int) string { return fmt.Sprintf("p/%03d/a", i) }

	for i := range follows {
		cfg := prefixed(fmt.Sprintf("p/%03d/", i))
		cfg.StallAfter, cfg.Logger = 10*time.Second, zap.New(core) // opening this many watches at once takes time
		put(t, s.Client(), key(i), "listed")
		follows[i] = follow(t, s.Client(), cfg)
	}

	for _, f := range follows {
		listed(t, f)
	}

	s.Stop()
	eventually(t, "the loss", func() bool { return logs.Len() > 0 })
	s.Restart()

	writer := s.Dial() // the other client is not connected yet
	for i := range follows {
		put(t, writer, key(i), "0")
		put(t, writer, key(i), "1")
	}

	lists := 0
	for i, f := range follows {
		eventually(t, "the last put", func() bool { return f.value(key(i)) == "1" })
		if got := f.told(key(i)); !slices.Equal(got, []string{"0", "1"}) {
			t.Errorf("%s: the events contain %v", key(i), got)
		}
		lists += f.resetCount()
	}

	if lists != crowd {
		t.Errorf("%d lists for %d ranges", lists, crowd)
	}
}
