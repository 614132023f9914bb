package wording_test

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestAfterTexts(t *testing.T) {
	s := task.Spec{Schedule: task.Schedules{task.ManualSchedule}, After: task.Sources{{Task: "etl", Results: []string{"rows", "day"}}, {Task: "import", When: task.WhenEnded}, {Task: "copy", When: task.WhenFailed}}}
	if got, want := wording.AfterText(s), "etl has succeeded, with its results rows, day\nimport has ended\ncopy has failed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := wording.WithoutTicks(s); got != "after etl and 2 more" {
		t.Error(got)
	}
	if s.After = s.After[:1]; wording.WithoutTicks(s) != "after etl" {
		t.Error(wording.WithoutTicks(s))
	}
	if s.Schedule = (task.Schedules{"@daily"}); wording.WithoutTicks(s) != "" {
		t.Error(wording.WithoutTicks(s))
	}

	list := []client.Dependent{{Task: "report", When: task.WhenSucceeded}, {Task: "ticket", When: task.WhenFailed}, {Task: "tidy-up", When: task.WhenEnded}}
	if got, want := wording.DependentsText(list), "report, ticket if it has failed, tidy-up in any case"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for range 9 {
		list = append(list, client.Dependent{Task: "x", When: task.WhenSucceeded})
	}
	if got, want := wording.DependentsText(list), "report, ticket if it has failed, tidy-up in any case, x, x, x, x, x, 4 more"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRunRequestFields_NameTheCauses(t *testing.T) {
	r := task.Run{Trigger: task.TriggerAfter, Causation: task.Causation{Causes: []task.Cause{{Task: "etl", Run: "r1", State: task.TimedOut, Results: map[string]string{"rows": "12\n3", "a": "b"}}}}}
	got := map[string]string{}
	for _, f := range wording.RunRequestFields(r, func(t task.Time) string { return "" }) {
		got[f.Name] = f.Value
	}

	if got["Started by"] != "run r1 of etl: timed out" || got["Results of causes"] != "etl: a=b\netl: rows=12 3" || got["Trigger"] != "after" {
		t.Errorf("%q", got)
	}
}
