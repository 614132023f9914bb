package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/task"
)

// reconcile runs one period of the reconciler without its pauses.
func (tw *testWorker) reconcile() {
	tw.world.Helper()
	tw.world.ok(tw.reconcileOnce())
}

func (tw *testWorker) reconcileOnce() error {
	ctx, s := tw.world.ctx, tw.e.cfg.Store
	keys, rev, err := s.ShardKeys(ctx, 0)
	tw.world.ok(err)
	runs, at, err := s.ScanActive(ctx)
	tw.world.ok(err)

	for _, r := range []review{recordListing{keys, rev}, overdueRecords{}, runListing{runs, at}, overdueRuns{}} {
		if err := r.reviewBy(ctx, tw.worker); err != nil {
			return err
		}
	}

	for after := ""; ; {
		page, next, err := s.HistoryKeys(ctx, 0, after, nil)
		tw.world.ok(err)
		tw.world.ok(historyPage(page).reviewBy(ctx, tw.worker))

		if after = next; next == "" {
			return nil
		}
	}
}

func (e *Engine) repairCount() float64 {
	var d dto.Metric
	_ = e.metrics.Repairs.Write(&d)
	return d.GetCounter().GetValue()
}

// deafened returns a world whose worker's watches drop the events that a test chooses. It is not checked: a
// tick that the watermark passed without knowing it has no outcome (G4).
func deafened(t *testing.T) (*world, *kvtest.Deaf) {
	t.Helper()
	w := newWorld(t, "n1")
	return w, kvtest.Deafen(w.etcd)
}

// without calls do and drops the resulting events, except for those of the shard's sync key.
func without(w *world, deaf *kvtest.Deaf, h *testWorker, do func()) {
	deaf.Drop(func(key string) bool {
		return !strings.HasSuffix(key, "/sync") && !strings.HasSuffix(key, "/watermark")
	})

	do()
	h.see()
	deaf.Drop(nil)
}

func TestReconcile_RepairsWhatTheWatchOfAShardHasLost(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		before, lost func(w *world)
		repairs      float64
		want         []string
	}{
		"created": {func(*world) {}, func(w *world) { w.create("a") }, 1, []string{"+3 dispatched"}},
		"paused":  {func(w *world) { w.create("a") }, func(w *world) { w.pause("a") }, 0, nil /* the commit has found out */},
		"resumed": {func(w *world) { w.create("a", paused) }, func(w *world) { w.resume("a") }, 0, []string{"+2 dispatched", "+3 skipped overlap"} /* likewise */},
		"queued":  {func(w *world) { w.create("a", cronned("@manual")) }, func(w *world) { w.trigger("a") }, 1, []string{"+1.5 dispatched manual"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, deaf := deafened(t)
			h := w.work("n1")
			c.before(w)
			h.decide(0.5)
			w.at(1.5)
			w.create("b", allow) // moves the watermark
			h.see()
			without(w, deaf, h, func() { c.lost(w) })
			h.blind(2.4)
			w.wantMark(2.4, "")
			h.reconcile()

			if got := h.e.repairCount(); got != c.repairs {
				t.Errorf("%v repairs, want %v", got, c.repairs)
			}

			h.decide(2.5)
			h.decide(3.1)
			w.want("a", c.want...)
			h.reconcile()

			if got := h.e.repairCount(); got != c.repairs {
				t.Errorf("%v repairs after another period, want %v", got, c.repairs)
			}
		})
	}
}

func TestReconcile_RepairsEndsThatTheWatchHasLost(t *testing.T) {
	t.Parallel()
	w, deaf := deafened(t)
	h := w.work("n1")
	w.create("ends")
	w.create("goes", every("1h"))
	w.create("retries", every("1h"), retries(2, 0, task.Failed))
	w.create("waits", cronned("@manual"), on("role = nowhere"))
	w.at(0.5)
	w.trigger("waits")
	h.decide(1)
	queued := w.store.Keys().Queue(0)
	without(w, deaf, h, func() {
		w.finish("ends", task.Succeeded)
		w.remove("goes")
		_, err := w.store.Client().Delete(w.ctx, queued, clientPrefix)
		w.ok(err)
	})

	h.blind(2)
	h.reconcile()

	// The end of a run, a deleted task, and a queue record of that task.
	if got := h.e.repairCount(); got != 3 {
		t.Errorf("%v repairs", got)
	}

	h.decide(3)
	w.want("ends", "+1 succeeded", "+2 skipped overlap", "+3 dispatched")
	w.want("goes")

	if n := h.state.records.Tasks.Get("default/goes"); n != nil {
		t.Errorf("the deleted task is still known: %+v", n)
	}

	if h.e.cfg.Fleet.Given(placement.ProcessSlots)["n1"] != 1 {
		t.Errorf("%d attempts are counted for n1", h.e.cfg.Fleet.Given(placement.ProcessSlots)["n1"])
	}
}

// An attempt that no event has reported, as after an event of its end that was wrong.
func TestReconcile_FindsAttemptsThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a")
	h.decide(1)
	a := h.state.records.TaskNamed("default/a").Active()[0]
	h.state.applyAttemptEnd(h.state.records.TaskNamed("default/a"), a.Run, a.Create+1)
	h.reconcile()

	if got := h.e.repairCount(); got != 1 {
		t.Errorf("%v repairs", got)
	}

	h.decide(2)
	w.want("a", "+1 dispatched", "+2 skipped overlap")
}

func TestReconcile_OpensAgainWhenTheWatermarkIsAnothers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a")
	h.decide(1)
	key := w.store.Keys().Watermark(0)
	res, err := w.client.Get(w.ctx, key)
	w.ok(err)
	w.put(key, string(res.Kvs[0].Value))

	if err := h.reconcileOnce(); !errors.Is(err, errReload) {
		t.Errorf("got %v", err)
	}
}

// What is still on its way is not a difference: neither an event nor a commit of the worker itself.
func TestReconcile_DoubtsEndWhenTheWatchTells(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("goes", every("1h"))
	w.create("a", retries(2, 0, task.Failed))
	h.decide(1)
	w.create("new")
	w.trigger("a")
	w.remove("goes")
	w.finish("a", task.Failed)
	keys, rev, err := w.store.ShardKeys(w.ctx, 0)
	w.ok(err)
	runs, at, err := w.store.ScanActive(w.ctx)
	w.ok(err)
	w.ok(recordListing{keys, rev}.reviewBy(w.ctx, h.worker))
	w.ok(runListing{runs, at}.reviewBy(w.ctx, h.worker))

	if len(h.recordDiffs.Records) != 4 || len(h.runDiffs.Gone) != 1 {
		t.Errorf("the differences are %+v and %+v", h.recordDiffs, h.runDiffs)
	}

	h.decide(2) // also takes the retry out of the queue
	settled := func() {
		w.ok(overdueRecords{}.reviewBy(w.ctx, h.worker))
		w.ok(overdueRuns{}.reviewBy(w.ctx, h.worker))
	}

	settled()
	w.ok(recordListing{keys, rev}.reviewBy(w.ctx, h.worker))
	w.ok(runListing{runs, at}.reviewBy(w.ctx, h.worker))
	settled()

	if got := h.e.repairCount(); got != 0 || h.recordDiffs.NotEmpty() || h.runDiffs.NotEmpty() {
		t.Errorf("%v repairs, and the differences are %+v", got, h.recordDiffs)
	}
}

// The watch is late for longer than a difference may persist. A task is created and triggered, and changes
// once more before the difference is repaired. Its run must not count as one of a task that no longer
// exists.
func TestReconcile_TakesNoRunBeforeItsTask(t *testing.T) {
	t.Parallel()

	for name, first := range map[string]func(w *world){
		"created":   func(*world) {},
		"recreated": func(w *world) { w.remove("a") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "n1").judged()
			h := w.work("n1")

			if name == "recreated" {
				w.create("a", every("1h"))
			}

			h.decide(0.5)
			first(w)
			w.create("a", every("1h"))
			w.trigger("a")
			keys, rev, err := w.store.ShardKeys(w.ctx, 0)
			w.ok(err)
			w.ok(recordListing{keys, rev}.reviewBy(w.ctx, h.worker))
			w.update("a", false, allow)
			w.ok(overdueRecords{}.reviewBy(w.ctx, h.worker))
			h.blind(1)
			h.decide(1)
			w.want("a", "+0.5 dispatched manual")
		})
	}
}

// A task that is known before the watch has delivered it is not covered by what is decided meanwhile. Its
// ticks stay decided all the same, also for the next owner.
func TestReconcile_TicksOfATaskThatTheWatchHasYetToTellOfStayDecided(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("b", allow)
	h.decide(0.5)
	w.create("a", allow)
	h.reconcile()
	h.blind(1)
	h.blind(2)

	for w.at(2.5); len(w.active("a")) > 0; {
		w.finish("a", task.Succeeded)
	}

	h = w.work("n1")
	h.decide(2.5)
	w.want("a", "+1 succeeded", "+2 succeeded")
}

// The watch has not yet delivered that an attempt has ended and that the next one waits. The run is active
// all the time.
func TestReconcile_AnEndWithARetryLeavesTheRunActive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", retries(2, 10*time.Second, task.Failed))
	h.decide(1)
	w.at(1.5)
	w.finish("a", task.Failed)
	runs, at, err := w.store.ScanActive(w.ctx)
	w.ok(err)
	w.ok(runListing{runs, at}.reviewBy(w.ctx, h.worker))
	w.ok(overdueRuns{}.reviewBy(w.ctx, h.worker))
	h.blind(2)
	w.want("a", "+1 queued retry #2", "+2 skipped overlap")
}

// The history of a deleted task whose last run ended between two owners.
func TestReconcile_PurgesHistoryOfTasksThatAreNoMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("gone")
	w.create("again")
	w.create("stays")
	h := w.work("n1")
	h.decide(1)
	w.remove("gone")
	w.remove("again")
	w.assign("n2")

	for _, name := range []string{"gone", "again", "stays"} {
		w.finish(name, task.Succeeded)
	}

	w.create("again", every("1h"))
	h = w.work("n2")
	h.decide(1.1)

	if n := len(w.story("gone")) + len(w.story("again")); n != 2 {
		t.Fatalf("%d records of tasks that are gone", n)
	}

	h.reconcile()
	h.decide(1.2)
	w.want("gone")
	w.want("again")
	w.want("stays", "+1 succeeded")

	if got := h.e.repairCount(); got != 0 {
		t.Errorf("%v repairs: nothing was lost by a watch", got)
	}
}

// A task that exists but is unknown to the worker keeps its history.
func TestReconcile_PurgesNothingByWhatItKnowsAlone(t *testing.T) {
	t.Parallel()
	w, deaf := deafened(t)
	h := w.work("n1")
	without(w, deaf, h, func() {
		w.create("a", every("1h"))
		w.put(w.store.Keys().Ended(ref("a"), task.RunID(sec(0), w.uidOf("a"))), "{}")
	})

	page, _, err := w.store.HistoryKeys(w.ctx, 0, "", nil)
	w.ok(err)
	w.ok(historyPage(page).reviewBy(w.ctx, h.worker))

	if len(page) != 1 || len(h.state.purges) != 0 {
		t.Errorf("of %d records %d are to be deleted", len(page), len(h.state.purges))
	}
}

func (w *world) uidOf(name string) string {
	w.Helper()
	t, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)

	return t.Task.UID
}

// A whole engine with an executor that ends everything at once, and a watch that is late. Without losses it
// repairs nothing, and it finds by itself what its watch loses.
func TestReconcile_OfAnEngineAtWork(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		const lag = 300 * time.Millisecond

		w := newWorld(t, "n1")
		w.etcd.Watcher = laggingWatcher{w.etcd.Watcher, lag}
		deaf := kvtest.Deafen(w.etcd)

		for i := range 20 {
			w.createAt(time.Now(), fmt.Sprintf("t%02d", i), every("100ms"), retries(2, 0, task.Failed), missed(task.MissedSkip, 1))
		}

		e := w.run("n1", func(e *Engine) {
			// Longer than an event is late, and shorter than the test.
			e.reconciler.Period, e.patience = 100*time.Millisecond, 2*lag
		})

		ctx, cancel := context.WithCancel(w.ctx)
		var executors sync.WaitGroup
		defer executors.Wait()
		defer cancel()

		ends := 0

		executors.Go(func() {
			for clock.Sleep(ctx, 10*time.Millisecond) {
				all, err := w.store.Active(ctx)
				if err != nil {
					continue
				}

				for _, a := range all {
					end := a.Run
					end.State, end.EndedAt = []task.State{task.Succeeded, task.Failed}[ends%2], task.At(time.Now())
					end.Reason = why(a, end.State)
					if w.store.Finish(ctx, a, end, executor.Next(a.Assigned, end, time.Now(), 0.5)) == nil {
						ends++
					}
				}
			}
		})

		time.Sleep(2 * time.Second)

		if got := e.repairCount(); got != 0 {
			t.Errorf("%v repairs while all is well", got)
		}

		deaf.Drop(func(key string) bool { return strings.Contains(key, "/tasks/") })
		w.createAt(time.Now(), "late", every("100ms"))
		w.eventually("the lost task runs", func() bool {
			runs, err := w.store.Runs(w.ctx, ref("late"))
			w.ok(err)

			return len(runs) > 0
		})

		if got := e.repairCount(); got != 1 {
			t.Errorf("%v repairs of one lost event", got)
		}
	})
}

// laggingWatcher is a Watcher that delivers everything up to lag late, in order.
type laggingWatcher struct {
	clientv3.Watcher
	lag time.Duration
}

func (l laggingWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	type delayed struct {
		clientv3.WatchResponse
		due time.Time
	}
	pending, out := make(chan delayed, 10_000), make(chan clientv3.WatchResponse)

	in := l.Watcher.Watch(ctx, key, opts...)
	go func() {
		defer close(pending)
		for r := range in {
			pending <- delayed{r, time.Now().Add(rand.N(l.lag))}
		}
	}()

	go func() {
		defer close(out)
		for r := range pending {
			if !clock.Sleep(ctx, time.Until(r.due)) {
				continue
			}

			select {
			case out <- r.WatchResponse:
			case <-ctx.Done():
			}
		}
	}()

	return out
}
