package api_test

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// own writes what a task's owner records, into the entry as the owner does.
func (w *world) own(name string, edit func(*task.Entry)) {
	w.t.Helper()
	r := ref("default", name)

	e := w.entry(r)
	if e.Own == nil {
		e.Own = &task.Own{}
	}

	edit(&e)
	w.put(w.store.Keys().Entry(r), e)
}

// tooOften pauses a task as its owner does after too many failures.
func (w *world) tooOften(name string) {
	w.t.Helper()
	w.own(name, func(e *task.Entry) {
		e.Paused, e.Own.Failures, e.Own.Counted = true, 3, 99
		e.Own.Pauses = append(e.Own.Pauses, task.Pause{Since: task.At(w.clock.now()), By: task.NewActor(task.PausedByFailures), Reason: "3 runs in a row failed"})
	})
}

func (w *world) get(name string) client.Task {
	w.t.Helper()
	got, err := w.Tasks.Get(w.t.Context(), "default", name)
	must(w.t, err)

	return got
}

func TestPause_ReasonAuthorAndEnd(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	made := w.create("a", "@every 1h")
	start := w.clock.now()
	until := task.At(start.Add(90 * time.Minute))
	_, err := w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{Until: until, Reason: "migration"}, made.Revision+1)
	wantError(t, err, task.ErrStale, client.CodeStale)
	got, err := w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{Until: until, Reason: "migration"}, made.Revision)
	must(t, err)

	want := task.Pause{Since: task.At(start), By: w.actorRecord(), Reason: "migration", Until: until}
	if !got.Paused || got.Pause == nil || !got.Pause.Equal(want) || got.Change != task.ChangePaused || !got.Next.Equal(start.Add(2*time.Hour)) {
		t.Errorf("paused: %+v, next %v", got.Pause, got.Next)
	}

	if e := w.entry(ref("default", "a")); e.Pause() == nil || !e.Pause().Equal(want) {
		t.Errorf("the entry knows of %+v", e.Own)
	}

	next, err := w.Ticks.ListByTask(ctx, "default", "a", 1, time.Time{})
	if err != nil || !next[0].Time.Equal(start.Add(2*time.Hour)) {
		t.Errorf("next of a task whose pause ends: %v, %v", next, err)
	}

	// A second pause changes the fields that are given. The record contains both users.
	w.clock.advance(10 * time.Minute)
	before := w.dump()
	if _, err = w.Tasks.Pause(ctx, "default", "a", 0); err != nil || !maps.Equal(before, w.dump()) {
		t.Errorf("paused already: %v", err)
	}

	got, err = w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{For: task.Duration(20 * time.Minute)}, 0)
	must(t, err)

	if end := start.Add(30 * time.Minute); got.Pause.Reason != "migration" || !got.Pause.Until.Equal(end) || !got.PausedUntil.Equal(end) {
		t.Errorf("paused anew: %+v", got.Pause)
	}

	pauses := w.entry(ref("default", "a")).Own.Pauses
	if len(pauses) != 2 || !pauses[0].Ended.Equal(w.clock.now()) || pauses[0].EndedBy.String() != w.actor() {
		t.Errorf("pauses: %+v", pauses)
	}

	// Other writes keep it.
	w.clock.advance(time.Minute)
	got, err = w.Tasks.Patch(ctx, "default", "a", []byte(`{"timeout": "1m"}`), 0)
	if must(t, err); got.Pause == nil || got.Pause.Reason != "migration" || len(w.entry(ref("default", "a")).Own.Pauses) != 2 {
		t.Errorf("after another write: %+v", got.Pause)
	}

	// The pause ends after its last instant, even if nothing is written.
	w.clock.advance(19 * time.Minute)

	if got = w.get("a"); !got.Paused {
		t.Errorf("the pause ended before its end")
	}

	w.clock.advance(time.Millisecond)

	if got = w.get("a"); got.Paused || got.Pause != nil || got.PauseReason != "" || !got.PausedUntil.IsZero() || !got.Next.Equal(start.Add(time.Hour)) {
		t.Errorf("after its end: %+v", got)
	}

	if run, err := w.Tasks.Trigger(ctx, "default", "a", nil); err != nil || run.Paused {
		t.Errorf("triggered: %+v, %v", run, err)
	}

	before = w.dump()
	s := spec("a", "@every 1h")
	s.Timeout = task.Duration(time.Minute)
	if got, err = w.Tasks.Apply(ctx, s, client.ApplyOptions{}); err != nil || got.Result != client.Unchanged || !maps.Equal(before, w.dump()) {
		t.Errorf("applied without a change: %s, %v", got.Result, err)
	}

	// The next write clears it. Ticks during the pause that are not yet decided do not run: from becomes the end
	// of the pause.
	w.clock.advance(time.Hour)
	_, err = w.Tasks.Patch(ctx, "default", "a", []byte(`{"timeout": "2m"}`), 0)
	must(t, err)
	st, err := w.store.Task(ctx, ref("default", "a"))
	must(t, err)

	if e := st.Entry; st.Task.Paused || !st.Task.PausedUntil.IsZero() || e.Paused || !e.From.Equal(start.Add(30*time.Minute)) || len(e.Own.Pauses) != 2 {
		t.Errorf("cleared: %+v", e)
	}
}

func TestResume_BeforeTheEndAndAfter(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@every 1m")
	start := w.clock.now()
	pause := func() {
		_, err := w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{For: task.Duration(time.Hour)}, 0)
		must(t, err)
	}

	pause()
	w.clock.advance(30 * time.Minute)
	got, err := w.Tasks.Resume(ctx, "default", "a", 0)
	must(t, err)

	e := w.entry(ref("default", "a"))
	if got.Paused || !e.From.Equal(w.clock.now()) || e.Own.Pauses[0].EndedBy.String() != w.actor() || got.Change != task.ChangeResumed {
		t.Errorf("before the end: %+v", e)
	}

	pause()
	w.clock.advance(3 * time.Hour)
	got, err = w.Tasks.Resume(ctx, "default", "a", 0)
	must(t, err)

	if e = w.entry(ref("default", "a")); !e.From.Equal(start.Add(30 * time.Minute)) {
		t.Errorf("after the end there is nothing to resume: from %v", e.From)
	}

	if got.Result != client.Unchanged || got.Paused {
		t.Errorf("resumed: %+v", got)
	}

	for range 8 {
		_, err = w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{Reason: task.NewUID()}, 0)
		must(t, err)
	}

	if n := len(w.entry(ref("default", "a")).Own.Pauses); n != task.KeepPauses {
		t.Errorf("%d pauses are remembered", n)
	}
}

// A pause that the owner began after too many failures is shown, survives unrelated changes, and is ended by
// resume.
func TestPause_AfterFailures(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	s := spec("a", "@every 1h")
	s.PauseAfter = 3
	_, err := w.Tasks.Create(ctx, "default", s)
	must(t, err)
	w.tooOften("a")

	got := w.get("a")
	if !got.Paused || got.PauseReason != "3 runs in a row failed" || !got.Pause.By.Is(task.PausedByFailures) || !got.Next.IsZero() || got.Failures != 3 {
		t.Fatalf("shown: %+v", got)
	}

	if run, err := w.Tasks.Trigger(ctx, "default", "a", nil); err != nil || !run.Paused {
		t.Errorf("triggered: %+v, %v", run, err)
	}

	before := w.dump()
	unchanged := func(what string, got client.Task, err error) {
		t.Helper()
		if must(t, err); got.Result != client.Unchanged || !got.Paused || !maps.Equal(before, w.dump()) {
			t.Errorf("%s: %s, paused %v", what, got.Result, got.Paused)
		}
	}

	got, err = w.Tasks.Apply(ctx, s, client.ApplyOptions{})
	unchanged("applied as its file has it", got, err)
	got, err = w.Tasks.Apply(ctx, w.get("a").Spec, client.ApplyOptions{})
	unchanged("applied as it is shown", got, err)
	got, err = w.Tasks.Pause(ctx, "default", "a", 0)
	unchanged("paused already", got, err)

	s.Timeout = task.Duration(time.Minute)

	got, err = w.Tasks.Apply(ctx, s, client.ApplyOptions{})
	if must(t, err); !got.Paused || got.Failures != 3 || !got.Pause.By.Is(task.PausedByFailures) {
		t.Errorf("applied with another timeout: %+v", got.Pause)
	}

	w.clock.advance(time.Hour)

	for what, resume := range map[string]func() (client.Task, error){
		"resume":          func() (client.Task, error) { return w.Tasks.Resume(ctx, "default", "a", 0) },
		"paused is false": func() (client.Task, error) { return w.Tasks.Patch(ctx, "default", "a", []byte(`{"paused": false}`), 0) },
		"paused is unset": func() (client.Task, error) { return w.Tasks.Patch(ctx, "default", "a", []byte(`{"paused": null}`), 0) },
	} {
		got, err = resume()
		must(t, err)
		e := w.entry(ref("default", "a"))
		last := e.Own.Pauses[len(e.Own.Pauses)-1]
		if got.Paused || e.Paused || e.Own.Failures != 0 || e.Own.Counted != 99 || !e.From.Equal(w.clock.now()) || last.EndedBy.String() != w.actor() {
			t.Errorf("%s: %+v, %+v", what, e, e.Own)
		}

		w.tooOften("a")
	}

	// A user pauses it again. From then on it is a manual pause, and the count starts again.
	got, err = w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{Reason: "I look"}, 0)
	if must(t, err); got.Pause.By.String() != w.actor() || got.Failures != 0 {
		t.Errorf("taken over: %+v", got.Pause)
	}

	got, err = w.Tasks.Apply(ctx, s, client.ApplyOptions{})
	if must(t, err); got.Paused {
		t.Error("a file that says nothing of a pause by hand ends it")
	}
}

// A file without paused ends a manual pause, and one with it begins one. A user's pause that has expired is
// still in the spec: writing over it does not end a pause that the owner has begun since.
func TestPause_AfterFailuresThatFollowsAUsers(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	s := spec("a", "@every 1m")
	s.PauseAfter = 3
	_, err := w.Tasks.Create(ctx, "default", s)
	must(t, err)
	_, err = w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{For: task.Duration(time.Hour)}, 0)
	must(t, err)
	w.clock.advance(2 * time.Hour)
	w.tooOften("a")

	got, err := w.Tasks.Patch(ctx, "default", "a", []byte(`{"timeout": "1m"}`), 0)
	if must(t, err); !got.Paused || !got.Pause.By.Is(task.PausedByFailures) || got.Failures != 3 {
		t.Errorf("after another write: %+v", got)
	}
}

// Ticks that passed after the maximum number of runs was reached are not caught up. If the maximum is raised,
// the task ticks from then on.
func TestMaxRuns_RaisedCountsFromThenOn(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	s := spec("a", "@every 1m")
	s.MaxRuns = 2

	for _, patch := range []string{`{"max_runs": 5}`, `{"max_runs": null}`} {
		_, err := w.Tasks.Apply(ctx, s, client.ApplyOptions{})
		must(t, err)
		w.own("a", func(e *task.Entry) { e.Own.Runs = 2 })
		w.clock.advance(72 * time.Hour)
		_, err = w.Tasks.Patch(ctx, "default", "a", []byte(`{"timeout": "`+(time.Duration(len(patch))*time.Second).String()+`"}`), 0)
		must(t, err)

		if e := w.entry(ref("default", "a")); e.From.Equal(w.clock.now()) {
			t.Errorf("another write: from %v", e.From)
		}

		_, err = w.Tasks.Patch(ctx, "default", "a", []byte(patch), 0)
		must(t, err)

		if e := w.entry(ref("default", "a")); !e.From.Equal(w.clock.now()) {
			t.Errorf("%s: from %v, want now, %v", patch, e.From, w.clock.now())
		}
	}
}

func TestApply_AndPauses(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	s := spec("a", "@every 1h")
	w.create("a", "@every 1h")
	_, err := w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{Reason: "x"}, 0)
	must(t, err)
	w.clock.advance(time.Hour)

	results := w.batch("", line("a", "@every 1h"))
	if e := w.entry(ref("default", "a")); e.Paused || !e.From.Equal(w.clock.now()) || results[0].Result != client.Configured {
		t.Errorf("applied without paused: %+v", results)
	}

	s.Paused, s.PauseReason, s.PausedUntil = true, "in the file", task.At(w.clock.now().Add(time.Hour))
	got, err := w.Tasks.Apply(ctx, s, client.ApplyOptions{})
	if must(t, err); got.Pause == nil || got.Pause.Reason != "in the file" {
		t.Errorf("a file with a pause: %+v", got.Pause)
	}

	w.clock.advance(2 * time.Hour)

	if got, err = w.Tasks.Apply(ctx, s, client.ApplyOptions{}); err != nil || got.Paused || got.Result != client.Unchanged {
		t.Errorf("a file whose pause is over: %+v, %v", got, err)
	}

	s.Name = "b"
	if got, err = w.Tasks.Apply(ctx, s, client.ApplyOptions{}); err != nil || got.Paused || w.entry(ref("default", "b")).Paused {
		t.Errorf("created with a pause that is over: %+v, %v", got, err)
	}
}

// What a task's owner counts survives all writes, as long as it is needed.
func TestWrites_KeepWhatTheOwnerKnows(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	s := spec("a", "@every 1h")
	s.MaxRuns, s.PauseAfter = 5, 3
	_, err := w.Tasks.Create(ctx, "default", s)
	must(t, err)
	w.own("a", func(e *task.Entry) { e.Own.Runs, e.Own.Failures, e.Own.Counted = 4, 2, 77 })
	keeps := func(what string, runs int64, failures int, counted int64) {
		t.Helper()
		own := w.entry(ref("default", "a")).Own
		if own == nil || own.Runs != runs || own.Failures != failures || own.Counted != counted {
			t.Errorf("%s: %+v", what, own)
		}
	}

	_, err = w.Tasks.Patch(ctx, "default", "a", []byte(`{"timeout": "1m", "schedule": "@every 2h"}`), 0)
	must(t, err)
	keeps("patched", 4, 2, 77)
	s.Description = "x"
	_, err = w.Tasks.Apply(ctx, s, client.ApplyOptions{})
	must(t, err)
	keeps("applied", 4, 2, 77)
	w.batch("", strings.Replace(line("a", "@every 1h"), `{`, `{"max_runs": 5, "pause_after_failures": 3, `, 1))
	keeps("applied in bulk", 4, 2, 77)
	_, err = w.Tasks.Pause(ctx, "default", "a", 0)
	must(t, err)
	keeps("paused", 4, 2, 77)
	_, err = w.Tasks.Resume(ctx, "default", "a", 0)
	must(t, err)
	keeps("resumed", 4, 0, 77)
	got := w.get("a")
	next, err := w.Ticks.ListByTask(ctx, "default", "a", 5, time.Time{})
	if must(t, err); got.Counted != 4 || len(next) != 1 {
		t.Errorf("%d of 5 have run, and %d may", got.Counted, len(next))
	}

	w.own("a", func(e *task.Entry) { e.Own.Runs = 5 })

	if got = w.get("a"); !got.Next.IsZero() || got.NoNext != "max_runs: all 5 have run" {
		t.Errorf("next %v, as %q", got.Next, got.NoNext)
	}

	changed, err := w.Tasks.Patch(ctx, "default", "a", []byte(`{"max_runs": null, "pause_after_failures": null}`), 0)
	must(t, err)
	keeps("not counted any more", 0, 0, 0)
	_, err = w.Tasks.Patch(ctx, "default", "a", []byte(`{"pause_after_failures": 2}`), 0)
	must(t, err)
	keeps("counted anew: what was before does not count", 0, 0, changed.Revision)
}

// If two clients write at the same time, no change is lost, including pauses.
func TestPause_BesideAnotherWrite(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@every 1h")
	done := make(chan error, 2)

	for n := range 2 {
		go func() {
			for i := range 15 {
				var err error
				if n == 0 {
					_, err = w.Tasks.PauseWith(context.WithoutCancel(t.Context()), "default", "a", client.PauseRequest{Reason: task.NewUID()}, 0)
				} else {
					b, _ := json.Marshal(map[string]any{"max_runs": i + 1})
					_, err = w.Tasks.Patch(context.WithoutCancel(t.Context()), "default", "a", b, 0)
				}

				if err != nil {
					done <- err
					return
				}
			}

			done <- nil
		}()
	}

	must(t, <-done)
	must(t, <-done)

	got := w.get("a")
	if got.MaxRuns != 15 || !got.Paused || got.Pause.Reason != got.PauseReason || got.Generation != 31 {
		t.Errorf("got %+v", got.Task)
	}
}

func TestSchedules_AreResolvedWhenTheyAreWritten(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	made := w.create("once", "@in 10m")
	if want := w.clock.now().Add(10 * time.Minute); made.Schedule[0] != "@at 2026-11-20T22:15:00.000Z" || !made.Next.Equal(want) {
		t.Errorf("@in 10m: %v, next %v", made.Schedule, made.Next)
	}

	w.clock.advance(time.Minute)
	got, err := w.Tasks.Patch(ctx, "default", "once", []byte(`{"schedule": "@in 1h"}`), 0)
	if must(t, err); got.Schedule[0] != "@at 2026-11-20T23:06:00.000Z" {
		t.Errorf("patched: %v", got.Schedule)
	}

	made = w.create("spread", "H H(2-5) * * *")
	e := w.entry(ref("default", "spread"))
	if made.Schedule[0] != "H H(2-5) * * *" || strings.Contains(e.Schedule[0], "H") || made.Next.IsZero() {
		t.Errorf("spec %v, entry %v, next %v", made.Schedule, e.Schedule, made.Next)
	}

	before := e.From
	w.clock.advance(time.Hour)
	_, err = w.Tasks.Patch(ctx, "default", "spread", []byte(`{"timeout": "1m"}`), 0)
	must(t, err)

	next, err := w.Ticks.ListByTask(ctx, "default", "spread", 1, time.Time{})
	if after := w.entry(ref("default", "spread")); err != nil || after.Schedule[0] != e.Schedule[0] || !after.From.Equal(before.Time) || !next[0].Time.Equal(made.Next.Time) {
		t.Errorf("after another write: %v from %v; next %v, %v", after.Schedule, after.From, next, err)
	}

	s := spec("jittery", "@every 1h")
	s.Jitter = task.Duration(30 * time.Minute)
	_, err = w.Tasks.Create(ctx, "default", s)
	must(t, err)
	next, err = w.Ticks.ListByTask(ctx, "default", "jittery", 3, time.Time{})
	must(t, err)

	for _, o := range next {
		if d := o.DueAt.Sub(o.Time.Time); d <= 0 || d >= 30*time.Minute {
			t.Errorf("%v falls due %v later", o.Time, d)
		}
	}

	s.Name, s.Jitter, s.End = "ended", 0, task.At(w.clock.now().Add(90*time.Minute))
	_, err = w.Tasks.Create(ctx, "default", s)
	must(t, err)

	if next, err = w.Ticks.ListByTask(ctx, "default", "ended", 3, time.Time{}); err != nil || len(next) != 1 {
		t.Errorf("up to the end: %v, %v", next, err)
	}

	w.clock.advance(2 * time.Hour)

	if got = w.get("ended"); got.NoNext != "ended 2026-11-21T00:36:00Z" {
		t.Errorf("after the end: next %v, as %q", got.Next, got.NoNext)
	}
}
