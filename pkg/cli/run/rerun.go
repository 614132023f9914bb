package run

import (
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/cli/wait"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// rerunCommand returns "carillon run rerun".
func rerunCommand(f *factory.Factory) *cobra.Command {
	var flags struct {
		env        []string
		key        string
		wait       wait.Flag
		exitStatus bool
	}
	cmd := &cobra.Command{
		Use:   "rerun RUN",
		Short: "Start an ended run again",
		Long: "Start an ended run again, whether it has succeeded or not. The new run is a run of the task as it is now, with the\n" +
			"arguments, the node and the variables of the ended one, which stays as it is. If the task does not accept one of them any\n" +
			"more, the command is refused. A run with parts gets all of its parts: to repeat only those that failed, use carillon run\n" +
			"retry.\n\n" +
			"Only the names of variables are recorded, unless the run is dead: give their values with --env, all or none of them. The\n" +
			"recorded values of a dead run need the right to retry runs.\n\n" + selection.RunHelp,
		Example: `  carillon run rerun nightly-backup
  carillon run rerun report@-1 --env FORMAT=pdf --wait
  carillon run rerun 20261120T220500.000Z-k3f9 --idempotency-key again-1`,
		Args:              factory.Args(1, 1, "the run"),
		ValidArgsFunction: complete.Runs(f),
	}
	cmd.Flags().StringArrayVar(&flags.env, "env", nil, "set an environment variable for the new run, as `NAME=VALUE`; may be repeated")
	factory.BindKey(cmd, &flags.key, "start the run only once")
	flags.wait.Bind(cmd.Flags(), "wait until the new run has ended; exit with 9 if it did not succeed")
	cmd.Flags().BoolVar(&flags.exitStatus, "exit-status", false, "with --wait: exit with the exit code of the failed process")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()

		if flags.exitStatus && !flags.wait.On {
			return failure.Usage("--exit-status requires --wait")
		}
		if err := factory.RefuseEmpty(cmd, "idempotency-key"); err != nil {
			return err
		}

		env, err := factory.ReadEnv(flags.env)
		if err != nil {
			return err
		}
		if err := (task.ManualInput{Env: env}).Validate(); err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		run, err := selection.FindRun(ctx, f, c, words[0])
		if err != nil {
			return err
		}

		t, err := c.Runs.Rerun(ctx, run.Namespace, run.Task, run.ID, client.RerunRequest{Env: env, IdempotencyKey: flags.key})
		if err != nil {
			return err
		}
		f.Say("%s as a rerun of %s", queuedWords(f, t, flags.key), run.ID)
		view.NoteHeld(f, selection.Ref{Namespace: run.Namespace, Name: run.Task}, t)

		runs := []task.Run{t.Run}
		var failed error
		if flags.wait.On {
			failed = wait.ForRuns(ctx, f, c, runs, flags.wait.Limit, flags.exitStatus)
		}

		if err := output.EmitChanged(&f.Printer, runs, 1, selection.RunName); err != nil {
			return err
		}

		return failed
	}

	return cmd
}
