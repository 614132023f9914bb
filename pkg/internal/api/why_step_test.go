package api_test

import (
	"errors"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The API explains a step of a run that waits, and of one that has ended.
func TestWhy_ExplainsAStepOfARun(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	fan := w.makeWorkflow("a")
	run := w.runID("default", "a", 1)

	st, err := w.store.Task(ctx, ref("default", "a"))
	must(t, err)
	w.waiting("a", run, func(r *task.Run) { r.UID = st.Task.UID })

	explain := func(step, zone string) task.Answer {
		t.Helper()
		a, err := w.Runs.Why(ctx, "default", "a", run, step, zone)
		must(t, err)
		return a
	}
	if a := explain("load", ""); a.Verdict != task.VerdictWaiting || a.Sentence != "Step load waits for step extract, which waits: its run has not begun yet." {
		t.Errorf("%s: %s", a.Verdict, a.Sentence)
	}

	// extract has failed before it began.
	fan.Flow.Steps[0].Reason, fan.Flow.Steps[0].Message = task.ReasonValues, "no value"
	run = w.runID("default", "a", 2)
	at, _ := task.TimeOfRunID(run)
	w.put(w.store.Keys().Ended(ref("default", "a"), run), task.Run{UID: st.Task.UID, State: task.Failed, Reason: task.ReasonSteps, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule,
		EndedAt: task.At(at), FanOut: task.FanOut{Fan: fan}})

	if a := explain("load", "Europe/Berlin"); a.Verdict != task.VerdictSkipped || a.Reason != task.ReasonStopped || a.Asked.Timezone != "Europe/Berlin" ||
		a.Sentence != "Step load did not begin, because on_failure is stop and step extract could not begin: no value." {
		t.Errorf("%s, %s, %s: %s", a.Verdict, a.Reason, a.Asked.Timezone, a.Sentence)
	}

	for step, want := range map[string]string{"": task.CodeRequired, "lod": task.CodeBadValue, "pay/1": task.CodeBadValue} {
		_, err := w.Runs.Why(ctx, "default", "a", run, step, "")
		var e *client.Error
		if !errors.As(err, &e) || e.Code != want || e.Field != "step" {
			t.Errorf("step %q: %v, want %s", step, err, want)
		}
	}
	if _, err := w.Runs.Why(ctx, "default", "a", run, "load", "Mars"); err == nil {
		t.Error("an unknown zone is accepted")
	}
}
