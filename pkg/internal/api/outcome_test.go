package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// The possible results from etcd for a write that it has executed.
var (
	errLost = errors.New("the connection broke")
	noSpace = rpctypes.ErrNoSpace
)

// Verifies: G13
func TestUnknownOutcome_IsNotIssuedAgain(t *testing.T) {
	for _, c := range []struct {
		what string
		do   func(w *world) error
		id   string // the value in the problem
	}{
		{"create", func(w *world) error { return second(w.Tasks.Create(t.Context(), "default", spec("new", "@daily"))) }, "default/new"},
		{"apply new", func(w *world) error {
			return second(w.Tasks.Apply(t.Context(), spec("new", "@daily"), client.ApplyOptions{}))
		}, "default/new"},
		{"apply", func(w *world) error {
			return second(w.Tasks.Apply(t.Context(), spec("a", "@hourly"), client.ApplyOptions{}))
		}, "default/a"},
		{"patch", func(w *world) error {
			return second(w.Tasks.Patch(t.Context(), "default", "a", []byte(`{"timeout": "1m"}`), 0))
		}, "default/a"},
		{"pause", func(w *world) error { return second(w.Tasks.Pause(t.Context(), "default", "a", 0)) }, "default/a"},
		{"delete", func(w *world) error { return w.Tasks.Delete(t.Context(), "default", "a", 0) }, "default/a"},
		{"cancel", func(w *world) error { return second(w.Runs.Cancel(t.Context(), "default", "a", id(1, "aaaa"))) }, id(1, "aaaa")},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t)
			w.create("a", "@daily")
			w.waiting("a", id(1, "aaaa"), nil)
			w.writes.set(nil, func(res kv.Result, err error) (kv.Result, error) { return kv.Result{}, errLost }) // executed, but not reported

			e := wantError(t, c.do(w), task.ErrUnknown, client.CodeUnknown)
			if e.Status != 504 || e.ID == "" || c.id != "" && e.ID != c.id {
				t.Errorf("got %+v, want id %q", e, c.id)
			}

			if n := w.writes.committed(); n != 1 {
				t.Errorf("%d commits, want 1", n)
			}

			if c.what == "trigger" {
				if _, ok := w.dump()[w.store.Keys().Queued(ref("default", "a"), e.ID)]; !ok {
					t.Errorf("run %s, which may have been queued, is not the one that was", e.ID)
				}
			}
		})
	}
}

func TestEtcdWithoutSpace_Is507(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.writes.set(nil, func(res kv.Result, err error) (kv.Result, error) {
		return kv.Result{}, fmt.Errorf("commit: %w", noSpace)
	})

	e := wantError(t, second(w.Tasks.Create(ctx, "default", spec("a", "@daily"))), task.ErrUnavailable, client.CodeNoSpace)
	if e.Status != 507 || e.ID != "default/a" || w.writes.committed() != 1 {
		t.Errorf("got %+v after %d commits", e, w.writes.committed())
	}
}

func TestConflict_WithoutIfMatchIsDecidedAgain(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	meddle := func(times int) {
		n := 0
		w.writes.set(func(kv.Txn) {
			if n++; n <= times {
				st, err := w.store.Task(ctx, ref("default", "a"))
				must(t, err)
				st.Task.Description = fmt.Sprint("changed ", st.Task.Revision)
				_, err = w.etcd.Put(ctx, w.store.Keys().Spec(ref("default", "a")), string(mustJSON(t, st.Task)))
				must(t, err)
			}
		}, nil)
	}

	meddle(2)
	got, err := w.Tasks.Patch(ctx, "default", "a", []byte(`{"timeout": "1m"}`), 0)
	must(t, err)

	if !strings.HasPrefix(got.Description, "changed") || got.Timeout.Std() != time.Minute {
		t.Errorf("the other's change was lost: %+v", got)
	}

	meddle(1)
	_, err = w.Tasks.Patch(ctx, "default", "a", []byte(`{"timeout": "2m"}`), got.Revision)
	wantError(t, err, task.ErrStale, client.CodeStale)
	meddle(1000)
	_, err = w.Tasks.Patch(ctx, "default", "a", []byte(`{"timeout": "3m"}`), 0)

	e := wantError(t, err, task.ErrConflict, client.CodeConflict)
	if e.Status != 409 {
		t.Errorf("got %+v", e)
	}

	// A change of the entry by its owner does not change the revision of the task.
	w.writes.set(nil, nil)
	now, err := w.Tasks.Get(ctx, "default", "a")
	must(t, err)
	once := false
	w.writes.set(func(kv.Txn) {
		if !once {
			once = true
			w.put(w.store.Keys().Entry(ref("default", "a")), w.entry(ref("default", "a")))
		}
	}, nil)

	if _, err = w.Tasks.Patch(ctx, "default", "a", []byte(`{"timeout": "4m"}`), now.Revision); err != nil {
		t.Errorf("the owner wrote the entry: %v", err)
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)

	return b
}

// Verifies: G18
func TestEtcdAway_Is503(t *testing.T) {
	w := newWorldOn(t, kvtest.Start(t))
	_, err := w.Version(t.Context()) // the token is cached for a short time
	must(t, err)
	must(t, w.etcd.Close())

	r := w.do(request{method: "GET", path: "/v1/tasks"})
	if r.status != 503 || r.Code != client.CodeUnavailable || r.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s, Retry-After %q", r.status, r.body, r.header.Get("Retry-After"))
	}
}
