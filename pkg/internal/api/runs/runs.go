// Package runs contains the API handlers for runs. They list and find runs, and trigger, cancel, pause, resume,
// retry, rerun and dismiss them.
//
// The record of a run moves while it is read: from the queue to an inbox and on to the history. Lists read the
// records in an order in which no run is missed. If a record has moved before a change is written, the change
// is decided again for the new place.
package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/attempts"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
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
	Cluster  string // the ID of the cluster
	// MostScanned is the maximum number of records that a page reads to find matching ones.
	MostScanned int
	Nodes       func() []task.Node // the present nodes; nil: unknown

	Watch Watcher // watches a run for a request that waits
	// CheckStream returns why the caller of a running request may no longer read the answer.
	CheckStream func(ctx context.Context, r *http.Request) error
	Ends        <-chan struct{} // closed when the node stops serving requests; may be nil
	Heartbeat   time.Duration   // the interval at which a request that waits checks its caller
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
			Description: "The body may contain arguments, variables and a node for this run, if the task accepts them (accept). Otherwise the answer is 422 with the code not_allowed. dependents in the answer are the tasks that the end of the run may start.",
			Body:        give, Conditional: true, Idempotent: true, Writes: true, Status: 202, Answer: reflect.TypeFor[client.Triggered](), Errors: []int{409}, Handler: httpapi.NoQuery(h.triggerTask)},
		{ID: "test-receiver", Verb: access.Update, Kind: access.Tasks, Method: post, Path: httpapi.OfTask + "/test", Tag: "alerts", Summary: "Send a test message to a receiver of alerts",
			Description: testAbout, Writes: true, Status: 202, Answer: reflect.TypeFor[client.Triggered](), Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.testReceiver)},
		{ID: "list-task-runs", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.OfTask + "/runs", Tag: "runs", Summary: "List the runs of a task, the newest first",
			Description: "The list contains queued, active and ended runs, and ticks that did not run, as far as the history of the task keeps them.",
			Status:      200, Answer: runs, Handler: httpapi.Query(h.listTaskRuns)},
		{ID: "get-task-run", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.OfRun, Tag: "runs", Summary: "Read a run by its id or a unique prefix of it",
			Description: waitAbout + attempts.ProgressAbout, Waits: true, Status: 200, Answer: aRun, Errors: []int{409, 429}, Handler: httpapi.Query(h.getTaskRun)},
		{ID: "list-steps", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.OfRun + "/steps", Tag: "runs", Summary: "Read the steps of a run of a workflow",
			Description: "The run waits, is active or has ended. The answer has all steps, and of each step the parts that items and offset select. If the task of the run is not a workflow, the answer is 409 with the code no_steps.",
			Status:      200, Answer: reflect.TypeFor[client.RunSteps](), Errors: []int{409}, Handler: httpapi.Query(h.listSteps)},
		{ID: "why-step", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.OfRun + "/why", Tag: "runs", Summary: "Explain a step of a run of a workflow",
			Description: "Explains in one sentence what a step or an item did, or why it waits, did not begin, or was stopped.",
			Status:      200, Answer: reflect.TypeFor[task.Answer](), Errors: []int{409}, Handler: httpapi.Query(h.whyStep)},
		{ID: "cancel-run", Verb: access.Cancel, Kind: access.Runs, Method: post, Path: httpapi.OfRun + "/cancel", Tag: "runs", Summary: "Cancel a run",
			Description: "A queued run ends at once. For an active run, the request goes to its node. " +
				"While etcd is full, only active runs can be cancelled: their nodes end them, the answer has unrecorded, and etcd shows them as they were until it has space. For a run with parts, the nodes end the parts that they have, and the error says how many. " +
				"A workflow first runs its steps with when: always, which clean up, if a step before them has begun; force ends these, too.",
			Writes: true, Status: 200, Answer: reflect.TypeFor[client.Cancelled](), Errors: []int{409}, Handler: httpapi.Query(h.cancelRun)},
		{ID: "pause-run", Verb: access.Pause, Kind: access.Runs, Method: post, Path: httpapi.OfRun + "/pause", Tag: "runs", Summary: "Pause a run",
			Description: "The request goes to the run's node. The run's state becomes paused, or its message explains why not. A run that has not started waits until it is resumed. " +
				"For a run with parts, the request goes to the parts that nodes have now. The answer has the state of each part, and paused_by for those that received the request. If some cannot be reached, the error has the number that were. " +
				"A run of a workflow is paused itself: no step and no item begins until it is resumed, and its timeout stands still.",
			Writes: true, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.pauseRun)},
		{ID: "resume-run", Verb: access.Pause, Kind: access.Runs, Method: post, Path: httpapi.OfRun + "/resume", Tag: "runs", Summary: "Resume a paused run",
			Description: "Does nothing if the run is not paused. For a run with parts, the request goes to the parts that nodes have.",
			Writes:      true, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.resumeRun)},
		{ID: "retry-run", Verb: access.Retry, Kind: access.Runs, Method: post, Path: httpapi.OfRun + "/retry", Tag: "runs", Summary: "Retry a dead-letter run as a new run",
			Description: "The new run gets the arguments, the environment, the node and the checkpoint of the dead-letter run, which leaves the dead-letter list. If the task has changed and does not accept these arguments, variables or node any more, the answer is 409. " +
				"A run with parts repeats only those that failed. A run of a workflow has the steps with which the dead-letter run began. It keeps those that succeeded, and items of maps, if all that they need is kept; steps with when: always are repeated.",
			Idempotent: true, Writes: true, Status: 202, Answer: reflect.TypeFor[client.Triggered](), Errors: []int{409}, Handler: httpapi.Query(h.retryRun)},
		{ID: "rerun-run", Verb: access.Trigger, Kind: access.Tasks, Method: post, Path: httpapi.OfRun + "/rerun", Tag: "runs", Summary: "Start an ended run again as a new run",
			Description: rerunAbout, Body: &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.RerunRequest](), Optional: true},
			Idempotent: true, Writes: true, Status: 202, Answer: reflect.TypeFor[client.Triggered](), Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.rerunRun)},
		{ID: "dismiss-run", Verb: access.Retry, Kind: access.Runs, Method: post, Path: httpapi.OfRun + "/dismiss", Tag: "runs", Summary: "Dismiss a dead-letter run; its history stays",
			Description: "A dead-letter run is one that used up its attempts, or a cancelled run of a workflow. Once it is dismissed, the task no longer counts as failing because of it.",
			Writes:      true, Status: 200, Answer: aRun, Errors: []int{409}, Handler: httpapi.NoQuery(h.dismissRun)},
		{ID: "list-all-runs", Method: get, Path: "/v1/runs", Tag: "runs", Summary: "List the runs of all namespaces, the newest first",
			Description: "The list contains the runs of all namespaces that you may read.",
			Status:      200, Answer: runs, Handler: httpapi.Query(h.listAllRuns)},
		{ID: "list-runs", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.InNamespace + "/runs", Tag: "runs", Summary: "List the runs of a namespace, the newest first",
			Description: "The list contains queued, active and ended runs, and ticks that did not run, as far as the histories of the tasks keep them.",
			Status:      200, Answer: runs, Handler: httpapi.Query(h.listRuns)},
		{ID: "get-run", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.InNamespace + "/runs/{id}", Tag: "runs", Summary: "Find a run of any task by its id or a unique prefix of it",
			Description: waitAbout + attempts.ProgressAbout, Waits: true,
			Status: 200, Answer: aRun, Errors: []int{409, 429}, Handler: httpapi.Query(h.findRun)},
	}
}

const waitAbout = "With wait, the answer comes when the run has ended, or after this time with the run as it is. A node serves a limited number of requests that wait, and refuses others with 429. "

// compareNewest orders runs from the newest to the oldest. The order is total, because cursors depend on it.
func compareNewest(a, b task.Run) int {
	return cmp.Or(record.ByTime(a, b), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Task, b.Task))
}

// runFilter selects the runs of a list.
type runFilter struct {
	states []task.State // nil: any
	reason string       // "": any
	node   string       // the node of the latest attempt; "": any
	since  task.Time    // inclusive; zero: no limit
	until  task.Time    // exclusive; zero: no limit
	parts  bool         // include the parts of runs
	// eventual allows a list that lacks runs which were queued or have ended in the last moments.
	eventual bool
	tasks    taskSet // only runs of these tasks; nil: of all tasks
	// selector selects tasks whose labels have not been read yet; see findCurrent.
	selector task.Selector
	within   []string  // only runs of these namespaces, in order; nil: of all namespaces
	after    *task.Run // only runs after this one in the list; nil for the first page
	last     *task.Run // no runs after this one in the list; nil: no limit
}

// runsQuery are the parameters that all lists of runs share.
type runsQuery struct {
	State    httpapi.StateList `query:"state" doc:"States, separated by commas."`
	Reason   string            `query:"reason" doc:"The reason of the state of the run, such as restored."`
	Node     string            `query:"node" doc:"The node that runs it, or ran it last."`
	Parts    bool              `query:"parts" default:"false" doc:"Also lists the parts of runs, each like a run of its own. With node they are always listed."`
	Dead     bool              `query:"dead" default:"false" doc:"Only runs that failed, timed out or were lost, have no attempts left, and were not retried or dismissed; also runs of workflows that were cancelled, which can be retried."`
	Since    task.Time         `query:"since" format:"date-time" doc:"Only runs of ticks from this time on. For manual runs, the time of the request counts."`
	Until    task.Time         `query:"until" format:"date-time" doc:"Only runs of ticks before this time."`
	Eventual bool              `query:"eventual" default:"false" doc:"Runs that were queued or have ended in the last moments may be missing. If the list can be made of the runs that the owners of the shards remember, it costs little, however long the histories are."`
	Progress bool              `query:"progress" default:"false" doc:"Adds the progress that active runs report. Carillon asks their nodes and waits at most one second."`
	httpapi.PageQuery
}

// selectedRunsQuery are the parameters of a list of runs of many tasks.
type selectedRunsQuery struct {
	Selector string `query:"selector" doc:"Only runs of tasks whose labels match, as they are now: \"team = data, env in (prod, staging), !old\"."`
	runsQuery
}

// namespaceRunsQuery are the parameters of a list of runs of a namespace.
type namespaceRunsQuery struct {
	Task string `query:"task" doc:"The name of a task."`
	selectedRunsQuery
}

// Check rejects a request that selects tasks by name and by labels.
func (q *namespaceRunsQuery) Check(url.Values) error {
	if q.Task == "" {
		return nil
	}
	if err := task.CheckName("task", q.Task); err != nil {
		return err
	}
	if q.Selector != "" {
		return task.Invalid(task.CodeBadValue, "selector", "cannot be used together with task")
	}

	return nil
}

// newFilter returns the filter for page p.
func (q runsQuery) newFilter(p httpapi.Paging) (f runFilter, err error) {
	f = runFilter{states: q.State, node: q.Node, since: q.Since, until: q.Until, parts: q.Parts, eventual: q.Eventual}
	if f.reason = q.Reason; f.reason != "" {
		reason, known := task.ReasonOf(f.reason)
		if !known {
			return f, task.Invalid(task.CodeBadValue, "reason", "%s is not a reason", task.Quote(f.reason))
		}
		if f.states == nil {
			f.states = reason.States
		}
	}

	if f.node != "" {
		f.parts = true // a run with parts has no node
		if err := task.CheckName("node", f.node); err != nil {
			return f, err
		}
	}

	if p.After != "" {
		f.after, err = parseRunCursor(p.After)
	}

	return f, err
}

// taskSet holds tasks as "namespace/name".
type taskSet map[string]bool

// selectTasks limits a list to tasks whose labels match a selector, of a namespace, or of all namespaces ("") that the
// caller may read.
func (h *Handlers) selectTasks(c *httpapi.Call, ns string, f *runFilter, text string, dead bool) error {
	selector, err := task.ParseSelector(text)
	if err != nil || selector == nil {
		return task.Under("selector", err)
	}

	// Labels belong to the tasks, so only a caller who may read a task may select its runs by them.
	if ns != "" {
		if err := c.Rights().Require(access.Need{Verb: access.Read, Kind: access.Tasks, Namespace: ns}); err != nil {
			return err
		}
	} else {
		f.within = ask.Intersect(f.within, c.Rights().Readable(access.Tasks))
	}

	// Few tasks have a waiting or an active run. Their labels are read when it is known which ones these are.
	if f.excludesEnded() && !dead {
		f.selector = selector
		return nil
	}

	line, err := readmodel.SelectorLine(text)
	if err != nil {
		return task.Under("selector", err)
	}

	names, err := h.Asker.AllNames(c, ask.Question{Namespace: ns, Within: f.within, Query: line})
	if err != nil {
		return err
	}

	f.tasks = make(taskSet, len(names))
	for _, name := range names {
		f.tasks[name] = true
	}

	return nil
}

// runCursor returns the cursor of the page that begins after a run.
func runCursor(r task.Run) string {
	return httpapi.Cursor(strconv.FormatInt(r.ScheduledTime.UnixMilli(), 10), r.ID, r.Namespace, r.Task)
}

// parseRunCursor returns the run at a cursor, with only the fields that determine its place in a list.
func parseRunCursor(s string) (*task.Run, error) {
	parts := strings.Split(s, " ")
	if len(parts) == 4 {
		if ms, err := strconv.ParseInt(parts[0], 10, 64); err == nil {
			return &task.Run{ScheduledTime: task.At(time.UnixMilli(ms)), ID: parts[1], Namespace: parts[2], Task: parts[3]}, nil
		}
	}

	return nil, task.Invalid(client.CodeBadPage, "page", "is not a page token of this list")
}

// matchesRun reports whether a run belongs to the page.
func (f runFilter) matchesRun(r task.Run) bool {
	return f.includesNamespace(r.Namespace) && (f.parts || !task.IsPart(r.ID)) && (f.tasks == nil || f.tasks[r.Namespace+"/"+r.Task]) && (f.states == nil || slices.Contains(f.states, r.State)) &&
		(f.reason == "" || r.Reason == f.reason) &&
		(f.since.IsZero() || !r.ScheduledTime.Before(f.since.Time)) && (f.until.IsZero() || r.ScheduledTime.Before(f.until.Time)) &&
		(f.node == "" || ranOn(r, f.node)) &&
		(f.after == nil || compareNewest(*f.after, r) < 0) && (f.last == nil || compareNewest(r, *f.last) <= 0)
}

// includesNamespace reports whether runs of a namespace can belong to the list.
func (f runFilter) includesNamespace(namespace string) bool {
	if f.within == nil {
		return true
	}

	_, found := slices.BinarySearch(f.within, namespace)

	return found
}

// ranOn reports whether a run's latest attempt is or was on a node.
func ranOn(r task.Run, node string) bool {
	if r.Node == "" {
		return r.LastNode() == node
	}
	return r.Node == node
}

// answerRuns answers with the page of runs at the beginning of list, which must be sorted. more states that
// other runs follow the list.
func (h *Handlers) answerRuns(c *httpapi.Call, q runsQuery, p httpapi.Paging, list []task.Run, more bool) (httpapi.Answer, error) {
	if len(list) > p.Limit {
		list, more = list[:p.Limit], true
	}

	if q.Progress {
		h.Attempts.AddToRuns(c, list)
	}

	for i := range list {
		list[i] = views.ReadableRun(c.Rights(), views.RunInBrief(list[i]))
	}

	after := ""
	if more && len(list) > 0 {
		after = runCursor(list[len(list)-1])
	}

	return httpapi.Page(c, p, list, after)
}

// answerRun answers with what the caller may read of one run, unless err is set.
func answerRun(c *httpapi.Call, run task.Run, err error) (httpapi.Answer, error) {
	return httpapi.Answer{Status: http.StatusOK, Body: views.ReadableRun(c.Rights(), run)}, err
}

// listTaskRuns serves the runs of a task.
func (h *Handlers) listTaskRuns(c *httpapi.Call, q runsQuery) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}
	return h.answerRunsOf(c, ref, q)
}

// answerRunsOf answers with a page of the runs of a task.
func (h *Handlers) answerRunsOf(c *httpapi.Call, ref record.Ref, q runsQuery) (httpapi.Answer, error) {
	p, err := c.Paging(q.PageQuery)
	if err != nil {
		return httpapi.Answer{}, err
	}

	f, err := q.newFilter(p)
	if err != nil {
		return httpapi.Answer{}, err
	}
	if q.Dead {
		return h.answerDeadOf(c, ref, p, f, q)
	}

	runs, err := h.Store.Runs(c.Context(), ref)
	if err != nil {
		return httpapi.Answer{}, err
	}

	if len(runs) == 0 {
		if _, err := h.Store.Revisions(c.Context(), ref); err != nil {
			return httpapi.Answer{}, err // distinguishes a task without runs from one that does not exist
		}
	}

	if f.parts {
		ended, err := h.Store.EndedParts(c.Context(), []int{ref.Shard}, ref.Namespace+"/"+ref.Name)
		if err != nil {
			return httpapi.Answer{}, err
		}
		runs = overrideRuns(ended, f.addParts(runs))
	}

	runs = slices.DeleteFunc(runs, func(r task.Run) bool { return !f.matchesRun(r) })
	slices.SortFunc(runs, compareNewest)

	return h.answerRuns(c, q, p, runs, false)
}

// listAllRuns serves the runs of all namespaces.
func (h *Handlers) listAllRuns(c *httpapi.Call, q selectedRunsQuery) (httpapi.Answer, error) {
	return h.answerSelected(c, "", q)
}

// listRuns serves the runs of a namespace, or of one of its tasks.
func (h *Handlers) listRuns(c *httpapi.Call, q namespaceRunsQuery) (httpapi.Answer, error) {
	ns, err := c.Namespace()
	if err != nil {
		return httpapi.Answer{}, err
	}
	if q.Task != "" {
		return h.answerRunsOf(c, h.Ref(ns, q.Task), q.runsQuery)
	}

	return h.answerSelected(c, ns, q.selectedRunsQuery)
}

// answerSelected answers with the runs of the selected tasks of a namespace, or of all namespaces ("").
func (h *Handlers) answerSelected(c *httpapi.Call, ns string, selected selectedRunsQuery) (httpapi.Answer, error) {
	q := selected.runsQuery
	p, err := c.Paging(q.PageQuery)
	if err != nil {
		return httpapi.Answer{}, err
	}

	f, err := q.newFilter(p)
	if err != nil {
		return httpapi.Answer{}, err
	}
	if ns == "" {
		f.within = c.Rights().Readable(access.Runs)
	}
	if err := h.selectTasks(c, ns, &f, selected.Selector, q.Dead); err != nil {
		return httpapi.Answer{}, err
	}
	if q.Dead {
		return h.answerDead(c, ns, p, f, q)
	}

	if f.mayUseMemory() {
		runs, more, ok, err := h.findRecent(c, ns, f, p.Limit)
		if err != nil {
			return httpapi.Answer{}, err
		}
		if ok {
			return h.answerRuns(c, q, p, runs, more)
		}
	}

	runs, more, err := h.findRuns(c.Context(), ns, f, p.Limit)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return h.answerRuns(c, q, p, runs, more)
}

// overrideRuns returns the runs of both lists. If both contain a run, it uses the one from newer.
func overrideRuns(old, newer []task.Run) []task.Run {
	type key struct{ ns, name, id string }
	has := make(map[key]bool, len(newer))
	for _, r := range newer {
		has[key{r.Namespace, r.Task, r.ID}] = true
	}

	old = slices.DeleteFunc(old, func(r task.Run) bool { return has[key{r.Namespace, r.Task, r.ID}] })

	return append(old, newer...)
}

// activeRuns returns the runs in all inboxes, of a namespace or of all namespaces ("").
func (h *Handlers) activeRuns(ctx context.Context, ns string) ([]task.Run, error) {
	held, err := h.Store.Active(ctx)
	if err != nil {
		return nil, err
	}

	var runs []task.Run
	for _, h := range held {
		if ns == "" || h.Namespace == ns {
			runs = append(runs, h.Run)
		}
	}

	return runs, nil
}

// Find returns the run of a task with an id or a unique prefix of an id.
func (h *Handlers) Find(ctx context.Context, ref record.Ref, id string) (task.Run, error) {
	if task.IsPart(id) {
		return h.runOfPart(ctx, ref, id)
	}

	// A task can have a long history, so a whole id is looked up directly. Only a prefix needs the ids of all runs.
	if isWholeID(id) {
		r, err := h.Store.RunByID(ctx, ref, id)
		if err == nil {
			return h.inFull(ctx, ref, r)
		}
		if !errors.Is(err, task.ErrNotFound) {
			return task.Run{}, err
		}
	}

	runs, err := h.Store.Runs(ctx, ref)
	if err != nil {
		return task.Run{}, err
	}

	var found []task.Run
	for _, r := range withoutParts(runs, id) {
		if r.ID == id {
			return h.inFull(ctx, ref, r)
		}

		if strings.HasPrefix(r.ID, id) {
			found = append(found, r)
		}
	}

	switch len(found) {
	case 0:
		return task.Run{}, fmt.Errorf("run %s of task %s: %w", id, ref, task.ErrNotFound)
	case 1:
		return h.inFull(ctx, ref, found[0])
	}

	ids := make([]string, len(found))
	for i, r := range found {
		ids[i] = r.ID
	}

	return task.Run{}, ambiguousError(id, ids)
}

// isWholeID reports whether an id is long enough to be that of a run. The id of a manual run is longer than that of a tick.
func isWholeID(id string) bool {
	_, ok := task.TimeOfRunID(id)
	return ok && len(id) >= len(task.RunID(time.Time{}, "abcd"))
}

// ambiguousError is the failure for an id that is a prefix of several ids.
func ambiguousError(id string, ids []string) error {
	const most = 5
	list := strings.Join(ids[:min(len(ids), most)], ", ")
	if len(ids) > most {
		list += ", …"
	}

	return httpapi.Fail(http.StatusConflict, client.CodeAmbiguous, "%s matches %d runs: %s", id, len(ids), list).
		WithField("run").WithHint("use a longer prefix of the id")
}

// getTaskRun serves a run of a task.
func (h *Handlers) getTaskRun(c *httpapi.Call, q waitQuery) (httpapi.Answer, error) {
	ref, id, err := c.RefAndRunID()
	if err != nil {
		return httpapi.Answer{}, err
	}

	return h.answerWhenEnded(c, q, func(ctx context.Context) (task.Run, error) { return h.Find(ctx, ref, id) })
}

// findRun serves a run of any task in a namespace, by its id or a unique prefix of it.
func (h *Handlers) findRun(c *httpapi.Call, q waitQuery) (httpapi.Answer, error) {
	ns, err := c.Namespace()
	if err != nil {
		return httpapi.Answer{}, err
	}

	id, err := c.RunID()
	if err != nil {
		return httpapi.Answer{}, err
	}

	const most = 100
	find, part := id, ""
	if parent, _, ok := task.ParentOf(id); ok {
		find, part = parent, id // the record of a part may be gone, so the run that contains it is looked up
	}

	refs, ids, err := h.Store.FindRuns(c.Context(), h.Shards, ns, find, most)
	if err != nil {
		return httpapi.Answer{}, err
	}

	var exact []int
	for i := range ids {
		if ids[i] == find {
			exact = append(exact, i)
		}
	}

	switch {
	case len(exact) == 1:
		refs, ids = refs[exact[0]:exact[0]+1], ids[exact[0]:exact[0]+1]
	case len(ids) == 0:
		return httpapi.Answer{}, fmt.Errorf("run %s in namespace %s: %w", id, ns, task.ErrNotFound)
	case len(ids) > 1:
		for i := range ids {
			ids[i] = refs[i].Name + "/" + ids[i]
		}
		return httpapi.Answer{}, ambiguousError(id, ids)
	}

	if part != "" {
		ids[0] = part
	}

	return h.answerWhenEnded(c, q, func(ctx context.Context) (task.Run, error) { return h.Find(ctx, refs[0], ids[0]) })
}
