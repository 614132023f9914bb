package task

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Accept is what a manual run of a task may bring with it. Whoever may trigger the task may give all of it, and nothing
// else. So the author of the task decides what a trigger can change.
type Accept struct {
	Args   int      `json:"args,omitempty" doc:"The maximum number of arguments, at most 64. They are appended to action.process.command; a shell line has them as \"$@\". Default: 0."`
	Env    []string `json:"env,omitempty" doc:"The names of the environment variables that a manual run may set, in addition to those of the task or instead of them. Default: none."`
	Target bool     `json:"target,omitempty" doc:"Whether a manual run may name its node: any node that the task's namespace allows, whatever the task's target is."`
}

// Limits of what a manual run may give. Its arguments are part of each of its records, so they must be small.
const (
	MaxAcceptArgs = 64
	MaxArgBytes   = 4 << 10 // all arguments of a run together
)

// IsZero reports whether nothing is accepted.
func (a Accept) IsZero() bool { return a.Args == 0 && len(a.Env) == 0 && !a.Target }

// validateAccept checks what the task accepts, and whether its action and its target can use it.
func (s *Spec) validateAccept() error {
	a := s.Accept
	if err := checkRange("accept.args", a.Args, 0, MaxAcceptArgs); err != nil {
		return err
	}
	if len(a.Env) > MaxEnv {
		return Invalid(CodeTooMany, "accept.env", "has %d names; at most %d are allowed", len(a.Env), MaxEnv)
	}

	for i, name := range a.Env {
		field := "accept.env[" + strconv.Itoa(i) + "]"
		if err := checkEnvName(field, name); err != nil {
			return err
		}
		if slices.Contains(a.Env[:i], name) {
			return Invalid(CodeDuplicate, field, "%s is given twice", Quote(name))
		}
	}

	switch {
	case a.Args > 0 && s.Action.Process == nil:
		return Invalid(CodeBadValue, "accept.args", "requires action.process: only a process has arguments")
	case a.Target && s.Target.FansOut():
		return Invalid(CodeBadValue, "accept.target", "cannot be combined with target.parts or target.count: such a run has more than one node")
	}

	return nil
}

// ManualInput is what the request for a manual run gives in addition to its task.
type ManualInput struct {
	Args       []string
	Env        map[string]string
	TargetNode string // the name of a node; "": the task's target applies
}

// Validate checks the values, whatever the task accepts. The fields are those of a trigger request.
func (m ManualInput) Validate() error {
	size := 0
	for i, arg := range m.Args {
		if err := checkArg("args["+strconv.Itoa(i)+"]", arg); err != nil {
			return err
		}
		size += len(arg)
	}

	if len(m.Args) > MaxAcceptArgs {
		return Invalid(CodeTooMany, "args", "has %d arguments; at most %d are allowed", len(m.Args), MaxAcceptArgs)
	}
	if size > MaxArgBytes {
		return Invalid(CodeTooLong, "args", "is %d bytes in total; at most %d are allowed", size, MaxArgBytes)
	}

	if m.TargetNode != "" {
		if err := CheckName("target", m.TargetNode); err != nil {
			return err
		}
	}

	return CheckEnv("env", m.Env)
}

// Check returns an error if the task does not accept the input. The error names the field of the request, and what the
// task would accept.
func (a Accept) Check(m ManualInput) error {
	switch {
	case len(m.Args) > 0 && a.Args == 0:
		return Invalid(CodeNotAllowed, "args", "the task accepts no arguments (accept.args)")
	case len(m.Args) > a.Args:
		return Invalid(CodeNotAllowed, "args", "has %d arguments; the task accepts at most %d (accept.args)", len(m.Args), a.Args)
	case m.TargetNode != "" && !a.Target:
		return Invalid(CodeNotAllowed, "target", "the task does not let a manual run name its node (accept.target)")
	}

	for _, name := range slices.Sorted(maps.Keys(m.Env)) {
		switch {
		case len(a.Env) == 0:
			return Invalid(CodeNotAllowed, "env", "the task accepts no variables (accept.env)")
		case !slices.Contains(a.Env, name):
			return Invalid(CodeNotAllowed, "env", "the task accepts the variables %s, but not %s (accept.env)", acceptedNames(a.Env), Quote(name))
		}
	}

	return nil
}

// acceptedNames lists names for a message.
func acceptedNames(names []string) string {
	const most = 10
	if len(names) > most {
		return strings.Join(names[:most], ", ") + " and others"
	}

	return strings.Join(names, ", ")
}

// Input returns what the request for a waiting run has given.
func (w Waiting) Input() ManualInput {
	return ManualInput{Args: w.Args, Env: w.Env, TargetNode: w.TargetNode}
}
