// Package workflow computes what the steps of a workflow do, from the record of a run and the ends of its parts.
//
// [States] is a pure and total function: while a run is not over, a step is active, or may begin, or another item may
// begin. The owner of a shard, the API and the explanations of runs use it, so they never differ. [Values] returns the
// values to which a step refers, and [Items] the items of its map. [Retry] says what a retry keeps.
//
// The package does no I/O and reads no clock.
package workflow

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// State is the state of a step.
type State string

// The states of steps. The last four are final.
const (
	Waiting   State = "waiting"   // a step before it has not ended
	Ready     State = "ready"     // it may begin
	Running   State = "running"   // it has begun
	Succeeded State = "succeeded" // all of its parts have
	Failed    State = "failed"    // at least one of its parts has, or it could not begin
	Skipped   State = "skipped"   // it does not begin
	Cancelled State = "cancelled" // it was ended, or not all of its items began, and none of its parts failed
)

// IsFinal reports whether a step in this state has ended or will not begin.
func (s State) IsFinal() bool { return s != Waiting && s != Ready && s != Running }

// Step is the state of a step of a run.
type Step struct {
	State State
	// Reason is why the step is skipped, cancelled or failed: one of the reasons of package task, or "".
	Reason string
	// Cause is the number of the step because of which this one waits, is skipped, or was stopped; -1: none.
	Cause int
	// Ended is how many of its parts have ended in this run, Succeeded how many of these succeeded, and Left how many
	// have not begun.
	Ended, Succeeded, Left int
	// Next contains the parts of the step that may begin now, in order.
	Next []int

	// isCut reports that a part was cancelled, or that the cancel of the run keeps an item from beginning. The step may have
	// failed nevertheless.
	isCut bool
}

// Run is the state of all steps of a run.
type Run struct {
	Steps []Step
	// Over reports that no part is active, and that none will begin.
	Over bool
	// FailedStep is the number of the first step that has failed, or -1.
	FailedStep int
	// Cancel is why the run ends early, or "". A part that was cancelled by itself, as is possible while etcd is full, cancels the
	// run, although the record of the run does not say so yet.
	Cancel string
	// Cut reports that the cancel of the run has ended a part, or kept a step or an item from beginning.
	Cut bool

	// begunBefore says of each step that has been judged whether a step that it needs, directly or not, has begun.
	begunBefore []bool
	// unfinishedBefore is, for each step that has been judged, a step before it that has not ended, or -1.
	unfinishedBefore []int
}

// PartEnds says how the parts of a run have ended. ok is false for a part that has not.
type PartEnds func(part int) (state task.State, ok bool)

// States returns the state of a run with a workflow.
func States(f *task.Fan, ends PartEnds) Run {
	r := Run{Steps: make([]Step, len(f.Flow.Steps)), FailedStep: -1, Cancel: f.Cancel, begunBefore: make([]bool, len(f.Flow.Steps)), unfinishedBefore: make([]int, len(f.Flow.Steps))}

	// A failure and a cancel concern all steps, so both must be known before any step is judged.
	for i := range f.Flow.Steps {
		failed, cancelled := examineEnds(&f.Flow.Steps[i], ends)
		if r.FailedStep < 0 && failed {
			r.FailedStep = i
		}
		if r.Cancel == "" && cancelled {
			r.Cancel = task.ReasonCancelled
		}
	}

	r.Over = true
	for i := range f.Flow.Steps {
		r.begunBefore[i], r.unfinishedBefore[i] = r.hasBegunBefore(f, i), r.findUnfinishedBefore(f, i)
		s := &r.Steps[i]
		*s = r.judgeStep(f, i, ends)

		if s.State == Running || s.State == Ready {
			r.Over = false
		}
		if r.Cancel != "" && (s.isCut || s.State == Skipped && s.Reason == r.Cancel) {
			r.Cut = true
		}
	}

	return r
}

// examineEnds reports whether a part of a step has failed, and whether one was cancelled. Other parts may be active.
func examineEnds(s *task.FlowStep, ends PartEnds) (failed, cancelled bool) {
	failed = s.Reason != ""

	for part := s.First; s.IsOpened() && part < s.First+s.Count; part++ {
		if state, ok := ends(part); ok {
			failed = failed || isFailure(state)
			cancelled = cancelled || state == task.Cancelled
		}
	}

	return failed, cancelled
}

// isFailure reports whether a part has failed. One that was cancelled has neither succeeded nor failed.
func isFailure(s task.State) bool { return s != task.Succeeded && s != task.Cancelled }

// isStopped reports whether the failure of a step keeps other steps from beginning.
func (r *Run) isStopped(f *task.Fan) bool {
	return r.FailedStep >= 0 && f.Flow.OnFailure != task.OnFailureContinue
}

// judgeStep returns the state of a step. The steps before it have been judged.
func (r *Run) judgeStep(f *task.Fan, i int, ends PartEnds) Step {
	s := &f.Flow.Steps[i]

	switch {
	case s.IsKept:
		return Step{State: Succeeded, Cause: -1}
	case s.Reason != "":
		return Step{State: Failed, Reason: s.Reason, Cause: -1}
	case s.IsOpened():
		return r.judgeOpened(f, i, ends)
	}

	return r.judgeUnopened(f, i)
}

// judgeOpened returns the state of a step that has begun.
func (r *Run) judgeOpened(f *task.Fan, i int, ends PartEnds) Step {
	s, st := &f.Flow.Steps[i], Step{Cause: -1}

	var left []int
	failed, cancelled := false, false
	for part := s.First; part < s.First+s.Count; part++ {
		state, ended := ends(part)
		switch {
		case ended:
			st.Ended++
			failed = failed || isFailure(state)
			cancelled = cancelled || state == task.Cancelled
			if state == task.Succeeded {
				st.Succeeded++
			}
		case hasPart(f.Left, part):
			left = append(left, part)
		}
	}
	st.Left = len(left)
	active := s.Count - st.Ended - st.Left

	// What keeps further items from beginning: a cancel, unless the step cleans up, or the failure of another step.
	stop := ""
	switch {
	case r.isStopped(f) && !failed && s.When != task.WhenAlways && s.When != task.WhenFailed:
		stop = task.ReasonStopped
		st.Cause = r.FailedStep
	case r.Cancel != "" && (s.When != task.WhenAlways || f.Flow.Forced):
		stop = r.Cancel
	}

	st.isCut = cancelled || st.Left > 0 && stop != "" && stop == r.Cancel

	switch {
	case active > 0 || st.Left > 0 && stop == "":
		st.State = Running
		if stop == "" {
			room := st.Left
			if s.IsMap {
				room = min(room, max(0, s.MaxParallel-active))
			}
			st.Next = left[:room]
		}
	case failed:
		st.State, st.Cause = Failed, -1
	case cancelled:
		st.State, st.Reason, st.Cause = Cancelled, r.Cancel, -1
	case st.Left > 0:
		st.State, st.Reason = Cancelled, stop
	default:
		st.State, st.Cause = Succeeded, -1
	}

	return st
}

// hasPart reports whether a list of parts, which is in ascending order, contains one.
func hasPart(list task.PartNumbers, part int) bool {
	_, found := slices.BinarySearch(list, part)
	return found
}

// judgeUnopened returns the state of a step that has not begun.
func (r *Run) judgeUnopened(f *task.Fan, i int) Step {
	s := &f.Flow.Steps[i]

	cleansUp := s.When == task.WhenAlways
	unmet, isUnmet := r.findUnmet(f, i)
	switch {
	// A step that would not have begun anyway is not kept from it by the cancel.
	case r.isStopped(f) && !cleansUp && s.When != task.WhenFailed:
		return Step{State: Skipped, Reason: task.ReasonStopped, Cause: r.FailedStep}
	case isUnmet && !slices.ContainsFunc(s.Needs, func(need int) bool { return r.Cancel != "" && r.Steps[need].Reason == r.Cancel }):
		return Step{State: Skipped, Reason: task.ReasonNeeds, Cause: unmet}
	case r.Cancel != "" && (f.Flow.Forced || !cleansUp || !r.begunBefore[i]):
		return Step{State: Skipped, Reason: r.Cancel, Cause: -1}
	}

	// All steps before it must have ended, not only those that it needs: one of these may be skipped while a step before it
	// still runs, and cleanup must not begin beside that.
	if before := r.unfinishedBefore[i]; before >= 0 {
		return Step{State: Waiting, Cause: before}
	}

	return Step{State: Ready, Cause: -1}
}

// findUnmet returns the step because of which a step does not begin, although all that it needs have ended.
func (r *Run) findUnmet(f *task.Fan, i int) (need int, isUnmet bool) {
	s := &f.Flow.Steps[i]

	if s.When == task.WhenAlways || slices.ContainsFunc(s.Needs, func(need int) bool { return !r.Steps[need].State.IsFinal() }) {
		return 0, false
	}

	for _, need := range s.Needs {
		switch state := r.Steps[need].State; {
		case s.When == task.WhenFailed && state == Failed:
			return 0, false
		case s.When != task.WhenFailed && state != Succeeded:
			return need, true
		}
	}
	if s.When == task.WhenFailed {
		return s.Needs[0], true
	}

	return 0, false
}

// findUnfinishedBefore returns a step before a step, needed directly or not, that has not ended, or -1. The steps before it have been judged.
func (r *Run) findUnfinishedBefore(f *task.Fan, i int) int {
	for _, need := range f.Flow.Steps[i].Needs {
		if !r.Steps[need].State.IsFinal() {
			return need
		}
		if before := r.unfinishedBefore[need]; before >= 0 {
			return before
		}
	}

	return -1
}

// hasBegunBefore reports whether a step that a step needs, directly or not, has begun, in this run or in one that it retries.
// The steps before it have been judged.
func (r *Run) hasBegunBefore(f *task.Fan, i int) bool {
	return slices.ContainsFunc(f.Flow.Steps[i].Needs, func(need int) bool {
		n := &f.Flow.Steps[need]
		return n.IsOpened() || n.IsKept || n.Kept > 0 || r.begunBefore[need]
	})
}
