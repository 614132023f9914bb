package access_test

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// Each step of a workflow is checked like an action of its own.
func TestCheckTask_ChecksEachStep(t *testing.T) {
	n := &task.Namespace{Name: "data", RunAs: []string{"etl"}, EnvFiles: []string{"/etc/etl/"}}
	allowed := task.Step{Process: &task.Process{Command: []string{"x"}, User: "etl", EnvFrom: []task.EnvFrom{{File: "/etc/etl/env"}}}}
	request := task.Step{HTTP: &task.HTTP{URL: "https://a.example"}}

	for name, c := range map[string]struct {
		step        task.Step
		field, what string
		hint        string
	}{
		"allowed":        {step: task.Step{Process: &task.Process{Command: []string{"y"}}}},
		"another user":   {task.Step{Process: &task.Process{Command: []string{"y"}, User: "root"}}, "action.workflow.steps.b.process.user", "the user root in step b", "--run-as etl,root"},
		"a group":        {task.Step{Process: &task.Process{Command: []string{"y"}, Groups: []string{"disk"}}}, "action.workflow.steps.b.process.groups", "the group disk in step b", "--groups disk"},
		"a shell":        {task.Step{Process: &task.Process{Shell: "y"}}, "action.workflow.steps.b.process.shell", "shell actions in step b", "--shell"},
		"another file":   {task.Step{Process: &task.Process{Command: []string{"y"}, EnvFrom: []task.EnvFrom{{File: "/etc/shadow"}}}}, "action.workflow.steps.b.process.env_from[0].file", "the file /etc/shadow in step b", "--env-files"},
		"an input":       {task.Step{Process: &task.Process{Command: []string{"y"}, Stdin: &task.Stdin{File: "/etc/shadow"}}}, "action.workflow.steps.b.process.stdin.file", "the file /etc/shadow in step b", "--env-files"},
		"HTTP and noops": {step: task.Step{Noop: &task.Noop{}}},
	} {
		s := task.Spec{Action: task.Action{Workflow: &task.Workflow{Steps: map[string]task.Step{"a": allowed, "b": c.step, "c": request}}}}

		err := access.CheckTask(n, &s)
		what := access.Forbidden(n, &s.Action)
		if c.field == "" {
			if err != nil || what != "" {
				t.Errorf("%s: %v, %s", name, err, what)
			}
			continue
		}

		problems := task.Problems(err)
		if len(problems) != 1 || problems[0].Code != task.CodeNotAllowed || problems[0].Field != c.field || what != c.what || !strings.Contains(problems[0].Hint, c.hint) {
			t.Errorf("%s: %v, %q, %+v", name, err, what, problems)
		}
	}
}

// A secret of a step needs the right to use secrets: when it is new, and whenever what the steps do changes.
func TestNeedsOfChange_SecretsOfSteps(t *testing.T) {
	workflow := func(command, secret string) *task.Spec {
		s := task.Defaults()
		s.Name, s.Namespace = "a", "data"
		s.Action.Workflow = &task.Workflow{Steps: map[string]task.Step{
			"a": {Process: &task.Process{Command: []string{command}}},
			"b": {HTTP: &task.HTTP{URL: "https://a.example", Auth: &task.HTTPAuth{Bearer: secret}}},
		}}
		return &s
	}
	uses := func(before, after *task.Spec) bool {
		for _, n := range access.NeedsOfChange(before, after) {
			if n.Verb == access.Use && n.Kind == access.Secrets && n.Namespace == "data" {
				return true
			}
		}
		return false
	}

	described := workflow("x", "api/key")
	described.Description = "changed"
	for name, c := range map[string]struct {
		before, after *task.Spec
		want          bool
	}{
		"created":                {nil, workflow("x", "api/key"), true},
		"the same":               {workflow("x", "api/key"), workflow("x", "api/key"), false},
		"another description":    {workflow("x", "api/key"), described, false},
		"another secret":         {workflow("x", "api/key"), workflow("x", "other/key"), true},
		"another command beside": {workflow("x", "api/key"), workflow("y", "api/key"), true},
	} {
		if got := uses(c.before, c.after); got != c.want {
			t.Errorf("%s: needs use of secrets: %t", name, got)
		}
	}
}
