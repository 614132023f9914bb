package scheduler

import (
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/task"
)

// lookForFacts is how often what waits for a node whose facts match is looked at:
// nodes tell their facts about as often.
const lookForFacts = 5 * time.Second

// pick chooses a node for a run. If it finds none because a session is suspect, or
// because of what changes all the time, what waits is looked at again in a while.
func (p *plan) pick(t *taskState) (*task.Node, bool) { return p.pickFor(t, t.want()) }

// pickForAttempt is pick for a run in the queue, which may have had attempts: the next one avoids the
// node on which the last one failed.
func (p *plan) pickForAttempt(t *taskState, q *waiting) (*task.Node, bool) {
	w := t.want()
	w.Avoid = q.LastNode()

	return p.pickFor(t, w)
}

// pickPart is pickForAttempt for a part that may run on any node. Parts of one run are hashed apart.
// q is the part's record if it has had attempts, else nil.
func (p *plan) pickPart(t *taskState, index int, q *waiting) (*task.Node, bool) {
	w := t.want()
	if q != nil {
		w.Avoid = q.LastNode()
	}

	if w.Strategy == task.StrategyHash {
		w.Key += "/" + strconv.Itoa(index)
	}
	return p.pickFor(t, w)
}

func (p *plan) pickFor(t *taskState, w placement.Want) (*task.Node, bool) {
	n, ok := p.s.placement.Reserve(w, p.now)
	if !ok {
		p.looksForNodes(t)
	}
	return n, ok
}

// looksForNodes has what waits for nodes looked at again in a while.
func (p *plan) looksForNodes(t *taskState) {
	if until, suspect := p.s.placement.SuspectUntil(p.now); suspect {
		p.s.wakeAt(until)
	}
	if t.how.Selector.Compares() {
		p.s.wakeAt(p.now.Add(lookForFacts))
	}
}

// want is what a run of t asks of its node.
func (t *taskState) want() placement.Want {
	w := placement.Want{Selector: t.how.Selector, Secret: t.secret}
	switch w.Strategy = t.how.Target.Strategy; w.Strategy {
	case task.StrategyHash:
		if w.Key = t.how.Target.Key; w.Key == "" {
			w.Key = t.fullName()
		}
	case task.StrategyFirst:
		w.Order = t.how.Target.Order
	case task.StrategySticky:
		w.Last = t.own().Node
	case task.StrategyRoundRobin:
		if t.past != nil {
			w.Last = t.past.turn
		}
	}
	return w
}

// sticks is for how many records of its entry the dispatch of a run needs room.
func (t *taskState) sticks() int {
	if t.how.Sticky() {
		return 1
	}
	return 0
}

// stick has the entry of a sticky task say which node has its runs, if that is
// another than it says.
func (p *plan) stick(t *taskState, n *task.Node) {
	if t.how.Sticky() && p.own(t).Node != n.Name {
		p.changeEntry(t, func(c *entryChange) { c.own.Node = n.Name })
	}
}

// turned notes which node had the last turn. Nobody else remembers it: the next
// owner begins anywhere.
func (t *taskState) turned(node string) {
	if t.how.Target.Strategy == task.StrategyRoundRobin {
		t.history().turn = node
	}
}
