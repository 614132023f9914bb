package task

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
)

// showVersions lists the versions of a task.
func showVersions(f *factory.Factory, cmd *cobra.Command, c *client.Client, r selection.Ref, limit int) error {
	list, err := c.Tasks.ListVersions(cmd.Context(), r.Namespace, r.Name)
	if err != nil {
		return selection.ExplainMissing(cmd.Context(), f, c, r, err)
	}

	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	if len(list) > 0 {
		f.AboutTask(list[0].Timezone) // the newest version
	}

	return output.EmitList(&f.Printer, list, func(v client.TaskVersion) string { return fmt.Sprint(v.Generation) }, func(wide bool) *output.Table {
		g := &output.Table{Headers: []string{"GENERATION", "WHEN", "WHO", "CHANGE", "FIELDS"}}

		for _, v := range list {
			if v.Name == "" {
				g.AddRow(fmt.Sprint(v.Generation), f.NoValue(), f.NoValue(), "unreadable", "")
				continue
			}

			g.AddRow(fmt.Sprint(v.Generation), f.PastTime(v.UpdatedAt, output.ReaderZone), view.ActorCell(f, v.UpdatedBy),
				strings.ReplaceAll(output.OneLine(v.Change), "_", " "), changedWords(f, v.Changed, wide))
		}

		return g
	})
}

// changedWords describes the first two changes, and how many more there are.
func changedWords(f *factory.Factory, changed []string, all bool) string {
	const few = 2
	more := ""
	if !all && len(changed) > few {
		more = fmt.Sprintf(", and %d more", len(changed)-few)
		changed = changed[:few]
	}

	return f.Plain(output.OneLine(strings.Join(changed, "; "))) + more
}

// versionOf returns the version of a task with a generation.
func versionOf(f *factory.Factory, cmd *cobra.Command, c *client.Client, r selection.Ref, generation int64) (client.TaskVersion, error) {
	list, err := c.Tasks.ListVersions(cmd.Context(), r.Namespace, r.Name)
	if err != nil {
		return client.TaskVersion{}, selection.ExplainMissing(cmd.Context(), f, c, r, err)
	}

	i := slices.IndexFunc(list, func(v client.TaskVersion) bool { return v.Generation == generation })
	if i >= 0 {
		return list[i], nil
	}

	return client.TaskVersion{}, &failure.Error{Exit: failure.ExitNotFound, Problem: failure.Problem{Code: client.CodeNotFound, Field: "generation",
		Message: fmt.Sprintf("version %d of %s is not available; versions %d to %d are", generation, selection.Show(f, r), list[len(list)-1].Generation, list[0].Generation),
		Hint:    "carillon task history " + selection.Show(f, r) + " --versions"}}
}

// showVersion prints an earlier version of a task.
func showVersion(f *factory.Factory, cmd *cobra.Command, c *client.Client, r selection.Ref, generation int64) error {
	v, err := versionOf(f, cmd, c, r, generation)
	if err != nil {
		return err
	}

	t := client.Task{Task: v.Task}
	f.AboutTask(t.Timezone)

	return output.EmitOne(&f.Printer, v, selection.Name(f, v.Namespace, v.Name), func(d *output.Details) {
		describeSpec(f, d, t)
		describeWritten(f, d, t)
		d.Field("What changed", "%s", strings.Join(v.Changed, "\n"))
	})
}

// rollbackCommand returns "carillon task rollback".
func rollbackCommand(f *factory.Factory) *cobra.Command {
	var to int64
	var dryRun bool
	var revision revisionFlag
	cmd := &cobra.Command{
		Use:   "rollback TASK",
		Short: "Roll a task back to an earlier version",
		Long: "Roll a task back to an earlier version: by default, the latest version that differs from the current\n" +
			"one. The rollback creates a new version, so nothing is lost. It does not pause or resume the task.",
		Example: `  carillon task history nightly-backup --versions
  carillon task rollback nightly-backup --dry-run
  carillon task rollback nightly-backup --to 7`,
		Args:              factory.Args(1, 1, "the task's name"),
		ValidArgsFunction: complete.Task(f),
	}
	cmd.Flags().Int64Var(&to, "to", 0, "roll back to this `GENERATION` (default: the newest that differs)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the changes without making them")
	revision.bindFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if cmd.Flags().Changed("to") && to < 1 {
			return failure.Usage("--to %d: is not a generation; to list them: carillon task history TASK --versions", to)
		}

		r, err := selection.ParseRef(f, words[0])
		if err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		t, err := c.Tasks.Rollback(cmd.Context(), r.Namespace, r.Name, client.RollbackRequest{To: to, DryRun: dryRun}, int64(revision))
		if err != nil {
			return selection.ExplainMissing(cmd.Context(), f, c, r, err)
		}

		f.AboutTask(t.Timezone)
		selection.PrintWarnings(f, t.Task)

		if dryRun {
			f.Say("would roll %s back to version %d:", selection.Show(f, r), t.To)
		} else {
			f.Say("rolled %s back to version %d%s", selection.Show(f, r), t.To, view.NextText(f, t.Task))
		}

		for _, what := range t.Changed {
			f.Say("  %s", f.Plain(output.OneLine(what)))
		}

		if f.ForPeople() {
			return nil
		}

		return output.EmitOne(&f.Printer, t, selection.TaskName(f, t.Task), nil)
	}

	return cmd
}
