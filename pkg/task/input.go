package task

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Accept is what a manual run of a task may bring with it. A caller who may trigger the task may give all of it, and nothing
// else. So the author of the task decides what a trigger can change.
type Accept struct {
	Args   int      `json:"args,omitempty" doc:"The maximum number of arguments. They are appended to action.process.command; a shell line has them as \"$@\"." absent:"0" min:"0" max:"64"`
	Env    []string `json:"env,omitempty" doc:"The names of the environment variables that a manual run may set, in addition to those of the task or instead of them." absent:"none" maxItems:"256" uniqueItems:"true" pattern:"^[^=]+$" example:"DAY"`
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
	for i, name := range a.Env {
		if err := checkEnvName("accept.env["+strconv.Itoa(i)+"]", name); err != nil {
			return err
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

// Input returns what the request for a waiting run has given. That of a run for the boot of a node has given nothing: the task
// itself says on which nodes it runs.
func (w Waiting) Input() ManualInput {
	m := ManualInput{Args: w.Args, Env: w.Env, TargetNode: w.TargetNode}
	if w.IsBootRun() {
		m.TargetNode = ""
	}

	return m
}

// EnvFrom is a source of environment variables whose values are not part of the task: a file on the node that
// runs it, or a secret in the task's namespace. Exactly one of File and Secret is set.
type EnvFrom struct {
	File     string            `json:"file,omitempty" doc:"The absolute path of a file of NAME=value lines on the node, like systemd's EnvironmentFile. It is read with the permissions of the user of the attempt." pattern:"^/" oneof:"source,required"`
	Optional bool              `json:"optional,omitempty" doc:"Ignores the file if it does not exist."`
	Secret   string            `json:"secret,omitempty" doc:"A secret of the task's namespace: carillon secret set." maxLength:"128" example:"db" oneof:"source,required"`
	Prefix   string            `json:"prefix,omitempty" doc:"Prefix for each name: with DB_ the name USER becomes DB_USER." absent:"none" pattern:"^[A-Za-z_][A-Za-z0-9_]*$"`
	Keys     map[string]string `json:"keys,omitempty" doc:"Only these names, each with the variable that it becomes: {password: PGPASSWORD}." absent:"all" maxProperties:"256" example:"{\"password\": \"PGPASSWORD\"}"`
}

// Limits of env_from and of its sources.
const (
	MaxEnvFrom      = 32
	MaxSecretValues = 64 << 10 // bytes of the names and values of a secret, or of a file
	maxSecretKey    = 128
)

// Source names the source in messages: "secret db", "file /etc/app.env".
func (f EnvFrom) Source() string {
	if f.Secret != "" {
		return "secret " + f.Secret
	}
	return "file " + f.File
}

// Take selects the variables from the contents of the source. An error names a missing variable and never
// contains a value.
func (f EnvFrom) Take(values map[string]string) (map[string]string, error) {
	if len(f.Keys) == 0 {
		env := make(map[string]string, len(values))
		for name, v := range values {
			env[f.Prefix+name] = v
		}
		return env, nil
	}

	env := make(map[string]string, len(f.Keys))
	for _, name := range slices.Sorted(maps.Keys(f.Keys)) {
		v, ok := values[name]
		if !ok {
			return nil, fmt.Errorf("%s does not contain %s", f.Source(), Quote(name))
		}
		env[f.Prefix+f.Keys[name]] = v
	}

	return env, nil
}

// variableName matches names that a shell accepts.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// CheckVariable checks the name of a value in a secret or in a file of variables. It must be a valid shell
// variable, and not begin with Carillon's prefix.
func CheckVariable(field, name string) error {
	switch {
	case len(name) > maxSecretKey || !variableName.MatchString(name):
		return Invalid(CodeBadEnv, field, "%s is not a variable name: letters, digits and '_', not beginning with a digit, at most %d bytes", Quote(name), maxSecretKey)
	case strings.HasPrefix(name, "CARILLON_"):
		return Invalid(CodeBadEnv, field, "%s: names that begin with CARILLON_ are set by Carillon", Quote(name))
	}

	return nil
}

// checkEnvFrom checks all sources.
func checkEnvFrom(field string, list []EnvFrom) error {
	for i, f := range list {
		if err := f.validate(fmt.Sprintf("%s[%d]", field, i)); err != nil {
			return err
		}
	}

	return nil
}

// validate checks one source.
func (f EnvFrom) validate(field string) error {
	switch {
	case (f.File == "") == (f.Secret == ""):
		return Invalid(CodeRequired, field, "requires either file or secret")
	case f.File != "" && (!filepath.IsAbs(f.File) || strings.ContainsRune(f.File, 0) || len(f.File) > 4095):
		return Invalid(CodeBadValue, field+".file", "%s is not an absolute path", Quote(f.File))
	case f.Optional && f.File == "":
		return Invalid(CodeBadValue, field+".optional", "is only valid for a file; a secret must exist")
	case f.Keys != nil && len(f.Keys) == 0:
		return Invalid(CodeRequired, field+".keys", "is empty; omit it to use all names")
	}

	if f.Secret != "" {
		if err := CheckName(field+".secret", f.Secret); err != nil {
			return err
		}
	}

	if f.Prefix != "" {
		if err := CheckVariable(field+".prefix", f.Prefix); err != nil {
			return err
		}
	}

	// Two keys must not become the same variable, because one value would silently replace the other.
	taken := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(f.Keys)) {
		if err := CheckVariable(field+".keys", name); err != nil {
			return err
		}

		to := f.Keys[name]
		if err := CheckVariable(field+".keys."+name, f.Prefix+to); err != nil {
			return err
		}
		if other, ok := taken[to]; ok {
			return Invalid(CodeDuplicate, field+".keys."+name, "becomes %s, as does %s", Quote(to), Quote(other))
		}

		taken[to] = name
	}

	return nil
}

// Stdin is the standard input of a process. Exactly one field is set. Without it, the standard input is empty.
type Stdin struct {
	Text   string `json:"text,omitempty" doc:"The input itself." maxLength:"16384" oneof:"source,required"`
	Secret string `json:"secret,omitempty" doc:"A value of a secret of the task's namespace, as NAME/KEY." pattern:"^[^/]+/[A-Za-z_][A-Za-z0-9_]*$" example:"db/password" oneof:"source,required"`
	File   string `json:"file,omitempty" doc:"The absolute path of a file on the node. It is opened with the permissions of the user of the attempt." pattern:"^/" oneof:"source,required"`
}

// MaxStdinText is the maximum size of Stdin.Text in bytes. Larger input comes from a secret or a file.
const MaxStdinText = 16 << 10

// validate checks the input.
func (s *Stdin) validate(field string) error {
	set := 0
	for _, v := range []string{s.Text, s.Secret, s.File} {
		if v != "" {
			set++
		}
	}

	switch {
	case set != 1:
		return Invalid(CodeRequired, field, "requires exactly one of text, secret and file")
	case s.File != "" && (!filepath.IsAbs(s.File) || strings.ContainsRune(s.File, 0) || len(s.File) > maxPath):
		return Invalid(CodeBadValue, field+".file", "%s is not an absolute path", Quote(s.File))
	case s.Secret != "":
		if _, _, err := ParseSecretRef(s.Secret); err != nil {
			return Invalid(CodeBadValue, field+".secret", "%v", err)
		}
	}

	return nil
}

// maxPath is the maximum length of a path on Linux, without the byte that ends it.
const maxPath = 4095

// Source names the source of the input in messages: "secret db/password", "file /etc/app.sql".
func (s *Stdin) Source() string {
	switch {
	case s.Secret != "":
		return "secret " + s.Secret
	case s.File != "":
		return "file " + s.File
	}

	return "text"
}
