package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillonhq/carillon/pkg/scheduler/node"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// preloadFixture is a node's engine that preloads the shard.
type preloadFixture struct {
	*world
	e      *Engine
	gate   *commitGate
	loaded chan struct{}
	was    bool // it was loaded at least once
	ended  chan error
	stop   context.CancelFunc
}

// preload makes a node preload the shard. change may replace the engine's store.
func (w *world) preload(node string, change func(*Engine)) *preloadFixture {
	w.Helper()
	e, d := w.engine(node)

	if change != nil {
		change(e)
	}

	a := &preloadFixture{world: w, e: e, gate: d, loaded: make(chan struct{}, 100), ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(w.ctx)
	a.stop = stop
	go func() { a.ended <- e.Preload(ctx, 0, func() { a.loaded <- struct{}{} }) }()
	w.Cleanup(stop)
	nodes, err := w.store.Nodes(w.ctx)
	w.ok(err)
	e.cfg.Fleet.Set(nodes)

	return a
}

func (pf *preloadFixture) isLoaded() {
	pf.Helper()

	select {
	case <-pf.loaded:
		pf.was = true
	case err := <-pf.ended:
		pf.Fatalf("the preload ended with %v", err)
	case <-time.After(time.Minute):
		pf.Fatal("the shard is not loaded")
	}
}

// takeOver makes the node the owner. Its worker has opened the shard and has not scanned yet.
func (pf *preloadFixture) takeOver() *testWorker {
	pf.Helper()
	fences := pf.assign(pf.e.cfg.Node)

	p := pf.e.takePreload(0)
	if p == nil { // nothing is loaded yet
		h := pf.worker(pf.e.cfg.Node, fences)
		h.e.cfg.Now = pf.e.cfg.Now
		pf.ok(h.load())

		return h
	}

	h := &testWorker{worker: p.handOver(fences), world: pf.world, gate: pf.gate}
	f := h.preloaded
	h.ctx, h.die = context.WithCancel(pf.ctx)
	pf.gate.die = h.die
	h.batches, h.leave = f.Batches, func() { f.Stop(); h.leave = func() {} }
	pf.Cleanup(func() { h.die(); h.leave() })
	scanning, stop := context.WithCancel(pf.ctx)
	defer stop()

	go pf.e.scans.Run(scanning)
	_, err := h.openLoaded(pf.ctx, h.batches)
	pf.ok(err)

	if err := <-pf.ended; err != nil {
		pf.Errorf("the preload ended with %v", err)
	}

	return h
}

// knows returns everything that a worker knows about its shard, for comparison.
func (tw *testWorker) knows() string {
	var s strings.Builder
	m := tw.state.records.Watermark
	fmt.Fprintf(&s, "mark %s %q %d\n", m.Time.Format(time.RFC3339Nano), m.Last, m.Seen)

	for _, t := range slices.SortedFunc(tw.state.records.Tasks.All(), state.ByName) {
		if !t.Present && t.Activity == nil {
			continue
		}

		fmt.Fprintf(&s, "%s %q present %t bad %t", t.FullName(), t.Text, t.Present, t.Bad)

		if t.Present {
			fmt.Fprintf(&s, " paused %t mod %d create %d", t.Paused, t.Mod, t.Create)
		}

		if t.Present && !t.Bad {
			fmt.Fprintf(&s, " generation %d from %d anchor %d next %d %s %s", t.Generation, t.From, t.Anchor, t.Next, t.Timing.Text, t.Policy.Text)
		}

		if t.Next != 0 {
			fmt.Fprintf(&s, " second %d", t.Second)
		}

		if _, uncovered := tw.state.uncovered[t]; uncovered {
			s.WriteString(" uncovered")
		}

		for _, q := range t.Queue() {
			fmt.Fprintf(&s, "\n  waits %s %d %+v", q.ID, q.Mod, q.Waiting)
		}

		active := slices.SortedFunc(slices.Values(t.Active()), func(a, b *state.Attempt) int { return strings.Compare(a.Run, b.Run) })
		for _, a := range active {
			fmt.Fprintf(&s, "\n  runs %s on %s %d", a.Run, a.Node, a.Create)
		}

		s.WriteByte('\n')
	}

	fmt.Fprintf(&s, "%d due", len(tw.state.due))

	return s.String()
}

// Owners decide, fail and are replaced, users change tasks, and runs end. Meanwhile another node preloads
// the shard and takes over. It must then have the same state as after a load at its opening.
func TestPreload_TakesOverAsIfItHadLoadedAfterTheOpening(t *testing.T) {
	t.Parallel()

	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			g := newGame(newWorld(t), 1000+seed)

			for range 40 {
				g.step()
			}

			g.loadAhead()

			for range 60 {
				g.step()
				if g.ahead == nil {
					g.loadAhead()
				}
			}

			for len(g.present()) == 0 || g.gone[g.ahead.e.cfg.Node] != "" || g.sessions[g.ahead.e.cfg.Node].Key == "" {
				g.churn()
			}

			if !g.ahead.was {
				g.ahead.isLoaded()
			}

			var users sync.WaitGroup
			users.Go(func() { // they continue meanwhile
				for i := range 5 {
					task, entry := g.newTask(fmt.Sprintf("late%d", i), start)
					if _, err := g.store.CreateTask(g.ctx, ref(task.Name), task, entry); err != nil {
						t.Error(err)
					}
				}
			})

			h := g.ahead.takeOver()
			g.ahead = nil
			users.Wait()
			h.scan()
			h.see()
			cold := g.worker(h.e.cfg.Node, h.state.fences)
			cold.open()
			cold.see()

			if got, want := h.knows(), cold.knows(); got != want {
				t.Errorf("the preload has\n%s\na load has\n%s", got, want)
			}

			h.leave()
			g.tasks = append(g.tasks, "late0", "late1", "late2", "late3", "late4")
			g.addWorker(cold)
			g.heal()
		})
	}
}

// A run that ended during the scan is not active.
func TestPreload_AnEndBetweenTheScanAndItsAnswerIsNoActiveRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	owner := w.work("n1")
	w.create("a")
	a := w.preload("n2", nil)
	a.isLoaded()
	owner.decide(1)
	h := a.takeOver()
	keys, _, err := w.store.ScanActive(w.ctx)
	w.ok(err)
	w.finish("a", task.Succeeded)
	h.see()
	h.applyActiveScan(keys)
	h.decide(2)
	w.want("a", "+1 succeeded", "+2 dispatched")
}

// lateWatch is a store whose watch delivers nothing after the load until told is closed. It calls before
// when the shard is opened.
type lateWatch struct {
	Store
	*testing.T
	opened chan struct{}
	once   sync.Once
	told   chan struct{}
	before func() // called with the opening
}

func (l *lateWatch) Open(ctx context.Context, shard int, f store.Fences) (record.Watermark, int64, error) {
	if l.before != nil {
		l.before()
	}
	defer l.once.Do(func() { close(l.opened) })
	return l.Store.Open(ctx, shard, f)
}

func (l *lateWatch) FollowStandbyShard(ctx context.Context, shard int, marks func() bool, apply func(store.ShardBatch) error) error {
	return l.Store.FollowStandbyShard(ctx, shard, marks, func(b store.ShardBatch) error {
		if !b.Reset {
			select {
			case <-l.told:
			case <-ctx.Done():
				return ctx.Err()
			}
		}

		return apply(b)
	})
}

func (l *lateWatch) Commit(ctx context.Context, c *store.Commit) (int64, error) {
	select {
	case <-l.told:
	default:
		l.Error("something is decided before all is known that led up to the opening")
	}

	return l.Store.Commit(ctx, c)
}

// The last event before the opening is still on its way when the shard is opened: a failed attempt waits to
// be retried. So the next tick must be skipped.
func TestPreload_DecidesNothingBeforeItHasSeenItsOwnOpening(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2").judged()
		owner := w.work("n1")
		w.create("a", retries(2, time.Hour, task.Failed))
		owner.decide(1)
		late := &lateWatch{T: t, opened: make(chan struct{}), told: make(chan struct{})}
		a := w.preload("n2", func(e *Engine) { late.Store, e.cfg.Store = e.cfg.Store, late })
		a.isLoaded()
		w.finish("a", task.Failed)
		w.at(2)
		a.works(w.assign("n2"))
		<-late.opened
		time.AfterFunc(100*time.Millisecond, func() { close(late.told) }) // enough time for a worker that does not wait
		w.eventually("the tick is decided", func() bool { return len(w.story("a")) == 2 })
		w.want("a", "+1 queued retry #2", "+2 skipped overlap")
	})
}

// A shard that another node owns appears in that node's metrics only.
func TestPreload_CountsNothingUntilTheShardIsOurs(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2")
		w.work("n1")
		w.create("a", cronned("@manual"), on("node = nobody"), func(t *task.Task) { t.History.Keep = 1 })
		w.put(w.store.Keys().Entry(ref("bad")), "{")
		w.trigger("a")
		registry := prometheus.NewRegistry()
		told := &counting{}
		a := w.preload("n2", func(e *Engine) { told.Store, e.cfg.Store, e.metrics = e.cfg.Store, told, node.NewMetrics(registry) })
		a.isLoaded()

		for i := range 3 { // each of these ends would request a trim
			w.put(w.store.Keys().Ended(ref("a"), fmt.Sprintf("r%d-%s", i, w.uid("a"))), "{}")
		}

		counted := func() string {
			return fmt.Sprintf("%g waiting, %g bad, %d trims, %v given", value(t, registry, "carillon_waiting_runs"), value(t, registry, "carillon_unreadable_entries"), len(a.e.trims.Pending()), a.e.cfg.Fleet.Given(placement.ProcessSlots))
		}

		before := told.batches.Load()
		w.eventually("all is applied", func() bool { // the batches before that are as many as may be on their way
			w.put(w.store.Keys().Shard(0)+"sync", "")
			return told.batches.Load() > before+20
		})

		if got := counted(); got != "0 waiting, 0 bad, 0 trims, map[] given" {
			t.Errorf("before the shard is ours: %s", got)
		}

		h := a.takeOver()
		h.scan()

		if got := counted(); got != "1 waiting, 1 bad, 0 trims, map[] given" {
			t.Errorf("when the shard is ours: %s", got)
		}

		h.releaseShared()

		if got := counted(); got != "0 waiting, 0 bad, 0 trims, map[] given" {
			t.Errorf("after the shard was released: %s", got)
		}
	})
}

// counting is a store that counts what its standby watches deliver.
type counting struct {
	Store
	batches atomic.Int64
}

func (c *counting) FollowStandbyShard(ctx context.Context, shard int, marks func() bool, apply func(store.ShardBatch) error) error {
	return c.Store.FollowStandbyShard(ctx, shard, marks, func(b store.ShardBatch) error {
		c.batches.Add(1)
		return apply(b)
	})
}

// value returns the value of a metric without labels.
func value(t *testing.T, from prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}

	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}

	t.Fatalf("there is no metric %s", name)

	return 0
}

func (w *world) uid(name string) string {
	w.Helper()
	st, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)

	return st.Task.UID
}

// A watch that has lost its place loads the shard again. Records that were deleted meanwhile are gone.
func TestPreload_BeginsAnewWhenTheWatchHasAGap(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2").judged()
		w.work("n1").decide(0.5)
		w.create("a")
		w.create("b")
		cut := make(chan struct{})
		a := w.preload("n2", func(e *Engine) { e.cfg.Store = &shadowGap{e.cfg.Store, cut, func() { w.remove("a"); w.trigger("b") }} })
		a.isLoaded()
		close(cut)
		a.isLoaded()
		h := a.takeOver()
		h.scan()

		if h.state.records.Tasks.Get("default/a") != nil || len(h.state.records.Tasks.Get("default/b").Queue()) != 1 {
			t.Errorf("it knows %s", h.knows())
		}

		h.decide(1)
		w.want("a")
	})
}

// shadowGap is a store whose first standby watch is cut, and misses what happens until it is restored.
type shadowGap struct {
	Store
	cut       chan struct{}
	meanwhile func()
}

func (g *shadowGap) FollowStandbyShard(ctx context.Context, shard int, marks func() bool, apply func(store.ShardBatch) error) error {
	first, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()

	go func() {
		select {
		case <-g.cut:
		case <-first.Done():
		}
		cancel()
	}()

	_ = g.Store.FollowStandbyShard(first, shard, marks, apply)

	if ctx.Err() != nil {
		return ctx.Err()
	}

	g.meanwhile()

	return g.Store.FollowStandbyShard(ctx, shard, marks, apply)
}

// A gap that is found after the opening may hide ends that the scan could not contain.
func TestPreload_AGapAfterTheOpeningIsAReload(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2").judged()
		w.work("n1")
		w.create("a")
		cut := make(chan struct{})
		a := w.preload("n2", func(e *Engine) { e.cfg.Store = &shadowGap{e.cfg.Store, cut, func() {}} })
		a.isLoaded()
		h := a.takeOver()
		close(cut)

		for {
			select {
			case b := <-h.batches:
				if err := h.applyBatch(b); err != nil {
					if !errors.Is(err, errReload) {
						t.Error(err)
					}
					return
				}
			case <-time.After(time.Minute):
				t.Fatal("the gap is not noticed")
			}
		}
	})
}

// The owner dies before the load is complete. The worker continues the load.
func TestPreload_IsTakenOverInTheMiddleOfItsLoad(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2").judged()
		w.work("n1")

		all := names(1500) // a page has 1000 records
		for c := range slices.Chunk(all, 60) {
			w.createTogether(start, c, cronned("0 * * * * *"), allow)
		}

		paged, more := make(chan struct{}), make(chan struct{})
		a := w.preload("n2", func(e *Engine) { e.cfg.Store = &slowPages{e.cfg.Store, paged, more} })
		<-paged
		w.remove(all[0])
		w.remove(all[1499])
		w.createTogether(start, []string{"u"}, cronned("0 * * * * *"))
		time.AfterFunc(20*time.Millisecond, func() { close(more) })
		h := a.takeOver()
		h.scan()
		h.see()
		cold := w.worker("n2", h.state.fences)
		cold.open()

		if got, want := h.knows(), cold.knows(); got != want {
			t.Errorf("the preload has\n%s\na load has\n%s", got, want)
		}
	})
}

// slowPages is a store that waits after the first page of a load.
type slowPages struct {
	Store
	paged, more chan struct{}
}

func (s *slowPages) FollowStandbyShard(ctx context.Context, shard int, marks func() bool, apply func(store.ShardBatch) error) error {
	return s.Store.FollowStandbyShard(ctx, shard, marks, func(b store.ShardBatch) error {
		err := apply(b)

		if b.First {
			close(s.paged)
			select {
			case <-s.more:
			case <-ctx.Done():
			}
		}

		return err
	})
}

// If the watch delivers nothing, the shard is loaded once more.
func TestPreload_OfWhichTheWatchIsSilentIsGivenUp(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2").judged()
		w.work("n1")
		w.create("a")
		a := w.preload("n2", func(e *Engine) { e.cfg.Store = silent{e.cfg.Store} })
		a.isLoaded()
		w.at(1)
		a.works(w.assign("n2"))
		w.eventually("it decides", func() bool { return len(w.story("a")) == 1 })
	})
}

// silent is a store whose standby watches deliver nothing after the load.
type silent struct{ Store }

func (s silent) FollowStandbyShard(ctx context.Context, shard int, marks func() bool, apply func(store.ShardBatch) error) error {
	return s.Store.FollowStandbyShard(ctx, shard, marks, func(b store.ShardBatch) error {
		if !b.Reset {
			return nil
		}
		return apply(b)
	})
}

func TestPreload_EndsWhenNobodyWantsItAnyMore(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2").judged()
		w.work("n1")
		w.create("a")
		a := w.preload("n2", nil)
		a.isLoaded()
		a.stop()

		if err := <-a.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}

		w.at(1)
		a.works(w.assign("n2"))
		w.eventually("it decides all the same", func() bool { return len(w.story("a")) == 1 })
	})
}

// works makes the node's engine serve the shard under fences, until the test ends.
func (pf *preloadFixture) works(f store.Fences) (ended <-chan error) {
	pf.Helper()
	ctx, stop := context.WithCancel(pf.ctx)
	end := make(chan error, 1)
	var all sync.WaitGroup
	all.Go(func() { _ = pf.e.Run(ctx) })
	all.Go(func() { end <- pf.e.Work(ctx, 0, f) })
	pf.Cleanup(func() { stop(); all.Wait() })

	return end
}
