package policy

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

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
