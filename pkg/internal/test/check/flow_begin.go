package check

import (
	"encoding/json"
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// checkBegin judges the first record of a run: it has the steps of its plan, and none of them has begun. The plan is that of its task, or that
// of the run that it retries.
func (j *flowJudge) checkBegin(d *delta, ch *runChange, r *runHistory) {
	data := j.dataAfter(d, ch.runRef)
	if data == nil {
		j.breach("G65", ch.runRef, ch.queueKey, "run %s begins without its plan", ch.id)
		return
	}

	run := j.runOf(ch.runRef)
	run.plan = &data.Plan

	if f := r.fan; run.planned != nil {
		if !sameJSON(f.Flow, run.planned.Flow) || f.Count != run.planned.Count || len(f.Left) > 0 {
			j.breach("G65", ch.runRef, ch.queueKey, "run %s begins with other steps than those for which it waited", ch.id)
		}
		return
	}

	j.checkOwnPlan(ch, r.fan, run.plan)
	j.checkGraph(ch, r.fan, run.plan, false)
}

// checkOwnPlan judges the plan of a run that retries no other one: it is what the task is (G7).
func (j *flowJudge) checkOwnPlan(ch *runChange, fan *task.Fan, plan *task.Plan) {
	e := j.cluster.taskOf(ch.ref).entry
	if e == nil {
		return
	}
	if fan.Flow.Generation != e.Generation || plan.Generation != e.Generation {
		j.breach("G7", ch.runRef, ch.queueKey, "run %s begins with the plan of generation %d; the task has generation %d", ch.id, plan.Generation, e.Generation)
		return
	}

	var spec struct {
		Action task.Action `json:"action"`
	}
	if kept, known := j.cluster.kept.specs[withoutShard(ch.ref)]; known && kept.generation == plan.Generation && json.Unmarshal(kept.value, &spec) == nil && spec.Action.Workflow != nil {
		if !sameJSON(*spec.Action.Workflow, plan.Workflow) {
			j.breach("G65", ch.runRef, ch.queueKey, "the plan of run %s is not that of generation %d of its task", ch.id, plan.Generation)
		}
	}
}

// checkGraph judges the steps in the record of a run by its plan. A retry may keep some.
func (j *flowJudge) checkGraph(ch *runChange, fan *task.Fan, plan *task.Plan, isRetry bool) {
	wrong := func(format string, args ...any) {
		j.breach("G65", ch.runRef, ch.queueKey, "run %s: "+format, append([]any{ch.id}, args...)...)
	}

	f := fan.Flow
	if len(f.Steps) != len(plan.Workflow.Steps) || (f.OnFailure == task.OnFailureContinue) != (plan.Workflow.OnFailure == task.OnFailureContinue) || fan.Count != 0 || len(fan.Left) != 0 || f.Forced {
		wrong("its record does not begin as its plan says")
		return
	}

	for i := range f.Steps {
		s := &f.Steps[i]
		p, known := plan.Workflow.Steps[s.Name]
		if !known {
			wrong("its plan has no step %s", s.Name)
			continue
		}

		var needs []string
		for _, n := range s.Needs {
			if n >= i {
				wrong("step %s needs step %d, which does not come before it", s.Name, n)
				continue
			}
			needs = append(needs, f.Steps[n].Name)
		}
		slices.Sort(needs)

		planned := slices.Clone(p.Needs)
		slices.Sort(planned)

		switch {
		case !slices.Equal(needs, planned):
			wrong("step %s needs %v; its plan says %v", s.Name, needs, planned)
		case s.When != p.When && (s.When != "" || p.When != task.WhenSucceeded):
			wrong("step %s begins when %q; its plan says %q", s.Name, s.When, p.When)
		case s.Kind != p.Action().Kind():
			wrong("step %s is of kind %q; its plan says %q", s.Name, s.Kind, p.Action().Kind())
		case s.IsMap != (p.Map != "") || s.IsMap && p.MaxParallel != 0 && s.MaxParallel != p.MaxParallel:
			wrong("the map of step %s is not that of its plan", s.Name)
		case s.IsOpened() || s.Reason != "":
			wrong("step %s has begun before its run", s.Name)
		case !isRetry && (s.IsKept || s.Kept > 0 || s.Items != nil):
			wrong("it keeps step %s, but retries no other run", s.Name)
		}
	}
}

// checkQueued judges the record of a retry that waits. It keeps what succeeded in the run that it retries, unless that is cleanup or follows
// something that is not kept. If the user named a step, that one and all that follow it are repeated: all that is repeated although it could have been kept
// follows one step.
func (j *flowJudge) checkQueued(d *delta, ch *runChange) {
	run, fan := j.runOf(ch.runRef), ch.queued.Fan
	if run.planned != nil {
		if !sameJSON(run.planned.Flow, fan.Flow) {
			j.breach("G65", ch.runRef, ch.queueKey, "the steps of run %s have changed before it begins", ch.id)
		}
		return
	}

	run.planned = fan
	data := j.dataAfter(d, ch.runRef)
	if data == nil {
		j.breach("G65", ch.runRef, ch.queueKey, "run %s, which repeats another one, has no plan", ch.id)
		return
	}
	run.plan, run.kept = &data.Plan, map[string]map[string]string{}
	j.checkGraph(ch, fan, run.plan, true)

	ref := runRef{ch.ref, fan.Flow.Retries}
	old, before := j.cluster.taskOf(ch.ref).runs[ref.id], j.runOf(ref)
	if fan.Flow.Retries != ch.queued.RetryOf || old == nil {
		j.breach("G65", ch.runRef, ch.queueKey, "run %s retries %q, but repeats the steps of %q", ch.id, ch.queued.RetryOf, fan.Flow.Retries)
		return
	}

	// The former run may be a retry that has not begun. The history may have begun when the former run had ended.
	was := before.planned
	if old.fan != nil {
		was = old.fan
	}
	if was == nil || was.Flow == nil || before.plan == nil {
		run.kept = data.Results
		return
	}

	if !sameJSON(before.plan, run.plan) {
		j.breach("G65", ch.runRef, ch.queueKey, "run %s has another plan than run %s, which it retries", ch.id, ref.id)
		return
	}

	j.checkKeptSteps(ch, fan, ref, was)
}

// checkUnbegun judges the end of a retry that has not begun: it is dead in the place of the run that it retries, with the same data.
func (j *flowJudge) checkUnbegun(d *delta, ch *runChange) {
	switch {
	case j.isTaskDeleted(d, ch.runRef) || !j.opts.Remembered:
	case !j.isDead(d, ch.runRef):
		j.breach("G25", ch.runRef, ch.endedKey, "run %s has not begun and ends as %s, but is not among the dead runs", ch.id, ch.ended.State)
	case j.dataAfter(d, ch.runRef) == nil:
		j.breach("G65", ch.runRef, ch.endedKey, "run %s becomes dead without its data", ch.id)
	}
}

// checkKeptSteps judges what a retry keeps of the run that it retries.
func (j *flowJudge) checkKeptSteps(ch *runChange, fan *task.Fan, ref runRef, was *task.Fan) {
	wrong := func(format string, args ...any) {
		j.breach("G65", ch.runRef, ch.queueKey, "run %s: "+format, append([]any{ch.id}, args...)...)
	}

	view, results := j.viewOf(ref, was, was.Cancel), j.resultsOf(ref, was)
	begin := "" // the step from which on all is repeated, although it could be kept
	repeated := map[int]bool{}

	for i := range fan.Flow.Steps {
		s, old := &fan.Flow.Steps[i], &was.Flow.Steps[i]
		before := !slices.ContainsFunc(s.Needs, func(n int) bool { return !fan.Flow.Steps[n].IsKept })
		follows := slices.ContainsFunc(s.Needs, func(n int) bool { return repeated[n] })
		may := before && s.When != task.WhenAlways
		done, left := j.itemsDone(ref, old)

		switch succeeded := view.outcomeOf(i) == stepSucceeded; {
		case s.IsKept && (!succeeded || !may):
			wrong("it keeps step %s, which did not succeed in run %s, or cleans up, or follows a step that is repeated", s.Name, ref.id)
		case s.IsKept:
			j.runOf(ch.runRef).kept[s.Name] = results(s.Name)
		case follows:
			repeated[i] = true
		// The step, or some items of its map, could be kept.
		case may && (succeeded || done > 0 && old.IsMap && !slices.Equal(s.Items, left)):
			if begin != "" {
				wrong("it repeats the steps %s and %s, which succeeded in run %s", begin, s.Name, ref.id)
			}
			begin, repeated[i] = s.Name, true
		}

		if !s.IsKept && s.Items == nil && s.Kept > 0 {
			wrong("it keeps %d items of step %s, and does not say which", s.Kept, s.Name)
		}
		if !s.IsKept && s.Items != nil && (!may || !slices.Equal(s.Items, left) || s.Kept != done) {
			wrong("it repeats the items %v of step %s, and keeps %d; in run %s, %v did not succeed", s.Items, s.Name, s.Kept, ref.id, left)
		}
	}
}

// itemsDone returns how many items of a step have succeeded, in its run and in those that it retries, and which have not.
func (j *flowJudge) itemsDone(ref runRef, s *task.FlowStep) (done int, left []int) {
	done = s.Kept

	for part := s.First; s.IsOpened() && part < s.First+s.Count; part++ {
		if r := j.cluster.taskOf(ref.ref).runs[task.PartID(ref.id, part)]; r != nil && r.state == task.Succeeded {
			done++
		} else {
			left = append(left, s.ItemOf(part))
		}
	}
	if !s.IsOpened() {
		left = s.Items
	}

	return done, left
}
