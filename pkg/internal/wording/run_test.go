package wording_test

import (
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// A refusal says whether the attempt had begun: a redirect can be refused after a request was sent.
func TestRunResult_SaysWhetherARefusedAttemptHadBegun(t *testing.T) {
	now := time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC)
	run := task.Run{State: task.Failed, Reason: task.ReasonPolicy}
	if got := wording.RunResult(run, now); got != "not started (policy)" {
		t.Errorf("before anything was sent: %q", got)
	}

	run.HTTPStatus = 302
	if got := wording.RunResult(run, now); got != "failed (policy)" {
		t.Errorf("after a redirect: %q", got)
	}
}

func TestRunResult_CountsTheStepsThatHaveBegun(t *testing.T) {
	flow := &task.Flow{Steps: []task.FlowStep{
		{Name: "a", IsKept: true}, {Name: "b", OpenedAt: task.At(time.Unix(1, 0)), Count: 1}, {Name: "c", Reason: task.ReasonValues}, {Name: "d"},
	}}

	for want, r := range map[string]task.Run{
		"running, 3 of 4 steps begun":          {State: task.Running, FanOut: task.FanOut{Fan: &task.Fan{Flow: flow}}},
		"running (paused), 3 of 4 steps begun": {State: task.Running, FanOut: task.FanOut{Fan: &task.Fan{Flow: flow}}, PauseState: task.PauseState{PausedAt: task.At(time.Unix(1, 0)), PausedBy: task.NewActor("ann")}},
		"running":                              {State: task.Running, FanOut: task.FanOut{Fan: &task.Fan{Flow: &task.Flow{}}}}, // as in a list
		"succeeded":                            {State: task.Succeeded, FanOut: task.FanOut{Fan: &task.Fan{Flow: flow}}},
	} {
		if got := wording.RunResult(r, time.Unix(2, 0)); got != want {
			t.Errorf("%q; want %q", got, want)
		}
	}
}

func TestRunAttemptFields_SaySinceWhenAWorkflowIsPaused(t *testing.T) {
	r := task.Run{State: task.Running, FanOut: task.FanOut{Fan: &task.Fan{Flow: &task.Flow{}}}}
	r.PausedAt, r.PausedBy, r.PausedMS = task.At(time.Unix(90, 0)), task.NewActor("ann"), 5000

	at := func(t task.Time) string { return t.Format(time.TimeOnly) }
	want := wording.Field{Name: "Paused", Value: "since 00:01:30 by ann; 15s in total"}
	if got := wording.RunAttemptFields(r, at, time.Unix(100, 0)); !slices.Contains(got, want) {
		t.Errorf("%+v", got)
	}
}
