package wait

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/logs"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// ForRuns waits for runs and prints their output. It replaces each run by its final record, and returns an
// error if one did not succeed, or has not ended within limit; 0: no limit.
func ForRuns(ctx context.Context, f *factory.Factory, c *client.Client, runs []task.Run, limit time.Duration, exitStatus bool) error {
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
	case r.Reason == task.ReasonSteps: // the message is "step load/1: exited with code 3", and the result names the step
		_, why, _ := strings.Cut(r.Message, ": ")
		return why
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
