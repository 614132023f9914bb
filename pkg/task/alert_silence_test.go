package task_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestAlertSilence_Validate(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)
	in := func(d time.Duration) task.Time { return task.At(now.Add(d)) }

	for name, c := range map[string]struct {
		silence    task.AlertSilence
		field, why string
	}{
		"a glob":                   {task.AlertSilence{Glob: "web-*", Until: in(time.Hour), Reason: "a move"}, "", ""},
		"a selector":               {task.AlertSilence{Selector: "team = data", Until: in(30 * 24 * time.Hour), Reason: "a move"}, "", ""},
		"nothing":                  {task.AlertSilence{Until: in(time.Hour), Reason: "a move"}, "glob", "is required"},
		"an empty selector":        {task.AlertSilence{Selector: " ", Until: in(time.Hour), Reason: "a move"}, "glob", "is required"},
		"both":                     {task.AlertSilence{Glob: "a", Selector: "a=b", Until: in(time.Hour), Reason: "a move"}, "glob", "cannot be combined"},
		"no pattern":               {task.AlertSilence{Glob: "[a", Until: in(time.Hour), Reason: "a move"}, "glob", "is not a pattern"},
		"another namespace":        {task.AlertSilence{Glob: "shop/a", Until: in(time.Hour), Reason: "a move"}, "glob", "contains a slash"},
		"a long glob":              {task.AlertSilence{Glob: strings.Repeat("a", 129), Until: in(time.Hour), Reason: "a move"}, "glob", "129 bytes"},
		"no selector":              {task.AlertSilence{Selector: "a ~ b", Until: in(time.Hour), Reason: "a move"}, "selector", "is not a term"},
		"without an end":           {task.AlertSilence{Glob: "*", Reason: "a move"}, "until", "must end"},
		"ended":                    {task.AlertSilence{Glob: "*", Until: in(0), Reason: "a move"}, "until", "has passed"},
		"for more than 30 d":       {task.AlertSilence{Glob: "*", Until: in(30*24*time.Hour + time.Second), Reason: "a move"}, "until", "at most 720h"},
		"without a reason":         {task.AlertSilence{Glob: "*", Until: in(time.Hour), Reason: " "}, "reason", "is required"},
		"with a long reason":       {task.AlertSilence{Glob: "*", Until: in(time.Hour), Reason: strings.Repeat("a", 257)}, "reason", "256"},
		"with a control character": {task.AlertSilence{Glob: "*", Until: in(time.Hour), Reason: "a\x00b"}, "reason", "control characters"},
	} {
		err := c.silence.Validate(now)

		var field *task.Error
		if c.field == "" && err != nil || c.field != "" && (!errors.As(err, &field) || field.Field != c.field || !strings.Contains(field.Message, c.why)) {
			t.Errorf("%s: %v, want an error of %q with %q", name, err, c.field, c.why)
		}
	}
}

func TestSelector_Equalities(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]map[string]string{
		"":                                     {},
		"a = b, c in (d), e":                   {"a": "b", "c": "d"},
		"a != b, c notin (d), !e, f in (g, h)": {},
		"cpus > 4, team = data":                {"team": "data"},
	} {
		s, err := task.ParseSelector(text)
		if err != nil {
			t.Fatal(err)
		}

		got := s.Equalities()
		if len(got) != len(want) {
			t.Errorf("%q: %v", text, got)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%q: %v", text, got)
			}
		}
	}
}
