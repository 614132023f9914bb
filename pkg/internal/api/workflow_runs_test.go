package api_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// runData returns the data of a run, or nil if there is none.
func (w *world) runData(name, run string) *task.RunData {
	w.t.Helper()
	res, err := w.etcd.Get(w.t.Context(), w.store.Keys().RunData(ref("default", name), run))
	must(w.t, err)
	if len(res.Kvs) == 0 {
		return nil
	}

	d, err := record.Decode[task.RunData](res.Kvs[0].Value)
	must(w.t, err)

	return &d
}

// activeFlow writes the record of a run of the task of makeWorkflow that is under way: extract has succeeded, one of the three items of
// load is on node-b, one failed and one is left.
func (w *world) activeFlow(name string, minute int) string {
	w.t.Helper()
	fan := w.makeWorkflow(name)
	run := w.runID("default", name, minute)

	openStep(fan, "extract", w.clock.now(), 1)
	openStep(fan, "load", w.clock.now(), 3)
	fan.Left = fan.Left[3:]
	w.waiting(name, run, func(r *task.Run) { r.State, r.Reason, r.Fan = task.Running, "", fan })
	w.ended(name, task.PartID(run, 0), task.Succeeded, nil)
	w.active("node-b", name, task.PartID(run, 1))
	w.ended(name, task.PartID(run, 2), task.Failed, nil)

	return run
}

// deadFlow writes a dead run of the task of makeWorkflow, with its data: item 1 of load failed.
func (w *world) deadFlow(name string, minute int, change func(*task.Waiting)) string {
	w.t.Helper()
	st, err := w.store.Task(w.t.Context(), ref("default", name))
	must(w.t, err)

	plan := task.NewPlan(st.Task)
	fan := &task.Fan{Flow: task.NewFlow(plan)}
	openStep(fan, "extract", w.clock.now(), 1)
	openStep(fan, "load", w.clock.now(), 3)
	openStep(fan, "clean", w.clock.now(), 1)
	fan.Left = nil
	for i, state := range []task.State{task.Succeeded, task.Succeeded, task.Failed, task.Succeeded, task.Succeeded} {
		fan.Parts = append(fan.Parts, task.Part{Index: i, State: state})
	}

	run := id(minute, st.Task.UID)
	at, _ := task.TimeOfRunID(run)
	dead := task.Waiting{Env: map[string]string{"DAY": "monday"}, Run: task.Run{
		UID: st.Task.UID, State: task.Failed, Reason: task.ReasonSteps, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule, Attempt: 1, FanOut: task.FanOut{Fan: fan},
	}}
	if change != nil {
		change(&dead)
	}

	r := ref("default", name)
	w.put(w.store.Keys().DeadRun(r, run), dead)
	w.put(w.store.Keys().RunData(r, run), task.RunData{Plan: *plan, Results: map[string]map[string]string{"extract": {"files": `["a","b","c"]`}, "pay": {"id": "7"}}})

	return run
}

func TestCancel_OfAWorkflowLeavesCleanupUnlessForced(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	run := w.activeFlow("a", 1)
	key := w.store.Keys().Queued(ref("default", "a"), run)

	cancel := func(force bool) task.Waiting {
		t.Helper()
		got, err := w.Runs.CancelWith(ctx, "default", "a", run, client.CancelOptions{Force: force})
		must(t, err)
		if got.ID != run || got.Unrecorded {
			t.Errorf("the answer is %+v", got)
		}
		return w.queuedRecord("a", run)
	}

	if q := cancel(false); q.Fan.Cancel != task.ReasonCancelled || q.Fan.Flow.Forced || q.CancelledBy.String() != w.actor() {
		t.Errorf("cancelled: %+v, %+v", q.Run, q.Fan)
	}

	// Clients repeat requests, so another cancel ends no more.
	before := w.dump()[key]
	if q := cancel(false); q.Fan.Flow.Forced || w.dump()[key] != before {
		t.Errorf("cancelled again: %+v", q.Fan.Flow)
	}

	if q := cancel(true); q.Fan.Cancel != task.ReasonCancelled || !q.Fan.Flow.Forced {
		t.Errorf("forced: %+v, %+v", q.Fan, q.Fan.Flow)
	}
	before = w.dump()[key]
	if cancel(true); w.dump()[key] != before {
		t.Error("forced again: the record has changed")
	}

	// At once with force.
	run = w.runID("default", "a", 2)
	fan := &task.Fan{Flow: &task.Flow{Steps: []task.FlowStep{{Name: "a", Kind: task.KindNoop}}}}
	w.waiting("a", run, func(r *task.Run) { r.State, r.Reason, r.Fan = task.Running, "", fan })
	if q := cancel(true); q.Fan.Cancel != task.ReasonCancelled || !q.Fan.Flow.Forced {
		t.Errorf("forced at once: %+v, %+v", q.Fan, q.Fan.Flow)
	}

	// The owner has cut the run because of its timeout: it stays the reason.
	fan.Cancel = task.ReasonTimeout
	w.waiting("a", run, func(r *task.Run) { r.State, r.Reason, r.Fan = task.Running, "", fan })
	if q := cancel(true); q.Fan.Cancel != task.ReasonTimeout || !q.Fan.Flow.Forced || q.CancelledBy != nil {
		t.Errorf("forced after a timeout: %+v, %+v", q.Fan, q.Fan.Flow)
	}

	// Force has no effect on other runs.
	w.create("plain", "@daily")
	w.waiting("plain", id(1, "aaaa"), func(r *task.Run) {
		r.State, r.Reason, r.Fan = task.Running, "", &task.Fan{Count: 2, Need: 2, Left: []int{1}}
	})
	if _, err := w.Runs.CancelWith(ctx, "default", "plain", id(1, "aaaa"), client.CancelOptions{Force: true}); err != nil {
		t.Error(err)
	}
	w.active("node-b", "plain", id(2, "aaaa"))
	if _, err := w.Runs.CancelWith(ctx, "default", "plain", id(2, "aaaa"), client.CancelOptions{Force: true}); err != nil {
		t.Error(err)
	}
}

// The record of the run changes for each part, so the cancel and the pause are decided again.
func TestCancel_OfAWorkflowWhoseOwnerWrites(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	run := w.activeFlow("a", 1)
	writes := 0
	w.writes.set(func(kv.Txn) {
		if writes++; writes%2 == 1 {
			q := w.queuedRecord("a", run)
			q.Fan.Ended++
			w.put(w.store.Keys().Queued(ref("default", "a"), run), q)
		}
	}, nil)

	_, err := w.Runs.Pause(ctx, "default", "a", run)
	must(t, err)
	_, err = w.Runs.Cancel(ctx, "default", "a", run)
	must(t, err)
	if q := w.queuedRecord("a", run); q.Fan.Cancel == "" || q.PausedAt.IsZero() || q.Fan.Ended < 2 {
		t.Errorf("%+v, %+v", q.Run, q.Fan)
	}
}

func TestPause_OfAWorkflowMarksItsRun(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	run := w.activeFlow("a", 1)
	key := w.store.Keys().Queued(ref("default", "a"), run)
	part := func() task.Assigned {
		t.Helper()
		held, err := w.store.ActiveOf(ctx, ref("default", "a"))
		must(t, err)
		return held[0].Assigned
	}

	paused := w.clock.now()
	for range 2 { // a repetition changes nothing
		got, err := w.Runs.Pause(ctx, "default", "a", run)
		must(t, err)
		if got.PausedAt.IsZero() || got.PausedBy.String() != w.actor() || got.State != task.Running {
			t.Errorf("paused: %+v", got)
		}
		if q := w.queuedRecord("a", run); !q.PausedAt.Equal(paused.Truncate(time.Millisecond)) || q.PausedBy.String() != w.actor() {
			t.Errorf("the record is %+v", q.Run)
		}
		w.clock.advance(time.Minute)
	}
	if !part().PauseRequested {
		t.Error("the part on a node is not paused")
	}
	if steps, err := w.Runs.Steps(ctx, "default", "a", run, client.StepsOptions{}); err != nil || steps.PausedAt.IsZero() || steps.PausedBy.String() != w.actor() {
		t.Errorf("the steps say %+v, %v", steps, err)
	}

	for range 2 {
		got, err := w.Runs.Resume(ctx, "default", "a", run)
		must(t, err)
		if !got.PausedAt.IsZero() || got.PausedBy != nil || got.PausedMS != 120_000 {
			t.Errorf("resumed: %+v", got.PauseState)
		}
	}
	if part().PauseRequested {
		t.Error("the part on a node is still paused")
	}

	// Between two steps, no part is on a node.
	_, err := w.etcd.Delete(ctx, w.store.Keys().Run("node-b", ref("default", "a"), task.PartID(run, 1)))
	must(t, err)
	if _, err := w.Runs.Pause(ctx, "default", "a", run); err != nil || w.queuedRecord("a", run).PausedAt.IsZero() {
		t.Errorf("paused between two steps: %v", err)
	}
	w.clock.advance(time.Second)
	if got, err := w.Runs.Resume(ctx, "default", "a", run); err != nil || got.PausedMS != 121_000 {
		t.Errorf("resumed between two steps: %+v, %v", got.PauseState, err)
	}

	// A run that is being cancelled is not paused.
	_, err = w.Runs.Cancel(ctx, "default", "a", run)
	must(t, err)
	before := w.dump()[key]
	wantError(t, second(w.Runs.Pause(ctx, "default", "a", run)), task.ErrConflict, client.CodeAlreadyEnded)
	if w.dump()[key] != before {
		t.Error("a refused pause changed the record")
	}

	// One that waits has no step that could be kept from beginning.
	w.waiting("a", w.runID("default", "a", 2), nil)
	wantError(t, second(w.Runs.Pause(ctx, "default", "a", w.runID("default", "a", 2))), task.ErrConflict, client.CodeNotRunning)
}

func TestRetry_OfAWorkflow(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.makeWorkflow("a")
	dead := w.deadFlow("a", 1, nil)
	plan := w.runData("a", dead).Plan

	// The steps are those with which the dead run began, whatever the task has now.
	_, err := w.Tasks.Patch(ctx, "default", "a", []byte(`{"action":{"workflow":{"steps":{"pay":null,"clean":{"needs":["load"]}}}}}`), 0)
	must(t, err)

	got, err := w.Runs.RetryFrom(ctx, "default", "a", dead, client.RetryOptions{IdempotencyKey: "k"})
	must(t, err)
	if got.RetryOf != dead || got.State != task.Queued || got.Fan == nil || got.Fan.Flow == nil || got.Fan.Flow.Retries != dead {
		t.Errorf("the answer is %+v, %+v", got, got.Fan)
	}

	q := w.queuedRecord("a", got.ID)
	steps := q.Fan.Flow.Steps
	if q.Env["DAY"] != "monday" || q.Fan.Count != 0 || len(steps) != 4 || !steps[0].IsKept || !reflect.DeepEqual(steps[1].Items, task.PartNumbers{1}) || steps[1].Kept != 2 || steps[2].Name != "pay" || steps[3].IsKept {
		t.Errorf("queued: %+v, %+v", q.Fan, q.Fan.Flow)
	}

	// The data of the new run have the plan, and the results of what is kept. Those of the dead run are gone with it.
	data := w.runData("a", got.ID)
	if data == nil || !reflect.DeepEqual(data.Plan, plan) || !reflect.DeepEqual(data.Results, map[string]map[string]string{"extract": {"files": `["a","b","c"]`}}) {
		t.Errorf("the data are %+v", data)
	}
	if w.runData("a", dead) != nil {
		t.Error("the data of the dead run are left")
	}

	// The same request again gives the same run. With another step it is another request.
	again, err := w.Runs.RetryFrom(ctx, "default", "a", dead, client.RetryOptions{IdempotencyKey: "k"})
	if err != nil || !again.Replayed || again.ID != got.ID {
		t.Errorf("again: %+v, %v", again, err)
	}
	wantError(t, second(w.Runs.RetryFrom(ctx, "default", "a", dead, client.RetryOptions{IdempotencyKey: "k", From: "load"})), nil, client.CodeKeyReused)

	// A run is retried once.
	wantError(t, second(w.Runs.Retry(ctx, "default", "a", dead)), nil, client.CodeNotFound)
}

// A task that never runs again is never trimmed, so nothing may be left for that.
func TestWorkflow_DataGoWithTheLastRecordOfARun(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.makeWorkflow("a")

	dead := w.deadFlow("a", 1, nil)
	_, err := w.Runs.Dismiss(ctx, "default", "a", dead)
	must(t, err)
	if w.runData("a", dead) != nil {
		t.Error("the data of a dismissed run are left")
	}

	retry, err := w.Runs.Retry(ctx, "default", "a", w.deadFlow("a", 2, nil))
	must(t, err)
	_, err = w.Runs.Cancel(ctx, "default", "a", retry.ID)
	must(t, err)

	// It has not begun, so it can be retried in place of the run that it was to retry.
	again, err := w.Runs.Retry(ctx, "default", "a", retry.ID)
	must(t, err)
	if w.runData("a", retry.ID) != nil || w.runData("a", again.ID) == nil {
		t.Error("the data have not gone to the next retry")
	}

	_, err = w.Runs.Cancel(ctx, "default", "a", again.ID)
	must(t, err)
	_, err = w.Runs.Dismiss(ctx, "default", "a", again.ID)
	must(t, err)
	if w.runData("a", again.ID) != nil {
		t.Error("the data of a retry that was cancelled before it began, and dismissed, are left")
	}
}

func TestRetry_OfAWorkflowFromAStep(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.makeWorkflow("a")
	dead := w.deadFlow("a", 1, nil)

	before := w.dump()
	e := wantError(t, second(w.Runs.RetryFrom(ctx, "default", "a", dead, client.RetryOptions{From: "extrakt"})), task.ErrInvalid, task.CodeBadValue)
	if e.Field != "from" || !strings.Contains(e.Message, "extract") || !reflect.DeepEqual(w.dump(), before) {
		t.Errorf("an unknown step: %+v", e)
	}

	got, err := w.Runs.RetryFrom(ctx, "default", "a", dead, client.RetryOptions{From: "extract"})
	must(t, err)
	for _, s := range w.queuedRecord("a", got.ID).Fan.Flow.Steps {
		if s.IsKept || s.Items != nil || s.Kept != 0 {
			t.Errorf("kept: %+v", s)
		}
	}
	if data := w.runData("a", got.ID); data == nil || data.Results != nil {
		t.Errorf("the data are %+v", data)
	}

	// A step is only for workflows.
	w.create("plain", "@daily")
	plain := w.dead(ref("default", "plain"), "", 1)
	wantError(t, second(w.Runs.RetryFrom(ctx, "default", "plain", plain, client.RetryOptions{From: "a"})), task.ErrConflict, client.CodeNoSteps)
}

// Cancelled runs of workflows are dead, too. What is not dead cannot be retried.
func TestRetry_OfCancelledWorkflows(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.makeWorkflow("a")
	cancelled := w.deadFlow("a", 1, func(d *task.Waiting) {
		d.State, d.Reason, d.Fan.Cancel = task.Cancelled, task.ReasonCancelled, task.ReasonCancelled
	})

	dead, err := w.Runs.ListByTask(ctx, "default", "a", client.RunListOptions{Dead: true})
	if err != nil || len(dead) != 1 || dead[0].State != task.Cancelled {
		t.Errorf("the dead runs are %+v, %v", dead, err)
	}
	all, err := w.Runs.List(ctx, client.RunListOptions{Dead: true})
	if err != nil || len(all) != 1 || len(all[0].Fan.Flow.Steps) != 0 {
		t.Errorf("all dead runs are %+v, %v", all, err)
	}

	if _, err := w.Runs.Retry(ctx, "default", "a", cancelled); err != nil {
		t.Error(err)
	}

	fan := &task.Fan{Cancel: task.ReasonCancelled, Flow: &task.Flow{Steps: []task.FlowStep{{Name: "a", Kind: task.KindNoop}}}}
	w.ended("a", w.runID("default", "a", 5), task.Cancelled, func(r *task.Run) { r.Fan = fan })
	e := wantError(t, second(w.Runs.Retry(ctx, "default", "a", w.runID("default", "a", 5))), task.ErrConflict, client.CodeConflict)
	if !strings.Contains(e.Message, "no longer among the dead runs") {
		t.Errorf("a run that was dismissed: %v", e)
	}
	w.ended("a", w.runID("default", "a", 6), task.Succeeded, func(r *task.Run) { r.Fan = fan })
	e = wantError(t, second(w.Runs.Retry(ctx, "default", "a", w.runID("default", "a", 6))), task.ErrConflict, client.CodeConflict)
	if !strings.Contains(e.Message, "is succeeded, not dead") {
		t.Errorf("a run that succeeded: %v", e)
	}
}

// Without the record of its steps, a run cannot be retried. Nothing is written.
func TestRetry_OfAWorkflowWithoutData(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.makeWorkflow("a")
	dead := w.deadFlow("a", 1, nil)
	_, err := w.etcd.Delete(ctx, w.store.Keys().RunData(ref("default", "a"), dead))
	must(t, err)

	before := w.dump()
	e := wantError(t, second(w.Runs.Retry(ctx, "default", "a", dead)), task.ErrConflict, client.CodeConflict)
	if !strings.Contains(e.Hint, "carillon task trigger a") || !reflect.DeepEqual(w.dump(), before) {
		t.Errorf("%v (%s)", e, e.Hint)
	}

	w.put(w.store.Keys().RunData(ref("default", "a"), dead), "{")
	if _, err := w.Runs.Retry(ctx, "default", "a", dead); err == nil {
		t.Error("retried with data that cannot be read")
	}

	// A run that ended before it began has no steps yet. Its retry has those of the task.
	early := w.deadFlow("a", 2, func(d *task.Waiting) { d.Fan = nil })
	got, err := w.Runs.Retry(ctx, "default", "a", early)
	if err != nil || got.Fan != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// If two retry a run at the same time, one new run is queued, and the data of no other are left.
func TestRetry_OfAWorkflowByTwo(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.makeWorkflow("a")
	dead := w.deadFlow("a", 1, nil)

	other, failed := "", error(nil)
	w.writes.set(func(kv.Txn) {
		if other == "" && failed == nil {
			other = "…"
			got, err := w.Runs.Retry(ctx, "default", "a", dead)
			other, failed = got.ID, err
		}
	}, nil)

	_, err := w.Runs.Retry(ctx, "default", "a", dead)
	if failed != nil || err == nil || errors.Is(err, task.ErrUnknown) {
		t.Fatalf("%v, %v", err, failed)
	}

	queued, data := 0, 0
	for key := range w.dump() {
		if strings.HasPrefix(key, w.store.Keys().QueueOf(ref("default", "a"))) {
			queued++
		}
		if strings.HasPrefix(key, w.store.Keys().RunDataOf(ref("default", "a"))) {
			data++
		}
	}
	if queued != 1 || data != 1 || w.runData("a", other) == nil {
		t.Errorf("%d runs are queued, %d have data", queued, data)
	}
}

// The answer about a thousand items is small, unless more are asked for.
func TestSteps_OfAThousandItems(t *testing.T) {
	w := newWorld(t)
	fan := w.makeWorkflow("a")
	openStep(fan, "load", w.clock.now(), 1000)
	for i := range 1000 {
		fan.Parts = append(fan.Parts, task.Part{Index: i, State: task.Succeeded, Node: "node-a", Attempt: 1, Token: 1 << 40, StartedAt: task.At(w.clock.now()), EndedAt: task.At(w.clock.now())})
	}
	fan.Left = nil
	run := w.runID("default", "a", 1)
	w.ended("a", run, task.Failed, func(r *task.Run) { r.Fan = fan })

	steps, err := w.Runs.Steps(t.Context(), "default", "a", run, client.StepsOptions{})
	must(t, err)
	if b, err := json.Marshal(steps); err != nil || len(b) > 10_000 || len(steps.Steps[1].Parts) != 20 {
		t.Errorf("%d bytes, %d parts, %v", len(b), len(steps.Steps[1].Parts), err)
	}
}

// While etcd is full, the nodes end the active parts of a workflow. Those that clean up go on, as after a cancel, unless forced.
//
// Verifies: G38
func TestFullEtcd_CancelOfAWorkflowLeavesCleanup(t *testing.T) {
	w := newFullWorld(t)
	run := w.activeFlow("f", 1)
	q := w.queuedRecord("f", run)
	openStep(q.Fan, "clean", w.clock.now(), 1)
	q.Fan.Left = nil
	w.put(w.store.Keys().Queued(ref("default", "f"), run), q)
	cleanup := task.PartID(run, q.Fan.Count-1)
	w.active("node-b", "f", cleanup)
	w.memory.SetFull(true)

	for force, want := range map[bool]string{false: task.PartID(run, 1), true: task.PartID(run, 1) + " " + cleanup} {
		_, err := w.Runs.CancelWith(t.Context(), "default", "f", run, client.CancelOptions{Force: force})
		e := wantError(t, err, task.ErrUnavailable, client.CodeNoSpace)

		var asked []string
		for _, c := range w.nodes["node-b"].taken() {
			asked = append(asked, strings.Split(strings.Split(c, " ")[0], "/")[2])
		}
		slices.Sort(asked)
		if got := strings.Join(asked, " "); e.Status != 507 || got != want {
			t.Errorf("force %t: status %d, the node was asked to end %s, want %s", force, e.Status, got, want)
		}
	}
}

// An edit changes nothing about a run that is active: it has the steps with which it began. A deletion leaves nothing of it, and nothing of
// another task is deleted.
func TestWorkflow_IsEditedAndDeletedWhileARunIsActive(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	run, other := w.activeFlow("a", 1), w.activeFlow("a-b", 1)
	keys := w.store.Keys()
	for name, id := range map[string]string{"a": run, "a-b": other} {
		st, err := w.store.Task(ctx, ref("default", name))
		must(t, err)
		w.put(keys.RunData(ref("default", name), id), task.RunData{Plan: *task.NewPlan(st.Task)})
	}
	dead := w.deadFlow("a", 2, nil)

	before := w.dump()
	_, err := w.Tasks.Patch(ctx, "default", "a", []byte(`{"action":{"workflow":null,"noop":{}}}`), 0)
	must(t, err)
	for _, key := range []string{keys.Queued(ref("default", "a"), run), keys.RunData(ref("default", "a"), run), keys.DeadRun(ref("default", "a"), dead)} {
		if w.dump()[key] != before[key] {
			t.Errorf("an edit of the task has changed %s", key)
		}
	}
	if steps, err := w.Runs.Steps(ctx, "default", "a", run, client.StepsOptions{}); err != nil || len(steps.Steps) != 4 {
		t.Errorf("after an edit, the run has %+v, %v", steps, err)
	}

	must(t, w.Tasks.Delete(ctx, "default", "a", 0))
	for key := range w.dump() {
		if strings.Contains(key, "/default/a/") && !strings.Contains(key, "/runs/") && !strings.Contains(key, "/deleted/") {
			t.Errorf("the deletion has left %s", key)
		}
	}
	for _, key := range []string{keys.Queued(ref("default", "a-b"), other), keys.RunData(ref("default", "a-b"), other)} {
		if w.dump()[key] != before[key] {
			t.Errorf("the deletion of another task has changed %s", key)
		}
	}
}
