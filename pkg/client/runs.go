package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// RunsService reads and changes runs of tasks.
//
// Every method that takes the id of a run returns task.ErrInvalid for what no id can
// be, without a call, and task.ErrNotFound if there is no such run. The beginning of an
// id will do if no other run's id begins so; otherwise the error has CodeAmbiguous.
type RunsService struct{ conn *connection }

// RunListOptions say which runs are listed, the newest first.
type RunListOptions struct {
	Namespace string       // of List; "" is all of them
	Task      string       // of List; needs a Namespace
	Selector  string       // of List without a Task: only runs of tasks whose labels match
	State     task.State   // "" is any
	States    []task.State // or any of these
	Since     time.Time    // ticks from then on; zero: any
	Until     time.Time    // ticks before then
	Node      string       // "" is any
	Parts     bool         // the parts of runs, too; with a Node they are listed anyway
	Dead      bool         // only those that have no attempt left, and wait for a person
	Limit     int          // at most so many; 0 is all
	Progress  bool         // of active runs, how far they are: their nodes are asked
}

func (o RunListOptions) queryValues() url.Values {
	q := url.Values{}

	var states []string
	for _, s := range append([]task.State{o.State}, o.States...) {
		if s != "" {
			states = append(states, string(s))
		}
	}

	setIfNotEmpty(q, "state", strings.Join(states, ","))

	setIfNotEmpty(q, "node", o.Node)
	setTimes(q, map[string]time.Time{"since": o.Since, "until": o.Until})

	for name, is := range map[string]bool{"parts": o.Parts, "dead": o.Dead, "progress": o.Progress} {
		if is {
			q.Set(name, "true")
		}
	}

	return q
}

// List returns the runs of many tasks, the newest first.
func (s *RunsService) List(ctx context.Context, o RunListOptions) ([]task.Run, error) {
	path, err := namespacePath(o.Namespace, "/runs")
	q := o.queryValues()
	setIfNotEmpty(q, "task", o.Task)
	setIfNotEmpty(q, "selector", o.Selector)

	return collectItems(iteratePages[task.Run](ctx, s.conn, path, q, pageSize, o.Limit, err))
}

// ListByTask returns the runs of a task, the newest first: those that wait, are active
// or have ended, and the ticks that did not run. The error is task.ErrNotFound if there
// is no such task.
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

// Find is Get over all tasks of a namespace, which must not be empty.
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

// Cancel ends a run: one that waits ends at once, and the node of one that is active is
// asked to end it. The error has CodeAlreadyEnded if the run has ended.
func (s *RunsService) Cancel(ctx context.Context, namespace, name, id string) (task.Run, error) {
	return s.postVerb(ctx, namespace, name, id, "cancel")
}

// Pause asks the node of a run to stop its processes. The run's state is task.Paused
// when it has. A run that has not started yet does not start until it is resumed. The
// error has CodeNotRunning if the run waits in the queue, and CodeAlreadyEnded if it has
// ended or is about to.
//
// For a run with parts, Pause asks the nodes of the parts that are on a node now, and
// returns each part in its state of that moment: PausedBy says that it was asked. Parts
// that begin later are not paused. The error has CodeNotRunning if no node has a part.
func (s *RunsService) Pause(ctx context.Context, namespace, name, id string) (task.Run, error) {
	return s.postVerb(ctx, namespace, name, id, "pause")
}

// Resume asks the node of a run to let its processes go on. It changes nothing if the
// run is not paused. The errors are those of Pause.
func (s *RunsService) Resume(ctx context.Context, namespace, name, id string) (task.Run, error) {
	return s.postVerb(ctx, namespace, name, id, "resume")
}

// Dismiss removes a run from the list of dead ones and returns it. Its history stays.
// The error has CodeConflict if the run is not dead.
func (s *RunsService) Dismiss(ctx context.Context, namespace, name, id string) (task.Run, error) {
	return s.postVerb(ctx, namespace, name, id, "dismiss")
}

func (s *RunsService) postVerb(ctx context.Context, namespace, name, id, verb string) (task.Run, error) {
	var r task.Run

	if err := checkRunID(id); err != nil {
		return r, err
	}

	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodPost}, &r, "runs", id, verb)

	return r, err
}

// Retry queues a run that replaces a dead one, with the environment of that one. The
// error has CodeConflict if the run is not dead.
func (s *RunsService) Retry(ctx context.Context, namespace, name, id string) (Triggered, error) {
	var r Triggered

	if err := checkRunID(id); err != nil {
		return r, err
	}

	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodPost}, &r, "runs", id, "retry")

	return r, err
}

// checkRunID refuses what no id of a run can be, and would change the path of the call.
func checkRunID(id string) error {
	if id == "" || len(id) > task.MaxName || strings.ContainsAny(id, "/\x00") || id == "." || id == ".." {
		return task.Invalid(task.CodeBadValue, "run", "%s is not the id of a run", task.Quote(id))
	}

	return nil
}
