package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/pace"
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

	// A turn that is further away than LongestTurn means that the clock was set back. Ask again in that
	// case.
	if l.Len() == 0 || now.Before(l.Turn) && l.Turn.Sub(now) <= pace.LongestTurn {
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
