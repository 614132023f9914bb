package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// watches counts the watches of a client, and breaks them on demand.
type watches struct {
	clientv3.Watcher
	instead atomic.Pointer[clientv3.Watcher] // used instead of Watcher, if set

	mu   sync.Mutex
	next int
	open map[int]context.CancelFunc
}

// observeWatches replaces the Watcher of c.
func observeWatches(c *kv.Client) *watches {
	w := &watches{Watcher: c.Watcher, open: map[int]context.CancelFunc{}}
	c.Watcher = w

	return w
}

func (w *watches) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	ctx, cancel := context.WithCancel(ctx)

	w.mu.Lock()
	id := w.next
	w.next++
	w.open[id] = cancel
	w.mu.Unlock()

	context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, id)
	})

	return w.current().Watch(ctx, key, opts...)
}

func (w *watches) RequestProgress(ctx context.Context) error { return w.current().RequestProgress(ctx) }

func (w *watches) current() clientv3.Watcher {
	if other := w.instead.Load(); other != nil {
		return *other
	}
	return w.Watcher
}

// count returns how many watches are open now.
func (w *watches) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.open)
}

// breakAll ends all watches.
func (w *watches) breakAll() {
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, cancel := range w.open {
		cancel()
	}
}

// hub is a running hub of a cluster.
type hub struct {
	*cluster
	*eventlog.Hub
	watches *watches
	stop    func() // ends Run
}

// newHub runs a hub until the test ends.
func newHub(t *testing.T, ringSize int) *hub {
	t.Helper()
	return newHubOf(t, newCluster(t), ringSize)
}

// newHubOf runs a hub of a cluster until the test ends, in a bubble of synctest.
func newHubOf(t *testing.T, c *cluster, ringSize int) *hub {
	t.Helper()
	h := &hub{cluster: c, Hub: eventlog.NewHub(c.log, nil), watches: observeWatches(c.etcd)}
	h.SetRingSize(ringSize)

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = h.Run(ctx) }()
	h.stop = func() { cancel(); <-done }
	t.Cleanup(h.stop)
	synctest.Wait()

	return h
}

// reading is a reader of a hub, or of a log, that runs in the background.
type reading struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	events []task.Event
	told   []task.Place // of each batch
	err    error        // once done is closed
}

// startReading runs follow until the test ends. before, if set, is called before each batch is taken.
func startReading(t testing.TB, before func(), follow func(context.Context, func(eventlog.Batch) error) error) *reading {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &reading{cancel: cancel, done: make(chan struct{})}
	t.Cleanup(func() { cancel(); <-r.done })

	go func() {
		defer close(r.done)
		r.err = follow(ctx, func(b eventlog.Batch) error {
			if before != nil {
				before()
			}

			r.mu.Lock()
			defer r.mu.Unlock()
			for _, e := range b.Events {
				r.events = append(r.events, e.Event)
			}
			r.told = append(r.told, b.Told)

			return ctx.Err()
		})
	}()

	return r
}

// read starts a reader of the hub. It returns the error of Open.
func (h *hub) read(q eventlog.Query, before func()) (*reading, error) {
	reader, err := h.Open(h.Context(), q)
	if err != nil {
		return nil, err
	}

	return startReading(h, before, func(ctx context.Context, apply func(eventlog.Batch) error) error {
		defer reader.Close()
		return reader.Follow(ctx, apply)
	}), nil
}

// mustRead starts a reader of the hub.
func (h *hub) mustRead(q eventlog.Query) *reading {
	h.Helper()
	r, err := h.read(q, nil)
	ok(h, err)

	return r
}

// stopReading ends a reader and waits for its end.
func (r *reading) stopReading() {
	r.cancel()
	<-r.done

	if !errors.Is(r.err, context.Canceled) {
		panic(fmt.Sprint("a reader has ended with ", r.err))
	}
}

// place returns the place up to which everything was read.
func (r *reading) place() task.Place {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.told) == 0 {
		return task.Place{}
	}

	return r.told[len(r.told)-1]
}

// all returns the events that were read.
func (r *reading) all() []task.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// putTask writes a task, which is one event.
func (c *cluster) putTask(n int) (revision int64) {
	c.Helper()
	return c.put(c.keys.Spec(record.Ref{Namespace: "many", Name: fmt.Sprint("t", n)}), `{"generation":1}`)
}

// settle waits until everything that can happen has happened, including retries.
func settle() {
	time.Sleep(10 * time.Second)
	synctest.Wait()
}

func TestHub_SharesOneWatchWhileThereAreReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, 100)
		settle()

		if n := h.watches.count(); n != 0 {
			t.Errorf("%d watches without readers", n)
		}

		var readers []*reading
		for range 100 {
			readers = append(readers, h.mustRead(eventlog.Query{}))
		}

		settle()
		for n := range 20 {
			h.putTask(n)
		}

		settle()

		if n := h.watches.count(); n != 1 {
			t.Errorf("%d watches of 100 readers", n)
		}

		for i, r := range readers {
			if got := r.all(); len(got) != 20 {
				t.Fatalf("reader %d has %d events", i, len(got))
			}
			r.stopReading()
		}

		time.Sleep(eventlog.Linger - time.Second)
		synctest.Wait()
		if n := h.watches.count(); n != 1 {
			t.Errorf("%d watches soon after the last reader", n)
		}

		// A reader in between begins a new period.
		h.mustRead(eventlog.Query{}).stopReading()
		time.Sleep(eventlog.Linger - time.Second)
		synctest.Wait()
		if n := h.watches.count(); n != 1 {
			t.Errorf("%d watches after a short reader", n)
		}

		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := h.watches.count(); n != 0 {
			t.Errorf("%d watches long after the last reader", n)
		}

		// The hub opens again, and finds the last events.
		after := task.After(h.revision() - 5)
		r := h.mustRead(eventlog.Query{After: &after, OwnWatch: noWatch})
		settle()
		if got := r.all(); len(got) != 5 || h.watches.count() != 1 {
			t.Errorf("%d events, %d watches", len(got), h.watches.count())
		}
		r.stopReading()
	})
}

// noWatch refuses watches.
func noWatch() (func(), error) { return nil, errFull }

var errFull = errors.New("no watch is free")

func TestHub_ServesPagesWithoutOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, 100)
		h.putTask(1)

		if _, err := h.read(eventlog.Query{After: &task.Place{}, Brief: true, OwnWatch: noWatch}, nil); !errors.Is(err, errFull) {
			t.Errorf("without a watch: %v", err)
		}

		page := h.mustRead(eventlog.Query{After: &task.Place{}, Brief: true})
		settle()
		if n := h.watches.count(); n != 1 || len(page.all()) != 1 {
			t.Errorf("%d watches, %d events", n, len(page.all()))
		}

		page.stopReading()
		synctest.Wait()
		if n := h.watches.count(); n != 0 {
			t.Errorf("%d watches after the page", n)
		}

		stream := h.mustRead(eventlog.Query{})
		settle()
		first := task.After(1)
		page = h.mustRead(eventlog.Query{After: &first, Brief: true, OwnWatch: noWatch})
		synctest.Wait()
		if n := h.watches.count(); n != 1 || len(page.all()) != 1 {
			t.Errorf("beside a stream: %d watches, %d events", n, len(page.all()))
		}

		page.stopReading()
		stream.stopReading()
	})
}

func TestHub_SlowReaderDelaysNobodyAndMissesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, 10)
		release, waiting := make(chan struct{}), false
		slow, err := h.read(eventlog.Query{}, func() {
			if waiting {
				<-release
			}
			waiting = true // the first batch has no events
		})
		ok(t, err)
		fast := h.mustRead(eventlog.Query{})
		settle()

		for n := range 50 {
			h.putTask(n)
			synctest.Wait()

			if got := len(fast.all()); got != n+1 {
				t.Fatalf("the fast reader has %d events of %d", got, n+1)
			}
		}

		if n := h.watches.count(); n != 1 {
			t.Errorf("%d watches while the slow reader waits", n)
		}

		close(release)
		settle()

		if got := len(slow.all()); got != 50 || h.Stats().Behind == 0 {
			t.Errorf("the slow reader has %d events, and was behind %d times", got, h.Stats().Behind)
		}

		if n := h.watches.count(); n != 1 {
			t.Errorf("%d watches after it has caught up", n)
		}

		slow.stopReading()
		fast.stopReading()
	})
}

// A reader whose place the ring has lost waits for a watch. It does not end.
func TestHub_ReaderWaitsForAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, 10)
		release, waiting := make(chan struct{}), false
		var free atomic.Bool
		var held atomic.Int32
		slow, err := h.read(eventlog.Query{OwnWatch: func() (func(), error) {
			if !free.Load() {
				return nil, errFull
			}

			held.Add(1)

			return func() { held.Add(-1) }, nil
		}}, func() {
			if waiting {
				<-release
			}
			waiting = true
		})
		ok(t, err)
		settle()

		for n := range 30 {
			h.putTask(n)
			synctest.Wait()
		}

		close(release)
		settle()
		if got := len(slow.all()); got == 30 {
			t.Error("the ring has lost nothing")
		}

		free.Store(true)
		settle()
		if got := len(slow.all()); got != 30 || held.Load() != 0 {
			t.Errorf("%d events, and %d watches after it has caught up", got, held.Load())
		}

		slow.stopReading()
	})
}

// A hub whose watch breaks continues without loss. If etcd has compacted what comes next, it reports the gap.
func TestHub_ContinuesAfterItsWatchHasBroken(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprint("compacted ", compacted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHub(t, 100)
				r := h.mustRead(eventlog.Query{Wants: task.EventFilter{Namespace: "many"}.Wants})
				settle()
				before := h.putTask(0)
				synctest.Wait()
				h.watches.breakAll()
				synctest.Wait()

				for n := 1; n <= 10; n++ {
					h.putTask(n)
				}

				if compacted {
					_, err := h.etcd.Compact(t.Context(), h.revision()-2)
					ok(t, err)
				}

				settle()

				got := r.all()
				if !compacted && len(got) != 11 {
					t.Errorf("%d events", len(got))
				}

				if gap := got[min(1, len(got)-1)]; compacted && (len(got) != 4 || gap.Kind != task.EventGap || gap.From != before+1 || gap.To != h.revision()-2) {
					t.Errorf("%d events, %+v", len(got), gap)
				}

				// The ring still has what etcd has compacted, and the gap.
				after := task.After(before - 1)
				late := h.mustRead(eventlog.Query{After: &after, OwnWatch: noWatch})
				settle()
				if len(late.all()) != len(got) {
					t.Errorf("a later reader has %d events, want %d", len(late.all()), len(got))
				}

				// A reader that begins within the gap misses only a part of it.
				if compacted {
					after = task.After(before + 3)
					within := h.mustRead(eventlog.Query{After: &after, OwnWatch: noWatch})
					settle()
					if gap := within.all()[0]; gap.Kind != task.EventGap || gap.From != before+4 || gap.To != h.revision()-2 {
						t.Errorf("within the gap: %+v", gap)
					}
					within.stopReading()
				}

				r.stopReading()
				late.stopReading()
			})
		})
	}
}

// Without Run, each reader has a watch of its own, also if Run ends while it reads.
func TestHub_LeavesReadersTheirOwnWatchesWhenItDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, 100)
		readers := []*reading{h.mustRead(eventlog.Query{}), h.mustRead(eventlog.Query{})}
		settle()
		h.putTask(0)
		h.stop()
		h.putTask(1)
		readers = append(readers, h.mustRead(eventlog.Query{}))
		settle()
		h.putTask(2)
		settle()

		for i, want := range []int{3, 3, 1} {
			if got := len(readers[i].all()); got != want {
				t.Errorf("reader %d has %d events, want %d", i, got, want)
			}
		}

		if n := h.watches.count(); n != 3 {
			t.Errorf("%d watches", n)
		}

		for _, r := range readers {
			r.stopReading()
		}
	})
}

// panickingWatcher panics in its first watch.
type panickingWatcher struct {
	clientv3.Watcher
	watched *atomic.Int32
}

func (w panickingWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	if w.watched.Add(1) == 1 {
		panic("on purpose")
	}
	return w.Watcher.Watch(ctx, key, opts...)
}

// A panic of the hub would end the node. Its readers continue with watches of their own.
func TestHub_LeavesReadersTheirOwnWatchesAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, 100)
		var panicking clientv3.Watcher = panickingWatcher{h.watches.Watcher, new(atomic.Int32)}
		h.watches.instead.Store(&panicking)

		r := h.mustRead(eventlog.Query{})
		settle()
		h.putTask(0)
		settle()

		if got := len(r.all()); got != 1 {
			t.Errorf("the reader has %d events, want 1", got)
		}
		r.stopReading()
	})
}

// After etcd was restored from an older snapshot, the ring has events that etcd does not have.
func TestHub_DiscardsItsRingWhenEtcdWasRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, restored := newHub(t, 100), newCluster(t)
		r := h.mustRead(eventlog.Query{OwnWatch: noWatch})
		settle()
		for n := range 20 {
			h.putTask(n)
		}

		settle()

		for n := range 8 {
			restored.putTask(100 + n)
		}

		h.etcd.KV = &restoredKV{h.etcd.KV, restored.etcd.KV}
		h.watches.instead.Store(&restored.etcd.Watcher)
		h.watches.breakAll()
		settle()

		after := task.After(6)
		late := h.mustRead(eventlog.Query{After: &after, OwnWatch: noWatch})
		settle()
		restored.putTask(200)
		settle()

		if got := late.all(); len(got) != 4 || got[0].Task != "t105" || got[3].Task != "t200" {
			t.Errorf("the later reader has %+v", got)
		}

		if got := r.all(); len(got) != 22 || got[20].Action != task.ActionRestored || got[20].To != 9 || got[21].Task != "t200" {
			t.Errorf("the reader has %d events: %+v", len(got), got[len(got)-2:])
		}

		r.stopReading()
		late.stopReading()
	})
}

// restoredKV reads from another store.
type restoredKV struct {
	clientv3.KV
	restored clientv3.KV
}

func (k *restoredKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return k.restored.Get(ctx, key, opts...)
}
