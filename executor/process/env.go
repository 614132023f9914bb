package process

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/task"
)

// The values that cron sets for its jobs.
const (
	cronPath  = "/usr/bin:/bin"
	cronShell = "/bin/sh"
)

// account is the user that an attempt runs as.
type account struct {
	name, home string              // for LOGNAME and HOME
	credential *syscall.Credential // nil: the daemon's own, unchanged
}

// ownAccount returns the daemon's account. If the user database has no entry for it, as in
// some containers, its name is its number.
func ownAccount() account {
	u, err := user.Current()
	if err != nil {
		return account{name: strconv.Itoa(os.Getuid()), home: "/"}
	}
	return account{name: u.Username, home: cmp.Or(u.HomeDir, "/")}
}

// defaultAccount is the account of processes whose tasks name no user.
type defaultAccount struct {
	user string  // the node's default user; "": the daemon's own
	own  account // the daemon's
}

// newDefaultAccount returns the account of processes whose tasks name no user. If that user is the daemon's own, the
// processes run with the daemon's credentials, unchanged.
func newDefaultAccount(name string) (defaultAccount, error) {
	d := defaultAccount{own: ownAccount()}
	if name == "" {
		return d, nil
	}

	a, err := accountOf(name)
	if err != nil {
		return d, err
	}

	if a.credential != nil && int(a.credential.Uid) != os.Geteuid() {
		d.user = name
	}

	return d, nil
}

// CheckDefaultUser returns an error if processes cannot run as this user.
func CheckDefaultUser(name string) error {
	_, err := newDefaultAccount(name)
	return err
}

// accountFor returns the account that a process runs as: the user that the task names, or the default, with the
// groups that the task names, or all groups of the user. Only a daemon that runs as root can change either. Users are
// looked up each time, because the user database of the host may change.
func accountFor(p *task.Process, without defaultAccount) (account, error) {
	a, err := without.own, error(nil)
	if name := cmp.Or(p.User, without.user); name != "" {
		if a, err = accountOf(name); err != nil {
			return account{}, err
		}
	}

	if p.Group == "" && p.Groups == nil {
		return a, nil
	}
	if os.Geteuid() != 0 {
		return account{}, errors.New("group and groups: only a daemon that runs as root can set the groups of a process")
	}

	if a.credential == nil {
		if a.credential, err = ownCredential(); err != nil {
			return account{}, err
		}
	}

	if p.Group != "" {
		if _, a.credential.Gid, err = groupOf(p.Group); err != nil {
			return account{}, err
		}
	}

	if p.Groups != nil {
		// groups replaces the user's supplementary groups, even with an empty list.
		a.credential.Groups = nil
	}

	for _, name := range p.Groups {
		_, gid, err := groupOf(name)
		if err != nil {
			return account{}, err
		}
		a.credential.Groups = append(a.credential.Groups, gid)
	}

	return a, nil
}

// account returns the account of accountFor without the group whose members administer the cluster (task.AdminGroup), unless the
// policy of the node names that group. If the task names it, or if it is the user's primary group, the attempt is refused.
//
// The daemon does not trust the processes of attempts, whatever their groups. But a process that has the group could start
// others through services of the host.
func (ru *Runner) account(p *task.Process) (account, error) {
	a, err := accountFor(p, ru.without)
	if err != nil || a.credential == nil {
		return a, err // the daemon's own credentials, which it cannot change or which are root's
	}

	gid, exists, err := groupNumber(ru.adminGroup)
	if err != nil || !exists || a.credential.Gid != gid && !slices.Contains(a.credential.Groups, gid) {
		return a, err
	}

	if ru.policy != nil {
		allowed, err := ru.currentPolicy()
		if err != nil || allowed.NamesGroup(ru.adminGroup, gid) {
			return a, err
		}
	}

	const rule = "its members administer the cluster, so tasks have it only if the node has a policy whose groups name it"

	switch {
	case a.credential.Gid == gid && p.Group == "":
		return a, asRefusal(task.ReasonPolicy, fmt.Errorf("group: the primary group of user %s is %s: %s; set another group", a.name, ru.adminGroup, rule))
	case a.credential.Gid == gid:
		return a, asRefusal(task.ReasonPolicy, fmt.Errorf("group: %s: %s", ru.adminGroup, rule))
	case p.Groups != nil:
		return a, asRefusal(task.ReasonPolicy, fmt.Errorf("groups: %s: %s", ru.adminGroup, rule))
	}

	a.credential.Groups = slices.DeleteFunc(a.credential.Groups, func(g uint32) bool { return g == gid })

	return a, nil
}

// groupNumber returns the number of a group, and whether the host has the group.
func groupNumber(name string) (gid uint32, exists bool, err error) {
	g, err := user.LookupGroup(name)
	if _, unknown := errors.AsType[user.UnknownGroupError](err); unknown {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("group %s: %w", name, err)
	}

	n, err := strconv.ParseUint(g.Gid, 10, 32)
	if err != nil {
		return 0, false, fmt.Errorf("group %s: %w", name, err)
	}

	return uint32(n), true, nil
}

// ownCredential returns the daemon's effective user and group and its supplementary groups.
func ownCredential() (*syscall.Credential, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return nil, fmt.Errorf("the daemon's groups: %w", err)
	}

	c := &syscall.Credential{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
	for _, g := range groups {
		c.Groups = append(c.Groups, uint32(g))
	}

	return c, nil
}

// groupOf returns the group with this name or number. Names take precedence.
func groupOf(name string) (*user.Group, uint32, error) {
	g, err := user.LookupGroup(name)
	if err != nil {
		var byID error
		if g, byID = user.LookupGroupId(name); byID != nil {
			return nil, 0, fmt.Errorf("group %s does not exist on this node", task.Quote(name))
		}
	}

	gid, err := strconv.ParseUint(g.Gid, 10, 32)
	if err != nil {
		return nil, 0, fmt.Errorf("group %s: %w", task.Quote(name), err)
	}

	return g, uint32(gid), nil
}

// accountOf returns the account of the user with this name or number, with all its groups. Names take precedence. A
// daemon that does not run as root can only run processes as its own user.
func accountOf(name string) (account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		var byID error
		if u, byID = user.LookupId(name); byID != nil {
			return account{}, fmt.Errorf("user %s does not exist on this node", task.Quote(name))
		}
	}

	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return account{}, fmt.Errorf("user %s: %w", task.Quote(name), err)
	}

	a := account{name: u.Username, home: cmp.Or(u.HomeDir, "/")}

	if os.Geteuid() != 0 {
		// Without root, the process runs with the daemon's credentials, so the user must be the daemon's.
		if int(uid) == os.Geteuid() {
			return a, nil
		}
		return account{}, fmt.Errorf("user %s: only a daemon that runs as root can run tasks as another user", task.Quote(name))
	}

	groups, err := groupsOf(u)
	if err != nil {
		return account{}, fmt.Errorf("groups of user %s: %w", task.Quote(name), err)
	}

	a.credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: groups}

	return a, nil
}

// groupsOf returns the numbers of all groups of a user.
func groupsOf(u *user.User) ([]uint32, error) {
	ids, err := u.GroupIds()
	if err != nil {
		return nil, err
	}

	var groups []uint32
	for _, id := range ids {
		gid, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, err
		}
		groups = append(groups, uint32(gid))
	}

	return groups, nil
}

// buildEnvironment returns the environment of an attempt: cron's variables, overridden by the task's,
// overridden by the run's, and Carillon's own, which nothing overrides. Carillon's variables
// come first, in a fixed order; executor/proctree finds processes by them.
func buildEnvironment(a task.Assigned, token int64, node string, as account) []string {
	type variable struct{ name, value string }
	vars := []variable{
		{"HOME", as.home}, {"LOGNAME", as.name}, {"PATH", cronPath}, {"SHELL", cronShell},
		{"TRACEPARENT", NewTraceparent(a.Namespace, a.Task, a.ID)},
	}
	if a.Action.Process != nil {
		for k, v := range a.Action.Process.Env {
			vars = append(vars, variable{k, v})
		}
	}

	for k, v := range a.Env {
		vars = append(vars, variable{k, v})
	}

	// The sort is stable, so of several variables with one name the last is the one that overrides the others.
	slices.SortStableFunc(vars, func(x, y variable) int { return strings.Compare(x.name, y.name) })
	scheduled, _ := a.ScheduledTime.MarshalText() // never fails
	env := append(make([]string, 0, 9+len(vars)),
		proctree.EnvRunID+"="+a.ID,
		proctree.EnvToken+"="+strconv.FormatInt(token, 10),
		proctree.EnvNamespace+"="+a.Namespace,
		proctree.EnvTask+"="+a.Task,
		"CARILLON_SCHEDULED_TIME="+string(scheduled),
		"CARILLON_ATTEMPT="+strconv.Itoa(max(a.Attempt, 1)),
		"CARILLON_NODE="+node,
		"CARILLON_TRIGGER="+triggerOf(a.Run),
	)
	env = appendCauses(env, a.Run)
	if a.Step != "" {
		env = appendStep(env, &a)
	} else if _, index, ok := task.ParentOf(a.ID); ok {
		env = append(env, "CARILLON_PART_INDEX="+strconv.Itoa(index), "CARILLON_PART_COUNT="+strconv.Itoa(a.PartCount))
	}

	for i, v := range vars {
		overridden := i+1 < len(vars) && vars[i+1].name == v.name
		if !overridden && !strings.HasPrefix(v.name, "CARILLON_") {
			env = append(env, v.name+"="+v.value)
		}
	}

	return env
}

// triggerOf returns what has started a run; for a part, what has started its run.
func triggerOf(r task.Run) string {
	if parent, _, ok := task.ParentOf(r.ID); ok && r.Trigger == task.TriggerPart {
		return task.TriggerOfRunID(parent)
	}
	return r.Trigger
}

// appendCauses appends the variables that describe for which time a run works, and which ended runs have started it.
func appendCauses(env []string, r task.Run) []string {
	if period := r.EffectivePeriod(); !period.IsZero() {
		text, _ := period.MarshalText() // never fails
		env = append(env, "CARILLON_PERIOD="+string(text))
	}

	if len(r.Causes) == 0 {
		return env
	}

	if len(r.Causes) == 1 {
		c := &r.Causes[0]
		env = append(env, "CARILLON_CAUSE_TASK="+c.Task, "CARILLON_CAUSE_RUN="+c.Run, "CARILLON_CAUSE_STATE="+string(c.State))
	}

	all, _ := json.Marshal(r.Causes) // never fails

	return append(env, "CARILLON_CAUSES="+string(all))
}

// NewTraceparent returns a W3C trace context. All attempts of a run share one trace id, which is derived from the run; each
// attempt has a random span id.
func NewTraceparent(namespace, name, run string) string {
	var names [256]byte // most names fit
	id := append(append(append(append(append(names[:0], namespace...), '/'), name...), '/'), run...)
	trace := sha256.Sum256(id)

	var span [8]byte
	binary.BigEndian.PutUint64(span[:], rand.Uint64()|1) // the all-zero id is invalid

	var text [len("00-") + 32 + len("-") + 16 + len("-01")]byte
	b := hex.AppendEncode(append(text[:0], "00-"...), trace[:16])
	b = hex.AppendEncode(append(b, '-'), span[:])

	return string(append(b, "-01"...))
}

// lookupEnv returns the value of a variable, or "" if it is not set.
func lookupEnv(env []string, name string) string {
	for _, e := range env {
		if k, v, _ := strings.Cut(e, "="); k == name {
			return v
		}
	}

	return ""
}

// lookPath finds a program as execvp would: in the attempt's own PATH, relative to
// its working directory dir. It returns a name that contains a slash unchanged.
func lookPath(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}

	for _, d := range filepath.SplitList(path) {
		p := filepath.Join(cmp.Or(d, "."), name)
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}

		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}

	return "", fmt.Errorf("program %s is not in PATH (%s)", task.Quote(name), path)
}

// workDir returns the working directory of the process: dir, or the user's home if dir is empty. If the home does not
// exist, the process starts in /. A dir that does not exist is an error.
func workDir(dir string, as account) (string, error) {
	if dir == "" {
		if info, err := os.Stat(as.home); err != nil || !info.IsDir() || !filepath.IsAbs(as.home) {
			return "/", nil
		}
		return as.home, nil
	}

	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("working directory %s does not exist", task.Quote(dir))
	case err != nil:
		return "", fmt.Errorf("working directory %s: %w", task.Quote(dir), errors.Unwrap(err))
	case !info.IsDir():
		return "", fmt.Errorf("working directory %s is not a directory", task.Quote(dir))
	}

	return dir, nil
}

// startFailure returns an error that explains to a person why the kernel did not execute a program.
func startFailure(err error, program, dir string) error {
	q := task.Quote(program)

	switch {
	case errors.Is(err, syscall.ENOENT):
		// The kernel returns ENOENT for a missing interpreter, too.
		p := program
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}

		if _, serr := os.Stat(p); serr == nil {
			return fmt.Errorf("program %s exists, but the interpreter or loader that it names does not", q)
		}

		return fmt.Errorf("program %s does not exist", q)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("permission denied to execute %s in directory %s", q, task.Quote(dir))
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("program %s is not in an executable format; a script must begin with a #! line", q)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("the daemon has no permission to start %s as that user", q)
	case errors.Is(err, syscall.E2BIG):
		return errors.New("arguments and environment together are longer than the kernel allows")
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("no file descriptors are left on this node: %w", err)
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("this node has reached its limit of processes: %w", err)
	}

	return fmt.Errorf("start %s: %w", q, err)
}
