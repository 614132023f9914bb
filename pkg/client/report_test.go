package client_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/apikit"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// The first node dies when it has queued the run, before it can answer. The program goes on with the second node, which knows
// the request by its key, so the task runs once.
func TestMakeReport_SurvivesTheDeathOfItsNode(t *testing.T) {
	cluster := apikit.New(t, kvtest.Memory(t), nil, nil)
	token := cluster.Token("user:ann")

	api := cluster.API("n1", nil)
	var first *httptest.Server
	first = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/trigger") {
			api.ServeHTTP(w, r)
			return
		}

		api.ServeHTTP(httptest.NewRecorder(), r)
		_ = first.Listener.Close()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(first.Close)

	// No node executes the run here, so it ends by a cancellation when the program asks for it.
	var end sync.Once
	api2 := cluster.API("n2", nil)
	second := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, id, ok := strings.Cut(r.URL.Path, "/runs/"); ok {
			end.Do(func() {
				if _, err := cluster.Store.CancelQueued(r.Context(), apikit.Ref("default", "report"), id, task.NewActor("user:ann"), cluster.Clock.Now()); err != nil {
					t.Error(err)
				}
			})
		}

		api2.ServeHTTP(w, r)
	}))
	t.Cleanup(second.Close)

	c, err := client.New(client.Config{Server: first.URL + "," + second.URL, Token: token})
	if err != nil {
		t.Fatal(err)
	}

	var out strings.Builder
	if err := makeReport(t.Context(), c, "report-of-today", &out); err != nil {
		t.Fatal(err)
	}

	runs, err := c.Runs.ListByTask(t.Context(), "default", "report", client.RunListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 1 || out.String() != "run "+runs[0].ID+": cancelled\n" || c.Server() != second.URL {
		t.Errorf("%d runs, from %s: %s", len(runs), c.Server(), out.String())
	}
}
