package runs

import (
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/attempts"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/selection"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve runs.
type Handlers struct {
	Store    *store.Store
	Ref      func(namespace, name string) record.Ref // says where a task lives
	Finder   *selection.Finder
	Attempts *attempts.Handlers
	Shards   int
	Now      httpapi.Clock
	// MostScanned is how many records a page reads in search of those that match.
	MostScanned int
}

// Routes are the operations of runs.
func (h *Handlers) Routes() []*httpapi.Operation {
	var (
		env  = &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.TriggerRequest](), Optional: true}
		aRun = reflect.TypeFor[task.Run]()
		runs = reflect.TypeFor[client.List[task.Run]]()
	)
	const get, post = http.MethodGet, http.MethodPost

	return []*httpapi.Operation{
		{ID: "trigger-task", Method: post, Path: httpapi.OfTask + "/trigger", Tag: "tasks", Summary: "Queue a run now, paused or not",
			Body: env, Writes: true, Status: 202, Answer: reflect.TypeFor[client.Triggered](), Errors: []int{409}, Handler: httpapi.NoQuery(h.triggerTask)},
		{ID: "list-task-runs", Method: get, Path: httpapi.OfTask + "/runs", Tag: "runs", Summary: "List the runs of a task, the newest first",
			Status: 200, Answer: runs, Handler: httpapi.Query(h.listTaskRuns)},
		{ID: "get-task-run", Method: get, Path: httpapi.OfRun, Tag: "runs", Summary: "Read a run by its id, or by the beginning of it",
			Description: attempts.ProgressAbout, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.getTaskRun)},
		{ID: "cancel-run", Method: post, Path: httpapi.OfRun + "/cancel", Tag: "runs", Summary: "End a run",
			Description: "A waiting run ends at once; the node of an active one is asked to end it.",
			Writes:      true, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.cancelRun)},
		{ID: "pause-run", Method: post, Path: httpapi.OfRun + "/pause", Tag: "runs", Summary: "Have a run stand still",
			Description: "Its node is asked to; the run's state is paused when it does, or its message says why it does not. One that has not started does not start until it is resumed. " +
				"Of a run with parts those are asked that nodes have now; the answer says how each part stands, and those that were asked have paused_by. If some cannot be asked, the error says how many were.",
			Writes: true, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.pauseRun)},
		{ID: "resume-run", Method: post, Path: httpapi.OfRun + "/resume", Tag: "runs", Summary: "Let a paused run go on",
			Description: "Of a run that is not paused it changes nothing. Of a run with parts those are asked that nodes have.",
			Writes:      true, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.resumeRun)},
		{ID: "retry-run", Method: post, Path: httpapi.OfRun + "/retry", Tag: "runs", Summary: "Queue a run in place of a dead one",
			Description: "With the environment that the dead one had, and its checkpoint. It is not on the list of dead runs from then on.",
			Writes:      true, Status: 202, Answer: reflect.TypeFor[client.Triggered](), Errors: []int{409}, Handler: httpapi.NoQuery(h.retryRun)},
		{ID: "dismiss-run", Method: post, Path: httpapi.OfRun + "/dismiss", Tag: "runs", Summary: "Take a run off the list of dead ones; its history stays",
			Writes: true, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.dismissRun)},
		{ID: "list-all-runs", Method: get, Path: "/v1/runs", Tag: "runs", Summary: "List the runs of all namespaces, the newest first",
			Status: 200, Answer: runs, Handler: httpapi.Query(h.listAllRuns)},
		{ID: "list-runs", Method: get, Path: httpapi.InNamespace + "/runs", Tag: "runs", Summary: "List the runs of a namespace, the newest first",
			Status: 200, Answer: runs, Handler: httpapi.Query(h.listRuns)},
		{ID: "get-run", Method: get, Path: httpapi.InNamespace + "/runs/{id}", Tag: "runs", Summary: "Find a run of any task by its id, or by the beginning of it",
			Description: attempts.ProgressAbout,
			Status:      200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.findRun)},
	}
}
