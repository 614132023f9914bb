package scheduler

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

var (
	seeds = flag.Int("seeds", 8, "how many random histories of a kind to play, without -short")
	seed  = flag.Uint64("seed", 0, "the one random history to play")
)

// shortSeeds is the number of random histories of each kind with -short.
const shortSeeds = 3

// Several workers, of whom at most one owns the shard; clocks that differ between nodes and step; commits
// that are lost, delayed and unanswered; nodes that come and go; users that change everything. In any
// order, the history must keep the guarantees. When all faults have ended, nothing may be left undecided or
// waiting. The long form runs on a real etcd.
func TestRandomHistories_KeepThePromises(t *testing.T) {
	t.Parallel()

	worlds, n := newWorld, shortSeeds
	if !testing.Short() {
		worlds, n = realWorlds(t), *seeds
	}

	for _, seed := range seedsUpTo(n) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			newGame(worlds(t), seed).play()
		})
	}
}

// seedsUpTo returns the seeds 1 to n, or only the one that the flag seed names.
func seedsUpTo(n int) (list []uint64) {
	if *seed != 0 {
		return []uint64{*seed}
	}

	for i := range n {
		list = append(list, uint64(i)+1)
	}

	return list
}

// game is one random history.
type game struct {
	*world
	rand    *rand.Rand
	skew    map[string]time.Duration // by node, how wrong its clock is
	skews   sync.Mutex
	workers []*testWorker // the owner is the last; the others do not know yet
	nodes   []string
	gone    map[string]string // absent nodes with their last instances
	tasks   []string
	rate    atomic.Int64 // the catch-up rate
	cold    int          // how often everything was frozen
	herd    bool         // more tasks tick at the same time than one commit holds
	gates   []*commitGate
	zombies []record.Held   // attempts as they were some time ago
	stuck   []string        // tasks whose commits compare something that the workers do not know
	ahead   *preloadFixture // a node that preloads the shard, or nil
	steps   []string
}

func newGame(w *world, seed uint64) *game {
	g := &game{
		world: w, rand: rand.New(rand.NewPCG(seed, 1)), skew: map[string]time.Duration{},
		nodes: []string{"n1", "n2", "n3"}, gone: map[string]string{},
	}
	for _, n := range g.nodes {
		g.join(n)
		g.skew[n] = time.Duration(g.rand.IntN(2000)-1000) * time.Millisecond
	}

	g.cold, g.herd = pick(g, []int{0, 1, 3}), g.chance(3)
	g.rate.Store(pick(g, []int64{1, 10, 1000}))
	g.record()
	g.startNewOwner()

	for g.herd && len(g.tasks) < 40 {
		g.create()
	}

	return g
}

func (g *game) chance(of int) bool { return g.rand.IntN(of) == 0 }

func pick[T any](g *game, from []T) T { return from[g.rand.IntN(len(from))] }

func (g *game) say(format string, args ...any) {
	g.steps = append(g.steps, fmt.Sprintf("%6.3f ", g.clock().Sub(start).Seconds())+fmt.Sprintf(format, args...))
}

func (g *game) play() {
	g.Cleanup(func() {
		if g.Failed() {
			for _, s := range g.steps {
				g.Log(s)
			}
		}
	})

	for range 120 {
		g.step()
	}

	g.heal()

	if !g.Failed() {
		g.Log(g.judge(check.Options{Ended: true}).Summary)
	}
}

func (g *game) step() {
	steps := []stepOf{
		{40, g.round}, {25, g.pass}, {10, g.finish}, {6, g.create}, {6, g.change}, {4, g.trigger}, {2, g.removeOne},
		{3, g.handOver}, {3, g.crash}, {3, g.churn}, {3, g.zombie}, {3, g.late}, {2, g.refleet}, {4, g.loadAhead}, {g.cold, g.freeze},
		{3, g.obstruct},
	}
	g.draw(steps)
}

// obstruct makes the commits for one more task fail for a reason that the workers cannot learn, or ends that for all.
func (g *game) obstruct() {
	if len(g.stuck) > 2 || len(g.stuck) > 0 && g.chance(2) {
		g.say("commits for %v can succeed again", g.stuck)
		g.stuck = nil
		return
	}

	if len(g.tasks) > 0 {
		g.stuck = append(g.stuck, pick(g, g.tasks))
		g.say("commits for %v fail from now on", g.stuck)
	}
}

// useGate keeps the gate of a worker, whose commits obstruct affects.
func (g *game) useGate(d *commitGate) {
	foreign := g.store.Keys().Shard(0) + "zz/later/feature"
	g.put(foreign, "x")

	d.alter = comparing(clientv3.Compare(clientv3.ModRevision(foreign), "=", 0), func(name string) bool { return slices.Contains(g.stuck, name) })
	g.gates = append(g.gates, d)
}

// stepOf is something that may happen, with a probability proportional to its weight.
type stepOf struct {
	weight int
	do     func()
}

func (g *game) draw(steps []stepOf) {
	total := 0
	for _, s := range steps {
		total += s.weight
	}

	n := g.rand.IntN(total)
	for _, s := range steps {
		if n -= s.weight; n < 0 {
			s.do()
			return
		}
	}
}

// pass advances the clock, or sets it back.
func (g *game) pass() {
	g.later(time.Duration(pick(g, []float64{
		0.1, 0.3, 0.3, 0.5, 0.5, 0.7, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 13, 25, -0.4, -2,
	}) * float64(time.Second)))
}

func (g *game) later(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now = g.now.Add(d)
}

// users returns the clock of the API that serves some request.
func (g *game) users() time.Time { return g.clock().Add(g.skew[pick(g, g.nodes)]) }

func (g *game) present() []string {
	return slices.DeleteFunc(slices.Clone(g.nodes), func(n string) bool { _, gone := g.gone[n]; return gone })
}

// startNewOwner makes another worker, on the same or another node, the owner of the shard.
func (g *game) startNewOwner() {
	node := pick(g, g.present())
	g.say("%s owns the shard", node)
	g.addWorker(g.startOwner(node))
}

func (g *game) addWorker(h *testWorker) {
	node := h.e.cfg.Node
	h.e.cfg.Now = func() time.Time { return g.timeOf(node) }
	h.e.cfg.Cluster = g.cluster

	g.useGate(h.gate)

	if g.workers = append(g.workers, h); len(g.workers) > 3 {
		g.drop(g.workers[0])
	}

	g.reopen(h)
}

// cluster returns the cluster's record as a node knows it.
func (g *game) cluster() task.Cluster {
	return task.Cluster{Shards: 1, CatchUpRate: int(g.rate.Load()), LostAfter: task.Duration(20 * time.Second)}
}

func (g *game) reopen(h *testWorker) {
	err := h.load()
	switch {
	case errors.Is(err, task.ErrFenced), errors.Is(err, task.ErrUnknown), errors.Is(err, task.ErrUnavailable):
		g.say("%s could not open: %v", h.e.cfg.Node, err)
		g.drop(h)
		return
	}

	g.ok(err)
	h.scan()
}

func (g *game) drop(h *testWorker) {
	h.leave()
	g.workers = slices.DeleteFunc(g.workers, func(o *testWorker) bool { return o == h })
}

// timeOf returns a node's time. Preloads call it from other goroutines.
func (g *game) timeOf(node string) time.Time {
	g.skews.Lock()
	defer g.skews.Unlock()
	return g.clock().Add(g.skew[node])
}

// loadAhead makes a node preload the shard, or continues a preload.
func (g *game) loadAhead() {
	if g.ahead != nil || len(g.present()) == 0 {
		return
	}

	node := pick(g, g.present())
	g.say("%s loads the shard", node)
	g.ahead = g.preload(node, func(e *Engine) {
		e.cfg.Now = func() time.Time { return g.timeOf(node) }
		e.cfg.Cluster = g.cluster
	})

	if g.chance(2) {
		g.ahead.isLoaded()
	}
}

// handOver makes some node the owner. The worker before may continue for a while.
func (g *game) handOver() {
	if a := g.ahead; a != nil && slices.Contains(g.present(), a.e.cfg.Node) {
		g.say("%s owns the shard that it has loaded", a.e.cfg.Node)
		g.ahead = nil
		h := a.takeOver()
		h.scan()

		g.useGate(h.gate)

		if g.workers = append(g.workers, h); len(g.workers) > 3 {
			g.drop(g.workers[0])
		}

		return
	}

	if len(g.present()) > 0 {
		g.startNewOwner()
	}
}

// crash ends a worker abruptly. Another one under the same fences follows.
func (g *game) crash() {
	if len(g.workers) == 0 {
		g.handOver()
		return
	}

	h := g.workers[len(g.workers)-1]
	g.say("the worker of %s crashes", h.e.cfg.Node)
	g.drop(h)
	g.addWorker(g.worker(h.e.cfg.Node, h.state.fences))
}

// round runs a round of a worker, with or without new events, through a commitGate with random tricks.
func (g *game) round() {
	if len(g.workers) == 0 {
		g.handOver()
		return
	}

	h := g.workers[len(g.workers)-1]
	if g.chance(5) {
		h = pick(g, g.workers)
	}

	if !g.chance(4) {
		h.see()
	}

	if g.chance(4) {
		g.late()
	}

	h.gate.tricks = nil

	for range 3 {
		h.gate.play(pick(g, []trick{
			pass, pass, pass, pass, pass, pass, pass, pass, pass, pass, pass, pass, pass, pass, lost, appliedButLost, h.dies, h.diesAfter,
			func(send func() (kv.Result, error)) (kv.Result, error) { h.die(); return h.gate.delayed(send) },
			h.gate.delayed,
			before(g.meanwhile), before(g.meanwhile),
		}))
	}

	before := h.gate.commits
	err := h.runRound(h.ctx)
	g.say("%s decides, in %d commits: %v", h.e.cfg.Node, h.gate.commits-before, err)

	switch {
	case err == nil:
		h.rowsMatch()
	case errors.Is(err, errReload):
		g.reopen(h)
	case errors.Is(err, store.ErrMoved):
		if !g.chance(3) {
			g.reopen(h)
		}
	case errors.Is(err, task.ErrFenced):
		g.drop(h)
	case h.ctx.Err() != nil:
		g.drop(h)
		if g.chance(2) { // another worker of the same node, under the same fences
			g.addWorker(g.worker(h.e.cfg.Node, h.state.fences))
		}
	default:
		g.Fatal(err)
	}
}

// meanwhile returns something that happens between a decision and its commit.
func (g *game) meanwhile() {
	pick(g, []func(){g.change, g.change, g.trigger, g.finish, g.removeOne, g.churn})()
}

// late delivers commits that were in flight.
func (g *game) late() {
	for _, d := range g.gates {
		if len(d.held) > 0 {
			g.say("%d commits arrive late", len(d.held))
		}
		d.deliver()
	}
}

func (g *game) refleet() {
	for _, h := range g.workers {
		h.fleet()
	}
}

func (g *game) create() {
	all := strings.Split("abcdef", "")
	if g.herd {
		all = names(130)
	}

	free := slices.DeleteFunc(all, func(n string) bool { return slices.Contains(g.tasks, n) })
	if len(free) == 0 {
		return
	}

	opts := []option{
		cronned(pick(g, []string{"* * * * * *", "* * * * * *", "*/2 * * * * *", "*/5 * * * * *", "@every 700ms", "@manual"})),
		missed(pick(g, []string{task.MissedLatest, task.MissedSkip, task.MissedAll}), 1+g.rand.IntN(8)),
		func(t *task.Task) {
			t.Missed.Grace = task.Duration(pick(g, []time.Duration{time.Second, 10 * time.Second}))
		},
	}

	opts = append(opts, g.overlap())
	opts = append(opts, g.future()...)
	if g.chance(4) {
		opts = append(opts, func(t *task.Task) { t.Deadline = task.Duration(time.Duration(1+g.rand.IntN(6)) * time.Second) })
	}

	if g.chance(2) {
		opts = append(opts, retries(3, time.Second, task.Failed, task.Lost))
	}

	if g.chance(5) {
		opts = append(opts, on("node = n3"))
	}

	if g.chance(5) {
		opts = append(opts, paused)
	}

	if g.chance(8) {
		opts = append(opts, shadow)
	}

	names := free[:1]
	if g.chance(3) && len(free) > 1 {
		names = free[:2]
	}

	if g.herd {
		names = free[:min(len(free), 20)]
		opts = append(opts, cronned("*/5 * * * * *"), on(""))
	}

	g.say("%v are created", names)
	g.createTogether(g.users(), names, opts...)
	g.tasks = append(g.tasks, names...)
}

func (g *game) overlap() option {
	return pick(g, []option{
		func(t *task.Task) { t.Overlap, t.Queue, t.MaxActive = task.OverlapSkip, task.QueuePolicy{}, 0 },
		func(t *task.Task) { t.Overlap, t.Queue, t.MaxActive = task.OverlapAllow, task.QueuePolicy{}, 0 },
		func(t *task.Task) { t.Overlap, t.Queue, t.MaxActive = task.OverlapAllow, task.QueuePolicy{}, 2 },
		func(t *task.Task) { t.Overlap, t.Queue, t.MaxActive = task.OverlapReplace, task.QueuePolicy{}, 0 },
		func(t *task.Task) { t.Overlap, t.Queue, t.MaxActive = task.OverlapQueue, task.QueuePolicy{Limit: 3}, 0 },
		func(t *task.Task) {
			t.Overlap, t.Queue, t.MaxActive = task.OverlapQueue, task.QueuePolicy{Limit: 2, Drop: task.DropOldest}, 0
		},
	})
}

// change pauses, resumes or changes a task.
func (g *game) change() {
	if len(g.tasks) == 0 {
		return
	}

	name := pick(g, g.tasks)
	old, err := g.store.Task(g.ctx, ref(name))
	g.ok(err)
	t, from := old.Task, old.Entry.From
	now := task.At(g.users())
	anew := func() {
		if from.Before(now.Time) {
			from = now
		}
	}

	resumed := false

	switch g.rand.IntN(8) {
	case 5:
		if t.MaxRuns > 0 {
			if own := old.Entry.Own; own != nil && own.Runs >= t.MaxRuns {
				anew()
			}
			t.MaxRuns = pick(g, []int64{2, 4, 20})
		}
	case 6:
		if old.Entry.Paused && !t.Paused {
			anew()
			resumed = true
		}
	case 7:
		if j := pick(g, []time.Duration{0, 500 * time.Millisecond, 2 * time.Second}); t.Schedule[0][0] != '@' && task.Duration(j) != t.Jitter {
			t.Jitter = task.Duration(j)
			anew()
			// As the API does: no tick after from may have been decided before the write.
			mark, err := g.store.Mark(g.ctx, old.Ref.Shard)
			g.ok(err)

			if from.Before(mark.Time) {
				from = mark
			}

			old.MarkBy = from
		}
	case 4:
		g.overlap()(&t)
	case 0:
		if t.Paused = !t.Paused; !t.Paused {
			anew()
		}
	case 1:
		if s := pick(g, []string{"* * * * * *", "*/3 * * * * *", "@every 900ms"}); s != t.Schedule[0] {
			t.Schedule = task.Schedules{s}
			anew()
		}
	case 2:
		t.Timeout += task.Duration(time.Second)
	case 3:
		t.Missed.Policy = pick(g, []string{task.MissedLatest, task.MissedSkip, task.MissedAll})
	}

	t.Generation++
	g.say("%s is changed: %v, paused %t, from %g", name, t.Schedule, t.Paused, from.Sub(start).Seconds())

	e := task.NewEntry(t, from, old.Entry.Anchor)
	if t.Schedule[0] != old.Task.Schedule[0] {
		e.Anchor = now
	}

	keepOwn(old, &e, now, resumed)
	_, err = g.store.UpdateTask(g.ctx, old, t, e)
	g.ok(err)
}

func (g *game) removeOne() {
	if len(g.tasks) > 0 {
		name := pick(g, g.tasks)
		g.say("%s is removed", name)
		g.remove(name)
		g.tasks = slices.DeleteFunc(g.tasks, func(n string) bool { return n == name })
	}
}

func (g *game) trigger() {
	if len(g.tasks) > 0 {
		name := pick(g, g.tasks)
		g.say("%s is triggered", name)
		g.world.trigger(name)
	}
}

func (g *game) all() []record.Held {
	all, err := g.store.Active(g.ctx)
	g.ok(err)
	return all
}

// finish lets a node do something with one of its attempts.
func (g *game) finish() {
	keys, _, err := g.store.ScanActive(g.ctx)
	g.ok(err)

	keys = slices.DeleteFunc(keys, func(k store.ActiveKey) bool { _, gone := g.gone[k.Node]; return gone })
	if len(keys) == 0 {
		return
	}

	h, _, err := g.store.Attempt(g.ctx, pick(g, keys).RunKey)
	g.ok(err)
	n := g.rand.IntN(6)
	g.say("%s of %s on %s: %d", h.ID, h.Task, h.Node, n)

	if n != 1 { // the attempt ends; no node reports a second end
		g.zombies = slices.DeleteFunc(g.zombies, func(o record.Held) bool { return o.Create == h.Create })
	}

	switch {
	case n == 0 && h.State == task.Dispatched && !h.CancelRequested:
		g.ok(g.store.HandBack(g.ctx, h))
	case n == 1:
		h.State = task.Running
		_, err := g.store.Rewrite(g.ctx, g.sessions[h.Node], h)
		g.ok(err)
		g.zombies = append(g.zombies, h)
	case h.CancelRequested:
		g.end(h, task.Cancelled)
	case n < 4:
		g.end(h, task.Failed)
	default:
		g.end(h, task.Succeeded)
	}
}

// zombie finishes an attempt whose state may have changed since.
func (g *game) zombie() {
	if len(g.zombies) == 0 {
		return
	}

	h := pick(g, g.zombies)
	end := h.Run
	end.State, end.EndedAt = pick(g, []task.State{task.Succeeded, task.Failed}), task.At(g.clock())
	end.Reason = why(h, end.State)
	err := g.store.Finish(g.ctx, h, end, executor.Next(h.Assigned, end, g.clock(), 0.5))
	g.say("a zombie of %s finishes: %v", h.ID, err)
	if !errors.Is(err, store.ErrLate) && !errors.Is(err, task.ErrConflict) {
		g.ok(err)
	}

	g.zombies = slices.DeleteFunc(g.zombies, func(o record.Held) bool { return o.Create == h.Create })
}

// churn makes a node absent, or an absent one present: either the same instance, which adopts its attempts,
// or another one, which ends them as lost.
func (g *game) churn() {
	node := pick(g, g.nodes)
	instance, gone := g.gone[node]
	if !gone {
		nodes, err := g.store.Nodes(g.ctx)
		g.ok(err)
		i := slices.IndexFunc(nodes, func(n task.Node) bool { return n.Name == node })
		g.gone[node] = nodes[i].Instance
		g.say("%s goes", node)
		g.leave(node)

		if g.chance(2) {
			g.ok(g.store.PutCleared(g.ctx, nodes[i].Instance, task.At(g.clock())))
			delete(g.gone, node)
			g.gone[node] = ""
		}
	} else {
		g.back(node, instance)
	}

	if g.chance(2) {
		g.refleet()
	}
}

func (g *game) back(node, instance string) {
	if g.chance(2) {
		instance = ""
	}

	g.joinAs(task.Node{Name: node, Instance: instance, Slots: 1000, State: task.NodeReady, Roles: both})
	delete(g.gone, node)
	g.say("%s is back as %q", node, instance)

	for _, h := range g.all() {
		switch {
		case h.Node != node:
		case h.Instance == instance:
			_, err := g.store.Rewrite(g.ctx, g.sessions[node], h)
			g.ok(err)
		default:
			g.end(h, task.Lost)
		}
	}
}

// mend ends all faults, and lets a new owner decide everything that is due.
func (g *game) mend() *testWorker {
	g.say("heal")
	g.stuck = nil
	g.late()

	for node := range g.gone {
		g.back(node, "")
	}

	if f, err := g.store.Freezes(g.ctx); err == nil && len(f.Holding) > 0 {
		g.freeze()
	}

	for _, h := range slices.Clone(g.workers) {
		g.drop(h)
	}

	g.skews.Lock()
	clear(g.skew)
	g.skews.Unlock()

	g.rate.Store(1000)
	g.later(10 * time.Second) // beyond every clock that there was, and every wait
	g.startNewOwner()
	h := g.workers[0]
	h.see()
	g.ok(h.runRound(h.ctx))

	return h
}

// heal ends all faults, and lets a new owner continue until nothing is left to do.
func (g *game) heal() {
	h := g.mend()
	g.judge(check.Options{Until: g.clock()})

	for _, name := range g.tasks {
		g.update(name, false, paused)
	}

	for i := 0; ; i++ {
		if i == 200 {
			g.Fatalf("after 200 rounds there is still something to do: %v", g.stories())
		}

		h.see()
		g.ok(h.runRound(h.ctx))
		h.rowsMatch()

		all := g.all()
		for _, a := range all {
			g.end(a, task.Succeeded)
		}

		h.see()
		waits := 0
		for t := range h.state.records.Tasks.All() {
			waits += len(t.Queue())
		}

		if len(all) == 0 && waits == 0 {
			break
		}

		g.later(h.sleepFor() + time.Millisecond)
	}
}
