// Package namespace implements "carillon namespace": list, create, update and delete the records of namespaces, which limit
// what the tasks of a namespace may be.
package namespace

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon namespace".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "namespace",
		Aliases: []string{"namespaces", "ns"},
		Short:   "Manage namespaces and what their tasks may be",
		Long: "Manage namespaces. Tasks can be created only in a namespace that exists, and may be only what it allows: what a\n" +
			"namespace does not list is forbidden. Roles give access to its tasks; see carillon access grant.",
	}
	cmd.AddGroup(&cobra.Group{ID: "look", Title: "View:"}, &cobra.Group{ID: "change", Title: "Change:"})
	factory.AddGroup(cmd, "look", listCommand(f), getCommand(f))
	factory.AddGroup(cmd, "change", createCommand(f), updateCommand(f), deleteCommand(f))

	return cmd
}

// namespaces are namespaces as commands name them.
var namespaces = batch.Named[task.Namespace]{
	Kind: "namespace", Name: func(n task.Namespace) string { return n.Name },
	List: func(ctx context.Context, c *client.Client) ([]task.Namespace, error) { return c.Namespaces.List(ctx) },
	Get: func(ctx context.Context, c *client.Client, name string) (task.Namespace, error) {
		return c.Namespaces.Get(ctx, name)
	},
	Delete: func(ctx context.Context, c *client.Client, name string) error {
		return c.Namespaces.Delete(ctx, name, 0)
	},
}

// writtenNamespaces are namespaces as commands create and change them.
var writtenNamespaces = batch.Written[task.Namespace, client.NamespaceChange]{
	Named: namespaces,
	Put: func(ctx context.Context, c *client.Client, n task.Namespace, as client.Writing) (client.NamespaceChange, error) {
		return c.Namespaces.Put(ctx, n, as)
	},
	DryRun: func(ctx context.Context, c *client.Client, n task.Namespace, as client.Writing) (client.NamespaceChange, error) {
		return c.Namespaces.DryRunPut(ctx, n, as)
	},
	Outcome: func(a client.NamespaceChange) (int64, *client.Change) { return a.Revision, a.DryRun },
	Warn:    warnAbout,
	Next:    func(name string) string { return "carillon access grant editor SUBJECT --in " + name },
}

func listCommand(f *factory.Factory) *cobra.Command {
	return batch.BindList(f, &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the namespaces that you may read",
		Example: "  carillon namespace list\n  carillon namespace list -o wide",
	}, namespaces, func(list []task.Namespace, wide bool) *output.Table { return namespaceTable(f, list, wide) })
}

func namespaceTable(f *factory.Factory, list []task.Namespace, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"NAME", "RUN AS", "SHELL", "NODES", "DESCRIPTION"}, Empty: "no namespaces that you may read"}
	if wide {
		g.Headers = append(g.Headers, "GROUPS", "ENV FILES", "UPDATED", "BY")
	}

	for _, n := range list {
		shell := "no"
		if n.Shell {
			shell = "yes"
		}

		row := []string{n.Name, allowedCell(f, n.RunAs), shell, cmp.Or(output.OneLine(n.Nodes), "all"), output.OneLine(n.Description)}
		if wide {
			row = append(row, allowedCell(f, n.Groups), allowedCell(f, n.EnvFiles), f.PastTime(n.UpdatedAt, output.ReaderZone), view.ActorCell(f, n.UpdatedBy))
		}
		g.AddRow(row...)
	}

	return g
}

// allowedCell is a list of what is allowed, in a cell of a table.
func allowedCell(f *factory.Factory, names []string) string {
	if len(names) == 1 && names[0] == "*" {
		return "any"
	}
	return cmp.Or(output.OneLine(strings.Join(names, ",")), f.NoValue())
}

// allowedText is a list of what is allowed; none is what holds without a list.
func allowedText(names []string, none string) string {
	switch {
	case len(names) == 0:
		return none
	case len(names) == 1 && names[0] == "*":
		return "any"
	}
	return strings.Join(names, ", ")
}

func getCommand(f *factory.Factory) *cobra.Command {
	return batch.BindGet(f, &cobra.Command{
		Use:     "get NAME",
		Short:   "Show what the tasks of a namespace may be",
		Example: "  carillon namespace get billing\n  carillon namespace get billing -o yaml",
		Args:    factory.Args(1, 1, "the namespace's name"), ValidArgsFunction: complete.At(complete.Namespaces(f), nil),
	}, namespaces, func(_ context.Context, _ *client.Client, d *output.Details, n task.Namespace) {
		describeNamespace(f, d, n)
	})
}

func describeNamespace(f *factory.Factory, d *output.Details, n task.Namespace) {
	shell := "not allowed"
	if n.Shell {
		shell = "allowed"
	}

	d.Field("Name", "%s", n.Name)
	d.Field("Description", "%s", n.Description)
	d.Field("Run as", "%s", allowedText(n.RunAs, "only the default user of the node"))
	d.Field("Groups", "%s", allowedText(n.Groups, "only those of the user"))
	d.Field("Shell actions", "%s", shell)
	d.Field("Environment files", "%s", allowedText(n.EnvFiles, "none"))
	d.Field("Nodes", "%s", cmp.Or(n.Nodes, "all"))
	d.Field("Reads of output", "%s", recordedText(n.AuditReads))
	d.Field("Metrics", "%s", metricsText(n.TaskMetrics))
	d.Field("Created", "%s", view.ChangedText(f, n.CreatedAt, n.CreatedBy))
	d.Field("Updated", "%s", view.ChangedText(f, n.UpdatedAt, n.UpdatedBy))
	d.Field("Revision", "%s", view.RevisionText(n.Revision))
}

// recordedText says whether reads of output leave audit records.
func recordedText(recorded bool) string {
	if recorded {
		return "have audit records"
	}
	return ""
}

// metricsText says whether each task has metrics of its own.
func metricsText(has bool) string {
	if has {
		return "of each task"
	}
	return ""
}

// namespaceFlags are the flags of create and update.
type namespaceFlags struct {
	runAs, groups, envFiles []string
	shell, auditReads       bool
	taskMetrics             bool
	nodes, description      string
	dryRun                  bool
}

func (nf *namespaceFlags) defineFlags(f *factory.Factory, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&nf.runAs, "run-as", nil, "OS `USERS` that tasks may name; * for any (default: none, so tasks run as the default user of their node)")
	flags.StringSliceVar(&nf.groups, "groups", nil, "OS `GROUPS` that tasks may name; * for any except those whose members are root in effect, such as docker (default: none)")
	flags.BoolVar(&nf.shell, "shell", false, "tasks may use shell actions")
	flags.StringSliceVar(&nf.envFiles, "env-files", nil, "files on nodes that tasks may read with env_from and stdin: absolute `PATHS`, directories that end in /, or * for any (default: none)")
	flags.StringVar(&nf.nodes, "nodes", "", "`SELECTOR` of the nodes that run the tasks (default: all nodes)")
	flags.BoolVar(&nf.auditReads, "audit-reads", false, "write an audit record of each request that reads the output of a run")
	flags.BoolVar(&nf.taskMetrics, "task-metrics", false, "report metrics of each task, unless its field metrics is false")
	flags.StringVar(&nf.description, "description", "", "`TEXT` that describes the namespace")
	flags.BoolVar(&nf.dryRun, "dry-run", false, "validate the change on the server and print it, without making it")
	complete.Register(cmd, "nodes", complete.NodeLabels(f))
}

// applyTo changes the fields whose flags were given.
func (nf *namespaceFlags) applyTo(cmd *cobra.Command, n *task.Namespace) (changed bool) {
	for flag, set := range map[string]func(){
		"run-as":       func() { n.RunAs = nf.runAs },
		"groups":       func() { n.Groups = nf.groups },
		"shell":        func() { n.Shell = nf.shell },
		"env-files":    func() { n.EnvFiles = nf.envFiles },
		"nodes":        func() { n.Nodes = nf.nodes },
		"audit-reads":  func() { n.AuditReads = nf.auditReads },
		"task-metrics": func() { n.TaskMetrics = nf.taskMetrics },
		"description":  func() { n.Description = nf.description },
	} {
		if cmd.Flags().Changed(flag) {
			set()
			changed = true
		}
	}

	return changed
}

// unsettable are the fields that --unset clears.
var unsettable = map[string]func(*task.Namespace){
	"run-as":       func(n *task.Namespace) { n.RunAs = nil },
	"groups":       func(n *task.Namespace) { n.Groups = nil },
	"shell":        func(n *task.Namespace) { n.Shell = false },
	"env-files":    func(n *task.Namespace) { n.EnvFiles = nil },
	"nodes":        func(n *task.Namespace) { n.Nodes = "" },
	"audit-reads":  func(n *task.Namespace) { n.AuditReads = false },
	"task-metrics": func(n *task.Namespace) { n.TaskMetrics = false },
	"description":  func(n *task.Namespace) { n.Description = "" },
}

// unsettableNames are their names, in the order of the help.
var unsettableNames = []string{"run-as", "groups", "shell", "env-files", "nodes", "audit-reads", "task-metrics", "description"}

func createCommand(f *factory.Factory) *cobra.Command {
	var o namespaceFlags
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a namespace",
		Long: "Create a namespace. Without flags its tasks run as the default user of their node, cannot name other users or\n" +
			"groups, use no shell and read no environment files of nodes. Each flag allows more.",
		Example: `  carillon namespace create billing
  carillon namespace create billing --run-as billing,batch --nodes 'pool=batch' --description 'Invoices'
  carillon namespace create legacy --run-as '*' --groups '*' --shell --env-files /etc/legacy/`,
		Args: factory.Args(1, 1, "the namespace's name"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	o.defineFlags(f, cmd)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := factory.RefuseEmpty(cmd, "nodes"); err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		n := task.Namespace{Name: words[0]}
		o.applyTo(cmd, &n)

		return writtenNamespaces.Write(cmd.Context(), f, c, n, client.Writing{Create: true}, o.dryRun)
	}

	return cmd
}

func updateCommand(f *factory.Factory) *cobra.Command {
	var o namespaceFlags
	var unset []string
	var revision int64
	cmd := &cobra.Command{
		Use:   "update NAME",
		Short: "Change what the tasks of a namespace may be",
		Long: "Change a namespace. A flag replaces its whole list, and --unset clears it. The command names tasks that the namespace\n" +
			"no longer allows: their runs fail until you change the tasks or the namespace. Check this first with --dry-run.",
		Example: `  carillon namespace update billing --run-as billing
  carillon namespace update billing --shell=false --unset env-files --dry-run
  carillon namespace update billing --nodes 'pool in (batch, spare)'`,
		Args: factory.Args(1, 1, "the namespace's name"), ValidArgsFunction: complete.At(complete.Namespaces(f), nil),
	}
	o.defineFlags(f, cmd)
	cmd.Flags().StringSliceVar(&unset, "unset", nil, "clear these `FIELDS`: "+strings.Join(unsettableNames, ", "))
	cmd.Flags().Int64Var(&revision, "revision", 0, "change the namespace only if it is at this revision, `REV` in carillon namespace get")
	complete.RegisterFixed(cmd, "unset", unsettableNames...)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		for _, name := range unset {
			if unsettable[name] == nil {
				return failure.Usage("--unset %s: use %s", task.Quote(name), strings.Join(unsettableNames, ", "))
			}
			if cmd.Flags().Changed(name) {
				return failure.Usage("--%s and --unset %s exclude each other", name, name)
			}
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		before, err := namespaces.Find(cmd.Context(), f, c, words[0])
		if err != nil {
			return err
		}

		n := before
		if !o.applyTo(cmd, &n) && len(unset) == 0 {
			return failure.Usage("namespace update: nothing to change; use one of its flags")
		}
		for _, name := range unset {
			unsettable[name](&n)
		}

		// Replace only the version that was read, so that no other change is lost.
		as := client.Writing{Revision: cmp.Or(revision, before.Revision)}

		return writtenNamespaces.Write(cmd.Context(), f, c, n, as, o.dryRun)
	}

	return cmd
}

// warnAbout prints the warnings about a change, and names the tasks that the namespace no longer allows.
func warnAbout(f *factory.Factory, change client.NamespaceChange) {
	for _, w := range change.Warnings {
		f.Note("warning: %s", output.OneLine(w))
	}

	if change.Incomplete {
		f.Note("note: only the first %d tasks of the namespace were checked", change.Checked)
	}
	if change.ForbiddenCount == 0 {
		return
	}

	f.Note("warning: %s not allowed any more, so their runs fail:", tasksAre(change.ForbiddenCount))
	for _, t := range change.Forbidden {
		f.Note("  %s: %s", output.OneLine(t.Name), output.OneLine(t.Reason))
	}
	if rest := change.ForbiddenCount - len(change.Forbidden); rest > 0 {
		f.Note("  and %d more", rest)
	}
}

func tasksAre(n int) string {
	if n == 1 {
		return "1 task is"
	}
	return fmt.Sprintf("%d tasks are", n)
}

func deleteCommand(f *factory.Factory) *cobra.Command {
	return batch.BindDelete(f, &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete empty namespaces",
		Long: "Delete namespaces. A namespace that has tasks or secrets, or that a binding names, cannot be deleted. Audit records\n" +
			"of the namespace remain.",
		Example:           "  carillon namespace delete billing\n  carillon namespace delete 'tmp-*' --dry-run",
		ValidArgsFunction: complete.Namespaces(f),
	}, "delete", "deleted", namespaces)
}
