package task

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/logs"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// triggerCommand returns "carillon task trigger".
func triggerCommand(f *factory.Factory) *cobra.Command {
	var flags struct {
		args, env  []string
		target     string
		key        string
		wait       Wait
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
			"A script that may run twice, or is repeated after a failure, starts its runs once with --idempotency-key. Within an hour,\n" +
			"the same key of the same user gives the run that it has started before, and other arguments with that key are rejected.",
		Example: `  carillon task trigger nightly-backup
  carillon task trigger report --arg --day --arg 2026-11-20 --env FORMAT=pdf
  carillon task trigger cleanup --target web-3 --wait
  carillon task trigger nightly-backup --wait --exit-status && echo done
  carillon task trigger nightly-backup --wait=10m
  carillon task trigger send-invoice --arg 4711 --idempotency-key order-4711`,
	}
	p := bindTasks(f, cmd)
	cmd.Flags().StringArrayVar(&flags.args, "arg", nil, "append this `ARGUMENT` to the command of this run; may be repeated")
	cmd.Flags().StringArrayVar(&flags.env, "env", nil, "set an environment variable for this run, as `NAME=VALUE`; may be repeated")
	cmd.Flags().StringVar(&flags.target, "target", "", "run on the `NODE` with this name")
	cmd.Flags().StringVar(&flags.key, "idempotency-key", "", "start only one run of each task with this `KEY`, however often you repeat the command")
	complete.Register(cmd, "target", complete.Nodes(f))
	_ = cmd.RegisterFlagCompletionFunc("idempotency-key", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("arg", cobra.NoFileCompletions)
	flags.wait.BindFlag(cmd.Flags(), "wait until the runs have ended; exit with 9 if one did not succeed")
	cmd.Flags().BoolVar(&flags.exitStatus, "exit-status", false, "with --wait: exit with the exit code of the failed process")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()

		if flags.exitStatus && !flags.wait.On {
			return failure.Usage("--exit-status requires --wait")
		}
		if err := flags.wait.Check(words); err != nil {
			return err
		}

		if err := factory.RefuseEmpty(cmd, "target", "idempotency-key"); err != nil {
			return err
		}

		env, err := readEnv(flags.env)
		if err != nil {
			return err
		}

		give := client.TriggerRequest{Args: flags.args, Env: env, Target: flags.target, IdempotencyKey: flags.key}
		if err := (task.ManualInput{Args: give.Args, Env: give.Env, TargetNode: give.Target}).Validate(); err != nil {
			return err
		}

		c, refs, err := approvedTasks(f, cmd, words, *p, false)
		if err != nil {
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
				f.Say("triggered %s · run %s", selection.Show(f, r), t.ID)
			}
			view.NoteHeld(f, r, t)

			return nil
		})

		if flags.wait.On && len(runs) > 0 {
			if err := AwaitRuns(ctx, f, c, runs, flags.wait.Limit, flags.exitStatus); err != nil {
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

// readEnv parses the values of --env.
func readEnv(pairs []string) (map[string]string, error) {
	parsed, err := parsePairs("env", pairs)
	if err != nil {
		return nil, err
	}

	env := map[string]string{}
	for _, p := range parsed {
		if p.isRemoved {
			return nil, failure.Usage("--env %s: use NAME=VALUE", task.Quote(p.key+"-"))
		}
		env[p.key] = p.value
	}

	return env, nil
}

// AwaitRuns waits for runs and prints their output. It replaces each run by its final record, and returns an
// error if one did not succeed, or has not ended within limit; 0: no limit.
func AwaitRuns(ctx context.Context, f *factory.Factory, c *client.Client, runs []task.Run, limit time.Duration, exitStatus bool) error {
	command := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}

	m := logs.NewMerger(f, logs.Tasks{Runs: runs}.Refs())
	errs, asked := make([]error, len(runs)), slices.Clone(runs)
	var all sync.WaitGroup
	few, fewParts := make(chan struct{}, logs.MaxStreams), make(chan struct{}, logs.MaxStreams)

	for i := range runs {
		var parts sync.WaitGroup
		t := &logs.RunFollower{M: m, C: c, Run: runs[i], First: 1}
		if f.ForPeople() && !f.Quiet {
			t.Out = m.Output(runs[i])
			t.Part = func(p task.Run) {
				parts.Go(func() {
					fewParts <- struct{}{}
					defer func() { <-fewParts }()

					part := &logs.RunFollower{M: m, C: c, Run: p, First: 1, Out: m.Output(p)}
					if _, err := part.Follow(ctx); err != nil && ctx.Err() == nil {
						m.Tell("cannot read the output of %s: %s", p.ID, err)
					}
				})
			}
		}

		few <- struct{}{}
		all.Go(func() {
			defer func() { <-few }()
			runs[i], errs[i] = t.Follow(ctx)
			if parts.Wait(); errs[i] == nil {
				m.Announce("%s %s", view.RunResult(f, runs[i]), view.EndText(f, runs[i]))
			}
		})
	}

	over, stop := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { logs.TellProgress(over, f, c, m, asked) })
	all.Wait()
	stop()
	telling.Wait()

	if ctx.Err() != nil {
		noteGoOn(f, runs)
	}
	if command.Err() != nil {
		return command.Err()
	}

	var codes []int
	for i, r := range runs {
		err := errs[i]
		if err != nil && ctx.Err() != nil { // the runs that have ended are reported as always
			err = overdueError(f, r, limit)
		}

		if err != nil {
			if len(runs) == 1 || failure.IsUnreachable(err) {
				return err
			}
			codes = append(codes, f.Report(err))
		} else if r.State != task.Succeeded {
			codes = append(codes, f.Report(runFailure(f, r, exitStatus)))
		}
	}

	return failure.AlreadyReported(codes)
}

// overdueError returns the error for a run that has not ended within the limit of --wait.
func overdueError(f *factory.Factory, r task.Run, limit time.Duration) error {
	return &failure.Error{Exit: failure.ExitUnavailable, Problem: failure.Problem{Code: client.CodeUnavailable,
		Message: fmt.Sprintf("%s has not ended within %s: %s", selection.Name(f, r.Namespace, r.Task), task.Duration(limit), view.PlainRunResult(f, r))}}
}

// runFailure returns the error for a run that did not succeed.
func runFailure(f *factory.Factory, r task.Run, exitStatus bool) error {
	fail := &failure.Error{Exit: failure.ExitRun, Problem: failure.Problem{Code: failure.CodeRunFailed,
		Message: fmt.Sprintf("%s did not succeed: %s", selection.Name(f, r.Namespace, r.Task), view.PlainRunResult(f, r)),
		Hint:    fmt.Sprintf("carillon logs %s", selection.Name(f, r.Namespace, r.ID))}}
	if r.OutputBytes == 0 { // the record contains all there is
		fail.Problem.Hint = fmt.Sprintf("carillon run get %s", selection.Name(f, r.Namespace, r.ID))
	}
	if why := explainFailure(r); why != "" {
		fail.Problem.Message += ": " + output.Truncate(output.OneLine(why), 200)
	}

	if exitStatus && r.ExitCode != nil && *r.ExitCode > 0 {
		fail.Exit = *r.ExitCode
	}

	return fail
}

// explainFailure returns what the record of a run says about its failure, and neither its result nor its output does. The
// output of a request is the response, which does not say why it does not count as success.
func explainFailure(r task.Run) string {
	switch {
	case r.HTTPStatus > 0:
		rest := strings.TrimPrefix(r.Message, strings.TrimSpace(fmt.Sprintf("HTTP %d %s", r.HTTPStatus, http.StatusText(r.HTTPStatus))))
		return strings.TrimPrefix(strings.TrimLeft(rest, ",; "), "but ")
	case r.OutputBytes == 0:
		return r.Message
	}

	return ""
}

// noteGoOn prints how to follow runs that are no longer waited for.
func noteGoOn(f *factory.Factory, runs []task.Run) {
	const most = 5
	left := slices.DeleteFunc(slices.Clone(runs), func(r task.Run) bool { return r.State.Final() })
	for i, r := range left {
		if i == most {
			f.Note("… and %d more", len(left)-most)
			return
		}
		f.Note("%s continues; to follow it: carillon logs %s -f", selection.Name(f, r.Namespace, r.Task), selection.Name(f, r.Namespace, r.ID))
	}
}
