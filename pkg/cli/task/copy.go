package task

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// copyCommand returns "carillon task copy".
func copyCommand(f *factory.Factory) *cobra.Command {
	var to string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "copy TASK NAME",
		Short: "Create a task like another one",
		Long: "Create a task with the settings of another one: all fields of carillon task export, also a pause. History, runs, versions,\n" +
			"counts and secrets are not copied. H in a schedule gets other values, because they follow from the name.",
		Example: `  carillon task copy report report-eu
  carillon task copy report report --to-namespace staging
  carillon task copy billing/report report-eu --dry-run`,
		Args:              factory.Args(2, 2, "the name of the task or of the copy"),
		ValidArgsFunction: complete.Task(f),
	}
	cmd.Flags().StringVar(&to, "to-namespace", "", "create the copy in the namespace with this `NAME` (default: that of the task)")
	_ = cmd.RegisterFlagCompletionFunc("to-namespace", complete.Namespaces(f)) // the flag exists
	bindDryRun(cmd, &dryRun)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := factory.RefuseEmpty(cmd, "to-namespace"); err != nil {
			return err
		}
		from, err := selection.ParseRef(f, words[0])
		if err != nil {
			return err
		}
		name := selection.Ref{Namespace: from.Namespace, Name: words[1]}
		if to != "" {
			name.Namespace = to
		}
		if err := task.CheckName("name", name.Name); err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}
		t, err := c.Tasks.Get(cmd.Context(), from.Namespace, from.Name)
		if err != nil {
			return selection.ExplainMissing(cmd.Context(), f, c, from, err)
		}

		spec := t.Spec
		spec.Namespace, spec.Name = name.Namespace, name.Name
		write := c.Tasks.Create
		if dryRun {
			write = c.Tasks.DryRunCreate
		}
		made, err := write(cmd.Context(), name.Namespace, spec)
		if err != nil {
			return err
		}

		f.AboutTask(made.Timezone)
		selection.PrintWarnings(f, made)
		if dryRun {
			return wouldBe(f, made)
		}

		f.Say("created %s%s", selection.Show(f, name), view.NextText(f, made))
		notes := []string{"history, runs, versions and counts are not copied"}
		if name.Namespace != from.Namespace {
			notes = append(notes, "secrets that it uses must exist in namespace "+name.Namespace)
		}
		if slices.ContainsFunc(spec.Schedule, hasHash) {
			notes = append(notes, "H has other values than in "+selection.Show(f, from))
		}
		if f.ForPeople() {
			f.SayNext("%s", strings.Join(notes, "; "))
		}

		return output.EmitChanged(&f.Printer, []client.Task{made}, 1, func(t client.Task) string { return selection.TaskName(f, t) })
	}

	return cmd
}

// hasHash reports whether a field of a cron expression is H, or contains it in a list. Names such as THU contain no H in that sense.
func hasHash(schedule string) bool {
	fields := strings.FieldsFunc(schedule, func(r rune) bool { return r == ' ' || r == ',' })
	return slices.ContainsFunc(fields, func(field string) bool { return strings.HasPrefix(field, "H") })
}
