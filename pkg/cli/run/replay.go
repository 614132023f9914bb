package run

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/curl"
	"github.com/carillonhq/carillon/pkg/task"
)

// replayCommand returns "carillon run replay".
func replayCommand(f *factory.Factory) *cobra.Command {
	var generation int64
	cmd := &cobra.Command{
		Use:   "replay RUN",
		Short: "Print the request of a run as a curl command",
		Long: "Print the request of a run as a curl command. It sends nothing.\n\n" +
			"The command has the values of the run, and the version of the task that was in force when the last attempt began. It has\n" +
			"the same Idempotency-Key, so a target that honors it does not act twice. Instead of secrets it has shell variables, which\n" +
			"you set before you run it.\n\n" + selection.RunHelp,
		Example: `  carillon run replay order
  carillon run replay order@2026-03-29T02:30
  API_TOKEN=… sh -c "$(carillon run replay order -q)"`,
		Args:              factory.Args(1, 1, "the run"),
		ValidArgsFunction: complete.Runs(f),
	}
	cmd.Flags().Int64Var(&generation, "generation", 0, "use this `VERSION` of the task (default: the one in force at the run)")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if cmd.Flags().Changed("generation") && generation < 1 {
			return failure.Usage("--generation requires a positive number")
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		r, err := selection.FindRun(cmd.Context(), f, c, words[0])
		if err != nil {
			return err
		}

		v, err := versionOfRun(cmd.Context(), f, c, r, generation)
		if err != nil {
			return err
		}

		command, err := curl.Of(v.Spec, r)
		if err != nil {
			return failure.Usage("%s: %s", selection.Name(f, r.Namespace, r.Task), err)
		}

		return printReplay(f, r, command)
	}

	return cmd
}

// printReplay prints a command to stdout, and its requirements to stderr.
func printReplay(f *factory.Factory, r task.Run, command curl.Command) error {
	if !f.ForPeople() {
		return output.EmitOne(&f.Printer, command, r.ID, func(*output.Details) {})
	}

	if !f.Quiet {
		for _, v := range command.Variables {
			fmt.Fprintf(f.Err, "set %s to the value of %s\n", v.Name, v.From)
		}
		for _, note := range command.Notes {
			fmt.Fprintf(f.Err, "note: %s\n", note)
		}
	}

	return f.Print(command.Text)
}

// versionOfRun returns the version of a run's task with a generation. 0 means the version that was in force when its last
// attempt was assigned to a node.
func versionOfRun(ctx context.Context, f *factory.Factory, c *client.Client, r task.Run, generation int64) (client.TaskVersion, error) {
	ref := selection.Ref{Namespace: r.Namespace, Name: r.Task}
	list, err := c.Tasks.ListVersions(ctx, r.Namespace, r.Task)
	if err != nil {
		return client.TaskVersion{}, selection.ExplainMissing(ctx, f, c, ref, err)
	}

	// The newest version is the first. A version that cannot be read has no name.
	i := slices.IndexFunc(list, func(v client.TaskVersion) bool {
		if generation > 0 {
			return v.Generation == generation
		}
		return r.DispatchedAt.IsZero() || !v.UpdatedAt.After(r.DispatchedAt.Time) || v.Generation == 1
	})

	if i >= 0 && list[i].Name != "" {
		return list[i], nil
	}

	what := "the version that was in force"
	if generation > 0 {
		what = fmt.Sprintf("version %d", generation)
	}

	return client.TaskVersion{}, &failure.Error{Exit: failure.ExitNotFound, Problem: failure.Problem{Code: client.CodeNotFound, Field: "generation",
		Message: fmt.Sprintf("%s of %s is not on record", what, selection.Show(f, ref)),
		Hint:    fmt.Sprintf("carillon task history %s --versions lists the versions; choose one with --generation", selection.Show(f, ref))}}
}
