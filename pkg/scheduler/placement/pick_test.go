package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// six returns six nodes with 10 slots each. The weight of n6 is five times that of each other node.
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

// placed counts, by node, where short runs of one task go.
func placed(f *Fleet, w Want, runs int) map[string]int {
	to := map[string]int{}
	for range runs {
		if n, ok := f.Reserve(w, start); ok {
			to[n.Name]++
			w.Last = n.Name
			f.Release(n.Name, ProcessSlots)
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

// What each strategy does when nodes are full, draining or blocked.
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
	blocks := func(list []task.Node) { list[1].Blocked = []string{task.FactDiskFree} }
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
		to     []string // all nodes that get runs
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
		{"the next in the order has it", Want{Strategy: task.StrategyFirst, Order: order}, blocks, []string{"n3"}},
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
		{"a retry goes elsewhere", Want{Strategy: task.StrategyRandom, Avoid: "n1"}, blocks, []string{"n3", "n4", "n5", "n6"}},
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

// The least loaded node is not the one with the busiest machine, even if all of its slots are free. Small
// differences do not count.
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

// When a node goes, only its keys move, and all owners compute the same result.
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
	nodes[0].State, nodes[1].Blocked = task.NodeCordoned, []string{task.FactLoad1}
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

// Which nodes get the parts of a run with count: 2, under each strategy.
func TestSeveral_ChoosesByTheStrategy(t *testing.T) {
	t.Parallel()
	const draws = 1000 // the probability that one of 30 pairs is missed is 10^-13
	for _, c := range []struct {
		want  Want
		full  string
		pairs func(map[string]int) bool // by the names of the two nodes, in order
	}{
		{Want{}, "", func(to map[string]int) bool { return len(to) == 30 }},
		{Want{}, "n1 n2 n3 n4", func(to map[string]int) bool { return to["n5 n6"]+to["n6 n5"] == draws }},
		{Want{Strategy: task.StrategyLeastLoaded}, "n1 n2 n3 n4", func(to map[string]int) bool { return to["n5 n6"]+to["n6 n5"] == draws }},
		{Want{Strategy: task.StrategyRandom}, "", func(to map[string]int) bool { return len(to) == 30 }},
		{Want{Strategy: task.StrategyRandom}, "n1 n2 n3 n4", func(to map[string]int) bool { return to["n5 n6"]+to["n6 n5"] == draws }},
		// n6 weighs as much as all others together. Half of the other choices go to one of the five.
		{Want{Strategy: task.StrategyWeighted}, "", func(to map[string]int) bool {
			n := 0
			for pair, times := range to {
				if strings.Contains(pair, "n6") {
					n += times
				}
			}

			return n > draws*3/5 && n < draws
		}},
		{Want{Strategy: task.StrategyRoundRobin, Last: "n5"}, "", func(to map[string]int) bool { return to["n6 n1"] == draws }},
		{Want{Strategy: task.StrategyRoundRobin, Last: "n6"}, "n1", func(to map[string]int) bool { return to["n2 n3"] == draws }},
		{Want{Strategy: task.StrategyRoundRobin}, "", func(to map[string]int) bool { return len(to) == 6 }},
		{Want{Strategy: task.StrategyHash, Key: "default/report"}, "n4", func(to map[string]int) bool { return to["n4 n3"] == draws }},
		{Want{Strategy: task.StrategyFirst, Order: []string{"n5", "n2", "n9", "n1"}}, "", func(to map[string]int) bool { return to["n5 n2"] == draws }},
		{Want{Strategy: task.StrategyFirst, Order: []string{"n5", "n2", "n9", "n1"}}, "n5", func(to map[string]int) bool { return to["n2 n1"] == draws }},
	} {
		f := NewFleet("", nil)
		nodes := six()
		for i := range nodes {
			if strings.Contains(c.full, nodes[i].Name) {
				nodes[i].Running = nodes[i].Slots
			}
		}

		f.Set(nodes)
		to := map[string]int{}
		for range draws {
			to[strings.Join(f.Rank(c.want, start)[:2], " ")]++
		}

		if !c.pairs(to) {
			t.Errorf("%q after %q, with %q full: %s", c.want.Strategy, c.want.Last, c.full, spread(to))
		}
	}
}
