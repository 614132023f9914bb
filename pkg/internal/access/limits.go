package access

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// CheckTask reports whether a namespace's record allows a task: its user, its groups, its shell,
// the files that it reads, and mails with its output. The error names the field and what the namespace would allow. A
// task without a user is allowed: it runs as the node's default_user, which is never root
// unless the node's administrator says so.
func CheckTask(n *task.Namespace, s *task.Spec) error {
	if f := findForbidden(n, &s.Action); f != nil {
		err := task.Invalid(task.CodeNotAllowed, f.field, "%s", f.rule)
		err.Hint = "an administrator can allow it"
		if flags, ok := flagsThatAllow(n, f.process); ok {
			err.Hint += ": carillon namespace update " + n.Name + flags
		}

		return err
	}
	if n.AuditReads && len(s.Output.Mail) > 0 {
		return task.Invalid(task.CodeNotAllowed, "output.mail", "namespace %s records who reads output (audit_reads), and nothing records who reads a mail", n.Name)
	}

	return nil
}

// Forbidden returns what of an action the record of its namespace does not allow, as in "the user root". It returns
// "" if the record allows the action.
func Forbidden(n *task.Namespace, a *task.Action) string {
	if f := findForbidden(n, a); f != nil {
		return f.what
	}
	return ""
}

// forbidden is a part of an action that the record of a namespace does not allow.
type forbidden struct {
	field   string
	what    string // for people
	rule    string // the value, and what the record allows
	process *task.Process
}

// findForbidden returns the first part of an action, or of the actions of its steps, that a namespace's record does not allow, or nil.
func findForbidden(n *task.Namespace, a *task.Action) *forbidden {
	if a.Workflow != nil {
		for _, name := range slices.Sorted(maps.Keys(a.Workflow.Steps)) {
			if f := findForbiddenIn(n, a.Workflow.Steps[name].Process); f != nil {
				f.field = "action.workflow.steps." + name + ".process." + f.field
				f.what += " in step " + name
				return f
			}
		}
	}

	f := findForbiddenIn(n, a.Process)
	if f != nil {
		f.field = "action.process." + f.field
	}

	return f
}

// findForbiddenIn returns the first part of a process that a namespace's record does not allow, or nil. Its field is below that of
// the process.
func findForbiddenIn(n *task.Namespace, p *task.Process) *forbidden {
	if p == nil {
		return nil
	}

	refuse := func(field, kind, value string, allowed []string) *forbidden {
		rule := "allows " + listed("the "+kind+"s", allowed)
		if slices.Contains(allowed, "*") {
			rule = "must name this " + kind + ": * stands for neither numbers nor " + kind + "s whose members are root in effect"
		}
		return &forbidden{field, "the " + kind + " " + value, task.Quote(value) + ": namespace " + n.Name + " " + rule, p}
	}

	if p.User != "" && !lists(n.RunAs, p.User) {
		return refuse("user", "user", p.User, n.RunAs)
	}

	for _, g := range append([]string{p.Group}, p.Groups...) {
		if g != "" && !allowsGroup(n.Groups, g) {
			return refuse("groups", "group", g, n.Groups)
		}
	}

	if p.Shell != "" && !n.Shell {
		return &forbidden{"shell", "shell actions", "namespace " + n.Name + " allows no shell actions; use command", p}
	}

	for i, f := range p.EnvFrom {
		if f.File != "" && !mayRead(n, f.File) {
			return refuse(index("env_from", i)+".file", "file", f.File, n.EnvFiles)
		}
	}

	if in := p.Stdin; in != nil && in.File != "" && !mayRead(n, in.File) {
		return refuse("stdin.file", "file", in.File, n.EnvFiles)
	}

	return nil
}

// plainList matches a list that a shell and the flags of lists take literally, apart from the *, which needs quotes.
var plainList = regexp.MustCompile(`^[A-Za-z0-9_./@%+:=,*-]+$`)

// flagsThatAllow returns the flags of carillon namespace update with which a namespace allows an action. A flag replaces its
// list. The values are from the author of the task, and an administrator may paste the flags into a shell: ok is false if a
// value contains characters with a meaning there, or a comma.
func flagsThatAllow(n *task.Namespace, p *task.Process) (flags string, ok bool) {
	ok = true
	add := func(flag string, allowed, more []string) {
		if len(more) == 0 {
			return
		}

		values := slices.Concat(allowed, more)
		list := strings.Join(values, ",")
		if !plainList.MatchString(list) || strings.Count(list, ",") != len(values)-1 {
			ok = false
			return
		}
		if strings.Contains(list, "*") {
			list = "'" + list + "'" // for the shell
		}
		flags += " --" + flag + " " + list
	}

	var users, groups, files []string
	if p.User != "" && !lists(n.RunAs, p.User) {
		users = []string{p.User}
	}

	for _, g := range append([]string{p.Group}, p.Groups...) {
		if g != "" && !allowsGroup(n.Groups, g) {
			groups = append(groups, g)
		}
	}

	for _, f := range p.EnvFrom {
		if f.File != "" && !mayRead(n, f.File) {
			files = append(files, f.File)
		}
	}
	if in := p.Stdin; in != nil && in.File != "" && !mayRead(n, in.File) {
		files = append(files, in.File)
	}

	add("run-as", n.RunAs, users)
	add("groups", n.Groups, groups)
	add("env-files", n.EnvFiles, files)
	if p.Shell != "" && !n.Shell {
		flags += " --shell"
	}

	return flags, ok
}

func lists(allowed []string, name string) bool {
	return slices.Contains(allowed, "*") || slices.Contains(allowed, name)
}

// allowsGroup reports whether a list of groups allows a group. * does not include groups whose members are root in effect, such
// as docker, or numbers, because a number may mean different groups on different hosts.
func allowsGroup(allowed []string, group string) bool {
	if slices.Contains(allowed, group) {
		return true
	}

	isNumber := strings.ContainsRune("+-0123456789", rune(group[0]))

	return slices.Contains(allowed, "*") && !isNumber && !task.IsRootGroup(group)
}

// mayRead reports whether a namespace's record allows its tasks to read a file.
func mayRead(n *task.Namespace, file string) bool {
	return slices.ContainsFunc(n.EnvFiles, func(allowed string) bool { return reachesFile(allowed, file) })
}

// reachesFile reports whether an entry of env_files allows a path. Validation of the task has
// refused paths with . and .. before.
func reachesFile(allowed, file string) bool {
	return allowed == "*" || allowed == file || strings.HasSuffix(allowed, "/") && strings.HasPrefix(file, allowed) && !strings.Contains(file, "/../")
}

func listed(noun string, names []string) string {
	if len(names) == 0 {
		return "none"
	}

	const most = 5
	if len(names) > most {
		return noun + " " + strings.Join(names[:most], ", ") + " and others"
	}

	return noun + " " + strings.Join(names, ", ")
}

// JoinSelector returns the selector of a task's runs in a namespace: both must hold.
func JoinSelector(n *task.Namespace, selector string) string {
	switch {
	case n == nil || strings.TrimSpace(n.Nodes) == "":
		return selector
	case strings.TrimSpace(selector) == "":
		return n.Nodes
	}

	return n.Nodes + ", " + selector
}

// NeedsOfChange returns what a change of a task needs, whichever request makes it: the change
// decides, not the route. before is nil if the task is created, after if it is deleted. The
// needs is empty if nothing changes.
//
//   - A new task needs create; a deletion needs delete.
//   - A change of only the pause needs pause; any other needs update, and pause too if
//     the pause changes as well.
//   - Labels are judged before and after, so that nobody moves a task into or out of what the
//     labels of a binding reach.
//   - A source in after that is new or changed needs read on tasks and runs: the task learns how its runs end, and their results.
//   - A secret that the task newly names needs use. So does each secret that it already names
//     if what runs, as whom, or where changes: a new command could print the value. The same
//     holds if the output is no longer masked.
func NeedsOfChange(before, after *task.Spec) []Need {
	switch {
	case before == nil:
		return slices.Concat([]Need{need(Create, after)}, needsOfSources(nil, after), needsOfSecrets(nil, after))
	case after == nil:
		return []Need{need(Delete, before)}
	}

	var verbs []Verb
	if pauseOf(before) != pauseOf(after) {
		verbs = append(verbs, Pause)
	}
	if !sameJSON(withoutPause(before), withoutPause(after)) {
		verbs = append(verbs, Update)
	}

	var needs []Need
	for _, verb := range verbs {
		needs = append(needs, need(verb, before))
		if !maps.Equal(before.Labels, after.Labels) {
			needs = append(needs, need(verb, after))
		}
	}

	return slices.Concat(needs, needsOfSources(before, after), needsOfSecrets(before, after))
}

func need(verb Verb, s *task.Spec) Need {
	return Need{Verb: verb, Kind: Tasks, Namespace: s.Namespace, Labels: s.Labels}
}

// pause is what pausing and resuming change of a task.
type pause struct {
	paused bool
	until  int64 // milliseconds since 1970
	reason string
}

func pauseOf(s *task.Spec) pause {
	return pause{paused: s.Paused, until: s.PausedUntil.UnixMilli(), reason: s.PauseReason}
}

func withoutPause(s *task.Spec) task.Spec {
	c := *s
	c.Paused, c.PausedUntil, c.PauseReason = false, task.Time{}, ""

	return c
}

func needsOfSources(before, after *task.Spec) []Need {
	isNew := func(s task.Source) bool {
		if before == nil {
			return true
		}
		was := before.After.Find(s.Task)
		return was == nil || !was.Equal(s)
	}
	if !slices.ContainsFunc(after.After, isNew) {
		return nil
	}

	return []Need{{Verb: Read, Kind: Tasks, Namespace: after.Namespace}, {Verb: Read, Kind: Runs, Namespace: after.Namespace}}
}

func needsOfSecrets(before, after *task.Spec) []Need {
	names := after.Action.SecretNames()
	if before != nil && sameExecution(before, after) {
		known := before.Action.SecretNames()
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(known, name) })
	}

	if len(names) == 0 {
		return nil
	}

	return []Need{{Verb: Use, Kind: Secrets, Namespace: after.Namespace}}
}

// sameExecution reports whether what runs, as whom, and where has not changed. That includes what a manual run may give:
// with another argument or variable, a command could print a secret.
func sameExecution(a, b *task.Spec) bool {
	return sameJSON(a.Action, b.Action) && sameJSON(a.Target, b.Target) && sameJSON(a.Success, b.Success) && sameJSON(a.Accept, b.Accept) &&
		a.Output.MasksSecrets() == b.Output.MasksSecrets()
}

// sameJSON compares values as records have them: a list that is empty equals one that is nil.
func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)

	return errX == nil && errY == nil && bytes.Equal(x, y)
}
