package api_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
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

	// Whoever may not read leaves no record of a read, and other namespaces have none.
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
