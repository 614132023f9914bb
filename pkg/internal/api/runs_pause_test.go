package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestPauseAndResumeOfARun(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	run := id(1, "aaaa")
	w.active("node-b", "a", run)
	held := func() record.Held {
		t.Helper()
		list, err := w.store.ActiveOf(ctx, ref("default", "a"))
		must(t, err)

		for _, h := range list {
			if h.ID == run {
				return h
			}
		}

		t.Fatal("it is not active")

		return record.Held{}
	}

	for range 2 { // a repetition changes nothing
		got, err := w.Runs.Pause(ctx, "default", "a", run[:19])
		must(t, err)
		if got.ID != run || got.State != task.Running || got.PausedBy.String() != w.actor() {
			t.Errorf("asked to pause: %+v", got)
		}
	}

	first := held()
	if !first.PauseRequested {
		t.Errorf("the record is %+v", first)
	}

	for range 2 {
		got, err := w.Runs.Resume(ctx, "default", "a", run)
		must(t, err)
		if got.PausedBy != nil || got.State != task.Running {
			t.Errorf("resumed before it was paused: %+v", got)
		}
	}

	if h := held(); h.PauseRequested || h.ResumedBy.String() != w.actor() {
		t.Errorf("the record is %+v", h)
	}

	// Its node writes between our reads.
	wrote := false
	w.writes.set(func(kv.Txn) {
		if !wrote {
			wrote = true
			h := held()
			h.State = task.Running
			w.put(w.store.Keys().Run("node-b", ref("default", "a"), run), h.Assigned)
		}
	}, nil)

	_, err := w.Runs.Pause(ctx, "default", "a", run)
	must(t, err)

	if h := held(); !h.PauseRequested || !wrote {
		t.Errorf("the record is %+v", h)
	}

	w.writes.set(nil, nil)
	_, err = w.Runs.Cancel(ctx, "default", "a", run)
	must(t, err)

	if h := held(); !h.CancelRequested || !h.PauseRequested {
		t.Errorf("cancelled while it pauses: %+v", h)
	}

	_, err = w.Runs.Resume(ctx, "default", "a", run)
	must(t, err)

	e := wantError(t, second(w.Runs.Pause(ctx, "default", "a", run)), task.ErrConflict, client.CodeAlreadyEnded)
	if !strings.Contains(e.Message, "about to end") {
		t.Errorf("paused while it ends: %v", e)
	}

	w.waiting("a", id(2, "aaaa"), nil)
	w.ended("a", id(3, "aaaa"), task.Succeeded, nil)

	for what, f := range map[string]func(id string) error{
		"paused":  func(id string) error { return second(w.Runs.Pause(ctx, "default", "a", id)) },
		"resumed": func(id string) error { return second(w.Runs.Resume(ctx, "default", "a", id)) },
	} {
		e := wantError(t, f(id(2, "aaaa")), task.ErrConflict, client.CodeNotRunning)
		if !strings.Contains(e.Message, "is queued") || !strings.Contains(e.Message, what) || (what == "paused") != strings.Contains(e.Hint, "carillon task pause a") {
			t.Errorf("one that waits: %v (%s)", e, e.Hint)
		}

		wantError(t, f(id(3, "aaaa")), task.ErrConflict, client.CodeAlreadyEnded)
		wantError(t, f(id(9, "aaaa")), task.ErrNotFound, client.CodeNotFound)
	}
}

// A pause of a run with parts pauses each part that is on a node, and the answer names them.
func TestPauseOfARun_WithPartsIsOneOfThoseThatNodesHave(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	run, other := id(1, "aaaa"), id(2, "aaaa")
	fan := func(r *task.Run) {
		r.State, r.Reason, r.Fan = task.Running, "", &task.Fan{Count: 5, Need: 5, Left: []int{4}}
	}

	w.waiting("a", run, fan)
	w.waiting("a", other, fan)
	w.active("node-b", "a", task.PartID(run, 0))
	w.active("node-c", "a", task.PartID(run, 1))
	w.ended("a", task.PartID(run, 2), task.Succeeded, nil)
	w.waiting("a", task.PartID(run, 3), func(r *task.Run) { r.Attempts = []task.Attempt{{Attempt: 1, State: task.Failed, Node: "node-b"}} })
	w.active("node-b", "a", task.PartID(other, 0))
	w.active("node-b", "a", id(3, "aaaa"))

	stand := func(r task.Run) string {
		t.Helper()

		if r.ID != run || r.Fan == nil {
			t.Fatalf("it is %+v", r)
		}

		var s []string
		for _, p := range r.Fan.Parts {
			s = append(s, strings.TrimSpace(fmt.Sprintf("%d:%s %s", p.Index, p.State, p.PausedBy.Name())))
		}

		return strings.Join(s, ", ")
	}

	asked := "0:running user:ann, 1:running user:ann, 2:succeeded, 3:queued, 4:queued"
	w.writes.set(nil, nil)

	for range 2 { // a repetition changes nothing
		got, err := w.Runs.Pause(ctx, "default", "a", run)
		must(t, err)
		if stand(got) != asked {
			t.Errorf("asked to pause: %s", stand(got))
		}
	}

	if n := w.writes.committed(); n != 2 {
		t.Errorf("%d writes for two parts", n)
	}

	held, err := w.store.ActiveOf(ctx, ref("default", "a"))
	must(t, err)

	for _, h := range held {
		if of, _, _ := task.ParentOf(h.ID); h.PauseRequested != (of == run) {
			t.Errorf("run %s: asked to pause %t", h.ID, h.PauseRequested)
		}
	}

	got, err := w.Runs.Resume(ctx, "default", "a", run)
	must(t, err)

	if want := strings.ReplaceAll(asked, " user:ann", ""); stand(got) != want || w.writes.committed() != 4 {
		t.Errorf("resumed with %d writes: %s", w.writes.committed(), stand(got))
	}

	// One part moves permanently between our reads. The others still receive the request.
	first := w.store.Keys().Run("node-b", ref("default", "a"), task.PartID(run, 0))
	w.writes.set(func(txn kv.Txn) {
		if string(txn.Then[0].KeyBytes()) == first {
			w.active("node-b", "a", task.PartID(run, 0))
		}
	}, nil)

	e := wantError(t, second(w.Runs.Pause(ctx, "default", "a", run)), task.ErrConflict, client.CodeConflict)
	if !strings.Contains(e.Message, "1 of 2 parts were asked") {
		t.Errorf("one of them moves: %v", e)
	}

	w.writes.set(nil, nil)
	got, err = w.Runs.Pause(ctx, "default", "a", run)
	must(t, err)

	if stand(got) != asked {
		t.Errorf("then: %s", stand(got))
	}

	w.writes.set(nil, func(kv.Result, error) (kv.Result, error) { return kv.Result{}, errLost }) // executed, but not reported
	e = wantError(t, second(w.Runs.Resume(ctx, "default", "a", run)), task.ErrUnknown, client.CodeUnknown)
	if e.ID != run || !strings.Contains(e.Message, "0 of 2 parts were asked") {
		t.Errorf("the outcome is not reported as unknown: %+v", e)
	}
}

func TestPauseOfARun_WithPartsThatNobodyHasIsRefused(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	run := id(1, "aaaa")
	fan := &task.Fan{Count: 3, Need: 3, Left: []int{0, 1, 2}}
	w.waiting("a", run, func(r *task.Run) { r.State, r.Reason, r.Fan = task.Running, "", fan })

	for _, err := range []error{second(w.Runs.Pause(ctx, "default", "a", run)), second(w.Runs.Resume(ctx, "default", "a", run))} {
		e := wantError(t, err, task.ErrConflict, client.CodeNotRunning)
		if !strings.Contains(e.Message, "has 3 parts, but none is on a node") {
			t.Errorf("%v", e)
		}
	}

	fan.Left, fan.Cancel = []int{1, 2}, task.ReasonCancelled
	w.waiting("a", run, func(r *task.Run) { r.State, r.Reason, r.Fan = task.Running, "", fan })
	w.active("node-b", "a", task.PartID(run, 0))

	e := wantError(t, second(w.Runs.Pause(ctx, "default", "a", run)), task.ErrConflict, client.CodeAlreadyEnded)
	if !strings.Contains(e.Message, "about to end") {
		t.Errorf("paused while it ends: %v", e)
	}

	must(t, second(w.Runs.Resume(ctx, "default", "a", run)))
}
