package client_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestReadOnly_SendsNoChange: requests that would change something are refused before they are sent; others are
// sent.
//
// Verifies: G56
func TestReadOnly_SendsNoChange(t *testing.T) {
	var calls atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))

	defer s.Close()

	var told []client.Sent

	c, err := client.New(client.Config{Server: s.URL, Token: "secret", ReadOnly: true, Trace: func(k client.Sent) { told = append(told, k) }})
	if err != nil {
		t.Fatal(err)
	}

	ctx := t.Context()
	batch := func() error {
		for _, err := range c.Tasks.ApplyAll(ctx, slices.Values([]task.Spec{{}}), client.BatchOptions{}) {
			return err
		}
		return nil
	}

	_, create := c.Tasks.Create(ctx, "default", task.Spec{Name: "a"})
	_, freeze := c.Freezes.Begin(ctx, "", "x")
	_, drain := c.Nodes.Drain(ctx, "n1")
	_, recovered := c.Cluster.Recover(ctx)
	for what, err := range map[string]error{"create": create, "delete": c.Tasks.Delete(ctx, "default", "a", 0), "freeze": freeze, "drain": drain, "recover": recovered, "batch": batch()} {
		var e *client.Error
		if !errors.As(err, &e) || e.Code != client.CodeReadOnly {
			t.Errorf("%s: %v", what, err)
		}
	}

	if n := calls.Load(); n != 0 || len(told) != 0 {
		t.Fatalf("%d calls were sent, %v traced", n, told)
	}

	if _, err := c.Tasks.Get(ctx, "default", "a"); err != nil {
		t.Error(err)
	}

	if n := calls.Load(); n != 1 || len(told) != 1 || told[0].Method != http.MethodGet || told[0].Status != http.StatusOK || strings.Contains(told[0].Path, "secret") {
		t.Errorf("%d calls, traced %+v", n, told)
	}
}
