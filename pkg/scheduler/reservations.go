package scheduler

import (
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/node"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// reservations are the shared resources that a plan has taken: slots of nodes, catch-up tokens, and places
// in the shard's line for tokens. They are taken while deciding, because whether a tick fires depends on
// them. They are given back if the commit does not succeed.
type reservations struct {
	placement placer
	pace      tokens
	line      *taskstate.TokenLine

	reserved []reservedSlot
	tokens   int               // tokens taken, for runs of late ticks
	granted  int               // how many of these had been granted to tasks of the line
	joined   []*taskstate.Task // tasks that joined the line, because there was no token for them
}

// reservedSlot is a slot that was taken on a node.
type reservedSlot struct {
	node *task.Node // as it was known at that time
	pool placement.Pool
}

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

// lookForFacts is how often runs are examined that wait for a node whose facts match, such as its load.
// Nodes publish their facts about as often.
const lookForFacts = 5 * time.Second

// wantOf returns the requirements of a run of t on its node: those of the task, and the node selector of its
// namespace.
func (p *plan) wantOf(t *taskstate.Task) placement.Want {
	w := t.Want()
	w.Selector = p.namespaceOf(t).selectorFor(t)

	return w
}

// selectorFor returns the selector that the node of a task's run must match: the task's, and the namespace's.
func (n planNamespace) selectorFor(t *taskstate.Task) task.Selector {
	if n.record == nil || n.record.Nodes == "" {
		return t.Policy.Selector
	}

	return n.s.limitsOf(n.name, n.record).JoinSelector(t.Policy)
}

// onNode returns the requirements of a run of t whose request named a node: the node itself, and the node selector of the
// namespace. They replace those of the task's target.
func (n planNamespace) onNode(t *taskstate.Task, node string) placement.Want {
	w := placement.Want{Strategy: task.StrategyFirst, Order: []string{node}, Pool: t.Pool(), Secret: t.Secret}
	if n.record != nil && n.record.Nodes != "" {
		w.Selector = n.s.limitsOf(n.name, n.record).Selector()
	}

	return w
}

// accepts reports whether the node selector of the namespace lets its tasks run on a node. It is for runs that are
// bound to a node; pickNode takes the selector into account.
func (n planNamespace) accepts(node *task.Node) bool {
	return n.record == nil || n.record.Nodes == "" || n.s.limitsOf(n.name, n.record).Accepts(node)
}

// reserveSlot records a slot that the placement has counted, so that giveBack returns it.
func (r *reservations) reserveSlot(n *task.Node, pool placement.Pool) {
	r.reserved = append(r.reserved, reservedSlot{n, pool})
}

// takeToken takes a catch-up token for a run of t. It returns false, and puts t into the line, if there is
// no token or if other tasks of the shard have waited longer.
func (r *reservations) takeToken(t *taskstate.Task, now time.Time) bool {
	l := r.line
	if l.Len() > 0 && l.Granted == 0 || !r.pace.Take(now) {
		if l.Add(t) {
			r.joined = append(r.joined, t)
		}
		return false
	}

	if l.Granted > 0 {
		l.Granted--
		r.granted++
	}

	r.tokens++

	return true
}

// returnToken gives back the token that was taken last, because its run does not start after all.
func (r *reservations) returnToken() {
	r.tokens--
	r.pace.Return(1)
}

// giveBack gives everything back, because nothing of the plan was written. It must be called at most once.
func (r *reservations) giveBack() {
	for _, slot := range r.reserved {
		r.placement.Release(slot.node.Name, slot.pool)
	}

	if r.tokens > 0 {
		r.pace.Return(r.tokens)
	}

	r.line.Granted += r.granted
	r.line.RemoveLast(r.joined)
}

// grantTokens asks the node's limiter for tokens, and notes as many tasks of the line for examination as
// there are tokens. The tokens are only promised: the plan takes each one when it starts a run. So a round
// examines no more late tasks than can start.
func (s *shardState) grantTokens(now time.Time) {
	l := &s.line
	l.Granted = 0

	// A turn that is further away than MaxTurn means that the clock was set back. Ask again in that
	// case.
	if l.Len() == 0 || now.Before(l.Turn) && l.Turn.Sub(now) <= node.MaxTurn {
		return
	}

	var again time.Duration
	l.Granted, again = s.tokens.Turn(now)
	l.Turn = now.Add(again)
	for range l.Granted {
		t := l.Next()
		if t == nil {
			break
		}
		s.examineNext(t)
	}

	if l.Len() == 0 {
		s.tokens.Leave()
	}
}
