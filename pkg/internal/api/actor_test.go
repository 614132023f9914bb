package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// actorOf is how people see the holder of a token.
func actorOf(who, secret string) string {
	return fmt.Sprintf("%s (token %s)", who, tokenID(secret))
}

// actorRecord is the same in a record.
func (w *world) actorRecord() *task.Actor {
	return &task.Actor{Subject: "user:ann", Token: tokenID(w.secret)}
}

// actor is who makes the requests of a world that do not say otherwise.
func (w *world) actor() string { return actorOf("user:ann", w.secret) }

// Each step requests one operation as a subject that no earlier step used. Each record that then names the subject
// was written by this operation.
type actorStep struct {
	id, method, path, body string
	header                 map[string]string
	before                 func() // puts there what the operation needs
	deletes                bool   // no record is left of what it changes: the event alone names the actor
	silent                 bool   // no event tells of it
	records                int    // of audit: one for each transaction; 0: one
}

// Verifies: G26
func TestActors_EveryOperationThatWritesSaysWhoAskedForIt(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	former := secret.NewKey()
	w.keys = map[string]func() (secret.Ring, error){"node-a": ringOf(former)}
	w.url = w.serve("node-a")
	w.Client = w.client(w.url)
	w.present("node-a", w.url)
	w.present("node-b", "http://127.0.0.1:1")
	w.obeysRequests("node-b")
	k := w.store.Keys()

	const tasks, runs = "/v1/namespaces/default/tasks", "/v1/namespaces/default/tasks/a/runs/"
	json1 := func(s task.Spec) string {
		b, err := json.Marshal(s)
		must(t, err)
		return string(b)
	}

	uid := func() string {
		st, err := w.store.Task(ctx, ref("default", "a"))
		must(t, err)
		return st.Task.UID
	}

	var triggered, tina, silence string
	isActive := func() { w.active("node-b", "a", id(1, uid())) }
	isDead := func() {
		run := w.dead(ref("default", "a"), uid(), 2)
		w.ended("a", run, task.Failed, func(r *task.Run) { r.UID = uid() })
	}

	obeyed := func() { w.obeys("node-a", 1<<40); w.obeys("node-b", 1<<40) }
	accepting := func(schedule string) string {
		s := spec("a", schedule)
		s.Accept.Env = []string{"A", "B"}
		return json1(s)
	}

	steps := []actorStep{
		{id: "create-task", method: "POST", path: tasks, body: accepting("@daily")},
		{id: "apply-task", method: "PUT", path: tasks + "/a", body: accepting("@hourly")},
		{id: "update-task", method: "PATCH", path: tasks + "/a", body: `{"timeout":"1m"}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
		{id: "apply-tasks", method: "POST", path: "/v1/tasks:batch", body: json1(spec("b", "@daily")) + "\n", header: map[string]string{"Content-Type": "application/x-ndjson"}},
		{id: "pause-task", method: "POST", path: tasks + "/a/pause", body: `{"reason":"a move"}`},
		{id: "resume-task", method: "POST", path: tasks + "/a/resume"},
		{id: "rollback-task", method: "POST", path: tasks + "/a/rollback"},
		{id: "delete-task", method: "DELETE", path: tasks + "/b"},
		{id: "undelete-task", method: "POST", path: tasks + "/b/undelete"},

		{id: "trigger-task", method: "POST", path: tasks + "/a/trigger", body: `{"env":{"B":"sesame","A":"1"}}`},
		{id: "cancel-run", method: "POST", path: runs + "RUN/cancel", before: func() {
			list, err := w.Runs.ListByTask(ctx, "default", "a", client.RunListOptions{State: task.Queued})
			must(t, err)
			triggered = list[0].ID
		}},
		{id: "pause-run", method: "POST", path: runs + id(1, "") + "/pause", before: isActive},
		{id: "resume-run", method: "POST", path: runs + id(1, "") + "/resume"},
		{id: "retry-run", method: "POST", path: runs + id(2, "") + "/retry", before: isDead},
		{id: "rerun-run", method: "POST", path: runs + id(2, "") + "/rerun", body: `{"env":{"A":"1"}}`, before: isDead},
		{id: "dismiss-run", method: "POST", path: runs + id(2, "") + "/dismiss", before: isDead, deletes: true, records: 2}, // marks it, and then deletes it

		{id: "acknowledge-alert", method: "POST", path: tasks + "/a/alerts/failures/acknowledge", before: func() { w.alertOf("default", "a", task.AlertFailures) }},
		{id: "acknowledge-cluster-alert", method: "POST", path: "/v1/cluster/alerts/not_evaluated/acknowledge", before: func() {
			w.put(k.ClusterAlert("not_evaluated"), task.Alert{Text: "3 tasks", Since: task.At(w.clock.now())})
		}},
		{id: "create-silence", method: "POST", path: "/v1/namespaces/default/silences", body: `{"glob":"a","for":"1h","reason":"a move"}`},
		{id: "end-silence", method: "DELETE", path: "/v1/namespaces/default/silences/SILENCE", before: func() {
			list, err := w.Alerts.Silences(ctx, "default")
			must(t, err)
			silence = list[0].ID
		}},

		{id: "set-alert-rule", method: "PUT", path: "/v1/namespaces/default/alert-rules/nightly", body: `{"selector":"team=data","alerts":{"success_within":"26h"}}`},
		{id: "delete-alert-rule", method: "DELETE", path: "/v1/namespaces/default/alert-rules/nightly", deletes: true, silent: true}, // the event names nobody
		{id: "test-receiver", method: "POST", path: tasks + "/slack/test", before: func() { w.receiver("default", "slack") }},
		{id: "set-secret", method: "PUT", path: "/v1/namespaces/default/secrets/s", body: `{"values":{"A":"b"}}`},
		{id: "rotate-secret", method: "POST", path: "/v1/namespaces/default/secrets/s/rotate", before: func() {
			w.keys["node-a"] = ringOf(secret.NewKey(), former)
			w.url = w.serve("node-a")
		}},
		{id: "delete-secret", method: "DELETE", path: "/v1/namespaces/default/secrets/s"},

		{id: "drain-node", method: "POST", path: "/v1/nodes/node-b/drain"},
		{id: "cordon-node", method: "POST", path: "/v1/nodes/node-a/cordon", records: 2}, // the intent and the outcome, because the node that is asked writes it itself
		{id: "resume-node", method: "POST", path: "/v1/nodes/node-b/resume"},

		{id: "freeze", method: "PUT", path: "/v1/cluster/freeze", body: `{"reason":"a move"}`, before: obeyed},
		{id: "unfreeze", method: "DELETE", path: "/v1/cluster/freeze"},
		{id: "freeze-namespace", method: "PUT", path: "/v1/namespaces/default/freeze", body: `{"reason":"a move"}`},
		{id: "unfreeze-namespace", method: "DELETE", path: "/v1/namespaces/default/freeze"},

		{id: "set-cluster", method: "PATCH", path: "/v1/cluster", body: `{"catch_up_rate":7}`},
		{id: "set-format", method: "PUT", path: "/v1/cluster/format", body: fmt.Sprintf(`{"format":%d}`, store.NewestFormat)},
		{id: "repair", records: 2, method: "POST", path: "/v1/audit:repair", before: func() {
			w.put(k.Ended(ref("default", "gone"), id(1, "aaaa")), task.Run{UID: "aaaa", State: task.Succeeded})
		}, body: fmt.Sprintf(`{"findings":[{"kind":"orphan_history","key":%q}]}`, k.HistoryOf(ref("default", "gone")))},
		{id: "recover-cluster", method: "POST", path: "/v1/cluster/recover", before: func() {
			w.put(k.Node("node-b"), task.Node{Name: "node-b", State: task.NodeReady, Ineligible: task.IneligibleRestored})
		}},
	}

	const grant = `{"role":"viewer","subjects":["user:bob"],"namespaces":["default"]}`
	steps = append(steps, []actorStep{
		{id: "set-role", method: "PUT", path: "/v1/roles/r", body: `{"rules":[{"verbs":["read"],"objects":["tasks"]}]}`, silent: true},
		{id: "delete-role", method: "DELETE", path: "/v1/roles/r", silent: true, deletes: true},
		{id: "set-binding", method: "PUT", path: "/v1/bindings/bob", body: grant, silent: true},
		{id: "delete-binding", method: "DELETE", path: "/v1/bindings/bob", silent: true, deletes: true},
		{id: "set-namespace", method: "PUT", path: "/v1/namespaces/team", body: `{"run_as":["www"]}`, silent: true},
		{id: "delete-namespace", method: "DELETE", path: "/v1/namespaces/team", silent: true, deletes: true},
		{id: "set-node-limit", method: "PUT", path: "/v1/node-limits/l", body: `{"labels":["zone=*"]}`, silent: true},
		{id: "delete-node-limit", method: "DELETE", path: "/v1/node-limits/l", silent: true, deletes: true},
		{id: "create-token", method: "POST", path: "/v1/tokens", body: `{"subject":"user:tina","scope":{"role":"viewer"}}`, silent: true},
		{id: "delete-token", method: "DELETE", path: "/v1/tokens/TINA", silent: true, deletes: true, before: func() { tina = tokenID(w.token("user:tina")) }},
		{id: "create-session", method: "POST", path: "/v1/sessions", silent: true},
		{id: "create-login-link", method: "POST", path: "/v1/login-links", silent: true},
		{id: "disable-subject", method: "POST", path: "/v1/subjects/user:bob/disable", silent: true, deletes: true},
		{id: "enable-subject", method: "POST", path: "/v1/subjects/user:bob/enable", silent: true, deletes: true},
	}...)

	exceptions := map[string]string{
		"next-of-schedule": "writes nothing: the body is a question",
		"cancel-attempt":   "only for nodes, and writes nothing to etcd: TestCancelAttempt_NeedsAStatementOfItsOwn",
		"add-member":       "needs an embedded etcd of several members: TestEmbedded_ThreeAgentsAreTheirOwnEtcd in package daemon",
		"remove-member":    "the same",
		"reset-access":     "only for root on the host: TestReset",
		"delete-session":   "only for a session: TestSession_LoginAndLogoutAreAudited",
		"use-login-link":   "only for a login link: TestSession_LoginAndLogoutAreAudited",

		"begin-web-login":    "writes nothing",
		"begin-device-login": "writes nothing",
		"finish-web-login":   "needs an identity provider: TestOIDC_APersonWithABindingGetsASession",
		"poll-device-login":  "needs an identity provider: TestOIDC_DeviceLogin",
	}

	for _, step := range steps {
		w.clock.advance(time.Minute)

		if step.before != nil {
			step.before()
		}

		w.bind("service:"+step.id, access.RoleAdmin)
		mine := w.token("service:" + step.id)
		actor := actorOf("service:"+step.id, mine)
		recorded := fmt.Sprintf(`{"subject":"service:%s","token":"%s"}`, step.id, tokenID(mine))

		path := step.path
		if strings.Contains(path, runs) {
			path = strings.NewReplacer("RUN", triggered, "Z-", "Z-"+uid()[:4]).Replace(path)
		}
		path = strings.NewReplacer("TINA", tina, "SILENCE", silence).Replace(path)

		before := w.dump()
		there, err := w.store.Present(ctx)
		must(t, err)

		q := request{method: step.method, path: path, body: step.body, header: map[string]string{"Authorization": "Bearer " + mine}}
		for name, value := range step.header {
			q.header[name] = value
		}

		if r := w.do(q); r.status/100 != 2 {
			t.Fatalf("%s: %d %s", step.id, r.status, r.body)
		}

		named := 0
		for key, value := range w.dump() {
			if before[key] != value && strings.Contains(value, recorded) {
				named++
			}

			if strings.Contains(value, strings.Split(mine, "_")[2]) {
				t.Errorf("%s: %s has the token's secret", step.id, key)
			}
		}

		if named == 0 && !step.deletes {
			t.Errorf("%s: no record names %s", step.id, recorded)
		}

		records := 0
		for key, value := range w.dump() {
			if before[key] == "" && strings.HasPrefix(key, k.AuditRecords()) && strings.Contains(value, `"`+tokenID(mine)+`"`) &&
				strings.Contains(value, `"operation":"`+step.id+`"`) && strings.Contains(value, `"subject":"service:`+step.id+`"`) {
				records++
			}
		}
		if want := max(step.records, 1); records != want {
			t.Errorf("%s: %d audit records, want %d", step.id, records, want)
		}

		var told []string
		named = 0
		for e, err := range w.Events.All(ctx, client.EventOptions{After: task.After(there.Revision).String()}) {
			must(t, err)
			told = append(told, fmt.Sprintf("%s %s by %q", e.Kind, e.Action, e.Actor.String()))
			if e.Actor.String() == actor {
				named++
			}
		}

		if named == 0 && !step.silent {
			t.Errorf("%s: no event names %s: %q", step.id, actor, told)
		}
	}

	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
	}
	built, err := builtDocument()
	must(t, err)
	must(t, json.Unmarshal(built, &doc))

	for path, item := range doc.Paths {
		for method, op := range item {
			if strings.EqualFold(method, http.MethodGet) {
				continue
			}

			asked := slices.ContainsFunc(steps, func(s actorStep) bool { return s.id == op.OperationID })
			if asked == (exceptions[op.OperationID] != "") {
				t.Errorf("%s %s: %s: put it into steps, or into exceptions with the reason", method, path, op.OperationID)
			}
		}
	}
}

// A manual run's record says who asked for it, and with which variables; that of a retry
// has those of its own request.
//
// Verifies: G26
func TestActors_OfManualRunsAndRetries(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.make("a", "@daily", func(s *task.Spec) { s.Accept.Env = []string{"A", "B"} })
	got, err := w.Tasks.Trigger(ctx, "default", "a", map[string]string{"B": "sesame", "A": "1"})
	must(t, err)

	if got.CreatedBy.String() != w.actor() || !slices.Equal(got.EnvNames, []string{"A", "B"}) {
		t.Errorf("triggered: %+v", got.Run)
	}

	r := w.do(request{method: "GET", path: "/v1/runs"})
	if !strings.Contains(r.body, `"created_by":{"subject":"user:ann","token":"`+tokenID(w.secret)+`"}`) || !strings.Contains(r.body, `"env_names":["A","B"]`) || strings.Contains(r.body, "sesame") {
		t.Errorf("the list: %s", r.body)
	}

	w.clock.advance(time.Minute)
	w.bind("user:bob", "operator", "default")
	bob := w.token("user:bob")
	one := w.dead(ref("default", "a"), "", 1)
	res := w.do(request{method: "POST", path: "/v1/namespaces/default/tasks/a/runs/" + one + "/retry", header: map[string]string{"Authorization": "Bearer " + bob}})
	var again client.Triggered
	must(t, json.Unmarshal([]byte(res.body), &again))

	if again.CreatedBy.String() != actorOf("user:bob", bob) || !slices.Equal(again.EnvNames, []string{"A"}) || again.RetryOf != one {
		t.Errorf("run again: %+v", again.Run)
	}

	a, err := w.Tasks.Why(ctx, "default", "a", client.WhyQuestion{})
	must(t, err)

	if all := fmt.Sprint(a.Sentence, a.Lines); !strings.Contains(all, "by "+actorOf("user:bob", bob)) {
		t.Errorf("why: %s", all)
	}
}

// Who wrote a record is for the server to say. Clients may send back what they have read.
func TestActors_OfClientsAreIgnored(t *testing.T) {
	w := newWorld(t)

	for path, fields := range map[string]string{
		"/v1/roles/r":        `"rules":[{"verbs":["read"],"objects":["tasks"]}]`,
		"/v1/bindings/b":     `"role":"viewer","subjects":["user:bob"],"namespaces":["default"]`,
		"/v1/namespaces/n":   `"run_as":["www"]`,
		"/v1/node-limits/n1": `"labels":["zone=*"]`,
	} {
		r := w.as(w.secret, "PUT", path, `{`+fields+`,"created_by":{"subject":"user:eve","token":"x"},"updated_by":{"subject":"user:eve"}}`)
		var made struct {
			CreatedBy *task.Actor `json:"created_by"`
			UpdatedBy *task.Actor `json:"updated_by"`
		}
		must(t, json.Unmarshal([]byte(r.body), &made))

		if want := w.actorRecord(); r.status != http.StatusOK || !made.CreatedBy.Equal(want) || !made.UpdatedBy.Equal(want) {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}

		wantStatus(t, path+" with a text", w.as(w.secret, "PUT", path, `{`+fields+`,"created_by":"user:eve"}`), http.StatusUnprocessableEntity, task.CodeBadValue)
		wantStatus(t, path+" with more", w.as(w.secret, "PUT", path, `{`+fields+`,"created_by":{"subject":"user:eve","uid":"x"}}`), http.StatusUnprocessableEntity, task.CodeUnknown)
	}
}
