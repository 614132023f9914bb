package workflow_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/task"
)

// endsOf returns the ends of parts in a map.
func endsOf(ends map[int]task.State) workflow.PartEnds {
	return func(part int) (task.State, bool) {
		s, ok := ends[part]
		return s, ok
	}
}

// describeRetry summarizes which steps a retry keeps, and which items of the others it repeats.
func describeRetry(f *task.Fan) string {
	var words []string
	for _, s := range f.Flow.Steps {
		switch {
		case s.IsKept:
			words = append(words, fmt.Sprintf("%s kept %d", s.Name, s.Kept))
		case s.Items != nil:
			words = append(words, fmt.Sprintf("%s %v kept %d", s.Name, []int(s.Items), s.Kept))
		default:
			words = append(words, s.Name)
		}
	}

	return strings.Join(words, ", ")
}

func TestRetry_KeepsWhatSucceeded(t *testing.T) {
	opened := task.At(time.Date(2026, 11, 26, 7, 0, 0, 0, time.UTC))
	const ok, failed, cut = task.Succeeded, task.Failed, task.Cancelled

	// extract (0), load (1-4), pay (5), clean (6)
	newFan := func(change func(*task.Fan)) *task.Fan {
		f := &task.Fan{Count: 7, Cancel: task.ReasonCancelled, Left: task.PartNumbers{4}, Parts: []task.Part{{}}, Flow: &task.Flow{Generation: 3, OnFailure: task.OnFailureStop, Timeout: task.Duration(time.Hour), Forced: true, Steps: []task.FlowStep{
			{Name: "extract", Kind: task.KindProcess, Secret: true, OpenedAt: opened, First: 0, Count: 1},
			{Name: "load", Kind: task.KindHTTP, Needs: task.PartNumbers{0}, IsMap: true, MaxParallel: 8, OpenedAt: opened, First: 1, Count: 4},
			{Name: "pay", Kind: task.KindNoop, Needs: task.PartNumbers{1}, OpenedAt: opened, First: 5, Count: 1},
			{Name: "clean", Kind: task.KindNoop, Needs: task.PartNumbers{2}, When: task.WhenAlways, OpenedAt: opened, First: 6, Count: 1},
		}}}
		if change != nil {
			change(f)
		}
		return f
	}

	for name, c := range map[string]struct {
		change func(*task.Fan)
		ends   map[int]task.State
		from   string
		want   string
	}{
		"nothing ended":     {nil, nil, "", "extract, load, pay, clean"},
		"the first failed":  {nil, map[int]task.State{0: failed, 1: ok, 5: ok}, "", "extract, load, pay, clean"},
		"two of four items": {nil, map[int]task.State{0: ok, 1: ok, 2: failed, 3: ok, 6: ok}, "", "extract kept 1, load [1 3] kept 2, pay, clean"},
		"a cancelled item":  {nil, map[int]task.State{0: ok, 1: ok, 2: cut, 3: ok, 4: ok}, "", "extract kept 1, load [1] kept 3, pay, clean"},
		"no item":           {nil, map[int]task.State{0: ok, 1: failed, 2: task.Lost, 3: task.TimedOut}, "", "extract kept 1, load, pay, clean"},
		"all but cleanup":   {nil, map[int]task.State{0: ok, 1: ok, 2: ok, 3: ok, 4: ok, 5: ok, 6: failed}, "", "extract kept 1, load kept 4, pay kept 1, clean"},
		"everything":        {nil, map[int]task.State{0: ok, 1: ok, 2: ok, 3: ok, 4: ok, 5: ok, 6: ok}, "", "extract kept 1, load kept 4, pay kept 1, clean"},
		"pay failed":        {nil, map[int]task.State{0: ok, 1: ok, 2: ok, 3: ok, 4: ok, 5: failed, 6: ok}, "", "extract kept 1, load kept 4, pay, clean"},
		"from the first":    {nil, map[int]task.State{0: ok, 1: ok, 2: ok, 3: ok, 4: ok, 5: ok}, "extract", "extract, load, pay, clean"},
		"from the map":      {nil, map[int]task.State{0: ok, 1: ok, 2: ok, 3: failed, 4: ok}, "load", "extract kept 1, load, pay, clean"},
		"from the last":     {nil, map[int]task.State{0: ok, 1: ok, 2: ok, 3: ok, 4: ok, 5: ok}, "clean", "extract kept 1, load kept 4, pay kept 1, clean"},
		"an empty map":      {func(f *task.Fan) { f.Flow.Steps[1].Count = 0 }, map[int]task.State{0: ok, 5: failed}, "", "extract kept 1, load kept 0, pay, clean"},
		"a map without values": {func(f *task.Fan) {
			f.Flow.Steps[1] = task.FlowStep{Name: "load", IsMap: true, Needs: task.PartNumbers{0}, Reason: task.ReasonValues}
		}, map[int]task.State{0: ok}, "", "extract kept 1, load, pay, clean"},
		"a retry of a retry": {func(f *task.Fan) {
			f.Flow.Steps[0] = task.FlowStep{Name: "extract", IsKept: true, Kept: 1}
			f.Flow.Steps[1].Items, f.Flow.Steps[1].Kept = task.PartNumbers{7, 17, 204, 999}, 996
		}, map[int]task.State{1: ok, 2: failed, 3: ok}, "", "extract kept 1, load [17 999] kept 998, pay, clean"},
		"a retry that repeated no item": {func(f *task.Fan) {
			f.Flow.Steps[0] = task.FlowStep{Name: "extract", IsKept: true, Kept: 1}
			f.Flow.Steps[1].OpenedAt, f.Flow.Steps[1].Count = task.Time{}, 0
			f.Flow.Steps[1].Items, f.Flow.Steps[1].Kept = task.PartNumbers{7, 17}, 998
		}, nil, "", "extract kept 1, load [7 17] kept 998, pay, clean"},
		"a retry that could not begin the map": {func(f *task.Fan) {
			f.Flow.Steps[0] = task.FlowStep{Name: "extract", IsKept: true, Kept: 1}
			f.Flow.Steps[1].OpenedAt, f.Flow.Steps[1].Count, f.Flow.Steps[1].Reason = task.Time{}, 0, task.ReasonValues
			f.Flow.Steps[1].Items, f.Flow.Steps[1].Kept = task.PartNumbers{7, 17}, 998
		}, nil, "", "extract kept 1, load [7 17] kept 998, pay, clean"},
		"a retry of a retry, from the first": {func(f *task.Fan) {
			f.Flow.Steps[0] = task.FlowStep{Name: "extract", IsKept: true, Kept: 1}
			f.Flow.Steps[1].Items, f.Flow.Steps[1].Kept = task.PartNumbers{7, 17, 204, 999}, 996
		}, map[int]task.State{1: ok}, "extract", "extract, load, pay, clean"},
		"results that were not kept": {func(f *task.Fan) { f.Flow.Steps[0].NoResults = true }, map[int]task.State{0: ok, 1: ok, 2: ok, 3: ok, 4: ok, 5: failed}, "", "extract, load, pay, clean"},
		"a handler of failures":      {func(f *task.Fan) { f.Flow.Steps[2].When = task.WhenFailed }, map[int]task.State{0: ok, 1: failed, 2: ok, 3: ok, 4: ok, 5: ok}, "", "extract kept 1, load [0] kept 3, pay, clean"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFan(c.change)
			again, ok := workflow.Retry(f, endsOf(c.ends), "dead", c.from)
			if !ok {
				t.Fatal("there is no such step")
			}
			if got := describeRetry(again); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}

			if again.Count != 0 || again.Cancel != "" || again.Left != nil || again.Parts != nil || again.Flow.Forced || again.Flow.Retries != "dead" || again.Flow.Generation != 3 || again.Flow.OnFailure != task.OnFailureStop || again.Flow.Timeout != task.Duration(time.Hour) {
				t.Errorf("%+v, %+v", again, again.Flow)
			}
			for i, s := range again.Flow.Steps {
				if was := f.Flow.Steps[i]; s.IsOpened() || s.Count != 0 || s.First != 0 || s.Reason != "" || s.NoResults || s.Kind != was.Kind || s.When != was.When || s.MaxParallel != was.MaxParallel || s.Secret != was.Secret || !slices.Equal(s.Needs, was.Needs) {
					t.Errorf("step %d: %+v", i, s)
				}
			}
		})
	}

	if _, ok := workflow.Retry(newFan(nil), endsOf(nil), "dead", "extrakt"); ok {
		t.Error("an unknown step is accepted")
	}
}

// A retry of 3 failed items of 1,000 starts exactly these.
func TestRetry_StartsOnlyTheFailedItems(t *testing.T) {
	f := &task.Fan{Count: 1000, Flow: &task.Flow{Steps: []task.FlowStep{{Name: "a", IsMap: true, MaxParallel: 10, OpenedAt: task.At(time.Now()), Count: 1000}}}}
	ends := map[int]task.State{}
	for part := range f.Count {
		ends[part] = task.Succeeded
	}
	ends[17], ends[204], ends[999] = task.Failed, task.Lost, task.TimedOut

	again, _ := workflow.Retry(f, endsOf(ends), "dead", "")
	s := &again.Flow.Steps[0]
	if !slices.Equal(s.Items, task.PartNumbers{17, 204, 999}) || s.Kept != 997 {
		t.Fatalf("items %v, kept %d", s.Items, s.Kept)
	}

	r := &randomRun{fan: *again, ends: map[int]task.State{}}
	r.beginStep(0, len(s.Items))
	if now := r.states(); !slices.Equal(now.Steps[0].Next, []int{0, 1, 2}) || r.fan.Flow.Steps[0].ItemOf(1) != 204 {
		t.Errorf("%+v", now)
	}
}

// Whatever has happened to a run, its retry keeps nothing that did not succeed, and nothing behind what it repeats. It can be carried out,
// and if all that it repeats succeeds, nothing that failed before is left.
func TestRetry_OfRandomRuns(t *testing.T) {
	t.Parallel()
	runs := 20_000
	if testing.Short() {
		runs = 2_000
	}

	for seed := range uint64(runs) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		r := newRandomRun(rnd)
		items := map[string]int{}
		succeeded := map[string]map[int]bool{} // by step and item, in any of the runs

		for generation := range 3 {
			r.finish(t, rnd, items, generation == 2)

			flow := r.fan.Flow
			for i := range flow.Steps {
				s := &flow.Steps[i]
				if succeeded[s.Name] == nil {
					succeeded[s.Name] = map[int]bool{}
				}
				for part := s.First; s.IsOpened() && part < s.First+s.Count; part++ {
					succeeded[s.Name][s.ItemOf(part)] = r.ends[part] == task.Succeeded
				}
			}

			from := ""
			if rnd.IntN(3) == 0 {
				from = flow.Steps[rnd.IntN(len(flow.Steps))].Name
			}
			again, ok := workflow.Retry(&r.fan, endsOf(r.ends), "dead", from)
			if !ok {
				t.Fatalf("seed %d: no step %s", seed, from)
			}

			checkRetry(t, seed, again.Flow, from, items, succeeded)
			if t.Failed() {
				return
			}
			r = &randomRun{fan: *again, ends: map[int]task.State{}}
		}
	}
}

// checkRetry checks what a retry keeps.
func checkRetry(t *testing.T, seed uint64, flow *task.Flow, from string, items map[string]int, succeeded map[string]map[int]bool) {
	t.Helper()

	for i, s := range flow.Steps {
		keeps := s.IsKept || s.Kept > 0
		switch {
		case keeps && (s.Name == from || s.When == task.WhenAlways):
			t.Errorf("seed %d: step %s is kept", seed, s.Name)
		case keeps && slices.ContainsFunc(s.Needs, func(need int) bool { return !flow.Steps[need].IsKept }):
			t.Errorf("seed %d: step %s is kept, but not all that it needs", seed, s.Name)
		case s.IsKept && s.Items != nil, s.Items != nil && s.Kept == 0:
			t.Errorf("seed %d: step %d: %+v", seed, i, s)
		}

		// Every item of what is kept, and no other, succeeded in the run that began it last.
		if !keeps {
			continue
		}
		kept := 0
		for item := range items[s.Name] {
			if slices.Contains(s.Items, item) {
				continue
			}
			if kept++; !succeeded[s.Name][item] {
				t.Errorf("seed %d: item %d of step %s is kept, and did not succeed", seed, item, s.Name)
			}
		}
		if kept != s.Kept {
			t.Errorf("seed %d: step %s keeps %d items, but says %d", seed, s.Name, kept, s.Kept)
		}
	}
}

// beginStep begins a step with a number of items.
func (r *randomRun) beginStep(step, items int) {
	s := &r.fan.Flow.Steps[step]
	s.OpenedAt, s.First, s.Count = task.At(time.Unix(1_800_000_000, 0)), r.fan.Count, items
	for range items {
		r.fan.Left = append(r.fan.Left, r.fan.Count)
		r.fan.Count++
	}
}

// finish carries out a run until it is over. items has the number of items of each map; it is chosen when the map begins first.
// Unless all succeeds, parts fail and the run may be cancelled.
func (r *randomRun) finish(t *testing.T, rnd *rand.Rand, items map[string]int, allSucceed bool) {
	t.Helper()

	for range 10_000 {
		now := r.states()
		if now.Over {
			if allSucceed && now.FailedStep >= 0 {
				t.Fatalf("a step failed, although all that began succeeded: %+v", now)
			}
			return
		}
		if !allSucceed && r.fan.Cancel == "" && rnd.IntN(30) == 0 {
			r.fan.Cancel = task.ReasonCancelled
			continue
		}

		var active []int
		for i := range now.Steps {
			s := &r.fan.Flow.Steps[i]
			if now.Steps[i].State == workflow.Ready && rnd.IntN(2) == 0 {
				n, known := items[s.Name]
				if !known {
					n = 1
					if s.IsMap {
						n = rnd.IntN(5)
					}
					items[s.Name] = n
				}
				if s.Items != nil {
					n = len(s.Items)
				}
				r.beginStep(i, n)
			}
			for part := s.First; s.IsOpened() && part < s.First+s.Count; part++ {
				if _, ended := r.ends[part]; !ended && !slices.Contains(r.fan.Left, part) {
					active = append(active, part)
				}
			}
		}

		// Give a part, or end one.
		for _, s := range r.states().Steps {
			if len(s.Next) > 0 && rnd.IntN(2) == 0 {
				place := slices.Index(r.fan.Left, s.Next[0])
				r.fan.Left = slices.Delete(slices.Clone(r.fan.Left), place, place+1)
				break
			}
		}
		if len(active) > 0 && rnd.IntN(2) == 0 {
			part, state := active[rnd.IntN(len(active))], task.Succeeded
			if !allSucceed && rnd.IntN(4) == 0 {
				state = []task.State{task.Failed, task.Lost, task.TimedOut}[rnd.IntN(3)]
			}
			if r.fan.CutsPart(part) != "" {
				state = task.Cancelled
			}
			r.ends[part] = state
		}
	}

	t.Fatal("the run does not end")
}
