package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// RunFilter says which runs are listed, the newest first.
type RunFilter struct {
	Namespace string       // of ListRuns; "" is all of them
	Task      string       // of ListRuns; needs a Namespace
	Selector  string       // of ListRuns without a Task: only runs of tasks whose labels match
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

func (f RunFilter) query() url.Values {
	q := url.Values{}
	var states []string
	for _, s := range append([]task.State{f.State}, f.States...) {
		if s != "" {
			states = append(states, string(s))
		}
	}
	set(q, "state", strings.Join(states, ","))
	set(q, "node", f.Node)
	for name, at := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if f.Parts {
		q.Set("parts", "true")
	}
	if f.Dead {
		q.Set("dead", "true")
	}
	if f.Progress {
		q.Set("progress", "true")
	}
	return q
}

// Runs are the runs of a task, the newest first: waiting, active, ended, and
// the ticks that did not run.
func (c *Client) Runs(ctx context.Context, namespace, name string, f RunFilter) ([]task.Run, error) {
	path, err := taskPath(namespace, name, "runs")
	return c.runs(ctx, path, f.query(), f.Limit, err)
}

// ListRuns are the runs of many tasks, the newest first.
func (c *Client) ListRuns(ctx context.Context, f RunFilter) ([]task.Run, error) {
	path, err := inNamespace(f.Namespace, "/runs")
	q := f.query()
	set(q, "task", f.Task)
	set(q, "selector", f.Selector)
	return c.runs(ctx, path, q, f.Limit, err)
}

func (c *Client) runs(ctx context.Context, path string, q url.Values, limit int, err error) ([]task.Run, error) {
	runs := []task.Run{}
	for r, err := range pages[task.Run](ctx, c, path, q, limit, err) {
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// Run reads a run of a task by its id, or by the beginning of it if that is the
// beginning of one only. Code CodeAmbiguous if it is of several.
func (c *Client) Run(ctx context.Context, namespace, name, id string) (task.Run, error) {
	var r task.Run
	if err := checkID(id); err != nil {
		return r, err
	}
	err := c.onTask(ctx, namespace, name, call{method: http.MethodGet}, &r, "runs", id)
	return r, err
}

// FindRun is Run over all tasks of a namespace.
func (c *Client) FindRun(ctx context.Context, namespace, id string) (task.Run, error) {
	var r task.Run
	if err := checkID(id); err != nil {
		return r, err
	}
	path, err := inNamespace(namespace, "/runs/"+url.PathEscape(id))
	if err == nil && namespace == "" {
		err = task.CheckName("namespace", namespace)
	}
	if err != nil {
		return r, err
	}
	err = c.do(ctx, call{method: http.MethodGet, path: path}, &r)
	return r, err
}

func checkID(id string) error {
	if id == "" || len(id) > task.MaxName || strings.ContainsAny(id, "/\x00") || id == "." || id == ".." {
		return task.Invalid(task.CodeBadValue, "run", "%s is not the id of a run", task.Quote(id))
	}
	return nil
}

// Cancel ends a run: a waiting one at once; an active one is asked to end. Code
// CodeAlreadyEnded if it has ended.
func (c *Client) Cancel(ctx context.Context, namespace, name, id string) (task.Run, error) {
	var r task.Run
	if err := checkID(id); err != nil {
		return r, err
	}
	err := c.onTask(ctx, namespace, name, call{method: http.MethodPost}, &r, "runs", id, "cancel")
	return r, err
}
