package task_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestBoot_RefusesWhatHasNoMeaning(t *testing.T) {
	at := task.At(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	for name, c := range map[string]struct {
		change func(s *task.Spec)
		want   string // the field and a part of the message; "": valid
	}{
		"nothing":    {func(*task.Spec) {}, ""},
		"a deadline": {func(s *task.Spec) { s.Deadline, s.Overlap = task.Duration(time.Minute), task.OverlapSkip }, ""},
		"a selector": {func(s *task.Spec) { s.Target.Selector = "role = db" }, ""},
		"start":      {func(s *task.Spec) { s.Start = at }, "start: cannot be combined with the schedule @reboot"},
		"end":        {func(s *task.Spec) { s.End = at }, "end: cannot be combined"},
		"jitter":     {func(s *task.Spec) { s.Jitter = task.Duration(time.Second) }, "jitter: cannot be combined"},
		"max_runs":   {func(s *task.Spec) { s.MaxRuns = 1 }, "max_runs: cannot be combined"},
		"ttl":        {func(s *task.Spec) { s.TTL = task.Duration(time.Hour) }, "ttl: cannot be combined"},
		"all nodes":  {func(s *task.Spec) { s.Target.Count = task.All }, "target.count: cannot be combined with the schedule @reboot: each node that boots has a run of its own"},
		"parts":      {func(s *task.Spec) { s.Target.Parts = 2 }, "target.parts: cannot be combined"},
	} {
		s := task.Defaults()
		s.Name, s.Schedule, s.Action = "a", task.Schedules{task.BootSchedule}, task.Action{Noop: &task.Noop{}}
		c.change(&s)
		checkError(t, name, s.Validate(), c.want)
	}
}

// Nodes boot together, so their runs do not wait for each other unless the task says so.
func TestBoot_OverlapIsAllowedByDefault(t *testing.T) {
	for text, want := range map[string]string{
		`{"name": "a", "schedule": "@reboot", "action": {"noop": {}}}`:                    task.OverlapAllow,
		`{"name": "a", "schedule": "@reboot", "overlap": "skip", "action": {"noop": {}}}`: task.OverlapSkip,
		`{"name": "a", "schedule": "@daily", "action": {"noop": {}}}`:                     task.OverlapSkip,
	} {
		s, err := task.DecodeSpec([]byte(text))
		if err != nil || s.Overlap != want || task.DefaultsOf(s).Overlap != want && s.Overlap != task.OverlapSkip {
			t.Errorf("%s: %q, %v", text, s.Overlap, err)
		}
	}
}
