package scheduler

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/scheduler/nslimits"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
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
