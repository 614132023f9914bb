package why_test

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/why"
	"github.com/carillonhq/carillon/pkg/task"
)

// dependent is a task that runs after etl has succeeded.
func dependent(edit func(*task.Spec)) *world {
	return timed(func(s *task.Spec) {
		s.Schedule, s.After, s.Overlap = task.Schedules{task.ManualSchedule}, task.Sources{{Task: "etl"}}, task.OverlapQueue
		if edit != nil {
			edit(s)
		}
	})
}

// of returns the cause of a run: a run of etl.
func of(run string, state task.State) task.Cause {
	return task.Cause{Task: "etl", Run: run, State: state}
}

// after makes a run one that a run of etl has started.
func after(run string, edit func(*task.Run)) func(*task.Run) {
	return func(r *task.Run) {
		r.Trigger, r.Causes = task.TriggerAfter, []task.Cause{of(run, task.Succeeded)}
		r.ID = task.TriggeredRunID(r.ScheduledTime.Time, r.UID, r.Causes[0])
		if edit != nil {
			edit(r)
		}
	}
}

// sent adds a trigger that waits.
func (w *world) sent(clock, run string) *world {
	w.Triggers = append(w.Triggers, task.Trigger{UID: w.Task.UID, Generation: 1, Cause: of(run, task.Succeeded), At: task.At(at(clock))})
	return w
}

// ended adds an ended run of etl.
func (w *world) ended(clock, run string, state task.State) *world {
	if len(w.Sources) == 0 {
		w.Sources = []why.SourceRuns{{Task: "etl"}}
	}
	w.Sources[0].Runs = append(w.Sources[0].Runs, task.Run{ID: run, State: state, ScheduledTime: task.At(at(clock)), EndedAt: task.At(at(clock))})

	return w
}

// Runs of a task that runs after another.
var afterStories = []story{
	{"started by a run of its source", func() *world {
		return dependent(nil).run("02:10:07", task.Succeeded, after("r1", func(r *task.Run) {
			r.Period, r.Causes[0].Results = task.At(at("02:00:00")), map[string]string{"rows": "1234"}
		}))
	}, "02:10", task.VerdictSucceeded, []string{
		"The run that was started by run r1 of etl, which succeeded, ran on n1 and succeeded after 2.99s.",
		"Started by: run r1 of etl, which succeeded; its results: \"rows=1234\"", "Period: Tue 10 Mar 2026 02:00 UTC"}},
	{"skipped because its link was changed", func() *world {
		return dependent(nil).run("02:10:07", task.Skipped, after("r1", func(r *task.Run) { r.Reason = "unlinked" }))
	}, "02:10", task.VerdictSkipped, []string{"The trigger by run r1 of etl, which succeeded, was skipped: "}},
	{"skipped because its trigger cannot be read", func() *world {
		return dependent(nil).run("02:10:07", task.Skipped, after("r1", func(r *task.Run) { r.Reason, r.Causes = "bad_record", nil }))
	}, "02:10", task.VerdictSkipped, []string{"The trigger by a run of another task was skipped: "}},
	{"skipped because the task was paused", func() *world {
		return dependent(nil).run("02:10:07", task.Skipped, after("r1", func(r *task.Run) { r.Reason = "paused" }))
	}, "02:10", task.VerdictSkipped, []string{"was skipped: its task was paused"}},
	{"skipped during a pause on record", func() *world {
		w := dependent(nil).run("02:10:07", task.Skipped, after("r1", func(r *task.Run) { r.Reason = "paused" }))
		w.Entry.Own = &task.Own{Pauses: []task.Pause{{Since: task.At(at("02:00:00")), Ended: task.At(at("03:00:00")), By: task.NewActor("ann"), Reason: "maintenance"}}}
		return w
	}, "02:10", task.VerdictSkipped, []string{"was skipped: the task was paused, from Tue 10 Mar 2026 02:00 UTC until Tue 10 Mar 2026 03:00 UTC by ann"}},
	{"skipped because the queue is full", func() *world {
		return dependent(func(s *task.Spec) { s.Queue.Limit = 5 }).run("02:10:07", task.Skipped, after("r1", func(r *task.Run) { r.Reason = task.ReasonQueueFull }))
	}, "02:10", task.VerdictSkipped, []string{"(queue.limit: 5)"}},
	{"skipped with others", func() *world {
		return dependent(nil).run("02:10:07", task.Skipped, after("r1", func(r *task.Run) {
			r.Reason, r.Count, r.Last = task.ReasonShadow, 3, task.At(at("02:12:00"))
		}))
	}, "02:10", task.VerdictSkipped, []string{"one of 3 triggers from Tue 10 Mar 2026 02:10:07 UTC to Tue 10 Mar 2026 02:12 UTC", "Record: covers 3 triggers"}},
	{"skipped because it was busy", func() *world {
		return dependent(func(s *task.Spec) { s.Overlap = task.OverlapSkip }).run("02:05:00", task.Succeeded, after("r0", func(r *task.Run) { r.EndedAt = task.At(at("02:20:00")) })).
			run("02:10:07", task.Skipped, after("r1", func(r *task.Run) { r.Reason = task.ReasonOverlap }))
	}, "02:10", task.VerdictSkipped, []string{"another run of the task was active (the run of Tue 10 Mar 2026 02:05 UTC that run r0 of etl has started on n1)"}},
	{"missed its start deadline", func() *world {
		return dependent(nil).run("02:10:07", task.Missed, after("r1", func(r *task.Run) { r.Reason = task.ReasonDeadline }))
	}, "02:10", task.VerdictMissed, []string{"The trigger by run r1 of etl, which succeeded, was missed: it could not start before its start deadline"}},
	{"replaced by the next trigger", func() *world {
		return dependent(func(s *task.Spec) { s.Overlap = task.OverlapReplace }).run("02:10:07", task.Cancelled, after("r1", func(r *task.Run) { r.Reason = task.ReasonReplaced })).
			run("02:12:00", task.Succeeded, after("r2", nil))
	}, "02:10", task.VerdictCancelled, []string{"a newer tick or ended run replaced it (the run of Tue 10 Mar 2026 02:12 UTC that run r2 of etl has started on n1)"}},
	{"dropped for the next trigger", func() *world {
		return dependent(nil).run("02:10:07", task.Skipped, after("r1", func(r *task.Run) { r.Reason, r.EndedAt = task.ReasonDropped, task.At(at("02:12:00")) })).
			run("02:12:00", task.Queued, after("r2", nil))
	}, "02:10", task.VerdictSkipped, []string{"it was the oldest that waited, and a newer tick or ended run took its place (the run of Tue 10 Mar 2026 02:12 UTC that run r2 of etl has started"}},
	{"folded", func() *world {
		return dependent(nil).run("02:10:07", task.Succeeded, after("r1", nil)).run("03:10:00", task.Succeeded, after("r2", nil)).fold()
	}, "02:10:07", task.VerdictSucceeded, []string{"The run that another task started on Tue 10 Mar 2026 02:10:07 UTC ran on n1 and succeeded; further details are no longer kept."}},
	{"skipped with others, and folded", func() *world {
		return dependent(nil).run("02:10:07", task.Skipped, after("r1", func(r *task.Run) {
			r.Reason, r.Count, r.Last = task.ReasonPaused, 3, task.At(at("02:12:00"))
		})).run("03:10:00", task.Succeeded, after("r2", nil)).fold()
	}, "02:10:07", task.VerdictSkipped, []string{"The trigger of Tue 10 Mar 2026 02:10:07 UTC was skipped, one of 3 triggers from"}},
	{"waits for a node", func() *world {
		return dependent(nil).run("11:58:00", task.Queued, after("r1", func(r *task.Run) { r.Reason = task.ReasonNoNode }))
	}, "11:58", task.VerdictWaiting, []string{"The run that was started by run r1 of etl, which succeeded, has been waiting for 2m: no node was available"}},

	{"its trigger waits for the active run", func() *world {
		return dependent(nil).run("11:50:00", task.Running, after("r1", nil)).sent("11:58:30", "r2")
	}, "11:58", task.VerdictWaiting, []string{
		"The trigger by run r2 of etl, which succeeded, has been waiting for 1m 30s: the run of Tue 10 Mar 2026 11:50 UTC that run r1 of etl has started on n1 is active (overlap: queue)."}},
	{"its trigger waits for max_active", func() *world {
		return dependent(func(s *task.Spec) { s.Overlap, s.MaxActive = task.OverlapAllow, 1 }).run("11:50:00", task.Running, after("r1", nil)).sent("11:58:30", "r2")
	}, "11:58", task.VerdictWaiting, []string{"1 run is active or waiting, the most that max_active allows"}},
	{"its trigger waits for the end of a freeze", func() *world { return frozen(dependent(nil)).sent("11:58:30", "r2") }, "11:58", task.VerdictWaiting,
		[]string{"has been waiting for 1m 30s: the cluster has been frozen since"}},
	{"its trigger waits for an owner", func() *world {
		w := dependent(nil).sent("11:58:30", "r2")
		w.Owner = nil
		return w
	}, "11:58", task.VerdictWaiting, []string{"its shard (7) has no owner"}},
	{"its trigger was just sent", func() *world { return dependent(nil).sent("11:59:59", "r2") }, "11:59", task.VerdictWaiting, []string{"the owner of its shard has not picked it up yet"}},

	{"nothing ended", func() *world {
		return dependent(nil).run("01:10:00", task.Succeeded, after("r0", nil)).run("03:10:00", task.Succeeded, after("r2", nil))
	}, "02:10", task.VerdictNoTick, []string{
		"Nothing started the task on Tue 10 Mar 2026 02:10 UTC: the task runs after etl has succeeded; the previous trigger came on Tue 10 Mar 2026 01:10 UTC, the next one on Tue 10 Mar 2026 03:10 UTC."}},
	{"its source failed", func() *world { return dependent(nil).ended("02:10:20", "r1", task.Failed) }, "02:10", task.VerdictNoTick, []string{
		"the task runs after etl has succeeded; run r1 of etl failed on Tue 10 Mar 2026 02:10:20 UTC and did not start this task (when: succeeded).",
		"Source: run r1 of etl failed on Tue 10 Mar 2026 02:10:20 UTC and did not start this task (when: succeeded)"}},
	{"its source was triggered alone", func() *world {
		w := dependent(nil).ended("02:10:20", "r1", task.Succeeded)
		w.Sources[0].Runs[0].Alone = true
		return w
	}, "02:10", task.VerdictNoTick, []string{"run r1 of etl succeeded on Tue 10 Mar 2026 02:10:20 UTC and started nothing, because it was triggered with alone"}},
	{"its source was skipped", func() *world { return dependent(nil).ended("02:10:20", "r1", task.Skipped) }, "02:10", task.VerdictNoTick, []string{"runs after etl has succeeded."}},
	{"its source is gone", func() *world {
		w := dependent(nil)
		w.Sources = []why.SourceRuns{{Task: "etl", Gone: true}}
		return w
	}, "02:10", task.VerdictNoTick, []string{"Source: etl does not exist any more"}},
	{"runs after several tasks, in the future", func() *world {
		return dependent(func(s *task.Spec) { s.After = append(s.After, task.Source{Task: "import", When: task.WhenEnded}) })
	}, "2026-03-10 13:00", task.VerdictDepends, []string{"Whether the task will run on Tue 10 Mar 2026 13:00 UTC depends on other tasks: the task runs after etl has succeeded or import has ended."}},
}

// An answer without a time has the latest run, what waits, and the last end that started nothing.
func TestFor_LatestOfADependent(t *testing.T) {
	a := dependent(nil).run("02:10:07", task.Succeeded, after("r1", nil)).ended("02:10:06", "r1", task.Succeeded).ended("03:10:00", "r2", task.Failed).sent("11:59:59", "r3").ask(t, "")
	if !strings.HasPrefix(a.Sentence, "The run that was started by run r1 of etl") || len(a.Also) != 1 || a.Also[0].Verdict != task.VerdictWaiting {
		t.Errorf("%s\n%+v", a.Sentence, a.Also)
	}

	said := ""
	for _, l := range a.Lines {
		said += l.What + ": " + l.Says + "\n"
	}
	for _, want := range []string{"Source: run r2 of etl failed on Tue 10 Mar 2026 03:10 UTC and did not start this task (when: succeeded)", "Waiting: the trigger by run r3 of etl, which succeeded, since"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}

	w := dependent(nil).ended("03:10:00", "r2", task.Failed)
	w.Task.CreatedAt = task.At(at("03:30:00"))
	if a = w.ask(t, ""); strings.Contains(a.Sentence, "r2") {
		t.Errorf("the run ended before the task was created: %s", a.Sentence)
	}

	a = dependent(nil).ended("03:10:00", "r2", task.Failed).ask(t, "")
	if !strings.Contains(a.Sentence, "it runs after etl has succeeded; run r2 of etl failed on Tue 10 Mar 2026 03:10 UTC and did not start this task (when: succeeded)") {
		t.Error(a.Sentence)
	}
}

// Triggers that were skipped or missed are no runs, and those in the ledger count as what they were.
func TestFor_CountsTriggeredRunsOfARange(t *testing.T) {
	paused := func(r *task.Run) { r.Reason, r.Count, r.Last = task.ReasonPaused, 3, task.At(at("02:12:00")) }
	for _, folded := range []bool{false, true} {
		w := dependent(nil).run("01:10:00", task.Succeeded, after("r0", nil)).run("02:10:07", task.Skipped, after("r1", paused)).
			run("03:10:00", task.Missed, after("r2", nil)).run("04:10:00", task.Succeeded, after("r3", nil))
		if folded {
			w.fold()
		}

		a := w.ask(t, "2026-03-10")
		said := a.Sentence
		for _, s := range a.Stretches {
			said += "\n" + s.Sentence
		}
		if !strings.Contains(said, "2 runs were triggered by other tasks, the last on Tue 10 Mar 2026 04:10 UTC") {
			t.Errorf("folded: %v: %s", folded, said)
		}
	}
}
