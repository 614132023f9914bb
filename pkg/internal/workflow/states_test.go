package workflow_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/task"
)

// randomRun is a run of a random workflow, which a test carries out.
type randomRun struct {
	fan    task.Fan
	ends   map[int]task.State
	active []int
	kept   map[int]bool
}

// newRandomRun returns a run of a random graph. Some have steps that a retry keeps.
func newRandomRun(rnd *rand.Rand) *randomRun {
	r := &randomRun{ends: map[int]task.State{}, kept: map[int]bool{}}
	r.fan.Flow = &task.Flow{OnFailure: []string{"", task.OnFailureStop, task.OnFailureContinue}[rnd.IntN(3)]}

	for i := range 1 + rnd.IntN(8) {
		s := task.FlowStep{Name: fmt.Sprint("s", i), Kind: task.KindNoop}
		for need := range i {
			if rnd.IntN(3) == 0 {
				s.Needs = append(s.Needs, need)
			}
		}
		if len(s.Needs) > 0 {
			s.When = []task.When{"", "", task.WhenFailed, task.WhenAlways}[rnd.IntN(4)]
		}
		if rnd.IntN(3) == 0 {
			s.IsMap, s.MaxParallel = true, 1+rnd.IntN(3)
		}
		r.fan.Flow.Steps = append(r.fan.Flow.Steps, s)
	}

	return r
}

// precedes reports whether a step is before another one, directly or not.
func (r *randomRun) precedes(before, i int) bool {
	return slices.ContainsFunc(r.fan.Flow.Steps[i].Needs, func(need int) bool { return need == before || r.precedes(before, need) })
}

// states returns the present states.
func (r *randomRun) states() workflow.Run {
	return workflow.States(&r.fan, func(part int) (task.State, bool) {
		s, ok := r.ends[part]
		return s, ok
	})
}

// advance does one thing that may happen to the run.
func (r *randomRun) advance(t *testing.T, rnd *rand.Rand, now workflow.Run) {
	flow := r.fan.Flow

	if r.fan.Cancel == "" && rnd.IntN(40) == 0 {
		r.fan.Cancel = []string{task.ReasonCancelled, task.ReasonTimeout}[rnd.IntN(2)]
		return
	}
	if r.fan.Cancel != "" && rnd.IntN(20) == 0 {
		flow.Forced = true
		return
	}

	var ready []int
	var next []int
	for i, s := range now.Steps {
		if s.State == workflow.Ready {
			ready = append(ready, i)
		}
		next = append(next, s.Next...)
	}

	options := len(ready) + len(next) + len(r.active)
	if options == 0 {
		t.Fatalf("the run is not over, but nothing can happen: %+v %+v", r.fan.Flow, now)
	}

	switch n := rnd.IntN(options); {
	case n < len(ready):
		r.open(t, rnd, now, ready[n])

	case n < len(ready)+len(next):
		part := next[n-len(ready)]
		r.fan.Left = slices.DeleteFunc(slices.Clone(r.fan.Left), func(p int) bool { return p == part })
		r.active = append(r.active, part)

	default:
		at := n - len(ready) - len(next)
		part := r.active[at]
		r.active = slices.Delete(r.active, at, at+1)

		state := []task.State{task.Succeeded, task.Succeeded, task.Succeeded, task.Failed, task.Lost}[rnd.IntN(5)]
		if r.fan.CutsPart(part) != "" && rnd.IntN(2) == 0 {
			state = task.Cancelled
		}
		r.ends[part] = state
	}
}

// open begins a step, and checks that it may begin.
func (r *randomRun) open(t *testing.T, rnd *rand.Rand, now workflow.Run, i int) {
	s := &r.fan.Flow.Steps[i]

	// Nothing before it goes on, neither what it needs nor what a step needs that it needs.
	for before := i; before >= 0; before-- {
		if r.precedes(before, i) && !now.Steps[before].State.IsFinal() {
			t.Fatalf("step %d may begin before step %d has ended", i, before)
		}
	}
	if r.fan.Cancel != "" && (s.When != task.WhenAlways || r.fan.Flow.Forced) {
		t.Fatalf("step %d may begin after the run was cut", i)
	}

	if rnd.IntN(20) == 0 {
		s.Reason = task.ReasonValues
		return
	}

	s.OpenedAt, s.First, s.Count = task.At(time.Unix(1, 0)), r.fan.Count, 1
	if s.IsMap {
		s.Count = rnd.IntN(4)
	}
	for range s.Count {
		r.fan.Left = append(r.fan.Left, r.fan.Count)
		r.fan.Count++
	}
}

func TestStates_AreTotal(t *testing.T) {
	t.Parallel()
	graphs := 100_000
	if testing.Short() {
		graphs = 2_000
	}

	for seed := range uint64(graphs) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := newRandomRun(rnd)

		for moves := 0; ; moves++ {
			now := r.states()
			if now.Over {
				if len(r.active) > 0 {
					t.Fatalf("seed %d: the run is over, but parts %v are active", seed, r.active)
				}
				requireFinal(t, seed, r, now)
				break
			}
			if moves > 200 {
				t.Fatalf("seed %d: the run does not end: %+v", seed, now)
			}
			r.advance(t, rnd, now)
		}
	}
}

// requireFinal checks the states of a run that is over.
func requireFinal(t *testing.T, seed uint64, r *randomRun, now workflow.Run) {
	t.Helper()

	for i, s := range now.Steps {
		step := &r.fan.Flow.Steps[i]
		if !s.State.IsFinal() {
			t.Errorf("seed %d: the run is over, but step %d is %s", seed, i, s.State)
		}

		// Cleanup is not lost: with a step before it that has begun, it runs unless the cancel was forced.
		begunBefore := slices.ContainsFunc(step.Needs, func(need int) bool { return r.fan.Flow.Steps[need].IsOpened() })
		if step.When == task.WhenAlways && begunBefore && !r.fan.Flow.Forced && s.State == workflow.Skipped {
			t.Errorf("seed %d: cleanup step %d is skipped", seed, i)
		}
	}
}

// A cancel or a timeout counts only if something would have gone on without it.
func TestStates_SayWhetherTheRunWasCut(t *testing.T) {
	t.Parallel()

	// a, then b; repair if a fails; clean after b. Each begun step has one part.
	for _, c := range []struct {
		name   string
		begun  []int
		ends   map[int]task.State // by part, in the order in which the steps have begun
		isCut  bool
		change func(f *task.Fan)
	}{
		{"a part was cancelled", []int{0}, map[int]task.State{0: task.Cancelled}, true, nil},
		{"a step did not begin", []int{0}, map[int]task.State{0: task.Succeeded}, true, nil},
		{"nothing has begun", nil, nil, true, nil},
		{"only cleanup was left", []int{0, 1, 3}, map[int]task.State{0: task.Succeeded, 1: task.Succeeded, 2: task.Succeeded}, false, nil},
		{"the steps were stopped by a failure", []int{0, 2, 3}, map[int]task.State{0: task.Failed, 1: task.Succeeded, 2: task.Succeeded}, false, nil},
		{"the failure has no repair yet", []int{0, 3}, map[int]task.State{0: task.Failed, 1: task.Succeeded}, true, nil},
		{"force", []int{0, 1}, map[int]task.State{0: task.Succeeded, 1: task.Succeeded}, true, func(f *task.Fan) { f.Flow.Forced = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := task.Fan{Cancel: task.ReasonTimeout, Flow: &task.Flow{Steps: []task.FlowStep{
				{Name: "a"}, {Name: "b", Needs: []int{0}}, {Name: "repair", Needs: []int{0}, When: task.WhenFailed}, {Name: "clean", Needs: []int{1}, When: task.WhenAlways},
			}}}
			for part, i := range c.begun {
				f.Flow.Steps[i].OpenedAt, f.Flow.Steps[i].First, f.Flow.Steps[i].Count = task.At(time.Unix(1, 0)), part, 1
				f.Count++
			}
			if c.change != nil {
				c.change(&f)
			}

			r := workflow.States(&f, func(part int) (task.State, bool) { s, ok := c.ends[part]; return s, ok })
			if r.Cut != c.isCut {
				t.Errorf("cut: %t, want %t: %+v", r.Cut, c.isCut, r.Steps)
			}
		})
	}
}

// A map goes on after an item has failed. If a cancel then ends another item, or keeps one from beginning, the run was cut, although the
// step has failed.
func TestStates_AFailedStepCanBeCut(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		name   string
		cancel string
		left   task.PartNumbers
		ends   map[int]task.State
		isCut  bool
	}{
		{"an item was cancelled", task.ReasonCancelled, nil, map[int]task.State{0: task.Failed, 1: task.Succeeded, 2: task.Cancelled}, true},
		{"an item did not begin", task.ReasonTimeout, task.PartNumbers{2}, map[int]task.State{0: task.Failed, 1: task.Succeeded}, true},
		{"all items had ended", task.ReasonTimeout, nil, map[int]task.State{0: task.Failed, 1: task.Succeeded, 2: task.Succeeded}, false},
		{"no cancel", "", nil, map[int]task.State{0: task.Failed, 1: task.Succeeded, 2: task.Succeeded}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := task.Fan{Count: 3, Left: c.left, Cancel: c.cancel, Flow: &task.Flow{Steps: []task.FlowStep{
				{Name: "load", IsMap: true, MaxParallel: 9, OpenedAt: task.At(time.Unix(1, 0)), Count: 3},
			}}}
			r := workflow.States(&f, func(part int) (task.State, bool) { s, ok := c.ends[part]; return s, ok })
			if r.Steps[0].State != workflow.Failed || !r.Over || r.Cut != c.isCut {
				t.Errorf("cut: %t, want %t: %+v", r.Cut, c.isCut, r)
			}
		})
	}
}

// Cleanup waits for steps that it does not need itself, if the step between is skipped.
func TestStates_CleanupWaitsForAllBeforeIt(t *testing.T) {
	t.Parallel()
	f := task.Fan{Count: 1, Cancel: task.ReasonCancelled, Flow: &task.Flow{Steps: []task.FlowStep{
		{Name: "load", OpenedAt: task.At(time.Unix(1, 0)), Count: 1}, {Name: "check", Needs: []int{0}}, {Name: "clean", Needs: []int{1}, When: task.WhenAlways},
	}}}
	ends := map[int]task.State{}
	states := func() workflow.Run {
		return workflow.States(&f, func(part int) (task.State, bool) { s, ok := ends[part]; return s, ok })
	}

	if clean := states().Steps[2]; clean.State != workflow.Waiting || clean.Cause != 0 {
		t.Errorf("cleanup is %s because of step %d, want that it waits for load", clean.State, clean.Cause)
	}

	ends[0] = task.Cancelled
	if clean := states().Steps[2]; clean.State != workflow.Ready {
		t.Errorf("cleanup is %s, want that it may begin", clean.State)
	}
}

// In a graph in which each step needs all others before it, the number of paths is exponential.
func TestStates_OfDenseGraphs(t *testing.T) {
	t.Parallel()
	f := task.Fan{Cancel: task.ReasonTimeout, Flow: &task.Flow{}}
	for i := range task.MaxSteps {
		s := task.FlowStep{When: task.WhenAlways}
		for need := range i {
			s.Needs = append(s.Needs, need)
		}
		f.Flow.Steps = append(f.Flow.Steps, s)
	}

	if r := workflow.States(&f, func(int) (task.State, bool) { return "", false }); !r.Over || !r.Cut {
		t.Errorf("over %t, cut %t, want both: nothing has begun", r.Over, r.Cut)
	}
}
