package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// ListOptions says which tasks are listed.
type ListOptions struct {
	Namespace string // "" is all of them
	Selector  string // of labels: "team = data"
	// Names are names or globs, any of which may match: "web-*", "prod/web-*"; none
	// match all.
	Names   []string
	Failing bool // only those that fail: Task.State
	Paused  bool // only those that are paused
	// Sort is the order: SortName ("" is that too), SortNext, SortLast (the latest
	// first) or SortLateness (of the last run, the latest first). All but the first
	// have the server look at all that match, again for each page.
	Sort   string
	Recent int  // how many past runs each task has with it, at most 100
	Brief  bool // only what the users wrote: nothing of how tasks fare
	Limit  int  // at most so many; 0 is all
}

// The orders of a list of tasks.
const (
	SortName     = "name"
	SortNext     = "next"
	SortLast     = "last"
	SortLateness = "lateness"
)

func (o ListOptions) query() url.Values {
	q := url.Values{}
	set(q, "selector", o.Selector)
	set(q, "name", strings.Join(o.Names, ","))
	set(q, "sort", o.Sort)
	for name, is := range map[string]bool{"failing": o.Failing, "paused": o.Paused, "brief": o.Brief} {
		if is {
			q.Set(name, "true")
		}
	}
	if o.Recent > 0 {
		q.Set("recent", strconv.Itoa(o.Recent))
	}
	return q
}

// ApplyOptions make an apply conditional.
type ApplyOptions struct {
	Revision   int64 // the task must be at this revision; 0 is any
	CreateOnly bool  // the task must not be there yet
	DryRun     bool  // nothing is written; Task.DryRun is what would change
}

// pageSize is how many items a page has, unless it is better to have as many as a
// server gives.
const (
	pageSize = 1000
	maxPage  = 5000
)

// taskPath is the path of a task, with what follows it.
func taskPath(namespace, name string, rest ...string) (string, error) {
	if err := task.CheckName("namespace", namespace); err != nil {
		return "", err
	}
	if err := task.CheckName("name", name); err != nil {
		return "", err
	}
	p := "/v1/namespaces/" + namespace + "/tasks/" + name
	for _, part := range rest {
		p += "/" + url.PathEscape(part)
	}
	return p, nil
}

func (c *Client) onTask(ctx context.Context, namespace, name string, k call, out any, rest ...string) error {
	var err error
	if k.path, err = taskPath(namespace, name, rest...); err != nil {
		return err
	}
	return c.do(ctx, k, out)
}

// Create creates a task in a namespace, whatever spec says of that.
// task.ErrExists if it is there.
func (c *Client) Create(ctx context.Context, namespace string, spec task.Spec) (Task, error) {
	return c.create(ctx, namespace, spec, nil)
}

// WouldCreate is Create that writes nothing: Task.DryRun is what would change.
func (c *Client) WouldCreate(ctx context.Context, namespace string, spec task.Spec) (Task, error) {
	return c.create(ctx, namespace, spec, dryRun(url.Values{}, 0))
}

func (c *Client) create(ctx context.Context, namespace string, spec task.Spec, q url.Values) (Task, error) {
	spec.Namespace = namespace
	var t Task
	if err := task.CheckName("namespace", namespace); err != nil {
		return t, err
	}
	err := c.do(ctx, call{method: http.MethodPost, path: "/v1/namespaces/" + namespace + "/tasks", query: q, body: spec}, &t)
	return t, err
}

const dryRunParam = "dry_run"

// dryRun has a change not made; ticks is as in BatchOptions.
func dryRun(q url.Values, ticks int) url.Values {
	q.Set(dryRunParam, "true")
	if ticks != 0 {
		q.Set("ticks", strconv.Itoa(max(ticks, 0)))
	}
	return q
}

// Apply creates a task, or makes it what spec says; Task.Result tells which.
// task.ErrExists with CreateOnly, task.ErrStale with a Revision that is not the
// task's.
func (c *Client) Apply(ctx context.Context, spec task.Spec, o ApplyOptions) (Task, error) {
	if spec.Namespace == "" {
		spec.Namespace = task.Defaults().Namespace
	}
	h := ifMatch(o.Revision)
	if o.CreateOnly {
		h = http.Header{"If-None-Match": {"*"}}
	}
	k := call{method: http.MethodPut, header: h, body: spec}
	if o.DryRun {
		k.query = dryRun(url.Values{}, 0)
	}
	var t Task
	err := c.onTask(ctx, spec.Namespace, spec.Name, k, &t)
	return t, err
}

// Get reads a task.
func (c *Client) Get(ctx context.Context, namespace, name string) (Task, error) {
	var t Task
	err := c.onTask(ctx, namespace, name, call{method: http.MethodGet}, &t)
	return t, err
}

// List reads tasks, in the order of namespace and name, page after page.
func (c *Client) List(ctx context.Context, o ListOptions) ([]Task, error) {
	tasks := []Task{}
	for t, err := range c.All(ctx, o) {
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

// All is List one by one: pages are read as they are needed. An error ends it.
func (c *Client) All(ctx context.Context, o ListOptions) iter.Seq2[Task, error] {
	path, err := inNamespace(o.Namespace, "/tasks")
	size := pageSize
	if o.Brief || o.Sort != "" && o.Sort != SortName {
		size = maxPage // each costs the server as much as all
	}
	return pagesOf[Task](ctx, c, path, o.query(), size, o.Limit, err)
}

func inNamespace(namespace, what string) (string, error) {
	if namespace == "" {
		return "/v1" + what, nil
	}
	return "/v1/namespaces/" + namespace + what, task.CheckName("namespace", namespace)
}

func set(q url.Values, key, value string) {
	if value != "" {
		q.Set(key, value)
	}
}

// pages iterates over a list, at most limit items of it (0: all).
func pages[T any](ctx context.Context, c *Client, path string, q url.Values, limit int, err error) iter.Seq2[T, error] {
	return pagesOf[T](ctx, c, path, q, pageSize, limit, err)
}

func pagesOf[T any](ctx context.Context, c *Client, path string, q url.Values, most, limit int, err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		if err != nil {
			yield(none, err)
			return
		}
		for seen := 0; ; {
			size := most
			if limit > 0 {
				size = min(size, limit-seen)
			}
			q.Set("limit", strconv.Itoa(size))
			var page List[T]
			if err := c.do(ctx, call{method: http.MethodGet, path: path, query: q}, &page); err != nil {
				yield(none, err)
				return
			}
			for _, item := range page.Items {
				if seen++; !yield(item, nil) || seen == limit {
					return
				}
			}
			if page.Next == "" {
				return
			}
			q.Set("page", page.Next)
		}
	}
}

// Patch changes the fields of a task that patch has: a JSON merge patch (RFC
// 7396) of the spec, in which null means back to the default. revision, unless
// 0, must be the task's, else it is task.ErrStale.
func (c *Client) Patch(ctx context.Context, namespace, name string, patch []byte, revision int64) (Task, error) {
	return c.patch(ctx, namespace, name, patch, revision, nil)
}

// WouldPatch is Patch that writes nothing: Task.DryRun is what would change.
func (c *Client) WouldPatch(ctx context.Context, namespace, name string, patch []byte, revision int64) (Task, error) {
	return c.patch(ctx, namespace, name, patch, revision, dryRun(url.Values{}, 0))
}

func (c *Client) patch(ctx context.Context, namespace, name string, patch []byte, revision int64, q url.Values) (Task, error) {
	var t Task
	k := call{method: http.MethodPatch, header: ifMatch(revision), query: q, raw: patch, rawType: "application/merge-patch+json"}
	err := c.onTask(ctx, namespace, name, k, &t)
	return t, err
}

// Delete deletes a task with its queue and its history; its active runs are
// cancelled. revision is as for Patch.
func (c *Client) Delete(ctx context.Context, namespace, name string, revision int64) error {
	return c.onTask(ctx, namespace, name, call{method: http.MethodDelete, header: ifMatch(revision)}, nil)
}

// WouldDelete is Delete that deletes nothing: Task.DryRun tells the ticks that
// would go.
func (c *Client) WouldDelete(ctx context.Context, namespace, name string, revision int64) (Task, error) {
	var t Task
	err := c.onTask(ctx, namespace, name, call{method: http.MethodDelete, header: ifMatch(revision), query: dryRun(url.Values{}, 0)}, &t)
	return t, err
}

// Pause stops a task's ticks. It may be paused already. revision is as for Patch.
func (c *Client) Pause(ctx context.Context, namespace, name string, revision int64) (Task, error) {
	var t Task
	err := c.onTask(ctx, namespace, name, call{method: http.MethodPost, header: ifMatch(revision)}, &t, "pause")
	return t, err
}

// PauseWith is Pause with an end, or a reason.
func (c *Client) PauseWith(ctx context.Context, namespace, name string, how PauseRequest, revision int64) (Task, error) {
	var t Task
	err := c.onTask(ctx, namespace, name, call{method: http.MethodPost, header: ifMatch(revision), body: how}, &t, "pause")
	return t, err
}

// Versions are the versions of a task, the one in force first: as many former
// ones as are kept.
func (c *Client) Versions(ctx context.Context, namespace, name string) ([]TaskVersion, error) {
	var l List[TaskVersion]
	err := c.onTask(ctx, namespace, name, call{method: http.MethodGet}, &l, "versions")
	return l.Items, err
}

// Rollback gives a task the spec of a former version, in a new one; whether it is
// paused stays. task.ErrConflict if that changes nothing. revision is as for Patch.
func (c *Client) Rollback(ctx context.Context, namespace, name string, r RollbackRequest, revision int64) (RolledBack, error) {
	var t RolledBack
	err := c.onTask(ctx, namespace, name, call{method: http.MethodPost, header: ifMatch(revision), body: r}, &t, "rollback")
	return t, err
}

// Resume lets a task's ticks go on, from now. revision is as for Patch.
func (c *Client) Resume(ctx context.Context, namespace, name string, revision int64) (Task, error) {
	var t Task
	err := c.onTask(ctx, namespace, name, call{method: http.MethodPost, header: ifMatch(revision)}, &t, "resume")
	return t, err
}

// Trigger queues a run of a task now, paused or not. If the outcome is unknown,
// the Error's ID is the run's that may have been queued.
func (c *Client) Trigger(ctx context.Context, namespace, name string, env map[string]string) (Triggered, error) {
	var r Triggered
	err := c.onTask(ctx, namespace, name, call{method: http.MethodPost, body: TriggerRequest{Env: env}}, &r, "trigger")
	return r, err
}

// Next are the next ticks of a task after from (zero: now), paused or not;
// count 0 is the server's default of 5.
func (c *Client) Next(ctx context.Context, namespace, name string, count int, from time.Time) ([]Occurrence, error) {
	q := url.Values{}
	if count != 0 {
		q.Set("count", strconv.Itoa(count))
	}
	if !from.IsZero() {
		q.Set("from", from.UTC().Format(time.RFC3339Nano))
	}
	var l List[Occurrence]
	err := c.onTask(ctx, namespace, name, call{method: http.MethodGet, query: q}, &l, "next")
	return l.Items, err
}

// ComingOptions say which ticks are wanted.
type ComingOptions struct {
	Namespace   string // "" is all of them
	Selector    string
	Names       []string // as in ListOptions
	Failing     bool
	From, Until time.Time // zero: from now, without an end
	Limit       int       // at most so many; 0 is all, which with no end have none
}

// Coming are the next ticks of many tasks, merged in the order of time, page after
// page, each of which costs the server a look at all tasks. An error ends it.
func (c *Client) Coming(ctx context.Context, o ComingOptions) iter.Seq2[Coming, error] {
	path, err := inNamespace(o.Namespace, "/next")
	q := ListOptions{Selector: o.Selector, Names: o.Names, Failing: o.Failing}.query()
	for name, at := range map[string]time.Time{"from": o.From, "until": o.Until} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	return pagesOf[Coming](ctx, c, path, q, maxPage, o.Limit, err)
}

// Keys are the keys in etcd that belong to a task.
func (c *Client) Keys(ctx context.Context, namespace, name string) (Keys, error) {
	var k Keys
	err := c.onTask(ctx, namespace, name, call{method: http.MethodGet}, &k, "keys")
	return k, err
}

const schedulePath = "/v1/schedule/next"

// ScheduleNext are the ticks of a schedule that no task has.
func (c *Client) ScheduleNext(ctx context.Context, r ScheduleRequest) ([]Occurrence, error) {
	var l List[Occurrence]
	err := c.do(ctx, call{method: http.MethodPost, path: schedulePath, body: r}, &l)
	return l.Items, err
}
