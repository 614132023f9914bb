package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// waitUntilHeld waits until n requests of a node wait for runs. It asks the node itself, so it needs no sleep.
func (w *world) waitUntilHeld(n string) {
	w.t.Helper()
	for !strings.Contains(w.do(request{path: "/metrics"}).body, "carillon_run_waiters "+n) {
		if w.t.Context().Err() != nil {
			w.t.FailNow()
		}
	}
}

func TestWait_AnswersWhenTheRunHasEnded(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	r := ref("default", "a")
	run, err := w.Tasks.Trigger(t.Context(), "default", "a", nil)
	must(t, err)

	for what, path := range map[string]string{
		"of a task":      "/v1/namespaces/default/tasks/a/runs/" + run.ID,
		"of a namespace": "/v1/namespaces/default/runs/" + run.ID,
	} {
		// With no time left, the answer has the run as it is.
		if got := w.do(request{path: path + "?wait=1ms"}); got.status != 200 || !strings.Contains(got.body, `"state":"queued"`) {
			t.Errorf("%s: %d %s", what, got.status, got.body)
		}
	}

	type answer struct {
		run task.Run
		err error
	}
	answers := make(chan answer, 2)
	go func() {
		got, err := w.Runs.Wait(t.Context(), "default", "a", run.ID)
		answers <- answer{got, err}
	}()
	w.waitUntilHeld("1")

	// A change that is not the end, a change of another run, and the end.
	_, err = w.Tasks.Trigger(t.Context(), "default", "a", nil)
	must(t, err)
	_, err = w.Tasks.Pause(t.Context(), "default", "a", 0)
	must(t, err)
	_, err = w.store.CancelQueued(t.Context(), r, run.ID, task.NewActor("user:ann"), w.clock.now())
	must(t, err)

	got := <-answers
	if must(t, got.err); got.run.State != task.Cancelled || got.run.ID != run.ID {
		t.Errorf("the run is %s", got.run.State)
	}
	w.waitUntilHeld("0")

	// A run that has ended needs no wait.
	ended, err := w.Runs.Wait(t.Context(), "default", "a", run.ID)
	if must(t, err); ended.State != task.Cancelled {
		t.Errorf("the run is %s", ended.State)
	}
}

func TestWait_EndsWithItsTask(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	run, err := w.Tasks.Trigger(t.Context(), "default", "a", nil)
	must(t, err)

	failed := make(chan error, 1)
	go func() {
		_, err := w.Runs.Wait(t.Context(), "default", "a", run.ID)
		failed <- err
	}()
	w.waitUntilHeld("1")
	must(t, w.Tasks.Delete(t.Context(), "default", "a", 0))

	wantError(t, <-failed, task.ErrNotFound, client.CodeNotFound)
}

func TestWait_EndsWithItsClientAndItsNode(t *testing.T) {
	w := newWorld(t)
	w.ends = make(chan struct{})
	w.url = w.serve("node-b")
	w.create("a", "@daily")
	run, err := w.Tasks.Trigger(t.Context(), "default", "a", nil)
	must(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	c := w.client(w.url)
	go func() {
		got, err := c.Runs.Wait(ctx, "default", "a", run.ID)
		if got.ID != run.ID {
			err = errors.New("the run is gone")
		}
		failed <- err
	}()
	w.waitUntilHeld("1")
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	w.waitUntilHeld("0")

	answers := make(chan response, 1)
	go func() { answers <- w.do(request{path: "/v1/namespaces/default/tasks/a/runs/" + run.ID + "?wait=1m"}) }()
	w.waitUntilHeld("1")
	close(w.ends)
	if r := <-answers; r.status != 200 || !strings.Contains(r.body, `"state":"queued"`) {
		t.Errorf("the node stops: %d %s", r.status, r.body)
	}
}

// A caller that loses its rights while it waits learns nothing more.
func TestWait_EndsWithTheRightToRead(t *testing.T) {
	w := newWorld(t)
	w.beat = time.Millisecond
	w.url = w.serve("node-b")
	w.create("a", "@daily")
	run, err := w.Tasks.Trigger(t.Context(), "default", "a", nil)
	must(t, err)
	w.bind("user:vera", "viewer", "default")
	token := w.token("user:vera")

	answers := make(chan response, 1)
	go func() {
		answers <- w.do(request{path: "/v1/namespaces/default/tasks/a/runs/" + run.ID + "?wait=1m", header: map[string]string{"Authorization": "Bearer " + token}})
	}()
	w.waitUntilHeld("1")
	_, err = w.Subjects.Disable(t.Context(), "user:vera")
	must(t, err)

	if r := <-answers; r.status != http.StatusUnauthorized && r.status != http.StatusForbidden {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestWait_IsLimited(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	run, err := w.Tasks.Trigger(t.Context(), "default", "a", nil)
	must(t, err)

	for wait, status := range map[string]int{"61s": 422, "-1s": 422, "soon": 422, "": 422, "0s": 200, "1": 422} {
		r := w.do(request{path: "/v1/namespaces/default/tasks/a/runs/" + run.ID + "?wait=" + wait})
		if r.status != status || status == 422 && r.Field != "wait" {
			t.Errorf("wait=%s: %d %s", wait, r.status, r.body)
		}
	}
}
