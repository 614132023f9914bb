package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/node"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// runningEngine is an engine whose loops run. Its clock is time.Now, which is virtual in a synctest bubble.
type runningEngine struct {
	*Engine
	gate   *commitGate
	fences store.Fences
	stop   context.CancelFunc
	work   chan error
}

// run makes a node the owner and serves the shard.
func (w *world) run(node string, change ...func(*Engine)) *runningEngine {
	w.Helper()
	e, d := w.engine(node)
	e.cfg.Now = time.Now

	for _, f := range change {
		f(e)
	}

	nodes, err := w.store.Nodes(w.ctx)
	w.ok(err)
	e.cfg.Fleet.Set(nodes)
	ctx, cancel := context.WithCancel(w.ctx)
	r := &runningEngine{Engine: e, gate: d, fences: w.assign(node), stop: cancel, work: make(chan error, 1)}
	d.die = func() {}
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Run(ctx) })
	wg.Go(func() { r.work <- e.Work(ctx, 0, r.fences) })
	w.Cleanup(func() { cancel(); wg.Wait() })

	return r
}

// setClockToNow sets the world's clock to time.Now.
func (w *world) setClockToNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = time.Now()
}

func TestEngine_FiresInTime(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2").judged()
		w.setClockToNow()
		r := w.run("n1")
		w.create("a", allow, every("200ms"))
		w.create("b", allow, every("300ms"))
		w.eventually("both fire", func() bool { return len(w.active("a")) > 1 && len(w.active("b")) > 0 })
		// Another node takes over. The first worker stops by itself.
		w.run("n2")

		if err := <-r.work; !errors.Is(err, task.ErrFenced) {
			t.Errorf("the fenced worker ends with %v", err)
		}

		n := len(w.active("a"))
		w.eventually("it goes on", func() bool { return len(w.active("a")) > n+2 })

		if len(r.workers) != 0 {
			t.Error("the fenced worker is still there")
		}
	})
}

func TestEngine_RunsWhatIsTriggeredAndWhatANodeMakesPossible(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		r := w.run("n1")
		w.create("a", cronned("@manual"))
		w.create("b", cronned("@manual"), on("role = db"))
		w.trigger("a")
		w.trigger("b")
		w.eventually("a runs", func() bool { return len(w.active("a")) == 1 })
		w.eventually("b says why it waits", func() bool {
			runs, err := w.store.Runs(w.ctx, ref("b"))
			w.ok(err)
			return runs[0].Reason == task.ReasonNoNode
		})

		w.join("db", "role=db")
		nodes, err := w.store.Nodes(w.ctx)
		w.ok(err)
		r.cfg.Fleet.Set(nodes)
		r.WakeWorkers()
		w.eventually("b runs", func() bool { return len(w.active("b")) == 1 })
	})
}

func TestEngine_RetriesInTime(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		w.run("n1")
		w.create("a", cronned("@manual"), retries(2, 300*time.Millisecond, task.Failed))
		w.trigger("a")
		w.eventually("it runs", func() bool { return len(w.active("a")) == 1 })
		w.setClockToNow()
		w.finish("a", task.Failed)
		w.eventually("it runs again", func() bool {
			all := w.active("a")
			return len(all) == 1 && all[0].Attempt == 2
		})

		if a := w.active("a")[0]; a.DispatchedAt.Before(w.clock().Add(290 * time.Millisecond)) {
			t.Errorf("tried again at %s, it failed at %s", a.DispatchedAt, w.clock())
		}
	})
}

func TestEngine_LoadsAgainAfterAGapInTheWatchAndAStrangersWatermark(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		gaps := &gapOnce{cut: make(chan struct{})}
		r := w.run("n1", func(e *Engine) { gaps.Store, e.cfg.Store = e.cfg.Store, gaps })
		w.create("a", cronned("@manual"), allow)
		w.trigger("a")
		w.eventually("it runs", func() bool { return len(w.active("a")) == 1 })
		close(gaps.cut)
		w.eventually("the shard is opened again", func() bool { return gaps.opens() == 2 })
		w.trigger("a")
		w.eventually("it runs again", func() bool { return len(w.active("a")) == 2 })

		_, _, err := w.store.Open(w.ctx, 0, r.fences) // another process with our fences
		w.ok(err)
		w.trigger("a")
		w.eventually("it runs a third time", func() bool { return len(w.active("a")) == 3 })

		if n := gaps.opens(); n != 3 {
			t.Errorf("the shard was opened %d times", n)
		}

		w.eventually("three attempts are counted for n1", func() bool { // the last one is counted when its commit is answered
			return r.cfg.Fleet.Given(placement.ProcessSlots)["n1"] == 3
		})
	})
}

// gapOnce is a store whose first watch misses events when cut is called.
type gapOnce struct {
	Store
	cut     chan struct{}
	mu      sync.Mutex
	follows int
	opened  int
}

func (g *gapOnce) opens() int { g.mu.Lock(); defer g.mu.Unlock(); return g.opened }

func (g *gapOnce) Open(ctx context.Context, shard int, f store.Fences) (record.Watermark, int64, error) {
	g.mu.Lock()
	g.opened++
	g.mu.Unlock()

	return g.Store.Open(ctx, shard, f)
}

func (g *gapOnce) FollowShard(ctx context.Context, shard int, rev int64, apply func(store.ShardBatch) error) error {
	g.mu.Lock()
	g.follows++
	first := g.follows == 1
	g.mu.Unlock()

	if !first {
		return g.Store.FollowShard(ctx, shard, rev, apply)
	}

	wctx, cancel := context.WithCancel(ctx)
	defer cancel()

	go func() {
		select {
		case <-g.cut:
		case <-wctx.Done():
		}
		cancel()
	}()

	_ = g.Store.FollowShard(wctx, shard, rev, apply)

	if ctx.Err() != nil {
		return ctx.Err()
	}

	return apply(store.ShardBatch{Reset: true, First: true, Revision: rev})
}

// A shard that waits for its load may be loaded at a later revision, because the earlier one was compacted.
// The watch does not report an end in between. A scan that began before it would therefore keep the attempt
// active forever.
func TestEngine_AnEndBetweenTheScanAndALateLoadIsNoActiveRun(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1")
		w.setClockToNow()
		w.create("a", cronned("@manual"))
		first := w.run("n1")
		w.trigger("a")
		w.eventually("it runs", func() bool { return len(w.active("a")) == 1 })
		first.stop()
		<-first.work
		w.run("n1", func(e *Engine) {
			late := &lateLoad{Store: e.cfg.Store, scanned: make(chan struct{}), before: func() { w.finish("a", task.Succeeded) }}
			e.cfg.Store, e.scans = late, node.NewActiveScanner(late.ScanActive)
		})

		w.eventually("it has ended", func() bool { return len(w.active("a")) == 0 })
		w.trigger("a")
		w.eventually("it runs again", func() bool { return len(w.active("a")) == 1 })
	})
}

// lateLoad is a store that loads the newest revision, as if the requested one were compacted. It runs a
// function between the scan and the load.
type lateLoad struct {
	Store
	once    sync.Once
	scanned chan struct{}
	before  func()
}

func (l *lateLoad) ScanActive(ctx context.Context) ([]store.ActiveKey, int64, error) {
	defer l.once.Do(func() { close(l.scanned) })
	return l.Store.ScanActive(ctx)
}

func (l *lateLoad) FollowShard(ctx context.Context, shard int, _ int64, apply func(store.ShardBatch) error) error {
	select {
	case <-l.scanned:
	case <-ctx.Done():
		return ctx.Err()
	}

	l.before()

	return l.Store.FollowShard(ctx, shard, 0, apply)
}

// Only a few shards are loaded at a time. A load that fails makes room for others.
func TestEngine_LoadsThatFailHoldUpNoOthers(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		w.create("a", cronned("@manual"))
		w.trigger("a")
		w.run("n1", func(e *Engine) { e.cfg.Store = &tornLists{Store: e.cfg.Store, left: loadsAtOnce + 1} })
		w.eventually("it runs", func() bool { return len(w.active("a")) == 1 })
	})
}

// tornLists is a store whose first loads end after a page, and start over.
type tornLists struct {
	Store
	left int
}

func (l *tornLists) FollowShard(ctx context.Context, shard int, rev int64, apply func(store.ShardBatch) error) error {
	if l.left == 0 {
		return l.Store.FollowShard(ctx, shard, rev, apply)
	}

	l.left--
	page := store.ShardBatch{Reset: true, First: true, More: true, Revision: rev}
	if err := apply(page); err != nil {
		return err
	}

	return apply(page)
}

func TestEngine_DamagedShardIsAnError(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1")
		w.delete(w.store.Keys().Watermark(0))

		r := w.run("n1")
		if err := <-r.work; !errors.Is(err, store.ErrDamaged) {
			t.Errorf("the worker ends with %v", err)
		}
	})
}

func TestEngine_SaysWhatIsOverdue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.startOwner("n1")
	e := h.e
	e.workers[0] = h.worker

	overdue := func(s float64) bool { return e.Overdue(sec(s), 5*time.Second) != nil }
	if overdue(5) || !overdue(5.1) {
		t.Error("a shard that is not loaded is overdue after five seconds")
	}

	h.open()
	w.create("a", cronned("0 0 * * * *"))
	h.decide(10)
	h.serving.Store(true)
	h.sleepFor()

	if overdue(3600) || overdue(3605) || !overdue(3605.1) {
		t.Error("a tick at +3600 is overdue five seconds later")
	}

	// The shard is open and not loaded. A next tick in an hour must not make it look healthy.
	w.at(20)
	w.ok(h.load())

	if overdue(25) || !overdue(25.1) {
		t.Error("a shard that is loaded again is overdue after five seconds")
	}
}

// A timer does not count the time during which a machine is suspended, nor steps of the clock.
func TestWorker_LooksAtTheClockNowAndThen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", cronned("0 0 * * * *"))
	h.decide(1)

	if d := h.sleepFor(); d > 10*time.Second {
		t.Errorf("sleeps for %s without a look at the clock", d)
	}
}

// startTrimming opens the shard for a worker whose engine trims histories until the test ends.
func startTrimming(t *testing.T, w *world, e *Engine) *testWorker {
	t.Helper()
	h := &testWorker{worker: newWorker(e, 0, w.assign("n1")), world: w, leave: func() {}}
	h.ctx, h.die = context.WithCancel(w.ctx)
	h.fleet()
	h.open()

	go func() { _ = e.trims.Run(h.ctx) }()
	t.Cleanup(func() {
		h.die()
		h.leave()
	})

	return h
}

func TestEngine_KeepsHistoryAtItsLength(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1")
		e, _ := w.engine("n1")
		h := startTrimming(t, w, e)
		w.create("a", every("15m"), keep(8))
		w.create("b", every("15m"), allow)

		for s := 1; s <= 30; s++ {
			h.decide(float64(900 * s))
			if s%2 == 0 {
				w.finish("a", task.Succeeded)
			}
		}

		h.decide(30*900 + 1)
		w.eventually("the history is trimmed", func() bool {
			past, err := w.store.History(w.ctx, ref("a"), false)
			w.ok(err)
			return len(past) >= 8 && len(past) < 8+2
		})

		got := w.story("a")
		if last := got[len(got)-1]; last != "+27000 skipped overlap" {
			t.Errorf("the newest is %q", last)
		}

		if n := len(w.story("b")); n != 30 {
			t.Errorf("of another task %d runs are left", n)
		}
	})
}

// A history is trimmed even if the shard changes its owner after every few runs.
func TestEngine_KeepsHistoryAtItsLengthAcrossOwners(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("@manual"), func(t *task.Task) { t.History.Keep = 8 })

	asked := 0
	for i := range 100 {
		e, _ := w.engine("n1")
		h := newWorker(e, 0, store.Fences{})
		h.discardState()
		st, err := w.store.Task(w.ctx, ref("a"))
		w.ok(err)
		h.applyToShard(store.ShardBatch{Reset: true, Revision: 1, Events: []store.ShardEvent{
			{ShardKey: record.ShardKey{Kind: record.KindEntry, Ref: ref("a")}, Task: "default/a", Mod: 5, Create: 5, Value: written(st.Entry)}}})
		h.applyToShard(store.ShardBatch{Revision: int64(i), Events: []store.ShardEvent{
			{ShardKey: record.ShardKey{Kind: record.KindEnded, Ref: ref("a"), Run: "r"}, Task: "default/a", Mod: 6, Create: 6}}})
		asked += len(e.trims.Pending())
	}

	if asked < 20 || asked > 80 {
		t.Errorf("100 owners that each saw one run end asked for %d trims; of those who see two ends one in each is due", asked)
	}
}

// For a task that keeps failures only, all successes but the newest record are deleted, and failures only
// if there are too many.
func TestEngine_KeepsFailuresOnly(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		e, _ := w.engine("n1")
		h := startTrimming(t, w, e)
		w.create("a", every("15m"), func(t *task.Task) { t.History = task.History{Keep: 3, Record: task.RecordFailures} })

		want := []string{}
		for s := 1; s <= 40; s++ {
			h.decide(float64(900 * s))

			if s == 40 {
				break
			}

			state := task.Succeeded
			if s%9 == 0 {
				state = task.Failed
				want = append(want, fmt.Sprintf("+%d failed", 900*s))
			}

			w.finish("a", state)
		}

		w.finish("a", task.Succeeded)
		h.decide(40*900 + 1)
		want = append(want[len(want)-2:], "+36000 succeeded")
		w.eventually("the history is trimmed", func() bool { return slices.Equal(w.story("a"), want) })
	})
}

func TestTrimmer_NeverPanicsAndNeverTrimsAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	f := w.assign("n1")
	e, _ := w.engine("n1")

	for i := range 5 {
		w.put(w.store.Keys().Ended(ref("a"), fmt.Sprint(i)), "{}")
	}

	none := new(task.Duration) // no ledger
	for _, keep := range []int{10, 5, 4, 1} {
		w.ok(e.trims.Trim(w.ctx, background.Trim{Fences: f, Ref: ref("a"), History: task.History{Keep: keep, Record: task.RecordAll, Ledger: none}}))
		past, err := w.store.History(w.ctx, ref("a"), false)
		w.ok(err)

		if len(past) != min(keep, 5) || past[len(past)-1].ID != "4" {
			t.Errorf("with keep %d there are %v", keep, past)
		}
	}

	w.assign("n2")
	w.put(w.store.Keys().Ended(ref("a"), "5"), "{}")

	if err := e.trims.Trim(w.ctx, background.Trim{Fences: f, Ref: ref("a"), History: task.History{Keep: 1, Ledger: none}}); !errors.Is(err, task.ErrFenced) {
		t.Errorf("a fenced owner's trim: %v", err)
	}
}
