package imports

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/apply"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/internal/importer"
)

// crontabCommand returns "carillon import crontab".
func crontabCommand(f *factory.Factory) *cobra.Command {
	i := newImportSession(f)
	var system, collect bool
	var owner string
	var groups []string
	cmd := &cobra.Command{
		Use:   "crontab FILE|DIR|-...",
		Short: "Import crontabs as tasks",
		Long: "Convert crontabs, as Vixie cron and compatible programs read them, to tasks, and apply them. The path determines\n" +
			"the format: /etc/crontab and /etc/cron.d have a user column, and /var/spool/cron/crontabs/ann is the crontab of\n" +
			"ann. Any other file is yours, unless its lines have a user column, or you pass --system or --user.\n\n" +
			"The tasks behave as under cron: they run as that user, on this host, in its time zone (or CRON_TZ), may overlap,\n" +
			"and do not catch up. MAILTO becomes output.mail. Lines with the same command become one task with several schedules. Task names are derived\n" +
			"from the file and the command, so importing a file again changes nothing.\n\n" +
			"A directory with a directory for each host, such as hosts/web1/etc/crontab, is a tree of hosts. A line that\n" +
			"several hosts have becomes one task that runs on all of them. Its selector names the hosts, or the label that\n" +
			"their nodes have according to --group. Each host keeps its time zone, which is in its etc/timezone. --collect\n" +
			"prints a shell script that collects such a tree over ssh.\n\n" +
			"The command reports lines that it cannot import, imports the rest, and exits with 8.",
		Example: `  crontab -l | carillon import crontab -
  carillon import crontab /etc/crontab /etc/cron.d --dry-run
  carillon import crontab /etc/cron.d/* --shadow       # ticks are recorded, nothing starts
  carillon import crontab /var/spool/cron/crontabs/ann --node web-1
  carillon import crontab --collect | sh -s hosts/ web1 web2 web3
  carillon import crontab hosts/ --shadow --group 'role=web:web*'
  carillon task list -l imported=crontab,imported-from=ann`,
		Args: func(cmd *cobra.Command, args []string) error {
			if collect {
				return factory.Args(0, 0, "")(cmd, args)
			}
			return factory.Args(1, -1, "the crontab")(cmd, args)
		},
	}
	i.bindFlags(cmd, "default: this host's", "default: this host's")
	cmd.Flags().BoolVar(&system, "system", false, "read files that have a user column")
	cmd.Flags().StringVar(&owner, "user", "", "read the files as the crontab of the user with this `NAME`")
	cmd.Flags().BoolVar(&i.MailOwner, "mail-owner", false, "mail the output of jobs without MAILTO to their user, as cron does")
	cmd.Flags().StringArrayVar(&groups, "group", nil, "nodes of the tree's hosts that match have this `LABEL=VALUE:HOST,…`, and no others (repeatable)")
	cmd.Flags().BoolVar(&i.prune, "prune", false, "delete tasks of an earlier import whose lines the tree no longer has")
	cmd.Flags().BoolVar(&collect, "collect", false, "print a script that collects the crontabs of hosts over ssh")
	for _, name := range []string{"user", "group"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if collect {
			return f.Print(collectScript)
		}
		if system && owner != "" {
			return failure.Usage("--system and --user cannot be used together")
		}

		tree, err := findTree(paths)
		if err == nil {
			err = factory.RefuseEmpty(cmd, "user")
		}
		if err == nil {
			err = i.checkTreeFlags(cmd, tree)
		}
		if err == nil {
			err = i.fillDefaults(cmd, !tree)
		}

		if err != nil {
			return err
		}

		if tree {
			if err := i.importTree(paths[0], groups); err != nil {
				return err
			}
			return i.printOrApply(cmd.Context())
		}

		files, err := listFiles(paths, "crontabs", cronReads.MatchString)
		if err != nil {
			return err
		}

		if i.Node != "" {
			i.Home = nil // the users of another host are not known
		}

		err = i.eachFile(cmd.Context(), files, func(name, text string) {
			form, known := importer.FormOf(name)
			switch {
			case system:
				form = importer.Form{System: true}
			case owner != "":
				form = importer.Form{User: owner}
			case !known:
				var sure bool
				if form.System, sure = importer.GuessForm(text, userExists); !sure {
					i.refuseFile(name, "cannot tell whether the lines have a user column: use --system if they have, or --user NAME")
					return
				}
				i.noteForm(name, &form)
			}

			ours := i.Node == "" && isOfThisHost(name)
			if ours && form.System && isWritableByOthers(name) {
				i.refuseFile(name, "cron ignores the file, because its group or others can write it: correct its mode with chmod go-w")
				return
			}

			i.Debian = ours && isDebian()
			i.addResult(importer.Crontab(name, text, form, i.Options))
		})

		if err != nil {
			return err
		}

		if len(i.result.Jobs) == 0 && len(i.result.Refusals) == 0 && slices.ContainsFunc(paths, isDirectory) {
			return fmt.Errorf("%s: its crontabs contain no jobs", strings.Join(paths, ", "))
		}

		return i.printOrApply(cmd.Context())
	}

	return cmd
}

// checkTreeFlags refuses flags that have no meaning for a tree of hosts, or only for one.
func (i *importSession) checkTreeFlags(cmd *cobra.Command, tree bool) error {
	for _, name := range []string{"node", "any-node", "system", "user"} {
		if tree && cmd.Flags().Changed(name) {
			return failure.Usage("--%s cannot be used with a tree of hosts", name)
		}
	}

	for _, name := range []string{"group", "prune"} {
		if !tree && cmd.Flags().Changed(name) {
			return failure.Usage("--%s requires a tree of hosts", name)
		}
	}

	return nil
}

// isDirectory reports whether a path is that of a directory.
func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// noteForm completes the form of a crontab whose path does not determine it, and says how the crontab is read.
func (i *importSession) noteForm(name string, form *importer.Form) {
	if form.System {
		i.Note("%s: read as a system crontab, because its lines have a user column", name)
		return
	}

	form.User = currentUser()
	i.Note("%s: read as the crontab of %s; if it has a user column, add --system", name, form.User)
}

// refuseFile refuses a whole file.
func (i *importSession) refuseFile(name, why string) {
	i.addResult(importer.Result{Refusals: []importer.Refusal{{Place: importer.Place{File: name}, Why: why}}})
}

// isOfThisHost reports whether cron of this host reads a file, or the file is the output of crontab -l.
func isOfThisHost(name string) bool {
	path, err := filepath.Abs(name)
	return name == "stdin" || err == nil && (strings.HasPrefix(path, "/etc/") || strings.HasPrefix(path, "/var/spool/"))
}

// isWritableByOthers reports whether somebody else than the owner of a file can write it.
func isWritableByOthers(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Perm()&0o022 != 0
}

// isDebian reports whether this host's cron is that of Debian and its derivatives. Their cronie is called crond.
func isDebian() bool {
	_, err := os.Stat("/etc/debian_version")
	_, err2 := os.Stat("/usr/sbin/crond")
	return err == nil && os.IsNotExist(err2)
}

// userExists reports whether this host has a user.
func userExists(name string) bool { return homeOf(name) != "" }

// homeOf returns the home directory of a user of this host, or "" if there is no such user.
func homeOf(name string) string {
	u, err := user.Lookup(name)
	if err != nil {
		return ""
	}
	return cmp.Or(u.HomeDir, "/")
}

// cronReads matches the names of files that cron reads in a directory. They contain no dots, unlike the files
// that package upgrades leave behind.
var cronReads = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// currentUser returns the name of the current user, or "".
func currentUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

// systemdCommand returns "carillon import systemd".
func systemdCommand(f *factory.Factory) *cobra.Command {
	i := newImportSession(f)
	var owner string
	cmd := &cobra.Command{
		Use:   "systemd UNIT-FILE|DIR|-...",
		Short: "Import systemd timers as tasks",
		Long: "Convert systemd timers and the services that they start to tasks, and apply them. The service of a timer is\n" +
			"looked up in the files that you pass and next to the timer. Calendar events become cron expressions or @at, if\n" +
			"there is an equivalent; OnUnitActiveSec becomes @every. All settings of the service that a task has are\n" +
			"converted. The command reports the others. It reads no drop-ins, except in the output of systemctl cat, and imports\n" +
			"timers that are disabled, too.\n\n" +
			"Units in ~/.config/systemd/user and ~/.local/share/systemd/user run as the owner of that directory. With --user,\n" +
			"all files are units of that user.\n\n" +
			"The command reports what it cannot import with its line, imports the rest, and exits with 8.",
		Example: `  carillon import systemd /usr/lib/systemd/system/fstrim.timer --dry-run
  carillon import systemd /etc/systemd/system --shadow
  carillon import systemd backup.timer backup.service --node db-1
  systemctl cat backup.timer backup.service | carillon import systemd -
  carillon task list -l imported=systemd`,
		Args: factory.Args(1, -1, "the timer"),
	}
	i.bindFlags(cmd, "default: this host's", "default: this host's")
	cmd.Flags().StringVar(&owner, "user", "", "read the files as units of the user with this `NAME`")
	_ = cmd.RegisterFlagCompletionFunc("user", cobra.NoFileCompletions)
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if err := cmp.Or(factory.RefuseEmpty(cmd, "user"), i.fillDefaults(cmd, true)); err != nil {
			return err
		}
		i.Options.User = owner

		files, err := listFiles(paths, "systemd timers", func(name string) bool {
			return strings.HasSuffix(name, ".timer") || strings.HasSuffix(name, ".service")
		})

		if err != nil {
			return err
		}

		var units []importer.Unit
		err = i.eachFile(cmd.Context(), addServices(files), func(name, text string) { units = append(units, readUnits(name, text)...) })
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(units, func(u importer.Unit) bool { return strings.HasSuffix(u.File, ".timer") }) {
			return fmt.Errorf("%s: contains no timer", strings.Join(paths, ", "))
		}

		i.addResult(importer.Systemd(units, i.Options))

		return i.printOrApply(cmd.Context())
	}

	return cmd
}

// readUnits parses the units of a file, and adds its path, which determines the user, and the drop-ins that it does not
// contain.
func readUnits(name, text string) []importer.Unit {
	units := importer.ReadUnits(name, text)
	if path, err := filepath.Abs(name); err == nil && name != "stdin" {
		for i := range units {
			units[i].Path = filepath.ToSlash(path)
		}
		if len(units) == 1 {
			// The output of systemctl cat contains them, each below its path.
			units[0].DropIns = slices.DeleteFunc(findDropIns(path), func(conf string) bool {
				below := filepath.Join(filepath.Base(filepath.Dir(conf)), filepath.Base(conf))
				return strings.Contains(text, "/"+filepath.ToSlash(below)+"\n")
			})
		}
	}

	return units
}

// findDropIns returns the drop-ins of a unit file, in the directories beside it and beside its target if it is a link.
// Those of a unit of a package are in /etc, where systemctl edit creates them.
func findDropIns(unit string) (found []string) {
	files := []string{unit}
	if target, err := filepath.EvalSymlinks(unit); err == nil && target != unit {
		files = append(files, target, filepath.Join(filepath.Dir(target), filepath.Base(unit)))
	}

	for _, f := range files {
		dirs := []string{filepath.Dir(f)}
		for _, vendor := range []string{"/usr/lib/systemd/system", "/lib/systemd/system"} {
			if root, ok := strings.CutSuffix(dirs[0], vendor); ok {
				dirs = append(dirs, filepath.Join(root+"/", "etc/systemd/system"))
				break
			}
		}

		for _, dir := range dirs {
			list, err := filepath.Glob(filepath.Join(dir, filepath.Base(f)+".d", "*.conf"))
			if err != nil {
				continue
			}

			for _, conf := range list {
				if !slices.Contains(found, conf) {
					found = append(found, conf)
				}
			}
		}
	}

	return found
}

// addServices adds the services in the directories of timers. The directory of an enabled timer, timers.target.wants, has
// only links to the timers, and the services are where the links point to.
func addServices(files []string) []string {
	all := slices.Clone(files)
	for _, f := range files {
		if !strings.HasSuffix(f, ".timer") {
			continue
		}

		dirs := []string{filepath.Dir(f)}
		if target, err := filepath.EvalSymlinks(f); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}

		for _, dir := range dirs {
			beside, err := filepath.Glob(filepath.Join(dir, "*.service"))
			if err != nil {
				continue
			}

			for _, s := range beside {
				if info, err := os.Stat(s); err == nil && info.Mode().IsRegular() && !slices.Contains(all, s) {
					all = append(all, s)
				}
			}
		}
	}

	return all
}

// kubernetesCommand returns "carillon import kubernetes".
func kubernetesCommand(f *factory.Factory) *cobra.Command {
	i := newImportSession(f)
	cmd := &cobra.Command{
		Use:   "kubernetes FILE|DIR|-...",
		Short: "Import Kubernetes CronJobs as tasks",
		Long: "Convert Kubernetes CronJobs (batch/v1 and batch/v1beta1, YAML or JSON) to tasks, and apply them: schedule,\n" +
			"time zone, suspend, concurrency policy, deadlines, limits, users, node selectors and retries. The command of a\n" +
			"container runs as a process of the node, without its image; the command reports what is lost. A container without\n" +
			"a command cannot be imported, except with --shadow, because shadow tasks start no process.\n\n" +
			"The namespace is that of the CronJob, unless you pass -n. The command reports what it cannot import with its\n" +
			"line, imports the rest, and exits with 8.",
		Example: `  kubectl get cronjobs -A -o yaml | carillon import kubernetes - --shadow
  carillon import kubernetes manifests/ --dry-run
  helm template . | carillon import kubernetes - --node worker-1
  carillon task list -A -l imported=kubernetes`,
		Args: factory.Args(1, -1, "the manifest"),
	}
	i.bindFlags(cmd, "default: any", "default: UTC")
	cmd.Flags().BoolVar(&i.DropInit, "without-init", false, "import CronJobs with init containers, and do not run these")
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if err := i.fillDefaults(cmd, false); err != nil {
			return err
		}

		files, err := apply.TaskFiles(paths)
		if err != nil {
			return err
		}

		err = i.eachFile(cmd.Context(), files, func(name, text string) { i.addResult(importer.Kubernetes(name, text, i.Options)) })
		if err != nil {
			return err
		}

		return i.printOrApply(cmd.Context())
	}

	return cmd
}

// dkronCommand returns "carillon import dkron".
func dkronCommand(f *factory.Factory) *cobra.Command {
	i := newImportSession(f)
	cmd := &cobra.Command{
		Use:   "dkron FILE|DIR|-...",
		Short: "Import Dkron jobs as tasks",
		Long: "Convert Dkron jobs (JSON, as GET /v1/jobs returns them and backups contain them) to tasks, and apply them: jobs\n" +
			"with the executors shell and http, their schedule, time zone, state, concurrency, retries, tags and metadata.\n\n" +
			"As in Dkron, a job runs on all nodes that have its tags, or on the number that a tag names. A node needs the tags\n" +
			"as labels. With --any-node or --node, each run is on one node.\n\n" +
			"A job with a parent_job becomes a task that runs after its parent. The command reports jobs that it cannot import\n" +
			"with their line, such as those of other executors, imports the rest, and exits with 8.",
		Example: `  curl -s http://dkron:8080/v1/jobs | carillon import dkron - --dry-run
  carillon import dkron jobs.json --shadow       # ticks are recorded, nothing starts
  carillon import dkron jobs.json --any-node --timezone Europe/Berlin
  carillon task list -l imported=dkron`,
		Args: factory.Args(1, -1, "the export"),
	}
	i.bindFlags(cmd, "default: those with the job's tags", "default: UTC")
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if err := i.fillDefaults(cmd, false); err != nil {
			return err
		}
		i.AnyNode, i.Options.Now = i.anyNode, i.Factory.Now()

		files, err := listFiles(paths, "JSON files", func(name string) bool { return strings.HasSuffix(name, ".json") })
		if err != nil {
			return err
		}

		err = i.eachFile(cmd.Context(), files, func(name, text string) { i.addResult(importer.Dkron(name, text, i.Options)) })
		if err != nil {
			return err
		}

		return i.printOrApply(cmd.Context())
	}

	return cmd
}
