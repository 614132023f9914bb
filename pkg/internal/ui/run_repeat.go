package ui

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/task"
)

// flowRetry is what a retry of a run would repeat and keep, as the question before it says.
type flowRetry struct {
	From    string   // the step from which the retry repeats everything; "" if it repeats only what did not succeed
	Repeats []string // steps and items that began in the run, and begin again
	Begins  []string // steps that did not begin in it
	Keeps   []string
}

// newFlowRetry returns what a retry would do. With a step, it repeats that step and all that follows it.
func newFlowRetry(run task.Run, steps client.RunSteps, from string) *flowRetry {
	ends := map[int]task.State{}
	for _, s := range steps.Steps {
		for _, p := range s.Parts {
			if p.State.Final() {
				ends[p.Index] = p.State
			}
		}
	}

	p := &flowRetry{From: from}
	again, ok := workflow.Retry(run.Fan, func(part int) (task.State, bool) { s, ok := ends[part]; return s, ok }, run.ID, from)
	if !ok {
		return p
	}

	for i, s := range again.Flow.Steps {
		was := run.Fan.Flow.Steps[i]
		all := was.Count + was.Kept

		switch {
		case s.IsKept:
			p.Keeps = append(p.Keeps, s.Name)
		case !was.IsOpened() && was.Kept == 0 && !was.IsKept:
			p.Begins = append(p.Begins, s.Name)
		case s.Kept > 0:
			p.Repeats = append(p.Repeats, fmt.Sprintf("%s (%s%s)", s.Name, countText(all-s.Kept, "item"), numbersText(s.Items)))
			p.Keeps = append(p.Keeps, fmt.Sprintf("%s of %s", countText(s.Kept, "item"), s.Name))
		case s.IsMap:
			p.Repeats = append(p.Repeats, fmt.Sprintf("%s (all %s)", s.Name, countText(all, "item")))
		default:
			p.Repeats = append(p.Repeats, s.Name)
		}
	}

	return p
}

// shownNumbers is how many numbers of items a question names.
const shownNumbers = 10

// numbersText returns the numbers of items after a colon; "" if they are many.
func numbersText(items []int) string {
	if len(items) == 0 || len(items) > shownNumbers {
		return ""
	}

	words := make([]string, len(items))
	for i, n := range items {
		words[i] = fmt.Sprint(n)
	}

	return ": " + strings.Join(words, ", ")
}

// flowCancel is what the question before a cancel of a run of a workflow says.
type flowCancel struct {
	Cleanup []string // the steps that clean up, and run or will run
	Again   bool     // the run is being cancelled already
}

// newFlowCancel returns what a cancel would leave: cleanup that has not ended, and that has begun or comes after a step that has.
func newFlowCancel(steps client.RunSteps) *flowCancel {
	c := &flowCancel{Again: steps.Cancel != ""}
	begun := map[string]bool{} // the step, or one before it, has begun

	for _, s := range steps.Steps {
		before := slices.ContainsFunc(s.Needs, func(need string) bool { return begun[need] })
		begun[s.Name] = before || !s.OpenedAt.IsZero() || s.Kept > 0
		if s.When == string(task.WhenAlways) && begun[s.Name] && !workflow.State(s.State).IsFinal() {
			c.Cleanup = append(c.Cleanup, s.Name)
		}
	}

	return c
}
