package taskstate

import (
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/task"
)

// Want is what a run of t asks of its node.
func (t *Task) Want() placement.Want {
	w := placement.Want{Selector: t.Policy.Selector, Secret: t.Secret}
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

// EntryRecords is for how many records of its entry the dispatch of a run needs room.
func (t *Task) EntryRecords() int {
	if t.Policy.Sticky() {
		return 1
	}
	return 0
}

// NoteTurn notes which node had the last turn. Nobody else remembers it: the next
// owner begins anywhere.
func (t *Task) NoteTurn(node string) {
	if t.Policy.Target.Strategy == task.StrategyRoundRobin {
		t.EnsurePast().Turn = node
	}
}
