package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// reservations are what a plan has taken of what shards compete for: slots of nodes and catch-up
// tokens, and places in the shard's line for tokens. They are taken while deciding, since whether a
// tick fires depends on them, and are given back if the commit does not succeed.
type reservations struct {
	placement placer
	pace      tokens
	line      *line

	reserved []*task.Node      // a slot each, as the nodes were known
	tokens   int               // for late ticks
	granted  int               // of these, those that were granted to tasks of the line
	joined   []*taskstate.Task // the line, since there was no token for them
}

// reserveSlot keeps a slot that the placement has counted: an attempt goes there.
func (r *reservations) reserveSlot(n *task.Node) { r.reserved = append(r.reserved, n) }

// takeToken takes a token for a run of t; false if there is none, or others of the
// shard have waited longer.
func (r *reservations) takeToken(t *taskstate.Task, now time.Time) bool {
	l := r.line
	if len(l.tasks) > 0 && l.granted == 0 || !r.pace.Take(now) {
		if l.join(t) {
			r.joined = append(r.joined, t)
		}
		return false
	}

	if l.granted > 0 {
		l.granted--
		r.granted++
	}

	r.tokens++

	return true
}

// returnToken gives back the token that was taken last.
func (r *reservations) returnToken() {
	r.tokens--
	r.pace.Return(1)
}

// giveBack gives everything back: nothing of the plan was written.
func (r *reservations) giveBack() {
	for _, n := range r.reserved {
		r.placement.Release(n.Name)
	}

	if r.tokens > 0 {
		r.pace.Return(r.tokens)
	}

	r.line.granted += r.granted
	r.line.removeLast(r.joined)
}
