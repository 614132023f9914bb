package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func (a *app) taskTrigger() *cobra.Command {
	var f struct {
		env              []string
		wait, exitStatus bool
	}
	cmd := &cobra.Command{
		Use:   "trigger",
		Short: "Run tasks now, whatever their schedule",
		Long: "Run tasks now, whatever their schedule, paused or not. With --wait the command stays until the run has\n" +
			"ended, and fails with 9 if it did not succeed.",
		Example: `  carillon task trigger nightly-backup
  carillon task trigger nightly-backup --wait --env TARGET=/mnt/usb
  carillon task trigger nightly-backup --wait --exit-status && echo done`,
	}
	p := a.manyTasks(cmd)
	cmd.Flags().StringArrayVar(&f.env, "env", nil, "further environment of this run as NAME=value; may be repeated")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait for the end; exit code 9 if it is no success")
	cmd.Flags().BoolVar(&f.exitStatus, "exit-status", false, "with --wait: end with the process's own exit code")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		env, err := readEnv(f.env)
		if err != nil {
			return err
		}
		c, refs, err := a.approved(cmd, words, *p, false)
		if err != nil {
			return err
		}
		var runs []task.Run
		failed := together(ctx, a, refs, func(r ref) error {
			t, err := c.Trigger(ctx, r.namespace, r.name, env)
			if err != nil {
				return a.missing(ctx, c, r, err)
			}
			runs = append(runs, t.Run)
			a.say("triggered %s · run %s", a.show(r), t.ID)
			a.noteHeld(r, t)
			return nil
		})
		if failed == nil && f.wait {
			failed = a.awaitAll(ctx, c, runs, f.exitStatus)
		}
		if err := emitChanged(a, runs, len(refs), runName); err != nil {
			return err
		}
		return failed
	}
	return cmd
}

func readEnv(pairs []string) (map[string]string, error) {
	p := map[string]any{}
	if err := putPairs(p, "env", "env", pairs); err != nil {
		return nil, err
	}
	env := map[string]string{}
	values, _ := p["env"].(map[string]any)
	for k, v := range values {
		s, ok := v.(string)
		if !ok {
			return nil, usage("--env %s: write NAME=value", quote(k+"-"))
		}
		env[k] = s
	}
	return env, task.CheckEnv("env", env)
}

// awaitAll waits for runs, replaces each by how it ended, and fails if one did
// not succeed.
func (a *app) awaitAll(ctx context.Context, c *client.Client, runs []task.Run, exitStatus bool) error {
	var codes []int
	for i, r := range runs {
		end, err := a.await(ctx, c, r)
		if err != nil {
			return err
		}
		runs[i] = end
		a.say("%s %s", a.result(end), a.endWords(end))
		if end.State == task.Succeeded {
			continue
		}
		f := &failure{exit: exitRun, problem: problem{Code: codeRunFailed,
			Message: fmt.Sprintf("%s did not succeed: %s", a.named(end.Namespace, end.Task), a.bareResult(end)),
			Hint:    fmt.Sprintf("carillon logs %s", end.ID)}}
		if exitStatus && end.ExitCode != nil && *end.ExitCode > 0 {
			f.exit = *end.ExitCode
		}
		codes = append(codes, a.report(f))
	}
	return silently(codes)
}

// endWords says of a run that ended how long it took, and where.
func (a *app) endWords(r task.Run) string {
	var words string
	if d := took(r, a.now()); d >= 0 {
		words = " after " + span(d)
	}
	if r.Node != "" {
		words += " on " + r.Node
	}
	return a.plain("·") + " " + a.named(r.Namespace, r.Task) + words
}

// Polling a run: soon at first, then once a second. An API that does not answer
// is no reason to give up on a run that goes on without it.
const (
	pollFirst    = 100 * time.Millisecond
	pollMost     = time.Second
	pollPatience = 30 * time.Second
)

func (a *app) await(ctx context.Context, c *client.Client, r task.Run) (task.Run, error) {
	wait, since := pollFirst, time.Time{}
	for {
		now, err := c.Run(ctx, r.Namespace, r.Task, r.ID)
		switch {
		case ctx.Err() != nil:
			a.note("%s goes on; look at it with: carillon run get %s", a.named(r.Namespace, r.Task), r.ID)
			return r, ctx.Err()
		case err == nil && now.State.Final():
			return now, nil
		case err == nil:
			since = time.Time{}
		case !errors.Is(err, task.ErrUnavailable):
			return r, err
		case since.IsZero():
			since = a.now()
		case a.now().Sub(since) > pollPatience:
			return r, err
		}
		if pause(ctx, wait) == nil {
			wait = min(wait*3/2, pollMost)
		}
	}
}
