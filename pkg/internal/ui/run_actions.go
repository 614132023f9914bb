package ui

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/callgroup"
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
	end, err := r.API.Runs.CancelWith(ctx, run.Namespace, run.Task, run.ID, client.CancelOptions{Force: r.Form.Get("force") != ""})

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
	// The key does not name the step: a dead-letter run can be retried once, from whichever step.
	from := r.Form.Get("from")
	again, err := r.API.Runs.RetryFrom(ctx, run.Namespace, run.Task, run.ID, client.RetryOptions{From: from, IdempotencyKey: retryKey(run.ID)})
	if err != nil {
		return Done{}, err
	}

	done := Done{Message: fmt.Sprintf("queued %s as a retry of %s", again.ID, run.ID) + prefixed(" from step ", from)}
	if again.Frozen != nil {
		done.Message += "; it starts when the freeze ends"
	}
	if r.Form.Get("stay") == "" {
		done.To, err = link("/ui/runs/{}/{}", nil, []any{run.Namespace, again.ID})
	}

	return done, err
}

// rerunRun queues a new run with the inputs of an ended one, and shows it.
func rerunRun(ctx context.Context, r *Request) (Done, error) {
	run, err := findRun(ctx, r)
	if err != nil {
		return Done{}, err
	}
	again, err := r.API.Runs.Rerun(ctx, run.Namespace, run.Task, run.ID, client.RerunRequest{IdempotencyKey: r.Form.Get(formKeyField)})
	if err != nil {
		return Done{}, err
	}

	done := Done{Message: fmt.Sprintf("queued %s as a rerun of %s", again.ID, run.ID)}
	if again.Replayed {
		done.Message = fmt.Sprintf("%s was already queued as a rerun of %s within this minute; to start another one, wait a minute", again.ID, run.ID)
	}
	if again.Frozen != nil {
		done.Message += "; it starts when the freeze ends"
	}
	done.To, err = link("/ui/runs/{}/{}", nil, []any{run.Namespace, again.ID})

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

// A change of several runs has two steps: the first one shows which runs it concerns, and the second one changes exactly
// these. Runs that have changed meanwhile are refused by the API, and reported.
const (
	maxRuns       = 1000 // in one change
	changesAtOnce = 8
	// chosenField is the field of the form with a run. allField, if set, means all runs of the list instead.
	chosenField, allField, confirmField = "run", "all", "confirm"
)

// chosenRun names a run of a change.
type chosenRun struct{ Namespace, Task, ID string }

// parseChosen reads the name of a run as chosenRun.String writes it. The API checks its parts.
func parseChosen(text string) (chosenRun, error) {
	ns, rest, ok := strings.Cut(text, "/")
	name, id, both := strings.Cut(rest, "@")
	if !ok || !both {
		return chosenRun{}, task.Invalid(task.CodeBadValue, chosenField, "%s is not a run; open the page again", task.Quote(text))
	}

	return chosenRun{ns, name, id}, nil
}

// runsPreview is what a change would concern.
type runsPreview struct {
	Change runChange
	Runs   []chosenRun
	Count  string
	More   bool // the list has more runs than one change can have
}

// runsReport is what a change has done, if not all went well.
type runsReport struct {
	Change  runChange
	Changed string
	Failed  []failedRun
}

// failedRun is a run that was not changed.
type failedRun struct {
	chosenRun
	Why string
}

// changeRuns previews or carries out a change of several runs.
func changeRuns(ctx context.Context, r *Request) (Done, error) {
	i := slices.IndexFunc(runChanges, func(c runChange) bool { return c.Name == r.Form.Get("do") })
	if i < 0 {
		return Done{}, task.Invalid(task.CodeBadValue, "do", "%s is not possible with runs", task.Quote(r.Form.Get("do")))
	}
	change := runChanges[i]

	chosen, more, err := chosenRuns(ctx, r, change)
	if err != nil {
		return Done{}, err
	}
	if len(chosen) == 0 {
		return Done{}, task.Invalid(task.CodeRequired, chosenField, "no run is selected")
	}
	if r.Form.Get(confirmField) == "" {
		return Done{Result: &runsPreview{Change: change, Runs: chosen, Count: countText(len(chosen), "run"), More: more}}, nil
	}

	failed := changeEach(ctx, r, change, chosen)
	changed := countText(len(chosen)-len(failed), "run") + " " + change.Past
	if len(failed) == 0 {
		return Done{Message: changed}, nil
	}

	return Done{Result: &runsReport{Change: change, Changed: changed, Failed: failed}}, nil
}

// chosenRuns returns the runs of a change: those that the form names, or all of the list. more is set if the list has more.
func chosenRuns(ctx context.Context, r *Request, change runChange) (chosen []chosenRun, more bool, err error) {
	if r.Form.Get(allField) == "" {
		names := r.Form[chosenField]
		if len(names) > maxRuns {
			return nil, false, task.Invalid(task.CodeOutOfRange, chosenField, "%d runs are too many; at most %d are possible at once", len(names), maxRuns)
		}
		for _, text := range names {
			c, err := parseChosen(text)
			if err != nil {
				return nil, false, err
			}
			chosen = append(chosen, c)
		}
		return chosen, false, nil
	}

	list := *r
	if list.Query, err = queryOf(r.Form.Get("at")); err != nil {
		return nil, false, err
	}
	o, err := runOptions(&list)
	if err != nil {
		return nil, false, err
	}
	if change.dead != o.Dead {
		return nil, false, task.Invalid(task.CodeBadValue, "do", "is not possible with these runs")
	}

	o.Limit = maxRuns + 1
	runs, err := r.API.Runs.List(ctx, o)
	if err != nil {
		return nil, false, err
	}
	if len(runs) > maxRuns {
		runs, more = runs[:maxRuns], true
	}
	for _, run := range runs {
		if change.dead || !run.State.Final() {
			chosen = append(chosen, chosenRun{run.Namespace, run.Task, run.ID})
		}
	}

	return chosen, more, nil
}

// changeEach changes runs, several at once, and returns those that could not be changed.
func changeEach(ctx context.Context, r *Request, change runChange, chosen []chosenRun) []failedRun {
	why := make([]string, len(chosen))
	group := callgroup.New()
	group.SetLimit(changesAtOnce)
	for i, c := range chosen {
		group.Go(func() error {
			if err := change.run(ctx, r.API, task.Run{Namespace: c.Namespace, Task: c.Task, ID: c.ID}); err != nil {
				why[i] = problemOf(err).Message
			}

			return nil
		})
	}
	_ = group.Wait()

	var failed []failedRun
	for i, text := range why {
		if text != "" {
			failed = append(failed, failedRun{chosen[i], text})
		}
	}

	return failed
}

// queryOf returns the parameters of the page of a form.
func queryOf(at string) (url.Values, error) {
	u, err := url.Parse(localTarget(at))
	if err != nil {
		return nil, err
	}
	return u.Query(), nil
}
