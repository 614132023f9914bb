package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/task"
)

// after returns an option for a schedule that counts from the end of the last run. The first anchor is the
// creation.
func after(period string) option {
	return func(t *task.Task) { t.Schedule = task.Schedules{"@every " + period + " after completion"} }
}

func (w *world) wantAnchor(name string, at float64) {
	w.Helper()
	if got := w.entry(name).Anchor.Sub(start).Seconds(); got != at {
		w.Errorf("the anchor of %s is +%g, want +%g", name, got, at)
	}
}

func TestAfterCompletion_TicksAPeriodAfterTheEndOfItsRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", after("10s"))
	h.decide(10)
	h.decide(12)
	w.want("a", "+10 dispatched")
	w.at(13)
	w.finish("a", task.Succeeded)
	before := h.gate.commits
	h.decide(13.5)
	w.wantAnchor("a", 13)

	if n := h.gate.commits - before; n != 1 {
		t.Errorf("%d commits for a new anchor", n)
	}

	h.decide(22.999)
	w.want("a", "+10 succeeded")
	h.decide(23)
	w.want("a", "+10 succeeded", "+23 dispatched")
	w.at(24)
	w.finish("a", task.Failed)
	h.decide(24)
	h.decide(34)
	w.want("a", "+10 succeeded", "+23 failed", "+34 dispatched")
}

// Exactly one tick follows each end, no matter which node owns the shard and which events it has missed.
func TestAfterCompletion_OverFailover(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(w *world, h *testWorker){
		"the run ended before the load": func(w *world, h *testWorker) { w.finish("a", task.Succeeded) },
		"the owner saw it and died": func(w *world, h *testWorker) {
			w.finish("a", task.Succeeded)
			h.see()
			h.gate.play(h.dies)
			_ = h.try(14)
		},
		"the owner died with its answer": func(w *world, h *testWorker) {
			w.finish("a", task.Succeeded)
			h.see()
			h.gate.play(h.diesAfter)
			_ = h.try(14)
		},
		"its commit came late": func(w *world, h *testWorker) {
			w.finish("a", task.Succeeded)
			h.see()
			h.gate.play(func(s func() (kv.Result, error)) (kv.Result, error) { h.die(); return h.gate.delayed(s) })
			_ = h.try(14)
		},
		"others were recorded before and after": func(w *world, h *testWorker) {
			// The newest record is the one that was written last, not that of the latest tick.
			manual := w.trigger("a")
			h.see()
			w.finish("a", task.Succeeded)
			st, err := w.store.Task(w.ctx, ref("a"))
			w.ok(err)
			w.put(w.store.Keys().Ended(ref("a"), task.RunID(sec(1), st.Task.UID)), `{"uid":"`+st.Task.UID+`","scheduled_time":"2026-01-02T12:00:01Z","state":"skipped","reason":"overlap","trigger":"schedule","ended_at":"2026-01-02T12:00:13Z"}`)
			_, err = w.store.CancelQueued(w.ctx, ref("a"), manual, task.NewActor("somebody"), w.clock())
			w.ok(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1", "n2")

			if name != "others were recorded before and after" { // written by hand
				w.judged()
			}

			h := w.work("n1")
			w.create("a", after("10s"))
			h.decide(10)
			w.at(13)
			change(w, h)
			w.at(15)
			h = w.work("n2")
			h.gate.deliver()
			h.decide(15)
			w.wantAnchor("a", 13)
			h = w.work("n1")
			h.decide(20)
			w.wantAnchor("a", 13)
			h.decide(23)

			if got := w.active("a"); len(got) != 1 || !got[0].ScheduledTime.Equal(sec(23)) {
				t.Errorf("active: %+v; %v", got, w.story("a"))
			}

			w.work("n2").decide(24)

			if got := w.active("a"); len(got) != 1 {
				t.Errorf("active: %+v", got)
			}
		})
	}
}

func TestAfterCompletion_WhateverBecomesOfTheTick(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		name   string
		opts   []option
		change func(w *world, h *testWorker) // the task's first tick is at +10
		anchor float64
		next   float64
	}{
		{"cancelled", nil, func(w *world, h *testWorker) {
			h.decide(10)
			w.at(12)
			w.finish("a", task.Cancelled)
			h.decide(13)
		}, 12, 22},
		{"ended by a clock that is far ahead", nil, func(w *world, h *testWorker) {
			h.decide(10)
			w.at(10_000)
			w.finish("a", task.Succeeded)
			h.decide(12)
		}, 17, 27},
		{"cancelled while it waits", []option{on("role = none")}, func(w *world, h *testWorker) {
			h.decide(10)
			w.at(12)
			_, err := w.store.CancelQueued(w.ctx, ref("a"), w.ids("a")[0], task.NewActor("somebody"), w.clock())
			w.ok(err)
			h.decide(13)
		}, 12, 22},
		{"lost", []option{on("node = n2")}, func(w *world, h *testWorker) {
			h.decide(10)
			w.ok(w.store.PutCleared(w.ctx, w.active("a")[0].Instance, task.At(w.clock())))
			w.leave("n2")
			h.fleet()
			h.decide(11)
			h.decide(13)
			w.want("a", "+10 lost node_lost")
		}, 13, 23},
		{"lost after one that succeeded", []option{on("node = n2")}, func(w *world, h *testWorker) {
			h.decide(10)
			w.at(12)
			w.finish("a", task.Succeeded)
			h.decide(12)
			h.decide(22)
			w.ok(w.store.PutCleared(w.ctx, w.active("a")[0].Instance, task.At(w.clock())))
			w.leave("n2")
			h.fleet()
			h.decide(23)
			h.decide(25)
			w.want("a", "+10 succeeded", "+22 lost node_lost")
		}, 25, 35},
		{"missed after one that succeeded", []option{missed(task.MissedSkip, 1)}, func(w *world, h *testWorker) {
			h.decide(10)
			w.at(12)
			w.finish("a", task.Succeeded)
			h.decide(12)
			h.decide(100)
			w.want("a", "+10 succeeded", "+22 missed came_to_light_late")
		}, 100, 110},
		{"retried", []option{retries(2, time.Second, task.Failed)}, func(w *world, h *testWorker) {
			h.decide(10)
			w.at(12)
			w.finish("a", task.Failed)
			h.decide(12)
			w.wantAnchor("a", 0)
			h.decide(14)
			w.at(15)
			w.finish("a", task.Failed)
			h.decide(16)
		}, 15, 25},
		{"skipped for a manual run, which is what ends then", nil, func(w *world, h *testWorker) {
			h.decide(8)
			w.trigger("a")
			h.decide(9)
			h.decide(10)
			w.want("a", "+8 dispatched manual", "+10 skipped overlap")
			w.at(14)
			w.finish("a", task.Succeeded)
			h.decide(15)
		}, 14, 24},
		{"a manual run before its tick changes nothing", nil, func(w *world, h *testWorker) {
			h.decide(2)
			w.trigger("a")
			h.decide(3)
			w.at(4)
			w.finish("a", task.Succeeded)
			h.decide(5)
			w.wantAnchor("a", 0)
			h.decide(10)
			w.at(11)
			w.finish("a", task.Succeeded)
			h.decide(12)
		}, 11, 21},
		{"missed", []option{missed(task.MissedSkip, 1)}, func(w *world, h *testWorker) {
			h.decide(100)
			w.want("a", "+10 missed came_to_light_late")
		}, 100, 110},
		{"late", nil, func(w *world, h *testWorker) {
			h.decide(100)
			w.want("a", "+10 dispatched catch_up")
			w.at(101)
			w.finish("a", task.Succeeded)
			h.decide(102)
		}, 101, 111},
		{"it ended long ago, and nobody was there", nil, func(w *world, h *testWorker) {
			h.decide(10)
			w.at(12)
			w.finish("a", task.Succeeded)
			h = w.work("n2")
			h.decide(100)
		}, 90.001, 100.001},
		{"paused meanwhile, until it is resumed", nil, func(w *world, h *testWorker) {
			h.decide(10)
			w.pause("a")
			w.at(12)
			w.finish("a", task.Succeeded)
			h.decide(12)
			h.decide(50)
			w.wantAnchor("a", 0)
			w.at(50)
			w.resume("a")
			h.decide(50)
		}, 40.001, 50.001},
		{"paused with an end", nil, func(w *world, h *testWorker) {
			h.decide(10)
			w.pauseUntil("a", 60)
			w.at(12)
			w.finish("a", task.Succeeded)
			h.decide(12)
			h.decide(59)
			w.wantAnchor("a", 0)

			if h.sleepFor() > time.Second+time.Millisecond {
				t.Error("the worker sleeps beyond the end of the pause")
			}

			h.decide(61)
		}, 51.001, 61.001},
		{"the watch did not tell", nil, func(w *world, h *testWorker) {
			h.decide(10)
			w.at(12)
			w.finish("a", task.Succeeded)
			h.see()
			// As if the worker had not seen the end: the next comparison of the active runs finds it.
			a := h.state.records.TaskNamed("default/a")
			a.Past = &state.Past{}
			h.state.applyAttemptEnd(a, "", 0)
			h.state.agenda.examineNext(a)
			h.blind(13)
		}, 12, 22},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1", "n2")

			if c.name != "ended by a clock that is far ahead" { // the checker trusts the clock of that node
				w.judged()
			}

			h := w.work("n1")
			w.create("a", append([]option{after("10s")}, c.opts...)...)
			c.change(w, h)
			w.wantAnchor("a", c.anchor)
			h = w.work("n1")
			h.decide(c.next - 0.001)
			n := len(w.story("a"))
			h.decide(c.next)

			if got := w.story("a"); len(got) != n+1 {
				t.Errorf("at +%g: %v", c.next, got)
			}
		})
	}
}

// ids returns the runs of a task, the oldest first.
func (w *world) ids(name string) (ids []string) {
	w.Helper()
	runs, err := w.store.ShardRuns(w.ctx, []int{0}, "")
	w.ok(err)

	for _, r := range runs {
		if r.Task == name {
			ids = append(ids, r.ID)
		}
	}

	return ids
}

func TestAfterCompletion_EndsWithItsSchedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", after("10s"), func(t *task.Task) { t.End = task.At(sec(20)) })
	h.decide(10)
	w.at(12)
	w.finish("a", task.Succeeded)
	before := h.gate.commits

	for _, at := range []float64{13, 25, 100} {
		h.decide(at)
	}

	w.want("a", "+10 succeeded")

	if n := h.gate.commits - before; n != 0 {
		t.Errorf("%d commits for nothing", n)
	}
}

func TestAfterCompletion_MaxRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", after("10s"), maxRuns(2))

	for _, at := range []float64{10, 22, 34, 46} {
		h.decide(at)

		if len(w.active("a")) > 0 {
			w.at(at + 2)
			w.finish("a", task.Succeeded)
			h.decide(at + 2)
		}
	}

	w.want("a", "+10 succeeded", "+22 succeeded")
}

// When a range grows, its first tick no longer belongs to the schedule. The record keeps the time at which
// it was due.
func TestAfterCompletion_WithJitterSkippedInARowIsARangeThatOnlyGrows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", after("1s"), jitter(20*time.Second), uid("aaaa")) // the jitter is limited to the time until the next tick
	w.freeze("")

	var first task.Time
	for at := 1.0; at < 60; at++ {
		h.decide(at)
		runs, err := w.store.Runs(w.ctx, ref("a"))
		w.ok(err)

		switch {
		case len(runs) == 0:
		case first.IsZero():
			first = runs[0].DueAt
		case len(runs) > 1 || !runs[0].DueAt.Equal(first.Time):
			t.Fatalf("%d records; the first tick fell due at %v, and then at %v", len(runs), first, runs[0].DueAt)
		}
	}

	if story := w.story("a"); len(story) != 1 || !strings.Contains(story[0], "..") || first.IsZero() {
		t.Errorf("%q, first due at %v", story, first)
	}
}

// A task that is created again does not wait for runs of the deleted task. That would take as long as their
// grace period, or as lost_after if their node is silent.
func TestAfterCompletion_DoesNotWaitForTheRunsOfADeletedTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", after("1m"))
	h.decide(60)
	former := w.active("a")[0]
	w.remove("a")
	w.at(61)
	w.create("a", after("1m"))
	h.decide(61) // the task has had no end, so the next tick follows at once
	h.decide(62)

	for _, held := range w.active("a") {
		if held.UID != former.UID {
			w.at(65)
			w.end(held, task.Succeeded)
		}
	}

	h.decide(65)
	w.wantAnchor("a", 65)
	h.decide(125)
	w.want("a", "+60 dispatched", "+61.001 succeeded", "+125 dispatched")
}
