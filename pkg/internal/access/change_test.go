package access_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

func errorAs(err error, e **task.Error) bool { return errors.As(err, e) }

func spec(change func(*task.Spec)) *task.Spec {
	s := &task.Spec{Name: "t", Namespace: "team-a", Labels: map[string]string{"env": "dev"}, Action: task.Action{Process: &task.Process{Command: []string{"/bin/true"}}}}
	if change != nil {
		change(s)
	}

	return s
}

// Verifies: G32
func TestNeedsOfChange(t *testing.T) {
	secret := func(s *task.Spec) { s.Action.Process.EnvFrom = []task.EnvFrom{{Secret: "db"}} }
	request := func(url string) func(*task.Spec) {
		return func(s *task.Spec) {
			s.Action = task.Action{HTTP: &task.HTTP{URL: url, Headers: map[string]string{"X": "${secret:db/password}"}}}
		}
	}

	source := func(name string, when task.When) func(*task.Spec) {
		return func(s *task.Spec) { s.After = task.Sources{{Task: name, When: when}} }
	}

	for _, c := range []struct {
		what          string
		before, after *task.Spec
		want          string
	}{
		{"nothing", spec(nil), spec(nil), ""},
		{"create", nil, spec(nil), "create env=dev"},
		{"delete", spec(nil), nil, "delete env=dev"},
		{"pause", spec(nil), spec(func(s *task.Spec) { s.Paused, s.PauseReason = true, "x" }), "pause env=dev"},
		{"resume", spec(func(s *task.Spec) { s.Paused = true }), spec(nil), "pause env=dev"},
		{"pause and action", spec(nil), spec(func(s *task.Spec) { s.Paused, s.Action.Process.Shell = true, "id" }), "pause env=dev; update env=dev"},
		{"relabel", spec(nil), spec(func(s *task.Spec) { s.Labels = map[string]string{"env": "prod"} }), "update env=dev; update env=prod"},
		{"pause and relabel", spec(nil), spec(func(s *task.Spec) { s.Paused, s.Labels = true, nil }), "pause env=dev; pause env=; update env=dev; update env="},
		{"create with a secret", nil, spec(secret), "create env=dev; use env="},
		{"add a secret", spec(nil), spec(secret), "update env=dev; use env="},
		{"schedule beside a secret", spec(secret), spec(func(s *task.Spec) { secret(s); s.Schedule = task.Schedules{"@daily"} }), "update env=dev"},
		{"command beside a secret", spec(secret), spec(func(s *task.Spec) { secret(s); s.Action.Process.Command = []string{"/bin/env"} }), "update env=dev; use env="},
		{"user beside a secret", spec(secret), spec(func(s *task.Spec) { secret(s); s.Action.Process.User = "app" }), "update env=dev; use env="},
		{"target beside a secret", spec(secret), spec(func(s *task.Spec) { secret(s); s.Target.Selector = "mine" }), "update env=dev; use env="},
		{"accept beside a secret", spec(secret), spec(func(s *task.Spec) { secret(s); s.Accept.Args = 1 }), "update env=dev; use env="},
		{"accept, no secret", spec(nil), spec(func(s *task.Spec) { s.Accept.Env = []string{"PATH"} }), "update env=dev"},
		{"unmasked output beside a secret", spec(secret), spec(func(s *task.Spec) { secret(s); s.Output.Mask = new(bool) }), "update env=dev; use env="},
		{"unmasked output without a secret", spec(nil), spec(func(s *task.Spec) { s.Output.Mask = new(bool) }), "update env=dev"},
		{"a secret as input", spec(nil), spec(func(s *task.Spec) { s.Action.Process.Stdin = &task.Stdin{Secret: "db/password"} }), "update env=dev; use env="},
		{"create with a source", nil, spec(source("a", "")), "create env=dev; read env=; read env="},
		{"add a source", spec(nil), spec(source("a", "")), "update env=dev; read env=; read env="},
		{"another end of a source", spec(source("a", "")), spec(source("a", task.WhenEnded)), "update env=dev; read env=; read env="},
		{"an action beside a source", spec(source("a", "")), spec(func(s *task.Spec) { source("a", "")(s); s.Action.Process.Shell = "id" }), "update env=dev"},
		{"remove a source", spec(source("a", "")), spec(nil), "update env=dev"},
		{"remove a secret", spec(secret), spec(nil), "update env=dev"},
		{"a request with a secret", nil, spec(request("https://a")), "create env=dev; use env="},
		{"another URL for a secret", spec(request("https://a")), spec(request("https://b")), "update env=dev; use env="},
		{"schedule beside a request", spec(request("https://a")), spec(func(s *task.Spec) { request("https://a")(s); s.Schedule = task.Schedules{"@daily"} }), "update env=dev"},
	} {
		got := ""
		for i, n := range access.NeedsOfChange(c.before, c.after) {
			if i > 0 {
				got += "; "
			}
			got += fmt.Sprintf("%v env=%s", n.Verb, n.Labels["env"])
			if n.Namespace != "team-a" {
				t.Errorf("%s: namespace %q", c.what, n.Namespace)
			}
		}
		if got != c.want {
			t.Errorf("%s: needs %q, want %q", c.what, got, c.want)
		}
	}
}

// * does not stand for the groups of root, but they can be listed beside it.
func TestCheckTask_NamesTheGroupsOfRoot(t *testing.T) {
	n := &task.Namespace{Name: "team-a", Groups: []string{"*", "docker", "990"}}
	for group, want := range map[string]bool{"docker": true, "990": true, "adm": true, "sudo": false, "991": false} {
		err := access.CheckTask(n, spec(func(s *task.Spec) { s.Action.Process.Group = group }))
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "must name this group") {
			t.Errorf("group %s: %v, want allowed: %v", group, err, want)
		}
	}
}

// Verifies: G29, G32
func TestCheckTask_AllowsOnlyWhatTheNamespaceLists(t *testing.T) {
	strict := &task.Namespace{Name: "team-a"}
	some := &task.Namespace{Name: "team-a", RunAs: []string{"app"}, Groups: []string{"docker"}, Shell: true, EnvFiles: []string{"/etc/app/", "/etc/one"}}
	open := &task.Namespace{Name: "dev", RunAs: []string{"*"}, Groups: []string{"*"}, Shell: true, EnvFiles: []string{"*"}}

	for _, c := range []struct {
		what               string
		change             func(*task.Process)
		strict, some, open bool
	}{
		{"no user", func(*task.Process) {}, true, true, true},
		{"a listed user", func(p *task.Process) { p.User = "app" }, false, true, true},
		{"root", func(p *task.Process) { p.User = "root" }, false, false, true},
		{"root by number", func(p *task.Process) { p.User = "0" }, false, false, true},
		{"a listed group", func(p *task.Process) { p.Group = "docker" }, false, true, false},
		{"groups", func(p *task.Process) { p.Groups = []string{"video", "adm"} }, false, false, true},
		{"groups, one of them of root", func(p *task.Process) { p.Groups = []string{"video", "shadow"} }, false, false, false},
		{"the group of administrators", func(p *task.Process) { p.Groups = []string{"carillon"} }, false, false, false},
		{"the group root", func(p *task.Process) { p.Group = "root" }, false, false, false},
		{"a group of root in capitals", func(p *task.Process) { p.Group = "Docker" }, false, false, false},
		{"a group by number", func(p *task.Process) { p.Groups = []string{"0"} }, false, false, false},
		{"a group by number with a sign", func(p *task.Process) { p.Groups = []string{"+0"} }, false, false, false},
		{"shell", func(p *task.Process) { p.Command, p.Shell = nil, "id" }, false, true, true},
		{"a file", func(p *task.Process) { p.EnvFrom = []task.EnvFrom{{File: "/etc/one"}} }, false, true, true},
		{"below a directory", func(p *task.Process) { p.EnvFrom = []task.EnvFrom{{File: "/etc/app/db.env"}} }, false, true, true},
		{"beside a directory", func(p *task.Process) { p.EnvFrom = []task.EnvFrom{{File: "/etc/apple"}} }, false, false, true},
		{"out of a directory", func(p *task.Process) { p.EnvFrom = []task.EnvFrom{{File: "/etc/app/../shadow"}} }, false, false, true},
		{"a file as input", func(p *task.Process) { p.Stdin = &task.Stdin{File: "/etc/app/x.sql"} }, false, true, true},
		{"another file as input", func(p *task.Process) { p.Stdin = &task.Stdin{File: "/etc/shadow"} }, false, false, true},
		{"a text as input", func(p *task.Process) { p.Stdin = &task.Stdin{Text: "x"} }, true, true, true},
		{"a secret", func(p *task.Process) { p.EnvFrom = []task.EnvFrom{{Secret: "db"}} }, true, true, true},
	} {
		s := spec(func(s *task.Spec) { c.change(s.Action.Process) })
		for _, x := range []struct {
			n    *task.Namespace
			want bool
		}{{strict, c.strict}, {some, c.some}, {open, c.open}} {
			if err := access.CheckTask(x.n, s); (err == nil) != x.want {
				t.Errorf("%s in %+v: %v, want allowed: %v", c.what, *x.n, err, x.want)
			}
		}
	}
}

// The error says which flags allow the task. They keep what the namespace allows already.
func TestCheckTask_SaysHowToAllow(t *testing.T) {
	for _, c := range []struct {
		n      task.Namespace
		change func(*task.Process)
		want   string
	}{
		{task.Namespace{}, func(p *task.Process) { p.Command, p.Shell = nil, "id" }, ": carillon namespace update default --shell"},
		{task.Namespace{RunAs: []string{"web"}}, func(p *task.Process) { p.Command, p.Shell, p.User = nil, "id", "backup" }, ": carillon namespace update default --run-as web,backup --shell"},
		{task.Namespace{Groups: []string{"*"}}, func(p *task.Process) { p.Groups = []string{"video", "docker"} }, ": carillon namespace update default --groups '*,docker'"},
		{task.Namespace{}, func(p *task.Process) { p.EnvFrom, p.Stdin = []task.EnvFrom{{File: "/a"}}, &task.Stdin{File: "/b"} }, ": carillon namespace update default --env-files /a,/b"},

		// An administrator may paste the command, so it contains nothing that the author of the task could use against a shell.
		{task.Namespace{}, func(p *task.Process) { p.User = "web;reboot" }, ""},
		{task.Namespace{}, func(p *task.Process) { p.EnvFrom = []task.EnvFrom{{File: "/etc/$(reboot)"}} }, ""},
		{task.Namespace{}, func(p *task.Process) { p.Stdin = &task.Stdin{File: "/a'*'"} }, ""},
		{task.Namespace{}, func(p *task.Process) { p.Stdin = &task.Stdin{File: "/a,/etc/shadow"} }, ""},
	} {
		c.n.Name = "default"

		var e *task.Error
		err := access.CheckTask(&c.n, spec(func(s *task.Spec) { c.change(s.Action.Process) }))
		if want := "an administrator can allow it" + c.want; !errors.As(err, &e) || e.Hint != want {
			t.Errorf("%v: %+v, want %s", err, e, want)
		}
	}
}

func TestCheckTask_MailsNoOutputWhereReadsAreRecorded(t *testing.T) {
	s := &task.Spec{Action: task.Action{Process: &task.Process{Command: []string{"true"}}}, Output: task.Output{Mail: []string{"ops@example.com"}}}
	n := &task.Namespace{Name: "shop"}
	if err := access.CheckTask(n, s); err != nil {
		t.Error(err)
	}

	n.AuditReads = true
	if err := access.CheckTask(n, s); err == nil || !strings.HasPrefix(err.Error(), "output.mail: namespace shop records who reads output") {
		t.Errorf("got %v", err)
	}
	if s.Output.Mail = nil; access.CheckTask(n, s) != nil {
		t.Error("a task without mail is refused")
	}
}
