package api_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// dead adds a failed run to the dead runs of its task, as its node does.
func (w *world) dead(r record.Ref, uid string, minute int) string {
	w.t.Helper()
	st, err := w.store.Task(w.t.Context(), r)
	must(w.t, err)

	if uid == "" {
		uid = st.Task.UID
	}

	run := id(minute, uid)
	at, _ := task.TimeOfRunID(run)
	var env map[string]string
	if slices.Contains(st.Task.Accept.Env, "A") {
		env = map[string]string{"A": "b"}
	}

	w.put(w.store.Keys().DeadRun(r, run), task.Waiting{Env: env, Run: task.Run{
		UID: uid, State: task.Failed, Reason: task.ReasonExit, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule, Attempt: 3, Node: "node-a", Token: 7,
	}})

	return run
}

func TestDead_Lists(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	w.create("b", "@daily")
	_, err := w.Tasks.Create(ctx, "ops", spec("c", "@daily"))
	must(t, err)

	for _, minute := range []int{1, 3, 5, 7} {
		w.dead(ref("default", "a"), "", minute)
	}

	w.dead(ref("default", "b"), "", 4)
	w.dead(ref("ops", "c"), "", 6)
	w.ended("a", id(9, "aaaa"), task.Failed, nil) // not a dead run

	for want, f := range map[string]client.RunListOptions{
		"07:failed 06:failed 05:failed 04:failed 03:failed 01:failed": {Dead: true},
		"07:failed 05:failed 04:failed 03:failed 01:failed":           {Dead: true, Namespace: "default"},
		"07:failed 05:failed 03:failed 01:failed":                     {Dead: true, Namespace: "default", Task: "a"},
		"07:failed 05:failed":                                         {Dead: true, Namespace: "default", Task: "a", Limit: 2},
		"":                                                            {Dead: true, State: task.Lost},
	} {
		runs, err := w.Runs.List(ctx, f)
		if err != nil || told(runs) != want {
			t.Errorf("%+v: %s, %v", f, told(runs), err)
		}
	}

	// In pages, across several tasks and shards.
	all, page := "", ""
	for range 6 {
		res := w.do(request{method: "GET", path: "/v1/runs?dead=true&limit=1" + page})
		var l client.List[task.Run]
		must(t, json.Unmarshal([]byte(res.body), &l))
		all += told(l.Items) + " "
		page = "&page=" + l.Next
	}

	if all != "07:failed 06:failed 05:failed 04:failed 03:failed 01:failed " || page != "&page=" {
		t.Errorf("the pages are %s and then %q", all, page)
	}

	runs, err := w.Runs.ListByTask(ctx, "default", "a", client.RunListOptions{Dead: true, Limit: 1})
	if err != nil || told(runs) != "07:failed" {
		t.Errorf("%s, %v", told(runs), err)
	}

	wantError(t, second(w.Runs.ListByTask(ctx, "default", "none", client.RunListOptions{Dead: true})), task.ErrNotFound, client.CodeNotFound)
}

func TestRetry_QueuesARunInPlaceOfADeadOne(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.make("a", "@daily", func(s *task.Spec) { s.Accept.Env = []string{"A"} })
	one, two := w.dead(ref("default", "a"), "", 1), w.dead(ref("default", "a"), "", 2)
	got, err := w.Runs.Retry(ctx, "default", "a", one[:14])
	must(t, err)

	if got.RetryOf != one || got.Trigger != task.TriggerManual || got.State != task.Queued || got.ID == one || got.Attempt != 1 || got.Frozen != nil {
		t.Errorf("queued %+v", got)
	}

	q, err := w.store.Queue(ctx, ref("default", "a").Shard)
	must(t, err)

	if len(q) != 1 {
		t.Fatalf("wait %+v", q)
	}

	if wait, err := record.DecodeWaiting(q[0].ShardKey, q[0].Value); err != nil || wait.Env["A"] != "b" || wait.RetryOf != one {
		t.Errorf("waits %+v, %v", wait, err)
	}

	if left, _ := w.Runs.List(ctx, client.RunListOptions{Dead: true}); len(left) != 1 || left[0].ID != two {
		t.Errorf("dead are %s", told(left))
	}

	must(t, second(w.Freezes.Begin(ctx, "", "a move")))

	if got, err = w.Runs.Retry(ctx, "default", "a", two); err != nil || got.Frozen == nil {
		t.Errorf("while it is frozen: %+v, %v", got, err)
	}
}

// A retried run works for the time for which the dead run did, and knows what had started that.
func TestRetry_KeepsThePeriodAndTheCauses(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	tick, triggered := w.dead(ref("default", "a"), "", 1), w.dead(ref("default", "a"), "", 2)

	st, err := w.store.Task(ctx, ref("default", "a"))
	must(t, err)
	cause := task.Cause{Task: "etl", Run: "r1", State: task.Succeeded, Results: map[string]string{"rows": "7"}}
	at, _ := task.TimeOfRunID(triggered)
	period := task.At(at.Add(-24 * time.Hour))
	w.put(w.store.Keys().DeadRun(ref("default", "a"), triggered), task.Waiting{Run: task.Run{
		UID: st.Task.UID, State: task.Failed, Reason: task.ReasonExit, ScheduledTime: task.At(at), Trigger: task.TriggerAfter, Attempt: 1,
		Causation: task.Causation{Causes: []task.Cause{cause}, Period: period},
	}})

	again, err := w.Runs.Retry(ctx, "default", "a", tick)
	must(t, err)
	if was, _ := task.TimeOfRunID(tick); !again.Period.Equal(was) || again.Causes != nil {
		t.Errorf("the tick %s is retried with the period %s and the causes %+v", tick, again.Period, again.Causes)
	}

	again, err = w.Runs.Retry(ctx, "default", "a", triggered)
	must(t, err)
	if !again.Period.Equal(period.Time) || !reflect.DeepEqual(again.Causes, []task.Cause{cause}) {
		t.Errorf("the triggered run is retried with the period %s and the causes %+v", again.Period, again.Causes)
	}
}

// A retried run reports the pause in force, which the entry of the task has: the spec may have a pause that has ended, and
// has none if the task was paused for its failures.
func TestRetry_ReportsThePauseInForce(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	w.create("b", "@daily")

	must(t, second(w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{For: task.Duration(time.Minute)}, 0)))
	during, after := w.dead(ref("default", "a"), "", 1), w.dead(ref("default", "a"), "", 2)

	if got, err := w.Runs.Retry(ctx, "default", "a", during); err != nil || !got.Paused {
		t.Errorf("during the pause: %+v, %v", got, err)
	}

	w.clock.advance(2 * time.Minute)

	if got, err := w.Runs.Retry(ctx, "default", "a", after); err != nil || got.Paused {
		t.Errorf("after the pause: %+v, %v", got, err)
	}

	w.tooOften("b")

	if got, err := w.Runs.Retry(ctx, "default", "b", w.dead(ref("default", "b"), "", 1)); err != nil || !got.Paused {
		t.Errorf("after too many failures: %+v, %v", got, err)
	}
}

func TestRetryAndDismiss_OnlyOfDeadRuns(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	made := w.create("a", "@daily")
	good, old := id(1, made.UID), id(2, made.UID)
	w.ended("a", good, task.Succeeded, nil)
	w.ended("a", old, task.Failed, nil)

	if e := wantError(t, second(w.Runs.Retry(ctx, "default", "a", good)), task.ErrConflict, client.CodeConflict); !strings.Contains(e.Message, "it is succeeded, not dead") {
		t.Errorf("%s", e.Message)
	}

	if e := wantError(t, second(w.Runs.Dismiss(ctx, "default", "a", old)), task.ErrConflict, client.CodeConflict); !strings.Contains(e.Message, "no longer among the dead runs") {
		t.Errorf("%s", e.Message)
	}

	wantError(t, second(w.Runs.Retry(ctx, "default", "a", id(9, made.UID))), task.ErrNotFound, client.CodeNotFound)
	w.dead(ref("default", "a"), "former", 3) // of an earlier task with the same name
	wantError(t, second(w.Runs.Retry(ctx, "default", "a", id(3, "former"))), task.ErrNotFound, client.CodeNotFound)

	one := w.dead(ref("default", "a"), "", 4)
	if run, err := w.Runs.Dismiss(ctx, "default", "a", one); err != nil || run.ID != one {
		t.Errorf("%+v, %v", run, err)
	}

	wantError(t, second(w.Runs.Dismiss(ctx, "default", "a", one)), task.ErrNotFound, client.CodeNotFound)
	w.dead(ref("default", "a"), "", 5)
	w.dead(ref("default", "a"), "", 6)
	wantError(t, second(w.Runs.Dismiss(ctx, "default", "a", one[:10])), task.ErrConflict, client.CodeAmbiguous)
}
