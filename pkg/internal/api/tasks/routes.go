package tasks

import (
	"context"
	"net/http"
	"reflect"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve the operations on tasks. All fields are set once and must not change afterwards.
type Handlers struct {
	Store  *store.Store
	Ref    func(namespace, name string) record.Ref // maps a task to its shard
	Shards int                                     // the number of shards
	Views  *views.Viewer
	Asker  *ask.Asker
	Now    httpapi.Clock
	// ClockFault returns an error if this node's clock cannot be trusted. Requests that would write the clock's
	// time into an entry are refused then, because ticks could be lost or run early.
	ClockFault func() error
	// Nodes returns the nodes that are present. If nil, they are unknown, and writes return no placement
	// warnings.
	Nodes func() []task.Node
	// Etcd contains the arguments with which etcdctl reaches an embedded etcd. It is empty if the user has
	// configured the cluster's etcd.
	Etcd string

	// CheckStream returns why the caller may no longer use its credentials. A batch may take hours.
	CheckStream func(ctx context.Context, r *http.Request) error
	// ReportRefusal counts and logs that CheckStream has ended a batch.
	ReportRefusal func(r *http.Request, who httpapi.Caller, why *httpapi.Failure)
	Problems      httpapi.ProblemWriter
	Log           *zap.Logger
}

// Routes returns the operations of tasks and of schedules.
func (h *Handlers) Routes() []*httpapi.Operation {
	var (
		spec        = &httpapi.Body{Types: []string{httpapi.TypeJSON}, Schema: "Spec", Doc: "The task as its user writes it."}
		patch       = &httpapi.Body{Types: []string{httpapi.TypeMergePatch, httpapi.TypeJSON}, Schema: "SpecPatch", Doc: "A JSON merge patch (RFC 7396) of the spec; null restores the default. Unlike in the RFC, an object whose last field is removed is removed, too."}
		ask         = &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.ScheduleRequest]()}
		aTask       = reflect.TypeFor[client.Task]()
		tasks       = reflect.TypeFor[client.QueryList[client.Task]]()
		occurrences = reflect.TypeFor[client.List[client.Occurrence]]()
		coming      = reflect.TypeFor[client.QueryList[client.Coming]]()
	)
	const get, post, put, patches, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete

	return []*httpapi.Operation{
		{ID: "list-all-tasks", Method: get, Path: "/v1/tasks", Tag: "tasks", Summary: "List tasks of all namespaces",
			Description: listAbout, Status: 200, Answer: tasks, Errors: []int{429}, Handler: httpapi.Query(h.listTasks)},
		{ID: "apply-tasks", Method: post, Path: "/v1/tasks:batch", Tag: "tasks", Summary: "Create or update many tasks, one for each line of the body",
			Description: batchAbout,
			Body:        &httpapi.Body{Types: []string{httpapi.TypeLines}, Schema: "Spec", Optional: true, Streamed: true, Idle: batchIdle, Doc: "A task in each line."},
			Writes:      true, Status: 200, Streams: true, Answer: reflect.TypeFor[client.BatchResult](), AnswerType: httpapi.TypeLines, Handler: httpapi.Query(h.applyTasks)},
		{ID: "list-tasks", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.InNamespace + "/tasks", Tag: "tasks", Summary: "List the tasks of a namespace",
			Description: listAbout, Status: 200, Answer: tasks, Errors: []int{429}, Handler: httpapi.Query(h.listTasks)},
		{ID: "create-task", Verb: access.Create, Kind: access.Tasks, Method: post, Path: httpapi.InNamespace + "/tasks", Tag: "tasks", Summary: "Create a task",
			Description: dryRunAbout, DryAnswer: aTask, Body: spec, Idempotent: true, Writes: true, Status: 201, Answer: aTask, Tagged: true, Errors: []int{409}, Handler: httpapi.Query(h.createTask)},
		{ID: "get-task", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.OfTask, Tag: "tasks", Summary: "Read a task",
			Description: "The answer has the task as it is stored, its next tick, and its state. The ETag is its revision: a change of its state alone does not change it.", Status: 200, Answer: aTask, Tagged: true, Handler: httpapi.NoQuery(h.getTask)},
		{ID: "apply-task", Verb: access.Read, Kind: access.Tasks, Method: put, Path: httpapi.OfTask, Tag: "tasks", Summary: "Create a task, or update it to match the body",
			Description: "The field result is created, configured or unchanged. " + dryRunAbout,
			Body:        spec, Conditional: true, Creates: true, Writes: true, Status: 200, Answer: aTask, Tagged: true, Errors: []int{409}, Handler: httpapi.Query(h.applyTask)},
		{ID: "update-task", Verb: access.Read, Kind: access.Tasks, Method: patches, Path: httpapi.OfTask, Tag: "tasks", Summary: "Change some fields of a task",
			Description: dryRunAbout, Body: patch, Conditional: true, Writes: true, Status: 200, Answer: aTask, Tagged: true, Errors: []int{409}, Handler: httpapi.Query(h.patchTask)},
		{ID: "delete-task", Verb: access.Delete, Kind: access.Tasks, Method: del, Path: httpapi.OfTask, Tag: "tasks", Summary: "Delete a task with its queue and its history",
			Description: "The owner of the task's shard cancels its active runs. A task after which others run is deleted only with force; otherwise the answer is 409 with the code in_use. " + dryRunAbout,
			DryAnswer:   aTask, Conditional: true, Writes: true, Status: 204, Errors: []int{409}, Handler: httpapi.Query(h.deleteTask)},
		{ID: "list-deleted-tasks", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.InNamespace + "/deleted-tasks", Tag: "tasks", Summary: "List deleted tasks",
			Description: "Tasks that were deleted within the last week, by name. Those with a spec can be undeleted.", Status: 200,
			Answer: reflect.TypeFor[client.List[client.DeletedTask]](), Handler: httpapi.Query(h.listDeleted)},
		{ID: "undelete-task", Verb: access.Create, Kind: access.Tasks, Method: post, Path: httpapi.OfTask + "/undelete", Tag: "tasks", Summary: "Create a deleted task again",
			Description: "The task comes back as it was when it was deleted within the last week, with its pause, as a new task: with a new uid, and ticks from now on. Its history, versions, ledger, " +
				"dead runs and waiting runs do not come back. " + dryRunAbout,
			DryAnswer: aTask, Writes: true, Status: 200, Answer: aTask, Tagged: true, Errors: []int{404, 409}, Handler: httpapi.Query(h.undeleteTask)},
		{ID: "pause-task", Verb: access.Pause, Kind: access.Tasks, Method: post, Path: httpapi.OfTask + "/pause", Tag: "tasks", Summary: "Stop a task's ticks",
			Description: "If the task is already paused, fields that the body omits keep their values.",
			Body:        &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.PauseRequest](), Optional: true}, Conditional: true, Writes: true, Status: 200, Answer: aTask, Tagged: true, Errors: []int{409}, Handler: httpapi.NoQuery(h.pauseTask)},
		{ID: "resume-task", Verb: access.Pause, Kind: access.Tasks, Method: post, Path: httpapi.OfTask + "/resume", Tag: "tasks", Summary: "Resume a task's ticks from now on",
			Description: "Ticks that fell into the pause do not run. Resuming a task that is not paused changes nothing.",
			Conditional: true, Writes: true, Status: 200, Answer: aTask, Tagged: true, Errors: []int{409}, Handler: httpapi.NoQuery(h.resumeTask)},
		{ID: "list-task-versions", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.OfTask + "/versions", Tag: "tasks", Summary: "List the stored versions of a task, the current one first",
			Description: "The number of former versions that are kept is limited. To return to one of them, use rollback-task.",
			Status:      200, Answer: reflect.TypeFor[client.List[client.TaskVersion]](), Handler: httpapi.NoQuery(h.taskVersions)},
		{ID: "rollback-task", Verb: access.Read, Kind: access.Tasks, Method: post, Path: httpapi.OfTask + "/rollback", Tag: "tasks", Summary: "Roll a task back to an earlier version",
			Description: "The rollback does not pause or resume the task.",
			Body:        &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.RollbackRequest](), Optional: true}, Conditional: true,
			Writes: true, Status: 200, Answer: reflect.TypeFor[client.RolledBack](), Tagged: true, Errors: []int{409}, Handler: httpapi.NoQuery(h.rollbackTask)},
		{ID: "get-graph", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.InNamespace + "/graph", Tag: "tasks", Summary: "Read which tasks of a namespace run after which others",
			Description: graphAbout, Status: 200, Answer: reflect.TypeFor[client.Graph](), Handler: httpapi.Query(h.readGraph)},
		{ID: "next-ticks", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.OfTask + "/next", Tag: "tasks", Summary: "List the next ticks of a task, ignoring a pause",
			Description: "If the pause of the task has an end, lists only ticks after that. With max_runs, lists at most the remaining runs.",
			Status:      200, Answer: occurrences, Handler: httpapi.Query(h.nextTicks)},
		{ID: "list-all-coming", Method: get, Path: "/v1/next", Tag: "tasks", Summary: "List the next ticks of all tasks in all namespaces",
			Description: comingAbout, Status: 200, Answer: coming, Errors: []int{429}, Handler: httpapi.Query(h.comingTicks)},
		{ID: "list-coming", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.InNamespace + "/next", Tag: "tasks", Summary: "List the next ticks of all tasks in a namespace",
			Description: comingAbout, Status: 200, Answer: coming, Errors: []int{429}, Handler: httpapi.Query(h.comingTicks)},
		h.statsRoute(),
		h.ledgerRoute(),
		{ID: "task-why", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.OfTask + "/why", Tag: "tasks", Summary: "Explain why a task did, did not or will run at a time",
			Description: whyAbout,
			Status:      200, Answer: reflect.TypeFor[task.Answer](), Handler: httpapi.Query(h.whyTask)},
		{ID: "task-keys", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.OfTask + "/keys", Tag: "tasks", Summary: "List the etcd keys of a task",
			Description: "They are for diagnosis with etcdctl. No other program should depend on them.",
			Status:      200, Answer: reflect.TypeFor[client.Keys](), Handler: httpapi.NoQuery(h.taskKeys)},
		{ID: "next-of-schedule", Method: post, Path: "/v1/schedule/next", Tag: "schedules", Summary: "List the next ticks of a schedule",
			Description: "Nothing is stored. Use it to check a schedule before you create a task.",
			Body:        ask, Status: 200, Answer: occurrences, Handler: httpapi.NoQuery(h.scheduleNext)},
	}
}

const comingAbout = "Sorted by time. A paused task has no ticks before the end of its pause. " + ownersAbout

const listAbout = "A page may have fewer items than its limit, or none, and still have a next page. A list that is sorted by name and filters only by the namespace, names or a prefix of the name is read from etcd. For every other list: " + ownersAbout

const ownersAbout = "The nodes that own the shards find the tasks. missing names the shards for which no node has answered within a second, and as_of is the time up to which the list contains all changes. Equal requests may get the same answer for a second. If the nodes cannot be asked, the last answer is repeated for up to ten minutes, with its time."
