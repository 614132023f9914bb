package policy

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Policy describes what is allowed on a node. An absent list allows everything, and an empty
// one allows nothing. A Policy must not be changed once it is used.
type Policy struct {
	Users       []string `json:"users"`       // users as whom attempts may run, by name or number
	Groups      []string `json:"groups"`      // groups that a task may name, by name or number; absent, with Users: those of its user
	Executables []string `json:"executables"` // programs, and directories of programs, which end in "/"
	Shell       *bool    `json:"shell"`       // whether a task may use shell; absent: yes
	EnvDenied   []string `json:"env_denied"`  // patterns of variable names that are denied, in addition to deniedVariables
	EnvAllowed  []string `json:"env_allowed"` // patterns of variable names that are allowed even if another rule denies them
	EnvFiles    []string `json:"env_files"`   // files that env_from and stdin may name, and directories of files
	Secrets     *bool    `json:"secrets"`     // whether a task may name secrets; absent: yes
	Limits      Limits   `json:"limits"`
	Require     Require  `json:"require"`
	HTTP        *HTTP    `json:"http"` // targets of HTTP actions; absent: the default of HTTP
}

// Limits holds the maximum of each limit of a task. It also applies if the task sets no limit.
type Limits struct {
	Timeout task.Duration `json:"timeout,omitzero"`
	task.Limits
}

// Require holds settings that apply to every attempt, whether its task sets them or not.
type Require struct {
	NoNewPrivs bool `json:"no_new_privs"`
	PrivateTmp bool `json:"private_tmp"`
}

// Attempt holds the properties of an attempt that a policy judges.
type Attempt struct {
	Process *task.Process
	User    string // the name of the user as whom it runs
	UID     uint32
	Groups  []Group // the groups that Process names
	Timeout task.Duration
	Env     []string // names of variables in addition to those of Process.Env
}

// Group is a group of the host.
type Group struct {
	Name string
	GID  uint32
	Own  bool // the attempt's user is a member anyway
}

// Refusal is the error that names the rule which does not allow an attempt.
type Refusal struct{ Rule, Why string }

func (r *Refusal) Error() string { return "the node's policy: " + r.Rule + ": " + r.Why }

// newRefusal returns a *Refusal with a formatted reason.
func newRefusal(rule, why string, args ...any) error {
	return &Refusal{rule, fmt.Sprintf(why, args...)}
}

// Check judges everything about an attempt except its program. It accesses no file. An error is a *Refusal.
func (p *Policy) Check(a Attempt) error {
	checks := []func(Attempt) error{p.checkUser, p.checkAction, p.checkSources, p.checkEnv}
	for _, check := range checks {
		if err := check(a); err != nil {
			return err
		}
	}

	return nil
}

// checkUser judges the user and the groups.
func (p *Policy) checkUser(a Attempt) error {
	if p.Users != nil && !slices.Contains(p.Users, a.User) && !slices.Contains(p.Users, strconv.Itoa(int(a.UID))) {
		return newRefusal("users", "user %s is not allowed", task.Quote(a.User))
	}

	for _, g := range a.Groups {
		if !p.mayName(g) {
			return newRefusal("groups", "group %s is not allowed", task.Quote(g.Name))
		}
	}

	return nil
}

// mayName reports whether a task may name a group. A policy that lists users but no groups
// allows what these users can do anyway, and not the rights of another group such as disk.
func (p *Policy) mayName(g Group) bool {
	if p.Groups == nil {
		return p.Users == nil || g.Own
	}
	return p.NamesGroup(g.Name, g.GID)
}

// NamesGroup reports whether the policy lists a group, by its name or its number. A policy without a list names none.
func (p *Policy) NamesGroup(name string, gid uint32) bool {
	return slices.Contains(p.Groups, name) || slices.Contains(p.Groups, strconv.FormatUint(uint64(gid), 10))
}

// checkAction judges whether the task may use a shell.
func (p *Policy) checkAction(a Attempt) error {
	if p.Shell != nil && !*p.Shell && a.Process.Shell != "" {
		return newRefusal("shell", "action.process.shell is not allowed; use command")
	}
	return nil
}

// checkSources judges the secrets and the files that the process reads: the entries of env_from, and stdin.
func (p *Policy) checkSources(a Attempt) error {
	for i, f := range a.Process.EnvFrom {
		if err := p.checkSource(fmt.Sprintf("env_from[%d]", i), f.File, f.Secret); err != nil {
			return err
		}
	}

	if in := a.Process.Stdin; in != nil {
		return p.checkSource("stdin", in.File, in.Secret)
	}

	return nil
}

// checkSource judges a file and a secret, each of which may be "".
func (p *Policy) checkSource(field, file, secret string) error {
	if secret != "" && p.Secrets != nil && !*p.Secrets {
		return newRefusal("secrets", "%s: secrets are not allowed", field)
	}
	if file != "" && p.EnvFiles != nil && !slices.ContainsFunc(p.EnvFiles, func(e string) bool { return coversFile(e, file) }) {
		return newRefusal("env_files", "%s: file %s is not allowed", field, task.Quote(file))
	}

	return nil
}

// coversFile reports whether an entry (a file, or a directory that ends in "/") is or contains a
// file. A path with ".." is never covered, because after a symbolic link it leads
// elsewhere than it seems to.
func coversFile(entry, file string) bool {
	if path.Clean(file) != file {
		return false
	}
	if strings.HasSuffix(entry, "/") {
		return strings.HasPrefix(file, strings.TrimRight(entry, "/")+"/")
	}

	return entry == file
}

// Program judges the program that an attempt is about to execute, given by an absolute
// path. It resolves symbolic links and returns the resulting path, which the caller must
// execute, so that nobody can redirect the links in between. Without a list of
// executables it returns the path unchanged. It accesses the file system, so it may hang. An error is a *Refusal.
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
			continue // does not exist on this host
		}

		if strings.HasSuffix(e, "/") {
			at = strings.TrimRight(at, "/") + "/"
		}

		if coversFile(at, real) {
			return real, nil
		}
	}

	if real != program {
		return "", newRefusal("executables", "program %s, which is %s, is not allowed", task.Quote(program), task.Quote(real))
	}

	return "", newRefusal("executables", "program %s is not allowed", task.Quote(program))
}

// Validate checks the values of the policy. The error is a *task.Error that names the field.
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
				return task.Invalid(task.CodeBadValue, field, "%s is not an absolute path without . and ..; directories end with /", task.Quote(v))
			}

			if _, err := path.Match(v, ""); strings.HasPrefix(l.field, "env_") && !l.path && err != nil {
				return task.Invalid(task.CodeBadValue, field, "%s is not a pattern, such as LD_*", task.Quote(v))
			}
		}
	}

	if err := p.HTTP.Validate("http"); err != nil {
		return err
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

// Bind returns an attempt's process and timeout with the limits and settings of the policy. Limits that the task does not
// set are filled in, and higher ones are refused. If the policy sets anything for the process,
// the node has to enforce all limits, even if the task only wants a report. given is not changed. An error is a
// *Refusal.
func (p *Policy) Bind(given *task.Process, timeout task.Duration) (*task.Process, task.Duration, error) {
	if p.Limits == (Limits{}) && p.Require == (Require{}) {
		return given, timeout, nil
	}

	bound := *given // the caller's process stays unchanged
	l, most := &bound.Limits, p.Limits
	for _, err := range []error{
		atMost("timeout", most.Timeout, &timeout),
		atMost("open_files", most.OpenFiles, &l.OpenFiles),
		atMost("processes", most.Processes, &l.Processes),
		atMost("stack", most.Stack, &l.Stack),
		atMost("address_space", most.AddressSpace, &l.AddressSpace),
		atMost("cpu_time", most.CPUTime, &l.CPUTime),
		atMost("memory", most.Memory, &l.Memory),
		atMost("cpu", most.CPU, &l.CPU),
		atMost("pids", most.PIDs, &l.PIDs),
		atMostSet("file_size", most.FileSize, &l.FileSize),
		atMostSet("core", most.Core, &l.Core),
		atMostSet("swap", most.Swap, &l.Swap),
	} {
		if err != nil {
			return nil, 0, err
		}
	}

	bound.NoNewPrivs = bound.NoNewPrivs || p.Require.NoNewPrivs
	bound.PrivateTmp = bound.PrivateTmp || p.Require.PrivateTmp
	if tmp := task.PrivateDir(bound.Dir); p.Require.PrivateTmp && tmp != "" && tmp != bound.Dir {
		return nil, 0, newRefusal("require.private_tmp", "the directory %s does not exist: %s is empty when the process starts", task.Quote(bound.Dir), tmp)
	}

	if p.Limits.Limits != (task.Limits{}) || p.Require != (Require{}) {
		bound.Enforce = task.EnforceRequire
	}

	return &bound, timeout, nil
}

// atMost applies a maximum to a limit for which 0 means no limit.
func atMost[T cmp.Ordered](name string, most T, v *T) error {
	var none T
	switch {
	case most == none:
	case *v == none:
		*v = most
	case *v > most:
		return newRefusal("limits."+name, "%v is more than %v", *v, most)
	}

	return nil
}

// atMostSet applies a maximum to a limit for which nil means no limit and 0 is a valid limit.
func atMostSet(name string, most *task.Size, v **task.Size) error {
	switch {
	case most == nil:
	case *v == nil:
		*v = most
	case **v > *most:
		return newRefusal("limits."+name, "%v is more than %v", **v, *most)
	}

	return nil
}

// deniedVariables lists patterns of variables that every policy denies, because they make a program run other
// code than its own.
var deniedVariables = []string{
	"LD_*", "GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "LOCPATH", "MALLOC_*", "NLSPATH", "HOSTALIASES", "LOCALDOMAIN", "RESOLV_HOST_CONF", "RES_OPTIONS",
	"BASH_ENV", "ENV", "BASH_FUNC_*", "SHELLOPTS", "BASHOPTS", "PS4", "IFS",
	"PERL5*", "PERLLIB", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PYTHONBREAKPOINT", "PYTHONWARNINGS",
	"RUBYLIB", "RUBYOPT", "GEM_*", "BUNDLE_*", "NODE_OPTIONS", "NODE_PATH",
	"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "LUA_INIT*", "LUA_PATH*", "LUA_CPATH*", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES",
}

// acceptedWithExecutables lists the only variables that a policy with executables accepts, unless
// env_allowed names more. A list of dangerous names cannot be complete, because every program has its
// own. For example, TCL_LIBRARY, KUBECONFIG and BORG_RSH each make a program run other code.
//
// These three select a time zone and a locale. The C library rejects a locale whose name contains a slash,
// so they can only select what is installed on the host.
var acceptedWithExecutables = []string{"TZ", "LANG", "LC_*"}

// checkEnv judges the names of all variables.
func (p *Policy) checkEnv(a Attempt) error {
	names := slices.AppendSeq(slices.Clone(a.Env), maps.Keys(a.Process.Env))
	for _, name := range names {
		if p.deniesVariable(name) {
			return newRefusal("env_denied", "the variable %s is not allowed unless env_allowed contains it", task.Quote(name))
		}
	}

	return nil
}

// deniesVariable reports whether the policy denies a variable. env_allowed takes precedence over all other rules.
func (p *Policy) deniesVariable(name string) bool {
	switch {
	case matchesAny(p.EnvAllowed, name):
		return false
	case p.Executables != nil && !matchesAny(acceptedWithExecutables, name):
		return true
	}

	return matchesAny(deniedVariables, name) || matchesAny(p.EnvDenied, name)
}

// matchesAny reports whether a variable's name matches one of the patterns, in which "*" matches
// any characters.
func matchesAny(patterns []string, name string) bool {
	name = strings.ReplaceAll(name, "/", "_") // in path.Match, "*" does not match a slash

	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matches, _ := path.Match(pattern, name)
		return matches
	})
}
