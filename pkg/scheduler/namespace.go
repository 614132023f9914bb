package scheduler

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/scheduler/nslimits"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The record of a namespace limits what its tasks may be. The API checks a task against it when the task is
// written, and puts the record's revision into the entry. The record may be tightened after that. So the owner
// checks the task again when one of its runs would start and the record has another revision by then. A run of a
// task that the record does not allow any more ends as failed, with the reason namespace, and has no further
// attempt. The node selector of the record applies whenever a run is placed.

// limitsOf returns the limits by a version of a namespace's record, which remember the results of such checks.
func (s *shardState) limitsOf(name string, n *task.Namespace) *nslimits.Limits {
	return s.limits.Of(name, n, func() {
		for t := range s.Tasks.All() {
			t.Checked = 0
		}
	})
}

// planNamespace is a namespace as a plan sees it. A plan keeps the one that it needed last, because many tasks of a
// shard are in the same namespace.
type planNamespace struct {
	s      *shardState
	name   string
	record *task.Namespace // nil: there is none
}

// namespaceOf returns the namespace of a task.
func (p *plan) namespaceOf(t *taskstate.Task) planNamespace {
	name, _, _ := strings.Cut(t.FullName(), "/")
	if name != p.namespace.name {
		p.namespace = planNamespace{p.s, name, p.namespaces.Namespace(name)}
	}

	return p.namespace
}

// allows reports whether the namespace's record allows a task as it is. Without a record nothing may run.
func (n planNamespace) allows(t *taskstate.Task) bool {
	if n.record == nil {
		return false
	}

	// The API has checked the task against this version.
	asWritten := n.record.Revision == t.Policy.NamespaceRev
	if asWritten && n.record.Nodes == "" {
		return true
	}

	l := n.s.limitsOf(n.name, n.record)

	return !l.Broken() && (asWritten || l.Allows(t))
}

// refusal returns why the namespace's record does not allow a task, for people.
func (n planNamespace) refusal(t *taskstate.Task) string {
	if n.record == nil {
		return "there is no namespace " + n.name + " any more"
	}

	l := n.s.limitsOf(n.name, n.record)
	if l.Broken() {
		return "the node selector of namespace " + n.name + " cannot be read"
	}

	return "namespace " + n.name + " no longer allows " + l.Refusal(t)
}

// isFrozen reports whether nothing in the task's namespace may start (G21).
func (p *plan) isFrozen(t *taskstate.Task) bool {
	if p.freezes == nil || len(p.freezes.Holding) == 0 {
		return false
	}
	namespace, _, _ := strings.Cut(t.FullName(), "/")
	return p.freezes.Of(namespace) != nil
}

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

// failTick ends the run of a tick whose task the namespace does not allow, without starting it. It does not count
// for max_runs. The caller has made room for a history record and a dead letter.
func (p *plan) failTick(t *taskstate.Task, tick int64, id, trigger string) {
	p.s.endSpan(t)
	run := p.newRun(t, tick, id, trigger)
	run.Attempt = 0
	p.failRun(t, run, nil, task.ReasonNamespace, p.namespaceOf(t).refusal(t))
	p.counts.run++
}

// failQueued ends a waiting run that must not start, because of whyForbidden. It returns false if the commit has no
// room.
func (p *plan) failQueued(t *taskstate.Task, q *taskstate.Waiting, reason, message string) bool {
	size := 3 * roomForTask(t)
	if q.Fan != nil {
		size += 2 * roomForCheckpoints(q.Fan)
	}

	if !p.reserveRoom(t, 3, size) {
		return false
	}

	p.commit.GuardEntry(t.FullName(), t.Mod) // another version of the task may be allowed (G7)
	p.dequeueRun(t, q)
	p.failRun(t, q.Run, q.Env, reason, message)
	p.examineAfterCommit(t)

	return true
}

// failRun records the end of a run that must not start. The run is also a dead run: somebody may start it again when it
// is allowed.
func (p *plan) failRun(t *taskstate.Task, end task.Run, env map[string]string, reason, message string) {
	end.State, end.Reason, end.Message, end.EndedAt = task.Failed, reason, message, task.At(p.now)
	p.commit.Record(t.Ref(p.s.Shard), end)
	p.commit.PutDeadLetter(record.Held{Assigned: task.Assigned{Run: end, Env: env}}, end)
}
