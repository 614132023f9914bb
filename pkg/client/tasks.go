package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// TasksService reads and changes tasks.
//
// A method that takes the name of a task returns task.ErrInvalid, without a call, for a
// name that no task can have. Unless its comment says otherwise, it returns
// task.ErrNotFound if there is no such task.
//
// Methods with a revision make their change only if the task is at that revision, and
// return task.ErrStale otherwise; with revision 0 they change any. A change that
// succeeds is stored, and the Task that they return has its new revision.
type TasksService struct{ conn *connection }

// TaskListOptions say which tasks are listed.
type TaskListOptions struct {
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

func (o TaskListOptions) queryValues() url.Values {
	q := url.Values{}
	setIfNotEmpty(q, "selector", o.Selector)
	setIfNotEmpty(q, "name", strings.Join(o.Names, ","))
	setIfNotEmpty(q, "sort", o.Sort)

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

// Get reads a task.
func (s *TasksService) Get(ctx context.Context, namespace, name string) (Task, error) {
	var t Task
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet}, &t)

	return t, err
}

// List reads the tasks that match, page after page. They are in the order of o.Sort,
// which by default is that of namespace and name.
func (s *TasksService) List(ctx context.Context, o TaskListOptions) ([]Task, error) {
	return collectItems(s.All(ctx, o))
}

// All yields what List returns, and reads each page when it is needed. An error ends it.
func (s *TasksService) All(ctx context.Context, o TaskListOptions) iter.Seq2[Task, error] {
	path, err := namespacePath(o.Namespace, "/tasks")
	size := pageSize
	if o.Brief || o.Sort != "" && o.Sort != SortName {
		size = maxPage
	}

	return iteratePages[Task](ctx, s.conn, path, o.queryValues(), size, o.Limit, err)
}

// Create creates a task in a namespace, which replaces spec.Namespace. The error is
// task.ErrExists if a task of that name exists, and task.ErrInvalid if spec is not valid.
func (s *TasksService) Create(ctx context.Context, namespace string, spec task.Spec) (Task, error) {
	return s.createTask(ctx, namespace, spec, nil)
}

// DryRunCreate is Create that writes nothing: Task.DryRun is what would change.
func (s *TasksService) DryRunCreate(ctx context.Context, namespace string, spec task.Spec) (Task, error) {
	return s.createTask(ctx, namespace, spec, dryRun(url.Values{}, 0))
}

func (s *TasksService) createTask(ctx context.Context, namespace string, spec task.Spec, q url.Values) (Task, error) {
	var t Task

	if err := task.CheckName("namespace", namespace); err != nil {
		return t, err
	}

	spec.Namespace = namespace
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/namespaces/" + namespace + "/tasks", query: q, body: spec}, &t)

	return t, err
}

// Apply creates a task, or changes it to what spec says; Task.Result says which. The
// error is task.ErrExists if o.CreateOnly is set and the task exists, and task.ErrStale
// if the task is not at o.Revision.
func (s *TasksService) Apply(ctx context.Context, spec task.Spec, o ApplyOptions) (Task, error) {
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
	err := s.conn.doTask(ctx, spec.Namespace, spec.Name, k, &t)

	return t, err
}

// Patch changes the fields of a task that patch has. It is a JSON merge patch (RFC
// 7396) of the spec, in which null resets a field to its default.
func (s *TasksService) Patch(ctx context.Context, namespace, name string, patch []byte, revision int64) (Task, error) {
	return s.patchTask(ctx, namespace, name, patch, revision, nil)
}

// DryRunPatch is Patch that writes nothing: Task.DryRun is what would change.
func (s *TasksService) DryRunPatch(ctx context.Context, namespace, name string, patch []byte, revision int64) (Task, error) {
	return s.patchTask(ctx, namespace, name, patch, revision, dryRun(url.Values{}, 0))
}

func (s *TasksService) patchTask(ctx context.Context, namespace, name string, patch []byte, revision int64, q url.Values) (Task, error) {
	var t Task
	k := call{method: http.MethodPatch, header: ifMatch(revision), query: q, raw: patch, rawType: "application/merge-patch+json"}
	err := s.conn.doTask(ctx, namespace, name, k, &t)

	return t, err
}

// Delete deletes a task with its queue and its history, and cancels its active runs.
func (s *TasksService) Delete(ctx context.Context, namespace, name string, revision int64) error {
	return s.conn.doTask(ctx, namespace, name, call{method: http.MethodDelete, header: ifMatch(revision)}, nil)
}

// DryRunDelete is Delete that deletes nothing: Task.DryRun has the ticks that would go.
func (s *TasksService) DryRunDelete(ctx context.Context, namespace, name string, revision int64) (Task, error) {
	var t Task
	k := call{method: http.MethodDelete, header: ifMatch(revision), query: dryRun(url.Values{}, 0)}
	err := s.conn.doTask(ctx, namespace, name, k, &t)

	return t, err
}

// Pause stops the ticks of a task until Resume. A task that is paused already stays so.
func (s *TasksService) Pause(ctx context.Context, namespace, name string, revision int64) (Task, error) {
	return s.postVerb(ctx, namespace, name, "pause", nil, revision)
}

// PauseWith is Pause with an end, or a reason.
func (s *TasksService) PauseWith(ctx context.Context, namespace, name string, how PauseRequest, revision int64) (Task, error) {
	return s.postVerb(ctx, namespace, name, "pause", how, revision)
}

// Resume ends the pause of a task: its ticks from now on run.
func (s *TasksService) Resume(ctx context.Context, namespace, name string, revision int64) (Task, error) {
	return s.postVerb(ctx, namespace, name, "resume", nil, revision)
}

// postVerb makes a change of a task that has a route of its own; body may be nil.
func (s *TasksService) postVerb(ctx context.Context, namespace, name, verb string, body any, revision int64) (Task, error) {
	var t Task
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodPost, header: ifMatch(revision), body: body}, &t, verb)

	return t, err
}

// Trigger queues a run of a task now, whether or not the task is paused. The run has
// the variables of env besides the task's own. If the outcome is unknown
// (task.ErrUnknown), Error.ID is the id of the run that may have been queued.
func (s *TasksService) Trigger(ctx context.Context, namespace, name string, env map[string]string) (Triggered, error) {
	var r Triggered
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodPost, body: TriggerRequest{Env: env}}, &r, "trigger")

	return r, err
}

// ListVersions returns the current version of a task, and after it the former ones
// that are kept, the newest first.
func (s *TasksService) ListVersions(ctx context.Context, namespace, name string) ([]TaskVersion, error) {
	var l List[TaskVersion]
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet}, &l, "versions")

	return l.Items, err
}

// Rollback makes a new version of a task with the spec of a former one. A paused task
// stays paused. The error is task.ErrConflict if that would change nothing.
func (s *TasksService) Rollback(ctx context.Context, namespace, name string, r RollbackRequest, revision int64) (RolledBack, error) {
	var t RolledBack
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodPost, header: ifMatch(revision), body: r}, &t, "rollback")

	return t, err
}

// WhyQuestion is about a time (At) or a range (From and To; an empty To is now). If all
// are empty, it is about the latest tick and the next one. Times have the form
// 2026-03-29T02:30, optionally with seconds and an offset such as Z; without an offset
// they are local times of Timezone, by default the task's. A date is a day.
type WhyQuestion struct {
	At, From, To string
	Timezone     string
}

// Why explains why a task ran at a time, did not run, or will run. For a task that was
// deleted the answer says so, as long as that is remembered; then it is
// task.ErrNotFound.
func (s *TasksService) Why(ctx context.Context, namespace, name string, q WhyQuestion) (task.Answer, error) {
	query := url.Values{}
	setIfNotEmpty(query, "at", q.At)
	setIfNotEmpty(query, "from", q.From)
	setIfNotEmpty(query, "to", q.To)
	setIfNotEmpty(query, "timezone", q.Timezone)

	var a task.Answer
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet, query: query}, &a, "why")

	return a, err
}

// ListKeys returns the keys in etcd that belong to a task.
func (s *TasksService) ListKeys(ctx context.Context, namespace, name string) (Keys, error) {
	var k Keys
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet}, &k, "keys")

	return k, err
}
