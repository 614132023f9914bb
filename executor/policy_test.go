package executor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

// underPolicy returns a node with a policy that the test can replace.
func underPolicy(t *testing.T, p *policy.Policy) (*node, *atomic.Pointer[policy.Policy]) {
	var now atomic.Pointer[policy.Policy]
	now.Store(p)
	n := newNode(t, newEtcd(t), withSecrets(map[string]string{"A": canary}, nil), func(c *Config) {
		c.Policy = func() (*policy.Policy, error) {
			if p := now.Load(); p != nil {
				return p, nil
			}
			return nil, errors.New("broken")
		}
	})

	n.join()

	return n, &now
}

func TestPolicy_WhatItRefusesDoesNotRun(t *testing.T) {
	t.Parallel()
	no := false
	n, now := underPolicy(t, nil)
	script := func(body string) string {
		path := filepath.Join(n.dir, "job")
		executortest.WriteProgram(t, path, "#!/bin/sh\n"+body)
		return path
	}

	job := script("touch " + n.file("ran"))
	command := func(words ...string) func(*task.Assigned) {
		return func(a *task.Assigned) { a.Action.Process.Shell, a.Action.Process.Command = "", words }
	}

	env := func(name string) func(*task.Assigned) {
		return func(a *task.Assigned) { a.Env = map[string]string{name: canary} }
	}

	from := func(f task.EnvFrom) func(*task.Assigned) {
		return func(a *task.Assigned) { a.Action.Process.EnvFrom = []task.EnvFrom{f} }
	}

	for i, c := range []struct {
		p      *policy.Policy
		change func(*task.Assigned)
		want   string
	}{
		{&policy.Policy{Users: []string{"somebody"}}, command(job), "users: user \"root\" is not allowed"},
		{&policy.Policy{Shell: &no}, func(*task.Assigned) {}, "shell: action.process.shell is not allowed"},
		{&policy.Policy{Executables: []string{"/opt/"}}, command(job), "executables: "},
		{&policy.Policy{Executables: []string{job}}, func(*task.Assigned) {}, "executables: "},
		{&policy.Policy{Executables: []string{job}}, command("/bin/sh", "-c", job), "executables: "},
		{&policy.Policy{}, env("LD_PRELOAD"), `env_denied: the variable "LD_PRELOAD"`},
		{&policy.Policy{EnvDenied: []string{"A"}}, from(task.EnvFrom{Secret: "db"}), `env_denied: the variable "A"`},
		{&policy.Policy{Secrets: &no}, from(task.EnvFrom{Secret: "db"}), "secrets: env_from[0]"},
		{&policy.Policy{Limits: policy.Limits{Timeout: 1e9}}, func(a *task.Assigned) { a.Timeout = 2e9 }, "limits.timeout: 2s is more than 1s"},
	} {
		now.Store(c.p)
		id := fmt.Sprint("r", i)
		n.assign(id, "touch @ran", c.change)

		r := n.endedAs(id, task.Failed)
		if r.Reason != task.ReasonPolicy || !strings.Contains(r.Message, c.want) || strings.Contains(r.Message, canary) {
			t.Errorf("%d: %s, %s; want %s", i, r.Reason, r.Message, c.want)
		}

		if n.exists("ran") {
			t.Fatalf("%d: it ran", i)
		}
	}

	now.Store(&policy.Policy{Executables: []string{n.dir + "/"}})
	n.assign("good", "", command(job))
	n.endedAs("good", task.Succeeded)

	if !n.exists("ran") {
		t.Error("what is allowed did not run")
	}

	now.Store(&policy.Policy{Limits: policy.Limits{Timeout: 1e9}})
	n.assign("bound", "sleep 60")

	if r := n.endedAs("bound", task.TimedOut); r.Reason != task.ReasonTimeout {
		t.Errorf("the policy's timeout does not hold: %+v", r)
	}
}

// While the policy cannot be read, attempts in the inbox return to the queue with the same attempt number, because
// the node has not tried to start them.
func TestPolicy_ThatCannotBeReadFailsNothing(t *testing.T) {
	t.Parallel()
	n, now := underPolicy(t, nil)
	n.assign("early", "echo >@ran")
	var w *task.Waiting
	executortest.Eventually(t, "it is handed back", func() bool { w = n.waits("early"); return w != nil })

	if w.Reason != task.ReasonHandBack || w.Attempt != 1 || len(w.Attempts) != 0 {
		t.Errorf("got %+v", w)
	}

	now.Store(&policy.Policy{})
	n.assign("later", "exit 0")

	if r := n.ended("later"); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}

	if _, err := os.Stat(filepath.Join(n.dir, "ran")); err == nil {
		t.Error("it ran")
	}
}
