package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// ended, waiting and active write a run where runs in that state are stored.
func (w *world) ended(name, id string, state task.State, edit func(*task.Run)) task.Run {
	w.t.Helper()
	at, ok := task.TimeOfRunID(id)
	if !ok {
		w.t.Fatalf("%s is not an id", id)
	}

	r := task.Run{State: state, ScheduledTime: task.At(at), EndedAt: task.At(at), Trigger: task.TriggerSchedule, Node: "node-a", Attempt: 1, Token: 7}

	if edit != nil {
		edit(&r)
	}

	w.put(w.store.Keys().Ended(ref("default", name), id), r)

	return r
}

func (w *world) waiting(name, id string, edit func(*task.Run)) {
	w.t.Helper()
	at, _ := task.TimeOfRunID(id)
	r := task.Waiting{Run: task.Run{State: task.Queued, Reason: task.ReasonOverlap, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule, Attempt: 1}}

	if edit != nil {
		edit(&r.Run)
	}

	w.put(w.store.Keys().Queued(ref("default", name), id), r)
}

func (w *world) active(node, name, id string) {
	w.t.Helper()
	at, _ := task.TimeOfRunID(id)
	r := task.Assigned{Run: task.Run{State: task.Running, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule, Attempt: 1}, Instance: "i"}
	w.put(w.store.Keys().Run(node, ref("default", name), id), r)
}

func id(minute int, suffix string) string {
	return task.RunID(time.Date(2026, 11, 20, 20, minute, 0, 0, time.UTC), suffix)
}

// runID returns the id of the run of a task's tick at a minute.
func (w *world) runID(ns, name string, minute int) string {
	w.t.Helper()
	st, err := w.store.Task(w.t.Context(), ref(ns, name))
	must(w.t, err)

	return id(minute, st.Task.UID)
}

// told summarizes runs: the minute of the tick, and the state.
func told(runs []task.Run) string {
	var s []string
	for _, r := range runs {
		s = append(s, fmt.Sprintf("%02d:%s", r.ScheduledTime.Minute(), r.State))
	}
	return strings.Join(s, " ")
}

func TestTrigger_QueuesARun(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	accepting := spec("a", "@daily")
	accepting.Accept.Env = []string{"FULL"}
	made, err := w.Tasks.Create(ctx, "default", accepting)
	must(t, err)
	w.clock.advance(time.Second)
	got, err := w.Tasks.Trigger(ctx, "default", "a", map[string]string{"FULL": "1"})
	must(t, err)

	if got.State != task.Queued || got.Reason != task.ReasonManual || got.Trigger != task.TriggerManual || got.Attempt != 1 ||
		got.UID != made.UID || got.Paused || !got.ScheduledTime.Equal(w.clock.now()) || !got.CreatedAt.Equal(w.clock.now()) {
		t.Errorf("triggered: %+v", got)
	}

	var stored task.Waiting
	_, value, _ := strings.Cut(w.dump()[w.store.Keys().Queued(ref("default", "a"), got.ID)], " ")
	must(t, json.Unmarshal([]byte(value), &stored))

	if stored.Env["FULL"] != "1" || stored.UID != made.UID || stored.State != task.Queued {
		t.Errorf("queued: %+v", stored)
	}

	run, err := w.Runs.Get(ctx, "default", "a", got.ID)
	must(t, err)

	if run.ID != got.ID || run.Task != "a" || run.Namespace != "default" {
		t.Errorf("read: %+v", run)
	}

	_, err = w.Tasks.Pause(ctx, "default", "a", 0)
	must(t, err)

	if r := w.do(request{method: "POST", path: "/v1/namespaces/default/tasks/a/trigger"}); r.status != 202 || !strings.Contains(r.body, `"paused":true`) {
		t.Errorf("without a body, paused: %d %s", r.status, r.body)
	}

	_, err = w.Tasks.Trigger(ctx, "default", "none", nil)
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)
}

// The number of manual runs that wait is limited. Waiting ticks do not count.
func TestTrigger_IsRefusedIfTooManyWait(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	made, err := w.Tasks.Create(ctx, "default", spec("a", "@daily"))
	must(t, err)
	_, err = w.Tasks.Create(ctx, "default", spec("ab", "@daily"))
	must(t, err)

	put := func(id string) string {
		key := w.store.Keys().Queued(ref("default", "a"), id)
		_, err := w.store.Client().Put(ctx, key, "{}")
		must(t, err)

		return key
	}

	var last string
	for i := range task.MaxManualWaiting {
		at := w.clock.now().Add(time.Duration(i) * time.Second)
		put(task.RunID(at, made.UID))
		last = put(task.ManualRunID(at, made.UID))
	}

	_, err = w.Tasks.Trigger(ctx, "default", "a", nil)
	wantError(t, err, task.ErrUnavailable, client.CodeQueueFull)
	_, err = w.Tasks.Trigger(ctx, "default", "ab", nil)
	must(t, err)

	_, err = w.store.Client().Delete(ctx, last)
	must(t, err)
	_, err = w.Tasks.Trigger(ctx, "default", "a", nil)
	must(t, err)
}

func TestTrigger_EntryRewrittenMeanwhile(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	k := w.store.Keys()
	rewrites := 0
	w.writes.set(func(kv.Txn) {
		if rewrites++; rewrites <= 3 { // an owner sets from
			w.put(k.Entry(ref("default", "a")), w.entry(ref("default", "a")))
		}
	}, nil)

	_, err := w.Tasks.Trigger(ctx, "default", "a", nil)
	must(t, err)

	if n := w.writes.committed(); n != 4 {
		t.Errorf("%d commits, want 4", n)
	}

	w.writes.set(func(kv.Txn) { w.put(k.Entry(ref("default", "a")), w.entry(ref("default", "a"))) }, nil)
	_, err = w.Tasks.Trigger(ctx, "default", "a", nil)
	wantError(t, err, task.ErrConflict, client.CodeConflict)

	if runs, err := w.Runs.ListByTask(ctx, "default", "a", client.RunListOptions{}); err != nil || len(runs) != 1 {
		t.Errorf("queued: %v, %v; want one run", runs, err)
	}
}

// What a restore has lost is found by its reason: ticks that were missed, and runs that were lost.
func TestRuns_ListsByReason(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	reason := func(name string) func(*task.Run) { return func(r *task.Run) { r.Reason = name } }
	w.ended("a", id(1, "aaaa"), task.Missed, reason(task.ReasonRestored))
	w.ended("a", id(2, "aaaa"), task.Missed, reason(task.ReasonNoOwner))
	w.ended("a", id(3, "aaaa"), task.Lost, reason(task.ReasonRestored))
	w.ended("a", id(4, "aaaa"), task.Succeeded, nil)
	w.waiting("a", id(5, "aaaa"), nil)

	for _, c := range []struct {
		f    client.RunListOptions
		want string
	}{
		{client.RunListOptions{Reason: task.ReasonRestored}, "03:lost 01:missed"},
		{client.RunListOptions{Reason: task.ReasonRestored, State: task.Missed}, "01:missed"},
		{client.RunListOptions{Reason: task.ReasonRestored, Since: time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)}, "03:lost 01:missed"},
		{client.RunListOptions{Reason: task.ReasonOverlap}, "05:queued"},
		{client.RunListOptions{Reason: task.ReasonTimeout}, ""},
	} {
		for where, list := range map[string]func() ([]task.Run, error){
			"of a":   func() ([]task.Run, error) { return w.Runs.ListByTask(ctx, "default", "a", c.f) },
			"of all": func() ([]task.Run, error) { return w.Runs.List(ctx, c.f) },
		} {
			got, err := list()
			must(t, err)
			if s := told(got); s != c.want {
				t.Errorf("runs %s, %+v: %s, want %s", where, c.f, s, c.want)
			}
		}
	}

	_, err := w.Runs.List(ctx, client.RunListOptions{Reason: "bad luck"})
	wantError(t, err, task.ErrInvalid, task.CodeBadValue)
}

func TestRuns_ListsAndPages(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	w.create("b", "@daily")
	w.create("empty", "@daily")
	w.ended("a", id(1, "aaaa"), task.Succeeded, nil)
	w.ended("a", id(2, "aaaa"), task.Failed, func(r *task.Run) { r.Node = "node-b" })
	w.ended("a", id(3, "aaaa"), task.Skipped, func(r *task.Run) { r.Node = "" })
	w.put(w.store.Keys().Late(ref("default", "a"), id(2, "aaaa"), 5), task.Run{State: task.Succeeded})
	w.put(w.store.Keys().Ended(ref("default", "a"), id(9, "aaaa")), "{nonsense")
	w.waiting("a", id(4, "aaaa"), nil)
	w.active("node-b", "a", w.runID("default", "a", 5))
	w.ended("b", id(2, "bbbb"), task.Succeeded, nil)
	w.active("node-a", "b", id(6, "bbbb"))

	for _, c := range []struct {
		f    client.RunListOptions
		want string
	}{
		{client.RunListOptions{}, "05:running 04:queued 03:skipped 02:failed 01:succeeded"},
		{client.RunListOptions{Limit: 2}, "05:running 04:queued"},
		{client.RunListOptions{State: task.Failed}, "02:failed"},
		{client.RunListOptions{State: "queued,running"}, "05:running 04:queued"},
		{client.RunListOptions{Node: "node-b"}, "05:running 02:failed"},
		{client.RunListOptions{State: task.Lost}, ""},
	} {
		got, err := w.Runs.ListByTask(ctx, "default", "a", c.f)
		must(t, err)
		if s := told(got); s != c.want {
			t.Errorf("runs of a, %+v: %s, want %s", c.f, s, c.want)
		}
	}

	for _, c := range []struct {
		f    client.RunListOptions
		want string
	}{
		{client.RunListOptions{}, "06:running 05:running 04:queued 03:skipped 02:succeeded 02:failed 01:succeeded"},
		{client.RunListOptions{Namespace: "default"}, "06:running 05:running 04:queued 03:skipped 02:succeeded 02:failed 01:succeeded"},
		{client.RunListOptions{Namespace: "other"}, ""},
		{client.RunListOptions{Namespace: "default", Task: "b"}, "06:running 02:succeeded"},
		{client.RunListOptions{State: task.Running}, "06:running 05:running"},
		{client.RunListOptions{State: task.Succeeded, Limit: 1}, "02:succeeded"},
	} {
		got, err := w.Runs.List(ctx, c.f)
		must(t, err)
		if s := told(got); s != c.want {
			t.Errorf("all runs, %+v: %s, want %s", c.f, s, c.want)
		}
	}

	for _, path := range []string{"/v1/runs", "/v1/namespaces/default/tasks/a/runs"} {
		whole, page, pages := []string{}, "", 0
		for {
			var l client.List[task.Run]
			must(t, json.Unmarshal([]byte(w.do(request{method: "GET", path: path + "?limit=2" + page}).body), &l))

			for _, r := range l.Items {
				whole = append(whole, r.Task+r.ID)
			}

			if pages++; l.Next == "" || pages > 9 {
				break
			}

			page = "&page=" + l.Next
		}

		var l client.List[task.Run]
		must(t, json.Unmarshal([]byte(w.do(request{method: "GET", path: path}).body), &l))

		if len(l.Items) != len(whole) || slices.ContainsFunc(l.Items, func(r task.Run) bool { return !slices.Contains(whole, r.Task+r.ID) }) {
			t.Errorf("%s: pages have %v, the whole has %d", path, whole, len(l.Items))
		}
	}

	if runs, err := w.Runs.ListByTask(ctx, "default", "empty", client.RunListOptions{}); err != nil || len(runs) != 0 {
		t.Errorf("a task without runs: %v, %v", runs, err)
	}

	_, err := w.Runs.ListByTask(ctx, "default", "none", client.RunListOptions{})
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)

	tasks, err := w.Tasks.List(ctx, client.TaskListOptions{})
	must(t, err)

	a := tasks[0]
	if a.Active != 1 || a.LastRun == nil || a.LastRun.State != task.Running || a.LastRun.Node != "node-b" || tasks[2].LastRun != nil {
		t.Errorf("tasks: %+v", tasks)
	}
}

func TestRun_ByBeginningOfID(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	w.create("b", "@daily")
	w.ended("a", id(1, "aaaa"), task.Succeeded, nil)
	w.ended("a", id(1, "aaaa")+"-wxyz", task.Succeeded, nil)
	w.ended("b", id(2, "bbbb"), task.Succeeded, nil)
	w.waiting("b", id(3, "bbbb"), nil)
	w.active("node-a", "b", id(4, "bbbb"))

	for _, name := range []string{id(1, "aaaa"), id(1, "aaaa") + "-w"} {
		got, err := w.Runs.Get(ctx, "default", "a", name)
		must(t, err)

		if !strings.HasPrefix(got.ID, name) || len(got.ID) > len(name)+3 {
			t.Errorf("%s: %s", name, got.ID)
		}

		found, err := w.Runs.Find(ctx, "default", name)
		must(t, err)

		if found.ID != got.ID || found.Task != "a" {
			t.Errorf("found %s: %+v", name, found)
		}
	}

	for n := 2; n <= 4; n++ {
		if got, err := w.Runs.Find(ctx, "default", id(n, "bbbb")[:15]); err != nil || got.ID != id(n, "bbbb") {
			t.Errorf("minute %d: %+v, %v", n, got, err)
		}
	}

	e := wantError(t, second(w.Runs.Get(ctx, "default", "a", "2026")), task.ErrConflict, client.CodeAmbiguous)
	if !strings.Contains(e.Message, id(1, "aaaa")) {
		t.Errorf("ambiguous: %v", e)
	}

	wantError(t, second(w.Runs.Find(ctx, "default", "2026")), task.ErrConflict, client.CodeAmbiguous)
	wantError(t, second(w.Runs.Get(ctx, "default", "a", "2027")), task.ErrNotFound, client.CodeNotFound)
	wantError(t, second(w.Runs.Find(ctx, "default", "2027")), task.ErrNotFound, client.CodeNotFound)
	wantError(t, second(w.Runs.Find(ctx, "other", id(1, "aaaa"))), task.ErrNotFound, client.CodeNotFound)
}

func second[T any](_ T, err error) error { return err }

func TestCancel(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	w.waiting("a", id(1, "aaaa"), nil)
	got, err := w.Runs.Cancel(ctx, "default", "a", id(1, "aaaa"))
	must(t, err)

	if got.State != task.Cancelled || got.CancelledBy.String() != w.actor() || got.Reason != task.ReasonCancelled {
		t.Errorf("cancelled: %+v", got)
	}

	e := wantError(t, second(w.Runs.Cancel(ctx, "default", "a", id(1, "aaaa"))), task.ErrConflict, client.CodeAlreadyEnded)
	if !strings.Contains(e.Message, "cancelled") {
		t.Errorf("cancelled twice: %v", e)
	}

	w.active("node-b", "a", id(2, "aaaa"))

	for range 2 {
		got, err = w.Runs.Cancel(ctx, "default", "a", id(2, "aaaa"))
		must(t, err)
		if got.State != task.Running || got.CancelledBy.String() != w.actor() {
			t.Errorf("asked to cancel: %+v", got)
		}
	}

	held, err := w.store.ActiveOf(ctx, ref("default", "a"))
	must(t, err)

	if len(held) != 1 || !held[0].CancelRequested {
		t.Errorf("active: %+v", held)
	}

	wantError(t, second(w.Runs.Cancel(ctx, "default", "a", id(9, "aaaa"))), task.ErrNotFound, client.CodeNotFound)

	// It moves from the queue to an inbox between our reads.
	w.waiting("a", id(3, "aaaa"), nil)
	moved := false
	w.writes.set(func(kv.Txn) {
		if !moved {
			moved = true
			_, err := w.etcd.Delete(ctx, w.store.Keys().Queued(ref("default", "a"), id(3, "aaaa")))
			must(t, err)
			w.active("node-b", "a", id(3, "aaaa"))
		}
	}, nil)

	got, err = w.Runs.Cancel(ctx, "default", "a", id(3, "aaaa")[:19])
	must(t, err)

	if got.State != task.Running || got.CancelledBy.String() != w.actor() {
		t.Errorf("cancelled on the move: %+v", got)
	}
}

// With If-Match, only the version of the task that the caller has seen is triggered.
func TestTrigger_OfAnotherVersionIsRefused(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@manual")
	before, err := w.Tasks.Get(t.Context(), "default", "a")
	must(t, err)
	after, err := w.Tasks.Pause(t.Context(), "default", "a", 0)
	must(t, err)

	if _, err := w.Tasks.TriggerWith(t.Context(), "default", "a", client.TriggerRequest{}, before.Revision); !errors.Is(err, task.ErrStale) {
		t.Errorf("the version before: %v", err)
	}
	if _, err := w.Tasks.TriggerWith(t.Context(), "default", "a", client.TriggerRequest{}, after.Revision); err != nil {
		t.Errorf("the present version: %v", err)
	}
	if _, err := w.Tasks.Trigger(t.Context(), "default", "a", nil); err != nil {
		t.Errorf("any version: %v", err)
	}
}
