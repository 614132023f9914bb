package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// alertOf puts an open alert of a task, as the owner of its shard would.
func (w *world) alertOf(ns, name string, kind task.AlertKind, edits ...func(*task.Alert)) task.Alert {
	w.t.Helper()
	a := task.Alert{Namespace: ns, Task: name, Kind: kind, UID: "u", Since: task.At(w.clock.now()), OpenedAt: task.At(w.clock.now()), Failures: 2, Openings: 1}
	for _, edit := range edits {
		edit(&a)
	}

	w.put(w.store.Keys().Alert(ref(ns, name), kind), json.RawMessage(record.EncodeAlert(a)))

	return a
}

// closedAlert edits an alert so that it is closed.
func closedAlert(w *world) func(*task.Alert) {
	return func(a *task.Alert) {
		a.Closed = &task.AlertClose{At: task.At(w.clock.now()), Why: task.AlertSucceeded, Run: "r2"}
	}
}

func notifies(receivers ...string) func(*task.Alert) {
	return func(a *task.Alert) { a.Notify = receivers }
}

// receiver creates a receiver of alerts.
func (w *world) receiver(ns, name string, from ...string) client.Task {
	w.t.Helper()
	s := task.ReceiverDefaults(task.Action{Noop: &task.Noop{}})
	s.Name, s.Action.Noop, s.Receiver.From = name, &task.Noop{}, from
	s.Accept.Env = []string{"ALERT_TEXT", "ALERT_TITLE"}
	got, err := w.Tasks.Create(w.t.Context(), ns, s)
	must(w.t, err)

	return got
}

// clientAs returns a client with the token of a subject that has a role in some namespaces.
func (w *world) clientAs(subject, role string, namespaces ...string) *client.Client {
	w.t.Helper()
	w.bind(subject, role, namespaces...)
	c, err := client.New(client.Config{Server: w.url, Token: w.token(subject), Timeout: time.Minute})
	must(w.t, err)

	return c
}

// names returns the full names of alerts, in order.
func names(list []task.AlertStatus) []string {
	all := []string{}
	for _, a := range list {
		all = append(all, a.FullName())
	}
	slices.Sort(all)

	return all
}

// keyOfAlert is how records of receivers name an alert.
func (w *world) keyOfAlert(a task.Alert) uint64 { return alert.KeyOf(w.cluster.ID, &a) }

// The list says who was notified by which run, who was not and why, and until when messages are held back.
func TestAlerts_SayWhatEachReceiverKnows(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	slack, pager := w.receiver("ops", "slack", "default"), w.receiver("ops", "pager", "default")
	w.receiver("ops", "private")
	a := w.alertOf("default", "sync", task.AlertFailures, notifies("ops/slack", "ops/pager", "ops/private", "ops/none"),
		func(a *task.Alert) { a.Labels = map[string]string{"severity": "critical", "team": "data"} })

	w.put(w.store.Keys().SentTo(ref("ops", "slack")), task.AlertsSent{UID: slack.UID, Delivered: task.AlertKeys{w.keyOfAlert(a)},
		Past: []task.AlertMessage{{Runs: []string{"r9"}, Opened: task.AlertKeys{w.keyOfAlert(a)}, At: task.At(w.clock.now())}}})
	_, err := w.Tasks.PauseWith(ctx, "ops", "pager", client.PauseRequest{Reason: "a move"}, 0)
	must(t, err)

	list, err := w.Alerts.List(ctx, client.AlertListOptions{Namespace: "default"})
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}

	got := list[0]
	if got.FullName() != "default/sync:failures" || got.Severity != "critical" || got.Silence != nil || len(got.Receivers) != 4 {
		t.Fatalf("%+v", got)
	}
	for i, want := range []task.AlertReceiver{
		{Receiver: "ops/slack", State: task.ReceiverNotified, Run: "r9"}, {Receiver: "ops/pager", State: task.ReceiverWaiting}, {Receiver: "ops/private", State: task.ReceiverWaiting},
		{Receiver: "ops/none", State: task.ReceiverWaiting},
	} {
		if r := got.Receivers[i]; r.Receiver != want.Receiver || r.State != want.State || r.Run != want.Run {
			t.Errorf("%+v, want %+v", r, want)
		}
	}

	why := func(list []task.AlertReceiver) (all []task.AlertBlockReason) {
		for _, r := range list {
			if r.Blocked == nil {
				all = append(all, "")
			} else {
				all = append(all, r.Blocked.Why)
			}
		}
		return all
	}
	if got := why(got.Receivers); !slices.Equal(got, []task.AlertBlockReason{"", task.BlockPaused, task.BlockForbidden, task.BlockMissing}) {
		t.Errorf("blocked: %v", got)
	}
	if b := got.Receivers[1].Blocked; b.By.String() != w.actor() || b.Reason != "a move" || !b.Since.Equal(w.clock.now()) {
		t.Errorf("paused: %+v", b)
	}
	_ = pager

	// Who may not read the namespace of a receiver does not learn whether it exists.
	list, err = w.clientAs("user:bob", "viewer", "default").Alerts.List(ctx, client.AlertListOptions{Namespace: "default"})
	must(t, err)
	if got := why(list[0].Receivers); !slices.Equal(got, []task.AlertBlockReason{"", task.BlockPaused, task.BlockForbidden, task.BlockForbidden}) {
		t.Errorf("blocked, as bob sees it: %v", got)
	}
	if r := list[0].Receivers; r[0].Run != "" || !reflect.DeepEqual(r[1].Blocked, &task.AlertBlock{Why: task.BlockPaused}) {
		t.Errorf("bob sees the run %q and the pause %+v", r[0].Run, *r[1].Blocked)
	}

	_, err = w.Alerts.Silence(ctx, "default", client.SilenceRequest{Selector: "team=data", For: task.Duration(time.Hour), Reason: "INC-42"}, false)
	must(t, err)
	list, err = w.Alerts.List(ctx, client.AlertListOptions{Namespace: "default"})
	must(t, err)
	if s := list[0].Silence; s == nil || !s.Until.Equal(w.clock.now().Add(time.Hour)) || s.By.String() != w.actor() || s.Reason != "INC-42" || s.NamespaceRev != 0 {
		t.Errorf("silenced: %+v", s)
	}
}

// Lists have what the caller may read, in pages, with open alerts or with those that were closed.
func TestAlerts_ListsHaveWhatTheCallerMayRead(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	for i := range 20 {
		w.alertOf([]string{"default", "other"}[i%2], fmt.Sprintf("t%d", i), task.AlertFailures, func(a *task.Alert) { a.Labels = map[string]string{"n": fmt.Sprint(i % 4)} })
	}
	w.alertOf("default", "was", task.AlertSuccessBy, closedAlert(w))
	w.put(w.store.Keys().ClusterAlert("not_evaluated"), task.Alert{Text: "3 tasks"})
	w.put(w.store.Keys().AlertsMore(3, "other", "ops/slack"), task.Alert{More: map[task.AlertKind]int{"failures": 9}, Receiver: "ops/slack"})

	all, err := w.Alerts.List(ctx, client.AlertListOptions{})
	must(t, err)
	if got := names(all); len(got) != 22 || got[0] != "cluster:not_evaluated" || !slices.Contains(got, "other/~more:ops/slack") {
		t.Errorf("%d: %q", len(got), got)
	}

	var paged []task.AlertStatus
	for page := ""; ; {
		r := w.do(request{method: "GET", path: "/v1/alerts?limit=3" + page})
		var l client.List[task.AlertStatus]
		must(t, json.Unmarshal([]byte(r.body), &l))
		paged = append(paged, l.Items...)
		if page = "&page=" + l.Next; l.Next == "" {
			break
		}
	}
	if !slices.Equal(names(paged), names(all)) {
		t.Errorf("in pages: %q", names(paged))
	}

	closed, err := w.Alerts.List(ctx, client.AlertListOptions{Closed: true})
	if err != nil || len(closed) != 1 || closed[0].FullName() != "default/was:success_by" || closed[0].Closed.Run != "r2" {
		t.Errorf("closed: %+v, %v", closed, err)
	}
	some, err := w.Alerts.List(ctx, client.AlertListOptions{Namespace: "default", Selector: "n = 2"})
	if err != nil || len(some) != 5 {
		t.Errorf("by selector: %q, %v", names(some), err)
	}
	_, err = w.Alerts.List(ctx, client.AlertListOptions{Selector: "n ~ 2"})
	wantError(t, err, task.ErrInvalid, task.CodeBadSelector)

	bob := w.clientAs("user:bob", "viewer", "default")
	own, err := bob.Alerts.List(ctx, client.AlertListOptions{})
	if err != nil || len(own) != 10 || slices.ContainsFunc(own, func(a task.AlertStatus) bool { return a.Namespace != "default" }) {
		t.Errorf("bob's: %q, %v", names(own), err)
	}
	if own, err = w.clientAs("user:eve", "node-operator").Alerts.List(ctx, client.AlertListOptions{}); err != nil || !slices.Equal(names(own), []string{"cluster:not_evaluated"}) {
		t.Errorf("of who reads only the cluster: %q, %v", names(own), err)
	}
	_, err = bob.Alerts.List(ctx, client.AlertListOptions{Namespace: "other"})
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)
}

func TestAlerts_AreAcknowledgedByOnePerson(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	bob := w.clientAs("user:bob", "operator", "default")
	_, err := w.Alerts.Acknowledge(ctx, "default", "sync", task.AlertFailures)
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)
	_, err = w.Alerts.Acknowledge(ctx, "default", "sync", "failure")
	wantError(t, err, task.ErrInvalid, task.CodeBadValue)

	w.alertOf("default", "sync", task.AlertFailures)
	first, err := bob.Alerts.Acknowledge(ctx, "default", "sync", task.AlertFailures)
	if err != nil || first.Acknowledged == nil || first.Acknowledged.By.Name() != "user:bob" {
		t.Fatalf("%+v, %v", first, err)
	}

	// It keeps since when bob works on it.
	w.clock.advance(time.Minute)
	again, err := bob.Alerts.Acknowledge(ctx, "default", "sync", task.AlertFailures)
	if err != nil || !again.Acknowledged.Equal(first.Acknowledged) {
		t.Errorf("again: %+v, %v", again.Acknowledged, err)
	}

	// The evaluator rewrites the alert at the same time.
	w.writes.set(func(kv.Txn) {
		w.writes.set(nil, nil)
		w.alertOf("default", "sync", task.AlertFailures, notifies("ops/slack"))
	}, nil)
	ann, err := w.Alerts.Acknowledge(ctx, "default", "sync", task.AlertFailures)
	if err != nil || ann.Acknowledged.By.String() != w.actor() || !slices.Equal(ann.Notify, []string{"ops/slack"}) {
		t.Errorf("taken over: %+v, %v", ann, err)
	}

	w.alertOf("default", "sync", task.AlertFailures, closedAlert(w))
	_, err = w.Alerts.Acknowledge(ctx, "default", "sync", task.AlertFailures)
	if e := wantError(t, err, task.ErrConflict, client.CodeConflict); !strings.Contains(e.Message, "was closed at") {
		t.Error(e)
	}

	w.put(w.store.Keys().ClusterAlert("not_evaluated"), task.Alert{Text: "3 tasks", Since: task.At(w.clock.now())})
	_, err = bob.Alerts.AcknowledgeCluster(ctx, "not_evaluated")
	wantError(t, err, nil, client.CodeForbidden)
	got, err := w.Alerts.AcknowledgeCluster(ctx, "not_evaluated")
	if err != nil || got.FullName() != "cluster:not_evaluated" || got.Acknowledged == nil || got.Text != "3 tasks" {
		t.Errorf("%+v, %v", got, err)
	}
}

// The record of an alert may be one of a newer version. An acknowledgement must not replace it.
func TestAlerts_AreNotAcknowledgedIfTheyCannotBeRead(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	key := w.store.Keys().Alert(ref("default", "sync"), task.AlertFailures)
	w.put(key, `{"since":`)

	_, err := w.Alerts.Acknowledge(ctx, "default", "sync", task.AlertFailures)
	wantError(t, err, nil, client.CodeUnreadable)

	res, err := w.etcd.Get(ctx, key)
	must(t, err)
	if got := string(res.Kvs[0].Value); got != `{"since":` {
		t.Errorf("the record is %s", got)
	}
}

func TestSilences_EndAtTheirTimeOrBefore(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.alertOf("default", "web-1", task.AlertFailures)
	w.alertOf("default", "web-2", task.AlertFailures)
	w.alertOf("default", "web-3", task.AlertFailures, closedAlert(w))
	w.alertOf("default", "db", task.AlertFailures)

	request := client.SilenceRequest{Glob: "web-*", For: task.Duration(time.Hour), Reason: "a move"}
	w.unchanged("a dry run", func() {
		dry, err := w.Alerts.Silence(ctx, "default", request, true)
		if err != nil || dry.Alerts != 2 || dry.ID != "" || dry.Glob != "web-*" || !dry.Until.Equal(w.clock.now().Add(time.Hour)) {
			t.Errorf("%+v, %v", dry, err)
		}
	})

	long, err := w.Alerts.Silence(ctx, "default", request, false)
	must(t, err)
	request.For, request.Until = 0, task.At(w.clock.now().Add(10*time.Minute))
	short, err := w.Alerts.Silence(ctx, "default", request, false)
	must(t, err)

	list, err := w.Alerts.Silences(ctx, "default")
	if err != nil || len(list) != 2 || !reflect.DeepEqual(list, []task.AlertSilence{short.AlertSilence, long.AlertSilence}) || long.By.String() != w.actor() || long.Reason != "a move" {
		t.Fatalf("%+v, %v", list, err)
	}

	w.clock.advance(10 * time.Minute)
	if list, err = w.Alerts.Silences(ctx, ""); err != nil || len(list) != 1 || list[0].ID != long.ID {
		t.Errorf("after ten minutes: %+v, %v", list, err)
	}
	_, err = w.Alerts.EndSilence(ctx, "default", short.ID)
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)

	ended, err := w.Alerts.EndSilence(ctx, "default", long.ID)
	if err != nil || ended.EndedBy.String() != w.actor() || !ended.Until.Equal(w.clock.now()) {
		t.Errorf("%+v, %v", ended, err)
	}
	if list, err = w.Alerts.Silences(ctx, ""); err != nil || len(list) != 0 {
		t.Errorf("at the end: %+v, %v", list, err)
	}
}

func TestSilences_BadRequests(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	hour := task.Duration(time.Hour)

	for _, c := range []struct {
		request client.SilenceRequest
		field   string
	}{
		{client.SilenceRequest{For: hour, Reason: "x"}, "glob"},
		{client.SilenceRequest{Glob: "a", Selector: "a=b", For: hour, Reason: "x"}, "glob"},
		{client.SilenceRequest{Glob: "a", For: hour}, "reason"},
		{client.SilenceRequest{Glob: "a", Reason: "x"}, "until"},
		{client.SilenceRequest{Glob: "a", For: task.MaxSilence + 1, Reason: "x"}, "for"},
		{client.SilenceRequest{Glob: "a", For: hour, Until: task.At(w.clock.now().Add(time.Hour)), Reason: "x"}, "for"},
		{client.SilenceRequest{Selector: "~", For: hour, Reason: "x"}, "selector"},
	} {
		_, err := w.Alerts.Silence(ctx, "default", c.request, false)
		if e := wantError(t, err, task.ErrInvalid, errorCode(err)); e.Field != c.field {
			t.Errorf("%+v: %v, an error of %q", c.request, err, e.Field)
		}
	}

	if r := w.do(request{method: "POST", path: "/v1/namespaces/default/silences", body: `{"glob":"a","for":"0s","reason":"x"}`}); r.status != http.StatusUnprocessableEntity || r.Field != "for" {
		t.Errorf("for 0s: %d %s", r.status, r.body)
	}

	w.badTime = context.DeadlineExceeded
	_, err := w.Alerts.Silence(ctx, "default", client.SilenceRequest{Glob: "a", For: hour, Reason: "x"}, false)
	wantError(t, err, task.ErrUnavailable, client.CodeClock)
	w.badTime = nil

	_, err = w.Alerts.Silence(ctx, "nowhere", client.SilenceRequest{Glob: "a", For: hour, Reason: "x"}, false)
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)

	for range task.MaxSilences {
		_, err := w.Alerts.Silence(ctx, "default", client.SilenceRequest{Glob: "a", For: hour, Reason: "x"}, false)
		must(t, err)
	}
	_, err = w.Alerts.Silence(ctx, "default", client.SilenceRequest{Glob: "a", For: hour, Reason: "x"}, false)
	wantError(t, err, task.ErrInvalid, task.CodeTooMany)
	w.clock.advance(time.Hour)
	_, err = w.Alerts.Silence(ctx, "default", client.SilenceRequest{Glob: "a", For: hour, Reason: "x"}, false)
	must(t, err)
}

// errorCode is the code of an error of the client.
func errorCode(err error) string {
	e, _ := err.(*client.Error)
	if e == nil {
		return ""
	}
	return e.Code
}

// Whoever may pause only tasks with some labels can silence those, and nothing else.
func TestSilences_NeedTheRightToPauseWhatTheyAreAbout(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.make("a", "@daily", func(s *task.Spec) { s.Labels = map[string]string{"team": "data"} })
	w.make("b", "@daily", func(s *task.Spec) { s.Labels = map[string]string{"team": "web"} })
	w.access(w.store.Keys().Binding("data"), func(now time.Time) (int64, error) {
		return w.store.PutBinding(ctx, 0, task.Binding{Name: "data", Role: "operator", RoleUID: "builtin", Subjects: []string{"user:bob"}, Namespaces: []string{"default"}, Labels: map[string]string{"team": "data"}}, now)
	})
	bob := w.clientAs("user:bob", "viewer", "default")

	silence := func(glob, selector string) (client.Silenced, error) {
		return bob.Alerts.Silence(ctx, "default", client.SilenceRequest{Glob: glob, Selector: selector, For: task.Duration(time.Hour), Reason: "x"}, false)
	}

	var own client.Silenced
	for _, c := range []struct {
		glob, selector string
		allowed        bool
	}{
		{"a", "", true}, {"", "team=data", true}, {"", "team in (data), tier=gold", true},
		{"b", "", false}, {"*", "", false}, {"a*", "", false}, {"none", "", false}, {"", "team=web", false}, {"", "tier=gold", false}, {"", "team!=web", false}, {"", "team in (data, web)", false},
	} {
		s, err := silence(c.glob, c.selector)
		if (err == nil) != c.allowed {
			t.Errorf("%s%s: %v", c.glob, c.selector, err)
		}
		if err == nil {
			own = s
		}
	}

	others, err := w.Alerts.Silence(ctx, "default", client.SilenceRequest{Glob: "*", For: task.Duration(time.Hour), Reason: "x"}, false)
	must(t, err)
	_, err = bob.Alerts.EndSilence(ctx, "default", others.ID)
	wantError(t, err, nil, client.CodeForbidden)
	_, err = bob.Alerts.EndSilence(ctx, "default", own.ID)
	must(t, err)
}

// The alerts of a task are read with its receivers, also while none is open, and after the task was deleted.
func TestTaskAlerts_SayWhetherMessagesArrive(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	_, err := w.Alerts.ListByTask(ctx, "default", "sync")
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)

	w.make("sync", "@daily", func(s *task.Spec) { s.Alerts = &task.Alerts{Notify: []string{"slack", "ops/none"}} })
	w.receiver("default", "slack")
	_, err = w.Alerts.Silence(ctx, "default", client.SilenceRequest{Glob: "sy*", For: task.Duration(time.Hour), Reason: "x"}, false)
	must(t, err)

	got, err := w.Alerts.ListByTask(ctx, "default", "sync")
	if err != nil || len(got.Items) != 0 || len(got.Receivers) != 2 || got.Receivers[0].Receiver != "default/slack" || got.Receivers[0].Blocked != nil ||
		got.Receivers[1].Blocked == nil || got.Receivers[1].Blocked.Why != task.BlockMissing || got.Silence == nil {
		t.Errorf("%+v, %v", got, err)
	}

	w.alertOf("default", "sync", task.AlertFailures, notifies("default/slack"))
	w.alertOf("default", "sync", task.AlertSuccessBy, notifies("default/slack"), closedAlert(w))
	must(t, w.Tasks.Delete(ctx, "default", "sync", 0))
	got, err = w.Alerts.ListByTask(ctx, "default", "sync")
	if err != nil || !slices.Equal(names(got.Items), []string{"default/sync:failures", "default/sync:success_by"}) || len(got.Receivers) != 0 {
		t.Errorf("of a deleted task: %+v, %v", got, err)
	}
}

// A question about now is answered with the open alerts, and with what keeps messages away from receivers.
func TestWhy_SaysWhoWasNotified(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	slack := w.receiver("ops", "slack", "default")
	w.make("sync", "@daily", func(s *task.Spec) { s.Alerts = &task.Alerts{Notify: []string{"ops/slack", "ops/none"}} })

	lines := func() (all string) {
		a, err := w.Tasks.Why(ctx, "default", "sync", client.WhyQuestion{})
		must(t, err)
		for _, l := range a.Lines {
			all += l.What + ": " + l.Says + "\n"
		}
		return all
	}
	if got := lines(); strings.Contains(got, "Alert ") || strings.Contains(got, "ops/slack") || !strings.Contains(got, "Receiver ops/none: does not exist, or is not a receiver\n") {
		t.Errorf("without an alert:\n%s", got)
	}

	a := w.alertOf("default", "sync", task.AlertFailures, notifies("ops/slack"), func(a *task.Alert) {
		a.Acknowledged = &task.AlertMark{At: task.At(w.clock.now()), By: &task.Actor{Subject: "user:bob", Token: "x"}}
	})
	w.alertOf("default", "sync", task.AlertSuccessBy, notifies("ops/slack"), closedAlert(w))
	w.put(w.store.Keys().SentTo(ref("ops", "slack")), task.AlertsSent{UID: slack.UID, Sending: &task.AlertMessage{Runs: []string{"r9"}, Opened: task.AlertKeys{w.keyOfAlert(a)}, At: task.At(w.clock.now())}})

	want := "Alert failures: 2 or more failures in a row, since Fri 20 Nov 2026 22:05 UTC; severity error; user:bob works on it since Fri 20 Nov 2026 22:05 UTC\n" +
		"Receiver ops/slack: message under way Fri 20 Nov 2026 22:05 UTC by run r9\n"
	if got := lines(); !strings.HasSuffix(got, want) {
		t.Errorf("with an alert:\n%s", got)
	}

	answer, err := w.Tasks.Why(ctx, "default", "sync", client.WhyQuestion{})
	if err != nil || !slices.Equal(names(answer.Alerts), []string{"default/sync:failures"}) {
		t.Errorf("%+v, %v", answer.Alerts, err)
	}
	answer, err = w.Tasks.Why(ctx, "default", "sync", client.WhyQuestion{At: "2026-11-20T12:00"})
	if err != nil || len(answer.Alerts) != 0 || strings.Contains(fmt.Sprint(answer.Lines), "Alert") {
		t.Errorf("about a time: %+v, %v", answer.Lines, err)
	}
}

// A test is a run of the receiver with a message that only the server writes.
func TestTestReceiver_SendsAMessageOfItsOwn(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("job", "@daily")
	_, err := w.Alerts.Test(ctx, "default", "job")
	if e := wantError(t, err, task.ErrConflict, client.CodeConflict); !strings.Contains(e.Message, "is not a receiver") {
		t.Error(e)
	}
	_, err = w.Alerts.Test(ctx, "default", "none")
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)

	w.receiver("default", "slack")
	bob := w.clientAs("user:bob", "operator", "default") // may trigger it, but not make it say anything
	_, err = bob.Alerts.Test(ctx, "default", "slack")
	wantError(t, err, nil, client.CodeForbidden)

	run, err := w.Alerts.Test(ctx, "default", "slack")
	if err != nil || run.CreatedBy.String() != w.actor() || run.Trigger != task.TriggerManual || !slices.Equal(run.EnvNames, []string{"ALERT_TEXT", "ALERT_TITLE"}) {
		t.Fatalf("%+v, %v", run, err)
	}

	queued := w.dump()[w.store.Keys().Queued(ref("default", "slack"), run.ID)]
	var waiting task.Waiting
	must(t, json.Unmarshal([]byte(queued[strings.Index(queued, " ")+1:]), &waiting))
	if !strings.Contains(waiting.Env["ALERT_TITLE"], "default/slack") || !strings.Contains(strings.ToLower(waiting.Env["ALERT_TEXT"]), "test") {
		t.Errorf("%q", waiting.Env)
	}
}
