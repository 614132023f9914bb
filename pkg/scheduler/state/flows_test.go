package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// newPlan returns a plan with a number of steps.
func newPlan(t *testing.T, generation int64, steps int) *FlowPlan {
	t.Helper()
	p := task.Plan{Generation: generation, Workflow: task.Workflow{Steps: map[string]task.Step{}}}
	for i := range steps {
		p.Workflow.Steps[fmt.Sprint("s", i)] = task.Step{Noop: &task.Noop{}}
	}
	f, err := NewFlowPlan(p)
	if err != nil {
		t.Fatal(err)
	}

	return f
}

func TestFlowPlans_ForgetsThoseThatWereNotUsed(t *testing.T) {
	t.Parallel()
	one := newPlan(t, 1, 100)
	plans := NewFlowPlans(3*one.size() + one.size()/2)

	for n := range int64(3) {
		plans.Keep("uid", newPlan(t, n, 100))
	}
	plans.Plan("uid", 0) // used last
	plans.Keep("uid", newPlan(t, 3, 100))

	for n, want := range []bool{true, false, true, true} {
		if got := plans.Plan("uid", int64(n)) != nil; got != want {
			t.Errorf("plan %d is kept: %t, want %t", n, got, want)
		}
	}
	if plans.size > plans.limit {
		t.Errorf("it has %d bytes", plans.size)
	}

	// A plan that is larger than the limit can be used, too.
	small := NewFlowPlans(10)
	small.Keep("uid", one)
	if small.Plan("uid", 1) == nil {
		t.Error("a large plan is not kept")
	}
}

// Cleanup has few attempts, whatever the task says.
func TestNewFlowPlan_StepsHaveWhatTheyDoNotSayFromTheTask(t *testing.T) {
	t.Parallel()
	p := task.Plan{KillSignal: "SIGINT", KillGrace: task.Duration(5), Retry: task.Retry{Attempts: 9}, Selector: "a = b", Success: task.Success{ExitCodes: []int{3}}, Workflow: task.Workflow{Steps: map[string]task.Step{
		"x": {Process: &task.Process{Command: []string{"x"}}},
		"y": {HTTP: &task.HTTP{URL: "http://x.test/"}, Needs: []string{"x"}, When: task.WhenAlways, Target: &task.StepTarget{Selector: "c = d"}},
	}}}
	f, err := NewFlowPlan(p)
	if err != nil {
		t.Fatal(err)
	}

	if x := f.Step("x"); x.KillSignal != "SIGINT" || x.KillGrace != 5 || x.Retry.Attempts != 9 || x.SelectorText != "a = b" || len(x.Success.ExitCodes) != 1 {
		t.Errorf("x is %+v", x)
	}
	if y := f.Step("y"); y.KillSignal != "" || y.Retry.Attempts != task.MaxCleanupAttempts || y.SelectorText != "c = d" || !y.Success.IsZero() {
		t.Errorf("y is %+v", y)
	}
}

// Results that have no room are left out by step, the largest first. The plan is never left out.
func TestFitRunData_LeavesOutTheLargestResults(t *testing.T) {
	t.Parallel()
	results := map[string]map[string]string{
		"a": {"k": strings.Repeat("x", 500)},
		"b": {"k": strings.Repeat("<", 200)}, // 1,200 bytes as JSON
		"c": {"k": strings.Repeat("x", 700)},
	}
	d := task.RunData{Plan: newPlan(t, 1, 2).Plan, Results: results}
	all := len(record.Encode(d))
	planOnly := len(record.Encode(task.RunData{Plan: d.Plan}))

	for _, c := range []struct {
		limit   int
		without []string
		isEmpty bool
	}{
		{all, nil, false},
		{all - 1, []string{"b"}, false},
		{all - 1300, []string{"b", "c"}, false},
		{planOnly, []string{"b", "c", "a"}, false},
		{planOnly - 1, []string{"b", "c", "a"}, true},
	} {
		data, without := FitRunData(d, c.limit)
		if !slices.Equal(without, c.without) || (data == "") != c.isEmpty || len(data) > c.limit {
			t.Errorf("limit %d: %d bytes without %q, want it without %q", c.limit, len(data), without, c.without)
		}
		if data == "" {
			continue
		}
		back, err := record.Decode[task.RunData]([]byte(data))
		if err != nil || len(back.Results) != 3-len(c.without) || len(back.Plan.Workflow.Steps) != 2 {
			t.Errorf("limit %d: %v, %+v", c.limit, err, back)
		}
	}
	if len(results) != 3 {
		t.Error("the results of the run were changed")
	}
}

// A task may retry its processes after some exit codes only. Requests and steps that do nothing have none, so any failure of theirs
// is retried.
func TestNewFlowPlan_OnlyProcessesHaveExitCodes(t *testing.T) {
	t.Parallel()
	p := task.Plan{Retry: task.Retry{Attempts: 9, ExitCodes: []int{75}}, Workflow: task.Workflow{Steps: map[string]task.Step{
		"process": {Process: &task.Process{Command: []string{"x"}}},
		"http":    {HTTP: &task.HTTP{URL: "http://x.test/"}},
		"noop":    {Noop: &task.Noop{}},
	}}}
	f, err := NewFlowPlan(p)
	if err != nil {
		t.Fatal(err)
	}

	for name, want := range map[string]int{"process": 1, "http": 0, "noop": 0} {
		if got := f.Step(name).Retry; len(got.ExitCodes) != want || got.Attempts != 9 {
			t.Errorf("%s is retried with %+v", name, got)
		}
	}
}

// Maps cannot use up all part numbers: steps that begin after them, such as cleanup, need one each.
func TestOpenStep_KeepsANumberForEachLaterStep(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	f := &task.Fan{Flow: &task.Flow{Steps: []task.FlowStep{
		{Name: "load", IsMap: true, MaxParallel: 1}, {Name: "check", IsMap: true, MaxParallel: 1}, {Name: "kept", IsKept: true},
		{Name: "failed", Reason: task.ReasonValues}, {Name: "clean", Needs: task.PartNumbers{1}, When: task.WhenAlways}, {Name: "tell", Needs: task.PartNumbers{4}, When: task.WhenAlways},
	}}}

	OpenStep(f, 0, task.MaxMapItems, now)
	tooMany := CopyFlow(*f)
	OpenStep(tooMany, 1, task.MaxSteps-1, now)
	if s := tooMany.Flow.Steps[1]; s.IsOpened() || s.Reason != task.ReasonValues || tooMany.Count != task.MaxMapItems {
		t.Errorf("a map that leaves one number for two steps: %+v, %d parts", s, tooMany.Count)
	}

	for _, fan := range []*task.Fan{tooMany, f} {
		if fan == f {
			OpenStep(fan, 1, task.MaxSteps-2, now)
		}
		OpenStep(fan, 4, 1, now)
		OpenStep(fan, 5, 1, now)
		for _, i := range []int{4, 5} {
			if s := fan.Flow.Steps[i]; !s.IsOpened() || s.Count != 1 {
				t.Errorf("step %s is %+v after maps with %d parts", s.Name, s, fan.Flow.Steps[1].Count)
			}
		}
		if err := fan.ValidateFlow(); err != nil {
			t.Error(err)
		}
	}
}
