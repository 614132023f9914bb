package scheduler

import (
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// lookForFacts is how often runs are examined that wait for a node whose facts match, such as its load.
// Nodes publish their facts about as often.
const lookForFacts = 5 * time.Second

// pickNode chooses a node for a run and counts a slot of it. If it finds none, but one may become available
// without an event (a suspicion ends, facts change), the worker wakes up for that.
func (p *plan) pickNode(t *taskstate.Task) (*task.Node, bool) { return p.pickFor(t, p.wantOf(t)) }

// pickForAttempt is like pickNode for a run in the queue. If the run has had an attempt, the next one
// avoids the node on which that failed. A run whose request named a node waits for that node.
func (p *plan) pickForAttempt(t *taskstate.Task, q *taskstate.Waiting) (*task.Node, bool) {
	if q.TargetNode != "" {
		return p.pickFor(t, p.namespaceOf(t).onNode(t, q.TargetNode))
	}

	w := p.wantOf(t)
	w.Avoid = q.LastNode()

	return p.pickFor(t, w)
}

// pickPart is like pickForAttempt for a part that may run on any node. With the hash strategy, the parts of
// a run have different keys, so that they spread over the nodes. q is the part's record if it has had
// attempts, else nil.
func (p *plan) pickPart(t *taskstate.Task, index int, q *taskstate.Waiting) (*task.Node, bool) {
	w := p.wantOf(t)
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
		p.examineWhenNodesMayAppear(t)
	}
	return n, ok
}

// examineWhenNodesMayAppear makes the worker examine waiting runs again when a node may become available without an
// event.
func (p *plan) examineWhenNodesMayAppear(t *taskstate.Task) {
	if until, suspect := p.s.placement.SuspectUntil(p.now); suspect {
		p.s.examineAgainAt(t, until)
	}

	if p.namespaceOf(t).selectorFor(t).Compares() {
		p.s.examineAgainAt(t, p.now.Add(lookForFacts))
	}
}
