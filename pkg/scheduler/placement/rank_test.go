package placement

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

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
