package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Tasks whose ticks depend on more than a clock, under the faults of the random histories. Each has the
// ticks that it should have, each once, no matter which nodes owned the shard and what the outcome of their
// commits. The long form runs on a real etcd.
func TestRandomFutures_AreThoseOfOneOwner(t *testing.T) {
	t.Parallel()

	worlds, n := newWorld, shortSeeds
	if !testing.Short() {
		worlds, n = realWorlds(t), *seeds
	}

	for _, seed := range seedsUpTo(n) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			g := &game{
				world: worlds(t), rand: rand.New(rand.NewPCG(seed, 2)), skew: map[string]time.Duration{},
				nodes: []string{"n1", "n2", "n3"}, gone: map[string]string{},
			}
			t.Cleanup(func() {
				for _, s := range g.steps {
					if t.Failed() {
						t.Log(s)
					}
				}
			})

			for _, n := range g.nodes {
				g.join(n)
				g.skew[n] = time.Duration(g.rand.IntN(2000)-1000) * time.Millisecond
			}

			g.record()
			all := missed(task.MissedAll, 1000)
			g.world.create("jitter", jitter(800*time.Millisecond), all, allow)
			g.world.create("count", maxRuns(9), all, allow)
			g.world.create("silence", all, allow, paused)
			g.pauseUntil("silence", 30)
			g.world.create("completion", after("2s"), pick(g, []option{all, missed(task.MissedSkip, 1)}))
			g.world.create("failures", pauseAfter(3), missed(task.MissedLatest, 1), retries(2, time.Second, task.Lost))
			g.startNewOwner()

			for range 100 {
				g.draw([]stepOf{{40, g.round}, {25, g.pass}, {15, g.finish}, {4, g.handOver}, {4, g.crash}, {3, g.churn}, {3, g.late}, {3, g.zombie}, {2, g.refleet}, {4, g.loadAhead}})
			}

			h := g.mend()
			g.wantTicks("jitter", 0, 0)
			g.wantTicks("count", 0, 9)
			g.wantTicks("silence", 30, 0)
			g.wantFailures(h)
			g.wantOneTickForEachAnchor(h)
			g.judge(check.Options{})
		})
	}
}

// ticksOf returns the ticks of a task that became runs, in order.
func (w *world) ticksOf(name string) (ticks []float64) {
	w.Helper()
	runs, err := w.store.Runs(w.ctx, ref(name))
	w.ok(err)

	for _, r := range runs {
		if r.Trigger != task.TriggerManual {
			ticks = append(ticks, r.ScheduledTime.Sub(start).Seconds())
		}
	}

	slices.Sort(ticks)

	return ticks
}

// wantTicks checks that a task ran at all of its ticks that are due after the given time, and at most the
// given number of times.
func (g *game) wantTicks(name string, after float64, most int) {
	g.Helper()
	e := g.entry(name)
	s, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	g.ok(err)

	var want []float64
	for at, ok := s.Next(sec(after)); ok && !s.Due(at, e.UID).After(g.clock()) && (most == 0 || len(want) < most); at, ok = s.Next(at) {
		want = append(want, at.Sub(start).Seconds())
	}

	if got := g.ticksOf(name); !slices.Equal(got, want) {
		g.Errorf("%s ran at %v, want %v", name, got, want)
	}

	if n := g.own(name).Runs; most > 0 && n != int64(len(want)) {
		g.Errorf("%d runs are counted", n)
	}
}

// wantFailures compares the count of failures with the history, in the order in which it was written.
func (g *game) wantFailures(h *testWorker) {
	g.Helper()
	keys, _, err := g.store.HistoriesOf(g.ctx, []record.Ref{ref("failures")})
	g.ok(err)
	slices.SortFunc(keys[0], func(a, b store.ShardEvent) int { return cmp.Compare(a.Mod, b.Mod) })

	failures, paused := 0, false
	for _, ev := range keys[0] {
		read, err := g.store.RecordsNow(g.ctx, []string{ev.Key})
		g.ok(err)
		r, err := record.DecodeEnded(ev.ShardKey, read[0].Value)
		g.ok(err)

		switch r.State {
		case task.Failed, task.Lost, task.TimedOut:
			failures++
		case task.Succeeded:
			failures = 0
		}

		paused = paused || failures >= 3
	}

	e := g.entry("failures")
	if n := g.own("failures").Failures; n != failures || e.Paused != paused {
		g.Errorf("%d failures in a row are counted, paused %t; want %d, %t", n, e.Paused, failures, paused)
	}
}

// wantOneTickForEachAnchor checks that the one tick of each anchor that a task has had has one outcome, and
// that another anchor exists once its run has ended.
func (g *game) wantOneTickForEachAnchor(h *testWorker) {
	g.Helper()

	for range 3 {
		for _, a := range g.active("completion") {
			g.end(a, task.Succeeded)
		}

		h.see()
		g.ok(h.runRound(h.ctx))
		g.later(2500 * time.Millisecond)
		h.see()
		g.ok(h.runRound(h.ctx))
	}

	var want []float64
	for _, e := range g.versions("completion") {
		if tick := e.Anchor.Add(2 * time.Second).Sub(start).Seconds(); !slices.Contains(want, tick) {
			want = append(want, tick)
		}
	}

	got := g.ticksOf("completion")
	if len(got) == 0 || len(got) < len(want)-1 || !slices.Equal(got, want[:len(got)]) {
		g.Errorf("completion ticked at %v, want %v", got, want)
	}

	if n := len(want); n < 4 || want[n-1] < g.clock().Sub(start).Seconds()-2.5 {
		g.Errorf("at +%g the latest ticks are %v", g.clock().Sub(start).Seconds(), want)
	}
}

// versions returns all entries that a task has had, the oldest first.
func (w *world) versions(name string) (list []task.Entry) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()

	key := w.store.Keys().Entry(ref(name))
	now, err := w.client.Get(ctx, key)
	w.ok(err)

	for res := range w.client.Watch(ctx, key, clientv3.WithRev(now.Kvs[0].CreateRevision)) {
		w.ok(res.Err())

		for _, ev := range res.Events {
			e, err := record.DecodeEntry(ev.Kv.Value)
			w.ok(err)
			list = append(list, e)

			if ev.Kv.ModRevision == now.Kvs[0].ModRevision {
				return list
			}
		}
	}

	w.Fatal("the watch does not tell")

	return nil
}

// future returns options on which a task's ticks may depend besides the clock.
func (g *game) future() []option {
	if g.herd || g.chance(2) {
		return nil
	}

	all := []option{
		jitter(700 * time.Millisecond), jitter(4 * time.Second), maxRuns(3), maxRuns(8), after("2s"), after("700ms"), pauseAfter(2), pauseAfter(3),
		func(t *task.Task) {
			t.Start, t.End = task.At(g.clock().Add(2*time.Second)), task.At(g.clock().Add(9*time.Second))
		},
		func(t *task.Task) { t.History.Record, t.PauseAfter = task.RecordFailures, 3 },
	}

	return []option{pick(g, all), pick(g, all)}
}

// freeze freezes all tasks, or ends that.
func (g *game) freeze() {
	old, err := g.store.Freezes(g.ctx)
	g.ok(err)

	if len(old.Holding) > 0 {
		g.say("unfrozen")
		g.unfreeze("")
		return
	}

	g.say("frozen")
	g.world.freeze("")
}

// keepOwn copies the counts and pauses of an entry into the entry that replaces it, as the API does.
func keepOwn(old store.Stored, e *task.Entry, now task.Time, resumed bool) {
	var own task.Own
	if old.Entry.Own != nil {
		own = *old.Entry.Own
	}

	if old.Entry.Paused && !old.Task.Paused && !resumed {
		e.Paused = true // by its owner
	}

	switch {
	case old.Entry.Paused && !e.Paused:
		own.Failures = 0
		if n := len(own.Pauses); n > 0 {
			own.Pauses[n-1].Ended = now
		}
	case !old.Entry.Paused && e.Paused:
		own.Pauses = append(own.Pauses, task.Pause{Since: now, By: task.NewActor("ann")})
	}

	e.Own = &own
}
