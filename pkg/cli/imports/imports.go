// Package imports implements "carillon import". It converts crontabs, Kubernetes CronJobs, systemd timers and Dkron
// jobs to tasks, reports what it cannot convert, and applies the rest.
package imports

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/apply"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon import".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{Use: "import", Short: "Import crontabs, Kubernetes CronJobs, systemd timers and Dkron jobs"}
	cmd.AddCommand(crontabCommand(f), kubernetesCommand(f), systemdCommand(f), dkronCommand(f), compareCommand(f))
	return cmd
}

// importSession is an import in progress.
type importSession struct {
	*factory.Factory
	importer.Options
	dryRun, anyNode bool
	result          importer.Result

	// For a tree of hosts.
	tree   string // its path; "": the files are not a tree
	hosts  []string
	groups []importer.HostGroup // those that a task selects
	prune  bool                 // delete tasks whose lines are no longer in the tree
}

// newImportSession returns an import without results.
func newImportSession(f *factory.Factory) *importSession { return &importSession{Factory: f} }

// bindFlags declares the flags. node and zone describe the defaults in the help.
func (i *importSession) bindFlags(cmd *cobra.Command, node, zone string) {
	f := cmd.Flags()
	f.BoolVar(&i.dryRun, "dry-run", false, "print the tasks as YAML and apply nothing")
	f.BoolVar(&i.Shadow, "shadow", false, "create shadow tasks, which record their ticks and start no process")
	f.StringVar(&i.Node, "node", "", "run on the node with this `NAME` ("+node+")")
	f.BoolVar(&i.anyNode, "any-node", false, "run on any node")
	f.StringVar(&i.Timezone, "timezone", "", "time `ZONE` of schedules without one ("+zone+")")
	f.StringVar(&i.Prefix, "prefix", "", "prefix task names with this `TEXT` (default: the node, if you name one)")
	f.IntVar(&i.Keep, "keep", 0, "keep the last `N` ended runs, or ticks of shadow tasks, in the history (default 20; shadow tasks also those of 48 h)")
	complete.Register(cmd, "node", complete.Nodes(i.Factory))

	for _, name := range []string{"prefix", "keep"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

// fillDefaults checks the flags and sets those that depend on this host. local states that the source belongs
// to this host.
func (i *importSession) fillDefaults(cmd *cobra.Command, local bool) error {
	if err := factory.RefuseEmpty(cmd, "node", "timezone"); err != nil {
		return err
	}
	if i.anyNode && i.Node != "" {
		return failure.Usage("--node and --any-node cannot be used together")
	}

	if cmd.Flags().Changed("namespace") || i.Env("CARILLON_NAMESPACE") != "" {
		i.Options.Namespace = i.Factory.Namespace()
	}

	switch {
	case i.Node != "":
		if err := task.CheckName("node", i.Node); err != nil {
			return err
		}
	case local && !i.anyNode:
		// Jobs of this host stay on this host, whatever the name of its node is. They are selected by the label
		// host, because the node of "carillon dev" is called dev.
		i.Host = hostLabel()
		i.Hostname, _ = os.Hostname() // hostLabel has a default for a host without a name
	}

	if pinnedTo := cmp.Or(i.Node, i.Host); pinnedTo != "" && !cmd.Flags().Changed("prefix") {
		i.Prefix = pinnedTo
	}

	if local {
		i.Home = homeOf
	}

	if i.Timezone != "" {
		_, err := schedule.Location(i.Timezone)
		return err
	}

	if !local {
		return nil
	}

	var err error
	i.Timezone, err = output.ZoneName(i.Env("TZ"), output.EtcDir("/etc"))

	return err
}

// printOrApply reports what was not imported, and prints or applies the tasks. If something was not imported
// and everything else succeeded, the exit code is ExitFinding.
func (i *importSession) printOrApply(ctx context.Context) error {
	i.result.NoteChains()

	if i.dryRun {
		i.printRefusals()
		if err := i.printTasks(); err != nil {
			return err
		}
		if len(i.result.Jobs) == 0 && len(i.result.Refusals) == 0 {
			i.Note("nothing to import")
		}

		return i.exitError(nil)
	}

	i.printRemarks()
	i.printRefusals()
	r := apply.New(i.Factory)
	r.Scoped = i.Options.Namespace != ""
	for _, j := range i.result.Jobs {
		r.Objects = append(r.Objects, manifest.Made(j.File, j.Line, j.Spec))
	}

	if i.tree != "" && len(r.Objects) > 0 {
		return i.exitError(i.deliverTree(ctx, r))
	}

	if len(r.Objects) == 0 {
		if i.ForPeople() {
			i.Note("nothing to import")
		}
		return i.exitError(r.Emit())
	}

	return i.exitError(r.Deliver(ctx))
}

// exitError returns err, or the error for an incomplete import.
func (i *importSession) exitError(err error) error {
	if n := len(i.result.Refusals); n > 0 {
		if i.ForPeople() {
			i.Note("not imported: %d; see above", n)
		}

		if err == nil {
			return failure.AlreadyReported([]int{failure.ExitFinding})
		}
	}

	return err
}

// printRefusals reports what was not imported, in the form of errors.
func (i *importSession) printRefusals() {
	for _, r := range i.result.Refusals {
		i.Report(&failure.Error{Exit: failure.ExitFinding, Location: r.Place.String(), Problem: failure.Problem{Code: codeNotImported, Message: "not imported: " + r.Why}})
	}
}

// codeNotImported is the code for a part of another system's file that cannot become a task.
const codeNotImported = "not_imported"

// printRemarks reports settings without an equivalent.
func (i *importSession) printRemarks() {
	if !i.ForPeople() {
		return
	}

	for _, n := range i.result.Notes {
		i.Note("%s: note: %s", output.Sanitize(n.Place.String()), output.Sanitize(n.Why))
	}

	for _, j := range i.result.Jobs {
		for _, text := range j.Notes {
			i.Note("%s: %s: note: %s", output.Sanitize(j.Place.String()), j.Spec.Name, output.Sanitize(text))
		}
	}
}

// addResult adds the result of a file.
func (i *importSession) addResult(r importer.Result) { i.result.Join(r) }

// eachFile reads files or standard input and calls take for each. An error ends it before anything is changed.
func (i *importSession) eachFile(ctx context.Context, files []string, take func(name, text string)) error {
	stdin := false
	for _, file := range files {
		if file == "-" && stdin {
			return failure.Usage("standard input can be read only once")
		}

		stdin = stdin || file == "-"
		name, b, err := apply.Load(ctx, i.Factory, file)
		if err != nil {
			return err
		}
		if len(b) > importer.MaxFile {
			return fmt.Errorf("%s: is larger than %d bytes", name, importer.MaxFile)
		}

		take(name, string(b))
	}

	return nil
}

// listFiles returns the files that paths name. A directory stands for the files in it for which wanted returns
// true, in the order of their names. It is an error if there are none, or if a directory has only directories. what
// names these files.
func listFiles(paths []string, what string, wanted func(name string) bool) (files []string, err error) {
	var empty []string // directories without such a file
	nested := false
	for _, p := range paths {
		info, err := os.Stat(p)
		if p == "-" || err == nil && !info.IsDir() {
			files = append(files, p)
			continue
		}

		if err != nil {
			return nil, fmt.Errorf("%s: %s", p, failure.FileReason(err))
		}

		entries, err := os.ReadDir(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %s", p, failure.FileReason(err))
		}

		before, directories := len(files), 0
		for _, e := range entries {
			path := filepath.Join(p, e.Name())
			info, err := os.Stat(path)
			switch {
			case err != nil:
			case info.IsDir():
				directories++
			case info.Mode().IsRegular() && wanted(e.Name()):
				files = append(files, path)
			}
		}

		if len(files) == before {
			empty = append(empty, p)
			nested = nested || directories > 0
		}
	}

	if nested {
		return nil, fmt.Errorf("%s: contains no %s; directories in it are not read", strings.Join(empty, ", "), what)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: contains no %s", strings.Join(empty, ", "), what)
	}

	return slices.Compact(files), nil
}

// notInNodeName matches characters that the name of a node cannot contain.
var notInNodeName = regexp.MustCompile(`[^a-z0-9._-]+`)

// hostLabel returns the value of the label host on nodes of this host.
func hostLabel() string {
	host, err := os.Hostname()
	if err != nil {
		return "node"
	}

	return cmp.Or(labelOfHost(host), "node")
}

// labelOfHost returns the value of the label host on nodes of a host with this name, or "" if the name is not one.
func labelOfHost(host string) string {
	name, _, _ := strings.Cut(strings.ToLower(host), ".")
	return strings.Trim(notInNodeName.ReplaceAllString(name, "-"), "-._")
}

// printTasks prints the tasks in a form that can be applied. YAML also contains the remarks as comments.
func (i *importSession) printTasks() error {
	if i.Format != output.FormatTable && i.Format != output.FormatWide && i.Format != output.FormatYAML {
		specs := make([]task.Spec, len(i.result.Jobs))
		for n, j := range i.result.Jobs {
			specs[n] = j.Spec
		}

		return output.EmitList(&i.Factory.Printer, specs, func(s task.Spec) string {
			return selection.Show(i.Factory, selection.Ref{Namespace: s.Namespace, Name: s.Name})
		}, nil)
	}

	var b bytes.Buffer

	if i.tree != "" {
		for _, line := range i.expectation() {
			writeRemark(&b, importer.Place{File: filepath.Clean(i.tree)}, line)
		}
	}

	for _, r := range i.result.Refusals {
		writeRemark(&b, r.Place, "not imported: "+r.Why)
	}

	for _, n := range i.result.Notes {
		writeRemark(&b, n.Place, n.Why)
	}

	for n, j := range i.result.Jobs {
		if n > 0 || b.Len() > 0 {
			b.WriteString("---\n")
		}

		writeRemark(&b, j.Place, strings.Join(j.Notes, "\n"))
		least, err := manifest.MinimalSpec(j.Spec, false)
		if err != nil {
			return err
		}

		y, err := manifest.WriteYAML(least)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}

		b.Write(y)
	}

	return i.Factory.Print(b.String())
}

// writeRemark writes a remark as a YAML comment.
func writeRemark(b *bytes.Buffer, at importer.Place, text string) {
	fmt.Fprintf(b, "# %s", output.Sanitize(at.String()))
	if text = output.Sanitize(text); text != "" {
		b.WriteString(": " + strings.ReplaceAll(text, "\n", "\n#   "))
	}
	b.WriteString("\n")
}
