package api

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// route is one operation: what it takes, what it answers, and what does it. All
// of its document in OpenAPI follows from this.
type route struct {
	id, method, path string
	tag, summary     string
	about            string
	body             *body // nil: a body is refused
	conditional      bool  // takes If-Match
	creates          bool  // takes If-None-Match: *
	writes           bool
	forwarded        bool         // other nodes ask for it on behalf of their callers
	mends            bool         // may write although nothing else may
	status           int          // of success
	answer           reflect.Type // nil: no body, or plain text if it streams
	answerType       string       // "": jsonType
	dry              reflect.Type // of a dry run that is answered with 200, where status is another
	tagged           bool         // answers with an ETag
	errors           []int        // beyond those that follow from the rest
	open             bool         // needs no token
	stream           bool         // writes by itself, without the deadline
	events           reflect.Type // each message, if it is a stream of events to who asks for one
	handler          Handler
}

// body is a body that a route takes.
type body struct {
	types    []string
	schema   string       // the component that describes it, or
	of       reflect.Type // the type that does
	optional bool
	streamed bool // read by the route itself, as it arrives
	doc      string
}

const (
	jsonType  = "application/json"
	patchType = "application/merge-patch+json"
	linesType = "application/x-ndjson"
)

const (
	inNamespace = "/v1/namespaces/{ns}"
	ofTask      = inNamespace + "/tasks/{name}"
	ofRun       = ofTask + "/runs/{id}"

	clusterFreeze = "/v1/cluster/freeze"
)

const logsAbout = "With follow=true the answer goes on as the attempt writes, and waits for one that has not started. It ends when the attempt has; " +
	"if anything else ends it, it is cut off (without the last chunk): ask again, with from. " + client.LogsFromHeader + " says behind how many bytes it begins. " +
	"With times=true each line of output is a line of JSON (" + linesType + "): from (the bytes before it), time, stream (stdout or stderr, if the task " +
	"has them told apart), text, or base64 if it is not UTF-8, and unended if its end, or more of it, comes in another line. What a former version has kept has no times."

const stateAbout = "Only the node itself can take a state, which it keeps over restarts: any other node asks it for the state through etcd, and withdraws that if the node does not take it within 10 s."

const freezeAbout = "Answers when it holds: no tick is decided to run any more, and no node that is present starts anything. " +
	"Ticks are skipped, what waits waits on, what runs goes on. One that holds already stays as it is."

const comingAbout = "In the order of time. A paused task has none before the end of its pause. Each page costs the server a look at all tasks that match."

const listAbout = "A page may have fewer items than its limit, even none, and still have a next. In another order than by name, " +
	"each page costs the server a look at all tasks that match."

// routes are all of the API but secrets.
func (s *server) routes() []*route {
	spec := &body{types: []string{jsonType}, schema: "Spec", doc: "The task as its user writes it."}
	patch := &body{types: []string{patchType, jsonType}, schema: "SpecPatch", doc: "A JSON merge patch (RFC 7396) of the spec; null is back to the default."}
	env := &body{types: []string{jsonType}, of: reflect.TypeFor[client.TriggerRequest](), optional: true}
	ask := &body{types: []string{jsonType}, of: reflect.TypeFor[client.ScheduleRequest]()}
	var (
		aTask       = reflect.TypeFor[client.Task]()
		tasks       = reflect.TypeFor[client.List[client.Task]]()
		aRun        = reflect.TypeFor[task.Run]()
		runs        = reflect.TypeFor[client.List[task.Run]]()
		freeze      = reflect.TypeFor[client.FreezeStatus]()
		freezeBody  = &body{types: []string{jsonType}, of: reflect.TypeFor[client.FreezeRequest]()}
		occurrences = reflect.TypeFor[client.List[client.Occurrence]]()
		coming      = reflect.TypeFor[client.List[client.Coming]]()
	)
	const get, post, put, patches, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete
	return []*route{
		{id: "list-all-tasks", method: get, path: "/v1/tasks", tag: "tasks", summary: "List tasks of all namespaces",
			about: listAbout, status: 200, answer: tasks, handler: Query(s.listTasks)},
		{id: "apply-tasks", method: post, path: "/v1/tasks:batch", tag: "tasks", summary: "Create many tasks, or make them what the lines of the body say",
			about:  batchAbout,
			body:   &body{types: []string{linesType}, schema: "Spec", optional: true, streamed: true, doc: "A task in each line."},
			writes: true, status: 200, stream: true, answer: reflect.TypeFor[client.BatchResult](), answerType: linesType, handler: Query(s.applyTasks)},
		{id: "list-tasks", method: get, path: inNamespace + "/tasks", tag: "tasks", summary: "List the tasks of a namespace",
			about: listAbout, status: 200, answer: tasks, handler: Query(s.listTasks)},
		{id: "create-task", method: post, path: inNamespace + "/tasks", tag: "tasks", summary: "Create a task",
			about: dryRunAbout, dry: aTask, body: spec, writes: true, status: 201, answer: aTask, tagged: true, errors: []int{409}, handler: Query(s.createTask)},
		{id: "get-task", method: get, path: ofTask, tag: "tasks", summary: "Read a task", status: 200, answer: aTask, tagged: true, handler: NoQuery(s.getTask)},
		{id: "apply-task", method: put, path: ofTask, tag: "tasks", summary: "Create a task, or make it what the body says",
			about: "The field result says which: created, configured or unchanged. " + dryRunAbout,
			body:  spec, conditional: true, creates: true, writes: true, status: 200, answer: aTask, tagged: true, errors: []int{409}, handler: Query(s.applyTask)},
		{id: "update-task", method: patches, path: ofTask, tag: "tasks", summary: "Change some fields of a task",
			about: dryRunAbout, body: patch, conditional: true, writes: true, status: 200, answer: aTask, tagged: true, errors: []int{409}, handler: Query(s.patchTask)},
		{id: "delete-task", method: del, path: ofTask, tag: "tasks", summary: "Delete a task with its queue and its history",
			about: "Its active runs are cancelled by the owner of its shard. " + dryRunAbout,
			dry:   aTask, conditional: true, writes: true, status: 204, errors: []int{409}, handler: Query(s.deleteTask)},
		{id: "pause-task", method: post, path: ofTask + "/pause", tag: "tasks", summary: "Stop a task's ticks",
			about: "Of a task that is paused already, what the body leaves out stays.",
			body:  &body{types: []string{jsonType}, of: reflect.TypeFor[client.PauseRequest](), optional: true}, conditional: true, writes: true, status: 200, answer: aTask, tagged: true, errors: []int{409}, handler: NoQuery(s.pauseTask)},
		{id: "resume-task", method: post, path: ofTask + "/resume", tag: "tasks", summary: "Let a task's ticks go on, from now",
			conditional: true, writes: true, status: 200, answer: aTask, tagged: true, errors: []int{409}, handler: NoQuery(s.resumeTask)},
		{id: "list-task-versions", method: get, path: ofTask + "/versions", tag: "tasks", summary: "The versions of a task that are kept, the one in force first",
			status: 200, answer: reflect.TypeFor[client.List[client.TaskVersion]](), handler: NoQuery(s.taskVersions)},
		{id: "rollback-task", method: post, path: ofTask + "/rollback", tag: "tasks", summary: "Make a former version the newest",
			about: "Whether the task is paused stays.",
			body:  &body{types: []string{jsonType}, of: reflect.TypeFor[client.RollbackRequest](), optional: true}, conditional: true,
			writes: true, status: 200, answer: reflect.TypeFor[client.RolledBack](), tagged: true, errors: []int{409}, handler: NoQuery(s.rollbackTask)},
		{id: "trigger-task", method: post, path: ofTask + "/trigger", tag: "tasks", summary: "Queue a run now, paused or not",
			body: env, writes: true, status: 202, answer: reflect.TypeFor[client.Triggered](), errors: []int{409}, handler: NoQuery(s.triggerTask)},
		{id: "next-ticks", method: get, path: ofTask + "/next", tag: "tasks", summary: "The next ticks of a task, as if it were not paused",
			about:  "Of a task whose pause has an end, those after it. With max_runs no more than may yet run.",
			status: 200, answer: occurrences, handler: Query(s.nextTicks)},
		{id: "list-all-coming", method: get, path: "/v1/next", tag: "tasks", summary: "The next ticks of the tasks of all namespaces, merged",
			about: comingAbout, status: 200, answer: coming, handler: Query(s.comingTicks)},
		{id: "list-coming", method: get, path: inNamespace + "/next", tag: "tasks", summary: "The next ticks of the tasks of a namespace, merged",
			about: comingAbout, status: 200, answer: coming, handler: Query(s.comingTicks)},
		{id: "task-why", method: get, path: ofTask + "/why", tag: "tasks", summary: "Why a task ran at a time, did not, or will",
			about:  whyAbout,
			status: 200, answer: reflect.TypeFor[task.Answer](), handler: Query(s.whyTask)},
		{id: "task-keys", method: get, path: ofTask + "/keys", tag: "tasks", summary: "The keys in etcd that belong to a task",
			status: 200, answer: reflect.TypeFor[client.Keys](), handler: NoQuery(s.taskKeys)},

		{id: "list-task-runs", method: get, path: ofTask + "/runs", tag: "runs", summary: "List the runs of a task, the newest first",
			status: 200, answer: runs, handler: Query(s.listTaskRuns)},
		{id: "get-task-run", method: get, path: ofRun, tag: "runs", summary: "Read a run by its id, or by the beginning of it",
			about: tellsAbout, status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(s.getTaskRun)},
		{id: "get-run-logs", forwarded: true, method: get, path: ofRun + "/logs", tag: "runs", summary: "Read the output of an attempt, from whatever node ran it",
			about: logsAbout, status: 200, stream: true, errors: []int{206, 409, 416, 429, 508}, handler: Query(s.runLogs)},
		{id: "cancel-run", method: post, path: ofRun + "/cancel", tag: "runs", summary: "End a run",
			about:  "A waiting run ends at once; the node of an active one is asked to end it.",
			writes: true, status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(s.cancelRun)},
		{id: "pause-run", method: post, path: ofRun + "/pause", tag: "runs", summary: "Have a run stand still",
			about: "Its node is asked to; the run's state is paused when it does, or its message says why it does not. One that has not started does not start until it is resumed. " +
				"Of a run with parts those are asked that nodes have now; the answer says how each part stands, and those that were asked have paused_by. If some cannot be asked, the error says how many were.",
			writes: true, status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(s.pauseRun)},
		{id: "resume-run", method: post, path: ofRun + "/resume", tag: "runs", summary: "Let a paused run go on",
			about:  "Of a run that is not paused it changes nothing. Of a run with parts those are asked that nodes have.",
			writes: true, status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(s.resumeRun)},
		{id: "retry-run", method: post, path: ofRun + "/retry", tag: "runs", summary: "Queue a run in place of a dead one",
			about:  "With the environment that the dead one had, and its checkpoint. It is not on the list of dead runs from then on.",
			writes: true, status: 202, answer: reflect.TypeFor[client.Triggered](), errors: []int{409}, handler: NoQuery(s.retryRun)},
		{id: "dismiss-run", method: post, path: ofRun + "/dismiss", tag: "runs", summary: "Take a run off the list of dead ones; its history stays",
			writes: true, status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(s.dismissRun)},
		{id: "list-all-runs", method: get, path: "/v1/runs", tag: "runs", summary: "List the runs of all namespaces, the newest first",
			status: 200, answer: runs, handler: Query(s.listAllRuns)},
		{id: "list-runs", method: get, path: inNamespace + "/runs", tag: "runs", summary: "List the runs of a namespace, the newest first",
			status: 200, answer: runs, handler: Query(s.listRuns)},
		{id: "get-run", method: get, path: inNamespace + "/runs/{id}", tag: "runs", summary: "Find a run of any task by its id, or by the beginning of it",
			about:  tellsAbout,
			status: 200, answer: aRun, errors: []int{409}, handler: NoQuery(s.findRun)},

		{id: "list-all-events", method: get, path: "/v1/events", tag: "events", summary: "Follow what happens in the cluster, or read what has happened",
			about: eventsAbout, status: 200, stream: true, answer: reflect.TypeFor[client.EventPage](),
			events: reflect.TypeFor[task.Event](), errors: []int{429}, handler: Query(s.listEvents)},
		{id: "list-events", method: get, path: inNamespace + "/events", tag: "events", summary: "Follow what happens in a namespace, or read what has happened",
			about: eventsAbout, status: 200, stream: true, answer: reflect.TypeFor[client.EventPage](),
			events: reflect.TypeFor[task.Event](), errors: []int{429}, handler: Query(s.listEvents)},

		{id: "get-board", forwarded: true, method: get, path: "/v1/board", tag: "cluster", summary: "What an operator wants to see first: problems, what comes, what runs, nodes",
			about: boardAbout, status: 200, answer: reflect.TypeFor[task.Board](), handler: Query(s.getBoard)},
		{id: "list-talks", forwarded: true, method: get, path: "/v1/talks", tag: "runs", summary: "What the attempts that run on the node that is asked say of themselves",
			about: talksAbout, status: 200, answer: reflect.TypeFor[client.Talks](), handler: Query(s.listTalks)},
		{id: "list-nodes", method: get, path: "/v1/nodes", tag: "cluster", summary: "List the nodes that are present",
			status: 200, answer: reflect.TypeFor[client.List[task.Node]](), handler: NoQuery(s.listNodes)},
		{id: "get-node", method: get, path: "/v1/nodes/{node}", tag: "cluster", summary: "Read a node", status: 200, answer: reflect.TypeFor[task.Node](), handler: NoQuery(s.getNode)},
		{id: "drain-node", method: post, path: "/v1/nodes/{node}/drain", tag: "cluster", summary: "Have a node hand its shards and its unstarted runs over",
			about:  "The answer comes when the node has announced it. It is drained when it has no shards and runs nothing. " + stateAbout,
			status: 200, answer: reflect.TypeFor[task.Node](), errors: []int{409}, handler: NoQuery(s.drainNode)},
		{id: "cordon-node", method: post, path: "/v1/nodes/{node}/cordon", tag: "cluster", summary: "Give a node no new runs; it keeps its shards",
			about: stateAbout, status: 200, answer: reflect.TypeFor[task.Node](), errors: []int{409}, handler: NoQuery(s.cordonNode)},
		{id: "resume-node", method: post, path: "/v1/nodes/{node}/resume", tag: "cluster", summary: "End a node's draining, or its cordon",
			about: stateAbout, status: 200, answer: reflect.TypeFor[task.Node](), errors: []int{409}, handler: NoQuery(s.resumeNode)},
		{id: "list-shards", method: get, path: "/v1/shards", tag: "cluster", summary: "List all shards and their owners",
			status: 200, answer: reflect.TypeFor[client.List[task.Shard]](), handler: NoQuery(s.listShards)},
		{id: "get-cluster", method: get, path: "/v1/cluster", tag: "cluster", summary: "How the cluster fares",
			status: 200, answer: reflect.TypeFor[client.ClusterStatus](), handler: NoQuery(s.clusterStatus)},
		{id: "set-cluster", method: patches, path: "/v1/cluster", tag: "cluster", summary: "Change settings of the cluster",
			body: &body{types: []string{jsonType}, of: reflect.TypeFor[client.ClusterSettings]()}, writes: true, status: 200,
			answer: reflect.TypeFor[client.ClusterSettings](), errors: []int{409}, handler: NoQuery(s.setCluster)},
		{id: "recover-cluster", method: post, path: "/v1/cluster/recover", tag: "cluster", summary: "Go on with an etcd that was restored from an older snapshot",
			about:  "Bumps the cluster's epoch: all nodes forget what they knew, and begin anew on what etcd holds now.",
			writes: true, mends: true, status: 200, answer: reflect.TypeFor[task.Cluster](), errors: []int{409}, handler: NoQuery(s.recoverCluster)},
		{id: "get-format", method: get, path: "/v1/cluster/format", tag: "cluster", summary: "The format of the cluster's records, and what is in the way of another",
			status: 200, answer: reflect.TypeFor[client.FormatStatus](), handler: NoQuery(s.getFormat)},
		{id: "set-format", method: put, path: "/v1/cluster/format", tag: "cluster", summary: "Use the newest format of records that is possible, or go back to an older one",
			body: &body{types: []string{jsonType}, of: reflect.TypeFor[client.FormatRequest]()}, writes: true, status: 200,
			answer: reflect.TypeFor[client.FormatStatus](), errors: []int{409}, handler: NoQuery(s.setFormat)},
		{id: "get-freeze", method: get, path: clusterFreeze, tag: "cluster", summary: "Whether the cluster is frozen", status: 200, answer: freeze, handler: NoQuery(s.getFreeze)},
		{id: "freeze", method: put, path: clusterFreeze, tag: "cluster", summary: "Stop all firing", about: freezeAbout,
			body: freezeBody, writes: true, status: 200, answer: freeze, errors: []int{409, 504}, handler: NoQuery(s.putFreeze)},
		{id: "unfreeze", method: del, path: clusterFreeze, tag: "cluster", summary: "Let firing go on, from now",
			writes: true, status: 200, answer: freeze, errors: []int{404, 409}, handler: NoQuery(s.deleteFreeze)},
		{id: "get-namespace-freeze", method: get, path: inNamespace + "/freeze", tag: "cluster", summary: "Whether a namespace is frozen", status: 200, answer: freeze, handler: NoQuery(s.getFreeze)},
		{id: "freeze-namespace", method: put, path: inNamespace + "/freeze", tag: "cluster", summary: "Stop all firing in a namespace", about: freezeAbout,
			body: freezeBody, writes: true, status: 200, answer: freeze, errors: []int{409, 504}, handler: NoQuery(s.putFreeze)},
		{id: "unfreeze-namespace", method: del, path: inNamespace + "/freeze", tag: "cluster", summary: "Let firing go on in a namespace, from now",
			writes: true, status: 200, answer: freeze, errors: []int{404, 409}, handler: NoQuery(s.deleteFreeze)},
		{id: "list-members", method: get, path: "/v1/cluster/members", tag: "cluster", summary: "List the members of etcd",
			status: 200, answer: reflect.TypeFor[client.List[client.EtcdMember]](), handler: NoQuery(s.listMembers)},
		{id: "add-member", method: post, path: "/v1/cluster/members", tag: "cluster", summary: "Add a member to the embedded etcd",
			about: "It votes once its agent has started, with an empty data directory and --initial-cluster-state existing, and has caught up.",
			body:  &body{types: []string{jsonType}, of: reflect.TypeFor[client.AddMemberRequest]()}, writes: true, status: 201,
			answer: reflect.TypeFor[client.MemberChange](), errors: []int{409}, handler: NoQuery(s.addMember)},
		{id: "remove-member", method: del, path: "/v1/cluster/members/{member}", tag: "cluster", summary: "Remove a member from the embedded etcd, for good",
			writes: true, status: 200, answer: reflect.TypeFor[client.MemberChange](), errors: []int{409}, handler: NoQuery(s.removeMember)},
		{id: "audit", method: get, path: "/v1/audit", tag: "cluster", summary: "Check the cluster against the promises",
			about: auditAbout, status: 200, stream: true, answer: reflect.TypeFor[client.AuditLine](), answerType: linesType,
			errors: []int{409}, handler: Query(s.audit)},
		{id: "repair", method: post, path: "/v1/audit:repair", tag: "cluster", summary: "Mend findings of an audit, where that is safe",
			about: "Each is decided anew and written in transactions that compare all that was read: what has changed since the audit is left alone. " +
				"Findings after one that failed are not tried.",
			body:   &body{types: []string{jsonType}, of: reflect.TypeFor[client.Repairs](), doc: "At most 100 findings, as the audit named them."},
			writes: true, status: 200, answer: reflect.TypeFor[client.List[task.RepairResult]](), handler: NoQuery(s.repair)},
		{id: "get-version", method: get, path: "/v1/version", tag: "cluster", summary: "What answers",
			status: 200, answer: reflect.TypeFor[client.Version](), handler: NoQuery(s.version)},
		{id: "next-of-schedule", method: post, path: "/v1/schedule/next", tag: "schedules", summary: "The next ticks of a schedule that no task has",
			body: ask, status: 200, answer: occurrences, handler: NoQuery(s.scheduleNext)},

		{id: "healthz", method: get, path: "/healthz", tag: "health", summary: "Whether the process answers", open: true, status: 200, stream: true, handler: NoQuery(s.health)},
		{id: "readyz", method: get, path: "/readyz", tag: "health", summary: "Whether the node does its work", open: true, status: 200, stream: true, errors: []int{503}, handler: NoQuery(s.ready)},
	}
}

// register puts all routes into the mux. The document of them is written when
// somebody asks for it: that takes longer than all else of a start.
func (s *server) register() {
	for _, rt := range s.all() {
		s.mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) { s.handle(w, r, rt) })
	}
	s.registerPlain()
}

// all are the routes that the document describes, in its order.
func (s *server) all() []*route { return slices.Concat(s.routes(), s.secretRoutes()) }

// handle serves a route.
func (s *server) handle(w http.ResponseWriter, r *http.Request, rt *route) {
	if by := callerOf(r.Context()).from; by != "" && !rt.forwarded {
		s.writeError(w, r, fail(http.StatusForbidden, client.CodeForbidden, "node %s may not ask for this on behalf of a caller", by))
		return
	}
	if !rt.stream {
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	c, err := s.read(w, r, rt)
	if err != nil {
		endConnection(w)
		s.writeError(w, r, err)
		return
	}
	// Routes that stream set deadlines for each part. The server's own deadlines, which are
	// for whole requests and answers, stay in force for callers without a token.
	if rt.stream && !rt.open {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // not every writer has one
		patience := writeLimit
		if rt.body != nil && rt.body.streamed {
			patience = batchIdle
		}
		out := patient{w, patience}
		out.extend()
		defer out.extend() // what is left in buffers is written after this returns
		c.w, w = out, out
	}
	if rt.writes && !rt.mends {
		if err := s.Writable(); err != nil {
			s.writeError(w, r, fail(http.StatusServiceUnavailable, client.CodeRestored, "nothing can be changed: %s", err).
				withHint("if what etcd holds now is to be gone on with: carillon cluster recover"))
			return
		}
	}
	a, err := c.serve(c)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	if a.status == 0 {
		return // it wrote by itself
	}
	for name, values := range a.header {
		w.Header()[name] = values
	}
	if a.body == nil {
		w.WriteHeader(a.status)
		return
	}
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(a.status)
	_ = encodeTo(w, a.body) // the caller is gone
}
