package api_test

import (
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// reads returns the audit records of reads, the oldest first.
func (w *world) reads() []task.AuditRecord {
	w.t.Helper()
	list, _, err := w.store.AuditRecords(w.t.Context(), "", 1000)
	must(w.t, err)

	return slices.DeleteFunc(list, func(r task.AuditRecord) bool { return r.Outcome != task.AuditRead })
}

// auditReads has the namespace prod record who reads output. It has a task a with a run whose output is on node-b, and
// one on node-a.
func (w *world) auditReads() (here, there string) {
	w.t.Helper()
	n := *w.keeper.View().Namespace("prod")
	n.AuditReads = true
	w.namespace(n)

	made, err := w.Tasks.Create(w.t.Context(), "prod", spec("a", "@hourly"))
	must(w.t, err)
	for i, node := range []string{"node-a", "node-b"} {
		run := id(i+1, made.UID)
		at, _ := task.TimeOfRunID(run)
		w.put(w.store.Keys().Ended(ref("prod", "a"), run), task.Run{
			UID: made.UID, State: task.Failed, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule, Node: node, Attempt: 1,
			OutputSummary: task.OutputSummary{OutputTail: "the end", OutputBytes: 7},
		})
		w.spool["prod/a/"+run+"/1"] = "secret output of " + node
	}

	return id(1, made.UID), id(2, made.UID)
}

func logsPath(run string) string { return "/v1/namespaces/prod/tasks/a/runs/" + run + "/logs" }

// Verifies: G34
func TestAccess_ReadsOfOutputAreRecordedIfTheNamespaceAsks(t *testing.T) {
	w := newWorld(t)
	here, there := w.auditReads()
	other := w.serve("node-b")
	w.put(w.store.Keys().Node("node-b"), task.Node{Name: "node-b", Instance: "i-node-b", State: task.NodeReady, Address: other, Roles: []string{task.RoleAPI}})
	w.bind("user:vic", access.RoleViewer, "prod")
	vic := w.token("user:vic")

	// One record a request, also if another node has the output and both serve the API, and if it is followed.
	for i, path := range []string{logsPath(here), logsPath(there), logsPath(here) + "?tail=1", logsPath(here) + "?follow=true", logsPath(there) + "?follow=true"} {
		if r := w.as(vic, "GET", path, ""); r.status != http.StatusOK || !strings.Contains(r.body, "secret output") {
			t.Fatalf("%s: %d %s", path, r.status, r.body)
		}

		got := w.reads()
		if len(got) != i+1 {
			t.Fatalf("%s: %d records, want %d", path, len(got), i+1)
		}
		w.clock.advance(time.Second)

		a := got[i]
		if len(a.Objects) != 1 || a.Subject != "user:vic" || a.Token != tokenID(vic) || a.Operation != "get-run-logs" || a.Node != "node-a" {
			t.Fatalf("%s: record %+v", path, a)
		}
		if o := a.Objects[0]; o.Kind != "run" || o.Namespace != "prod" || o.Name != "a" || !strings.Contains(path, o.Run) || o.Change != "read" {
			t.Errorf("%s: object %+v", path, o)
		}
	}

	// The node that has the output writes a record, too, which names the node that has forwarded the request.
	list, _, err := w.store.AuditRecords(t.Context(), "", 1000)
	must(t, err)
	forwarded := slices.DeleteFunc(list, func(r task.AuditRecord) bool { return r.Outcome != task.AuditForwarded })
	if len(forwarded) != 2 {
		t.Fatalf("%d records of forwarded reads", len(forwarded))
	}
	for _, a := range forwarded {
		if a.Subject != "user:vic" || a.Token != tokenID(vic) || a.Node != "node-a" || a.Reason != "served by node node-b" || len(a.Objects) != 1 || a.Objects[0].Run != there {
			t.Errorf("a forwarded read: %+v", a)
		}
	}

	// A caller who may not read leaves no record of a read, and other namespaces have none.
	before := w.dump()
	w.bind("user:aud", "auditor")
	aud := w.token("user:aud")
	wantStatus(t, "without the right", w.as(aud, "GET", logsPath(here), ""), http.StatusForbidden, client.CodeForbidden)
	w.create("b", "@daily")
	if n := len(w.reads()); n != 5 {
		t.Errorf("%d records", n)
	}
	if maps.Equal(before, w.dump()) {
		t.Error("nothing was written at all")
	}

	// The end of the output would be read without a record: no run has it.
	for _, path := range []string{"/v1/namespaces/prod/tasks/a/runs/" + here, "/v1/runs", "/v1/namespaces/prod/tasks/a?recent=3"} {
		if r := w.as(vic, "GET", path, ""); r.status != http.StatusOK && r.status != 422 || strings.Contains(r.body, "the end") {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

// A read that cannot be recorded is refused before the first byte.
//
// Verifies: G34
func TestAccess_AReadThatCannotBeRecordedIsRefused(t *testing.T) {
	w := newWorld(t)
	here, _ := w.auditReads()

	w.writes.set(nil, func(kv.Result, error) (kv.Result, error) { return kv.Result{}, rpctypes.ErrNoSpace })
	r := w.do(request{method: "GET", path: logsPath(here)})
	if wantStatus(t, "in a full etcd", r, http.StatusInsufficientStorage, client.CodeNoSpace); strings.Contains(r.body, "secret") {
		t.Errorf("it has output: %s", r.body)
	}

	w.writes.set(nil, func(kv.Result, error) (kv.Result, error) { return kv.Result{}, context.DeadlineExceeded })
	if r := w.do(request{method: "GET", path: logsPath(here) + "?follow=true"}); r.status/100 != 5 || strings.Contains(r.body, "secret") {
		t.Errorf("etcd does not answer: %d %s", r.status, r.body)
	}
	w.writes.set(nil, nil)

	w.restored = context.Canceled
	wantStatus(t, "a restored etcd", w.do(request{method: "GET", path: logsPath(here)}), http.StatusServiceUnavailable, client.CodeRestored)
	w.restored = nil

	w.clock.advance(time.Minute)
	for i := range 21 {
		r := w.do(request{method: "GET", path: logsPath(here)})
		if want := http.StatusOK; i < 20 && r.status != want {
			t.Fatalf("read %d: %d %s", i+1, r.status, r.body)
		} else if i == 20 {
			wantStatus(t, "the 21st within a second", r, http.StatusTooManyRequests, client.CodeRateLimited)
		}
	}
}

// With the key of a node, its thief can read output in the name of anybody, but not without a record that names the node. The
// end of the output is in no other answer.
func TestAccess_ReadsWithTheKeyOfANodeAreRecorded(t *testing.T) {
	w := newWorld(t)
	_, there := w.auditReads()
	b := w.serve("node-b")

	as := func(caller statement.Caller, path string) response {
		t.Helper()
		st := statement.Statement{From: "node-a", FromInstance: "i-node-a", To: "node-b", ToInstance: "i-node-b", Caller: caller}
		req, err := http.NewRequestWithContext(t.Context(), "GET", b+path, nil)
		must(t, err)
		req.Header.Set(statement.Header, st.Sign(keyOf("node-a"), statement.Request{Method: "GET", Path: req.URL.RequestURI()}, w.clock.now()))
		res, err := http.DefaultTransport.RoundTrip(req)
		must(t, err)
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		must(t, err)

		return response{status: res.StatusCode, body: string(body)}
	}

	w.clock.advance(time.Minute) // its record is the newest
	root := statement.Caller{Who: "unix:uid=0"}
	if r := as(root, logsPath(there)); r.status != http.StatusOK || !strings.Contains(r.body, "secret output") {
		t.Fatalf("%d %s", r.status, r.body)
	}
	list, _, err := w.store.AuditRecords(t.Context(), "", 1000)
	must(t, err)
	if a := list[len(list)-1]; a.Outcome != task.AuditForwarded || a.Node != "node-a" || a.Subject != "unix:uid=0" || a.Objects[0].Run != there {
		t.Errorf("the record is %+v", a)
	}

	// Users of a host come over its socket: they have no address and no token.
	for _, caller := range []statement.Caller{{Who: "unix:uid=0", Address: "192.0.2.1"}, {Who: "unix:uid=0", Token: "t"}, {Who: "unix:uid=0", Certificate: "c"}} {
		if r := as(caller, logsPath(there)); r.status != http.StatusUnauthorized {
			t.Errorf("%+v: %d %s", caller, r.status, r.body)
		}
	}

	// A session of root in a browser has both, like any token.
	s, err := w.with(w.rootLink("node-a").Secret).Sessions.UseLink(t.Context())
	must(t, err)
	session := statement.Caller{Who: access.RootSubject, Token: s.ID, Address: "127.0.0.1"}
	if r := as(session, logsPath(there)); r.status != http.StatusOK || !strings.Contains(r.body, "secret output") {
		t.Errorf("a session of root: %d %s", r.status, r.body)
	}
	session.Token = ""
	if r := as(session, logsPath(there)); r.status != http.StatusUnauthorized {
		t.Errorf("a session of root without its token: %d %s", r.status, r.body)
	}

	if r := as(root, "/v1/tasks:ask?question=%7B%22board%22:%7B%22span%22:600000000000,%22limit%22:10%7D%7D"); r.status != http.StatusOK || strings.Contains(r.body, "the end") {
		t.Errorf("the board has the end of the output: %s", r.body)
	}
}
