package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// A task says what a manual run may give in addition to it (task.Accept). The API checks this when the run is requested.
// The task may have changed by the time the run starts, also into one for which other arguments would be dangerous. So
// the owner checks it again before each attempt.

// whyForbidden returns why a waiting run must not start: the reason, and a message for people. The reason is "" if
// the run may start.
func (p *plan) whyForbidden(t *taskstate.Task, q *taskstate.Waiting) (reason, message string) {
	if n := p.namespaceOf(t); !n.allows(t) {
		return task.ReasonNamespace, n.refusal(t)
	}
	if err := t.Policy.Accept.Check(q.Input()); err != nil {
		return task.ReasonAccept, "changed after the run was requested: " + err.Error()
	}

	return "", ""
}
