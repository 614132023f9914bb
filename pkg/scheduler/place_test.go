package scheduler

import (
	"fmt"
	"maps"
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

// six are nodes of 10 slots; n6 weighs five times as much as each other.
func six(but ...string) (list []task.Node) {
	for i := range 6 {
		n := node(fmt.Sprintf("n%d", i+1), 10, func(n *task.Node) { n.Weight = 1 })
		if n.Name == "n6" {
			n.Weight = 5
		}
		if !slices.Contains(but, n.Name) {
			list = append(list, n)
		}
	}
	return list
}

// placed counts where short runs go, of one task.
func placed(f *Fleet, w Want, runs int) map[string]int {
	to := map[string]int{}
	for range runs {
		if n, ok := f.Reserve(w, start); ok {
			to[n.Name]++
			w.Last = n.Name
			f.Release(n.Name)
		}
	}
	return to
}

func spread(to map[string]int) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(to)) {
		list = append(list, fmt.Sprintf("%s:%d", name, to[name]))
	}
	return strings.Join(list, " ")
}

// The same task under each strategy on six nodes, and when one of them is gone.
func TestStrategies_OnSixNodesAndAfterALoss(t *testing.T) {
	t.Parallel()
	const runs = 600
	even := func(nodes, slack int) func(map[string]int) bool {
		return func(to map[string]int) bool {
			return len(to) == nodes && !slices.ContainsFunc(slices.Collect(maps.Values(to)), func(n int) bool { return n < runs/nodes-slack || n > runs/nodes+slack })
		}
	}
	only := func(name string) func(map[string]int) bool {
		return func(to map[string]int) bool { return len(to) == 1 && to[name] == runs }
	}
	heavy := func(least, most int) func(map[string]int) bool {
		return func(to map[string]int) bool { return to["n6"] >= least && to["n6"] <= most }
	}
	for _, c := range []struct {
		want          Want
		lost          string
		before, after func(map[string]int) bool
	}{
		{Want{Strategy: task.StrategyAuto}, "n2", only("n1"), only("n1")}, // the owner
		{Want{Strategy: task.StrategyAuto}, "n1", only("n1"), even(5, 60)},
		{Want{Strategy: task.StrategyRoundRobin}, "n3", even(6, 0), even(5, 0)},
		{Want{Strategy: task.StrategyRandom}, "n3", even(6, 50), even(5, 60)},
		{Want{Strategy: task.StrategyWeighted}, "n3", heavy(240, 360), heavy(270, 400)},
		{Want{Strategy: task.StrategyWeighted}, "n6", heavy(240, 360), even(5, 60)},
		{Want{Strategy: task.StrategyLeastLoaded}, "n3", even(6, 50), even(5, 60)},
		{Want{Strategy: task.StrategyHash, Key: "default/report"}, "n2", only("n4"), only("n4")},
		{Want{Strategy: task.StrategyHash, Key: "default/report"}, "n4", only("n4"), only("n3")},
		{Want{Strategy: task.StrategyFirst, Order: []string{"n5", "n2"}}, "n5", only("n5"), only("n2")},
		{Want{Strategy: task.StrategyFirst, Order: []string{"n5", "n2"}}, "n1", only("n5"), only("n5")},
		{Want{Strategy: task.StrategySticky, Last: "n4"}, "n1", only("n4"), only("n4")},
		{Want{Strategy: task.StrategySticky, Last: "n4"}, "n4", only("n4"), func(to map[string]int) bool { return len(to) == 1 && to["n4"] == 0 }},
	} {
		f := NewFleet("n1", func() int { return 10 })
		f.Set(six())
		before := placed(f, c.want, runs)
		f.Set(six(c.lost))
		after := placed(f, c.want, runs)
		t.Logf("%-13s %s; without %s: %s", c.want.Strategy, spread(before), c.lost, spread(after))
		if !c.before(before) {
			t.Errorf("%s: %s", c.want.Strategy, spread(before))
		}
		if !c.after(after) {
			t.Errorf("%s without %s: %s", c.want.Strategy, c.lost, spread(after))
		}
	}
}

// What a strategy does when nodes are full, draining or pressed.
func TestStrategies_WhenNodesAreFullOrTakeNone(t *testing.T) {
	t.Parallel()
	running := func(n int, names ...string) func([]task.Node) {
		return func(list []task.Node) {
			for i := range list {
				if slices.Contains(names, list[i].Name) {
					list[i].Running = n
				}
			}
		}
	}
	drains := func(list []task.Node) { list[1].State = task.NodeDraining } // n2
	presses := func(list []task.Node) { list[1].Pressed = []string{task.FactDiskFree} }
	holds := func(names ...string) func([]task.Node) {
		return func(list []task.Node) {
			for i := range list {
				if slices.Contains(names, list[i].Name) {
					list[i].SecretKeys = []string{"key"}
				}
			}
		}
	}
	order := []string{"n2", "n3"}
	for _, c := range []struct {
		name   string
		want   Want
		change func([]task.Node)
		to     []string // all that have runs
	}{
		{"a full node has no turn", Want{Strategy: task.StrategyRoundRobin}, running(10, "n2", "n3", "n4", "n5"), []string{"n1", "n6"}},
		{"unless all are", Want{Strategy: task.StrategyRoundRobin}, running(10, "n1", "n2", "n3", "n4", "n5", "n6"), []string{"n1", "n2", "n3", "n4", "n5", "n6"}},
		{"no luck", Want{Strategy: task.StrategyRandom}, running(10, "n2", "n3", "n4", "n5"), []string{"n1", "n6"}},
		{"nor weight", Want{Strategy: task.StrategyWeighted}, running(10, "n3", "n4", "n5", "n6"), []string{"n1", "n2"}},
		{"the least loaded has it", Want{Strategy: task.StrategyLeastLoaded}, running(3, "n1", "n2", "n3", "n4", "n5"), []string{"n6"}},
		{"the next in the order has it", Want{Strategy: task.StrategyFirst, Order: order}, running(10, "n2"), []string{"n3"}},
		{"unless all are, then it waits there", Want{Strategy: task.StrategyFirst, Order: order}, running(10, "n2", "n3"), []string{"n2"}},
		{"it waits there", Want{Strategy: task.StrategyHash, Key: "default/report"}, running(10, "n4"), []string{"n4"}},
		{"it waits there", Want{Strategy: task.StrategySticky, Last: "n2"}, running(10, "n2"), []string{"n2"}},
		{"the next in the order has it", Want{Strategy: task.StrategyFirst, Order: order}, drains, []string{"n3"}},
		{"the next in the order has it", Want{Strategy: task.StrategyFirst, Order: order}, presses, []string{"n3"}},
		{"who is not in the order has none", Want{Strategy: task.StrategyFirst, Order: order[:1]}, drains, nil},
		{"a retry goes elsewhere", Want{Strategy: task.StrategyAuto, Avoid: "n2"}, running(10, "n3", "n4", "n5"), []string{"n1", "n6"}},
		{"a retry goes elsewhere", Want{Strategy: task.StrategyRoundRobin, Last: "n1", Avoid: "n2"}, running(10, "n3", "n4", "n5"), []string{"n1", "n6"}},
		{"a retry goes elsewhere", Want{Strategy: task.StrategyRandom, Avoid: "n2"}, running(10, "n3", "n4", "n5"), []string{"n1", "n6"}},
		{"a retry goes elsewhere", Want{Strategy: task.StrategyWeighted, Avoid: "n6"}, running(10, "n3", "n4", "n5"), []string{"n1", "n2"}},
		{"a retry goes elsewhere", Want{Strategy: task.StrategyLeastLoaded, Avoid: "n2"}, running(3, "n1", "n3", "n4", "n5"), []string{"n6"}},
		{"a retry goes elsewhere", Want{Strategy: task.StrategyHash, Key: "default/report", Avoid: "n4"}, running(0), []string{"n3"}},
		{"a retry goes to the next by hash that is free", Want{Strategy: task.StrategyHash, Key: "default/report", Avoid: "n4"}, running(10, "n1", "n2", "n3", "n5"), []string{"n6"}},
		{"a retry goes to the next in the order", Want{Strategy: task.StrategyFirst, Order: order, Avoid: "n2"}, running(0), []string{"n3"}},
		{"a retry stays where it is the only one of the order", Want{Strategy: task.StrategyFirst, Order: order[:1], Avoid: "n2"}, running(0), []string{"n2"}},
		{"a retry stays when all others are full", Want{Strategy: task.StrategyLeastLoaded, Avoid: "n2"}, running(10, "n1", "n3", "n4", "n5", "n6"), []string{"n2"}},
		{"a retry stays when no other has a key", Want{Strategy: task.StrategyRandom, Avoid: "n2", Secret: true}, holds("n2"), []string{"n2"}},
		{"a retry stays", Want{Strategy: task.StrategySticky, Last: "n2", Avoid: "n2"}, running(0), []string{"n2"}},
		{"the next in the order has it", Want{Strategy: task.StrategyFirst, Order: order, Secret: true}, holds("n3", "n4"), []string{"n3"}},
		{"the next by hash has it", Want{Strategy: task.StrategyHash, Key: "default/report", Secret: true}, holds("n3"), []string{"n3"}},
		{"another has it", Want{Strategy: task.StrategySticky, Last: "n2", Secret: true}, holds("n3"), []string{"n3"}},
		{"those with a key have it", Want{Strategy: task.StrategyRoundRobin, Secret: true}, holds("n3", "n4"), []string{"n3", "n4"}},
		{"without a key nobody has it", Want{Strategy: task.StrategyLeastLoaded, Secret: true}, holds(), nil},
		{"what reads no secret needs none", Want{Strategy: task.StrategyFirst, Order: order}, holds("n3"), []string{"n2"}},
		{"a retry goes elsewhere", Want{Strategy: task.StrategyRandom, Avoid: "n1"}, presses, []string{"n3", "n4", "n5", "n6"}},
	} {
		f := NewFleet("", nil)
		nodes := six()
		c.change(nodes)
		f.Set(nodes)
		if to := slices.Sorted(maps.Keys(placed(f, c.want, 200))); !slices.Equal(to, c.to) {
			t.Errorf("%s, %s: runs go to %v, want %v", c.want.Strategy, c.name, to, c.to)
		}
	}
	f := NewFleet("", nil)
	f.Set(nil)
	for _, s := range task.Strategies() {
		if n, ok := f.Reserve(Want{Strategy: s, Order: order, Key: "k", Last: "n1"}, start); ok {
			t.Errorf("%s picks %v of no nodes", s, n)
		}
	}
}

// The least loaded is not the busiest machine, however empty its slots are; a hair
// makes no difference.
func TestStrategies_LeastLoadedMindsTheMachine(t *testing.T) {
	t.Parallel()
	nodes := six()
	for i := range nodes {
		load := []float64{8, 0.1, 8, 0.2, 8, 8}[i]
		nodes[i].Facts = &task.Facts{CPUs: 4, Load1: &load}
	}
	f := NewFleet("", nil)
	f.Set(nodes)
	if to := placed(f, Want{Strategy: task.StrategyLeastLoaded}, 200); to["n2"]+to["n4"] != 200 || to["n2"] < 50 || to["n4"] < 50 {
		t.Errorf("runs go to %s", spread(to))
	}
}

// Only what a node had moves when it goes, and all owners agree.
func TestStrategies_HashMovesOnlyWhatItMust(t *testing.T) {
	t.Parallel()
	where := func(self string, nodes []task.Node) map[string]string {
		f := NewFleet(self, func() int { return 5 })
		slices.Reverse(nodes)
		f.Set(nodes)
		at := map[string]string{}
		for i := range 600 {
			key := fmt.Sprintf("customer-%d", i)
			n, _ := f.Reserve(Want{Strategy: task.StrategyHash, Key: key}, start)
			at[key] = n.Name
		}
		return at
	}
	all, others, less := where("n1", six()), where("n2", six()), where("n1", six("n3"))
	share := map[string]int{}
	for key, name := range all {
		share[name]++
		if others[key] != name {
			t.Fatalf("owners disagree about %s: %s, %s", key, name, others[key])
		}
		if name != "n3" && less[key] != name {
			t.Errorf("%s moves from %s to %s, and n3 went", key, name, less[key])
		}
	}
	for name, n := range share {
		if n < 60 || n > 140 {
			t.Errorf("%s has %d of 600 keys: %s", name, n, spread(share))
		}
	}
}

func TestSeveral_AreThoseAmongWhichItPicks(t *testing.T) {
	t.Parallel()
	nodes := six()
	nodes[0].State, nodes[1].Pressed = task.NodeCordoned, []string{task.FactLoad1}
	free := int64(20 << 30)
	nodes[3].Facts, nodes[5].Facts = &task.Facts{Disk: 1 << 40, DiskFree: &free}, &task.Facts{Disk: 1 << 40, DiskFree: new(int64)}
	f := NewFleet("n1", nil)
	slices.Reverse(nodes)
	f.Set(nodes)
	f.Suspect("n3", 10, start)
	for selector, want := range map[string]string{"": "n4 n5 n6", "disk_free > 10Gi": "n4", "node != n4": "n5 n6", "load1 < 5": ""} {
		sel, err := task.ParseSelector(selector)
		names := slices.Sorted(slices.Values(f.Rank(Want{Selector: sel}, start)))
		if err != nil || strings.Join(names, " ") != want {
			t.Errorf("%q: %v, want %s (%v)", selector, names, want, err)
		}
	}
}

// ranOn are the nodes that a task's runs went to, the oldest first.
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

// A host that is ill fails whatever it is given. The next attempt of a run goes to another one, even
// where the strategy prefers the owner of the shard, so that retries help and the owner does not matter.
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

// The pieces of a run go to any node, so another attempt of one avoids the node on which it failed.
// A part that belongs to a node has to stay there.
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

// A sticky task stays where its last run was, whoever owns the shard; its entry is
// written when that changes, and for no other run.
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
	h = w.work("n2") // which knows only what is on record
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

// The note of the node is in the commit that starts the run: neither is without the
// other.
func TestSticky_OverLostCommits(t *testing.T) {
	t.Parallel()
	for i, tricks := range [][]trick{{lost}, {appliedButLost}, {refused}} {
		w := newWorld(t, "n1", "n2", "n3").judged()
		w.create("a", allow, strategy(task.StrategySticky), maxRuns(3))
		h := w.work("n1")
		h.door.play(tricks...)
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
	h.door.play(lost) // a commit that changed nothing takes no turn
	for s := 7.0; s <= 10; s++ {
		h.decide(s)
	}
	if at := strings.TrimPrefix(w.ranOn("a"), at+" "); at != "n1 n2 n1 n2" && at != "n2 n1 n2 n1" {
		t.Errorf("without n3 it ran on %s", at)
	}
}

// Facts change without a word to the workers: what waits for them looks now and then.
func TestSelector_OfFactsIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	w.create("a", cronned("@every 1h"), on("disk_free > 10Gi"))
	w.trigger("a")
	h := w.work("n1")
	h.decide(1)
	h.decide(2) // which hears of its own word
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

// secretly has a task read a secret.
func secretly(t *task.Task) {
	t.Action = task.Action{Process: &task.Process{Command: []string{"true"}, EnvFrom: []task.EnvFrom{{Secret: "db"}}}}
}

// A node whose keys cannot be read has no runs that would fail there for that, nor parts
// of them; those without secrets it has. What waits goes when the keys can be read again.
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
		h.lookAtAll()
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
	holds("n1") // a part waits for the node that it is for
	h.decide(10)
	w.wantParts("c", "0 dispatched n1", "1 left")
	holds("n2")
	h.decide(11)
	w.wantParts("c", "0 dispatched n1", "1 dispatched n2")
}
