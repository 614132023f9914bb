package policy

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// denied are the variables that each policy denies: with them a program runs other
// code than its own.
var denied = []string{
	"LD_*", "GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "LOCPATH", "MALLOC_*", "NLSPATH", "HOSTALIASES", "LOCALDOMAIN", "RESOLV_HOST_CONF", "RES_OPTIONS",
	"BASH_ENV", "ENV", "BASH_FUNC_*", "SHELLOPTS", "BASHOPTS", "PS4", "IFS",
	"PERL5*", "PERLLIB", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PYTHONBREAKPOINT", "PYTHONWARNINGS",
	"RUBYLIB", "RUBYOPT", "GEM_*", "BUNDLE_*", "NODE_OPTIONS", "NODE_PATH",
	"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "LUA_INIT*", "LUA_PATH*", "LUA_CPATH*", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES",
}

// leading are further ones, that a policy with executables denies: by them a program
// finds others, or files that say what it does.
var leading = []string{
	"PATH", "HOME", "SHELL", "XDG_*", "EDITOR", "VISUAL", "PAGER", "BROWSER", "LESSOPEN", "LESSCLOSE", "SSH_ASKPASS", "GIT_*", "RSYNC_*", "TAR_OPTIONS",
	"MAKEFLAGS", "GNUMAKEFLAGS", "MAKEFILES", "CURL_HOME", "WGETRC", "PSQLRC", "PGSYSCONFDIR", "PGSERVICEFILE", "MYSQL_HOME", "LIBMYSQL_*", "CLASSPATH",
	"PHPRC", "PHP_INI_SCAN_DIR", "AWKPATH", "AWKLIBPATH", "TCLLIBPATH", "ANSIBLE_*",
}

func (p *Policy) checkEnv(a Attempt) error {
	names := slices.AppendSeq(slices.Clone(a.Env), maps.Keys(a.Process.Env))
	for _, name := range names {
		if p.denies(name) {
			return refuse("env_denied", "the variable %s is not accepted here, unless env_allowed has it", task.Quote(name))
		}
	}
	return nil
}

// denies reports whether a variable is not accepted.
func (p *Policy) denies(name string) bool {
	isAmong := func(list []string) bool {
		return slices.ContainsFunc(list, func(pattern string) bool {
			is, _ := path.Match(pattern, strings.ReplaceAll(name, "/", "_")) // a "*" is any letters
			return is
		})
	}
	return (isAmong(denied) || p.Executables != nil && isAmong(leading) || isAmong(p.EnvDenied)) && !isAmong(p.EnvAllowed)
}
