package taskstate

import (
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/task"
)

// Want returns the requirements of a run of t on its node.
func (t *Task) Want() placement.Want {
	w := placement.Want{Selector: t.Policy.Selector, Pool: t.Pool(), Secret: t.Secret}
	switch w.Strategy = t.Policy.Target.Strategy; w.Strategy {
	case task.StrategyHash:
		if w.Key = t.Policy.Target.Key; w.Key == "" {
			w.Key = t.FullName()
		}
	case task.StrategyFirst:
		w.Order = t.Policy.Target.Order
	case task.StrategySticky:
		w.Last = t.Own().Node
	case task.StrategyRoundRobin:
		if t.Past != nil {
			w.Last = t.Past.Turn
		}
	}

	return w
}

// Pool returns whose slots an attempt of t takes.
func (t *Task) Pool() placement.Pool {
	if t.IsHTTP() {
		return placement.HTTPSlots
	}
	return placement.ProcessSlots
}

// EntryRecords returns how many writes of its entry the dispatch of a run may cause: with the sticky
// strategy, the entry records the node.
func (t *Task) EntryRecords() int {
	if t.Policy.Sticky() {
		return 1
	}
	return 0
}

// NoteTurn remembers the node that had the last run, for round-robin. It is kept in memory only, so the
// next owner begins with any node.
func (t *Task) NoteTurn(node string) {
	if t.Policy.Target.Strategy == task.StrategyRoundRobin {
		t.EnsurePast().Turn = node
	}
}
