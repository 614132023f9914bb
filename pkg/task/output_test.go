package task_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestCheckMailAddress(t *testing.T) {
	for _, ok := range []string{"ann@example.com", "ops+cron@mail.example.com", "root", "_svc", "o'brien@example.com", "a@[192.0.2.1]", strings.Repeat("a", 64) + "@example.com"} {
		err := task.CheckMailAddress("to", ok)
		if strings.Contains(ok, "[") == (err == nil) { // no literal addresses
			t.Errorf("%s: %v", ok, err)
		}
	}

	for _, bad := range []string{
		"", "-X/tmp/x", "-oQ/tmp@example.com", "|/bin/sh", "/etc/passwd", "ann@example.com\nBcc: b@example.com", "ann@example.com\r", "a b@example.com",
		"Ann <ann@example.com>", "<ann@example.com>", "a@b,c@d", "a@b;c@d", `"a b"@example.com`, "ann@", "@example.com", "a@b@c", "a@b..c", ".a@b", "ärger@example.com", "a\x00@b", "a@b\u202e",
		strings.Repeat("a", 300) + "@example.com",
	} {
		var e *task.Error
		if err := task.CheckMailAddress("to", bad); !errors.As(err, &e) || e.Field != "to" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestValidate_OutputMail(t *testing.T) {
	spec := func(change func(*task.Spec)) task.Spec {
		s := task.Defaults()
		s.Name, s.Namespace, s.Schedule = "job", "default", task.Schedules{"@daily"}
		s.Action.Process = &task.Process{Command: []string{"true"}}
		s.Output.Mail = []string{"ann@example.com"}
		change(&s)
		return s
	}

	for _, tt := range []struct {
		change func(*task.Spec)
		want   string // the field and a part of the text; "": accepted
	}{
		{func(s *task.Spec) {}, ""},
		{func(s *task.Spec) { s.Output.MailWhen, s.Output.MailFrom = task.MailWhenFailure, "cron@example.com" }, ""},
		{func(s *task.Spec) { s.Output.Mail = nil; s.Output.MailWhen = task.MailWhenFailure }, `output.mail_when: "failure" requires output.mail`},
		{func(s *task.Spec) { s.Output.Mail = nil; s.Output.MailFrom = "a@b" }, `output.mail_from: "a@b" requires output.mail`},
		{func(s *task.Spec) { s.Output.MailWhen = "always" }, "output.mail_when: "},
		{func(s *task.Spec) { s.Output.MailFrom = "-X/tmp/x" }, "output.mail_from: "},
		{func(s *task.Spec) { s.Output.Mail = []string{"ann@example.com", "-X/tmp/x"} }, `output.mail[1]: "-X/tmp/x" is not the address of a mail: it begins with '-'`},
		{func(s *task.Spec) { s.Output.Mail = strings.Split(strings.Repeat("a@b.c ", 11), " ")[:11] }, "output.mail: "},
		{func(s *task.Spec) { s.Output.Mail = []string{"a@b", "a@b"} }, "output.mail"},
		{func(s *task.Spec) { s.Action.Process.NoNewPrivs = true }, "output.mail: is not possible with action.process.no_new_privs"},
		{func(s *task.Spec) { s.Action = task.Action{Noop: &task.Noop{}} }, "output.mail: applies only to processes, but the action is noop"},
		{func(s *task.Spec) { s.Action = task.Action{HTTP: &task.HTTP{URL: "https://example.com"}} }, "output.mail: applies only to processes, but the action is http"},
	} {
		s := spec(tt.change)
		err := s.Validate()
		switch {
		case tt.want == "" && err != nil, tt.want != "" && err == nil:
			t.Errorf("%+v: %v, want %q", s.Output, err, tt.want)
		case err != nil && !strings.HasPrefix(err.Error(), tt.want):
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
}

func TestOutput_WantsMail(t *testing.T) {
	to := []string{"a@b"}
	for _, tt := range []struct {
		o    task.Output
		r    task.Run
		want bool
	}{
		{task.Output{}, task.Run{State: task.Failed, OutputSummary: task.OutputSummary{OutputBytes: 1}}, false},
		{task.Output{Mail: to}, task.Run{State: task.Succeeded, OutputSummary: task.OutputSummary{OutputBytes: 1}}, true},
		{task.Output{Mail: to}, task.Run{State: task.Failed}, false},
		{task.Output{Mail: to, MailWhen: task.MailWhenFailure}, task.Run{State: task.Failed}, true},
		{task.Output{Mail: to, MailWhen: task.MailWhenFailure}, task.Run{State: task.TimedOut}, true},
		{task.Output{Mail: to, MailWhen: task.MailWhenFailure}, task.Run{State: task.Succeeded, OutputSummary: task.OutputSummary{OutputBytes: 1}}, false},
		{task.Output{Mail: to, MailWhen: task.MailWhenFailure}, task.Run{State: task.Cancelled, OutputSummary: task.OutputSummary{OutputBytes: 1}}, false},
	} {
		if got := tt.o.WantsMail(&tt.r); got != tt.want {
			t.Errorf("%+v, %s: %t", tt.o, tt.r.State, got)
		}
	}
}
