package api

import (
	"context"
	"net/http"
	"reflect"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskHandlers serve tasks.
type taskHandlers struct {
	Store  *store.Store
	Ref    func(namespace, name string) store.Ref // says where a task lives
	Views  *Viewer
	Finder *Finder
	Now    Clock
	// ClockFault says why this node's clock is not to be trusted: nothing is written then
	// that has the clock's time in an entry.
	ClockFault func() error
	// Nodes are the nodes that are present; nil: unknown, and nobody is warned of tasks that
	// none of them can run.
	Nodes func() []task.Node
	// Etcd is how etcdctl reaches an etcd that only this node knows; else it is empty.
	Etcd string

	// Authenticate finds the caller of a request anew: a batch may take hours.
	Authenticate func(ctx context.Context, r *http.Request) (caller, error)
	// ReportRefusal is told why a batch was ended by Authenticate.
	ReportRefusal func(r *http.Request, why *failure)
	Problems      problemWriter
	Log           *zap.Logger
}

// Routes are the operations of tasks and of the schedules of tasks.
func (h *taskHandlers) Routes() []*route {
	var (
		spec        = &body{types: []string{jsonType}, schema: "Spec", doc: "The task as its user writes it."}
		patch       = &body{types: []string{patchType, jsonType}, schema: "SpecPatch", doc: "A JSON merge patch (RFC 7396) of the spec; null is back to the default."}
		ask         = &body{types: []string{jsonType}, of: reflect.TypeFor[client.ScheduleRequest]()}
		aTask       = reflect.TypeFor[client.Task]()
		tasks       = reflect.TypeFor[client.List[client.Task]]()
		occurrences = reflect.TypeFor[client.List[client.Occurrence]]()
		coming      = reflect.TypeFor[client.List[client.Coming]]()
	)
	const get, post, put, patches, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete

	return []*route{
		{id: "list-all-tasks", method: get, path: "/v1/tasks", tag: "tasks", summary: "List tasks of all namespaces",
			about: listAbout, status: 200, answer: tasks, handler: Query(h.listTasks)},
		{id: "apply-tasks", method: post, path: "/v1/tasks:batch", tag: "tasks", summary: "Create many tasks, or make them what the lines of the body say",
			about:  batchAbout,
			body:   &body{types: []string{linesType}, schema: "Spec", optional: true, streamed: true, idle: batchIdle, doc: "A task in each line."},
			writes: true, status: 200, stream: true, answer: reflect.TypeFor[client.BatchResult](), answerType: linesType, handler: Query(h.applyTasks)},
		{id: "list-tasks", method: get, path: inNamespace + "/tasks", tag: "tasks", summary: "List the tasks of a namespace",
			about: listAbout, status: 200, answer: tasks, handler: Query(h.listTasks)},
		{id: "create-task", method: post, path: inNamespace + "/tasks", tag: "tasks", summary: "Create a task",
			about: dryRunAbout, dry: aTask, body: spec, writes: true, status: 201, answer: aTask, tagged: true, errors: []int{409}, handler: Query(h.createTask)},
		{id: "get-task", method: get, path: ofTask, tag: "tasks", summary: "Read a task", status: 200, answer: aTask, tagged: true, handler: NoQuery(h.getTask)},
		{id: "apply-task", method: put, path: ofTask, tag: "tasks", summary: "Create a task, or make it what the body says",
			about: "The field result says which: created, configured or unchanged. " + dryRunAbout,
			body:  spec, conditional: true, creates: true, writes: true, status: 200, answer: aTask, tagged: true, errors: []int{409}, handler: Query(h.applyTask)},
		{id: "update-task", method: patches, path: ofTask, tag: "tasks", summary: "Change some fields of a task",
			about: dryRunAbout, body: patch, conditional: true, writes: true, status: 200, answer: aTask, tagged: true, errors: []int{409}, handler: Query(h.patchTask)},
		{id: "delete-task", method: del, path: ofTask, tag: "tasks", summary: "Delete a task with its queue and its history",
			about: "Its active runs are cancelled by the owner of its shard. " + dryRunAbout,
			dry:   aTask, conditional: true, writes: true, status: 204, errors: []int{409}, handler: Query(h.deleteTask)},
		{id: "pause-task", method: post, path: ofTask + "/pause", tag: "tasks", summary: "Stop a task's ticks",
			about: "Of a task that is paused already, what the body leaves out stays.",
			body:  &body{types: []string{jsonType}, of: reflect.TypeFor[client.PauseRequest](), optional: true}, conditional: true, writes: true, status: 200, answer: aTask, tagged: true, errors: []int{409}, handler: NoQuery(h.pauseTask)},
		{id: "resume-task", method: post, path: ofTask + "/resume", tag: "tasks", summary: "Let a task's ticks go on, from now",
			conditional: true, writes: true, status: 200, answer: aTask, tagged: true, errors: []int{409}, handler: NoQuery(h.resumeTask)},
		{id: "list-task-versions", method: get, path: ofTask + "/versions", tag: "tasks", summary: "The versions of a task that are kept, the one in force first",
			status: 200, answer: reflect.TypeFor[client.List[client.TaskVersion]](), handler: NoQuery(h.taskVersions)},
		{id: "rollback-task", method: post, path: ofTask + "/rollback", tag: "tasks", summary: "Make a former version the newest",
			about: "Whether the task is paused stays.",
			body:  &body{types: []string{jsonType}, of: reflect.TypeFor[client.RollbackRequest](), optional: true}, conditional: true,
			writes: true, status: 200, answer: reflect.TypeFor[client.RolledBack](), tagged: true, errors: []int{409}, handler: NoQuery(h.rollbackTask)},
		{id: "next-ticks", method: get, path: ofTask + "/next", tag: "tasks", summary: "The next ticks of a task, as if it were not paused",
			about:  "Of a task whose pause has an end, those after it. With max_runs no more than may yet run.",
			status: 200, answer: occurrences, handler: Query(h.nextTicks)},
		{id: "list-all-coming", method: get, path: "/v1/next", tag: "tasks", summary: "The next ticks of the tasks of all namespaces, merged",
			about: comingAbout, status: 200, answer: coming, handler: Query(h.comingTicks)},
		{id: "list-coming", method: get, path: inNamespace + "/next", tag: "tasks", summary: "The next ticks of the tasks of a namespace, merged",
			about: comingAbout, status: 200, answer: coming, handler: Query(h.comingTicks)},
		{id: "task-why", method: get, path: ofTask + "/why", tag: "tasks", summary: "Why a task ran at a time, did not, or will",
			about:  whyAbout,
			status: 200, answer: reflect.TypeFor[task.Answer](), handler: Query(h.whyTask)},
		{id: "task-keys", method: get, path: ofTask + "/keys", tag: "tasks", summary: "The keys in etcd that belong to a task",
			status: 200, answer: reflect.TypeFor[client.Keys](), handler: NoQuery(h.taskKeys)},
		{id: "next-of-schedule", method: post, path: "/v1/schedule/next", tag: "schedules", summary: "The next ticks of a schedule that no task has",
			body: ask, status: 200, answer: occurrences, handler: NoQuery(h.scheduleNext)},
	}
}

const comingAbout = "In the order of time. A paused task has none before the end of its pause. Each page costs the server a look at all tasks that match."

const listAbout = "A page may have fewer items than its limit, even none, and still have a next. In another order than by name, " +
	"each page costs the server a look at all tasks that match."
