package policy

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Policy is what is allowed on a node. A list that is absent allows all, an empty
// one nothing.
type Policy struct {
	Users       []string `json:"users"`       // as whom attempts may run, by name or number
	Groups      []string `json:"groups"`      // which groups a task may name, by name or number; absent, with Users: its user's
	Executables []string `json:"executables"` // programs, and directories, which end in "/"
	Shell       *bool    `json:"shell"`       // whether a task may say shell; absent: yes
	EnvDenied   []string `json:"env_denied"`  // names of variables, "*" for any letters, beside those that are always
	EnvAllowed  []string `json:"env_allowed"` // those that are accepted though they are denied
	EnvFiles    []string `json:"env_files"`   // files that env_from may name, and directories
	Secrets     *bool    `json:"secrets"`     // whether env_from may name secrets; absent: yes
	Limits      Limits   `json:"limits"`
	Require     Require  `json:"require"`
}

// Limits are the most that a task may say, and what holds if it says nothing.
type Limits struct {
	Timeout task.Duration `json:"timeout,omitzero"`
	task.Limits
}

// Require is what is so for each attempt, whether its task says it or not.
type Require struct {
	NoNewPrivs bool `json:"no_new_privs"`
	PrivateTmp bool `json:"private_tmp"`
}

// Attempt is what a policy judges.
type Attempt struct {
	Process *task.Process
	User    string // as whom it runs, by name
	UID     uint32
	Groups  []Group // that Process names
	Timeout task.Duration
	Env     []string // further names of variables, not those of Process.Env
}

// Group is a group as the host knows it.
type Group struct {
	Name string
	GID  uint32
	Own  bool // the attempt's user has it, named or not
}

// Refusal says which rule does not allow an attempt.
type Refusal struct{ Rule, Why string }

func (r *Refusal) Error() string { return "the node's policy: " + r.Rule + ": " + r.Why }

func newRefusal(rule, why string, args ...any) error {
	return &Refusal{rule, fmt.Sprintf(why, args...)}
}

// Check judges all of an attempt but its program. An error is a *Refusal.
func (p *Policy) Check(a Attempt) error {
	checks := []func(Attempt) error{p.checkUser, p.checkAction, p.checkSources, p.checkEnv}
	for _, check := range checks {
		if err := check(a); err != nil {
			return err
		}
	}

	return nil
}

func (p *Policy) checkUser(a Attempt) error {
	if p.Users != nil && !slices.Contains(p.Users, a.User) && !slices.Contains(p.Users, strconv.Itoa(int(a.UID))) {
		return newRefusal("users", "nothing runs as user %s here", task.Quote(a.User))
	}

	for _, g := range a.Groups {
		if !p.mayName(g) {
			return newRefusal("groups", "no task may name the group %s here", task.Quote(g.Name))
		}
	}

	return nil
}

// mayName reports whether a task may name a group. Who lists users, and no groups,
// means what these can do: not that of a group such as disk.
func (p *Policy) mayName(g Group) bool {
	if p.Groups == nil {
		return p.Users == nil || g.Own
	}
	return slices.Contains(p.Groups, g.Name) || slices.Contains(p.Groups, strconv.FormatUint(uint64(g.GID), 10))
}

func (p *Policy) checkAction(a Attempt) error {
	if p.Shell != nil && !*p.Shell && a.Process.Shell != "" {
		return newRefusal("shell", "action.process.shell is not allowed here; command is")
	}
	return nil
}

func (p *Policy) checkSources(a Attempt) error {
	for i, f := range a.Process.EnvFrom {
		field := fmt.Sprintf("env_from[%d]", i)

		if f.Secret != "" && p.Secrets != nil && !*p.Secrets {
			return newRefusal("secrets", "%s: no secrets are used here", field)
		}
		if f.File != "" && p.EnvFiles != nil && !slices.ContainsFunc(p.EnvFiles, func(e string) bool { return coversFile(e, f.File) }) {
			return newRefusal("env_files", "%s: variables do not come from %s here", field, task.Quote(f.File))
		}
	}

	return nil
}

// coversFile reports whether an entry, a file or a directory that ends in "/", has a
// file. A name with ".." in it is nowhere: behind a symbolic link that leads
// elsewhere than the name says.
func coversFile(entry, file string) bool {
	if path.Clean(file) != file {
		return false
	}
	if strings.HasSuffix(entry, "/") {
		return strings.HasPrefix(file, strings.TrimRight(entry, "/")+"/")
	}

	return entry == file
}

// Program judges the program that an attempt is about to execute, an absolute
// path, by where its symbolic links lead, and returns that place: it is what to
// execute, so that nobody leads them elsewhere in between. Without a list of
// executables it is the program itself. An error is a *Refusal.
func (p *Policy) Program(program string) (string, error) {
	if p.Executables == nil {
		return program, nil
	}

	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return "", newRefusal("executables", "%s cannot be found: %s", task.Quote(program), errorText(err))
	}

	for _, e := range p.Executables {
		at, err := filepath.EvalSymlinks(e)
		if err != nil {
			continue // not on this host
		}

		if strings.HasSuffix(e, "/") {
			at = strings.TrimRight(at, "/") + "/"
		}

		if coversFile(at, real) {
			return real, nil
		}
	}

	if real != program {
		return "", newRefusal("executables", "%s, which is %s, is not among them", task.Quote(program), task.Quote(real))
	}

	return "", newRefusal("executables", "%s is not among them", task.Quote(program))
}

// Validate checks what the policy says. The error is a *task.Error.
func (p *Policy) Validate() error {
	for _, l := range []struct {
		field string
		list  []string
		path  bool
	}{{"users", p.Users, false}, {"groups", p.Groups, false}, {"executables", p.Executables, true}, {"env_denied", p.EnvDenied, false}, {"env_allowed", p.EnvAllowed, false},
		{"env_files", p.EnvFiles, true}} {
		for i, v := range l.list {
			field := fmt.Sprintf("%s[%d]", l.field, i)

			switch {
			case v == "":
				return task.Invalid(task.CodeRequired, field, "is empty")
			case l.path && (!filepath.IsAbs(v) || path.Clean(v) != strings.TrimRight(v, "/") && v != "/"):
				return task.Invalid(task.CodeBadValue, field, "%s is not an absolute path, without . and .., with a / at the end if it is a directory", task.Quote(v))
			}

			if _, err := path.Match(v, ""); strings.HasPrefix(l.field, "env_") && !l.path && err != nil {
				return task.Invalid(task.CodeBadValue, field, "%s is not a pattern, such as LD_*", task.Quote(v))
			}
		}
	}

	if p.Limits.Timeout < 0 || p.Limits.Timeout > task.MaxTimeout {
		return task.Invalid(task.CodeOutOfRange, "limits.timeout", "%s is not between 0s and %s", p.Limits.Timeout, task.MaxTimeout)
	}

	as := task.Action{Process: &task.Process{Command: []string{"true"}, Limits: p.Limits.Limits}}
	if err := as.Validate(); err != nil {
		if e, ok := err.(*task.Error); ok {
			e.Field = strings.TrimPrefix(e.Field, "action.process.")
		}
		return err
	}

	return nil
}
