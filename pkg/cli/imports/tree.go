package imports

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/apply"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/task"
)

// collectScript writes a tree of hosts.
//
//go:embed collect.sh
var collectScript string

// A tree of hosts is a directory with a directory HOST for each host, which contains the crontabs of the host at their paths,
// and facts about the host:
//
//	etc/crontab, etc/cron.d/*, etc/anacrontab
//	var/spool/cron/crontabs/USER, var/spool/cron/tabs/USER, var/spool/cron/USER
//	etc/hostname, etc/timezone or etc/localtime, etc/debian_version, etc/passwd, usr/sbin/crond
//
// The files come from other hosts. Symbolic links in a tree are not followed out of the directory of their host, so that a host
// cannot have files of this one read.

// crontabDirs are the directories of a host with crontabs, and which files in them cron reads.
var crontabDirs = []struct {
	dir   string
	reads func(name string, debian bool) bool
}{
	{"etc/cron.d", readsSystemFile},
	{"var/spool/cron/crontabs", readsUserFile},
	{"var/spool/cron/tabs", readsUserFile},
	{"var/spool/cron", readsUserFile},
}

// readsSystemFile reports whether cron reads a file in cron.d. Debian's cron accepts only names without dots. Others ignore
// what editors and package managers leave behind.
func readsSystemFile(name string, debian bool) bool {
	if debian {
		return cronReads.MatchString(name)
	}
	return !strings.HasPrefix(name, ".") && !leftBehind.MatchString(name)
}

// leftBehind matches names of files that cronie ignores, or that dpkg leaves behind.
var leftBehind = regexp.MustCompile(`^#|~$|\.(rpm(save|orig|new)|dpkg-[a-z]+|cfsaved)$`)

// readsUserFile reports whether a file is the crontab of a user, and not one that is being edited.
func readsUserFile(name string, _ bool) bool {
	return !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "tmp.") && !strings.HasPrefix(name, "#")
}

// hostFiles returns the paths of a host's crontabs, in a fixed order. A directory that cannot be read is an error, so that no
// crontab is lost.
func hostFiles(host *os.Root, debian bool) (files []string, err error) {
	for _, name := range []string{"etc/crontab", "etc/anacrontab"} {
		if isFile(host, name) {
			files = append(files, name)
		}
	}

	for _, d := range crontabDirs {
		entries, err := fs.ReadDir(host.FS(), d.dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // most hosts have only some of the directories
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s", d.dir, failure.FileReason(err))
		}

		for _, e := range entries {
			if file := path.Join(d.dir, e.Name()); d.reads(e.Name(), debian) && isFile(host, file) {
				files = append(files, file)
			}
		}
	}

	return files, nil
}

// isFile reports whether a host has a file, which may be a link. A link that leads out of the tree counts, so that reading it
// fails with an error.
func isFile(host *os.Root, name string) bool {
	info, err := host.Stat(name)
	if err == nil {
		return info.Mode().IsRegular()
	}

	info, err = host.Lstat(name)

	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// hasCrontabs reports whether a directory could be that of a host.
func hasCrontabs(dir string) bool {
	for _, name := range []string{"etc/crontab", "etc/cron.d", "var/spool/cron"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// findTree returns whether paths is a tree of hosts, and an error if one of several paths is.
func findTree(paths []string) (is bool, err error) {
	for _, p := range paths {
		if p == "-" {
			continue
		}

		entries, err := os.ReadDir(p)
		if err != nil {
			continue // a file, or an error that reading it reports
		}
		if hasCrontabs(p) {
			return false, failure.Usage("%s: contains the files of one host", p).WithHint("name the directory above it, or its crontabs, such as %s", filepath.Join(p, "etc/crontab"))
		}

		for _, e := range entries {
			if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && hasCrontabs(filepath.Join(p, e.Name())) {
				if len(paths) > 1 {
					return false, failure.Usage("%s: a tree of hosts must be the only argument", p)
				}
				return true, nil
			}
		}
	}

	return false, nil
}

// importTree reads a tree of hosts.
func (i *importSession) importTree(dir string, groups []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("%s: %s", dir, failure.FileReason(err))
	}

	if i.Options.Tree, err = treeName(i.Prefix, dir); err != nil {
		return err
	}

	var results []importer.HostResult
	dirs := map[string]string{} // the directory of each host

	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}

		r, err := i.readHost(dir, e.Name())
		if err != nil {
			return err
		}

		if other, ok := dirs[r.Host]; ok {
			return fmt.Errorf("%s and %s are both the host %s: the name of a host ends at its first dot; its label is the same on the nodes of both, so import them as separate trees, with --prefix", filepath.Join(dir, other), filepath.Join(dir, e.Name()), r.Host)
		}
		dirs[r.Host] = e.Name()
		i.hosts = append(i.hosts, r.Host)
		results = append(results, r)
	}

	list, err := readGroups(groups, i.hosts)
	if err != nil {
		return err
	}

	i.result = importer.MergeHosts(results, list, i.Options)
	i.tree = dir

	for _, g := range list {
		if slices.ContainsFunc(i.result.Jobs, func(j importer.Job) bool { return j.Spec.Target.Selector == g.Selector() }) {
			i.groups = append(i.groups, g)
		} else {
			i.Note("--group %s=%s: no task selects it, because no line is the same exactly on the hosts of the group (%d)", g.Label, g.Value, len(g.Hosts))
		}
	}

	if len(i.result.Jobs) == 0 && len(i.result.Refusals) == 0 {
		return fmt.Errorf("%s: its crontabs contain no jobs", dir)
	}

	return nil
}

// treeName returns what distinguishes the tasks of a tree from those of other trees: the prefix, or else the name of the
// directory.
func treeName(prefix, dir string) (string, error) {
	path, err := filepath.Abs(dir) // "." has no name
	if err != nil {
		return "", fmt.Errorf("%s: %s", dir, failure.FileReason(err))
	}

	return importer.TreeName(cmp.Or(prefix, filepath.Base(path))), nil
}

// readHost reads the crontabs of a host in a tree.
func (i *importSession) readHost(tree, name string) (r importer.HostResult, err error) {
	r.Dir = filepath.Join(tree, name) + "/"

	root, err := os.OpenRoot(r.Dir)
	if err != nil {
		return r, fmt.Errorf("%s: %s", r.Dir, failure.FileReason(err))
	}
	defer root.Close()

	o := i.Options
	if r.Host, err = treeHost(root, name); err != nil {
		return r, fmt.Errorf("%s: %w", r.Dir, err)
	}
	if o.Timezone, err = treeZone(root, r.Dir, i.Timezone); err != nil {
		return r, err
	}

	o.Host = r.Host
	o.Prefix = strings.Trim(i.Prefix+"-"+r.Host, "-")
	o.Debian = isFile(root, "etc/debian_version") && !isFile(root, "usr/sbin/crond")
	o.Home = treeHomes(root)

	files, err := hostFiles(root, !isFile(root, "usr/sbin/crond"))
	if err != nil {
		return r, fmt.Errorf("%s%w", r.Dir, err)
	}
	if len(files) == 0 {
		r.Result.Refusals = append(r.Result.Refusals, importer.Refusal{Place: importer.Place{File: filepath.Clean(r.Dir)}, Why: "contains no crontabs"})
	}

	for _, file := range files {
		shown := r.Dir + file
		text, err := readTreeFile(root, file)

		form, known := importer.FormOf(file)
		switch {
		case err != nil:
			return r, fmt.Errorf("%s: %s", shown, failure.FileReason(err))
		case !known: // an anacrontab, which is refused
			form = importer.Form{System: true}
		}

		r.Result.JoinNumbered(importer.Crontab(shown, string(text), form, o))
	}

	return r, nil
}

// readTreeFile reads a regular file of at most importer.MaxFile bytes. The files come from another host, which must not have the
// import wait for a FIFO, or read without an end.
func readTreeFile(root *os.Root, name string) ([]byte, error) {
	info, err := root.Stat(name) // to open a FIFO would block
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}

	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	b, err := io.ReadAll(io.LimitReader(f, importer.MaxFile+1))
	if err == nil && len(b) > importer.MaxFile {
		err = fmt.Errorf("is larger than %d bytes", importer.MaxFile)
	}

	return b, err
}

// treeHost returns the value of the label host on nodes of a host: the first part of the name of its directory. The name in
// etc/hostname must be the same. It comes from the host, which could otherwise have its lines run on another one, and it is what
// the node of the host has as its label, so that the tasks of a directory with another name would run nowhere.
func treeHost(root *os.Root, dir string) (string, error) {
	var stated string
	b, err := readTreeFile(root, "etc/hostname")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("etc/hostname: %s", failure.FileReason(err))
	}
	if err == nil {
		stated = labelOfHost(strings.TrimSpace(string(b)))
	}

	name := labelOfHost(dir)
	if _, err := netip.ParseAddr(dir); err == nil {
		name = ""
	}

	switch {
	case name != "" && (stated == "" || stated == name):
		return name, nil
	case stated != "":
		return "", fmt.Errorf("etc/hostname in it says that the host is %s: if this is true, name the directory %s, or else correct or delete the file", task.Quote(stated), stated)
	}

	return "", errors.New("is not the name of a host: name the directory as the host is called")
}

// treeZone returns the time zone of the host in a directory: the one that its files name, or else standard.
func treeZone(root *os.Root, dir, standard string) (string, error) {
	unknown := failure.Usage("%s: the time zone of the host is not known", dir).
		WithHint("write its name in etc/timezone in this directory, or use --timezone for all such hosts")

	_, err := root.Lstat("etc/localtime")
	_, err2 := root.Lstat("etc/timezone")
	if err2 == nil { // an unreadable file must not become UTC
		if _, err := readTreeFile(root, "etc/timezone"); err != nil {
			return "", fmt.Errorf("%setc/timezone: %s", dir, failure.FileReason(err))
		}
	}

	if err == nil || err2 == nil { // without both files, the zone would be UTC
		etc, err := root.OpenRoot("etc")
		if err != nil {
			return "", fmt.Errorf("%setc: %s", dir, failure.FileReason(err))
		}
		defer etc.Close()

		if zone, err := output.ZoneName("", treeEtc{etc}); err == nil {
			return zone, nil
		}
	}

	if standard == "" {
		return "", unknown
	}

	return standard, nil
}

// treeEtc are the files in the directory etc of a host.
type treeEtc struct{ *os.Root }

func (t treeEtc) ReadFile(name string) ([]byte, error) { return readTreeFile(t.Root, name) }

// treeHomes returns a function for the home directories of a host's users, or nil if the tree has no etc/passwd.
func treeHomes(root *os.Root) func(string) string {
	b, err := readTreeFile(root, "etc/passwd")
	if err != nil {
		return nil
	}

	homes := map[string]string{}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if fields := strings.Split(s.Text(), ":"); len(fields) >= 6 {
			homes[fields[0]] = cmp.Or(fields[5], "/")
		}
	}

	return func(user string) string { return homes[user] }
}

// readGroups parses values of --group, such as "role=web: web*". The patterns select hosts of the tree.
func readGroups(values, hosts []string) (groups []importer.HostGroup, err error) {
	for _, v := range values {
		label, patterns, ok := strings.Cut(v, ":")
		key, value, ok2 := strings.Cut(label, "=")
		g := importer.HostGroup{Label: strings.TrimSpace(key), Value: strings.TrimSpace(value)}
		if !ok || !ok2 {
			return nil, failure.Usage("--group %s: use LABEL=VALUE:HOST,…, for example --group 'role=web:web*'", task.Quote(v))
		}
		if err := task.CheckLabels("--group", map[string]string{g.Label: g.Value}); err != nil {
			return nil, err
		}

		for p := range strings.SplitSeq(patterns, ",") {
			p = strings.TrimSpace(p)
			before := len(g.Hosts)
			for _, h := range hosts {
				matches, err := path.Match(p, h)
				if err != nil {
					return nil, failure.Usage("--group %s: %s is not a pattern", task.Quote(v), task.Quote(p))
				}
				if matches && !slices.Contains(g.Hosts, h) {
					g.Hosts = append(g.Hosts, h)
				}
			}

			if len(g.Hosts) == before {
				return nil, failure.Usage("--group %s: no host of the tree is %s", task.Quote(v), task.Quote(p))
			}
		}

		groups = append(groups, g)
	}

	return groups, nil
}

// expectation returns what the nodes must have, so that the tasks of the tree run.
func (i *importSession) expectation() (lines []string) {
	lines = append(lines, fmt.Sprintf("each host needs a node, whose label host is the name of the host without you setting it; %s: %s", output.Plural(int64(len(i.hosts)), "host"), strings.Join(i.hosts, " ")))

	for _, g := range i.groups {
		lines = append(lines, fmt.Sprintf("only the nodes of the group need the label %s=%s (labels: {%s: %s} in agent.yaml); %s: %s",
			g.Label, g.Value, g.Label, g.Value, output.Plural(int64(len(g.Hosts)), "host"), strings.Join(g.Hosts, " ")))
	}

	return lines
}

// treeSelector selects the tasks of a tree.
func (i *importSession) treeSelector() string {
	return importer.LabelKind + " = crontab, " + importer.LabelTree + " = " + i.Options.Tree
}

// checkTree compares the tree with the cluster after an import: it names hosts without a node, nodes without a label, and tasks of
// an earlier import whose lines are no longer in the tree, because these still run. It returns an error if there are such tasks.
func (i *importSession) checkTree(ctx context.Context, c *client.Client) error {
	nodes, readable, err := listNodes(ctx, c)
	if err != nil {
		return err
	}

	if readable {
		i.noteMissing("have no node yet, and their jobs do not run: %s", i.hosts, func(h string) bool {
			return slices.ContainsFunc(nodes, func(n task.Node) bool { return n.Labels["host"] == h })
		})

		for _, g := range i.groups {
			i.noteMissing("have no node with the label "+g.Label+"="+g.Value+": %s", g.Hosts, func(h string) bool {
				return slices.ContainsFunc(nodes, func(n task.Node) bool { return n.Labels["host"] == h && n.Labels[g.Label] == g.Value })
			})
		}
	}

	imported := map[string]bool{}
	for _, j := range i.result.Jobs {
		imported[j.Spec.Name] = true
	}

	var left []string
	for t, err := range c.Tasks.All(ctx, client.TaskListOptions{Namespace: i.Factory.Namespace(), Query: client.QueryTerm("selector", i.treeSelector()), Brief: true}) {
		if err != nil {
			return err
		}
		if !imported[t.Name] {
			left = append(left, t.Name)
		}
	}

	if len(left) == 0 {
		return nil
	}

	e := &failure.Error{Exit: failure.ExitFinding, Problem: failure.Problem{
		Code:    codeLeftover,
		Message: fmt.Sprintf("the tree has no imported line for %s of an earlier import: %s", output.Plural(int64(len(left)), "task"), strings.Join(left, " ")),
	}}

	if len(i.result.Refusals) > 0 {
		return e.WithHint("they may belong to what was not imported: correct or remove it in the tree; then import again, and add --prune to delete the tasks that remain")
	}

	return e.WithHint("to delete them, import again with --prune")
}

// checkOtherTrees refuses to change the tasks of another tree. The name of a task for several hosts contains no host, so that two
// trees with the same line have the same name for it, unless they have prefixes.
func (i *importSession) checkOtherTrees(ctx context.Context, c *client.Client) error {
	namespace := i.Factory.Namespace()
	imported := map[string]bool{}
	for _, j := range i.result.Jobs {
		imported[j.Spec.Name] = true
	}

	query := client.QueryTerm("selector", importer.LabelKind+" = crontab, "+importer.LabelTree)
	for t, err := range c.Tasks.All(ctx, client.TaskListOptions{Namespace: namespace, Query: query, Brief: true}) {
		if err != nil {
			return err
		}
		if other := t.Labels[importer.LabelTree]; imported[t.Name] && other != i.Options.Tree {
			return failure.Usage("%s: its task %s would replace the task with this name of another tree, %s", i.tree, t.Name, other).
				WithHint("add --prefix NAME to this import; if it is the same tree, name its directory %s", other)
		}
	}

	return nil
}

// checkPrune refuses to delete tasks while something in the tree was not imported. Its tasks of an earlier import are not among
// those of this import, and would be deleted although their lines, or all crontabs of their host, may only be unreadable.
func (i *importSession) checkPrune() error {
	n := len(i.result.Refusals)
	if n == 0 {
		return nil
	}

	return (&failure.Error{Exit: failure.ExitFinding, Problem: failure.Problem{
		Code:    codeNotImported,
		Message: fmt.Sprintf("--prune: nothing was applied or deleted, because lines, files or hosts of the tree cannot be imported (%d), and --prune would delete the tasks that an earlier import created for them", n),
	}}).WithHint("correct or remove them in the tree, or import without --prune")
}

// listNodes returns the nodes, and whether the user may read them. It asks first, because a refused request is logged.
func listNodes(ctx context.Context, c *client.Client) (nodes []task.Node, readable bool, err error) {
	d, err := c.Access.Can(ctx, client.Question{Verb: "read", Kind: "nodes"})
	if err != nil || !d.Allowed {
		return nil, false, err
	}

	nodes, err = c.Nodes.List(ctx)

	return nodes, err == nil, err
}

// codeLeftover is the code for tasks of an earlier import that the tree no longer has.
const codeLeftover = "not_in_tree"

// noteMissing prints those of hosts for which has is false.
func (i *importSession) noteMissing(format string, hosts []string, has func(string) bool) {
	missing := slices.DeleteFunc(slices.Clone(hosts), has)
	if len(missing) > 0 && i.ForPeople() {
		i.Note("%d of %s "+format, len(missing), output.Plural(int64(len(hosts)), "host"), output.Sanitize(strings.Join(missing, " ")))
	}
}

// deliverTree applies the tasks of a tree.
func (i *importSession) deliverTree(ctx context.Context, r *apply.Operation) error {
	if i.prune {
		if err := i.checkPrune(); err != nil {
			return err
		}
		r.Prune(i.treeSelector())
	}

	c, err := i.Connect()
	if err != nil {
		return err
	}

	if err := i.checkOtherTrees(ctx, c); err != nil {
		return err
	}
	if err := r.Deliver(ctx); err != nil {
		return err
	}

	return i.checkTree(ctx, c)
}
