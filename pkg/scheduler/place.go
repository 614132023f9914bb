package scheduler

import (
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// lookForFacts is how often what waits for a node whose facts match is looked at:
// nodes tell their facts about as often.
const lookForFacts = 5 * time.Second

// pickNode chooses a node for a run. If it finds none because a session is suspect, or
// because of what changes all the time, what waits is looked at again in a while.
func (p *plan) pickNode(t *taskstate.Task) (*task.Node, bool) { return p.pickFor(t, t.Want()) }

// pickForAttempt is pick for a run in the queue, which may have had attempts: the next one avoids the
// node on which the last one failed.
func (p *plan) pickForAttempt(t *taskstate.Task, q *taskstate.Waiting) (*task.Node, bool) {
	w := t.Want()
	w.Avoid = q.LastNode()

	return p.pickFor(t, w)
}

// pickPart is pickForAttempt for a part that may run on any node. Parts of one run are hashed apart.
// q is the part's record if it has had attempts, else nil.
func (p *plan) pickPart(t *taskstate.Task, index int, q *taskstate.Waiting) (*task.Node, bool) {
	w := t.Want()
	if q != nil {
		w.Avoid = q.LastNode()
	}

	if w.Strategy == task.StrategyHash {
		w.Key += "/" + strconv.Itoa(index)
	}

	return p.pickFor(t, w)
}

func (p *plan) pickFor(t *taskstate.Task, w placement.Want) (*task.Node, bool) {
	n, ok := p.s.placement.Reserve(w, p.now)
	if !ok {
		p.looksForNodes(t)
	}
	return n, ok
}

// looksForNodes has what waits for nodes looked at again in a while.
func (p *plan) looksForNodes(t *taskstate.Task) {
	if until, suspect := p.s.placement.SuspectUntil(p.now); suspect {
		p.s.wakeAt(until)
	}

	if t.Policy.Selector.Compares() {
		p.s.wakeAt(p.now.Add(lookForFacts))
	}
}

// stickToNode has the entry of a sticky task say which node has its runs, if that is
// another than it says.
func (p *plan) stickToNode(t *taskstate.Task, n *task.Node) {
	if t.Policy.Sticky() && p.ownFields(t).Node != n.Name {
		p.changeEntry(t, func(c *entryChange) { c.own.Node = n.Name })
	}
}
