package manifest

import (
	"errors"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// A patch of sources gives what the same manifest would give to a new task.
func TestApplyPatch_Sources(t *testing.T) {
	for _, c := range []struct {
		name    string
		old     func(s *task.Spec)
		patch   string
		after   string
		overlap string
		code    string // of the error
	}{
		{"a manual task", nil, `{"after":"a"}`, "a has succeeded", task.OverlapQueue, ""},
		{"and overlap is given", nil, `{"after":"a","overlap":"skip"}`, "a has succeeded", task.OverlapSkip, ""},
		{"and overlap was chosen", func(s *task.Spec) { s.Overlap = task.OverlapReplace }, `{"after":"a"}`, "a has succeeded", task.OverlapReplace, ""},
		{"with a schedule", scheduled, `{"after":"a"}`, "", "", task.CodeRequired},
		{"with a schedule, and overlap is reset", scheduled, `{"after":"a","overlap":null}`, "", "", task.CodeRequired},
		{"with a schedule and overlap", scheduled, `{"after":"a","overlap":"skip"}`, "a has succeeded", task.OverlapSkip, ""},
		{"another field", scheduled, `{"description":"x"}`, "", task.OverlapSkip, ""},
		{"no sources", scheduled, `{"after":null}`, "", task.OverlapSkip, ""},
		{"a condition is left out", after, `{"after":{"task":"b"}}`, "b has succeeded", task.OverlapSkip, ""},
		{"results are left out", after, `{"after":{"task":"a","when":"ended"}}`, "a has ended", task.OverlapSkip, ""},
		{"a list", after, `{"after":["b"]}`, "b has succeeded", task.OverlapSkip, ""},
		{"sources are removed", after, `{"after":null}`, "", task.OverlapSkip, ""},
	} {
		spec := task.Defaults()
		spec.Schedule = task.Schedules{task.ManualSchedule}
		spec.Action.Noop = &task.Noop{}
		if c.old != nil {
			c.old(&spec)
		}

		patch, err := DecodePatch([]byte(c.patch))
		if err != nil {
			t.Fatal(err)
		}
		got, err := ApplyPatch(spec, patch)

		if c.code != "" {
			var e *task.Error
			if !errors.As(err, &e) || e.Code != c.code {
				t.Errorf("%s: the error %v, want %s", c.name, err, c.code)
			}
			continue
		}
		if err != nil || got.After.Describe() != c.after || got.Overlap != c.overlap || len(got.After) > 0 && len(got.After[0].Results) > 0 {
			t.Errorf("%s: after %+v, overlap %s, %v; want %q, %s", c.name, got.After, got.Overlap, err, c.after, c.overlap)
		}
	}
}

func scheduled(s *task.Spec) { s.Schedule = task.Schedules{"@every 1h"} }

func after(s *task.Spec) {
	s.After = task.Sources{{Task: "a", When: task.WhenFailed, Results: []string{"x"}}}
}
