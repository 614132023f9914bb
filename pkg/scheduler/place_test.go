package scheduler

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func strategy(name string, change ...func(*task.Target)) option {
	return func(t *task.Task) {
		t.Target.Strategy = name
		for _, f := range change {
			f(&t.Target)
		}
	}
}

// ranOn returns the nodes on which a task's runs were, the oldest first.
func (w *world) ranOn(name string) string {
	w.Helper()
	runs, err := w.store.ShardRuns(w.ctx, []int{0}, "")
	w.ok(err)

	for _, h := range w.active(name) {
		runs = append(runs, h.Run)
	}

	slices.SortFunc(runs, func(a, b task.Run) int { return record.ByTime(b, a) })
	var list []string
	for _, r := range runs {
		if r.Task == name {
			list = append(list, r.Node)
		}
	}

	return strings.Join(list, " ")
}

// A faulty host fails every run. So the next attempt of a run goes to another node, even if the strategy
// prefers the owner of the shard. Retries then help, whichever node is the owner.
func TestRetry_GoesToAnotherNode(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		options []option
		stays   bool
	}{
		"auto":       {options: []option{strategy(task.StrategyAuto)}},
		"hash":       {options: []option{strategy(task.StrategyHash)}},
		"sticky":     {options: []option{strategy(task.StrategySticky)}, stays: true},
		"one node":   {options: []option{strategy(task.StrategyFirst, func(t *task.Target) { t.Order = []string{"n2"} })}, stays: true},
		"a selector": {options: []option{on("node = n2")}, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newWorld(t, "n1", "n2").judged()
			h := w.work("n1")
			w.create("a", append(c.options, cronned("1 0 12 * * *"), retries(3, 0, task.Failed))...)

			h.decide(1)
			first := w.active("a")[0].Node
			w.finish("a", task.Failed)
			h.decide(2)
			second := w.active("a")[0].Node
			w.finish("a", task.Failed)
			h.decide(3)
			third := w.active("a")[0].Node

			if stayed := first == second; stayed != c.stays {
				t.Errorf("the attempts were on %s, %s, %s", first, second, third)
			}

			if third != first {
				t.Errorf("of two nodes the third attempt is not on the first again: %s, %s, %s", first, second, third)
			}
		})
	}
}

// A part that may run on any node avoids the node on which it failed. A part with its own node stays
// there.
func TestRetry_OfAPart(t *testing.T) {
	t.Parallel()

	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("pieces", cronned("1 0 12 * * *"), parts(2), retries(2, 0, task.Failed))
	w.create("nodes", cronned("1 0 12 * * *"), count(task.All), retries(2, 0, task.Failed))
	h.decide(1)
	h.decide(1.5)
	w.wantParts("pieces", "0 dispatched n1", "1 dispatched n1")
	w.wantParts("nodes", "0 dispatched n1", "1 dispatched n2")

	for _, name := range []string{"pieces", "nodes"} {
		w.end(w.part(name, 0), task.Failed)
		w.end(w.part(name, 1), task.Failed)
	}

	h.decide(2)
	h.decide(3)
	w.wantParts("pieces", "0 dispatched n2", "1 dispatched n2")
	w.wantParts("nodes", "0 dispatched n1", "1 dispatched n2")
}

// A sticky task stays on the node of its last run, whichever node owns the shard. Its entry is written only
// when that node changes.
func TestSticky_StaysAcrossOwnersAndMovesOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2", "n3", "n4").judged()
	w.create("a", allow, strategy(task.StrategySticky))
	h := w.work("n1")
	h.decide(1)

	first := w.own("a").Node
	if first == "" {
		t.Fatal("the entry does not say where its run went")
	}

	written := w.mod("a")
	h.decide(2)
	h = w.work("n2") // knows only what is on record
	h.decide(3)
	id := w.trigger("a")
	h.decide(3.5)

	if at := w.ranOn("a"); at != strings.TrimSpace(strings.Repeat(first+" ", 4)) || w.mod("a") != written {
		t.Errorf("it ran on %s, manually (%s) too; its entry was written %v", at, id, w.mod("a") != written)
	}

	w.leave(first)
	owner := slices.DeleteFunc([]string{"n2", "n3"}, func(n string) bool { return n == first })[0]
	h = w.work(owner)
	h.decide(4)

	second := w.own("a").Node
	if second == "" || second == first {
		t.Fatalf("without %s it is on %q", first, second)
	}

	w.join(first)
	h.fleet()
	h.decide(5)

	if at := strings.Fields(w.ranOn("a")); len(at) < 2 || at[len(at)-1] != second || at[len(at)-2] != second {
		t.Errorf("it went back to where it was: %v", at)
	}

	w.update("a", false, strategy(task.StrategyAuto))
	h.decide(6)

	if n := len(w.active("a")); n < 6 {
		t.Errorf("only %d runs", n)
	}
}

func (w *world) mod(name string) int64 {
	w.Helper()
	st, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)

	return st.EntryMod
}

// The commit that starts the run also records the node. Neither exists without the other.
func TestSticky_OverLostCommits(t *testing.T) {
	t.Parallel()

	for i, tricks := range [][]trick{{lost}, {appliedButLost}, {refused}} {
		w := newWorld(t, "n1", "n2", "n3").judged()
		w.create("a", allow, strategy(task.StrategySticky), maxRuns(3))
		h := w.work("n1")
		h.gate.play(tricks...)
		_ = h.try(1)

		for s := 2.0; s < 7; s++ {
			h.decide(s)
		}

		at := strings.Fields(w.ranOn("a"))
		if len(at) != 3 || len(slices.Compact(slices.Clone(at))) != 1 || w.own("a").Node != at[0] {
			t.Errorf("%d: it ran on %v, and %q is noted", i, at, w.own("a").Node)
		}
	}
}

func TestRoundRobin_GoesRoundWhoeverIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2", "n3").judged()
	w.create("a", allow, strategy(task.StrategyRoundRobin))
	h := w.work("n1")

	for s := 1.0; s <= 6; s++ {
		h.decide(s)
	}

	at := w.ranOn("a")
	if !strings.Contains("n1 n2 n3 n1 n2 n3 n1 n2 n3", at) {
		t.Errorf("it ran on %s", at)
	}

	w.leave("n3")
	h.fleet()
	h.gate.play(lost) // a commit that changed nothing does not use up a turn

	for s := 7.0; s <= 10; s++ {
		h.decide(s)
	}

	if at := strings.TrimPrefix(w.ranOn("a"), at+" "); at != "n1 n2 n1 n2" && at != "n2 n1 n2 n1" {
		t.Errorf("without n3 it ran on %s", at)
	}
}

// Facts of nodes change without an event for the workers. Runs that wait for facts are examined from time
// to time.
func TestSelector_OfFactsIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	w.create("a", cronned("@every 1h"), on("disk_free > 10Gi"))
	w.trigger("a")
	h := w.work("n1")
	h.decide(1)
	h.decide(2) // the worker wakes up by itself
	w.want("a", "+0 queued manual no_matching_node")
	nodes, err := w.store.Nodes(w.ctx)
	w.ok(err)
	free := int64(20 << 30)
	nodes[0].Facts = &task.Facts{Disk: 1 << 40, DiskFree: &free}
	h.e.cfg.Fleet.Set(nodes)
	h.decide(3)
	w.want("a", "+0 queued manual no_matching_node")
	h.decide(2 + lookForFacts.Seconds())
	w.want("a", "+0 dispatched manual")
}

// secretly is an option: the task needs a secret.
func secretly(t *task.Task) {
	t.Action = task.Action{Process: &task.Process{Command: []string{"true"}, EnvFrom: []task.EnvFrom{{Secret: "db"}}}}
}

// A node whose keys cannot be read gets no runs or parts that need a secret, because they would fail. It
// gets those without secrets. Runs that wait start when the keys can be read again.
func TestSecrets_GoWhereAKeyIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	holds := func(names ...string) {
		nodes, err := w.store.Nodes(w.ctx)
		w.ok(err)

		for i := range nodes {
			if slices.Contains(names, nodes[i].Name) {
				nodes[i].SecretKeys = []string{"key"}
			}
		}

		h.e.cfg.Fleet.Set(nodes)
		h.state.examineAll()
	}

	w.create("a", cronned("1 0 12 * * *"), secretly)
	w.create("b", cronned("1 0 12 * * *"))
	w.create("c", cronned("1 0 12 * * *"), secretly, count(2), stagger(2*time.Second))
	h.decide(1)
	w.want("a", "+1 queued no_matching_node")
	w.want("b", "+1 dispatched")
	w.want("c", "+1 queued no_matching_node")
	holds("n2")
	h.decide(2)

	if got := w.active("a"); len(got) != 1 || got[0].Node != "n2" {
		t.Errorf("a is given to %+v", got)
	}

	w.want("c", "+1 queued number_of_nodes")
	holds("n1", "n2")
	h.decide(3)
	holds("n1") // a part waits for its node
	h.decide(10)
	w.wantParts("c", "0 dispatched n1", "1 left")
	holds("n2")
	h.decide(11)
	w.wantParts("c", "0 dispatched n1", "1 dispatched n2")
}
