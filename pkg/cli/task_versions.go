package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// showVersions lists what a task has been.
func (a *app) showVersions(cmd *cobra.Command, c *client.Client, r ref, limit int) error {
	list, err := c.Versions(cmd.Context(), r.namespace, r.name)
	if err != nil {
		return a.missing(cmd.Context(), c, r, err)
	}
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	return output.EmitList(&a.Printer, list, func(v client.TaskVersion) string { return fmt.Sprint(v.Generation) }, func(wide bool) *output.Table {
		g := &output.Table{Headers: []string{"GENERATION", "WHEN", "WHO", "CHANGE", "WHAT"}}
		for _, v := range list {
			if v.Name == "" {
				g.AddRow(fmt.Sprint(v.Generation), a.NoValue(), a.NoValue(), "unreadable", "")
				continue
			}
			g.AddRow(fmt.Sprint(v.Generation), a.PastTime(v.UpdatedAt, v.Timezone), cmp.Or(output.OneLine(task.ActorName(v.UpdatedBy)), a.NoValue()),
				strings.ReplaceAll(output.OneLine(v.Change), "_", " "), a.changedWords(v.Changed, wide))
		}
		return g
	})
}

// changedWords are the first two of what changed, and how many more there are.
func (a *app) changedWords(changed []string, all bool) string {
	const few = 2
	more := ""
	if !all && len(changed) > few {
		more = fmt.Sprintf(", and %d more", len(changed)-few)
		changed = changed[:few]
	}
	return a.Plain(output.OneLine(strings.Join(changed, "; "))) + more
}

// version is a version of a task by its generation.
func (a *app) versionOf(cmd *cobra.Command, c *client.Client, r ref, generation int64) (client.TaskVersion, error) {
	list, err := c.Versions(cmd.Context(), r.namespace, r.name)
	if err != nil {
		return client.TaskVersion{}, a.missing(cmd.Context(), c, r, err)
	}
	i := slices.IndexFunc(list, func(v client.TaskVersion) bool { return v.Generation == generation })
	if i >= 0 {
		return list[i], nil
	}
	return client.TaskVersion{}, &failure.Error{Exit: failure.ExitNotFound, Problem: failure.Problem{Code: client.CodeNotFound, Field: "generation",
		Message: fmt.Sprintf("version %d of %s is not kept: there are %d to %d", generation, a.show(r), list[len(list)-1].Generation, list[0].Generation),
		Hint:    "carillon task history " + a.show(r) + " --versions"}}
}

// showVersion shows a task as it was.
func (a *app) showVersion(cmd *cobra.Command, c *client.Client, r ref, generation int64) error {
	v, err := a.versionOf(cmd, c, r, generation)
	if err != nil {
		return err
	}
	t := client.Task{Task: v.Task}
	return output.EmitOne(&a.Printer, v, a.named(v.Namespace, v.Name), func(d *output.Details) {
		a.describeSpec(d, t)
		a.describeWritten(d, t)
		d.Field("What changed", "%s", strings.Join(v.Changed, "\n"))
	})
}

func (a *app) taskRollback() *cobra.Command {
	var to int64
	var dryRun bool
	var revision revisionFlag
	cmd := &cobra.Command{
		Use:   "rollback TASK",
		Short: "Make a former version of a task the newest",
		Long: "Make a former version of a task the newest: by default the last that says something else than the one in\n" +
			"force. It is a new version; nothing is lost. Whether the task is paused stays as it is.",
		Example: `  carillon task history nightly-backup --versions
  carillon task rollback nightly-backup --dry-run
  carillon task rollback nightly-backup --to 7`,
		Args:              args(1, 1, "the task's name"),
		ValidArgsFunction: a.completeTask,
	}
	cmd.Flags().Int64Var(&to, "to", 0, "the `GENERATION` to go back to (default: the newest that differs)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would change")
	revision.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if cmd.Flags().Changed("to") && to < 1 {
			return failure.Usage("--to %d: not a generation: task history --versions lists them", to)
		}
		r, err := a.ref(words[0])
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		t, err := c.Rollback(cmd.Context(), r.namespace, r.name, client.RollbackRequest{To: to, DryRun: dryRun}, int64(revision))
		if err != nil {
			return a.missing(cmd.Context(), c, r, err)
		}
		a.warnAbout(t.Task)
		if dryRun {
			a.Say("would roll %s back to version %d:", a.show(r), t.To)
		} else {
			a.Say("rolled %s back to version %d%s", a.show(r), t.To, a.nextWords(t.Task))
		}
		for _, what := range t.Changed {
			a.Say("  %s", a.Plain(output.OneLine(what)))
		}
		if a.ForPeople() {
			return nil
		}
		return output.EmitOne(&a.Printer, t, a.taskName(t.Task), nil)
	}
	return cmd
}
