package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Which nodes have the parts of a run with count: 2, under each strategy.
func TestSeveral_ChoosesByTheStrategy(t *testing.T) {
	t.Parallel()
	const draws = 1000 // one of 30 pairs is missed once in 10^13 times
	for _, c := range []struct {
		want  Want
		full  string
		pairs func(map[string]int) bool // by the names of the two, in their order
	}{
		{Want{}, "", func(to map[string]int) bool { return len(to) == 30 }},
		{Want{}, "n1 n2 n3 n4", func(to map[string]int) bool { return to["n5 n6"]+to["n6 n5"] == draws }},
		{Want{Strategy: task.StrategyLeastLoaded}, "n1 n2 n3 n4", func(to map[string]int) bool { return to["n5 n6"]+to["n6 n5"] == draws }},
		{Want{Strategy: task.StrategyRandom}, "", func(to map[string]int) bool { return len(to) == 30 }},
		{Want{Strategy: task.StrategyRandom}, "n1 n2 n3 n4", func(to map[string]int) bool { return to["n5 n6"]+to["n6 n5"] == draws }},
		// n6 weighs as much as all others together, and a half of the rest goes to one of the five.
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

// Tasks that fire together do not all have the same nodes, though nothing runs yet.
func TestFanOut_TasksOfOneTickSpreadOverTheNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2", "n3", "n4", "n5", "n6").judged()
	for i := range 12 {
		w.create(fmt.Sprintf("t%02d", i), cronned("1 0 12 * * *"), count(2))
	}
	h := w.work("n1")
	h.decide(1)
	h.decide(1.1)
	nodes := map[string]int{}
	for i := range 12 {
		for _, n := range w.parent(fmt.Sprintf("t%02d", i)).Fan.Nodes {
			nodes[n]++
		}
	}
	if len(nodes) < 4 {
		t.Errorf("24 parts are for %s", spread(nodes))
	}
}

func TestFanOut_GivesItsPartsInTheOrderOfTheStrategy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2", "n3").judged()
	h := w.work("n1")
	order := func(t *task.Target) { t.Order = []string{"n3", "n9", "n1", "n2"} }
	w.create("a", cronned("1 0 12 * * *"), count(2), strategy(task.StrategyFirst, order))
	w.create("b", every("2s"), count(2), strategy(task.StrategyRoundRobin), func(t *task.Task) { t.Overlap = task.OverlapAllow })
	h.decide(1)
	w.wantParts("a", "0 dispatched n3", "1 dispatched n1")
	h.decide(2)
	h.decide(4)
	runs, err := w.store.Runs(w.ctx, ref("b"))
	w.ok(err)
	var nodes []string
	for _, r := range slices.Backward(runs) {
		if r.Fan != nil {
			nodes = append(nodes, r.Fan.Nodes...)
		}
	}
	for i := 1; i < len(nodes); i++ {
		if next := map[string]string{"n1": "n2", "n2": "n3", "n3": "n1"}; nodes[i] != next[nodes[i-1]] {
			t.Fatalf("turns are %v", nodes)
		}
	}
	if len(nodes) != 4 {
		t.Errorf("turns are %v", nodes)
	}
}

// Of which it is known beforehand that too few parts will succeed waits for nodes.
func TestFanOut_ThatCannotSucceed_WaitsForNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), count(task.All), succeed("2"))
	h.decide(1)
	w.want("a", "+1 queued number_of_nodes")
	w.join("n2")
	h.fleet()
	h.lookAtAll()
	h.decide(2)
	w.wantParts("a", "0 dispatched n1", "1 dispatched n2")
}

func TestFanOut_ThatWaitsTooLongForNodes_IsMissedForThat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), count(2), func(t *task.Task) { t.Deadline = task.Duration(2 * time.Second) })
	h.decide(1)
	h.decide(3.2)
	w.want("a", "+1 missed number_of_nodes")
}
