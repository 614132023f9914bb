package ui

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/apikit"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// alertOf puts an open alert of a task, as the owner of its shard would.
func (w *world) alertOf(ns, name string, kind task.AlertKind, edits ...func(*task.Alert)) {
	w.t.Helper()
	now := task.At(w.Clock.Now())
	a := task.Alert{Namespace: ns, Task: name, Kind: kind, UID: "u", Since: now, OpenedAt: now, Failures: 2, Openings: 1, Notify: []string{"ops/slack", "ops/pager"}}
	for _, edit := range edits {
		edit(&a)
	}
	w.put(w.Store.Keys().Alert(apikit.Ref(ns, name), kind), json.RawMessage(record.EncodeAlert(a)))
}

// createReceiver creates a receiver of alerts that accepts those of prod.
func (w *world) createReceiver(ns, name string) {
	w.t.Helper()
	s := task.ReceiverDefaults(task.Action{Noop: &task.Noop{}})
	s.Name, s.Action.Noop, s.Receiver.From, s.Accept.Env = name, &task.Noop{}, []string{"prod"}, []string{"ALERT_TEXT"}
	_, err := w.clientOf("user:ann").Tasks.Create(w.t.Context(), ns, s)
	must(w.t, err)
}

func withAlerts(s *task.Spec) {
	s.Alerts = &task.Alerts{Notify: []string{"ops/slack", "ops/pager"}, SuccessWithin: task.Duration(26 * time.Hour)}
}

// The page lists the most severe alerts first, with what each receiver knows. Filters choose among them.
func TestAlerts_ListsAndFilters(t *testing.T) {
	w := newWorld(t)
	w.createReceiver("ops", "slack")
	w.create("prod", "web", withAlerts)
	w.alertOf("prod", "web", task.AlertSuccessWithin)
	w.alertOf("prod", "sync", task.AlertFailures, func(a *task.Alert) {
		a.Labels, a.Run, a.Openings = map[string]string{"severity": "critical", "owner": "team-data"}, "20261120T220000.000Z-a", 3
	})
	w.alertOf("prod", "known", task.AlertFailures, func(a *task.Alert) {
		a.Acknowledged = &task.AlertMark{At: a.Since, By: &task.Actor{Subject: "user:bob", Token: "x"}}
	})
	w.alertOf("test", "other", task.AlertFailures, func(a *task.Alert) {
		a.Closed = &task.AlertClose{At: a.Since, Why: task.AlertSucceeded}
	})
	ann := w.as("user:ann")

	page := ann.page("/ui/alerts")
	want(t, page, "2 or more failures in a row", "no success in time", "ops/slack", "not notified yet", "does not exist, or is not a receiver", "owner team-data", "opened 3 times",
		"/ui/runs/prod/20261120T220000.000Z-a", "user:bob", "Take over", "3 open alerts: 1 critical, 2 error", `name="one" value="prod/web:success_within"`, "carillon alert list -A")
	if strings.Index(page, "/ui/tasks/prod/sync") > strings.Index(page, "/ui/tasks/prod/web") {
		t.Error("the most severe alert is not the first one")
	}
	without(t, page, "/ui/tasks/test/other", "user:bob (token")

	for query, names := range map[string][]string{
		"show=new": {"sync", "web"}, "show=acknowledged": {"known"}, "show=silenced": nil, "show=closed": {"other"}, "kind=success_within": {"web"}, "ns=test": nil,
		"selector=owner%3Dteam-data": {"sync"}, "ns=prod&kind=failures": {"known", "sync"},
	} {
		page := ann.page("/ui/alerts?" + query)
		var got []string
		for _, name := range []string{"known", "other", "sync", "web"} {
			if strings.Contains(page, `data-open href="/ui/tasks/prod/`+name) || strings.Contains(page, `data-open href="/ui/tasks/test/`+name) {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, names) {
			t.Errorf("%s: %q, want %q", query, got, names)
		}
	}
	want(t, ann.page("/ui/alerts?show=closed"), "closed: succeeded", "carillon alert list -A --closed")
	want(t, ann.page("/ui/alerts?ns=prod&kind=failures"), "carillon alert list -n prod &#39;*:failures&#39;")
	if a := ann.get("/ui/alerts?show=x"); a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("an unknown state: %d", a.StatusCode)
	}
}

// What the viewer may not do is not offered, and refused. Who reads no runs of a namespace sees none of its alerts.
func TestAlerts_OffersWhatTheViewerMayDo(t *testing.T) {
	w := newWorld(t)
	w.createReceiver("ops", "slack")
	w.create("prod", "web", withAlerts)
	w.alertOf("prod", "web", task.AlertFailures)
	w.Bind("user:eve", "viewer", "prod")
	w.Bind("user:tim", "viewer", "test")
	w.Bind("user:olga", "operator", "prod")
	_, err := w.clientOf("user:ann").Alerts.Silence(t.Context(), "prod", client.SilenceRequest{Glob: "x*", For: task.Duration(time.Hour), Reason: "a move"}, false)
	must(t, err)

	buttons := []string{"Acknowledge", "Silence…", "Silence tasks…", "End it</button>"}
	want(t, w.as("user:olga").page("/ui/alerts"), buttons...)
	without(t, w.as("user:eve").page("/ui/alerts"), buttons...)
	without(t, w.as("user:eve").page("/ui/alerts?do=silence&in=prod&tasks=web"), "panel-title")
	want(t, w.as("user:tim").page("/ui/alerts"), "No open alerts")

	want(t, w.as("user:olga").page("/ui/tasks/prod/web"), "Acknowledge", "Silence…")
	without(t, w.as("user:eve").page("/ui/tasks/prod/web"), "Acknowledge", "Silence…")

	form := url.Values{"at": {"/ui/alerts"}, "one": {"prod/web:failures"}, "namespace": {"prod"}, "glob": {"web"}, "until": {"1h"}, "reason": {"x"}}
	for _, path := range []string{"/ui/alerts/acknowledge", "/ui/alerts/silence"} {
		if a := w.as("user:eve").do(http.MethodPost, path, form); a.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d, want 403", path, a.StatusCode)
		}
	}

	want(t, w.as("user:ann").page("/ui/tasks/ops/slack"), "Send a test message", "It gets alerts of its namespace and of prod")
	w.Bind("user:eve", "viewer", "ops")
	without(t, w.as("user:eve").page("/ui/tasks/ops/slack"), "Send a test message")
}

// Alerts are acknowledged one by one or several at once; of several, those that were closed meanwhile are no error.
func TestAlerts_Acknowledge(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	w.create("prod", "sync")
	w.alertOf("prod", "web", task.AlertFailures)
	w.alertOf("prod", "sync", task.AlertFailures)
	ann := w.as("user:ann")
	send := func(form url.Values) answer {
		form.Set("at", "/ui/alerts?ns=prod")
		return ann.do(http.MethodPost, "/ui/alerts/acknowledge", form)
	}

	a := send(url.Values{"one": {"prod/web:failures"}, "alert": {"prod/sync:failures"}})
	if a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui/alerts?ns=prod" {
		t.Fatalf("%d to %q: %s", a.StatusCode, a.Header.Get("Location"), a.body)
	}
	for name, by := range map[string]string{"web": "user:ann", "sync": ""} {
		all, err := w.clientOf("user:ann").Alerts.ListByTask(t.Context(), "prod", name)
		must(t, err)
		if got := all.Items[0].Acknowledged; (got != nil) != (by != "") || got != nil && got.By.Name() != by {
			t.Errorf("%s is acknowledged: %+v", name, got)
		}
	}

	w.alertOf("prod", "web", task.AlertFailures, func(a *task.Alert) { a.Closed = &task.AlertClose{At: a.Since, Why: task.AlertSucceeded} })
	if a := send(url.Values{"alert": {"prod/web:failures", "prod/sync:failures"}}); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	if a := send(url.Values{"one": {"prod/web:failures"}}); a.StatusCode != http.StatusConflict {
		t.Errorf("a closed alert: %d", a.StatusCode)
	}
	for _, bad := range []url.Values{{}, {"one": {"web"}}, {"one": {"prod/web:nothing"}}} {
		if a := send(bad); a.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("%v: %d", bad, a.StatusCode)
		}
	}
}

// A silence from an alert is about its task; the labels of the task are offered instead. What is wrong is shown at its field, with what was
// entered. A silence can be ended on the page.
func TestAlerts_Silence(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web", withAlerts)
	w.alertOf("prod", "web", task.AlertFailures, func(a *task.Alert) { a.Labels = map[string]string{"team": "data"} })
	ann := w.as("user:ann")

	const at = "/ui/alerts?do=silence&in=prod&tasks=web&of=web"
	page := ann.page(at)
	want(t, page, `name="glob" value="web"`, `<option selected>prod</option>`, "labels=team%3Ddata", "carillon alert silence --for 2h --reason TEXT -n prod web")

	form := url.Values{"at": {at}, "namespace": {"prod"}, "glob": {"web"}, "until": {"800h"}, "reason": {"a move"}, "back": {"/ui/alerts?ns=prod"}}
	a := ann.do(http.MethodPost, "/ui/alerts/silence", form)
	if a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("for too long: %d", a.StatusCode)
	}
	want(t, a.body, `id="until-error"`, "at most 720h", `value="a move"`, `value="800h"`)
	form.Set("until", "2h")
	form.Del("reason")
	want(t, ann.do(http.MethodPost, "/ui/alerts/silence", form).body, `id="reason-error"`)

	form.Set("reason", "a move")
	if a := ann.do(http.MethodPost, "/ui/alerts/silence", form); a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui/alerts?ns=prod" {
		t.Fatalf("%d to %q: %s", a.StatusCode, a.Header.Get("Location"), a.body)
	}
	page = ann.page("/ui/alerts?show=silenced")
	want(t, page, "silenced by user:ann until Sat 21 Nov 00:05 UTC: a move", "<h2>Silences</h2>", "End it")
	want(t, ann.page("/ui/tasks/prod/web"), "silenced by user:ann until", "a move")

	list, err := w.clientOf("user:ann").Alerts.Silences(t.Context(), "prod")
	must(t, err)
	if a := ann.do(http.MethodPost, "/ui/alerts/unsilence/prod/"+list[0].ID, url.Values{"at": {"/ui/alerts"}}); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	without(t, ann.page("/ui/alerts"), "<h2>Silences</h2>")
}

// An alert that was closed while its row is shown says why.
func TestAlerts_RowsThatLeftSayWhy(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	w.alertOf("prod", "web", task.AlertFailures)
	load := w.loadAgain(loadAlerts, "/ui/alerts")
	load()

	w.alertOf("prod", "web", task.AlertFailures, func(a *task.Alert) {
		a.Closed = &task.AlertClose{At: a.Since, Why: task.AlertDismissed, By: task.NewActor("user:bob")}
	})
	p, ok := load().(*alertsPage)
	if !ok || len(p.Alerts) != 1 || p.Alerts[0].Left == "" || p.Alerts[0].Ending != "failed runs dismissed by user:bob" || p.Alerts[0].Ack {
		t.Errorf("%+v", p.Alerts)
	}
	if p, _ = load().(*alertsPage); len(p.Alerts) != 1 {
		t.Errorf("the second time: %+v", p.Alerts)
	}
}

// The page of a receiver says who names it, and sends a test message. The page of a task says what is expected of it.
func TestTask_ShowsItsAlerts(t *testing.T) {
	w := newWorld(t)
	w.createReceiver("ops", "slack")
	w.create("prod", "web", withAlerts)
	ann := w.as("user:ann")

	want(t, ann.page("/ui/tasks/prod/web"), "Alerts when a run fails, or no run succeeds within 26h; notifies ops/slack, ops/pager", "gets messages", "does not exist, or is not a receiver", "none is open")
	want(t, ann.page("/ui/tasks/ops/slack"), "notify%3Aops%2Fslack", "Last messages")

	a := ann.do(http.MethodPost, "/ui/tasks/ops/slack/test", url.Values{"at": {"/ui/tasks/ops/slack"}})
	if a.StatusCode != http.StatusSeeOther || !strings.HasPrefix(a.Header.Get("Location"), "/ui/runs/ops/") {
		t.Fatalf("%d to %q: %s", a.StatusCode, a.Header.Get("Location"), a.body)
	}
	if w.queued("ops", "slack") != 1 {
		t.Error("no message was queued")
	}
	a = ann.do(http.MethodPost, "/ui/tasks/prod/web/test", url.Values{"at": {"/ui/tasks/prod/web"}})
	if a.StatusCode != http.StatusConflict {
		t.Errorf("a task that is no receiver: %d", a.StatusCode)
	}
}

// The navigation and the first page count open alerts, and a task that has not succeeded in time needs people.
func TestNow_CountsOpenAlerts(t *testing.T) {
	w := newWorld(t)
	board := task.Board{ShardCount: 8, ShardsOwned: 8, BoardCounts: task.BoardCounts{AlertingCount: 1, Alerts: map[string]int{"error": 2, "critical": 1}}}
	board.Alerting = []task.BoardAlerting{{Namespace: "prod", Task: "web", Kinds: []task.AlertKind{task.AlertSuccessWithin}, Severity: "critical"}}
	w.answerBoard(&board)

	want(t, w.as("user:ann").page("/ui"), "3 open alerts</a>: 1 critical, 2 error", "1 thing needs you", "/ui/tasks/prod/web", "no success in time", `Alerts <span class="count">3</span><span class="dot"`)
}

// The form offers a receiver that lacks only its name and its address, and the expectations of a task.
func TestBuilder_MakesReceivers(t *testing.T) {
	w := newWorld(t)
	ann := w.as("user:ann")
	form := builderForm(t, ann.page("/ui/tasks/new?receiver=1&ns=ops"))
	form.Set("name", "chat")
	form.Set("action.http.url", "https://chat.example.com/hook")
	if a := ann.do(http.MethodPost, "/ui/tasks/new/save", form); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	if s := w.stored("ops", "chat"); s.Receiver == nil || s.Overlap != task.OverlapAllow || !slices.Equal(s.Accept.Env, []string{"ALERT_TEXT"}) || !strings.Contains(string(s.Action.HTTP.JSON), "ALERT_TEXT") {
		t.Errorf("%+v", s.Spec)
	}

	w.create("prod", "web")
	form = builderForm(t, ann.page("/ui/tasks/prod/web/edit"))
	form.Set("alerts.notify", "ops/chat, ops/mail")
	form.Set("alerts.success_within", "26h")
	a := ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/preview", form)
	want(t, a.body, "ops/mail", "alerts.notify")
	if a := ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/save", form); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	if s := w.stored("prod", "web"); s.Alerts == nil || !slices.Equal(s.Alerts.Notify, []string{"ops/chat", "ops/mail"}) {
		t.Errorf("%+v", s.Alerts)
	}
}
