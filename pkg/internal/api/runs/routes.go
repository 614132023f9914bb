package runs

import (
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/attempts"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve the operations on runs. They are safe for concurrent use.
type Handlers struct {
	Store    *store.Store
	Ref      func(namespace, name string) record.Ref // maps a task to its shard
	Asker    *ask.Asker                              // asks the owners of the shards
	Attempts *attempts.Handlers
	Shards   int // the number of shards
	Now      httpapi.Clock
	// MostScanned is the maximum number of records that a page reads to find matching ones.
	MostScanned int
}

// Routes returns the operations on runs.
func (h *Handlers) Routes() []*httpapi.Operation {
	var (
		give = &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.TriggerRequest](), Optional: true}
		aRun = reflect.TypeFor[task.Run]()
		runs = reflect.TypeFor[client.List[task.Run]]()
	)
	const get, post = http.MethodGet, http.MethodPost

	return []*httpapi.Operation{
		{ID: "trigger-task", Verb: access.Trigger, Kind: access.Tasks, Method: post, Path: httpapi.OfTask + "/trigger", Tag: "tasks", Summary: "Trigger a run now, even if the task is paused",
			Description: "The body may contain arguments, variables and a node for this run, if the task accepts them (accept). Otherwise the answer is 422 with the code not_allowed.",
			Body:        give, Conditional: true, Idempotent: true, Writes: true, Status: 202, Answer: reflect.TypeFor[client.Triggered](), Errors: []int{409}, Handler: httpapi.NoQuery(h.triggerTask)},
		{ID: "list-task-runs", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.OfTask + "/runs", Tag: "runs", Summary: "List the runs of a task, the newest first",
			Status: 200, Answer: runs, Handler: httpapi.Query(h.listTaskRuns)},
		{ID: "get-task-run", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.OfRun, Tag: "runs", Summary: "Read a run by its id or a unique prefix of it",
			Description: attempts.ProgressAbout, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.getTaskRun)},
		{ID: "cancel-run", Verb: access.Cancel, Kind: access.Runs, Method: post, Path: httpapi.OfRun + "/cancel", Tag: "runs", Summary: "Cancel a run",
			Description: "A queued run ends at once. For an active run, the request goes to its node. " +
				"While etcd is full, only active runs can be cancelled: their nodes end them, the answer has unrecorded, and etcd shows them as they were until it has space. For a run with parts, the nodes end the parts that they have, and the error says how many.",
			Writes: true, Status: 200, Answer: reflect.TypeFor[client.Cancelled](), Errors: []int{409}, Handler: httpapi.NoQuery(h.cancelRun)},
		{ID: "pause-run", Verb: access.Pause, Kind: access.Runs, Method: post, Path: httpapi.OfRun + "/pause", Tag: "runs", Summary: "Pause a run",
			Description: "The request goes to the run's node. The run's state becomes paused, or its message explains why not. A run that has not started waits until it is resumed. " +
				"For a run with parts, the request goes to the parts that nodes have now. The answer has the state of each part, and paused_by for those that received the request. If some cannot be reached, the error has the number that were.",
			Writes: true, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.pauseRun)},
		{ID: "resume-run", Verb: access.Pause, Kind: access.Runs, Method: post, Path: httpapi.OfRun + "/resume", Tag: "runs", Summary: "Resume a paused run",
			Description: "Does nothing if the run is not paused. For a run with parts, the request goes to the parts that nodes have.",
			Writes:      true, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.resumeRun)},
		{ID: "retry-run", Verb: access.Retry, Kind: access.Runs, Method: post, Path: httpapi.OfRun + "/retry", Tag: "runs", Summary: "Retry a dead-letter run as a new run",
			Description: "The new run gets the arguments, the environment, the node and the checkpoint of the dead-letter run, which leaves the dead-letter list. If the task has changed and does not accept these arguments, variables or node any more, the answer is 409.",
			Idempotent:  true, Writes: true, Status: 202, Answer: reflect.TypeFor[client.Triggered](), Errors: []int{409}, Handler: httpapi.NoQuery(h.retryRun)},
		{ID: "dismiss-run", Verb: access.Retry, Kind: access.Runs, Method: post, Path: httpapi.OfRun + "/dismiss", Tag: "runs", Summary: "Dismiss a dead-letter run; its history stays",
			Writes: true, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.dismissRun)},
		{ID: "list-all-runs", Method: get, Path: "/v1/runs", Tag: "runs", Summary: "List the runs of all namespaces, the newest first",
			Status: 200, Answer: runs, Handler: httpapi.Query(h.listAllRuns)},
		{ID: "list-runs", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.InNamespace + "/runs", Tag: "runs", Summary: "List the runs of a namespace, the newest first",
			Status: 200, Answer: runs, Handler: httpapi.Query(h.listRuns)},
		{ID: "get-run", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.InNamespace + "/runs/{id}", Tag: "runs", Summary: "Find a run of any task by its id or a unique prefix of it",
			Description: attempts.ProgressAbout,
			Status:      200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.findRun)},
	}
}
