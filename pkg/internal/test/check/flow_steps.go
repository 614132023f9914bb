package check

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/carillonhq/carillon/pkg/task"
)

// stepOutcome is what a step has come to.
type stepOutcome int

const (
	stepWaits     stepOutcome = iota // a step that it needs may still go on
	stepMayBegin                     // it may begin now
	stepGoesOn                       // a part of it is active, or may begin
	stepSucceeded                    // the outcomes from here on are final
	stepFailed
	stepCut  // it was ended, or some of its items will not begin, and none has failed
	stepIdle // it does not begin
)

// isFinal reports whether nothing of the step can begin any more.
func (o stepOutcome) isFinal() bool { return o >= stepSucceeded }

// flowView is a run of a workflow as its record and the ends of its parts show it. It is the checker's own computation of what may
// begin, and does not use that of the product.
type flowView struct {
	fan    *task.Fan
	cancel string // why the run ends early; may differ from the record
	// stateOf returns the final state of a part, or "".
	stateOf func(part int) task.State

	outcomes map[int]stepOutcome
}

// isBad reports whether a part with this final state lets its step fail.
func isBad(s task.State) bool { return s != "" && s != task.Succeeded && s != task.Cancelled }

// countParts counts the parts of a step that has begun.
func (v *flowView) countParts(i int) (bad, cut, left, active int) {
	s := &v.fan.Flow.Steps[i]

	for part := s.First; s.IsOpened() && part < s.First+s.Count; part++ {
		switch state := v.stateOf(part); {
		case isBad(state):
			bad++
		case state == task.Cancelled:
			cut++
		case state != "":
		case slices.Contains(v.fan.Left, part):
			left++
		default:
			active++
		}
	}

	return bad, cut, left, active
}

// hasFailed reports whether a step has failed, or will have when its other parts have ended.
func (v *flowView) hasFailed(i int) bool {
	bad, _, _, _ := v.countParts(i)
	return bad > 0 || v.fan.Flow.Steps[i].Reason != ""
}

// isAnyFailed reports whether a step has failed.
func (v *flowView) isAnyFailed() bool {
	for i := range v.fan.Flow.Steps {
		if v.hasFailed(i) {
			return true
		}
	}

	return false
}

// barred returns why a step must not begin, and no further part of it, or "".
func (v *flowView) barred(i int) string {
	f, s := v.fan.Flow, &v.fan.Flow.Steps[i]

	switch cleansUp := s.When == task.WhenAlways; {
	case v.cancel != "" && f.Forced:
		return "its run was cancelled with force"
	case v.cancel != "" && !cleansUp:
		return "its run is ending: " + v.cancel
	case v.cancel != "" && !s.IsOpened() && !v.hasBegunBefore(i):
		return "its run is ending, and nothing before this step has begun"
	case cleansUp || s.When == task.WhenFailed || f.OnFailure == task.OnFailureContinue || v.hasFailed(i) || !v.isAnyFailed():
		return ""
	}

	return "another step has failed"
}

// hasBegunBefore reports whether anything that a step needs, directly or not, has begun in the run or in one that it retries.
func (v *flowView) hasBegunBefore(i int) bool {
	return slices.ContainsFunc(v.before(i), func(n int) bool {
		s := &v.fan.Flow.Steps[n]
		return s.IsOpened() || s.IsKept || s.Kept > 0
	})
}

// before returns the steps that a step needs, directly or not.
func (v *flowView) before(i int) (all []int) {
	for next := []int{i}; len(next) > 0; next = next[1:] {
		for _, need := range v.fan.Flow.Steps[next[0]].Needs {
			if !slices.Contains(all, need) {
				all, next = append(all, need), append(next, need)
			}
		}
	}

	return all
}

// outcomeOf returns what a step has come to.
func (v *flowView) outcomeOf(i int) stepOutcome {
	if o, known := v.outcomes[i]; known {
		return o
	}
	if v.outcomes == nil {
		v.outcomes = map[int]stepOutcome{}
	}

	o := v.examineStep(i)
	v.outcomes[i] = o

	return o
}

func (v *flowView) examineStep(i int) stepOutcome {
	s := &v.fan.Flow.Steps[i]
	bad, cut, left, active := v.countParts(i)

	switch {
	case s.IsKept:
		return stepSucceeded
	case s.Reason != "":
		return stepFailed
	case !s.IsOpened() && v.barred(i) != "":
		return stepIdle
	case !s.IsOpened():
		return v.beginning(i)
	case active > 0 || left > 0 && v.barred(i) == "":
		return stepGoesOn
	case bad > 0:
		return stepFailed
	case cut > 0 || left > 0:
		return stepCut
	}

	return stepSucceeded
}

// beginning returns whether a step that has not begun may do so, by the steps that it needs.
func (v *flowView) beginning(i int) stepOutcome {
	s := &v.fan.Flow.Steps[i]

	// Nothing before it may go on, also not beyond a step that is skipped.
	if slices.ContainsFunc(v.before(i), func(n int) bool { return !v.outcomeOf(n).isFinal() }) {
		return stepWaits
	}

	var failed, others bool
	for _, need := range s.Needs {
		switch o := v.outcomeOf(need); {
		case o == stepFailed:
			failed = true
		case o != stepSucceeded:
			others = true
		}
	}

	if s.When == task.WhenAlways || s.When == task.WhenFailed && failed || s.When != task.WhenFailed && !failed && !others {
		return stepMayBegin
	}

	return stepIdle
}

// unfinished returns the first step that is active, or that may begin now or later, or -1.
func (v *flowView) unfinished() int {
	for i := range v.fan.Flow.Steps {
		if !v.outcomeOf(i).isFinal() {
			return i
		}
	}

	return -1
}

// itemsOf returns the items of the map of a step. ok is false if its source has no such value. results returns what a step
// has reported.
func itemsOf(source task.MapSource, results func(step string) map[string]string) (items []string, ok bool) {
	n, isNumber := source.Number()
	if step, name, isResult := source.Result(); isResult {
		text, reported := results(step)[name]
		if !reported {
			return nil, false
		}

		if number, err := strconv.Atoi(text); err == nil {
			n, isNumber = number, number >= 0 && number <= task.MaxMapItems
		} else {
			var list []json.RawMessage
			if json.Unmarshal([]byte(text), &list) != nil || list == nil || len(list) > task.MaxMapItems {
				return nil, false
			}
			for _, raw := range list {
				item := string(raw)
				_ = json.Unmarshal(raw, &item) // a string; anything else stays as it is
				items = append(items, item)
			}

			return items, true
		}
	}

	if !isNumber {
		return nil, false // it may be a very large number
	}

	for i := range n {
		items = append(items, strconv.Itoa(i))
	}

	return items, true
}

// valuesOf returns the values that a part of a step must get. ok is false if one does not exist. Fields of requests and the
// environment of its node are not among them.
func valuesOf(name string, s task.Step, item int, results func(step string) map[string]string) (values map[string]string, ok bool) {
	values = map[string]string{}

	if s.Map != "" {
		items, ok := itemsOf(s.Map, results)
		if !ok || item >= len(items) {
			return nil, false
		}
		values[task.ItemRef], values[task.ItemIndexRef] = items[item], strconv.Itoa(item)
	}

	for _, ref := range s.Refs() {
		if ref == task.StepNameRef {
			values[ref] = name
		}

		if step, result, isStep := task.ParseStepRef(ref); isStep {
			value, reported := results(step)[result]
			if !reported {
				return nil, false
			}
			values[ref] = value
		}
	}

	return values, true
}
