package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A run of a workflow is a run with parts (see parts.go): each step is one part, or one for each item of its map. Its record
// contains the graph of its steps and which of them have begun. What each step does follows from that and from the ends of the
// parts (workflow.States), so a new owner continues where the former one was.
//
// What a step does is not in the memory of an owner but in the plan of the run. It is read between two plans of the worker
// (see flow_plans.go), and kept for a while for all shards of the node. See "Workflows" in docs/architecture.md.

// These are limits of what is kept and sent, in bytes of JSON.
const (
	maxRunData    = 512 << 10 // the data of a run that has ended
	maxStepValues = 256 << 10 // the values of one part
)

// beginFlow returns the state with which a run of a workflow begins now, or why it must wait. The run must end instead if err is
// set.
func (p *plan) beginFlow(t *state.Task) (f *task.Fan, wait string, err error) {
	plan, err := p.planOfTask(t)
	switch {
	case err != nil:
		return nil, "", &flowError{task.ReasonBadRecord, "the steps of the task cannot be read: " + err.Error()}
	case plan == nil:
		return nil, task.ReasonPlan, nil
	}

	if err := p.forbidsFlow(t, plan); err != nil {
		return nil, "", err
	}

	return &task.Fan{Flow: task.NewFlow(&plan.Plan)}, "", nil
}

// retryFlow returns why a run that retries another one must wait before it begins. It must end instead if err is set.
func (p *plan) retryFlow(t *state.Task, q *state.Waiting) (wait string, err error) {
	planned, ok := p.planOfRun(t, q)
	switch {
	case !ok:
		return "", &flowError{task.ReasonBadRecord, "the steps of the run cannot be read"}
	case planned == nil:
		return task.ReasonPlan, nil
	}

	return "", p.forbidsFlow(t, planned)
}

// planParent returns the parts with which a run of t begins now, or why it must wait. The run must end instead if err is set.
func (p *plan) planParent(t *state.Task) (f *task.Fan, wait string, err error) {
	if t.IsWorkflow() {
		return p.beginFlow(t)
	}

	f, wait = p.planFanOut(t)

	return f, wait, nil
}

// fireFlow begins the run of a tick of a workflow, as fireTick.
func (p *plan) fireFlow(t *state.Task, tick int64, id, trigger string) (wait string) {
	f, wait, err := p.beginFlow(t)
	if failed := (*flowError)(nil); errors.As(err, &failed) {
		p.endSpan(t)
		run := p.newRun(t, tick, id, trigger)
		run.Attempt = 0
		p.failRun(t, run, nil, failed.reason, failed.message)
		p.counts.run++
		return ""
	}
	if wait == "" {
		p.fanOut(t, p.newTickRun(t, tick, id, trigger), f)
	}

	return wait
}

// decideFlow decides what a run of a workflow does next. It ends the run if all is done, or cuts it. Otherwise it begins the steps
// that may begin, and assigns at most one part. It returns false if the commit has no room.
func (r *parentRun) decideFlow(what tickpolicy.Turn) bool {
	t, q, f := r.t, r.q, r.q.Fan
	r.ended, r.succeeded = t.CountEnded(q)
	steps := t.FlowStates(q, f)
	frozen := r.plan.isFrozen(t)
	if frozen {
		q.Parts.NoNode = nil // no part looks for a node
	}

	switch {
	case steps.Over:
		return r.endFlow(steps)
	case r.plan.s.isRestored(q.Create) && (f.Cancel == "" || !f.Flow.Forced):
		// If it was cancelled before, its cleanup gives out no part either.
		return r.cancelRun(cmp.Or(f.Cancel, task.ReasonRestored))
	case f.Cancel == "" && steps.Cancel != "":
		// A part was cancelled by itself, and the others must end, too.
		return r.cancelRun(steps.Cancel)
	case f.Cancel == "" && what == tickpolicy.TurnReplaced && !frozen:
		return r.cancelRun(task.ReasonReplaced)
	case f.Cancel == "" && r.isTimedOut(frozen):
		return r.cancelRun(task.ReasonTimeout)
	}

	// Nothing begins while the task is frozen (G21). A run that is paused, or that has no turn, begins nothing unless it is cut: its
	// cleanup goes on.
	mayBegin := !frozen && (f.Cancel != "" || what == tickpolicy.TurnStart && q.PausedAt.IsZero())
	if mayBegin {
		if done, ok := r.beginSteps(steps); done || !ok {
			return ok
		}
	}

	// Nothing has begun. Check whether the record of a part has disappeared, and update the counts.
	if active := f.Count - len(f.Left) - r.ended; active > 0 && !r.loseMissingParts() {
		return false
	}
	if !frozen && f.Cancel == "" && q.PausedAt.IsZero() {
		if counted, ok := r.countFreezes(); counted || !ok {
			return ok
		}
	}

	return r.writeCounts()
}

// countFreezes writes for how long the run was frozen, if a freeze has ended. The record of freezes has only the latest ones, and the
// run may go on for longer than that. counted reports whether the plan changes the run. ok is false if the commit has no room.
func (r *parentRun) countFreezes() (counted, ok bool) {
	q, freezes := r.q, r.plan.settings.freezes
	namespace, _, _ := strings.Cut(r.t.FullName(), "/")

	w := q.Waiting
	w.Fan = state.CopyFlow(*r.fanNow())
	w.Fan.Flow.CountFreezes(freezes, namespace, q.DispatchedAt.Time, r.plan.now)
	if w.Fan.Flow.FrozenMS == q.Fan.Flow.FrozenMS {
		return false, true
	}

	if !r.plan.reserveRoom(r.t, 1, roomForTask(r.t)) {
		return false, false
	}
	r.rewriteQueueRecord(w)

	return true, true
}

// isTimedOut reports whether the run has exceeded the timeout with which it began. The time in which it was paused or frozen does not
// count. If it has not, the worker wakes up when it will.
func (r *parentRun) isTimedOut(frozen bool) bool {
	q, now := r.q, r.plan.now
	namespace, _, _ := strings.Cut(r.t.FullName(), "/")

	// A freeze during a pause counts as a part of the pause.
	unpaused := now
	if !q.PausedAt.IsZero() && q.PausedAt.Before(now) {
		unpaused = q.PausedAt.Time
	}
	held := q.PausedFor(now) + q.Fan.Flow.FrozenFor(r.plan.settings.freezes, namespace, q.DispatchedAt.Time, unpaused)

	left := task.FlowTimeout(q.Fan.Flow.Timeout).Std() - (now.Sub(q.DispatchedAt.Time) - held)
	if left <= 0 {
		return true
	}

	// The end of a freeze or of a pause makes the worker examine the task again.
	if !frozen && q.PausedAt.IsZero() {
		r.plan.s.agenda.examineAgainAt(r.t, now.Add(left))
	}

	return false
}

// beginSteps begins all steps that may begin, and assigns the first part that can start to a node. Both are in one commit, which
// compares the record of the run. done reports whether the plan changes the run. ok is false if the commit has no room.
func (r *parentRun) beginSteps(steps workflow.Run) (done, ok bool) {
	t, q := r.t, r.q

	isReady := func(s workflow.Step) bool { return s.State == workflow.Ready }
	if !slices.ContainsFunc(steps.Steps, func(s workflow.Step) bool { return isReady(s) || len(s.Next) > 0 }) {
		return false, true
	}

	planned, readable := r.plan.planOfRun(t, q)
	if !readable {
		return true, r.cancelRun(task.ReasonBadRecord)
	}
	if planned == nil {
		return false, true // it is being read
	}

	// A step that cannot begin has failed, and other steps may depend on that.
	w := q.Waiting
	w.Fan = r.fanNow()
	opened := false
	for slices.ContainsFunc(steps.Steps, isReady) {
		if !opened {
			w.Fan, opened = state.CopyFlow(*w.Fan), true
		}
		r.openSteps(w.Fan, planned, steps)
		steps = t.FlowStates(q, w.Fan)
	}

	done, ok = r.assignStep(w, planned, steps)
	if done || !ok || !opened {
		return done, ok
	}

	// No part can start yet, or all steps that have begun have no items.
	if !r.plan.reserveRoom(t, 2, roomForTask(t)) {
		return false, false
	}
	r.plan.commit.GuardEntry(t.FullName(), t.Mod)
	r.rewriteQueueRecord(w)

	return true, true
}

// openSteps begins all steps that are ready.
func (r *parentRun) openSteps(f *task.Fan, planned *state.FlowPlan, steps workflow.Run) {
	for i := range steps.Steps {
		if steps.Steps[i].State != workflow.Ready {
			continue
		}

		s, items := &f.Flow.Steps[i], 1
		if s.IsMap {
			var err error
			if _, items, err = workflow.Items(planned.Step(s.Name).Map, r.t.FlowResults(r.q)); err != nil {
				s.Reason, s.Message = task.ReasonValues, err.Error()
				continue
			}
		}

		state.OpenStep(f, i, items, r.plan.now)
	}
}

// assignStep assigns the first part that can start to its node, or ends it if it must not start. w is the new record of the run,
// which still contains the part. The results are those of beginSteps.
func (r *parentRun) assignStep(w task.Waiting, planned *state.FlowPlan, steps workflow.Run) (done, ok bool) {
	t, q, p := r.t, r.q, r.plan

	for i := range steps.Steps {
		next := steps.Steps[i].Next
		if len(next) == 0 {
			continue
		}
		part := next[0]

		run := state.StepRun(q, w.Fan, part, p.s.ports.node, p.now)
		s := planned.Step(run.Step)
		without := w
		without.Fan = w.Fan.Without(slices.Index(w.Fan.Left, part))

		values, failed := r.valuesOf(&run, s)
		if failed != nil {
			if !p.reserveRoom(t, 3, roomForTask(t)+roomForRecord) {
				return false, false
			}
			run.State, run.Reason, run.Message = task.Failed, failed.reason, failed.message
			p.commit.GuardEntry(t.FullName(), t.Mod) // another version of the task may be allowed (G7)
			r.endUnassigned(without, run)

			return true, true
		}

		// The commit starts a run of the task already (G11). The next commit continues.
		if p.isStarting(t) {
			p.examineAfterCommit(t)
			return false, true
		}

		n, found := p.pickNode(t, p.wantOfStep(t, s, part))
		if r.missesCleanup(w.Fan, part, found) {
			if !p.reserveRoom(t, 3, roomForTask(t)+roomForRecord) {
				return false, false
			}
			run.State, run.Reason = task.Missed, task.ReasonNoNode
			r.endUnassigned(without, run)

			return true, true
		}
		if !found {
			continue // the other parts of the step want the same, but another step may not
		}

		if !p.reserveRoom(t, 4, 2*roomForTask(t)+roomForStep(s, values)) {
			p.s.ports.placement.Release(n.Name, s.Pool())
			return false, false
		}

		// The same commit takes the part off the run's record and puts it into an inbox, so a part starts at most once (G9).
		p.attempt.Run, p.attempt.Env = run, q.Env
		p.dispatchStep(t, n, planned, s, values)
		p.commit.GuardEntry(t.FullName(), t.Mod)
		r.rewriteQueueRecord(without)

		return true, true
	}

	return false, true
}

// maxCleanupWait is how long the cleanup of a run that was cut waits for a node.
const maxCleanupWait = time.Hour

// missesCleanup reports whether a part of a run that was cut has found no node for too long. Nothing else would end it: neither the
// timeout of the run nor a cancel without force ends cleanup. Only the time since its step last found a node counts, because the items
// of a map may have begun long before. A new owner counts from the beginning. If the part still waits, the worker wakes up when its time
// has passed.
func (r *parentRun) missesCleanup(f *task.Fan, part int, found bool) bool {
	memory := &r.q.Parts
	step, _ := f.Flow.NameOf(part)
	if found || f.Cancel == "" || step == "" {
		delete(memory.NoNode, step)
		return false
	}

	// A time in the future means that the clock was set back.
	since, known := memory.NoNode[step]
	if !known || r.plan.now.Before(since) {
		if memory.NoNode == nil {
			memory.NoNode = map[string]time.Time{}
		}
		since = r.plan.now
		memory.NoNode[step] = since
	}

	until := since.Add(maxCleanupWait)
	if !r.plan.now.Before(until) {
		return true
	}
	r.plan.s.agenda.examineAgainAt(r.t, until)

	return false
}

// roomForStep is how much larger than its run the inbox record of a step may be, in bytes.
func roomForStep(s *state.PlannedStep, values map[string]string) int {
	return len(s.ActionText) + len(record.Encode(values))
}

// valuesOf returns the values to which the texts of a part refer, or why the part must not start.
func (r *parentRun) valuesOf(run *task.Run, s *state.PlannedStep) (map[string]string, *flowError) {
	if message := r.plan.namespaceOf(r.t).refusalOfStep(s); message != "" {
		return nil, &flowError{task.ReasonNamespace, message}
	}
	if err := r.t.Policy.Accept.Check(r.q.Input()); err != nil {
		return nil, notAccepted(err)
	}

	item := 0
	if run.Item != nil {
		item = *run.Item
	}

	values, err := workflow.Values(s.Name, s.Step, item, r.t.FlowResults(r.q))
	if err != nil {
		return nil, &flowError{task.ReasonValues, err.Error()}
	}

	// An attempt that does not fit into an empty commit could never start, and would block the shard.
	if size := len(record.Encode(values)); size > maxStepValues {
		return nil, &flowError{task.ReasonValues, fmt.Sprintf("the values of its references are %d bytes as JSON; at most %d are allowed", size, maxStepValues)}
	}

	return values, nil
}

// wantOfStep returns the requirements of a part of a step on its node.
func (p *plan) wantOfStep(t *state.Task, s *state.PlannedStep, part int) placement.Want {
	w := t.Want()
	w.Pool, w.Secret, w.Selector = s.Pool(), s.Secret, p.namespaceOf(t).join(s.SelectorText, s.Selector)
	if w.Strategy == task.StrategyHash {
		w.Key = hashKeyOfPart(w.Key, part)
	}

	return w
}

// dispatchStep makes the part in p.attempt an attempt on node n, for which a slot has been counted. The attempt is that of the
// plan, whatever the task is now.
func (p *plan) dispatchStep(t *state.Task, n *task.Node, f *state.FlowPlan, s *state.PlannedStep, values map[string]string) {
	a := &p.attempt
	a.Generation = f.Generation
	a.Timeout, a.KillGrace, a.Retry = s.Timeout, s.KillGrace, s.Retry
	a.KillSignal, a.Success = s.KillSignal, s.Success
	a.Output = p.outputWithin(t, f.Output)
	a.Values = values

	p.dispatchAttempt(t, n, s.Pool(), s.ActionText, true)
}

// retryStep decides a part of a workflow in the queue, which waits for another attempt. It returns false if the commit has no
// room.
func (p *plan) retryStep(t *state.Task, q, parent *state.Waiting, index int) bool {
	// A pause of the run keeps its steps from starting, unless the run is cut: its cleanup goes on.
	if !parent.PausedAt.IsZero() && parent.Fan.Cancel == "" {
		return true
	}

	r := parentRun{plan: p, t: t, q: parent}
	planned, ok := p.planOfRun(t, parent)
	if ok && planned == nil {
		return true // it is being read
	}
	// The record of the run says of which step the part is.
	run := q.Run
	run.Step, run.Item = parent.Fan.Flow.NameOf(index)
	if !ok || planned.Step(run.Step) == nil {
		return p.endWaitingPart(t, q, parent, task.Failed, task.ReasonBadRecord, "the plan of its run cannot be read")
	}
	s := planned.Step(run.Step)

	at := t.NotBeforeBy(q, s.Retry)
	if at.After(p.now) {
		p.s.agenda.examineAgainAt(t, at)
		return true
	}

	values, failed := r.valuesOf(&run, s)
	if failed != nil {
		return p.endWaitingPart(t, q, parent, task.Failed, failed.reason, failed.message)
	}

	// A commit starts at most one run of the task (G11).
	if p.isStarting(t) {
		p.examineAfterCommit(t)
		return true
	}

	w := p.wantOfStep(t, s, index)
	w.Avoid = q.LastNode()
	n, found := p.pickNode(t, w)
	switch {
	case r.missesCleanup(parent.Fan, index, found):
		return p.endWaitingPart(t, q, parent, task.Missed, task.ReasonNoNode, "")
	case !found:
		return true
	}
	if !p.reserveRoom(t, 2, roomForTask(t)+roomForStep(s, values)) {
		p.s.ports.placement.Release(n.Name, s.Pool())
		return false
	}

	p.attempt.Run, p.attempt.Env = run, parent.Env
	p.dispatchStep(t, n, planned, s, values)
	p.commit.GuardEntry(t.FullName(), t.Mod)
	p.commit.GuardQueued(t.Ref(p.s.records.Shard), parent.ID, parent.Mod) // the run must not have been cancelled
	p.dequeueRun(t, q)

	return true
}

// endFlow moves a run whose steps have all ended to history. Unless it succeeded, it also becomes a dead run, with the results
// that a retry needs. Otherwise the commit deletes its data. It returns false if the commit has no room.
func (r *parentRun) endFlow(steps workflow.Run) bool {
	t, q, p := r.t, r.q, r.plan
	end := state.ConcludeFlow(t, q, steps, p.now)
	dead := end.State != task.Succeeded
	if end.State == task.Lost {
		end.Message = p.s.fences.Gap.String()
	}

	// The results are those that steps of the plan name.
	var planned *state.FlowPlan
	if dead {
		var ok bool
		if planned, ok = p.planOfRun(t, q); ok && planned == nil {
			return true // it is being read
		}
	}

	size, data := sizeOfEnd(&end, q.Env, dead), ""
	if planned != nil {
		if results := t.NamedResults(q, planned); len(results) > 0 {
			// A commit that is too large for etcd would fail forever. Without the results of some steps, a retry repeats these.
			var without []string
			data, without = state.FitRunData(task.RunData{Plan: planned.Plan, Results: results}, min(maxRunData, store.MaxCommitBytes-size))
			end.Fan = state.WithoutResults(end.Fan, without)
		}
	}

	if !p.reserveRoom(t, 4, size+len(data)) {
		return false
	}

	ref := t.Ref(p.s.records.Shard)
	p.dequeueRun(t, q)
	p.commit.Record(ref, end)

	switch {
	case !dead:
		p.commit.DeleteRunData(ref, q.ID)
	case data != "":
		p.commit.PutRunData(ref, q.ID, []byte(data))
	}
	if dead {
		p.commit.PutParentDeadLetter(ref, end, q.Env)
	}

	// Another run may start now, and the records of the parts can be deleted.
	p.examineAfterCommit(t)

	return true
}

// sizeOfEnd returns the size in bytes of the records of a run that ends: the one in history and, if it is dead, that of the dead
// run. Which steps have no results may still be added to them.
func sizeOfEnd(end *task.Run, env map[string]string, dead bool) int {
	size := len(record.Encode(end)) + 4*roomForRecord
	if dead {
		again := *end
		if end.Fan != nil {
			again.Fan = end.Fan.Again()
		}
		size += len(record.EncodeWaiting(task.Waiting{Run: again, Env: env}))
	}

	return size
}
