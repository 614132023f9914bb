package api

import (
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// runHandlers serve runs.
type runHandlers struct {
	Store  *store.Store
	Ref    func(namespace, name string) store.Ref // says where a task lives
	Finder *Finder
	Talks  *talkHandlers
	Shards int
	Now    Clock
	// MostScanned is how many records a page reads in search of those that match.
	MostScanned int
}

// Routes are the operations of runs.
func (h *runHandlers) Routes() []*route {
	var (
		env  = &body{types: []string{jsonType}, of: reflect.TypeFor[client.TriggerRequest](), optional: true}
		aRun = reflect.TypeFor[task.Run]()
		runs = reflect.TypeFor[client.List[task.Run]]()
	)
	const get, post = http.MethodGet, http.MethodPost

	return []*route{
		{id: "trigger-task", method: post, path: ofTask + "/trigger", tag: "tasks", summary: "Queue a run now, paused or not",
			body: env, writes: true, status: 202, answer: reflect.TypeFor[client.Triggered](), errors: []int{409}, handler: NoQuery(h.triggerTask)},
		{id: "list-task-runs", method: get, path: ofTask + "/runs", tag: "runs", summary: "List the runs of a task, the newest first",
			status: 200, answer: runs, handler: Query(h.listTaskRuns)},
		{id: "get-task-run", method: get, path: ofRun, tag: "runs", summary: "Read a run by its id, or by the beginning of it",
			about: tellsAbout, status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(h.getTaskRun)},
		{id: "cancel-run", method: post, path: ofRun + "/cancel", tag: "runs", summary: "End a run",
			about:  "A waiting run ends at once; the node of an active one is asked to end it.",
			writes: true, status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(h.cancelRun)},
		{id: "pause-run", method: post, path: ofRun + "/pause", tag: "runs", summary: "Have a run stand still",
			about: "Its node is asked to; the run's state is paused when it does, or its message says why it does not. One that has not started does not start until it is resumed. " +
				"Of a run with parts those are asked that nodes have now; the answer says how each part stands, and those that were asked have paused_by. If some cannot be asked, the error says how many were.",
			writes: true, status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(h.pauseRun)},
		{id: "resume-run", method: post, path: ofRun + "/resume", tag: "runs", summary: "Let a paused run go on",
			about:  "Of a run that is not paused it changes nothing. Of a run with parts those are asked that nodes have.",
			writes: true, status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(h.resumeRun)},
		{id: "retry-run", method: post, path: ofRun + "/retry", tag: "runs", summary: "Queue a run in place of a dead one",
			about:  "With the environment that the dead one had, and its checkpoint. It is not on the list of dead runs from then on.",
			writes: true, status: 202, answer: reflect.TypeFor[client.Triggered](), errors: []int{409}, handler: NoQuery(h.retryRun)},
		{id: "dismiss-run", method: post, path: ofRun + "/dismiss", tag: "runs", summary: "Take a run off the list of dead ones; its history stays",
			writes: true, status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(h.dismissRun)},
		{id: "list-all-runs", method: get, path: "/v1/runs", tag: "runs", summary: "List the runs of all namespaces, the newest first",
			status: 200, answer: runs, handler: Query(h.listAllRuns)},
		{id: "list-runs", method: get, path: inNamespace + "/runs", tag: "runs", summary: "List the runs of a namespace, the newest first",
			status: 200, answer: runs, handler: Query(h.listRuns)},
		{id: "get-run", method: get, path: inNamespace + "/runs/{id}", tag: "runs", summary: "Find a run of any task by its id, or by the beginning of it",
			about:  tellsAbout,
			status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(h.findRun)},
	}
}
