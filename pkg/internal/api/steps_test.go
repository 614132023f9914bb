package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// withSteps gives a task the steps extract, load (a map), pay and clean.
func withSteps(s *task.Spec) {
	s.Accept.Env = []string{"DAY"}
	s.Action = task.Action{Workflow: &task.Workflow{Steps: map[string]task.Step{
		"extract": {Process: &task.Process{Command: []string{"extract"}}},
		"load":    {Needs: []string{"extract"}, Map: "${steps.extract.results.files}", MaxParallel: 2, Process: &task.Process{Command: []string{"load"}, Env: map[string]string{"FILE": "${item}"}}},
		"pay":     {Needs: []string{"load"}, Noop: &task.Noop{}},
		"clean":   {Needs: []string{"load", "pay"}, When: task.WhenAlways, Timeout: task.Duration(time.Minute), Noop: &task.Noop{}},
	}}}
}

// makeWorkflow creates a task with the steps of withSteps, and returns the state of a run that begins.
func (w *world) makeWorkflow(name string) *task.Fan {
	w.t.Helper()
	w.make(name, "@daily", withSteps)

	st, err := w.store.Task(w.t.Context(), ref("default", name))
	must(w.t, err)

	return &task.Fan{Flow: task.NewFlow(task.NewPlan(st.Task))}
}

// openStep gives a step its parts.
func openStep(f *task.Fan, name string, at time.Time, parts int) {
	i := slices.IndexFunc(f.Flow.Steps, func(s task.FlowStep) bool { return s.Name == name })
	s := &f.Flow.Steps[i]
	s.OpenedAt, s.First, s.Count = task.At(at), f.Count, parts

	for range parts {
		f.Left = append(f.Left, f.Count)
		f.Count++
	}
}

// describeSteps summarizes steps: the state, the reason and its cause, the numbers, and the parts.
func describeSteps(steps client.RunSteps) string {
	var lines []string
	for _, s := range steps.Steps {
		line := fmt.Sprintf("%s %s %d/%d/%d", s.Name, strings.Join(slices.DeleteFunc([]string{s.State, s.Reason, s.Cause}, func(s string) bool { return s == "" }), ":"), s.Items, s.Ended, s.Succeeded)
		if s.Kept > 0 {
			line += fmt.Sprint(" kept ", s.Kept)
		}
		for _, p := range s.Parts {
			line += fmt.Sprintf(" %s=%s", p.Name, p.State)
		}
		lines = append(lines, line)
	}

	return strings.Join(lines, "\n")
}

func TestSteps_ShowEachStepOfARun(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	fan := w.makeWorkflow("a")
	run := w.runID("default", "a", 1)

	show := func(o client.StepsOptions) client.RunSteps {
		t.Helper()
		steps, err := w.Runs.Steps(ctx, "default", "a", run, o)
		must(t, err)
		return steps
	}
	wantSteps := func(o client.StepsOptions, want ...string) {
		t.Helper()
		if got := describeSteps(show(o)); got != strings.Join(want, "\n") {
			t.Errorf("%+v:\n%s\nwant:\n%s", o, got, strings.Join(want, "\n"))
		}
	}
	write := func(edit func(*task.Run)) {
		w.waiting("a", run, func(r *task.Run) {
			st, err := w.store.Task(ctx, ref("default", "a"))
			must(t, err)
			r.UID = st.Task.UID
			edit(r)
		})
	}

	// A run that waits has the steps of the task.
	write(func(*task.Run) {})
	wantSteps(client.StepsOptions{}, "extract waiting 0/0/0", "load waiting:extract 0/0/0", "pay waiting:load 0/0/0", "clean waiting:load 0/0/0")

	// Of a run that is active, the records of parts are in several places.
	opened := w.clock.now()
	openStep(fan, "extract", opened, 1)
	openStep(fan, "load", opened, 5)
	fan.Left = fan.Left[4:] // items 3 and 4 of load have not begun
	write(func(r *task.Run) { r.State, r.Reason, r.Fan = task.Running, "", fan })

	w.ended("a", task.PartID(run, 0), task.Succeeded, nil)
	w.active("node-b", "a", task.PartID(run, 1))
	w.ended("a", task.PartID(run, 2), task.Failed, func(r *task.Run) { r.Message = "exit code 1" })
	w.ended("a", task.PartID(run, 3), task.Succeeded, nil)

	wantSteps(client.StepsOptions{},
		"extract succeeded 1/1/1 extract=succeeded",
		"load running 5/2/1 load/1=failed load/0=running load/2=succeeded load/3=queued load/4=queued",
		"pay skipped:stopped:load 0/0/0",
		"clean waiting:load 0/0/0")
	wantSteps(client.StepsOptions{Step: "load", Items: 2, Offset: 1}, "load running 5/2/1 load/0=running load/2=succeeded")
	wantSteps(client.StepsOptions{Step: "load/2"}, "load running 5/2/1 load/2=succeeded")
	wantSteps(client.StepsOptions{Step: "load/5"}, "load running 5/2/1")

	load := show(client.StepsOptions{}).Steps[1]
	failed := load.Parts[0]
	if failed.Run != task.PartID(run, 2) || *failed.Item != 1 || failed.Message != "exit code 1" || failed.Node != "node-a" || failed.EndedAt.IsZero() ||
		!load.OpenedAt.Equal(opened.Truncate(time.Millisecond)) || !load.EndedAt.IsZero() || load.MaxParallel != 2 || !load.Map || load.Kind != "process" || load.When != "succeeded" || load.Needs[0] != "extract" {
		t.Errorf("load: %+v", load)
	}

	// A part is found by its step.
	for step, want := range map[string]int{"extract": 0, "load/1": 2, "load/4": 5} {
		if part, err := w.Runs.StepPart(ctx, "default", "a", run, step); err != nil || part.Run != task.PartID(run, want) {
			t.Errorf("%s: %+v, %v", step, part, err)
		}
	}
	for step, code := range map[string]string{"load": task.CodeBadValue, "pay": client.CodeNoSteps, "load/9": client.CodeNoSteps, "loaf": task.CodeBadValue, "extract/0": task.CodeBadValue, "load/01": task.CodeBadValue} {
		if _, err := w.Runs.StepPart(ctx, "default", "a", run, step); errorCode(err) != code {
			t.Errorf("%s: %v, want %s", step, err, code)
		}
	}

	// The record of an ended run contains how its parts ended. What it lacks never began.
	ended := *fan
	ended.Cancel, ended.Left = task.ReasonCancelled, nil
	for i, state := range []task.State{task.Succeeded, task.Cancelled, task.Failed, task.Succeeded} {
		ended.Parts = append(ended.Parts, task.Part{Index: i, State: state, EndedAt: task.At(opened.Add(time.Duration(i) * time.Second))})
	}
	openStep(&ended, "clean", opened, 1)
	ended.Parts = append(ended.Parts, task.Part{Index: 6, State: task.Succeeded})

	over := w.runID("default", "a", 2)
	w.ended("a", over, task.Cancelled, func(r *task.Run) { r.Fan = &ended })
	run = over
	wantSteps(client.StepsOptions{},
		"extract succeeded 1/1/1 extract=succeeded",
		"load failed 5/3/1 load/1=failed load/0=cancelled load/2=succeeded load/3=queued load/4=queued",
		"pay skipped:stopped:load 0/0/0",
		"clean succeeded 1/1/1 clean=succeeded")
	if load := show(client.StepsOptions{}).Steps[1]; !load.EndedAt.Equal(opened.Add(3 * time.Second).Truncate(time.Millisecond)) {
		t.Errorf("load ended at %s", load.EndedAt)
	}
}

// A retry shows what it keeps, and the indexes that its items had.
func TestSteps_OfARetry(t *testing.T) {
	w := newWorld(t)
	fan := w.makeWorkflow("a")
	run := w.runID("default", "a", 1)

	fan.Flow.Retries = "earlier"
	fan.Flow.Steps[0].IsKept, fan.Flow.Steps[0].Kept = true, 1
	fan.Flow.Steps[1].Items, fan.Flow.Steps[1].Kept = task.PartNumbers{17, 204}, 998
	openStep(fan, "load", w.clock.now(), 2)
	w.waiting("a", run, func(r *task.Run) { r.State, r.Reason, r.Fan = task.Running, "", fan })

	steps, err := w.Runs.Steps(t.Context(), "default", "a", run, client.StepsOptions{})
	must(t, err)
	want := "extract succeeded 0/0/0 kept 1\nload running 2/0/0 kept 998 load/17=queued load/204=queued\npay waiting:load 0/0/0\nclean waiting:load 0/0/0"
	if got := describeSteps(steps); got != want || steps.Retries != "earlier" {
		t.Errorf("%s\nof %s, want:\n%s", got, steps.Retries, want)
	}

	part, err := w.Runs.StepPart(t.Context(), "default", "a", run, "load/204")
	if err != nil || part.Run != task.PartID(run, 1) {
		t.Errorf("load/204: %+v, %v", part, err)
	}
}

// Runs without steps are refused, with a code of their own.
func TestSteps_OfOtherRuns(t *testing.T) {
	w := newWorld(t)
	w.create("plain", "@daily")
	w.makeWorkflow("a")

	w.ended("plain", id(1, "aaaa"), task.Failed, func(r *task.Run) {
		r.Fan = &task.Fan{Count: 1, Need: 1, Parts: []task.Part{{State: task.Failed}}}
	})
	w.waiting("plain", id(2, "aaaa"), nil)
	w.ended("a", id(3, "aaaa"), task.Cancelled, nil)
	w.waiting("a", id(4, "aaaa"), nil) // of a task that was deleted and created again

	for _, c := range []struct{ name, run string }{
		{"plain", id(1, "aaaa")}, {"plain", task.PartID(id(1, "aaaa"), 0)}, {"plain", id(2, "aaaa")}, {"a", id(3, "aaaa")}, {"a", id(4, "aaaa")},
	} {
		_, err := w.Runs.Steps(t.Context(), "default", c.name, c.run, client.StepsOptions{})
		if errorCode(err) != client.CodeNoSteps {
			t.Errorf("%s %s: %v", c.name, c.run, err)
		}
	}
}

// Lists of runs stay small, whatever a workflow has.
func TestRuns_ListsSayLittleOfSteps(t *testing.T) {
	w := newWorld(t)
	fan := w.makeWorkflow("a")
	openStep(fan, "load", w.clock.now(), 1000)
	w.waiting("a", id(1, "aaaa"), func(r *task.Run) { r.State, r.Reason, r.Fan = task.Running, "", fan })

	runs, err := w.Runs.ListByTask(t.Context(), "default", "a", client.RunListOptions{})
	must(t, err)
	if f := runs[0].Fan; f.Count != 1000 || f.Flow == nil || len(f.Flow.Steps) != 0 {
		t.Errorf("the list says %+v", f)
	}
}
