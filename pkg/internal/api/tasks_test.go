package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestTask_Lifecycle(t *testing.T) {
	w, ctx := newWorld(t), t.Context()

	made := w.create("backup", "30 2 * * *")
	if made.Generation != 1 || made.UID == "" || made.UpdatedBy.String() != w.actor() || made.Revision == 0 || made.Result != client.Created {
		t.Errorf("created: %+v", made)
	}

	if want := time.Date(2026, 11, 21, 2, 30, 0, 0, time.UTC); !made.Next.Equal(want) || made.LeftMS != want.Sub(w.clock.now()).Milliseconds() {
		t.Errorf("next is %v in %d ms, want %v", made.Next, made.LeftMS, want)
	}

	e := w.entry(ref("default", "backup"))
	if !e.From.Equal(w.clock.now()) || !e.Anchor.Equal(w.clock.now()) || e.UID != made.UID {
		t.Errorf("entry: %+v", e)
	}

	_, err := w.Tasks.Create(ctx, "default", spec("backup", "@daily"))
	wantError(t, err, task.ErrExists, client.CodeExists)

	got, err := w.Tasks.Get(ctx, "default", "backup")
	must(t, err)

	if got.Revision != made.Revision || got.UID != made.UID || got.Active != 0 || got.LastRun != nil {
		t.Errorf("got %+v", got)
	}

	w.clock.advance(time.Minute)
	s := spec("backup", "30 2 * * *")
	s.Description = "Dumps the orders"
	changed, err := w.Tasks.Apply(ctx, s, client.ApplyOptions{})
	must(t, err)

	if changed.Result != client.Configured || changed.Generation != 2 || changed.UID != made.UID || changed.Revision <= made.Revision ||
		!changed.CreatedAt.Equal(made.CreatedAt.Time) || !changed.UpdatedAt.Equal(w.clock.now()) {
		t.Errorf("applied: %+v", changed)
	}

	before := w.dump()
	again, err := w.Tasks.Apply(ctx, s, client.ApplyOptions{})
	must(t, err)

	if again.Result != client.Unchanged || again.Revision != changed.Revision || !maps.Equal(before, w.dump()) {
		t.Errorf("applied the same again: %+v", again)
	}

	must(t, w.Tasks.Delete(ctx, "default", "backup", 0))
	wantError(t, w.Tasks.Delete(ctx, "default", "backup", 0), task.ErrNotFound, client.CodeNotFound)
	_, err = w.Tasks.Get(ctx, "default", "backup")
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)

	reborn, err := w.Tasks.Apply(ctx, s, client.ApplyOptions{CreateOnly: true})
	must(t, err)

	if reborn.Result != client.Created || reborn.UID == made.UID {
		t.Errorf("created again: %+v", reborn)
	}

	_, err = w.Tasks.Apply(ctx, s, client.ApplyOptions{CreateOnly: true})
	wantError(t, err, task.ErrExists, client.CodeExists)
	_, err = w.Tasks.Apply(ctx, spec("other", "@daily"), client.ApplyOptions{Revision: 5})
	wantError(t, err, task.ErrStale, client.CodeStale)
}

func TestChange_FromAndAnchor(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("tick", "@every 90s")
	born := w.clock.now()
	at := func(what string, from, anchor time.Time) {
		t.Helper()
		e := w.entry(ref("default", "tick"))
		if !e.From.Equal(from) || !e.Anchor.Equal(anchor) {
			t.Errorf("%s: from %v, anchor %v; want %v, %v", what, e.From, e.Anchor, from, anchor)
		}
	}

	patch := func(p string) client.Task {
		t.Helper()
		w.clock.advance(10 * time.Minute)
		got, err := w.Tasks.Patch(ctx, "default", "tick", []byte(p), 0)
		must(t, err)

		return got
	}

	patch(`{"timeout": "5m"}`)
	at("another timeout", born, born)

	if got := patch(`{"paused": true}`); !got.Next.IsZero() || !got.Paused {
		t.Errorf("paused, yet next is %v", got.Next)
	}

	at("paused", born, born)
	patch(`{"paused": null}`)
	resumed := w.clock.now()
	at("resumed by a patch", resumed, born)
	patch(`{"timezone": "Europe/Berlin"}`)
	moved := w.clock.now()
	at("another zone", moved, moved)
	w.clock.advance(-time.Hour) // the clock was wrong, but from never goes back
	got, err := w.Tasks.Patch(ctx, "default", "tick", []byte(`{"schedule": "@every 2m"}`), 0)
	must(t, err)
	at("another schedule", moved, w.clock.now())

	if !got.Next.After(moved) {
		t.Errorf("next is %v, at or before %v, up to which all is decided", got.Next, moved)
	}

	for range 2 {
		got, err := w.Tasks.Pause(ctx, "default", "tick", 0)
		must(t, err)
		if !got.Paused || got.Generation != 7 {
			t.Errorf("paused: %v, generation %d, want 7", got.Paused, got.Generation)
		}
	}

	w.clock.advance(3 * time.Hour)

	for range 2 {
		got, err := w.Tasks.Resume(ctx, "default", "tick", 0)
		must(t, err)
		if got.Paused || got.Generation != 8 {
			t.Errorf("resumed: paused %v, generation %d, want 8", got.Paused, got.Generation)
		}
	}

	if e := w.entry(ref("default", "tick")); !e.From.Equal(w.clock.now()) {
		t.Errorf("resumed: from is %v, want now", e.From)
	}
}

func TestPatch_MergesAndResets(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	s := spec("p", "@daily")
	s.Retry.Attempts, s.Retry.Backoff, s.Labels = 5, task.Duration(time.Minute), map[string]string{"team": "data", "env": "prod"}
	s.Missed.Limit = 7
	_, err := w.Tasks.Create(ctx, "default", s)
	must(t, err)
	got, err := w.Tasks.Patch(ctx, "default", "p", []byte(
		`{"retry": {"backoff": null, "jitter": 0}, "labels": {"env": null, "tier": "1"}, "missed": null, "schedule": ["@hourly", "@daily"], "namespace": "default", "action": {"process": null, "noop": {}}}`), 0)
	must(t, err)

	if got.Retry.Attempts != 5 || got.Retry.Backoff != task.Defaults().Retry.Backoff || got.Retry.Jitter != 0 {
		t.Errorf("retry: %+v", got.Retry)
	}

	if !maps.Equal(got.Labels, map[string]string{"team": "data", "tier": "1"}) || got.Missed != task.Defaults().Missed {
		t.Errorf("labels %v, missed %+v", got.Labels, got.Missed)
	}

	if !slices.Equal(got.Schedule, []string{"@hourly", "@daily"}) || got.Action.Process != nil || got.Action.Noop == nil {
		t.Errorf("schedule %v, action %+v", got.Schedule, got.Action)
	}

	same, err := w.Tasks.Patch(ctx, "default", "p", []byte(`{}`), got.Revision)
	must(t, err)

	if same.Revision != got.Revision || same.Result != client.Unchanged {
		t.Errorf("an empty patch: %+v", same)
	}
}

func TestIfMatch_StaleChangesNothing(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	old := w.create("a", "@daily")
	now, err := w.Tasks.Patch(ctx, "default", "a", []byte(`{"description": "x"}`), old.Revision)
	must(t, err)
	before := w.dump()
	_, err = w.Tasks.Patch(ctx, "default", "a", []byte(`{"description": "y"}`), old.Revision)
	wantError(t, err, task.ErrStale, client.CodeStale)
	_, err = w.Tasks.Apply(ctx, spec("a", "@hourly"), client.ApplyOptions{Revision: old.Revision})
	wantError(t, err, task.ErrStale, client.CodeStale)
	_, err = w.Tasks.Pause(ctx, "default", "a", old.Revision)
	wantError(t, err, task.ErrStale, client.CodeStale)
	_, err = w.Tasks.Resume(ctx, "default", "a", old.Revision)
	wantError(t, err, task.ErrStale, client.CodeStale)

	e := wantError(t, w.Tasks.Delete(ctx, "default", "a", old.Revision), task.ErrStale, client.CodeStale)
	if e.Status != http.StatusPreconditionFailed || !strings.Contains(e.Message, fmt.Sprint(now.Revision)) {
		t.Errorf("stale: %+v", e)
	}

	if !maps.Equal(before, w.dump()) {
		t.Error("a stale change changed something")
	}

	r := w.do(request{method: "GET", path: "/v1/namespaces/default/tasks/a"})
	if got, want := r.header.Get("ETag"), fmt.Sprintf("\"%d\"", now.Revision); got != want {
		t.Errorf("ETag is %s, want %s", got, want)
	}

	must(t, w.Tasks.Delete(ctx, "default", "a", now.Revision))
}

func TestList_PagesSelectorsNamespaces(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.namespace(store.OpenNamespace("test-1"))

	for i := range 7 {
		s := spec(fmt.Sprintf("t%d", i), "@daily")
		s.Labels = map[string]string{"odd": fmt.Sprint(i%2 == 1)}
		_, err := w.Tasks.Create(ctx, []string{"test", "test-1"}[i/5], s)
		must(t, err)
	}

	names := func(o client.TaskListOptions) string {
		t.Helper()
		tasks, err := w.Tasks.List(ctx, o)
		must(t, err)

		var s []string
		for _, x := range tasks {
			s = append(s, x.Namespace+"/"+x.Name)
		}

		return strings.Join(s, " ")
	}

	for _, c := range []struct {
		o    client.TaskListOptions
		want string
	}{
		{client.TaskListOptions{}, "test-1/t5 test-1/t6 test/t0 test/t1 test/t2 test/t3 test/t4"},
		{client.TaskListOptions{Namespace: "test"}, "test/t0 test/t1 test/t2 test/t3 test/t4"},
		{client.TaskListOptions{Namespace: "test-1"}, "test-1/t5 test-1/t6"},
		{client.TaskListOptions{Namespace: "ops"}, ""},
		{client.TaskListOptions{Query: "selector:\"odd = true\""}, "test-1/t5 test/t1 test/t3"},
		{client.TaskListOptions{Query: "selector:\"odd = true\"", Limit: 2}, "test-1/t5 test/t1"},
	} {
		if got := names(c.o); got != c.want {
			t.Errorf("%+v: %s, want %s", c.o, got, c.want)
		}
	}

	if r := w.do(request{method: "GET", path: "/v1/namespaces/ops/tasks"}); r.body != `{"items":[]}`+"\n" {
		t.Errorf("an empty list is %s", r.body)
	}

	// In pages. A cursor is not valid for other requests.
	walk := func(path string, size int) (seen []string, tokens []string) {
		t.Helper()
		page := ""
		for {
			sep := "?"
			if strings.Contains(path, "?") {
				sep = "&"
			}

			r := w.do(request{method: "GET", path: fmt.Sprintf("%s%slimit=%d%s", path, sep, size, page)})
			var l client.List[client.Task]
			must(t, json.Unmarshal([]byte(r.body), &l))

			for _, x := range l.Items {
				seen = append(seen, x.Name)
			}

			if len(l.Items) > size {
				t.Errorf("a page of %d has %d items", size, len(l.Items))
			}

			if l.Next == "" {
				return seen, tokens
			}

			tokens, page = append(tokens, l.Next), "&page="+l.Next
		}
	}

	for _, size := range []int{1, 2, 3, 5, 7, 10} {
		if seen, _ := walk("/v1/tasks", size); strings.Join(seen, "") != "t5t6t0t1t2t3t4" {
			t.Errorf("pages of %d: %v", size, seen)
		}

		if seen, _ := walk("/v1/tasks?q=selector:odd%3Dtrue", size); strings.Join(seen, "") != "t5t1t3" {
			t.Errorf("selected, pages of %d: %v", size, seen)
		}
	}

	_, tokens := walk("/v1/namespaces/test/tasks", 2)
	token := tokens[0]
	for _, path := range []string{
		"/v1/tasks?page=" + token, "/v1/namespaces/test-1/tasks?page=" + token,
		"/v1/namespaces/test/tasks?q=selector:odd&page=" + token, "/v1/namespaces/test/tasks?page=" + token + "x",
		"/v1/namespaces/test/tasks?page=" + token[1:], "/v1/namespaces/test/tasks?page=", "/v1/namespaces/test/tasks?page=%2F",
		"/v1/runs?page=" + token,
	} {
		if r := w.do(request{method: "GET", path: path}); r.status != 422 || r.Code != client.CodeBadPage || r.Field != "page" {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

// Verifies: G19
func TestUnreadableRecords_HurtOnlyThemselves(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	k := w.store.Keys()

	for _, name := range []string{"bad-spec", "bad-entry", "good", "no-entry", "orphan"} {
		w.create(name, "@hourly")
	}

	w.put(k.Spec(ref("default", "bad-spec")), `{"uid": "u", "retry": 7, "name": "bad-spec"}`)
	w.put(k.Entry(ref("default", "bad-entry")), `{"from": 7}`)
	_, err := w.etcd.Delete(ctx, k.Entry(ref("default", "no-entry")))
	must(t, err)
	_, err = w.etcd.Delete(ctx, k.Spec(ref("default", "orphan")))
	must(t, err)

	tasks, err := w.Tasks.List(ctx, client.TaskListOptions{})
	must(t, err)

	if len(tasks) != 4 || !strings.HasPrefix(tasks[1].Description, "unreadable") || tasks[1].Name != "bad-spec" || tasks[2].Next.IsZero() {
		t.Errorf("listed: %+v", tasks)
	}

	_, err = w.Tasks.Get(ctx, "default", "bad-spec")
	wantError(t, err, nil, client.CodeUnreadable)
	got, err := w.Tasks.Get(ctx, "default", "bad-entry")
	must(t, err)

	if !got.Next.IsZero() {
		t.Errorf("a task that does not fire is next at %v", got.Next)
	}

	_, err = w.Tasks.Trigger(ctx, "default", "no-entry", nil)
	wantError(t, err, nil, client.CodeUnreadable)

	for _, name := range []string{"bad-entry", "no-entry"} { // writing the same spec again repairs it
		w.clock.advance(time.Minute)
		mended, err := w.Tasks.Apply(ctx, spec(name, "@hourly"), client.ApplyOptions{})
		must(t, err)

		e := w.entry(ref("default", name))
		if mended.Result != client.Configured || mended.Next.IsZero() || !e.From.Equal(w.clock.now()) || e.UID != mended.UID {
			t.Errorf("mended: %+v, entry %+v", mended, e)
		}
	}

	for _, name := range []string{"bad-spec", "bad-entry", "no-entry", "orphan", "good"} {
		if err := w.Tasks.Delete(ctx, "default", name, 0); err != nil {
			t.Errorf("delete %s: %v", name, err)
		}
	}

	for key := range w.dump() {
		if strings.Contains(key, "/tasks/") {
			t.Errorf("%s is left", key)
		}
	}
}

func TestClock_NotTrustedSetsNoFrom(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@hourly")
	w.badTime = fmt.Errorf("it is 1 h ahead of the other nodes")
	_, err := w.Tasks.Create(ctx, "default", spec("b", "@hourly"))
	wantError(t, err, task.ErrUnavailable, client.CodeClock)
	_, err = w.Tasks.Patch(ctx, "default", "a", []byte(`{"schedule": "@daily"}`), 0)
	wantError(t, err, task.ErrUnavailable, client.CodeClock)
	_, err = w.Tasks.Pause(ctx, "default", "a", 0)
	must(t, err)
	_, err = w.Tasks.Resume(ctx, "default", "a", 0)
	wantError(t, err, task.ErrUnavailable, client.CodeClock)
}

func TestNextAndKeys(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	s := spec("gap", "30 2 * * *")
	s.Timezone = "Europe/Berlin"
	_, err := w.Tasks.Create(ctx, "default", s)
	must(t, err)
	_, err = w.Tasks.Pause(ctx, "default", "gap", 0)
	must(t, err)
	from := time.Date(2027, 3, 27, 12, 0, 0, 0, time.UTC)
	next, err := w.Ticks.ListByTask(ctx, "default", "gap", 2, from)
	must(t, err)

	if len(next) != 2 || next[0].Local != "2027-03-28T03:00:00.000+02:00" || next[0].Note != "gap" || next[1].Note != "" {
		t.Errorf("over the gap: %+v", next)
	}

	if next, err = w.Ticks.ListByTask(ctx, "default", "gap", 0, time.Time{}); err != nil || len(next) != 5 {
		t.Errorf("by default: %v, %v", next, err)
	}

	ask := client.ScheduleRequest{Schedule: task.Schedules{"@every 90s"}, Count: 2, From: task.At(from)}
	every, err := w.Ticks.ListBySchedule(ctx, ask)
	must(t, err)

	if len(every) != 2 || !every[0].Time.Equal(from.Add(90*time.Second)) {
		t.Errorf("every: %+v", every)
	}

	keys, err := w.Tasks.ListKeys(ctx, "default", "gap")
	must(t, err)

	present := 0
	for _, k := range keys.Items {
		if k.Present {
			present++
			if !slices.ContainsFunc(slices.Collect(maps.Keys(w.dump())), func(key string) bool { return strings.HasPrefix(key, k.Key) }) {
				t.Errorf("%s is not there", k.Key)
			}
		}
	}

	if present != 4 || // spec, entry, watermark, versions
		!strings.Contains(keys.Command, "etcdctl get "+w.store.Keys().Spec(ref("default", "gap"))) {
		t.Errorf("keys: %+v", keys)
	}

	_, err = w.Tasks.ListKeys(ctx, "default", "none")
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)
}

// The answer to a create reads no history, queue or inbox, because the task was created by this request.
func TestCreate_AnswersFromWhatItWrote(t *testing.T) {
	var reads atomic.Int32
	etcd := kvtest.Memory(t)
	etcd.KV = etcdhook.KV(etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		if op.IsGet() || op.IsTxn() {
			reads.Add(1)
		}
		return next(ctx, op)
	})

	w := newWorldOn(t, etcd)
	w.create("warm", "0 * * * *") // the token is cached from now on

	before := reads.Load()
	got := w.create("new", "0 * * * *")
	took := reads.Load() - before

	if got.State != client.TaskOK || got.Next.IsZero() || got.Active != 0 || got.LastRun != nil || got.Result != client.Created {
		t.Errorf("the answer: %+v", got)
	}

	if took > 2 { // the write, and the freezes
		t.Errorf("%d reads and writes; want the write, and one read of the freezes", took)
	}

	_, err := w.Freezes.Begin(t.Context(), "default", "a test")
	must(t, err)

	if got := w.create("frozen", "0 * * * *"); got.State != client.TaskFrozen {
		t.Errorf("in a frozen namespace: state %q", got.State)
	}
}
