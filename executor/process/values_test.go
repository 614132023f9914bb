package process

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// asStep makes an attempt one of an item of the step load.
func asStep(env map[string]string, values map[string]string) func(*task.Assigned) {
	return func(a *task.Assigned) {
		item := 3
		a.ID = task.PartID(a.ID, 12)
		a.Step, a.Item, a.Values, a.PartCount = "load", &item, values, 20
		a.Trigger, a.ScheduledTime, a.Attempt = task.TriggerPart, task.At(time.Date(2026, 11, 26, 7, 0, 0, 0, time.UTC)), 2
		a.Action.Process.Env = env
	}
}

func TestStepValues_AreInTheEnvironmentAndTheInput(t *testing.T) {
	t.Parallel()
	ru := newLauncher(t, spool.Config{})
	values := map[string]string{"item": "a file\n", "item.index": "3", "step.name": "load", "steps.extract.results.batch": "b 7"}
	env := map[string]string{
		"FILE": "/srv/${item}", "INDEX": "${item.index}", "BATCH": "${steps.extract.results.batch}", "STEP": "${step.name}", "LITERAL": "$${item} $$ $x", "PLAIN": "x",
		"WHEN": "${run.scheduled_time} ${run.attempt} ${task.namespace}/${task.name} ${node.name}",
	}

	for name, c := range map[string]struct{ line, want string }{
		"item":           {`printf %s "$FILE"`, "/srv/a file\n"},
		"others":         {`echo "$INDEX $BATCH $STEP $PLAIN"`, "3 b 7 load x\n"},
		"a literal":      {`echo "$LITERAL"`, "${item} $$ $x\n"},
		"of the run":     {`echo "$WHEN"`, "2026-11-26T07:00:00.000Z 2 default/job " + ru.node + "\n"},
		"own variables":  {`echo "$CARILLON_STEP $CARILLON_ITEM_INDEX $CARILLON_ITEM"`, "load 3 a file\n\n"},
		"no part":        {`echo "$CARILLON_PART_INDEX$CARILLON_PART_COUNT"`, "\n"},
		"of the attempt": {`echo "$CARILLON_ATTEMPT"`, "2\n"},
	} {
		r := ru.runWhole(t, both(shell(c.line), asStep(env, values)))
		if r.State != task.Succeeded || string(r.Tail) != c.want {
			t.Errorf("%s: %s (%s), %q; want %q", name, r.State, r.Message, r.Tail, c.want)
		}
	}

	r := ru.runWhole(t, both(both(shell("cat"), asStep(nil, values)), input(task.Stdin{Text: "${item}|$${item}|${steps.extract.results.batch}"})))
	if want := "a file\n|${item}|b 7"; r.State != task.Succeeded || string(r.Tail) != want {
		t.Errorf("input: %s (%s), %q; want %q", r.State, r.Message, r.Tail, want)
	}

	// A step without map has no item.
	r = ru.runWhole(t, both(both(shell(`echo "$CARILLON_STEP ${CARILLON_ITEM-none} ${CARILLON_ITEM_INDEX-none}"`), asStep(nil, nil)), func(a *task.Assigned) { a.Item = nil }))
	if string(r.Tail) != "load none none\n" {
		t.Errorf("without map: %s (%s), %q", r.State, r.Message, r.Tail)
	}
}

// The texts of a process that is no step are no templates.
func TestStepValues_OnlyOfSteps(t *testing.T) {
	t.Parallel()
	ru := newLauncher(t, spool.Config{})

	r := ru.runWhole(t, both(both(shell(`echo "$A"; cat`), input(task.Stdin{Text: "${run.id} ${x"})), func(a *task.Assigned) {
		a.Action.Process.Env = map[string]string{"A": "$${item} ${run.id}"}
	}))
	if want := "$${item} ${run.id}\n${run.id} ${x"; r.State != task.Succeeded || string(r.Tail) != want {
		t.Errorf("%s (%s), %q; want %q", r.State, r.Message, r.Tail, want)
	}
}

func TestStepValues_ThatCannotBeGivenFailTheAttempt(t *testing.T) {
	t.Parallel()
	ru := newLauncher(t, spool.Config{})
	values := map[string]string{"item": strings.Repeat("x", 4000), "steps.a.results.nul": "a\x00b"}

	for name, c := range map[string]struct {
		env    map[string]string
		stdin  string
		says   string
		reason string
	}{
		"no result":          {env: map[string]string{"K": "${steps.a.results.k}"}, says: `env.K: the step has no value for "${steps.a.results.k}"`, reason: task.ReasonValues},
		"no cause":           {env: map[string]string{"K": "${cause.task}"}, says: `env.K: the step has no value for "${cause.task}"`, reason: task.ReasonValues},
		"unknown":            {env: map[string]string{"K": "${x}"}, says: `env.K: "${x}" is not a known value`, reason: task.ReasonValues},
		"a NUL byte":         {env: map[string]string{"K": "${steps.a.results.nul}"}, says: "env.K: contains a NUL byte", reason: task.ReasonValues},
		"a long variable":    {env: map[string]string{"K": strings.Repeat("${item}", 17)}, says: "env.K: is longer than 65536 bytes with its values", reason: task.ReasonValues},
		"a long text":        {env: map[string]string{"K": strings.Repeat("y", 62000) + "${item}"}, says: "env.K: is longer than 65536 bytes with its values", reason: task.ReasonValues},
		"a long input":       {stdin: strings.Repeat("${item}", 5), says: "stdin.text: is longer than 16384 bytes with its values", reason: task.ReasonValues},
		"no result in input": {stdin: "${steps.a.results.k}", says: "stdin.text: the step has no value", reason: task.ReasonValues},
	} {
		change := both(shell("true"), asStep(c.env, values))
		if c.stdin != "" {
			change = both(change, input(task.Stdin{Text: c.stdin}))
		}

		r := ru.runWhole(t, change)
		if r.State != task.Failed || r.Reason != c.reason || !strings.Contains(r.Message, c.says) || r.HandBack {
			t.Errorf("%s: %s %s %q; want %s, %q", name, r.State, r.Reason, r.Message, c.reason, c.says)
		}
	}

	// The item is a variable by itself.
	r := ru.runWhole(t, both(shell("true"), asStep(nil, map[string]string{"item": "a\x00b"})))
	if r.State != task.Failed || r.Reason != task.ReasonValues || !strings.Contains(r.Message, `"${item}" contains a NUL byte`) {
		t.Errorf("an item with a NUL byte: %s %s %q", r.State, r.Reason, r.Message)
	}

	// The kernel limits all variables together.
	env := map[string]string{}
	for i := range 60 {
		env["K"+string(rune('A'+i))] = strings.Repeat("${item}", 16)
	}
	r = ru.runWhole(t, both(shell("true"), asStep(env, values)))
	if r.State != task.Failed || r.Reason != task.ReasonStart || !strings.Contains(r.Message, "arguments and environment together are longer than the kernel allows") {
		t.Errorf("a large environment: %s %s %q", r.State, r.Reason, r.Message)
	}
}

// The record of the executor keeps the texts of the task.
func TestStepValues_LeaveTheRecord(t *testing.T) {
	a := &Attempt{}
	a.Step, a.Values = "load", map[string]string{"item": "x"}
	a.Action.Process = &task.Process{Env: map[string]string{"A": "${item}"}, Stdin: &task.Stdin{Text: "${item}"}}

	bound, err := withStepValues(a, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if p := bound.Action.Process; p.Env["A"] != "x" || p.Stdin.Text != "x" {
		t.Errorf("%+v", p)
	}
	if p := a.Action.Process; p.Env["A"] != "${item}" || p.Stdin.Text != "${item}" {
		t.Errorf("the record has %+v", p)
	}
}
