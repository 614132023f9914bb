package workflow

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// Retry returns the state with which a run begins that retries an ended one. f and ends say how that one, dead, has ended. It has the
// same steps, but keeps what succeeded:
//
//   - A step is kept only if all that it needs is kept: otherwise it could have worked on other values.
//   - Of a map of which some items succeeded, the others are repeated.
//   - A step with when: always is never kept, so cleanup runs again.
//   - A step whose results were too large to be kept is not kept: others could not read them.
//   - The step from, and all steps that follow it, are not kept; "" means that there is no such step.
//
// It returns false if there is no step from.
func Retry(f *task.Fan, ends PartEnds, dead, from string) (again *task.Fan, ok bool) {
	repeat := make([]bool, len(f.Flow.Steps))
	if from != "" {
		i := slices.IndexFunc(f.Flow.Steps, func(s task.FlowStep) bool { return s.Name == from })
		if i < 0 {
			return nil, false
		}
		repeat[i] = true
	}

	flow := &task.Flow{Generation: f.Flow.Generation, OnFailure: f.Flow.OnFailure, Timeout: f.Flow.Timeout, Retries: dead, Steps: make([]task.FlowStep, len(f.Flow.Steps))}
	for i := range f.Flow.Steps {
		was := &f.Flow.Steps[i]
		s := &flow.Steps[i]
		*s = task.FlowStep{Name: was.Name, Kind: was.Kind, Needs: was.Needs, When: was.When, Secret: was.Secret, IsMap: was.IsMap, MaxParallel: was.MaxParallel}

		// Steps follow those that they need, so it is known of each need whether it is kept.
		if repeat[i] || was.NoResults || was.When == task.WhenAlways || slices.ContainsFunc(was.Needs, func(need int) bool { return !flow.Steps[need].IsKept }) {
			continue
		}

		keepParts(s, was, ends)
	}

	return &task.Fan{Flow: flow}, true
}

// keepParts makes the step s of a retry keep what succeeded of the step was.
func keepParts(s, was *task.FlowStep, ends PartEnds) {
	switch {
	case was.IsKept:
		s.IsKept, s.Kept = true, was.Kept
		return
	case !was.IsOpened():
		// A run that was a retry itself may have ended before it repeated these items, or could not begin the step.
		s.Items, s.Kept = slices.Clone(was.Items), was.Kept
		return
	}

	kept, left := was.Kept, task.PartNumbers{}
	for part := was.First; part < was.First+was.Count; part++ {
		if state, ended := ends(part); ended && state == task.Succeeded {
			kept++
		} else {
			left = append(left, was.ItemOf(part))
		}
	}

	switch {
	case len(left) == 0:
		s.IsKept, s.Kept = true, kept
	case kept > 0:
		s.Items, s.Kept = left, kept
	}
}
