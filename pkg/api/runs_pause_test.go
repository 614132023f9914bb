package api_test

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestPauseAndResumeOfARun(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	run := id(1, "aaaa")
	w.active("node-b", "a", run)
	held := func() store.Held {
		t.Helper()
		list, err := w.store.ActiveOf(ctx, ref("default", "a"))
		must(t, err)
		for _, h := range list {
			if h.ID == run {
				return h
			}
		}
		t.Fatal("it is not active")
		return store.Held{}
	}
	for range 2 { // twice is once
		got, err := w.PauseRun(ctx, "default", "a", run[:19])
		must(t, err)
		if got.ID != run || got.State != task.Running || got.PausedBy != "ann" {
			t.Errorf("asked to pause: %+v", got)
		}
	}
	first := held()
	if !first.PauseRequested {
		t.Errorf("the record is %+v", first)
	}
	for range 2 {
		got, err := w.ResumeRun(ctx, "default", "a", run)
		must(t, err)
		if got.PausedBy != "" || got.State != task.Running {
			t.Errorf("asked to go on before it stood still: %+v", got)
		}
	}
	if h := held(); h.PauseRequested || h.ResumedBy != "ann" {
		t.Errorf("the record is %+v", h)
	}

	// Its node writes while we look.
	wrote := false
	w.writes.set(func(kv.Txn) {
		if !wrote {
			wrote = true
			h := held()
			h.State = task.Running
			w.put(w.store.Keys().Run("node-b", ref("default", "a"), run), h.Assigned)
		}
	}, nil)
	_, err := w.PauseRun(ctx, "default", "a", run)
	must(t, err)
	if h := held(); !h.PauseRequested || !wrote {
		t.Errorf("the record is %+v", h)
	}
	w.writes.set(nil, nil)
	_, err = w.Cancel(ctx, "default", "a", run)
	must(t, err)
	if h := held(); !h.CancelRequested || !h.PauseRequested {
		t.Errorf("cancelled while it pauses: %+v", h)
	}
	_, err = w.ResumeRun(ctx, "default", "a", run)
	must(t, err)
	e := wantError(t, second(w.PauseRun(ctx, "default", "a", run)), task.ErrConflict, client.CodeAlreadyEnded)
	if !strings.Contains(e.Message, "about to end") {
		t.Errorf("paused while it ends: %v", e)
	}

	w.waiting("a", id(2, "aaaa"), nil)
	w.ended("a", id(3, "aaaa"), task.Succeeded, nil)
	for what, f := range map[string]func(id string) error{
		"paused":  func(id string) error { return second(w.PauseRun(ctx, "default", "a", id)) },
		"resumed": func(id string) error { return second(w.ResumeRun(ctx, "default", "a", id)) },
	} {
		e := wantError(t, f(id(2, "aaaa")), task.ErrConflict, client.CodeNotRunning)
		if !strings.Contains(e.Message, "waits in the queue") || !strings.Contains(e.Message, what) || (what == "paused") != strings.Contains(e.Hint, "carillon task pause a") {
			t.Errorf("one that waits: %v (%s)", e, e.Hint)
		}
		wantError(t, f(id(3, "aaaa")), task.ErrConflict, client.CodeAlreadyEnded)
		wantError(t, f(id(9, "aaaa")), task.ErrNotFound, client.CodeNotFound)
	}
}

// An older version takes no notice of a pause.
func TestPauseOfARun_TakesAFormat(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	w.active("node-b", "a", id(1, "aaaa"))
	f, err := w.store.Formats(ctx)
	must(t, err)
	must(t, w.store.SetFormat(ctx, f, store.FormatShadow, store.FormatShadow))
	now, err := w.store.Cluster(ctx)
	must(t, err)
	must(t, w.store.Obey(now))
	e := wantError(t, second(w.PauseRun(ctx, "default", "a", id(1, "aaaa"))), task.ErrConflict, client.CodeConflict)
	if !strings.Contains(e.Hint, "carillon cluster upgrade") {
		t.Errorf("%v (%s)", e, e.Hint)
	}
	must(t, second(w.ResumeRun(ctx, "default", "a", id(1, "aaaa"))))
}
