package task_test

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestAccept_ValidationNamesTheField(t *testing.T) {
	process := task.Action{Process: &task.Process{Command: []string{"true"}}}
	noop := task.Action{Noop: &task.Noop{}}
	many := make([]string, task.MaxEnv+1)
	for name, c := range map[string]struct {
		action task.Action
		accept task.Accept
		target func(*task.Target)
		want   string // the field and a part of the message; "": valid
	}{
		"nothing":            {action: noop},
		"everything":         {action: process, accept: task.Accept{Args: 64, Env: []string{"A", "day-of.week"}, Target: true}},
		"env of a no-op":     {action: noop, accept: task.Accept{Env: []string{"A"}, Target: true}},
		"too many arguments": {action: process, accept: task.Accept{Args: 65}, want: "accept.args: 65 is not between 0 and 64"},
		"negative":           {action: process, accept: task.Accept{Args: -1}, want: "accept.args: -1 is not"},
		"args of a no-op":    {action: noop, accept: task.Accept{Args: 1}, want: "accept.args: requires action.process"},
		"an empty name":      {action: process, accept: task.Accept{Env: []string{"A", ""}}, want: "accept.env[1]: "},
		"a pair":             {action: process, accept: task.Accept{Env: []string{"A=1"}}, want: `accept.env[0]: "A=1" is not a variable name`},
		"Carillon's":         {action: process, accept: task.Accept{Env: []string{"CARILLON_RUN_ID"}}, want: "accept.env[0]: "},
		"twice":              {action: process, accept: task.Accept{Env: []string{"A", "B", "A"}}, want: `accept.env[2]: "A" is given twice`},
		"too many names":     {action: process, accept: task.Accept{Env: many}, want: "accept.env: has 257 elements"},
		"target with parts":  {action: process, accept: task.Accept{Target: true}, target: func(t *task.Target) { t.Parts = 2 }, want: "accept.target: cannot be combined"},
		"target with all":    {action: process, accept: task.Accept{Target: true}, target: func(t *task.Target) { t.Count = task.All }, want: "accept.target: cannot be combined"},
		"args with parts":    {action: process, accept: task.Accept{Args: 1}, target: func(t *task.Target) { t.Parts = 2 }},
	} {
		s := task.Defaults()
		s.Name, s.Schedule, s.Action, s.Accept = "a", task.Schedules{"@manual"}, c.action, c.accept
		if c.target != nil {
			c.target(&s.Target)
		}

		checkError(t, name, s.Validate(), c.want)
	}
}

// checkError checks that err begins with want, or that there is none if want is empty.
func checkError(t *testing.T, name string, err error, want string) {
	t.Helper()

	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
		t.Errorf("%s: got %v, want %s", name, err, want)
	}
}

func TestAccept_ChecksWhatARunGives(t *testing.T) {
	accept := task.Accept{Args: 2, Env: []string{"DAY", "MODE"}, Target: true}
	env := func(names ...string) task.ManualInput {
		m := task.ManualInput{Env: map[string]string{}}
		for _, n := range names {
			m.Env[n] = "x"
		}
		return m
	}

	for name, c := range map[string]struct {
		accept task.Accept
		input  task.ManualInput
		want   string
	}{
		"nothing given":      {},
		"all of it":          {accept, task.ManualInput{Args: []string{"a", "b"}, Env: map[string]string{"DAY": "1"}, TargetNode: "n1"}, ""},
		"one argument more":  {accept, task.ManualInput{Args: []string{"a", "b", "c"}}, "args: has 3 arguments; the task accepts at most 2"},
		"no arguments":       {task.Accept{Env: []string{"A"}}, task.ManualInput{Args: []string{"a"}}, "args: the task accepts no arguments"},
		"another variable":   {accept, env("DAY", "PATH"), `env: the task accepts the variables DAY, MODE, but not "PATH"`},
		"no variables":       {task.Accept{Args: 1}, env("DAY"), "env: the task accepts no variables (accept.env)"},
		"a name's beginning": {task.Accept{Env: []string{"DAY"}}, env("DAY_2"), `env: `},
		"a node":             {task.Accept{Args: 1}, task.ManualInput{TargetNode: "n1"}, "target: the task does not let a manual run name its node"},
	} {
		err := c.accept.Check(c.input)
		if c.want == "" {
			checkError(t, name, err, "")
			continue
		}
		checkError(t, name, err, c.want)
	}
}

func TestManualInput_IsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		input task.ManualInput
		want  string
	}{
		"a NUL":            {task.ManualInput{Args: []string{"a", "b\x00"}}, "args[1]: contains a NUL byte"},
		"many":             {task.ManualInput{Args: make([]string, 65)}, "args: has 65 arguments"},
		"long":             {task.ManualInput{Args: []string{strings.Repeat("x", task.MaxArgBytes), "y"}}, "args: is 4097 bytes in total"},
		"as long as it is": {task.ManualInput{Args: []string{strings.Repeat("x", task.MaxArgBytes)}}, ""},
		"a node's name":    {task.ManualInput{TargetNode: "a, zone = b"}, "target: "},
		"a variable":       {task.ManualInput{Env: map[string]string{"A=": ""}}, "env: "},
	} {
		checkError(t, name, c.input.Validate(), c.want)
	}
}

func TestStdin_ValidationNamesTheField(t *testing.T) {
	for name, c := range map[string]struct {
		stdin task.Stdin
		want  string
	}{
		"text":               {task.Stdin{Text: strings.Repeat("x", task.MaxStdinText)}, ""},
		"a secret":           {task.Stdin{Secret: "db/password"}, ""},
		"a file":             {task.Stdin{File: "/etc/app.sql"}, ""},
		"nothing":            {task.Stdin{}, "action.process.stdin: requires exactly one of"},
		"two":                {task.Stdin{Text: "x", Secret: "db/password"}, "action.process.stdin: requires exactly one of"},
		"long text":          {task.Stdin{Text: strings.Repeat("x", task.MaxStdinText+1)}, "action.process.stdin.text: is 16385 bytes long"},
		"a secret, no key":   {task.Stdin{Secret: "db"}, `action.process.stdin.secret: "db" is not NAME/KEY`},
		"a secret, odd key":  {task.Stdin{Secret: "db/a b"}, "action.process.stdin.secret: "},
		"a secret, odd name": {task.Stdin{Secret: "DB!/a"}, "action.process.stdin.secret: "},
		"a relative path":    {task.Stdin{File: "app.sql"}, "action.process.stdin.file: "},
		"a NUL":              {task.Stdin{File: "/a\x00b"}, "action.process.stdin.file: "},
	} {
		s := task.Defaults()
		s.Name, s.Schedule = "a", task.Schedules{"@manual"}
		s.Action.Process = &task.Process{Command: []string{"cat"}, Stdin: &c.stdin}
		checkError(t, name, s.Validate(), c.want)
	}
}
