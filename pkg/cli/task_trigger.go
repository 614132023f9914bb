package cli

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
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
		Long: "Run tasks now, whatever their schedule, paused or not. With --wait the command prints what the runs write, retries\n" +
			"included, until all have ended, and fails with 9 if one did not succeed. With -q, or -o json, it prints no output.",
		Example: `  carillon task trigger nightly-backup
  carillon task trigger nightly-backup --wait --env TARGET=/mnt/usb
  carillon task trigger nightly-backup --wait --exit-status && echo done`,
	}
	p := a.manyTasks(cmd)
	cmd.Flags().StringArrayVar(&f.env, "env", nil, "further environment of this run as NAME=value; may be repeated")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait for the end; exit code 9 if it is no success")
	cmd.Flags().BoolVar(&f.exitStatus, "exit-status", false, "with --wait: end with the exit code of the process that failed")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		if f.exitStatus && !f.wait {
			return failure.Usage("--exit-status needs --wait")
		}
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
			a.Say("triggered %s · run %s", a.show(r), t.ID)
			a.noteHeld(r, t)
			return nil
		})
		if f.wait && len(runs) > 0 {
			if err := a.awaitAll(ctx, c, runs, f.exitStatus); err != nil {
				failed = err
			}
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
			return nil, failure.Usage("--env %s: write NAME=value", task.Quote(k+"-"))
		}
		env[k] = s
	}
	return env, task.CheckEnv("env", env)
}

// awaitAll waits for runs, printing what they write, replaces each by how it ended,
// and fails if one did not succeed.
func (a *app) awaitAll(ctx context.Context, c *client.Client, runs []task.Run, exitStatus bool) error {
	m := a.merge(logWords{runs: runs}.refs())
	errs, asked := make([]error, len(runs)), slices.Clone(runs)
	var all sync.WaitGroup
	few, fewParts := make(chan struct{}, mostStreams), make(chan struct{}, mostStreams)
	for i := range runs {
		var parts sync.WaitGroup
		t := &tail{m: m, c: c, run: runs[i], first: 1}
		if a.ForPeople() && !a.Quiet {
			t.out = m.lane(runs[i])
			t.part = func(p task.Run) {
				parts.Go(func() {
					fewParts <- struct{}{}
					defer func() { <-fewParts }()
					part := &tail{m: m, c: c, run: p, first: 1, out: m.lane(p)}
					if _, err := part.follow(ctx); err != nil && ctx.Err() == nil {
						m.tell("the output of %s cannot be had: %s", p.ID, err)
					}
				})
			}
		}
		few <- struct{}{}
		all.Go(func() {
			defer func() { <-few }()
			runs[i], errs[i] = t.follow(ctx)
			if parts.Wait(); errs[i] == nil {
				m.announce("%s %s", a.result(runs[i]), a.endWords(runs[i]))
			}
		})
	}
	over, stop := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { a.tellProgress(over, c, m, asked) })
	all.Wait()
	stop()
	telling.Wait()
	if ctx.Err() != nil {
		a.noteGoOn(runs)
		return ctx.Err()
	}
	var codes []int
	for i, r := range runs {
		if err := errs[i]; err != nil {
			if len(runs) == 1 || failure.IsUnreachable(err) {
				return err
			}
			codes = append(codes, a.report(err))
		} else if r.State != task.Succeeded {
			codes = append(codes, a.report(a.runFailure(r, exitStatus)))
		}
	}
	return failure.AlreadyReported(codes)
}

func (a *app) runFailure(r task.Run, exitStatus bool) error {
	f := &failure.Error{Exit: failure.ExitRun, Problem: failure.Problem{Code: failure.CodeRunFailed,
		Message: fmt.Sprintf("%s did not succeed: %s", a.named(r.Namespace, r.Task), a.bareResult(r)),
		Hint:    fmt.Sprintf("carillon logs %s", a.named(r.Namespace, r.ID))}}
	if r.OutputBytes == 0 { // what it has to say is in its record
		f.Problem.Hint = fmt.Sprintf("carillon run get %s", a.named(r.Namespace, r.ID))
		if r.Message != "" {
			f.Problem.Message += ": " + output.Truncate(output.OneLine(r.Message), 200)
		}
	}
	if exitStatus && r.ExitCode != nil && *r.ExitCode > 0 {
		f.Exit = *r.ExitCode
	}
	return f
}

// noteGoOn says of runs that are not waited for any more how to look at them.
func (a *app) noteGoOn(runs []task.Run) {
	const most = 5
	left := slices.DeleteFunc(slices.Clone(runs), func(r task.Run) bool { return r.State.Final() })
	for i, r := range left {
		if i == most {
			a.Note("… and %d more", len(left)-most)
			return
		}
		a.Note("%s goes on; look at it with: carillon logs %s -f", a.named(r.Namespace, r.Task), a.named(r.Namespace, r.ID))
	}
}

// endWords says of a run that ended how long it took, and where.
func (a *app) endWords(r task.Run) string {
	var words string
	if d := took(r, a.Now()); d >= 0 {
		words = " after " + output.Duration(d)
	}
	if r.Node != "" {
		words += " on " + r.Node
	}
	return a.Plain("·") + " " + a.named(r.Namespace, r.Task) + words
}
