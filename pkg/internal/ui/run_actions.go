package ui

import (
	"context"
	"fmt"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// findRun returns the run that a path names.
func findRun(ctx context.Context, r *Request) (task.Run, error) {
	return r.API.Runs.Find(ctx, r.Value("ns"), r.Value("id"))
}

// cancelRun ends a run.
func cancelRun(ctx context.Context, r *Request) (Done, error) {
	run, err := findRun(ctx, r)
	if err != nil {
		return Done{}, err
	}
	end, err := r.API.Runs.Cancel(ctx, run.Namespace, run.Task, run.ID)

	return Done{Message: cancelledText(end)}, err
}

// cancelledText says what a cancellation did.
func cancelledText(end client.Cancelled) string {
	switch {
	case end.Unrecorded:
		return fmt.Sprintf("cancelled %s on node %s; etcd is full, so its record follows when there is space", end.ID, end.Node)
	case !end.State.Final():
		return "requested the cancellation of " + end.ID
	}
	return "cancelled " + end.ID
}

// pauseRun stops the processes of a run.
func pauseRun(ctx context.Context, r *Request) (Done, error) {
	run, err := findRun(ctx, r)
	if err != nil {
		return Done{}, err
	}
	_, err = r.API.Runs.Pause(ctx, run.Namespace, run.Task, run.ID)

	return Done{Message: "requested the pause of " + run.ID}, err
}

// resumeRun continues the processes of a run.
func resumeRun(ctx context.Context, r *Request) (Done, error) {
	run, err := findRun(ctx, r)
	if err != nil {
		return Done{}, err
	}
	_, err = r.API.Runs.Resume(ctx, run.Namespace, run.Task, run.ID)

	return Done{Message: "requested the resumption of " + run.ID}, err
}

// retryKey returns the idempotency key of the retry of a run from a page. A dead-letter run can be retried once, so all
// requests of a viewer to retry it are copies of one request.
func retryKey(run string) string { return "ui retry " + run }

// retryRun queues a new run in place of a dead-letter run, and shows it, unless the form asks to stay.
func retryRun(ctx context.Context, r *Request) (Done, error) {
	run, err := findRun(ctx, r)
	if err != nil {
		return Done{}, err
	}
	again, err := r.API.Runs.RetryWith(ctx, run.Namespace, run.Task, run.ID, retryKey(run.ID))
	if err != nil {
		return Done{}, err
	}

	done := Done{Message: fmt.Sprintf("queued %s as a retry of %s", again.ID, run.ID)}
	if again.Frozen != nil {
		done.Message += "; it starts when the freeze ends"
	}
	if r.Form.Get("stay") == "" {
		done.To, err = link("/ui/runs/{}/{}", nil, []any{run.Namespace, again.ID})
	}

	return done, err
}

// dismissRun removes a run from the dead-letter runs, and returns to the page that the viewer came from.
func dismissRun(ctx context.Context, r *Request) (Done, error) {
	run, err := findRun(ctx, r)
	if err != nil {
		return Done{}, err
	}
	_, err = r.API.Runs.Dismiss(ctx, run.Namespace, run.Task, run.ID)

	return Done{To: r.Form.Get("back"), Message: "dismissed " + run.ID}, err
}
