package task

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// EnvFrom is a source of environment variables whose values are not part of the task: a file on the node that
// runs it, or a secret in the task's namespace. Exactly one of File and Secret is set.
type EnvFrom struct {
	File     string            `json:"file,omitempty" doc:"The absolute path of a file of NAME=value lines on the node, like systemd's EnvironmentFile. It is read with the permissions of the user of the attempt."`
	Optional bool              `json:"optional,omitempty" doc:"Ignores the file if it does not exist."`
	Secret   string            `json:"secret,omitempty" doc:"A secret of the task's namespace: carillon secret set."`
	Prefix   string            `json:"prefix,omitempty" doc:"Prefix for each name: with DB_ the name USER becomes DB_USER."`
	Keys     map[string]string `json:"keys,omitempty" doc:"Only these names, each with the variable that it becomes: {password: PGPASSWORD}."`
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
	if len(list) > MaxEnvFrom {
		return Invalid(CodeTooMany, field, "has %d sources; at most %d are allowed", len(list), MaxEnvFrom)
	}

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
	case len(f.Keys) > MaxEnv:
		return Invalid(CodeTooMany, field+".keys", "has %d names; at most %d are allowed", len(f.Keys), MaxEnv)
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
		if other, is := taken[to]; is {
			return Invalid(CodeDuplicate, field+".keys."+name, "becomes %s, as does %s", Quote(to), Quote(other))
		}

		taken[to] = name
	}

	return nil
}
