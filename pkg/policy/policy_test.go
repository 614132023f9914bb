package policy

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func policyOf(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := parsePolicy("policy.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}

	return p
}

// TestCheck has cases for each rule that are refused and that are allowed.
func TestCheck(t *testing.T) {
	process := func(change func(*task.Process)) Attempt {
		p := &task.Process{Command: []string{"true"}}
		change(p)
		return Attempt{Process: p, User: "backup", UID: 34}
	}

	plain := process(func(*task.Process) {})
	shell := process(func(p *task.Process) { p.Command, p.Shell = nil, "true" })
	env := func(name string) Attempt {
		return process(func(p *task.Process) { p.Env = map[string]string{name: "x"} })
	}

	of := func(f task.EnvFrom) Attempt { return process(func(p *task.Process) { p.EnvFrom = []task.EnvFrom{f} }) }
	naming := func(groups ...Group) Attempt {
		a := process(func(*task.Process) {})
		a.Groups = groups
		return a
	}

	adm, video, own := Group{Name: "adm", GID: 4}, Group{Name: "video", GID: 44}, Group{Name: "backup", GID: 34, Own: true}
	groups := naming(adm, video)
	run := plain
	run.Env = []string{"LD_PRELOAD"}
	for _, c := range []struct {
		policy string
		a      Attempt
		rule   string // "": allowed
	}{
		{"{}", plain, ""}, {"{}", shell, ""}, {"{}", groups, ""}, {"{}", env("FOO"), ""},
		{"users: [backup]", plain, ""}, {"users: ['34']", plain, ""}, {"users: [www-data]", plain, "users"}, {"users: []", plain, "users"},
		{"groups: []", plain, ""}, {"groups: [adm, video]", groups, ""}, {"groups: [adm]", groups, "groups"}, {"groups: [video]", groups, "groups"},
		{"groups: ['4', video]", groups, ""}, {"groups: []", naming(own), "groups"}, {"users: [backup]", naming(own), ""}, {"users: [backup]", naming(own, adm), "groups"}, {"{users: [backup], groups: [adm]}", naming(adm), ""},
		{"shell: false", plain, ""}, {"shell: false", shell, "shell"}, {"shell: true", shell, ""},
		{"{}", env("LD_PRELOAD"), "env_denied"}, {"{}", env("BASH_FUNC_ls%%"), "env_denied"}, {"{}", env("LD_a/b"), "env_denied"}, {"{}", env("_JAVA_OPTIONS"), "env_denied"}, {"{}", env("OPENSSL_CONF"), "env_denied"}, {"{}", run, "env_denied"},
		{"env_denied: []", env("LD_PRELOAD"), "env_denied"}, {"env_denied: [FOO, 'BAR*']", env("LD_PRELOAD"), "env_denied"}, {"env_allowed: [LD_PRELOAD]", env("LD_PRELOAD"), ""},
		{"{env_denied: ['*'], env_allowed: ['PG*']}", env("PGUSER"), ""}, {"{env_denied: ['*'], env_allowed: ['PG*']}", env("TZ"), "env_denied"},
		{"{}", env("PATH"), ""}, {"{}", env("HOME"), ""}, {"executables: [/bin/ls]", env("PATH"), "env_denied"}, {"executables: []", env("HOME"), "env_denied"},
		{"executables: [/bin/ls]", env("GIT_SSH_COMMAND"), "env_denied"}, {"executables: [/bin/ls]", env("FOO"), "env_denied"}, {"{executables: [/bin/ls], env_allowed: [PATH]}", env("PATH"), ""},
		{"executables: [/bin/ls]", env("TCL_LIBRARY"), "env_denied"}, {"executables: [/bin/ls]", env("KUBECONFIG"), "env_denied"}, {"executables: [/bin/ls]", run, "env_denied"},
		{"executables: [/bin/ls]", env("TZ"), ""}, {"executables: [/bin/ls]", env("LC_ALL"), ""}, {"{executables: [/bin/ls], env_denied: [TZ]}", env("TZ"), "env_denied"},
		{"{executables: [/bin/ls], env_allowed: ['PG*']}", env("PGUSER"), ""}, {"{executables: [/bin/ls], env_allowed: ['*']}", env("FOO"), ""},
		{"env_denied: [FOO, 'BAR*']", env("BARN"), "env_denied"}, {"env_denied: [FOO]", env("FOOD"), ""},
		{"secrets: false", plain, ""}, {"secrets: false", of(task.EnvFrom{Secret: "db"}), "secrets"}, {"secrets: false", of(task.EnvFrom{File: "/x"}), ""},
		{"env_files: [/etc/app/]", of(task.EnvFrom{Secret: "db"}), ""}, {"env_files: [/etc/app/]", of(task.EnvFrom{File: "/etc/app/db.env"}), ""},
		{"env_files: [/etc/app/]", of(task.EnvFrom{File: "/etc/app/../shadow"}), "env_files"}, {"env_files: [/etc/app/]", of(task.EnvFrom{File: "/etc/application"}), "env_files"},
		{"env_files: [/etc/app/]", of(task.EnvFrom{File: "/tmp/link/../../etc/app/db.env"}), "env_files"}, // the link may lead elsewhere, so .. would, too
		{"env_files: [/etc/app]", of(task.EnvFrom{File: "/etc/app/db.env"}), "env_files"}, {"env_files: [/etc/app]", of(task.EnvFrom{File: "/etc/app"}), ""},
	} {
		err := policyOf(t, c.policy).Check(c.a)
		var r *Refusal
		if c.rule == "" && err != nil || c.rule != "" && (!errors.As(err, &r) || r.Rule != c.rule) {
			t.Errorf("%s: %+v, %v: %v; want %q", c.policy, c.a.Process, c.a.Env, err, c.rule)
		}
	}
}

func TestBind_FillsInAndRefusesMore(t *testing.T) {
	p := policyOf(t, "limits: {timeout: 1h, memory: 1Gi, pids: 100, core: 0, cpu: 2}\nrequire: {no_new_privs: true, private_tmp: true}")
	given := &task.Process{Command: []string{"true"}, Enforce: task.EnforceReport, Limits: task.Limits{PIDs: 10}}

	got, timeout, err := p.Bind(given, 0)
	if err != nil {
		t.Fatal(err)
	}

	l := got.Limits
	if timeout.String() != "1h" || l.Memory != 1<<30 || l.PIDs != 10 || l.CPU != 2 || l.Core == nil || *l.Core != 0 || !got.NoNewPrivs || !got.PrivateTmp || got.Enforce != task.EnforceRequire {
		t.Errorf("%+v, timeout %s", got, timeout)
	}

	if given.Limits.Memory != 0 || given.NoNewPrivs || given.Enforce != task.EnforceReport {
		t.Error("it changed what it was given")
	}

	core := task.Size(1)
	for want, more := range map[string]*task.Process{
		"limits.memory": {Limits: task.Limits{Memory: 1<<30 + 1}}, "limits.pids": {Limits: task.Limits{PIDs: 101}}, "limits.core": {Limits: task.Limits{Core: &core}},
		"limits.cpu": {Limits: task.Limits{CPU: 2.1}},
	} {
		var r *Refusal
		if _, _, err := p.Bind(more, 0); !errors.As(err, &r) || r.Rule != want {
			t.Errorf("%v; want %s", err, want)
		}
	}

	if _, _, err := p.Bind(given, task.Duration(2*3600e9)); err == nil || !strings.Contains(err.Error(), "limits.timeout: 2h is more than 1h") {
		t.Error(err)
	}

	if _, _, err := p.Bind(&task.Process{Dir: "/tmp/jobs"}, 0); err == nil || !strings.Contains(err.Error(), `require.private_tmp: the directory "/tmp/jobs" does not exist`) {
		t.Error(err)
	}

	if _, _, err := p.Bind(&task.Process{Dir: "/tmp"}, 0); err != nil {
		t.Error(err)
	}

	if same, _, _ := policyOf(t, "{}").Bind(given, 0); same != given {
		t.Error("a policy without limits changes it")
	}
}

func TestProgram_GoesByWhereLinksLead(t *testing.T) {
	dir := t.TempDir()
	allowed, other := filepath.Join(dir, "jobs"), filepath.Join(dir, "other")
	for _, d := range []string{allowed, other, allowed + "x"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}

		if err := os.WriteFile(d+"/run", nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}

	for from, to := range map[string]string{allowed + "/out": other + "/run", other + "/in": allowed + "/run", dir + "/link": allowed} {
		if err := os.Symlink(to, from); err != nil {
			t.Fatal(err)
		}
	}

	for _, c := range []struct{ executables, program, want string }{
		{allowed + "/", allowed + "/run", allowed + "/run"}, {allowed + "/", other + "/in", allowed + "/run"}, {dir + "/link/", allowed + "/run", allowed + "/run"},
		{allowed + "/", dir + "/link/run", allowed + "/run"}, {allowed + "/run", allowed + "/run", allowed + "/run"}, {other + "/in", allowed + "/run", allowed + "/run"},
		{allowed + "/", allowed + "/out", ""}, {allowed + "/", allowed + "/../other/run", ""}, {allowed + "/", allowed + "x/run", ""},
		{allowed, allowed + "/run", ""}, {allowed + "/", allowed + "/none", ""}, {dir + "/none/", allowed + "/run", ""},
	} {
		got, err := policyOf(t, "executables: ["+c.executables+"]").Program(c.program)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s by %s: %q, %v; want %q", c.program, c.executables, got, err, c.want)
		}
	}

	if got, err := policyOf(t, "{}").Program(dir + "/link/run"); got != dir+"/link/run" || err != nil {
		t.Error(got, err)
	}

	if _, err := policyOf(t, "executables: []").Program("/bin/sh"); err == nil {
		t.Error("an empty list allows something")
	}
}

func TestParse_RefusesWhatWouldAllowAllByMistake(t *testing.T) {
	for text, want := range map[string]string{
		"": "is empty", "# users: [a]\n": "is empty", "users:\n": "policy.yaml:1:1: users: has no value", "userz: [a]": "userz", "users: root": "users", "users: ['']": "users[0]: is empty",
		"executables: [bin/ls]": "executables[0]", "executables: [/bin/../sbin/]": "executables[0]", "env_denied: ['[']": "env_denied[0]", "env_allowed: ['[']": "env_allowed[0]",
		"limits: {timeout: 0s}": "policy.yaml:1:10: limits.timeout: \"0s\" is not a limit", "limits: {memory: 0}": "limits.memory: 0 is not a limit", "limits: {pids: 0}": "limits.pids", "limits: {cpu: 0.0}": "limits.cpu",
		"limits: {memory:}": "limits.memory: has no value", "require: {no_new_privs:}": "require.no_new_privs: has no value", "limits: {core:}": "limits.core: has no value",
		"limits: {memory: lots}": "limits.memory", "limits: {pids: -1}": "limits.pids", "limits: {timeout: -1s}": "limits.timeout", "limits: {swap: 0}": "limits.swap",
		"http:": "http: has no value", "http: {allow:}": "http.allow: has no value", "http: {allow: [10.0.0.0/33]}": "http.allow[0]", "http: {deny: [a, 'a b']}": "http.deny[1]",
		"http: {nat64: [10.0.0.0/8]}": "http.nat64[0]", "http: {alow: [a]}": "alow",
		"users: [a]\nusers: [b]": "users", "- users": "mapping",
	} {
		if _, err := parsePolicy("policy.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
}

// TestDeniedEnv_IsInTheDocs tests that the docs list all denied variables.
func TestDeniedEnv_IsInTheDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/how-to/policy.md")
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range slices.Concat(deniedVariables, acceptedWithExecutables) {
		if !strings.Contains(string(b), "`"+name+"`") {
			t.Errorf("%s is not documented", name)
		}
	}
}
