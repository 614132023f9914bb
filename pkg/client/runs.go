package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// RunFilter says which runs are listed, the newest first.
type RunFilter struct {
	Namespace string     // of ListRuns; "" is all of them
	Task      string     // of ListRuns; needs a Namespace
	State     task.State // "" is any
	Node      string     // "" is any
	Dead      bool       // only those that have no attempt left, and wait for a person
	Limit     int        // at most so many; 0 is all
}

func (f RunFilter) query() url.Values {
	q := url.Values{}
	set(q, "state", string(f.State))
	set(q, "node", f.Node)
	if f.Dead {
		q.Set("dead", "true")
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

// LogOptions say which part of a run's output is wanted.
type LogOptions struct {
	Attempt int // 0 is the latest that has any
	Tail    int // the last so many lines; 0 is all
	From    int64
}

// Logs is the output of an attempt (0: the latest), from whatever node ran it.
// The caller closes it. Code CodeNoLogs if there is none any more, CodeNodeAway
// if the node that has it is away.
func (c *Client) Logs(ctx context.Context, namespace, name, id string, attempt int) (io.ReadCloser, error) {
	return c.LogsWith(ctx, namespace, name, id, LogOptions{Attempt: attempt})
}

// LogsWith is Logs, of a part. From skips so many bytes; there may be none left,
// which is no error.
func (c *Client) LogsWith(ctx context.Context, namespace, name, id string, o LogOptions) (io.ReadCloser, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	path, err := taskPath(namespace, name, "runs", id, "logs")
	if err != nil {
		return nil, err
	}
	k := call{method: http.MethodGet, path: path, query: url.Values{}, header: http.Header{}, stream: true}
	if o.Attempt != 0 {
		k.query.Set("attempt", strconv.Itoa(o.Attempt))
	}
	if o.Tail != 0 {
		k.query.Set("tail", strconv.Itoa(o.Tail))
	}
	if o.From > 0 {
		k.header.Set("Range", "bytes="+strconv.FormatInt(o.From, 10)+"-")
	}
	// The deadline is for the beginning of the answer; the rest lasts as long as it is read.
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(c.timeout, func() { cancel(context.DeadlineExceeded) })
	res, err := c.send(ctx, k)
	timer.Stop()
	if err != nil {
		cancel(nil)
		var e *Error
		if errors.As(err, &e) && e.Status == http.StatusRequestedRangeNotSatisfiable {
			return io.NopCloser(strings.NewReader("")), nil
		}
		return nil, err
	}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain") {
		defer cancel(nil)
		defer res.Body.Close()
		return nil, c.notCarillon(res)
	}
	return stream{res.Body, cancel}, nil
}

// stream ends its request when it is closed.
type stream struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (s stream) Close() error {
	err := s.ReadCloser.Close()
	s.cancel(nil)
	return err
}
