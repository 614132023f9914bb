package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// TasksService reads and changes tasks.
//
// Methods with the name of a task return task.ErrInvalid, without a call, for a name that no task can have.
// Unless their comment says otherwise, they return task.ErrNotFound if there is no such task.
//
// Methods with a revision change the task only if it is at that revision, and return task.ErrStale otherwise.
// Revision 0 means any revision. A successful change is stored, and the returned Task has its new revision.
type TasksService struct{ conn *connection }

// TaskListOptions select the tasks of a list.
type TaskListOptions struct {
	Namespace string // "" means all namespaces
	// Query contains terms that must all hold, such as "state:failed label:team=data next:<1h". "" matches all tasks. See
	// QueryTerm and JoinTerms.
	Query string
	// Sort is the order: SortName (also if empty), SortNext, SortLast (the latest end first), SortLateness or
	// SortDuration (of the last run, the largest first) or SortFailures (in a row, the most first). In all orders but
	// SortName, a task that changes while several pages are read may be listed twice or not at all.
	Sort string
	// Complete makes List and All fail with CodeIncomplete if tasks that match may be missing, because the owners of
	// some shards do not answer. Set it to change all matching tasks.
	Complete bool
	// Info, if set, is called with what the server says about each page, before its tasks are yielded.
	Info   func(ListInfo)
	Recent int  // how many past runs to include for each task, at most 100
	Brief  bool // only the specifications, without the state of the tasks
	Limit  int  // the maximum number of tasks; 0 means all
}

// The orders of a list of tasks.
const (
	SortName     = "name"
	SortNext     = "next"
	SortLast     = "last"
	SortLateness = "lateness"
	SortDuration = "duration"
	SortFailures = "failures"
)

// QueryTerm returns the term KEY:VALUE,VALUE of a query, with quotes where they are needed, and "" without values:
//
//	QueryTerm("name", "web-*", "prod/db")         // names and globs
//	QueryTerm("selector", "team in (data, ops)")  // a label selector
//	QueryTerm("state", "failing")
func QueryTerm(key string, values ...string) string {
	if len(values) == 0 {
		return ""
	}

	quoted := make([]string, len(values))
	for i, v := range values {
		if quoted[i] = v; strings.ContainsAny(v, " \t\r\n,\"") {
			quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`
		}
	}

	return key + ":" + strings.Join(quoted, ",")
}

// JoinTerms returns the query of all terms that are not empty.
func JoinTerms(terms ...string) string {
	return strings.Join(slices.DeleteFunc(terms, func(t string) bool { return t == "" }), " ")
}

// queryValues encodes the options, except for Namespace, Limit and Info.
func (o TaskListOptions) queryValues() url.Values {
	q := url.Values{}
	setIfNotEmpty(q, "sort", o.Sort)
	setIfNotEmpty(q, "q", o.Query)

	for name, is := range map[string]bool{"brief": o.Brief, "complete": o.Complete} {
		if is {
			q.Set(name, "true")
		}
	}

	if o.Recent > 0 {
		q.Set("recent", strconv.Itoa(o.Recent))
	}

	return q
}

// ApplyOptions are the conditions of an apply.
type ApplyOptions struct {
	Revision   int64 // the revision that the task must have; 0 means any
	CreateOnly bool  // the task must not exist yet
	DryRun     bool  // writes nothing; Task.DryRun contains what would change
}

// Get reads a task.
func (s *TasksService) Get(ctx context.Context, namespace, name string) (Task, error) {
	var t Task
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet}, &t)

	return t, err
}

// List returns the tasks that match, in the order of o.Sort, which is by namespace and name by default.
func (s *TasksService) List(ctx context.Context, o TaskListOptions) ([]Task, error) {
	return collectItems(s.All(ctx, o))
}

// All yields the tasks that List returns, and reads each page when it is needed. An error ends the iteration.
func (s *TasksService) All(ctx context.Context, o TaskListOptions) iter.Seq2[Task, error] {
	path, err := namespacePath(o.Namespace, "/tasks")
	size := pageSize
	if o.Brief || o.Sort != "" && o.Sort != SortName {
		size = maxPage
	}

	return iterateQuery[Task](ctx, s.conn, path, o.queryValues(), size, o.Limit, o.Info, err)
}

// Page returns one page of the tasks that List returns, with at most o.Limit of them. page is the Next of the page before;
// "" means the first page.
func (s *TasksService) Page(ctx context.Context, o TaskListOptions, page string) (QueryList[Task], error) {
	var l QueryList[Task]

	path, err := namespacePath(o.Namespace, "/tasks")
	if err != nil {
		return l, err
	}

	q := o.queryValues()
	q.Set("limit", strconv.Itoa(o.Limit))
	setIfNotEmpty(q, "page", page)
	err = s.conn.doCall(ctx, call{method: http.MethodGet, path: path, query: q}, &l)

	return l, err
}

// Create creates a task in a namespace, which replaces spec.Namespace. Fields that are not set have their defaults: see
// task.Spec.WithDefaults. Create returns task.ErrExists if a task of
// that name exists, and task.ErrInvalid if spec is not valid.
func (s *TasksService) Create(ctx context.Context, namespace string, spec task.Spec) (Task, error) {
	return s.createTask(ctx, namespace, spec, nil)
}

// CreateOnce is like Create with an idempotency key: all requests with the same key by the same subject in the same namespace give
// the task of the first one, as it is now and with Task.Replayed, for at least an hour. "" means a random key. The error has
// CodeKeyReused if the key was used for another request, and CodeDeleted if the task was deleted since then.
//
// If the answer is lost, CreateOnce sends the request again, up to three times within Config.Timeout.
func (s *TasksService) CreateOnce(ctx context.Context, namespace string, spec task.Spec, key string) (Task, error) {
	var t Task

	if err := task.CheckName("namespace", namespace); err != nil {
		return t, err
	}
	spec.Namespace = namespace

	err := s.conn.callOnce(ctx, key, call{method: http.MethodPost, path: "/v1/namespaces/" + namespace + "/tasks", body: spec.WithDefaults()}, &t)

	return t, err
}

// DryRunCreate is like Create, but writes nothing. Task.DryRun contains what would change.
func (s *TasksService) DryRunCreate(ctx context.Context, namespace string, spec task.Spec) (Task, error) {
	return s.createTask(ctx, namespace, spec, dryRun(url.Values{}, 0))
}

// createTask creates a task, or only computes the result if the query requests a dry run.
func (s *TasksService) createTask(ctx context.Context, namespace string, spec task.Spec, q url.Values) (Task, error) {
	var t Task

	if err := task.CheckName("namespace", namespace); err != nil {
		return t, err
	}

	spec.Namespace = namespace
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/namespaces/" + namespace + "/tasks", query: q, body: spec.WithDefaults()}, &t)

	return t, err
}

// Apply creates a task, or updates it to match spec. Task.Result reports which of the two. Fields that are not set have their
// defaults: see task.Spec.WithDefaults. Apply returns
// task.ErrExists if o.CreateOnly is set and the task exists, and task.ErrStale if the task is not at
// o.Revision.
func (s *TasksService) Apply(ctx context.Context, spec task.Spec, o ApplyOptions) (Task, error) {
	spec = spec.WithDefaults()
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

// Patch changes the fields of a task that patch contains. patch is a JSON merge patch (RFC 7396) of the spec: null
// resets a field to its default. Unlike in the RFC, an object whose last field is removed is removed, too.
func (s *TasksService) Patch(ctx context.Context, namespace, name string, patch []byte, revision int64) (Task, error) {
	return s.patchTask(ctx, namespace, name, patch, revision, nil)
}

// DryRunPatch is like Patch, but writes nothing. Task.DryRun contains what would change.
func (s *TasksService) DryRunPatch(ctx context.Context, namespace, name string, patch []byte, revision int64) (Task, error) {
	return s.patchTask(ctx, namespace, name, patch, revision, dryRun(url.Values{}, 0))
}

// patchTask sends a merge patch, or only computes the result if the query requests a dry run.
func (s *TasksService) patchTask(ctx context.Context, namespace, name string, patch []byte, revision int64, q url.Values) (Task, error) {
	var t Task
	k := call{method: http.MethodPatch, header: ifMatch(revision), query: q, raw: patch, rawType: "application/merge-patch+json"}
	err := s.conn.doTask(ctx, namespace, name, k, &t)

	return t, err
}

// DeleteOptions say how a task is deleted.
type DeleteOptions struct {
	Revision int64 // the revision that the task must have; 0 means any
	Force    bool  // deletes the task even if other tasks run after it; these stay, and run after a new task of that name
	Purge    bool  // keeps no copy, so the task cannot be undeleted
}

// queryValues encodes the options, except for Revision.
func (o DeleteOptions) queryValues() url.Values {
	q := url.Values{}
	for name, is := range map[string]bool{"force": o.Force, "purge": o.Purge} {
		if is {
			q.Set(name, "true")
		}
	}

	return q
}

// Delete deletes a task with its queue and its history, and cancels its active runs. The error has CodeInUse if other tasks run after
// it.
func (s *TasksService) Delete(ctx context.Context, namespace, name string, revision int64) error {
	return s.DeleteWith(ctx, namespace, name, DeleteOptions{Revision: revision})
}

// DeleteWith is like Delete, with options.
func (s *TasksService) DeleteWith(ctx context.Context, namespace, name string, o DeleteOptions) error {
	return s.conn.doTask(ctx, namespace, name, call{method: http.MethodDelete, header: ifMatch(o.Revision), query: o.queryValues()}, nil)
}

// DryRunDelete is like Delete, but deletes nothing. Task.DryRun contains the ticks that would be removed.
func (s *TasksService) DryRunDelete(ctx context.Context, namespace, name string, revision int64) (Task, error) {
	return s.DryRunDeleteWith(ctx, namespace, name, DeleteOptions{Revision: revision})
}

// DryRunDeleteWith is like DeleteWith, but deletes nothing. Task.DryRun contains the ticks that would be removed.
func (s *TasksService) DryRunDeleteWith(ctx context.Context, namespace, name string, o DeleteOptions) (Task, error) {
	var t Task
	k := call{method: http.MethodDelete, header: ifMatch(o.Revision), query: dryRun(o.queryValues(), 0)}
	err := s.conn.doTask(ctx, namespace, name, k, &t)

	return t, err
}

// GraphOptions select a part of the graph of a namespace.
type GraphOptions struct {
	Task   string // only the tasks from which links lead to this task, and to which links lead from it; "": all tasks with links
	Levels int    // with Task: up to this many links away; 0 means no limit
}

// Graph returns the tasks of a namespace that run after others, or after which others run, and the links between them. With a task,
// it returns task.ErrNotFound if there is no such task.
func (s *TasksService) Graph(ctx context.Context, namespace string, o GraphOptions) (Graph, error) {
	var g Graph

	if err := task.CheckName("namespace", namespace); err != nil {
		return g, err
	}

	q := url.Values{}
	setIfNotEmpty(q, "task", o.Task)
	if o.Levels > 0 {
		q.Set("levels", strconv.Itoa(o.Levels))
	}
	err := s.conn.doCall(ctx, call{method: http.MethodGet, path: "/v1/namespaces/" + namespace + "/graph", query: q}, &g)

	return g, err
}

// Pause stops the ticks of a task until Resume. It changes nothing if the task is already paused.
func (s *TasksService) Pause(ctx context.Context, namespace, name string, revision int64) (Task, error) {
	return s.postVerb(ctx, namespace, name, "pause", nil, revision)
}

// PauseWith is like Pause, with an end or a reason.
func (s *TasksService) PauseWith(ctx context.Context, namespace, name string, how PauseRequest, revision int64) (Task, error) {
	return s.postVerb(ctx, namespace, name, "pause", how, revision)
}

// Resume ends the pause of a task. Ticks that fell into the pause do not run later.
func (s *TasksService) Resume(ctx context.Context, namespace, name string, revision int64) (Task, error) {
	return s.postVerb(ctx, namespace, name, "resume", nil, revision)
}

// postVerb sends a request to change one task; body may be nil.
func (s *TasksService) postVerb(ctx context.Context, namespace, name, verb string, body any, revision int64) (Task, error) {
	var t Task
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodPost, header: ifMatch(revision), body: body}, &t, verb)

	return t, err
}

// Trigger queues a run of a task now, even if the task is paused. The run gets the variables of env, which the task must
// accept, in addition to those of the task. If the outcome is unknown (task.ErrUnknown), Error.ID is the id of the run
// that may have been queued.
func (s *TasksService) Trigger(ctx context.Context, namespace, name string, env map[string]string) (Triggered, error) {
	return s.TriggerWith(ctx, namespace, name, TriggerRequest{Env: env}, 0)
}

// TriggerWith is like Trigger, with all that a task can accept. If revision is not 0, the task must have this revision;
// otherwise the error is task.ErrStale. The error has CodeKeyReused if give.IdempotencyKey was used for another request.
//
// If the answer is lost, TriggerWith sends the request again, up to three times within Config.Timeout. This never starts a
// second run.
func (s *TasksService) TriggerWith(ctx context.Context, namespace, name string, give TriggerRequest, revision int64) (Triggered, error) {
	var r Triggered
	err := s.conn.doOnce(ctx, namespace, name, give.IdempotencyKey, call{method: http.MethodPost, header: ifMatch(revision), body: give}, &r, "trigger")

	return r, err
}

// ListVersions returns the current version of a task, followed by the former versions that are kept, the newest
// first.
func (s *TasksService) ListVersions(ctx context.Context, namespace, name string) ([]TaskVersion, error) {
	var l List[TaskVersion]
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet}, &l, "versions")

	return l.Items, err
}

// Rollback makes a new version of a task with the spec of a former one. A paused task stays paused. It returns
// task.ErrConflict if that would change nothing.
func (s *TasksService) Rollback(ctx context.Context, namespace, name string, r RollbackRequest, revision int64) (RolledBack, error) {
	var t RolledBack
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodPost, header: ifMatch(revision), body: r}, &t, "rollback")

	return t, err
}

// ListDeleted returns the tasks of a namespace that were deleted within the last week, by name. Those with a spec can be
// undeleted.
func (s *TasksService) ListDeleted(ctx context.Context, namespace string) ([]DeletedTask, error) {
	path, err := namespacePath(namespace, "/deleted-tasks")
	return collectItems(iteratePages[DeletedTask](ctx, s.conn, path, url.Values{}, maxPage, 0, err))
}

// Undelete creates a task again that was deleted within the last week, as it was then and with its pause. It returns
// task.ErrExists if there is a task of that name, and task.ErrNotFound if no copy of the deleted one is left.
func (s *TasksService) Undelete(ctx context.Context, namespace, name string) (Task, error) {
	var t Task
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodPost}, &t, "undelete")

	return t, err
}

// Purge deletes a task as Delete does, but keeps no copy, so it cannot be undeleted.
func (s *TasksService) Purge(ctx context.Context, namespace, name string, revision int64) error {
	return s.DeleteWith(ctx, namespace, name, DeleteOptions{Revision: revision, Purge: true})
}

// WhyQuestion is about a time (At) or a range (From and To; an empty To means now). If all are empty, it is
// about the latest tick and the next one. Times have the form 2026-03-29T02:30, optionally with seconds and an
// offset such as Z. Without an offset they are local times in Timezone, which by default is the task's time
// zone. A date means the whole day.
type WhyQuestion struct {
	At, From, To string
	Timezone     string
}

// Why explains why a task ran at a time, did not run, or will run. For a deleted task, the answer reports the
// deletion as long as it is on record. After that, Why returns task.ErrNotFound.
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

// ListKeys returns the etcd keys of a task.
func (s *TasksService) ListKeys(ctx context.Context, namespace, name string) (Keys, error) {
	var k Keys
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet}, &k, "keys")

	return k, err
}
