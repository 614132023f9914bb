package check

import "github.com/carillonhq/carillon/pkg/task"

// checkConclusion judges the final state of a run: nothing of it goes on or may begin, its cleanup has run, and it has the state that follows
// from its steps and from why it ended early.
func (j *flowJudge) checkConclusion(d *delta, ch *runChange, r *runHistory) {
	f, e := r.fan, ch.ended

	// A part that was cancelled by itself cancels its run.
	cancel := f.Cancel
	if cancel == "" && j.isPartCancelled(ch.runRef, f) {
		cancel = task.ReasonCancelled
	}
	view := j.viewOf(ch.runRef, f, cancel)
	wrong := func(promise, format string, args ...any) {
		j.breach(promise, ch.runRef, ch.endedKey, "run %s "+format, append([]any{ch.id}, args...)...)
	}

	if i := view.unfinished(); i >= 0 {
		promise := "G65"
		if f.Flow.Steps[i].When == task.WhenAlways {
			promise = "G66"
		}
		wrong(promise, "ends as %s before its step %s", e.State, f.Flow.Steps[i].Name)
		return
	}

	// A cancel counts if it has ended a part, or if something would have gone on without it.
	cut := cancel != "" && (j.viewOf(ch.runRef, f, "").unfinished() >= 0 || j.isPartCancelled(ch.runRef, f))

	want, reason := task.Succeeded, ""
	switch {
	case cancel == task.ReasonBadRecord: // somebody has damaged its plan
		want, reason = task.Failed, cancel
	case cancel == task.ReasonRestored && (cut || j.cluster.isAnyPartLost(ch.ref, ch.id, f)):
		want, reason = task.Lost, cancel
	case cut && cancel == task.ReasonTimeout:
		want, reason = task.TimedOut, cancel
	case cut:
		want, reason = task.Cancelled, cancel
	case view.isAnyFailed():
		want, reason = task.Failed, task.ReasonSteps
	}

	if e.State != want || e.Reason != reason {
		wrong("G65", "ends as %s (%s); expected %s (%s)", e.State, e.Reason, want, reason)
	}

	j.checkDataAtEnd(d, ch, r)
}

// isPartCancelled reports whether a part of a run was cancelled.
func (j *flowJudge) isPartCancelled(ref runRef, f *task.Fan) bool {
	view := j.viewOf(ref, f, "")
	for part := range f.Count {
		if view.stateOf(part) == task.Cancelled {
			return true
		}
	}

	return false
}

// checkDataAtEnd judges what becomes of the data of a run that ends: it is deleted, or the run is dead and keeps it with its results.
func (j *flowJudge) checkDataAtEnd(d *delta, ch *runChange, r *runHistory) {
	if j.isTaskDeleted(d, ch.runRef) {
		return
	}

	dead, data := d.dead[ch.runRef], j.dataAfter(d, ch.runRef)
	isDead := dead != nil && dead.state != ""

	switch {
	case isDead && data == nil:
		j.breach("G65", ch.runRef, ch.endedKey, "run %s becomes dead without its data", ch.id)
	case !isDead && data != nil && ch.ended.State == task.Succeeded:
		j.breach("G65", ch.runRef, ch.endedKey, "run %s ends, and its data remains", ch.id)
	case !isDead && ch.ended.State != task.Succeeded && j.opts.Remembered:
		j.breach("G25", ch.runRef, ch.endedKey, "run %s ends as %s, but is not among the dead runs", ch.id, ch.ended.State)
	case isDead:
		j.checkKeptResults(ch, r.fan, data)
	}
}

// checkKeptResults judges the results in the data of a dead run: those of steps that have succeeded, to which others refer.
func (j *flowJudge) checkKeptResults(ch *runChange, fan *task.Fan, data *task.RunData) {
	results := j.resultsOf(ch.runRef, fan)

	for _, p := range data.Plan.Workflow.Steps {
		refs := p.Refs()
		if p.Map != "" {
			if step, name, isResult := p.Map.Result(); isResult {
				refs = append(refs, task.StepRefPrefix+step+".results."+name)
			}
		}

		for _, ref := range refs {
			step, name, isStep := task.ParseStepRef(ref)
			if !isStep {
				continue
			}
			if value, reported := results(step)[name]; reported && data.Results[step][name] != value {
				j.breach("G65", ch.runRef, ch.endedKey, "run %s is dead, and its data has %q for %s; the step has reported %q", ch.id, data.Results[step][name], ref, value)
			}
		}
	}
}

// checkEnd judges what is left when the history ends: only data of runs that wait, are active or are dead. A sweep removes other data, for which
// the author of the history has waited.
func (j *flowJudge) checkEnd() {
	if !j.opts.Ended {
		return
	}

	for ref := range j.data {
		t := j.cluster.taskOf(ref.ref)
		if r := t.runs[ref.id]; (r == nil || r.ended || r.purged) && t.dead[ref.id] == 0 {
			j.breach("G65", ref, "", "the data of run %s remains, but the run has ended", ref.id)
		}
	}
}
