package task

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/cli/wait"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// triggerCommand returns "carillon task trigger".
func triggerCommand(f *factory.Factory) *cobra.Command {
	var flags struct {
		args, env  []string
		target     string
		key        string
		period     string
		alone      bool
		wait       wait.Flag
		exitStatus bool
	}
	cmd := &cobra.Command{
		Use:   "trigger",
		Short: "Run tasks now",
		Long: "Run tasks now, independent of their schedules. This also works for paused tasks.\n\n" +
			"With --arg, --env and --target, a run gets further arguments and variables, or a node of its own. A task accepts\n" +
			"only what its field accept lists, and by default nothing. The arguments are recorded with the run; of the\n" +
			"variables, only the names.\n\n" +
			"With --wait, the command prints the output of the runs, including retries, until all runs have ended. It\n" +
			"exits with 9 if a run did not succeed. With -q or -o json it does not print the output. With --wait=10m, it waits at most\n" +
			"ten minutes, and exits with 5 if a run has not ended. The runs continue.\n\n" +
			"The command names the tasks that this run can start. With --alone, it starts none. --period sets CARILLON_PERIOD of\n" +
			"this run and of those that follow, for example to repeat a failed night.\n\n" +
			"A script that may run twice, or is repeated after a failure, starts its runs once with --idempotency-key. Within an hour,\n" +
			"the same key of the same user gives the run that it has started before, and other arguments with that key are rejected.",
		Example: `  carillon task trigger nightly-backup
  carillon task trigger report --arg --day --arg 2026-11-20 --env FORMAT=pdf
  carillon task trigger cleanup --target web-3 --wait
  carillon task trigger nightly-backup --wait --exit-status && echo done
  carillon task trigger nightly-backup --wait=10m
  carillon task trigger etl --period 2026-11-26T02:00 --alone
  carillon task trigger send-invoice --arg 4711 --idempotency-key order-4711`,
	}
	p := bindTasks(f, cmd)
	cmd.Flags().StringArrayVar(&flags.args, "arg", nil, "append this `ARGUMENT` to the command of this run; may be repeated")
	cmd.Flags().StringArrayVar(&flags.env, "env", nil, "set an environment variable for this run, as `NAME=VALUE`; may be repeated")
	cmd.Flags().StringVar(&flags.target, "target", "", "run on the `NODE` with this name")
	cmd.Flags().StringVar(&flags.period, "period", "", "set the period of the run to this `TIME`, which must not be in the future, such as \"yesterday 2:00\" or 2026-11-26T02:00")
	cmd.Flags().BoolVar(&flags.alone, "alone", false, "do not start tasks that run after this one")
	_ = cmd.RegisterFlagCompletionFunc("period", cobra.NoFileCompletions)
	factory.BindKey(cmd, &flags.key, "start only one run of each task")
	complete.Register(cmd, "target", complete.Nodes(f))
	_ = cmd.RegisterFlagCompletionFunc("arg", cobra.NoFileCompletions)
	flags.wait.Bind(cmd.Flags(), "wait until the runs have ended; exit with 9 if one did not succeed")
	cmd.Flags().BoolVar(&flags.exitStatus, "exit-status", false, "with --wait: exit with the exit code of the failed process")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()

		if flags.exitStatus && !flags.wait.On {
			return failure.Usage("--exit-status requires --wait")
		}
		if err := flags.wait.Check(words); err != nil {
			return err
		}

		if err := factory.RefuseEmpty(cmd, "target", "period", "idempotency-key"); err != nil {
			return err
		}

		env, err := factory.ReadEnv(flags.env)
		if err != nil {
			return err
		}

		give := client.TriggerRequest{Args: flags.args, Env: env, Target: flags.target, Alone: flags.alone, IdempotencyKey: flags.key}
		if err := (task.ManualInput{Args: give.Args, Env: give.Env, TargetNode: give.Target}).Validate(); err != nil {
			return err
		}

		c, refs, err := approvedTasks(f, cmd, words, *p, nil)
		if err != nil {
			return err
		}

		if give.Period, err = readPeriod(ctx, f, c, refs, namesOne(words), flags.period); err != nil {
			return err
		}

		var runs []task.Run
		failed := batch.ForEach(ctx, f, refs, func(r selection.Ref) error {
			t, err := c.Tasks.TriggerWith(ctx, r.Namespace, r.Name, give, 0)
			if err != nil {
				return selection.ExplainMissing(ctx, f, c, r, err)
			}

			runs = append(runs, t.Run)
			if t.Replayed && flags.key != "" {
				f.Say("already triggered %s · run %s, %s", selection.Show(f, r), t.ID, view.PlainRunResult(f, t.Run))
			} else {
				then := wording.DependentsText(t.Dependents)
				if then != "" {
					then = f.Plain(" · ") + "then " + then
				}
				f.Say("triggered %s · run %s%s", selection.Show(f, r), t.ID, then)
			}
			view.NoteHeld(f, r, t)

			return nil
		})

		if flags.wait.On && len(runs) > 0 {
			if err := wait.ForRuns(ctx, f, c, runs, flags.wait.Limit, flags.exitStatus); err != nil {
				failed = err
			}
		}

		if err := output.EmitChanged(&f.Printer, runs, len(refs), selection.RunName); err != nil {
			return err
		}

		return failed
	}

	return cmd
}

// readPeriod parses the period of runs. A time without an offset is in the zone of the task if the command names one.
func readPeriod(ctx context.Context, f *factory.Factory, c *client.Client, refs []selection.Ref, one bool, text string) (task.Time, error) {
	var period task.Time
	if text == "" || len(refs) == 0 || period.UnmarshalText([]byte(text)) == nil {
		return period, nil
	}

	if one {
		t, err := c.Tasks.Get(ctx, refs[0].Namespace, refs[0].Name)
		if err != nil {
			return period, selection.ExplainMissing(ctx, f, c, refs[0], err)
		}
		if err := aboutTask(f, t, text); err != nil {
			return period, err
		}
	}

	at, err := f.ParseTime("period", text, f.Zone(output.ReaderZone), schedule.Past)

	return task.At(at), err
}
