package scheduler

import (
	"errors"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// wantedPlan is a plan that must be read before something can be decided: that of a run or, if run is empty, of a task.
type wantedPlan struct {
	task *state.Task
	run  string
}

// wantPlan requests a plan before the next decision.
func (s *shardState) wantPlan(t *state.Task, run string) {
	if s.wantedPlans == nil {
		s.wantedPlans = map[wantedPlan]struct{}{}
	}
	s.wantedPlans[wantedPlan{t, run}] = struct{}{}
}

// applyPlan applies a plan that was read.
func (s *shardState) applyPlan(want wantedPlan, found *store.PlanRecord, now time.Time) {
	t := want.task

	if want.run != "" {
		i, waits := t.FindWaiting(want.run)
		if !waits || t.Queue()[i].Fan == nil || t.Queue()[i].Fan.Flow == nil {
			return
		}

		if p := t.Queue()[i].ReadData(found.Data, found.Err); p != nil {
			s.ports.plans.Keep(t.Queue()[i].UID, p)
		}
		s.agenda.examineNext(t)

		return
	}

	switch {
	case errors.Is(found.Err, task.ErrNotFound):
		// The task was deleted. The watch will deliver that.
	case found.Err != nil:
		s.noteBadPlan(t, found.Err)
		return
	case found.Spec.UID == t.UID() && found.Spec.Generation == int64(t.Generation):
		if found.Spec.Action.Workflow == nil {
			s.noteBadPlan(t, errors.New("its spec has no steps"))
			return
		}

		p, err := state.NewFlowPlan(*task.NewPlan(*found.Spec))
		if err != nil {
			s.noteBadPlan(t, err)
			return
		}

		s.ports.plans.Keep(t.UID(), p)
		s.agenda.examineNext(t)

		return
	}

	// The spec is older or newer than the entry that is known. The watch delivers the entry, and the task is examined then.
	s.agenda.examineAgainAt(t, now.Add(time.Second))
}

// badPlan is why the steps of a version of a task cannot be read.
type badPlan struct {
	mod int64 // the mod revision of its entry
	err error
}

// noteBadPlan notes that the steps of a task cannot be read. The run that wanted them ends.
func (s *shardState) noteBadPlan(t *state.Task, err error) {
	if s.badPlans == nil {
		s.badPlans = map[*state.Task]badPlan{}
	}
	s.badPlans[t] = badPlan{t.Mod, err}
	s.agenda.examineNext(t)
}

// badPlanForgotten forgets that the steps of a task could not be read, since the run that wanted them has ended. The next run reads
// them again, because the owner does not watch specs and does not see when somebody repairs one by hand.
type badPlanForgotten struct{ task *state.Task }

func (badPlanForgotten) writeTo(*store.Commit) {}

func (e badPlanForgotten) applyTo(s *shardState, _ int64, _ time.Time) { delete(s.badPlans, e.task) }

// knownPlanOfTask returns the plan with which a run of t begins now, or nil if it is not known. The cache belongs to all shards of
// the node: others may add a plan to it or remove one at any time. The answer is the same throughout one plan of the worker, so the room
// that was reserved is that of the plan that is written, and a run cannot begin without its data.
func (p *plan) knownPlanOfTask(t *state.Task) *state.FlowPlan {
	if f, ok := p.flows[t]; ok {
		return f
	}

	if p.flows == nil {
		p.flows = map[*state.Task]*state.FlowPlan{}
	}
	f := p.s.ports.plans.Plan(t.UID(), int64(t.Generation))
	p.flows[t] = f

	return f
}

// planOfTask returns the plan with which a run of t begins now. If it is not known, it is requested, unless it cannot be read
// (err).
func (p *plan) planOfTask(t *state.Task) (f *state.FlowPlan, err error) {
	if f = p.knownPlanOfTask(t); f != nil {
		return f, nil
	}

	if bad, ok := p.s.badPlans[t]; ok && bad.mod == t.Mod {
		return nil, bad.err
	}
	p.s.wantPlan(t, "")

	return nil, nil
}

// planOfRun returns the plan of a run that has begun, or of one that retries another. If it is not known, it is requested. ok is
// false if it cannot be read.
func (p *plan) planOfRun(t *state.Task, q *state.Waiting) (f *state.FlowPlan, ok bool) {
	if q.Parts.Flow.NoData != nil {
		return nil, false
	}

	flow := q.Fan.Flow
	f = p.s.ports.plans.Plan(q.UID, flow.Generation)

	// Only the data of a run say what a retry has kept.
	if f == nil || flow.Retries != "" && !q.Parts.Flow.DataRead {
		p.s.wantPlan(t, q.ID)
		return nil, true
	}

	return f, f.Fits(flow)
}

// roomToBegin returns how many records, and of which size, a run of t needs in addition when it begins.
func (p *plan) roomToBegin(t *state.Task) (records, bytes int) {
	if !t.IsWorkflow() {
		return 0, 0
	}

	if f := p.knownPlanOfTask(t); f != nil {
		bytes = f.Bytes + roomForRecord
	}

	return 1, bytes
}

// flowError is why a run of a workflow, or a part of one, must end.
type flowError struct{ reason, message string }

// Error implements error.
func (e *flowError) Error() string { return e.message }

// forbidsFlow returns an error if the namespace of t does not allow a step of a plan.
func (p *plan) forbidsFlow(t *state.Task, f *state.FlowPlan) error {
	order, _ := f.Workflow.StepNames()
	for _, name := range order {
		if message := p.namespaceOf(t).refusalOfStep(f.Step(name)); message != "" {
			return &flowError{task.ReasonNamespace, message}
		}
	}

	return nil
}

// refusalOfStep returns why the namespace's record does not allow a step, for people, or "".
func (n planNamespace) refusalOfStep(s *state.PlannedStep) string {
	if n.record == nil {
		return "there is no namespace " + n.name + " any more"
	}

	l := n.s.limitsOf(n.name, n.record)
	if l.Broken() {
		return "the node selector of namespace " + n.name + " cannot be read"
	}

	if what := l.RefusalOf(s.Action()); what != "" {
		return "namespace " + n.name + " no longer allows " + what + " of step " + s.Name
	}

	return ""
}

// putRunData puts the plan of a run that begins in the same commit.
func (p *plan) putRunData(t *state.Task, run string) {
	if f := p.knownPlanOfTask(t); f != nil {
		p.commit.PutRunData(t.Ref(p.s.records.Shard), run, []byte(record.Encode(task.RunData{Plan: f.Plan})))
	}
}

// notAccepted returns why a run must not start whose input its task does not accept any more.
func notAccepted(err error) *flowError {
	return &flowError{task.ReasonAccept, "changed after the run was requested: " + err.Error()}
}
