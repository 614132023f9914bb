package state

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/task"
)

var partTick = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func TestNew(t *testing.T) {
	nodes := []string{"n3", "n1", "n2"}

	for name, c := range map[string]struct {
		target task.Target
		nodes  []string
		reason string
		count  int
		on     []string
	}{
		"no node":        {target: task.Target{Count: 1, Parts: 2}, reason: task.ReasonNoNode},
		"too few nodes":  {target: task.Target{Count: 4}, nodes: nodes, reason: task.ReasonCount},
		"parts anywhere": {target: task.Target{Count: 1, Parts: 5}, nodes: nodes, count: 5},
		"some nodes":     {target: task.Target{Count: 2}, nodes: nodes, count: 2, on: []string{"n1", "n3"}},
		"all nodes":      {target: task.Target{Count: task.All}, nodes: nodes, count: 3, on: []string{"n1", "n2", "n3"}},
	} {
		t.Run(name, func(t *testing.T) {
			f, reason := NewFan(c.target, slices.Clone(c.nodes))
			if reason != c.reason {
				t.Fatalf("the reason is %q, want %q", reason, c.reason)
			}

			if reason != "" {
				return
			}

			if f.Count != c.count || len(f.Left) != c.count || !slices.Equal(f.Nodes, c.on) {
				t.Errorf("got %+v", f)
			}
		})
	}
}

// parent returns a run with parts 0 to 3. Only part 3 has not been assigned.
func parentWaiting() *Waiting {
	return &Waiting{Waiting: task.Waiting{Run: task.Run{
		ID: task.RunID(partTick, "abcd"), ScheduledTime: task.At(partTick), DispatchedAt: task.At(partTick), FanOut: task.FanOut{Fan: &task.Fan{Count: 4, Need: 3, Left: []int{3}}},
	}}}
}

// returned adds the ends of parts 0, 1, … to a task.
func returnedParts(q *Waiting, states ...task.State) *Task {
	t := &Task{Activity: &Activity{Returned: map[string]Returned{}}}
	for i, state := range states {
		t.Activity.Returned[task.PartID(q.ID, i)] = Returned{Part: task.Part{Index: i, State: state}, Parent: q.ID}
	}

	return t
}

func TestMissing_IsWhatHasNoRecord(t *testing.T) {
	q := parentWaiting()
	st := returnedParts(q, task.Succeeded)
	if got := slices.Sorted(maps.Keys(MissingParts(st, q))); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("missing are %v", got)
	}

	st.Activity.Active = []*Attempt{{Run: task.PartID(q.ID, 1)}}
	st.Activity.Unreadable = []string{task.PartID(q.ID, 2)}
	if got := MissingParts(st, q); len(got) > 0 {
		t.Errorf("missing are %v", got)
	}

	st.Activity.Unreadable = nil
	st.Activity.Queue = []*Waiting{{Waiting: task.Waiting{Run: task.Run{ID: task.PartID(q.ID, 2)}}}}
	if got := MissingParts(st, q); len(got) > 0 {
		t.Errorf("missing are %v", got)
	}
}

func TestStartBefore_CountsFromThePartsTurn(t *testing.T) {
	q := parentWaiting()
	if at := PartStartBefore(q); !at.IsZero() {
		t.Errorf("without a deadline: %s", at)
	}

	q.StartBefore = task.At(partTick.Add(time.Minute))
	if at := PartStartBefore(q); !at.Equal(partTick.Add(time.Minute)) {
		t.Errorf("of the first part: %s", at)
	}

	q.NotBefore = task.At(partTick.Add(10 * time.Second))
	if at := PartStartBefore(q); !at.Equal(partTick.Add(70 * time.Second)) {
		t.Errorf("of a later part: %s", at)
	}
}

func TestNextTurn_IsLaterByTheStagger(t *testing.T) {
	q := parentWaiting()
	if at := NextPartTurn(q); !at.IsZero() {
		t.Errorf("without stagger: %s", at)
	}

	q.Fan.Stagger = task.Duration(10 * time.Second)
	if at := NextPartTurn(q); !at.Equal(partTick.Add(10 * time.Second)) {
		t.Errorf("after the first part: %s", at)
	}

	q.NotBefore = task.At(partTick.Add(20 * time.Second))
	if at := NextPartTurn(q); !at.Equal(partTick.Add(30 * time.Second)) {
		t.Errorf("after a later part: %s", at)
	}
}

func TestConclude(t *testing.T) {
	for name, c := range map[string]struct {
		cancel string
		states []task.State
		want   task.State
		reason string
	}{
		"enough":                         {states: []task.State{task.Succeeded, task.Succeeded, task.Failed, task.Succeeded}, want: task.Succeeded},
		"too few":                        {states: []task.State{task.Succeeded, task.Succeeded, task.Failed, task.Failed}, want: task.Failed, reason: task.ReasonParts},
		"cancelled before the last part": {cancel: task.ReasonReplaced, states: []task.State{task.Succeeded, task.Succeeded, task.Succeeded}, want: task.Cancelled, reason: task.ReasonReplaced},
		"cancelled after the last part":  {cancel: task.ReasonReplaced, states: []task.State{task.Succeeded, task.Succeeded, task.Succeeded, task.Failed}, want: task.Succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			q := parentWaiting()
			q.Fan.Cancel = c.cancel
			if len(c.states) == 4 {
				q.Fan.Left = nil
			}

			end := ConcludeParts(returnedParts(q, c.states...), q, partTick.Add(time.Minute))
			if end.State != c.want || end.Reason != c.reason {
				t.Errorf("ended as %s (%s), want %s (%s)", end.State, end.Reason, c.want, c.reason)
			}

			if len(end.Fan.Parts) != 4 || len(end.Fan.Left) != 0 || !slices.IsSortedFunc(end.Fan.Parts, func(a, b task.Part) int { return a.Index - b.Index }) {
				t.Errorf("its parts are %+v", end.Fan)
			}
		})
	}
}

// The steps of a workflow have actions of different kinds. Only the record of the run says which part is of which step.
func TestPoolOf_StepOfAWorkflow_IsThatOfItsKind(t *testing.T) {
	t.Parallel()
	at := task.At(time.Unix(1, 0))
	flow := &task.Flow{Steps: []task.FlowStep{
		{Name: "load", Kind: task.KindProcess, OpenedAt: at, Count: 2},
		{Name: "send", Kind: task.KindHTTP, Secret: true, OpenedAt: at, First: 2, Count: 1},
		{Name: "clean", Kind: task.KindProcess},
	}}
	run := task.Run{ID: "20260102T120000.000Z-abcd", State: task.Running, FanOut: task.FanOut{Fan: &task.Fan{Count: 3, Flow: flow}}}
	flows := &Task{Policy: &Policy{PolicyFields: &PolicyFields{}}, Activity: &Activity{Queue: []*Waiting{{Waiting: task.Waiting{Run: run}}}}}
	flows.SetWorkflow(true)

	for part, want := range map[int]struct {
		pool   placement.Pool
		secret bool
	}{0: {placement.ProcessSlots, false}, 1: {placement.ProcessSlots, false}, 2: {placement.HTTPSlots, true}} {
		id := task.PartID(run.ID, part)
		if pool := flows.PoolOf(id); pool != want.pool {
			t.Errorf("part %d takes slots of pool %v; want %v", part, pool, want.pool)
		}
		if w := flows.WantOf(id); w.Pool != want.pool || w.Secret != want.secret {
			t.Errorf("part %d wants %+v", part, w)
		}
	}
}
