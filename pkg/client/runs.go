package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// RunsService reads and changes the runs of tasks.
//
// Methods with the id of a run return task.ErrInvalid, without a call, for text that cannot be an id. They
// return task.ErrNotFound if there is no such run. A prefix of an id is sufficient if it is unique; otherwise
// the error has CodeAmbiguous.
type RunsService struct{ conn *connection }

// RunListOptions select the runs of a list. The newest runs come first.
type RunListOptions struct {
	Namespace string       // only for List; "" means all namespaces
	Task      string       // only for List; requires Namespace
	Selector  string       // only for List without Task: runs of tasks whose labels match
	State     task.State   // "" means any state
	States    []task.State // any of these states
	Reason    string       // the reason of the state, such as restored; "" means any
	Since     time.Time    // ticks from this time on; zero: no limit
	Until     time.Time    // ticks before this time; zero: no limit
	Node      string       // "" means any node
	Parts     bool         // include the parts of runs; with Node they are always included
	Dead      bool         // only dead runs
	Limit     int          // the maximum number of runs; 0 means all
	Eventual  bool         // runs that were queued or have ended in the last moments may be missing; cheaper where histories are long
	Progress  bool         // include the progress of active runs, which is requested from their nodes
}

// queryValues encodes the options, except for those that only List uses.
func (o RunListOptions) queryValues() url.Values {
	q := url.Values{}

	setIfNotEmpty(q, "state", joinStates(append([]task.State{o.State}, o.States...)))
	setIfNotEmpty(q, "reason", o.Reason)
	setIfNotEmpty(q, "node", o.Node)
	setTimes(q, map[string]time.Time{"since": o.Since, "until": o.Until})

	for name, is := range map[string]bool{"parts": o.Parts, "dead": o.Dead, "eventual": o.Eventual, "progress": o.Progress} {
		if is {
			q.Set(name, "true")
		}
	}

	return q
}

// joinStates encodes states for a parameter, without empty ones.
func joinStates(states []task.State) string {
	var names []string
	for _, s := range states {
		if s != "" {
			names = append(names, string(s))
		}
	}

	return strings.Join(names, ",")
}

// List returns the runs of many tasks, the newest first.
func (s *RunsService) List(ctx context.Context, o RunListOptions) ([]task.Run, error) {
	path, err := namespacePath(o.Namespace, "/runs")
	q := o.queryValues()
	setIfNotEmpty(q, "task", o.Task)
	setIfNotEmpty(q, "selector", o.Selector)

	return collectItems(iteratePages[task.Run](ctx, s.conn, path, q, pageSize, o.Limit, err))
}

// Page returns a page of a list of runs, with at most o.Limit runs. page is List.Next of the page before; "" means the first
// one.
func (s *RunsService) Page(ctx context.Context, o RunListOptions, page string) (List[task.Run], error) {
	var l List[task.Run]

	path, err := namespacePath(o.Namespace, "/runs")
	if err != nil {
		return l, err
	}

	q := o.queryValues()
	setIfNotEmpty(q, "task", o.Task)
	setIfNotEmpty(q, "selector", o.Selector)
	setIfNotEmpty(q, "page", page)
	if o.Limit > 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}

	err = s.conn.doCall(ctx, call{method: http.MethodGet, path: path, query: q}, &l)

	return l, err
}

// ListByTask returns the runs of a task, the newest first: queued, active and ended runs, and ticks that did
// not run. It returns task.ErrNotFound if there is no such task.
func (s *RunsService) ListByTask(ctx context.Context, namespace, name string, o RunListOptions) ([]task.Run, error) {
	path, err := taskPath(namespace, name, "runs")

	return collectItems(iteratePages[task.Run](ctx, s.conn, path, o.queryValues(), pageSize, o.Limit, err))
}

// Get reads a run of a task.
func (s *RunsService) Get(ctx context.Context, namespace, name, id string) (task.Run, error) {
	var r task.Run

	if err := checkRunID(id); err != nil {
		return r, err
	}

	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet}, &r, "runs", id)

	return r, err
}

const (
	// waitTime is how long one call of Wait waits at the server. Proxies often end calls that take a minute.
	waitTime = 30 * time.Second
	// waitPause is the pause after a call of Wait that failed.
	waitPause = 2 * time.Second
)

// Wait waits until a run has ended, and returns it. It is over when the run has used up its attempts; see task.Run.State for how it
// ended. The server reports the end at once, and waiting costs it almost nothing.
//
// Wait returns the error of its first call. After that, it tries again while the server is unavailable, until ctx ends: give ctx
// a deadline. If ctx ends, it returns the run as it was last, and the error of ctx.
func (s *RunsService) Wait(ctx context.Context, namespace, name, id string) (task.Run, error) {
	r, err := s.Get(ctx, namespace, name, id)
	if err != nil {
		return r, err
	}

	wait := url.Values{"wait": {task.Duration(waitTime).String()}}
	for !r.State.Final() {
		var next task.Run
		// By its whole id: a prefix may be that of another run as well by now.
		err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet, query: wait, wait: waitTime}, &next, "runs", r.ID)

		switch {
		case err == nil:
			r = next
		case ctx.Err() != nil:
			return r, fmt.Errorf("wait for run %s: %w", r.ID, ctx.Err())
		case !errors.Is(err, task.ErrUnavailable):
			return r, err
		default:
			select {
			case <-ctx.Done():
			case <-time.After(waitPause):
			}
		}
	}

	return r, nil
}

// Find is like Get, but looks in all tasks of a namespace. The namespace must not be empty.
func (s *RunsService) Find(ctx context.Context, namespace, id string) (task.Run, error) {
	var r task.Run

	if err := checkRunID(id); err != nil {
		return r, err
	}
	if err := task.CheckName("namespace", namespace); err != nil {
		return r, err
	}

	path := "/v1/namespaces/" + namespace + "/runs/" + url.PathEscape(id)
	err := s.conn.doCall(ctx, call{method: http.MethodGet, path: path}, &r)

	return r, err
}

// Cancel ends a run. A queued run ends at once. For an active run, the request goes to its node. The error has
// CodeAlreadyEnded if the run has ended.
//
// While etcd is full, an active run is ended nevertheless, and the result is Unrecorded. The error has CodeNoSpace for a
// queued run, and for a run with parts: it ends those that are active.
func (s *RunsService) Cancel(ctx context.Context, namespace, name, id string) (Cancelled, error) {
	return s.CancelWith(ctx, namespace, name, id, CancelOptions{})
}

// CancelOptions are those of CancelWith.
type CancelOptions struct {
	// Force also ends the cleanup of a workflow: its steps with when: always. It has no effect on other runs.
	Force bool
}

// CancelWith is like Cancel, with options. A run that is being cancelled can be cancelled again with Force.
func (s *RunsService) CancelWith(ctx context.Context, namespace, name, id string, o CancelOptions) (Cancelled, error) {
	var r Cancelled

	q := url.Values{}
	if o.Force {
		q.Set("force", "true")
	}
	err := s.postInto(ctx, namespace, name, id, "cancel", q, &r)

	return r, err
}

// Pause requests that the node of a run stop its processes. The run's state is task.Paused when it has done so.
// A run that has not started yet does not start until it is resumed. The error has CodeNotRunning if the run is
// queued, and CodeAlreadyEnded if it has ended or is being cancelled.
//
// For a run with parts, Pause sends the request for each part that is assigned to a node now, and returns the
// current state of all parts. PausedBy is set for parts that received the request. Parts that begin later are
// not paused. The error has CodeNotRunning if no part is assigned to a node.
//
// A run of a workflow is paused itself, and stays so between its steps: no step and no item begins until it is resumed.
func (s *RunsService) Pause(ctx context.Context, namespace, name, id string) (task.Run, error) {
	return s.postVerb(ctx, namespace, name, id, "pause")
}

// Resume requests that the node of a run continue its processes. It changes nothing if the run is not paused.
// It returns the same errors as Pause.
func (s *RunsService) Resume(ctx context.Context, namespace, name, id string) (task.Run, error) {
	return s.postVerb(ctx, namespace, name, id, "resume")
}

// Dismiss removes a run from the list of dead runs and returns it. Its history stays. The error has
// CodeConflict if the run is not dead.
func (s *RunsService) Dismiss(ctx context.Context, namespace, name, id string) (task.Run, error) {
	return s.postVerb(ctx, namespace, name, id, "dismiss")
}

// postVerb sends a request to change one run.
func (s *RunsService) postVerb(ctx context.Context, namespace, name, id, verb string) (task.Run, error) {
	var r task.Run
	err := s.postInto(ctx, namespace, name, id, verb, nil, &r)

	return r, err
}

// postInto is postVerb for an answer of any type.
func (s *RunsService) postInto(ctx context.Context, namespace, name, id, verb string, q url.Values, out any) error {
	if err := checkRunID(id); err != nil {
		return err
	}

	return s.conn.doTask(ctx, namespace, name, call{method: http.MethodPost, query: q}, out, "runs", id, verb)
}

// Retry queues a new run that replaces a dead run and has the same environment. The error has CodeConflict if
// the run is not dead.
//
// If the answer is lost, Retry sends the request again, up to three times within Config.Timeout, and returns the run that
// the first one has queued.
func (s *RunsService) Retry(ctx context.Context, namespace, name, id string) (Triggered, error) {
	return s.RetryWith(ctx, namespace, name, id, "")
}

// RetryWith is like Retry with an idempotency key, as TriggerRequest.IdempotencyKey.
func (s *RunsService) RetryWith(ctx context.Context, namespace, name, id, key string) (Triggered, error) {
	return s.RetryFrom(ctx, namespace, name, id, RetryOptions{IdempotencyKey: key})
}

// RetryOptions are those of RetryFrom.
type RetryOptions struct {
	// From is a step of a workflow: it and all steps that follow it are repeated, too, if they succeeded. "": the new run keeps
	// all steps and items that succeeded and do not follow one that did not.
	From string
	// IdempotencyKey is as TriggerRequest.IdempotencyKey.
	IdempotencyKey string
}

// RetryFrom is like Retry, with options.
func (s *RunsService) RetryFrom(ctx context.Context, namespace, name, id string, o RetryOptions) (Triggered, error) {
	var r Triggered

	if err := checkRunID(id); err != nil {
		return r, err
	}

	q := url.Values{}
	setIfNotEmpty(q, "from", o.From)
	err := s.conn.doOnce(ctx, namespace, name, o.IdempotencyKey, call{method: http.MethodPost, query: q}, &r, "runs", id, "retry")

	return r, err
}

// Why explains a step of a run of a workflow, NAME, or one of its items, NAME/ITEM: what it did, or why it waits, did not begin, or was
// stopped. timezone is that of the answer; "" means that of the task. The error has CodeNoSteps if the task of the run is not a
// workflow.
func (s *RunsService) Why(ctx context.Context, namespace, name, id, step, timezone string) (task.Answer, error) {
	var a task.Answer

	if err := checkRunID(id); err != nil {
		return a, err
	}

	q := url.Values{}
	setIfNotEmpty(q, "step", step)
	setIfNotEmpty(q, "timezone", timezone)
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet, query: q}, &a, "runs", id, "why")

	return a, err
}

// Rerun queues a new run of a task with the arguments, the node and the variables of a run that has ended, which stays as it is.
// Only the names of the variables are recorded, unless the run is dead, so r.Env must contain their values. The error has
// CodeMissingEnv if it does not, task.CodeNotAllowed if the task does not accept an input any more, and CodeConflict if
// the run has not ended, or is a part or a tick that did not run.
//
// If the answer is lost, Rerun sends the request again, as TasksService.TriggerWith does.
func (s *RunsService) Rerun(ctx context.Context, namespace, name, id string, r RerunRequest) (Triggered, error) {
	var out Triggered

	if err := checkRunID(id); err != nil {
		return out, err
	}

	err := s.conn.doOnce(ctx, namespace, name, r.IdempotencyKey, call{method: http.MethodPost, body: r}, &out, "runs", id, "rerun")

	return out, err
}

// checkRunID rejects text that cannot be the id of a run and would change the path of the call.
func checkRunID(id string) error {
	if id == "" || len(id) > task.MaxName || strings.ContainsAny(id, "/\x00") || id == "." || id == ".." {
		return task.Invalid(task.CodeBadValue, "run", "%s is not the id of a run", task.Quote(id))
	}

	return nil
}
