package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// triggered returns the run in an answer.
func triggered(t *testing.T, r response) client.Triggered {
	t.Helper()
	if r.status != 202 {
		t.Fatalf("%d: %s", r.status, r.body)
	}

	var run client.Triggered
	must(t, json.Unmarshal([]byte(r.body), &run))

	return run
}

// trigger sends a trigger with an idempotency key as the token of secret.
func (w *world) trigger(name, secret, key, body string) response {
	w.t.Helper()
	return w.do(request{method: "POST", path: "/v1/namespaces/default/tasks/" + name + "/trigger", body: body,
		header: map[string]string{client.IdempotencyKeyHeader: key, "Authorization": "Bearer " + secret}})
}

// queuedRuns returns the number of waiting runs of a task.
func (w *world) queuedRuns(name string) (n int) {
	w.t.Helper()
	for key := range w.dump() {
		if strings.HasPrefix(key, w.store.Keys().QueueOf(ref("default", name))) {
			n++
		}
	}

	return n
}

func TestIdempotencyKey_TriggersOnce(t *testing.T) {
	w := newWorld(t)
	accepting := spec("a", "@daily")
	accepting.Accept.Env = []string{"FULL"}
	_, err := w.Tasks.Create(t.Context(), "default", accepting)
	must(t, err)
	w.create("b", "@daily")

	const body = `{"env": {"FULL": "1"}}`
	first := triggered(t, w.trigger("a", w.secret, "k1", body))
	if first.Replayed {
		t.Error("the first request is answered as a copy")
	}

	// Later, at another node, written differently, while the task has changed and does not accept the request any more.
	w.clock.advance(time.Minute)
	_, err = w.Tasks.Patch(t.Context(), "default", "a", []byte(`{"accept": {"env": []}}`), 0)
	must(t, err)
	w.url = w.serve("node-b")
	again := triggered(t, w.trigger("a", w.secret, "k1", `{"env":{"FULL":"1"}}`))
	if again.ID != first.ID || !again.Replayed || !again.CreatedBy.Equal(first.CreatedBy) || w.queuedRuns("a") != 1 {
		t.Errorf("the copy is answered with %+v, the first with %+v; %d runs are queued", again, first, w.queuedRuns("a"))
	}

	// The run has ended, and its record is not kept.
	_, err = w.etcd.Delete(t.Context(), w.store.Keys().Queued(ref("default", "a"), first.ID))
	must(t, err)
	again = triggered(t, w.trigger("a", w.secret, "k1", body))
	if again.ID != first.ID || !again.Replayed || !again.ScheduledTime.Equal(first.ScheduledTime.Time) || w.queuedRuns("a") != 0 {
		t.Errorf("the copy after the end is answered with %+v; %d runs are queued", again, w.queuedRuns("a"))
	}

	// Another body.
	if r := w.trigger("a", w.secret, "k1", `{"env": {"FULL": "2"}}`); r.status != 422 || r.Code != client.CodeKeyReused || r.Field != client.IdempotencyKeyHeader {
		t.Errorf("another body with the same key: %d %s", r.status, r.body)
	}

	// Another subject, another task, another key.
	w.bind("user:ben", "operator", "default")
	for what, r := range map[string]response{
		"another subject": w.trigger("a", w.token("user:ben"), "k1", ""),
		"another task":    w.trigger("b", w.secret, "k1", ""),
		"another key":     w.trigger("a", w.secret, "k2", ""),
	} {
		if run := triggered(t, r); run.Replayed || run.ID == first.ID {
			t.Errorf("%s: %+v", what, run)
		}
	}

	// Another token of the same subject.
	if run := triggered(t, w.trigger("a", w.token("user:ann"), "k1", body)); run.ID != first.ID {
		t.Errorf("with another token: %+v", run)
	}

	// Another task with the same name.
	must(t, w.Tasks.Delete(t.Context(), "default", "b", 0))
	w.create("b", "@daily")
	if run := triggered(t, w.trigger("b", w.secret, "k1", "")); run.Replayed {
		t.Errorf("the task was created again: %+v", run)
	}
}

// create sends the creation of a task with an idempotency key as the token of secret.
func (w *world) createOnce(secret, key, body string) response {
	w.t.Helper()
	return w.do(request{method: "POST", path: "/v1/namespaces/default/tasks", body: body,
		header: map[string]string{client.IdempotencyKeyHeader: key, "Authorization": "Bearer " + secret}})
}

// createdTask returns the task in an answer.
func createdTask(t *testing.T, r response) client.Task {
	t.Helper()
	if r.status != 201 {
		t.Fatalf("%d: %s", r.status, r.body)
	}

	var created client.Task
	must(t, json.Unmarshal([]byte(r.body), &created))

	return created
}

func TestIdempotencyKey_CreatesOnce(t *testing.T) {
	w := newWorld(t)
	// Its schedule is resolved to another time in each request.
	const body = `{"name": "a", "schedule": "@in 1h", "action": {"noop": {}}}`

	first := createdTask(t, w.createOnce(w.secret, "k", body))
	if first.Replayed {
		t.Error("the first request is answered as a copy")
	}

	// Later, at another node, written differently, while the task has changed.
	w.clock.advance(time.Minute)
	_, err := w.Tasks.Patch(t.Context(), "default", "a", []byte(`{"timeout": "5m"}`), 0)
	must(t, err)
	w.url = w.serve("node-b")
	again := createdTask(t, w.createOnce(w.secret, "k", `{"schedule":"@in 1h","action":{"noop":{}},"name":"a"}`))
	if again.UID != first.UID || !again.Replayed || again.Generation != 2 || again.Result != client.Created {
		t.Errorf("the copy is answered with %+v", again)
	}

	// Without a key, with another key, as another subject: the task exists.
	w.bind("user:ben", "operator", "default")
	w.bind("user:eve", "editor", "default")
	for what, r := range map[string]response{
		"another key":     w.createOnce(w.secret, "k2", body),
		"another subject": w.createOnce(w.token("user:eve"), "k", body),
	} {
		if r.status != 409 || r.Code != client.CodeExists {
			t.Errorf("%s: %d %s", what, r.status, r.body)
		}
	}
	if r := w.createOnce(w.token("user:ben"), "k", body); r.status != 403 {
		t.Errorf("a caller who may not create tasks: %d %s", r.status, r.body)
	}

	// The same key for something else, also with another name.
	for _, other := range []string{`{"name": "a", "schedule": "@in 2h", "action": {"noop": {}}}`, `{"name": "b", "schedule": "@in 1h", "action": {"noop": {}}}`} {
		if r := w.createOnce(w.secret, "k", other); r.status != 422 || r.Code != client.CodeKeyReused {
			t.Errorf("%s: %d %s", other, r.status, r.body)
		}
	}
	_, err = w.Tasks.Get(t.Context(), "default", "b")
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)

	// A copy that comes late must not bring back what was deleted.
	must(t, w.Tasks.Delete(t.Context(), "default", "a", 0))
	if r := w.createOnce(w.secret, "k", body); r.status != 409 || r.Code != client.CodeDeleted {
		t.Errorf("after the deletion: %d %s", r.status, r.body)
	}

	w.clock.advance(2 * time.Hour)
	n, _, err := w.store.SweepIdempotency(t.Context(), task.At(w.clock.now().Add(-time.Hour)), "", 1000)
	if must(t, err); n != 1 {
		t.Errorf("%d records were removed", n)
	}
	if again := createdTask(t, w.createOnce(w.secret, "k", body)); again.Replayed {
		t.Errorf("after the record was removed: %+v", again)
	}
}

func TestIdempotencyKey_CreationSurvivesARace(t *testing.T) {
	w := newWorld(t)
	other := w.client(w.serve("node-b"))

	var all sync.WaitGroup
	var mu sync.Mutex
	uids := map[string]int{}
	firsts := 0
	for i := range 12 {
		c := w.Client
		if i%2 == 1 {
			c = other
		}
		all.Go(func() {
			created, err := c.Tasks.CreateOnce(t.Context(), "default", spec("a", "@daily"), "k")
			mu.Lock()
			defer mu.Unlock()
			if uids[created.UID]++; err != nil {
				t.Error(err)
			}
			if !created.Replayed {
				firsts++
			}
		})
	}
	all.Wait()

	if len(uids) != 1 || firsts != 1 {
		t.Errorf("answers name %v; %d of them are no copies", uids, firsts)
	}
}

func TestIdempotencyKey_SurvivesARace(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	other := w.client(w.serve("node-b"))

	var all sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]int{}
	for i := range 12 {
		c := w.Client
		if i%2 == 1 {
			c = other
		}
		all.Go(func() {
			run, err := c.Tasks.TriggerWith(t.Context(), "default", "a", client.TriggerRequest{IdempotencyKey: "k"}, 0)
			mu.Lock()
			defer mu.Unlock()
			if ids[run.ID]++; err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()

	if len(ids) != 1 || w.queuedRuns("a") != 1 {
		t.Errorf("answers name %v; %d runs are queued", ids, w.queuedRuns("a"))
	}
}

// The client repeats a request whose answer is lost, whether etcd has executed it or not.
func TestIdempotencyKey_ResolvesAnUnknownOutcome(t *testing.T) {
	for _, executed := range []bool{true, false} {
		t.Run(fmt.Sprintf("create %t", executed), func(t *testing.T) {
			w := newWorld(t)
			w.writes.Committer = &lossy{Committer: w.writes.Committer, executes: executed}

			created, err := w.Tasks.CreateOnce(t.Context(), "default", spec("a", "@daily"), "")
			must(t, err)
			if created.Replayed != executed || created.Name != "a" {
				t.Errorf("got %+v", created)
			}
		})
	}

	for _, operation := range []string{"trigger", "retry"} {
		for _, executed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s %t", operation, executed), func(t *testing.T) {
				w := newWorld(t)
				w.create("a", "@daily")
				dead := w.dead(ref("default", "a"), "", 1)

				w.writes.Committer = &lossy{Committer: w.writes.Committer, executes: executed}

				do := func() (client.Triggered, error) { return w.Tasks.Trigger(t.Context(), "default", "a", nil) }
				if operation == "retry" {
					do = func() (client.Triggered, error) { return w.Runs.Retry(t.Context(), "default", "a", dead) }
				}
				run, err := do()
				must(t, err)

				if run.Replayed != executed || w.queuedRuns("a") != 1 || operation == "retry" && run.RetryOf != dead {
					t.Errorf("got %+v; %d runs are queued", run, w.queuedRuns("a"))
				}
			})
		}
	}
}

func TestIdempotencyKey_RetriesOnce(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	dead, other := w.dead(ref("default", "a"), "", 1), w.dead(ref("default", "a"), "", 2)

	first, err := w.Runs.RetryWith(t.Context(), "default", "a", dead, "k")
	must(t, err)
	again, err := w.Runs.RetryWith(t.Context(), "default", "a", dead, "k")
	must(t, err)
	if again.ID != first.ID || !again.Replayed || again.RetryOf != dead || w.queuedRuns("a") != 1 {
		t.Errorf("the copy is answered with %+v, the first with %+v", again, first)
	}

	_, err = w.Runs.RetryWith(t.Context(), "default", "a", other, "k")
	wantError(t, err, task.ErrInvalid, client.CodeKeyReused)
	_, err = w.Tasks.TriggerWith(t.Context(), "default", "a", client.TriggerRequest{IdempotencyKey: "k"}, 0)
	wantError(t, err, task.ErrInvalid, client.CodeKeyReused)
}

func TestIdempotencyKey_IsChecked(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")

	for key, ok := range map[string]bool{
		"x": true, `"8e03978e-40d5-43dd-bc93-6894a57f9324"`: true, strings.Repeat("x", 255): true, strings.Repeat("x", 256): false, "ü": false,
		" ": false, "a\tb": false, // the first one arrives empty
	} {
		if r := w.trigger("a", w.secret, key, ""); (r.status == 202) != ok || !ok && (r.status != 422 || r.Field != client.IdempotencyKeyHeader) {
			t.Errorf("%s: %d %s", key, r.status, r.body)
		}
	}

	// A route that cannot keep the promise refuses the header.
	r := w.do(request{method: "POST", path: "/v1/namespaces/default/tasks/a/pause", header: map[string]string{client.IdempotencyKeyHeader: "x"}})
	if r.status != 422 || r.Field != client.IdempotencyKeyHeader {
		t.Errorf("pause: %d %s", r.status, r.body)
	}

	// A viewer learns nothing of the requests of others.
	w.bind("user:vera", "viewer", "default")
	if r := w.trigger("a", w.token("user:vera"), "x", ""); r.status != 403 {
		t.Errorf("a viewer: %d %s", r.status, r.body)
	}
}

func TestIdempotencyKey_IsForgottenAfterAnHour(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	first := triggered(t, w.trigger("a", w.secret, "k", ""))

	for _, c := range []struct {
		age     time.Duration
		removed int
	}{{59 * time.Minute, 0}, {2 * time.Minute, 1}} {
		w.clock.advance(c.age)
		n, _, err := w.store.SweepIdempotency(t.Context(), task.At(w.clock.now().Add(-time.Hour)), "", 1000)
		if must(t, err); n != c.removed {
			t.Errorf("%d records were removed, want %d", n, c.removed)
		}
	}

	if run := triggered(t, w.trigger("a", w.secret, "k", "")); run.ID == first.ID || run.Replayed {
		t.Errorf("got %+v", run)
	}
}

// lossy loses the answer to the first commit, and also the commit itself unless executes is set.
type lossy struct {
	kv.Committer
	executes, lost bool
}

func (l *lossy) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	if l.lost {
		return l.Committer.Commit(ctx, t)
	}

	l.lost = true
	if l.executes {
		if _, err := l.Committer.Commit(ctx, t); err != nil {
			return kv.Result{}, err
		}
	}

	return kv.Result{}, errLost
}

// A task may have got secrets since its creation. Who may not read it does not see them.
func TestIdempotencyKey_CreationShowsOnlyWhatTheCallerMayRead(t *testing.T) {
	w := newWorld(t)
	w.role("creator", task.Rule{Verbs: []string{"create"}, Objects: []string{"tasks"}})
	w.bindRole("service:ci", "creator", "default")
	ci := w.token("service:ci")

	const body = `{"name": "a", "schedule": "@daily", "action": {"noop": {}}}`
	first := createdTask(t, w.createOnce(ci, "k", body))
	_, err := w.Tasks.Patch(t.Context(), "default", "a", []byte(`{"labels": {"changed": "later"}}`), 0)
	must(t, err)

	r := w.createOnce(ci, "k", body)
	again := createdTask(t, r)
	if again.UID != first.UID || again.Name != "a" || again.Namespace != "default" || !again.Replayed || again.Generation != 0 || strings.Contains(r.body, "later") || strings.Contains(r.body, "@daily") {
		t.Errorf("the copy is answered with %s", r.body)
	}

	w.bind("service:ci", "viewer", "default")
	if again = createdTask(t, w.createOnce(ci, "k", body)); again.Generation != 2 || again.Labels["changed"] != "later" {
		t.Errorf("with the right to read: %+v", again)
	}
}
