package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/pace"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
)

// lostAfter returns the cluster's current setting. It applies where there is no attempt, as for a part that
// waits for its node. An attempt has its own value (see Watch.LostAfter).
func (p *plan) lostAfter() time.Duration { return p.cluster.EffectiveLostAfter().Std() }

// line is the queue of a shard's tasks that wait for a catch-up token, in the order in which they came. A
// task may be in it although it no longer needs a token.
type line struct {
	tasks   []*taskstate.Task
	turn    time.Time // when to ask for tokens again
	granted int       // tokens that this round may use for tasks that were taken off the line
}

// addTask puts a task at the end of the line, and reports whether it was not in the line before. A task
// without waiting or active runs is not added: its tick waits in the queue only after the commit, and then
// joins.
func (l *line) addTask(t *taskstate.Task) bool {
	live := t.Activity
	if live == nil || live.InLine {
		return false
	}

	live.InLine = true

	if len(l.tasks) == 0 {
		// The line was empty, so the shard asks for tokens at once.
		l.turn = time.Time{}
	}

	l.tasks = append(l.tasks, t)

	return true
}

// removeLast removes the tasks that joined the line last, in the plan that is being abandoned.
func (l *line) removeLast(joined []*taskstate.Task) {
	for _, t := range joined {
		// A task whose activity was dropped meanwhile has nothing left that waits.
		if t.Activity != nil {
			t.Activity.InLine = false
		}
	}

	left := len(l.tasks) - len(joined)
	clear(l.tasks[left:])
	l.tasks = l.tasks[:left]
}

// nextWaiting removes the first task that still waits from the line and returns it, or nil if there is
// none.
func (l *line) nextWaiting() *taskstate.Task {
	for len(l.tasks) > 0 {
		t := l.tasks[0]
		l.tasks[0] = nil
		if l.tasks = l.tasks[1:]; len(l.tasks) == 0 {
			l.tasks = nil
		}

		if t.Activity != nil && t.Activity.InLine {
			t.Activity.InLine = false
			return t
		}
	}

	return nil
}

// grantTokens asks the node's limiter for tokens, and notes as many tasks of the line for examination as
// there are tokens. The tokens are only promised: the plan takes each one when it starts a run. So a round
// examines no more late tasks than can start.
func (s *shardState) grantTokens(now time.Time) {
	l := &s.line
	l.granted = 0

	// A turn that is further away than LongestTurn means that the clock was set back. Ask again in that
	// case.
	if len(l.tasks) == 0 || now.Before(l.turn) && l.turn.Sub(now) <= pace.LongestTurn { // more: the clock was set back
		return
	}

	var again time.Duration
	l.granted, again = s.tokens.Turn(now)
	l.turn = now.Add(again)
	for range l.granted {
		t := l.nextWaiting()
		if t == nil {
			break
		}
		s.addLook(t)
	}

	if len(l.tasks) == 0 {
		s.tokens.Leave()
	}
}
