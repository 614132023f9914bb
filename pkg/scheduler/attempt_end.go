package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// endAttempts ends the attempts of t that are lost, and requests the end of those that must not continue.
// Both were determined before the plan was made (see watchAttempts).
func (p *plan) endAttempts(t *taskstate.Task) {
	for _, a := range t.Active() {
		switch {
		case a.Watch == nil:
		case a.Watch.Lost:
			if !p.reserveRoom(t, 3, 3*roomForRecord) {
				return
			}
			p.loseAttempt(t, a)
		case a.Watch.Ask && p.mayAskCancel(t, a):
			if !p.reserveRoom(t, 2, 2*roomForRecord) {
				return
			}
			p.askCancel(t, a)
		}
	}
}

// mayAskCancel reports whether an attempt still has to be cancelled. The attempt was read before this plan,
// and the task may have changed since: a conflict within the round can deliver an edit. While the task is
// frozen, nothing is replaced, because the replacement could not start.
func (p *plan) mayAskCancel(t *taskstate.Task, a *taskstate.Attempt) bool {
	if t.Orphan(a.Run) || t.GoesWithParent(a.Run) {
		return true
	}

	return !p.isFrozen(t) && t.Replaces(p.now.UnixMilli())
}

// askCancel requests that the node of an attempt ends it. The reason is one of: the task was deleted, the
// attempt is a part whose run ends, or a newer tick replaces it.
func (p *plan) askCancel(t *taskstate.Task, a *taskstate.Attempt) {
	reason, who := task.ReasonDeleted, ""

	switch {
	case t.Orphan(a.Run):
	case t.GoesWithParent(a.Run):
		reason, who = t.EndsWithParent(a.Run)
	default:
		reason = task.ReasonReplaced

		// The policy must still be replace when the cancel is written (G7).
		p.commit.GuardEntry(t.FullName(), t.Mod)
	}

	p.addEffect(cancelAsked{t, a, who, reason})
}

// loseAttempt ends an attempt whose node is gone. Its outcome is unknown. The commit requires that its
// record is unchanged and its node still absent, so a node that comes back first keeps its attempt (G12,
// G17). The run is retried if its policy includes lost; otherwise it has ended (G9).
func (p *plan) loseAttempt(t *taskstate.Task, a *taskstate.Attempt) {
	end := a.Watch.Held.Unpaused()
	end.State, end.Reason, end.EndedAt = task.Lost, task.ReasonNodeLost, task.At(p.now)
	end.Message = a.Watch.Held.LostMessage()
	var next *taskstate.Waiting

	switch {
	case a.Watch.Unreadable != nil:
		// The record cannot be read, so its retry policy is unknown and no attempt follows.
		end.UID, end.Owner = t.UID(), p.s.node
		end.Message = "the record of its attempt could not be read: " + a.Watch.Unreadable.Error()
	case !t.Orphan(a.Run) && !t.GoesWithParent(a.Run):
		// The retry policy applies, except to an attempt of a deleted task and to a part whose run ends.
		if retry := p.s.nextAttempt(a.Watch.Held.Assigned, end, p.now, p.s.random.Float64()); retry != nil {
			next = &taskstate.Waiting{Waiting: *retry}
		}
	}

	p.addEffect(runLost{t, a, &end, next})
	p.counts.lost++
}
