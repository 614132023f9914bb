package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Tasks that fire at the same time do not all get the same nodes, even if nothing runs yet.
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
		t.Errorf("24 parts are for %v", nodes)
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

// A run waits for nodes if too few of its parts could succeed.
func TestFanOut_ThatCannotSucceed_WaitsForNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), count(task.All), succeed("2"))
	h.decide(1)
	w.want("a", "+1 queued number_of_nodes")
	w.join("n2")
	h.fleet()
	h.state.examineAll()
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
