package api_test

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// endedManual writes the history record of a manual run of a task that had inputs, and returns its id.
func (w *world) endedManual(name string, edit func(*task.Run)) string {
	w.t.Helper()
	r := ref("default", name)
	st, err := w.store.Task(w.t.Context(), r)
	must(w.t, err)

	now := task.At(w.clock.now())
	run := task.Run{
		ID: task.ManualRunID(now.Time, st.Task.UID), Namespace: "default", Task: name, Shard: r.Shard, UID: st.Task.UID, ScheduledTime: now, CreatedAt: now, EndedAt: now,
		State: task.Succeeded, Trigger: task.TriggerManual, Attempt: 1, Node: "node-a", Token: 7,
	}
	edit(&run)
	w.put(w.store.Keys().Ended(r, run.ID), run)

	return run.ID
}

// queuedRecord returns the record of a queued run.
func (w *world) queuedRecord(name, id string) task.Waiting {
	w.t.Helper()
	var q task.Waiting
	res, err := w.etcd.Get(w.t.Context(), w.store.Keys().Queued(ref("default", name), id))
	must(w.t, err)
	if len(res.Kvs) != 1 {
		w.t.Fatalf("run %s is not queued", id)
	}
	must(w.t, json.Unmarshal(res.Kvs[0].Value, &q))

	return q
}

func TestRerun_RepeatsTheInputs(t *testing.T) {
	w := newWorld(t)
	w.make("a", "@daily", func(s *task.Spec) { s.Accept = task.Accept{Env: []string{"A", "B"}, Args: 2, Target: true} })
	id := w.endedManual("a", func(r *task.Run) {
		r.Args, r.TargetNode, r.EnvNames = []string{"--day", "x"}, "node-a", []string{"A", "B"}
	})

	// Only the names of variables are recorded.
	_, err := w.Runs.Rerun(t.Context(), "default", "a", id, client.RerunRequest{Env: map[string]string{"A": "1"}})
	wantError(t, err, task.ErrConflict, client.CodeMissingEnv)
	if w.queuedRuns("a") != 0 {
		t.Error("a refused rerun is queued")
	}

	env := map[string]string{"A": "1", "B": "2"}
	ask := client.RerunRequest{Env: env, IdempotencyKey: "k"}
	again, err := w.Runs.Rerun(t.Context(), "default", "a", id, ask)
	must(t, err)
	q := w.queuedRecord("a", again.ID)
	if again.RerunOf != id || again.ID == id || again.CreatedBy.String() != w.actor() || q.RerunOf != id || len(q.Args) != 2 || q.TargetNode != "node-a" || !maps.Equal(q.Env, env) {
		t.Errorf("queued %+v", q)
	}

	replayed, err := w.Runs.Rerun(t.Context(), "default", "a", id, ask)
	if must(t, err); replayed.ID != again.ID || !replayed.Replayed || w.queuedRuns("a") != 1 {
		t.Errorf("the copy is answered with %+v", replayed)
	}

	// The ended run stays as it is, and the next one is another run.
	if got, err := w.Runs.Get(t.Context(), "default", "a", id); err != nil || got.State != task.Succeeded {
		t.Errorf("the ended run: %+v, %v", got, err)
	}
	next, err := w.Runs.Rerun(t.Context(), "default", "a", id, client.RerunRequest{Env: env})
	if must(t, err); next.ID == again.ID || w.queuedRuns("a") != 2 {
		t.Errorf("the second rerun is %s", next.ID)
	}
}

// The task may have changed since the run.
func TestRerun_RefusesInputsByName(t *testing.T) {
	w := newWorld(t)
	w.make("a", "@daily", func(s *task.Spec) { s.Accept = task.Accept{Env: []string{"A"}} })
	env := map[string]string{"A": "1"}

	for field, edit := range map[string]func(*task.Run){
		"env":    func(r *task.Run) { r.EnvNames = []string{"OLD"} },
		"args":   func(r *task.Run) { r.Args = []string{"x"} },
		"target": func(r *task.Run) { r.TargetNode = "node-a" },
	} {
		id := w.endedManual("a", edit)
		ask := client.RerunRequest{Env: env}
		if field == "env" {
			ask.Env = map[string]string{"OLD": "1"}
		}

		_, err := w.Runs.Rerun(t.Context(), "default", "a", id, ask)
		if e := wantError(t, err, task.ErrConflict, task.CodeNotAllowed); e.Field != field {
			t.Errorf("%s: field %q: %v", field, e.Field, err)
		}
	}
	if w.queuedRuns("a") != 0 {
		t.Error("a refused rerun is queued")
	}
}

func TestRerun_NeedsAWholeRunThatHasEnded(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	queued, err := w.Tasks.Trigger(t.Context(), "default", "a", nil)
	must(t, err)

	for what, id := range map[string]string{
		"waits":   queued.ID,
		"missed":  w.endedManual("a", func(r *task.Run) { r.State, r.Trigger = task.Missed, task.TriggerSchedule }),
		"skipped": w.endedManual("a", func(r *task.Run) { r.State, r.Trigger = task.Skipped, task.TriggerSchedule }),
	} {
		_, err := w.Runs.Rerun(t.Context(), "default", "a", id, client.RerunRequest{})
		if e := wantError(t, err, task.ErrConflict, client.CodeConflict); e.Hint == "" {
			t.Errorf("%s: %v has no hint", what, err)
		}
	}

	_, err = w.Runs.Rerun(t.Context(), "default", "a", w.endedManual("a", func(r *task.Run) { r.UID = "otherone" }), client.RerunRequest{})
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)
	_, err = w.Runs.Rerun(t.Context(), "default", "a", "2026", client.RerunRequest{})
	wantError(t, err, task.ErrConflict, client.CodeAmbiguous)
}

// A dead run has the values of its variables, also when the history no longer has the run. It stays dead.
func TestRerun_TakesTheVariablesOfADeadRun(t *testing.T) {
	w := newWorld(t)
	w.make("a", "@daily", func(s *task.Spec) { s.Accept.Env = []string{"A", "B"} })
	r := ref("default", "a")
	id := w.dead(r, "", 1)

	// Values of two users are never combined.
	_, err := w.Runs.Rerun(t.Context(), "default", "a", id, client.RerunRequest{Env: map[string]string{"B": "2"}})
	wantError(t, err, task.ErrConflict, client.CodeMissingEnv)

	again, err := w.Runs.Rerun(t.Context(), "default", "a", id, client.RerunRequest{})
	must(t, err)
	if q := w.queuedRecord("a", again.ID); !maps.Equal(q.Env, map[string]string{"A": "b"}) || q.RerunOf != id || q.RetryOf != "" {
		t.Errorf("queued %+v", q)
	}
	dead, err := w.store.DeadRuns(t.Context(), r)
	if must(t, err); len(dead) != 1 {
		t.Errorf("dead runs: %+v", dead)
	}
}

// Values that another user has given need the right to retry the run. Who may only trigger the task gives own values.
func TestRerun_NeedsRetryForKeptVariables(t *testing.T) {
	w := newWorld(t)
	w.make("a", "@daily", func(s *task.Spec) { s.Accept.Env = []string{"A", "B"} })
	id := w.dead(ref("default", "a"), "", 1)

	w.role("trigger-only", task.Rule{Verbs: []string{"trigger", "read"}, Objects: []string{"tasks"}}, task.Rule{Verbs: []string{"read"}, Objects: []string{"runs"}})
	w.bindRole("user:bob", "trigger-only", "default")
	bob := w.token("user:bob")
	rerun := func(body string) response {
		return w.do(request{method: "POST", path: "/v1/namespaces/default/tasks/a/runs/" + id + "/rerun", body: body, header: map[string]string{"Authorization": "Bearer " + bob}})
	}

	for body, status := range map[string]int{``: 403, `{"env": {}}`: 403, `{"env": {"B": "2"}}`: 409} {
		if r := rerun(body); r.status != status || w.queuedRuns("a") != 0 {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}

	run := triggered(t, rerun(`{"env": {"A": "1", "B": "2"}}`))
	if q := w.queuedRecord("a", run.ID); !maps.Equal(q.Env, map[string]string{"A": "1", "B": "2"}) {
		t.Errorf("queued %+v", q)
	}
}
