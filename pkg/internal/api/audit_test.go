package api_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestAudit_TellsWhatItFindsAndMendsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.store.Keys()
	gone := ref("default", "gone")
	w.put(k.Ended(gone, id(1, "aaaa")), task.Run{UID: "aaaa", State: task.Succeeded})
	var stages []string
	found, err := w.Audit.Run(t.Context(), client.AuditOptions{Pause: time.Second, Tell: func(p task.AuditProgress) { stages = append(stages, p.Stage) }})
	must(t, err)

	byKind := map[string]task.Finding{}
	for _, f := range found.Findings {
		byKind[f.Kind] = f
	}

	orphan := byKind["orphan_history"]
	if byKind["no_leader"].Kind == "" || byKind["shard_without_owner"].Kind == "" || orphan.Keys[0] != k.HistoryOf(gone) || orphan.Count != 1 {
		t.Fatalf("found %+v", found)
	}

	if found.Node != "node-a" || found.Keys == 0 || found.Revision == 0 || len(stages) < 2 || stages[len(stages)-1] != "second check" {
		t.Errorf("%+v, stages %v", found, stages)
	}

	ask := []task.RepairRequest{{Kind: orphan.Kind, Key: orphan.Keys[0], Revision: orphan.Revision}, {Kind: "no_leader", Key: k.Leader()}}
	results, err := w.Audit.Repair(t.Context(), ask)
	must(t, err)

	if len(results) != 2 || results[0].Result != task.Repaired || results[0].Deleted != 1 || results[1].Result != task.NotRepairable {
		t.Errorf("results: %+v", results)
	}

	if left := w.dump(); left[k.Ended(gone, id(1, "aaaa"))] != "" {
		t.Error("the record is still there")
	}
}

func TestAudit_OneAtATimeOnANode(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		once := false
		_, err := w.Audit.Run(ctx, client.AuditOptions{Pause: time.Minute, Tell: func(task.AuditProgress) {
			if !once {
				once = true
				close(begun)
			}
		}})

		ended <- err
	}()

	<-begun
	_, err := w.Audit.Run(t.Context(), client.AuditOptions{Pause: time.Second})
	wantError(t, err, task.ErrConflict, client.CodeConflict)
	cancel()

	if err := <-ended; err == nil {
		t.Error("an audit that was given up succeeded")
	}
}

// A caller who has read the last line of an audit can request the next audit.
func TestAudit_IsOverWithItsLastLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	next := make(chan struct{})
	defer close(next)

	w.wrote = func(line []byte) {
		if bytes.HasPrefix(line, []byte(`{"audit":`)) {
			<-next // the handler has not ended yet
		}
	}

	c := w.client(w.serve("node-b"))
	_, err := c.Audit.Run(t.Context(), client.AuditOptions{Pause: time.Second})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	begun := false
	_, err = c.Audit.Run(ctx, client.AuditOptions{Pause: time.Second, Tell: func(task.AuditProgress) { begun = true; cancel() }})

	if !begun {
		t.Errorf("the next one: %v", err)
	}
}

func TestAudit_WithoutEtcdIsUnavailable(t *testing.T) {
	w := newWorldOn(t, kvtest.Start(t))
	_, err := w.Version(t.Context()) // the token is cached for a short time
	must(t, err)
	must(t, w.etcd.Close())
	_, err = w.Audit.Run(t.Context(), client.AuditOptions{Pause: time.Second})
	wantError(t, err, task.ErrUnavailable, client.CodeUnavailable)
}

func TestAudit_RefusesBadInput(t *testing.T) {
	w := newWorld(t)

	for _, q := range []request{
		{method: "GET", path: "/v1/audit?pause=0"}, {method: "GET", path: "/v1/audit?pause=61"}, {method: "GET", path: "/v1/audit?pause=soon"},
		{method: "GET", path: "/v1/audit?repair=true"},
		{method: "POST", path: "/v1/audit:repair", body: `{"findings":[]}`}, {method: "POST", path: "/v1/audit:repair", body: `{}`},
		{method: "POST", path: "/v1/audit:repair", body: `{"findings":[{"kind":"x","key":"y","revision":1,"force":true}]}`},
		{method: "POST", path: "/v1/audit:repair", body: `{"findings":[` + strings.Repeat(`{"kind":"x","key":"y"},`, 100) + `{"kind":"x","key":"y"}]}`},
	} {
		if r := w.do(q); r.status != http.StatusUnprocessableEntity && r.status != http.StatusBadRequest {
			t.Errorf("%s %.60s: %d %s", q.path, q.body, r.status, r.body)
		}
	}

	for _, q := range []request{{method: "GET", path: "/v1/audit", noToken: true}, {method: "POST", path: "/v1/audit:repair", noToken: true, body: "{}"}} {
		if r := w.do(q); r.status != http.StatusUnauthorized {
			t.Errorf("%s without a token: %d", q.path, r.status)
		}
	}
}
