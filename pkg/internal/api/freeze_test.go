package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// obeys writes a node's record with the revision of the freezes that its executor has read.
func (w *world) obeys(name string, rev int64) {
	w.t.Helper()
	w.put(w.store.Keys().Node(name), task.Node{Name: name, Instance: "i-" + name, State: task.NodeReady, Format: store.NewestFormat,
		Roles: []string{task.RoleScheduler, task.RoleExecutor}, Slots: 4, Froze: rev})
}

func TestFreeze_AnswersWhenAllNodesObey(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.freezeTimeout = time.Minute
	w.Client = w.client(w.serve("node-a"))
	w.create("a", "@daily")
	w.obeys("node-a", 0)
	w.put(w.store.Keys().Node("scheduler"), task.Node{State: task.NodeReady, Format: store.NewestFormat, Roles: []string{task.RoleScheduler}}) // it runs nothing
	done := make(chan client.FreezeStatus, 1)
	go func() {
		st, err := w.Freezes.Begin(ctx, "", "the database moves")
		if err != nil {
			t.Error(err)
		}
		done <- st
	}()

	var r store.FreezeRecord
	for r.Mod == 0 {
		var err error
		r, err = w.store.Freezes(ctx)
		must(t, err)
	}

	if z := r.Of("default"); z.By.String() != w.actor() || z.Reason != "the database moves" || !z.Since.Equal(w.clock.now()) {
		t.Errorf("the record is %+v", z)
	}

	st, err := w.Cluster.Status(ctx)
	must(t, err)

	if all := strings.Join(st.Warnings, "\n"); len(st.Freezes) != 1 || !strings.Contains(all, "the cluster is frozen, since 2026-11-20T22:05:00Z by "+w.actor()+": the database moves") ||
		!strings.Contains(all, "may still start runs that they received before the freeze: node-a") {
		t.Errorf("meanwhile: %q", st.Warnings)
	}

	select {
	case st := <-done:
		t.Fatalf("it holds already: %+v", st)
	default:
	}

	w.obeys("node-a", r.Mod)

	if st := <-done; st.Revision != r.Mod || st.Tasks != 1 || st.Freeze == nil || len(st.Unconfirmed) != 0 || !st.Changed {
		t.Errorf("in the end %+v", st)
	}

	got, err := w.Tasks.Trigger(ctx, "default", "a", nil)
	if err != nil || got.State != task.Queued || got.Frozen == nil || got.Frozen.Reason != "the database moves" {
		t.Errorf("triggered: %+v, %v", got, err)
	}

	again, err := w.Freezes.Begin(ctx, "", "another reason")
	if err != nil || again.Changed || again.Freeze.Reason != "the database moves" {
		t.Errorf("again: %+v, %v", again, err)
	}

	ended, err := w.Freezes.End(ctx, "")
	if err != nil || !ended.Changed || ended.Freeze != nil {
		t.Errorf("ended: %+v, %v", ended, err)
	}

	if got, err := w.Tasks.Trigger(ctx, "default", "a", nil); err != nil || got.Frozen != nil {
		t.Errorf("triggered: %+v, %v", got, err)
	}

	wantError(t, second(w.Freezes.End(ctx, "")), task.ErrNotFound, client.CodeNotFound)
}

func TestFreeze_SaysWhoHasNotConfirmed(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.freezeTimeout = 50 * time.Millisecond
	w.Client = w.client(w.serve("node-a"))
	w.obeys("node-a", 1<<40)
	w.obeys("node-b", 0)

	e := wantError(t, second(w.Freezes.Begin(ctx, "default", "a move")), task.ErrUnavailable, client.CodeNotConfirmed)
	if e.Status != 504 || !strings.Contains(e.Message, "namespace default is frozen") || !strings.Contains(e.Message, "not confirmed the freeze: node-b") || strings.Contains(e.Message, "node-a") {
		t.Errorf("%d %s", e.Status, e.Message)
	}

	st, err := w.Freezes.Get(ctx, "default")
	if err != nil || st.Freeze == nil || len(st.Unconfirmed) != 1 || st.Unconfirmed[0] != "node-b" {
		t.Errorf("%+v, %v", st, err)
	}

	w.obeys("node-b", st.Revision)

	if st, err = w.Freezes.Begin(ctx, "default", "a move"); err != nil || st.Changed { // waits for it
		t.Errorf("%+v, %v", st, err)
	}
}

func TestFreeze_OfNamespaces(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	_, err := w.Tasks.Create(ctx, "ops", spec("b", "@daily"))
	must(t, err)

	st, err := w.Freezes.Begin(ctx, "ops", "a move")
	if err != nil || st.Tasks != 1 || st.Freeze.Namespace != "ops" {
		t.Errorf("%+v, %v", st, err)
	}

	for ns, frozen := range map[string]bool{"ops": true, "default": false, "": false} {
		if st, err := w.Freezes.Get(ctx, ns); err != nil || st.Freeze != nil != frozen {
			t.Errorf("%q: %+v, %v", ns, st, err)
		}
	}

	if e := wantError(t, second(w.Freezes.End(ctx, "")), task.ErrNotFound, client.CodeNotFound); !strings.Contains(e.Hint, "unfreeze --namespace ops") {
		t.Errorf("the hint is %q", e.Hint)
	}

	must(t, second(w.Freezes.Begin(ctx, "", "all of it")))

	if st, err = w.Freezes.End(ctx, "ops"); err != nil || st.Freeze == nil || st.Freeze.Namespace != "" {
		t.Errorf("the freeze of the cluster has not ended: %+v, %v", st, err)
	}

	if e := wantError(t, second(w.Freezes.End(ctx, "ops")), task.ErrNotFound, client.CodeNotFound); !strings.Contains(e.Hint, "the whole cluster is") {
		t.Errorf("the hint is %q", e.Hint)
	}
}

func TestFreeze_IsRefused(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	if e := wantError(t, second(w.Freezes.Begin(ctx, "", " ")), task.ErrInvalid, task.CodeRequired); e.Field != "reason" {
		t.Errorf("field %q", e.Field)
	}

	wantError(t, second(w.Freezes.Begin(ctx, "", strings.Repeat("x", task.MaxReason+1))), task.ErrInvalid, task.CodeTooLong)

	if r, err := w.store.Freezes(ctx); err != nil || r.Mod != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}
