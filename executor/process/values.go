package process

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// ValueOf returns the value of a reference in a template of an attempt. It knows all references, except those to secrets and to
// variables of manual runs. It returns false if the attempt has no such value.
func ValueOf(a *Attempt, node, ref string) (value string, ok bool) {
	switch ref {
	case "run.id":
		return a.ID, true
	case "run.scheduled_time":
		b, err := a.ScheduledTime.MarshalText()
		return string(b), err == nil
	case "run.attempt":
		return strconv.Itoa(max(a.Attempt, 1)), true
	case "run.token":
		return strconv.FormatInt(a.Token, 10), true
	case "task.name":
		return a.Task, true
	case "task.namespace":
		return a.Namespace, true
	case "node.name":
		return node, true
	case "part.index", "part.count":
		_, index, isPart := task.ParentOf(a.ID)
		if ref == "part.count" {
			index = a.PartCount
		}
		return strconv.Itoa(index), isPart
	}

	if task.IsStepRef(ref) {
		value, ok = a.Values[ref]
		return value, ok
	}

	return a.CausationValue(ref)
}

// withStepValues returns the attempt of a step of a workflow with the templates in its env and stdin.text expanded. In other
// attempts, these texts are no templates.
func withStepValues(a *Attempt, node string) (task.Assigned, error) {
	given := a.Action.Process
	if a.Step == "" || given == nil {
		return a.Assigned, nil
	}

	// The item is a variable of its own, whether the texts refer to it or not.
	if err := checkVariable(a.Values[task.ItemRef]); err != nil {
		return a.Assigned, asRefusal(task.ReasonValues, fmt.Errorf("%s %w", task.Quote("${"+task.ItemRef+"}"), err))
	}

	// Copy the process: the executor's record must stay as it is.
	p := *given
	p.Env = maps.Clone(given.Env)

	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		value, err := expandText(a, node, p.Env[name], task.MaxArg)
		if err == nil {
			err = checkVariable(value)
		}
		if err != nil {
			return a.Assigned, asRefusal(task.ReasonValues, fmt.Errorf("env.%s: %w", name, err))
		}
		p.Env[name] = value
	}

	if in := given.Stdin; in != nil && in.Text != "" {
		text, err := expandText(a, node, in.Text, task.MaxStdinText)
		if err != nil {
			return a.Assigned, asRefusal(task.ReasonValues, fmt.Errorf("stdin.text: %w", err))
		}

		input := *in
		input.Text = text
		p.Stdin = &input
	}

	bound := a.Assigned
	bound.Action.Process = &p

	return bound, nil
}

// expandText returns a template with its values. It stops when the text is longer than most bytes: a template that contains the same
// value many times would need much memory.
func expandText(a *Attempt, node, text string, most int) (string, error) {
	if !strings.Contains(text, "${") {
		return text, nil
	}

	t, err := task.ParseTemplate(text)
	if err != nil {
		return "", err
	}

	tooLong := fmt.Errorf("is longer than %d bytes with its values", most)
	size := 0
	text, err = t.Expand(func(ref string) (string, error) {
		value, ok := ValueOf(a, node, ref)
		if !ok {
			return "", fmt.Errorf("the step has no value for %s", task.Quote("${"+ref+"}"))
		}
		if size += len(value); size > most {
			return "", tooLong
		}
		return value, nil
	})
	if err == nil && len(text) > most {
		err = tooLong
	}

	return text, err
}

// checkVariable returns an error if the kernel does not accept the value of a variable.
func checkVariable(value string) error {
	if strings.ContainsRune(value, 0) {
		return fmt.Errorf("contains a NUL byte, which a variable cannot")
	}
	return nil
}

// appendStep appends the variables that describe a step of a workflow.
func appendStep(env []string, a *task.Assigned) []string {
	env = append(env, "CARILLON_STEP="+a.Step)
	if a.Item != nil {
		env = append(env, "CARILLON_ITEM="+a.Values[task.ItemRef], "CARILLON_ITEM_INDEX="+strconv.Itoa(*a.Item))
	}
	return env
}
