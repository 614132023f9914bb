package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/pace"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
)

// lostAfter is the cluster's setting as it is now. It is for what has no attempt, such as
// a part that waits for its node. An attempt has its own: see watch.lostAfter.
func (p *plan) lostAfter() time.Duration { return p.cluster.EffectiveLostAfter().Std() }

// line is the tasks of a worker that wait for a token, in the order in which they
// came. A task may stand in it without need.
type line struct {
	tasks   []*taskstate.Task
	turn    time.Time // when to look after it
	granted int       // tokens for those that were taken off it in this round
}

// join puts a task into the line. It reports whether the task was not in it before.
func (l *line) join(t *taskstate.Task) bool {
	live := t.Activity
	if live == nil || live.InLine {
		return false
	}

	live.InLine = true

	if len(l.tasks) == 0 {
		l.turn = time.Time{}
	}

	l.tasks = append(l.tasks, t)

	return true
}

// removeLast takes the tasks out that joined the line last.
func (l *line) removeLast(joined []*taskstate.Task) {
	for _, t := range joined {
		if t.Activity != nil { // else the task has nothing left that waits
			t.Activity.InLine = false
		}
	}

	left := len(l.tasks) - len(joined)
	clear(l.tasks[left:])
	l.tasks = l.tasks[:left]
}

// nextWaiting takes the first task off the line that waits still; nil if there is none.
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

// grantTokens has as many tasks of the line looked at as may have a token now.
func (s *shardState) grantTokens(now time.Time) {
	l := &s.line
	l.granted = 0
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
