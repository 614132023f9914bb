package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// accessMatrix says what each role may do. The first four roles are bound to the namespace default, the next three
// to the cluster; nobody has no binding. A cell of an operation on a namespace has the result in default, and then
// in the namespace other:
//
//	y  allowed: the answer is that of the operation
//	f  403: the caller lacks a verb
//	h  404: the caller may not even read the namespace, or the object
//
// Lists of all namespaces always have one letter: o lists what is in default only, a lists all, n neither.
const accessMatrix = `
operation             viewer operator editor ns-admin auditor node-operator admin nobody

list-tasks            yh     yh       yh     yh       yy      hh            yy    hh
get-task              yh     yh       yh     yh       yy      hh            yy    hh
list-deleted-tasks    yh     yh       yh     yh       yy      hh            yy    hh
list-task-versions    yh     yh       yh     yh       yy      hh            yy    hh
get-graph             yh     yh       yh     yh       yy      hh            yy    hh
next-ticks            yh     yh       yh     yh       yy      hh            yy    hh
list-coming           yh     yh       yh     yh       yy      hh            yy    hh
task-why              yh     yh       yh     yh       yy      hh            yy    hh
get-namespace-load    yh     yh       yh     yh       yy      hh            yy    hh
task-stats            yh     yh       yh     yh       yy      hh            yy    hh
task-ledger           yh     yh       yh     yh       yy      hh            yy    hh
task-keys             yh     yh       yh     yh       yy      hh            yy    hh
list-runs             yh     yh       yh     yh       yy      hh            yy    hh
get-run               yh     yh       yh     yh       yy      hh            yy    hh
list-task-runs        yh     yh       yh     yh       yy      hh            yy    hh
get-task-run          yh     yh       yh     yh       yy      hh            yy    hh
list-steps            yh     yh       yh     yh       yy      hh            yy    hh
why-step              yh     yh       yh     yh       yy      hh            yy    hh
get-run-logs          yh     yh       yh     yh       ff      hh            yy    hh
list-secrets          yh     yh       yh     yh       yy      hh            yy    hh
get-secret            yh     yh       yh     yh       yy      hh            yy    hh
get-namespace-freeze  yh     yh       yh     yh       yy      hh            yy    hh
get-namespace         yh     yh       yh     yh       yy      hh            yy    hh
list-events           yh     yh       yh     yh       yy      hh            yy    hh
list-alerts           yh     yh       yh     yh       yy      hh            yy    hh
task-alerts           yh     yh       yh     yh       yy      hh            yy    hh
list-silences         yh     yh       yh     yh       yy      hh            yy    hh
list-alert-rules      yh     yh       yh     yh       yy      hh            yy    hh
get-alert-rule        yh     yh       yh     yh       yy      hh            yy    hh

create-task           fh     fh       yh     yh       ff      hh            yy    hh
apply-task            fh     fh       yh     yh       ff      hh            yy    hh
apply-tasks           fh     fh       yh     yh       ff      hh            yy    hh
update-task           fh     fh       yh     yh       ff      hh            yy    hh
rollback-task         fh     fh       yh     yh       ff      hh            yy    hh
delete-task           fh     fh       yh     yh       ff      hh            yy    hh
undelete-task         fh     fh       yh     yh       ff      hh            yy    hh
pause-task            fh     yh       yh     yh       ff      hh            yy    hh
resume-task           fh     yh       yh     yh       ff      hh            yy    hh
trigger-task          fh     yh       yh     yh       ff      hh            yy    hh
cancel-run            fh     yh       yh     yh       ff      hh            yy    hh
pause-run             fh     yh       yh     yh       ff      hh            yy    hh
resume-run            fh     yh       yh     yh       ff      hh            yy    hh
retry-run             fh     yh       yh     yh       ff      hh            yy    hh
rerun-run             fh     yh       yh     yh       ff      hh            yy    hh
dismiss-run           fh     yh       yh     yh       ff      hh            yy    hh
acknowledge-alert     fh     yh       yh     yh       ff      hh            yy    hh
create-silence        fh     yh       yh     yh       ff      hh            yy    hh
end-silence           fh     yh       yh     yh       ff      hh            yy    hh
set-alert-rule        fh     fh       yh     yh       ff      hh            yy    hh
delete-alert-rule     fh     fh       yh     yh       ff      hh            yy    hh
test-receiver         fh     fh       yh     yh       ff      hh            yy    hh
freeze-namespace      fh     yh       yh     yh       ff      hh            yy    hh
unfreeze-namespace    fh     yh       yh     yh       ff      hh            yy    hh
set-secret            fh     fh       yh     yh       ff      hh            yy    hh
rotate-secret         fh     fh       yh     yh       ff      hh            yy    hh
delete-secret         fh     fh       yh     yh       ff      hh            yy    hh

get-binding           ff     ff       ff     yh       yy      ff            yy    ff
set-binding           fh     fh       fh     yh       ff      hh            yy    hh
delete-binding        ff     ff       ff     yh       ff      ff            yy    ff
get-token             hh     hh       hh     yh       yy      hh            yy    hh
create-token          fh     fh       fh     yh       ff      hh            yy    hh
delete-token          hh     hh       hh     yh       ff      hh            yy    hh
set-namespace         ff     ff       ff     ff       ff      ff            yy    ff

list-roles            f      f        f      y        y       f             y     f
get-role              f      f        f      y        y       f             y     f
set-role              f      f        f      f        f       f             y     f
delete-role           f      f        f      f        f       f             y     f
delete-namespace      f      f        f      f        f       f             y     f
list-subjects         f      f        f      f        y       f             y     f
disable-subject       f      f        f      f        f       f             y     f
enable-subject        f      f        f      f        f       f             y     f
reset-access          f      f        f      f        f       f             f     f
create-session        y      y        y      y        y       y             y     y
delete-session        f      f        f      f        f       f             f     f
create-login-link     y      y        y      y        y       y             y     y
use-login-link        f      f        f      f        f       f             f     f

list-nodes            f      f        f      f        y       y             y     f
get-node              f      f        f      f        y       y             y     f
list-node-limits      f      f        f      f        y       y             y     f
get-node-limit        f      f        f      f        y       y             y     f
set-node-limit        f      f        f      f        f       f             y     f
delete-node-limit     f      f        f      f        f       f             y     f
drain-node            f      f        f      f        f       y             y     f
cordon-node           f      f        f      f        f       y             y     f
resume-node           f      f        f      f        f       y             y     f
get-cluster           f      f        f      f        y       y             y     f
list-shards           f      f        f      f        y       y             y     f
list-members          f      f        f      f        y       y             y     f
get-format            f      f        f      f        y       y             y     f
get-freeze            f      f        f      f        y       y             y     f
get-metrics           f      f        f      f        y       y             y     f
set-cluster           f      f        f      f        f       f             y     f
set-format            f      f        f      f        f       f             y     f
freeze                f      f        f      f        f       f             y     f
unfreeze              f      f        f      f        f       f             y     f
acknowledge-cluster-alert f  f        f      f        f       f             y     f
add-member            f      f        f      f        f       f             y     f
remove-member         f      f        f      f        f       f             y     f
recover-cluster       f      f        f      f        f       f             y     f
backup-cluster        f      f        f      f        f       f             y     f
audit                 f      f        f      f        y       f             y     f
repair                f      f        f      f        f       f             y     f

list-all-tasks        o      o        o      o        a       n             a     n
list-all-runs         o      o        o      o        a       n             a     n
list-all-secrets      o      o        o      o        a       n             a     n
list-all-alerts       o      o        o      o        a       n             a     n
list-all-silences     o      o        o      o        a       n             a     n
list-all-alert-rules  o      o        o      o        a       n             a     n
get-load              o      o        o      o        a       n             a     n
list-all-coming       o      o        o      o        a       n             a     n
list-all-events       o      o        o      o        a       n             a     f
list-namespaces       o      o        o      o        a       n             a     n
list-bindings         f      f        f      o        a       f             a     f
list-tokens           n      n        n      o        a       n             a     n
list-audit-records    f      f        f      o        a       f             a     f

get-board             y      y        y      y        y       y             y     y
ask-owner             f      f        f      f        f       f             f     f
list-attempts         y      y        y      y        y       y             y     y
cancel-attempt        f      f        f      f        f       f             f     f
get-version           y      y        y      y        y       y             y     y
whoami                y      y        y      y        y       y             y     y
can                   y      y        y      y        y       y             y     y
next-of-schedule      y      y        y      y        y       y             y     y
get-openapi-json      y      y        y      y        y       y             y     y
get-openapi-yaml      y      y        y      y        y       y             y     y
healthz               y      y        y      y        y       y             y     y
readyz                y      y        y      y        y       y             y     y
`

// matrixCell is one request of the matrix, and what it names.
type matrixCell struct {
	ns   string
	n    int // distinguishes the objects of this cell
	name string
	uid  string
	run  string
	id   string // of a token
}

// operation is how an operation is requested. In path and body, NS, NAME and ID stand for those of the cell.
type operation struct {
	query, body, kind string
	before            func(*matrixCell)
	own               []int // further statuses with which an allowed request may fail
	once              bool  // the result is that of a line of the answer
}

// matrixWorld has the objects that cells need.
type matrixWorld struct {
	*world
	tokens map[string]string // by role
	began  string            // the id of an event before all that lists show
}

func newMatrixWorld(t *testing.T) *matrixWorld {
	t.Helper()
	w := &matrixWorld{world: newWorld(t), tokens: map[string]string{}}
	w.keys = map[string]func() (secret.Ring, error){"node-a": ringOf(secret.NewKey())}
	w.url = w.serve("node-a")
	w.Client = w.client(w.url)

	for _, role := range []string{"viewer", "operator", "editor", "ns-admin"} {
		w.bind("service:"+role, strings.Replace(role, "ns-", "namespace-", 1), "default")
	}
	for _, role := range []string{"auditor", "node-operator", "admin"} {
		w.bind("service:"+role, role)
	}
	for _, role := range []string{"viewer", "operator", "editor", "ns-admin", "auditor", "node-operator", "admin", "nobody"} {
		w.tokens[role] = w.token("service:" + role)
	}
	w.began = task.After(w.revision()).String()

	return w
}

// task puts a task with two versions into the cell's namespace.
func (w *matrixWorld) task(c *matrixCell) {
	w.t.Helper()
	got, err := w.Tasks.Create(w.t.Context(), c.ns, spec(c.name, "@daily"))
	must(w.t, err)
	_, err = w.Tasks.Patch(w.t.Context(), c.ns, c.name, []byte(`{"timeout":"1m"}`), 0)
	must(w.t, err)

	c.uid, c.run = got.UID, id(1, got.UID)
}

// endedRun is an ended run with output.
func (w *matrixWorld) endedRun(c *matrixCell) {
	w.task(c)
	at, _ := task.TimeOfRunID(c.run)
	w.put(w.store.Keys().Ended(ref(c.ns, c.name), c.run), task.Run{UID: c.uid, State: task.Succeeded, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule, Node: "node-a", Attempt: 1})
	w.spool[c.ns+"/"+c.name+"/"+c.run+"/1"] = "output"
}

// endedWorkflow is an ended run of a workflow.
func (w *matrixWorld) endedWorkflow(c *matrixCell) {
	w.task(c)
	at, _ := task.TimeOfRunID(c.run)
	fan := &task.Fan{Flow: &task.Flow{Steps: []task.FlowStep{{Name: "a", Kind: task.KindNoop, IsKept: true}}}}
	w.put(w.store.Keys().Ended(ref(c.ns, c.name), c.run), task.Run{UID: c.uid, State: task.Succeeded, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule, Attempt: 1, FanOut: task.FanOut{Fan: fan}})
}

func (w *matrixWorld) activeRun(c *matrixCell) {
	w.task(c)
	at, _ := task.TimeOfRunID(c.run)
	w.put(w.store.Keys().Run("node-a", ref(c.ns, c.name), c.run), task.Assigned{Run: task.Run{State: task.Running, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule, Attempt: 1}, Instance: "i"})
}

func (w *matrixWorld) deadRun(c *matrixCell) {
	w.endedRun(c)
	w.dead(ref(c.ns, c.name), c.uid, 1)
}

func (w *matrixWorld) openAlert(c *matrixCell) {
	w.task(c)
	w.alertOf(c.ns, c.name, task.AlertFailures)
}

func (w *matrixWorld) receiverOf(c *matrixCell) { w.receiver(c.ns, c.name) }

// silence is a silence of a task.
func (w *matrixWorld) silence(c *matrixCell) {
	w.task(c)
	s, err := w.Alerts.Silence(w.t.Context(), c.ns, client.SilenceRequest{Glob: c.name, For: task.Duration(time.Hour), Reason: c.name}, false)
	must(w.t, err)
	c.id = s.ID
}

// alertRule is a rule about the tasks of a namespace.
func (w *matrixWorld) alertRule(c *matrixCell) {
	_, err := w.Alerts.SetRule(w.t.Context(), c.ns, c.name, client.AlertRuleRequest{Selector: "team=" + c.name, Alerts: task.Alerts{}}, false)
	must(w.t, err)
}

func (w *matrixWorld) secretOf(c *matrixCell) {
	_, err := w.Secrets.Set(w.t.Context(), c.ns, c.name, client.SecretRequest{Values: map[string]string{"a": "b"}})
	must(w.t, err)
}

func (w *matrixWorld) binding(c *matrixCell) {
	_, err := w.Bindings.Put(w.t.Context(), task.Binding{Name: c.name, Role: "viewer", Subjects: []string{"user:vic"}, Namespaces: []string{c.ns}}, client.Writing{})
	must(w.t, err)
}

func (w *matrixWorld) nodeLimit(c *matrixCell) {
	_, err := w.NodeLimits.Put(w.t.Context(), task.NodeLimit{Name: c.name, Labels: []string{"zone=*"}}, client.Writing{})
	must(w.t, err)
}

func (w *matrixWorld) scopedToken(c *matrixCell) {
	made, err := w.Tokens.Create(w.t.Context(), client.TokenRequest{Subject: "service:ci", Scope: &task.TokenScope{Role: "viewer", Namespaces: []string{c.ns}}})
	must(w.t, err)
	c.id = made.ID
}

// operations are all operations of the API, by id.
func (w *matrixWorld) operations() map[string]operation {
	ctx := w.t.Context()
	s := spec("NAME", "@hourly")
	s.Namespace = "NS"
	b, err := json.Marshal(s)
	must(w.t, err)
	aTask := string(b)

	freeze := func(ns string) {
		_, err := w.Freezes.Begin(ctx, ns, "a move")
		must(w.t, err)
	}
	thaw := func(ns string) { _, _ = w.Freezes.End(ctx, ns) }

	return map[string]operation{
		"list-tasks": {}, "list-deleted-tasks": {}, "get-namespace-load": {}, "list-coming": {}, "get-graph": {}, "list-runs": {}, "list-secrets": {}, "get-namespace": {}, "get-namespace-freeze": {},
		"get-task": {before: w.task}, "list-task-versions": {before: w.task}, "next-ticks": {before: w.task}, "task-why": {before: w.task}, "task-stats": {before: w.task}, "task-ledger": {before: w.task}, "task-keys": {before: w.task},
		"get-run": {before: w.endedRun}, "list-task-runs": {before: w.task}, "get-task-run": {before: w.endedRun}, "list-steps": {before: w.endedWorkflow}, "why-step": {before: w.endedWorkflow, query: "step=a"}, "get-run-logs": {before: w.endedRun},
		"get-secret": {before: w.secretOf}, "list-events": {query: "after=" + w.began, before: w.task},

		"list-alerts": {}, "task-alerts": {before: w.openAlert}, "list-silences": {}, "acknowledge-alert": {before: w.openAlert},
		"create-silence": {body: `{"glob":"NAME","for":"1h","reason":"NAME"}`, before: w.task}, "end-silence": {before: w.silence},
		"list-alert-rules": {}, "get-alert-rule": {before: w.alertRule}, "set-alert-rule": {body: `{"alerts":{}}`}, "delete-alert-rule": {before: w.alertRule},
		"test-receiver": {before: w.receiverOf}, "acknowledge-cluster-alert": {before: func(*matrixCell) {
			w.put(w.store.Keys().ClusterAlert("not_evaluated"), task.Alert{Text: "3 tasks", Since: task.At(w.clock.now())})
		}},

		"create-task": {body: aTask}, "apply-task": {body: aTask}, "apply-tasks": {body: aTask + "\n", kind: "application/x-ndjson", once: true},
		"update-task":   {body: `{"timeout":"3m"}`, kind: "application/merge-patch+json", before: w.task},
		"rollback-task": {before: w.task}, "delete-task": {before: w.task}, "pause-task": {before: w.task},
		"undelete-task": {before: func(c *matrixCell) {
			w.task(c)
			must(w.t, w.Tasks.Delete(ctx, c.ns, c.name, 0))
		}},
		"resume-task": {before: func(c *matrixCell) {
			w.task(c)
			_, err := w.Tasks.Pause(ctx, c.ns, c.name, 0)
			must(w.t, err)
		}},
		"trigger-task": {before: w.task}, "cancel-run": {before: w.activeRun}, "pause-run": {before: w.activeRun}, "resume-run": {before: w.activeRun},
		"retry-run": {before: w.deadRun}, "dismiss-run": {before: w.deadRun}, "rerun-run": {before: w.deadRun},
		"freeze-namespace":   {body: `{"reason":"a move"}`, before: func(c *matrixCell) { thaw(c.ns) }},
		"unfreeze-namespace": {before: func(c *matrixCell) { freeze(c.ns) }},
		"set-secret":         {body: `{"values":{"a":"b"}}`}, "rotate-secret": {before: w.secretOf}, "delete-secret": {before: w.secretOf},

		"get-binding": {before: w.binding}, "delete-binding": {before: w.binding},
		"set-binding": {body: `{"role":"viewer","subjects":["user:vic"],"namespaces":["NS"]}`},
		"get-token":   {before: w.scopedToken}, "delete-token": {before: w.scopedToken},
		"create-token":  {body: `{"subject":"service:ci","scope":{"role":"viewer","namespaces":["NS"]}}`},
		"set-namespace": {body: `{"description":"NAME","run_as":["*"],"groups":["*"],"shell":true,"env_files":["*"]}`},

		"list-roles": {}, "get-role": {}, "set-role": {body: `{"rules":[{"verbs":["read"],"objects":["tasks"]}]}`},
		"delete-role": {before: func(c *matrixCell) {
			_, err := w.Roles.Put(ctx, task.Role{Name: c.name, Rules: []task.Rule{{Verbs: []string{"read"}, Objects: []string{"tasks"}}}}, client.Writing{})
			must(w.t, err)
		}},
		"delete-namespace": {before: func(c *matrixCell) {
			c.ns = c.name
			_, err := w.Namespaces.Put(ctx, task.Namespace{Name: c.name}, client.Writing{Create: true})
			must(w.t, err)
		}},
		"list-subjects": {}, "disable-subject": {}, "reset-access": {},
		"create-session": {}, "delete-session": {}, "create-login-link": {}, "use-login-link": {},
		"enable-subject": {before: func(c *matrixCell) {
			_, err := w.Subjects.Disable(ctx, "user:"+c.name)
			must(w.t, err)
		}},

		"list-node-limits": {}, "get-node-limit": {before: w.nodeLimit}, "delete-node-limit": {before: w.nodeLimit},
		"set-node-limit": {body: `{"labels":["zone=*"]}`}, "list-nodes": {}, "get-node": {}, "drain-node": {}, "cordon-node": {}, "resume-node": {},
		"get-cluster": {}, "list-shards": {}, "list-members": {own: []int{409}}, "get-format": {}, "get-freeze": {},
		"set-cluster": {body: `{"catch_up_rate":7}`}, "set-format": {body: fmt.Sprintf(`{"format":%d}`, store.NewestFormat)},
		"freeze": {body: `{"reason":"a move"}`, before: func(*matrixCell) { thaw("") }}, "unfreeze": {before: func(*matrixCell) { freeze("") }},
		"add-member": {body: `{"name":"x","peer_urls":["http://127.0.0.1:1"]}`, own: []int{409, 422, 503}}, "remove-member": {own: []int{404, 409, 503}},
		"recover-cluster": {own: []int{409}}, "backup-cluster": {own: []int{501}}, "audit": {query: "pause=1"}, "repair": {body: `{"findings":[{"kind":"orphan_history","key":"/x"}]}`, own: []int{422}},

		"list-all-tasks": {}, "list-all-runs": {}, "list-all-secrets": {}, "list-all-alerts": {}, "list-all-silences": {}, "list-all-alert-rules": {}, "list-all-coming": {}, "get-load": {query: "q=name:" + ownMarker + "," + otherMarker}, "list-all-events": {query: "after=" + w.began},
		"list-namespaces": {}, "list-bindings": {}, "list-tokens": {}, "list-audit-records": {query: "kind=task"},
		"get-board": {}, "ask-owner": {}, "list-attempts": {}, "cancel-attempt": {query: "run=default%2Fa%2Fr&token=1"}, "get-version": {}, "whoami": {}, "can": {query: "verb=read&kind=nodes"}, "healthz": {}, "readyz": {},
		"get-metrics": {}, "get-openapi-json": {}, "get-openapi-yaml": {},
		"next-of-schedule": {body: `{"schedule":"@daily"}`},
	}
}

// revision is the present revision of etcd.
func (w *world) revision() int64 {
	w.t.Helper()
	there, err := w.store.Present(w.t.Context())
	must(w.t, err)

	return there.Revision
}

// documented are the methods and paths of all operations, by id.
func documented(t *testing.T) map[string][2]string {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
	}
	b, err := builtDocument()
	must(t, err)
	must(t, json.Unmarshal(b, &doc))

	all := map[string][2]string{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			all[op.OperationID] = [2]string{strings.ToUpper(method), path}
		}
	}

	return all
}

// Every cell of the matrix is requested, and every operation of the API is in it. A request that is refused changes
// nothing. With -short, only the cells of three roles are requested.
func TestAccess_EachRoleMayDoWhatTheMatrixSays(t *testing.T) {
	t.Parallel()
	w := newMatrixWorld(t)
	routes := documented(t)

	lines := strings.Split(strings.TrimSpace(accessMatrix), "\n")
	roles := strings.Fields(lines[0])[1:]
	w.markers()
	operations := w.operations()
	w.obeys("node-a", 1<<40)

	seen := map[string]bool{}
	cells := 0

	for _, line := range slices.Concat(lines[len(lines)-24:], lines[1:len(lines)-24]) { // lists first, while the world is small
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}

		op, known := operations[fields[0]]
		route, documented := routes[fields[0]]
		if !known || !documented || len(fields) != len(roles)+1 {
			t.Errorf("%s: requested: %v, in the document: %v, %d roles", fields[0], known, documented, len(fields)-1)
			continue
		}
		seen[fields[0]] = true

		for i, role := range roles {
			if testing.Short() && !slices.Contains([]string{"viewer", "editor", "nobody"}, role) {
				continue
			}

			for j, want := range fields[1+i] {
				cells++
				c := &matrixCell{ns: []string{"default", "other"}[j], n: cells, name: fmt.Sprintf("x%d", cells)}
				w.request(fields[0], op, route, role, c, want)
			}
		}
	}

	for id, route := range routes {
		isLogin := strings.HasPrefix(route[1], "/v1/login/") // requested by people who have no role yet
		if !seen[id] && !isLogin {
			t.Errorf("%s is not in the matrix", id)
		}
	}
	t.Logf("%d cells", cells)
}

// The objects of these names are in every list of all namespaces.
const ownMarker, otherMarker = "alpha", "omega"

func (w *matrixWorld) markers() {
	w.t.Helper()
	w.obeys("node-a", 1<<40)
	for ns, name := range map[string]string{"default": ownMarker, "other": otherMarker} {
		c := &matrixCell{ns: ns, name: name}
		w.endedRun(c)
		w.secretOf(c)
		w.binding(c)
		w.alertOf(ns, name, task.AlertFailures)
		_, err := w.Alerts.Silence(w.t.Context(), ns, client.SilenceRequest{Glob: name, For: task.Duration(24 * time.Hour), Reason: name}, false)
		must(w.t, err)
		w.alertRule(c)
		_, err = w.Namespaces.Put(w.t.Context(), task.Namespace{Name: ns, Description: name, RunAs: []string{"*"}, Groups: []string{"*"}, Shell: true, EnvFiles: []string{"*"}}, client.Writing{})
		must(w.t, err)
		_, err = w.Tokens.Create(w.t.Context(), client.TokenRequest{Subject: "service:ci", Reason: name, Scope: &task.TokenScope{Role: "viewer", Namespaces: []string{ns}}})
		must(w.t, err)
		w.clock.advance(2 * time.Second)
	}
}

// request requests one cell.
func (w *matrixWorld) request(operation string, op operation, route [2]string, role string, c *matrixCell, want rune) {
	w.t.Helper()
	w.clock.advance(2 * time.Second) // so that access records are not written too often

	if op.before != nil {
		op.before(c)
	}

	named := strings.NewReplacer("{ns}", c.ns, "{name}", c.name, "{id}", c.run, "{role}", c.name, "{binding}", c.bindingName(operation), "{limit}", c.name, "{token}", c.id, "{subject}", "user:"+c.name,
		"{node}", "node-a", "{member}", "7", "{kind}", "failures", "{code}", "not_evaluated", "{silence}", c.id, "{rule}", c.name, "NS", c.ns, "NAME", c.name)
	if operation == "get-role" {
		named = strings.NewReplacer("{role}", "viewer")
	}

	q := request{method: route[0], path: named.Replace(route[1]), body: named.Replace(op.body), header: map[string]string{"Authorization": "Bearer " + w.tokens[role]}}
	if op.query != "" {
		q.path += "?" + op.query
	}
	if op.kind != "" {
		q.header["Content-Type"] = op.kind
	}

	refused := want == 'f' || want == 'h'
	var before map[string]string
	if refused {
		before = w.dump()
	}
	r := w.do(q)
	status := r.status
	if op.once && status == http.StatusOK {
		var line client.BatchResult
		must(w.t, json.NewDecoder(strings.NewReader(r.body)).Decode(&line))
		if status = http.StatusOK; line.Error != nil {
			status = line.Error.Status
		}
	}

	allowed := status/100 == 2 || slices.Contains(op.own, status)
	ok := false
	switch want {
	case 'y':
		ok = allowed
	case 'f':
		ok = status == http.StatusForbidden
	case 'h':
		ok = status == http.StatusNotFound
	case 'o', 'a', 'n':
		shows := func(marker string) bool { // as a name, or after its namespace
			return strings.Contains(r.body, `"`+marker+`"`) || strings.Contains(r.body, `/`+marker+`"`)
		}
		own, other := shows(ownMarker), shows(otherMarker)
		ok = status == http.StatusOK && own == (want != 'n') && other == (want == 'a')
	default:
		w.t.Fatalf("%s: %q is not a result", operation, want)
	}

	if !ok {
		w.t.Errorf("%s of %s by %s: %d, want %c: %.300s", operation, c.ns, role, status, want, r.body)
	}

	if refused {
		if after := w.dump(); !maps.Equal(before, after) {
			w.t.Errorf("%s of %s by %s was refused, and has changed something", operation, c.ns, role)
		}
	}
}

// bindingName is the name of the binding in the path of an operation. Namespace administrators can create only bindings
// whose names begin with the namespace.
func (c *matrixCell) bindingName(operation string) string {
	if operation == "set-binding" {
		return c.ns + "." + c.name
	}
	return c.name
}

// What is in a namespace that the caller may not read is answered in the words for what does not exist: an answer tells
// neither that the namespace is there, nor the object.
func TestAccess_AnswersDoNotTellWhatIsHidden(t *testing.T) {
	t.Parallel()
	w := newMatrixWorld(t)
	w.obeys("node-a", 1<<40)
	operations := w.operations()

	probes := 0
	for id, route := range documented(t) {
		op := operations[id]
		inNamespace := strings.Contains(route[1], "{ns}") && id != "set-namespace" && id != "delete-namespace"
		if !inNamespace && !strings.Contains(op.body, "NS") && id != "get-token" && id != "delete-token" {
			continue
		}

		for _, dry := range []string{"", "dry_run=true"} {
			if dry != "" && !slices.Contains([]string{"create-task", "apply-task", "apply-tasks", "update-task", "delete-task", "undelete-task", "rollback-task"}, id) {
				continue
			}

			for _, role := range []string{"editor", "ns-admin", "nobody"} {
				probes++
				there := &matrixCell{ns: "other", name: fmt.Sprintf("probe%d", probes)}
				w.clock.advance(2 * time.Second)
				if op.before != nil {
					op.before(there)
				}

				ghost := *there
				ghost.ns = "ghost"
				absent := *there
				absent.name, absent.run, absent.id = "absent", strings.Replace(there.run, "-", "-x", 1), strings.Repeat("a", 16)

				answers := map[string]string{}
				for what, c := range map[string]*matrixCell{"what is there": there, "an absent namespace": &ghost, "an absent object": &absent} {
					named := strings.NewReplacer("{ns}", c.ns, "{name}", c.name, "{id}", c.run, "{binding}", c.bindingName(id), "{token}", c.id, "{kind}", "failures", "{silence}", c.id, "{rule}", c.name, "NS", c.ns, "NAME", c.name)
					q := request{method: route[0], path: named.Replace(route[1]), body: named.Replace(op.body), header: map[string]string{"Authorization": "Bearer " + w.tokens[role]}}
					if query := strings.Trim(op.query+"&"+dry, "&"); query != "" {
						q.path += "?" + query
					}
					if op.kind != "" {
						q.header["Content-Type"] = op.kind
					}

					r := w.do(q)
					same := strings.NewReplacer(c.ns, "NS", c.name, "NAME")
					if c.id != "" { // first, because a random ID can contain the name
						same = strings.NewReplacer(c.id, "ID", c.ns, "NS", c.name, "NAME")
					}
					answers[what] = fmt.Sprint(r.status, " ", same.Replace(r.body))
				}

				for what, answer := range answers {
					if answer != answers["what is there"] {
						t.Errorf("%s %s by %s: %s is answered\n%s\nand what is there\n%s", id, dry, role, what, answer, answers["what is there"])
					}
				}
			}
		}
	}
	t.Logf("%d probes", probes)
}
