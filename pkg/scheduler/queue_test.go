package scheduler

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestQueue_ManualRunStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("@manual"), func(t *task.Task) { t.Accept.Env = []string{"K"} })
	h.see()
	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)
	_, err = w.store.Enqueue(w.ctx, st, task.Waiting{Env: map[string]string{"K": "v"}, Run: task.Run{
		ID: "r1", UID: st.Task.UID, ScheduledTime: task.At(start), State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual, Attempt: 1}})
	w.ok(err)
	h.decide(0.1)

	all := w.active("a")
	if len(all) != 1 || all[0].Env["K"] != "v" || all[0].Reason != "" || !all[0].DispatchedAt.Equal(sec(0.1)) {
		t.Fatalf("active are %+v", all)
	}

	w.want("a", "+0 dispatched manual")
}

func TestQueue_ManualRunsOfATaskThatSkipsWaitForEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("@manual"))

	for i := range 3 {
		w.at(float64(i))
		w.trigger("a")
	}

	h.decide(3)
	w.want("a", "+0 dispatched manual", "+1 queued manual", "+2 queued manual")
	w.finish("a", task.Succeeded)
	h.decide(4)
	w.want("a", "+0 succeeded manual", "+1 dispatched manual", "+2 queued manual")
}

// The clock of the node that ran an attempt is years ahead. Neither the retry nor the task's ticks that
// must not overlap with it wait for that.
func TestQueue_ARetryWaitsNoLongerThanItsPolicySays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 * * * * *"), retries(3, 5*time.Second, task.Failed))
	h.decide(1)
	w.at(2)
	a := w.active("a")[0]
	end := a.Run
	end.State, end.EndedAt = task.Failed, task.At(w.clock())
	end.Reason = task.ReasonExit
	w.ok(w.store.Finish(w.ctx, a, end, executor.Next(a.Assigned, end, w.clock().AddDate(10, 0, 0), 0.5)))
	h.decide(2)
	w.want("a", "+1 queued retry #2")
	h.decide(6)
	w.want("a", "+1 queued retry #2")
	h.decide(7)
	w.want("a", "+1 dispatched #2")
}

func TestQueue_RetryWaitsItsTimeAndTheWorkerWakesForIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 * * * * *"), retries(3, 5*time.Second, task.Failed))
	h.decide(1)
	w.at(2)
	w.finish("a", task.Failed)
	h.decide(2)
	w.want("a", "+1 queued retry #2")
	h.decide(6.5)
	w.want("a", "+1 queued retry #2")

	if d := h.sleepFor(); d != 500*time.Millisecond {
		t.Errorf("sleeps for %s", d)
	}

	h.blind(7)
	w.want("a", "+1 dispatched #2")
	w.finish("a", task.Failed)
	w2 := w.work("n1")
	w2.decide(11)

	if d := w2.sleepFor(); d != time.Second {
		t.Errorf("after a reload it sleeps for %s", d)
	}

	w2.blind(12)
	w.want("a", "+1 dispatched #3")
	w.finish("a", task.Failed)
	w.want("a", "+1 failed #3")
}

func TestQueue_WithoutANodeARunWaitsWithThatReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", on("role = db"))
	w.create("m", on("role = db"), cronned("@manual"))
	w.trigger("m")
	h.decide(1)
	w.want("a", "+1 queued no_matching_node")
	w.want("m", "+0 queued manual no_matching_node")
	commits := h.gate.commits
	h.decide(1.5)
	h.fleet()
	h.decide(1.6)

	if h.gate.commits != commits {
		t.Errorf("%d commits while nothing can be done", h.gate.commits-commits)
	}

	w.join("db", "role=db")
	h.fleet()
	h.decide(1.7)
	w.want("a", "+1 dispatched")
	w.want("m", "+0 dispatched manual")
}

func TestQueue_FullQueueSkipsTicks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", on("role = db"), allow)

	for s := 1; s <= tickpolicy.MaxWaiting+2; s++ {
		h.decide(float64(s))
	}

	got := w.story("a")
	if len(got) != tickpolicy.MaxWaiting+1 || got[tickpolicy.MaxWaiting-1] != "+100 queued no_matching_node" || got[tickpolicy.MaxWaiting] != "+101..+102 skipped 2 queue_full" {
		t.Errorf("%q", got[len(got)-4:])
	}
}

func TestQueue_HandedBackRunGoesFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", cronned("1 * * * * *"))
	h.decide(1)
	w.trigger("a")
	w.ok(w.store.HandBack(w.ctx, w.active("a")[0]))
	h.decide(2)
	w.want("a", "+1 dispatched", "+1 queued manual")
}

// Runs that were active at the same time before the policy became skip, and that wait for their next
// attempts, must not wait for each other.
func TestQueue_RetriesThatAreBesideEachOtherAllGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", allow, retries(2, time.Second, task.Failed))
	h.decide(1)
	h.decide(2)
	w.update("a", false, func(t *task.Task) { t.Overlap = task.OverlapSkip; t.Schedule = task.Schedules{"@manual"} })
	w.trigger("a")
	w.finish("a", task.Failed)
	w.finish("a", task.Failed)
	h.decide(5)
	w.want("a", "+1 dispatched #2", "+2 queued retry #2", "+2 queued manual")
	w.finish("a", task.Succeeded)
	h.decide(6)
	w.want("a", "+1 succeeded #2", "+2 dispatched #2", "+2 queued manual")
	w.finish("a", task.Succeeded)
	h.decide(7)
	w.want("a", "+1 succeeded #2", "+2 succeeded #2", "+2 dispatched manual")
}

func TestQueue_DeleteCancelsAttemptsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", allow, retries(2, time.Second, task.Failed))

	for s := 1; s <= 3; s++ {
		h.decide(float64(s))
	}

	w.trigger("a")
	late := w.active("a")[0]
	w.remove("a")
	// The attempt fails at this moment, so its retry is written after its task was deleted.
	w.end(late, task.Failed)
	h.decide(4)

	all := w.active("a")
	if len(all) != 2 || !all[0].CancelRequested || !all[1].CancelRequested {
		t.Fatalf("active are %+v", all)
	}

	w.finish("a", task.Cancelled)
	w.finish("a", task.Cancelled)
	h.decide(5)
	h.decide(6)
	w.want("a")

	if h.state.records.Tasks.Len() != 0 || len(h.state.agenda.toExamine) != 0 || len(h.state.gone) != 0 || len(h.state.purges) != 0 {
		t.Errorf("the worker remembers %v, %v, %v, %v", slices.Collect(h.state.records.Tasks.All()), h.state.agenda.toExamine, h.state.gone, h.state.purges)
	}
}

func TestQueue_DeleteIsSeenThroughByTheNextOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", allow)
	h.decide(1)
	w.remove("a")
	w.work("n2").decide(2)

	if all := w.active("a"); len(all) != 1 || !all[0].CancelRequested {
		t.Errorf("active are %+v", all)
	}
}

// Verifies: G8
func TestQueue_AttemptsOfATaskThatWasDeletedAndCreatedAgainAreCancelled(t *testing.T) {
	t.Parallel()

	for _, reload := range []bool{false, true} {
		w := newWorld(t, "n1", "n2").judged()
		h := w.work("n1")
		w.create("a")
		h.decide(1)
		w.remove("a")
		w.at(1.5)
		w.create("a")

		if reload {
			h = w.work("n2")
		}

		h.decide(2)
		all := w.active("a")
		if len(all) != 2 || !all[0].CancelRequested || all[1].CancelRequested {
			t.Fatalf("reload %t: active are %+v", reload, all)
		}

		w.finish("a", task.Cancelled)
		w.finish("a", task.Succeeded)
		h.decide(3)
		// The run of the deleted task does not block the new task.
		w.want("a", "+2 succeeded", "+3 dispatched")

		if all := w.active("a"); len(all) != 1 || all[0].CancelRequested {
			t.Errorf("reload %t: active are %+v", reload, all)
		}
	}
}

func TestQueue_CancelSurvivesARefusedCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a")
	h.decide(1)
	w.remove("a")
	h.gate.play(refused)
	h.decide(2)
	h.decide(4)

	if all := w.active("a"); len(all) != 1 || !all[0].CancelRequested {
		t.Errorf("active are %+v", all)
	}
}

func TestQueue_PurgeSurvivesARefusedCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a")
	h.decide(1)
	w.remove("a")
	w.finish("a", task.Succeeded)
	h.gate.play(refused)
	h.decide(2)
	h.decide(4)
	w.want("a")
}

func TestQueue_PurgeOfARecordThatChangedOrWentMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", allow)
	w.create("b", allow)
	h.decide(1)
	w.remove("a")
	w.finish("a", task.Succeeded)
	h.see()
	res, err := w.client.Get(w.ctx, w.store.Keys().HistoryOf(ref("a")), clientPrefix)
	w.ok(err)
	key := string(res.Kvs[0].Key)
	w.put(key, string(res.Kvs[0].Value)) // the same value again, as from a second copy of a finish
	h.decide(2)
	w.want("a")
	w.want("b", "+1 dispatched", "+2 dispatched")

	w.put(key, string(res.Kvs[0].Value))
	h.see()
	w.delete(key)
	h.blind(3)
	w.want("b", "+1 dispatched", "+2 dispatched", "+3 dispatched")

	if len(h.state.purges) != 0 {
		t.Errorf("purges are left: %v", h.state.purges)
	}
}

// Somebody has overwritten a queue record with something else.
func TestQueue_UnreadableRecordHoldsUpNothing(t *testing.T) {
	t.Parallel()

	for _, blind := range []bool{false, true} {
		w := newWorld(t, "n1")
		h := w.work("n1")
		w.create("a", cronned("@manual"))
		w.create("b", allow)
		id := w.trigger("a")
		h.see()
		w.put(w.store.Keys().Queued(ref("a"), id), "{garbage")

		if !blind {
			h.see()
		}

		h.bounded(t, 1)
		w.want("b", "+1 dispatched")
		w.trigger("a")
		h.decide(2)

		if len(w.active("a")) != 1 {
			t.Errorf("the task's next manual run does not start: %q", w.story("a"))
		}
	}
}

// bounded is like blind, and fails if the round takes more than a few commits.
func (tw *testWorker) bounded(t *testing.T, at float64) {
	t.Helper()
	before := tw.gate.commits

	tw.gate.limit = before + 8
	if err := tw.try(at); err != nil {
		t.Fatalf("after %d commits in one round: %v", tw.gate.commits-before, err)
	}

	tw.gate.limit = 0
}

// The key of a run in an inbox exists already.
func TestDispatch_OntoATakenKeyHoldsUpNothing(t *testing.T) {
	t.Parallel()

	for _, manual := range []bool{false, true} {
		w := newWorld(t, "n1")
		h := w.work("n1")
		w.create("a", allow)
		w.create("b", allow)
		st, err := w.store.Task(w.ctx, ref("a"))
		w.ok(err)

		id := task.RunID(sec(1), st.Task.UID)
		if manual {
			id = w.trigger("a")
		}

		key := w.store.Keys().Run("n1", ref("a"), id)
		w.put(key, "{}")
		h.see()
		h.bounded(t, 1)
		h.decide(2)
		w.want("b", "+1 dispatched", "+2 dispatched")

		if got := w.story("a"); !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "+2 dispatched") }) {
			t.Errorf("manual %t: the task itself goes on with %q", manual, got)
		}
	}
}

func TestQueue_NodeOfAnotherSessionIsLeftOutAndTheRunGoesElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", on("node = n2"))
	w.create("b", on("node in (n2, n3)"))
	w.join("n3")
	h.fleet()
	w.leave("n2")
	w.join("n2")
	h.see()
	h.bounded(t, 1)
	w.want("a", "+1 queued no_matching_node")

	if all := w.active("b"); len(all) != 1 || all[0].Node != "n3" {
		t.Errorf("active of b: %+v", all)
	}

	h.fleet() // the mirror has caught up, so the new session is not suspect
	h.decide(1.1)
	w.want("a", "+1 dispatched")
}

// Two workers share a fleet. One of them finds a node suspect. The other one then finds no node, and must
// wake up when the suspicion ends.
func TestQueue_RunThatFoundOnlySuspectsIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 * * * * *"))
	w.create("m", cronned("@manual"))
	n, _ := h.e.cfg.Fleet.Present("n1")
	h.e.cfg.Fleet.Suspect("n1", n.Revision, sec(0.9)) // by another worker
	w.at(0.9)
	w.trigger("m")
	h.decide(1)
	w.want("a", "+1 queued no_matching_node")
	w.want("m", "+0.9 queued manual no_matching_node")

	d := h.sleepFor()
	if d > placement.Suspicion {
		t.Fatalf("sleeps for %s", d)
	}

	h.blind(1 + d.Seconds())
	w.want("a", "+1 dispatched")
	w.want("m", "+0.9 dispatched manual")
}

func TestWorker_CountsWhatItDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	m := h.e.metrics
	w.create("a", on("role = db"))
	w.create("b", retries(2, time.Second, task.Failed))
	h.decide(1)
	h.decide(2)

	if got := valueOf(m.WaitingRuns); got != 1 {
		t.Errorf("%g wait", got)
	}

	w.join("db", "role=db")
	h.fleet()
	w.ok(w.store.HandBack(w.ctx, w.active("b")[0]))
	h.decide(2.1)
	w.finish("b", task.Failed)
	h.decide(2.2)

	for labels, want := range map[[2]string]float64{
		{"run", ""}: 1, {"queued", task.ReasonNoNode}: 1, {"skipped", task.ReasonOverlap}: 2, {"missed", task.ReasonDeadline}: 0, {"queued", "other"}: 0,
	} {
		if got := valueOf(m.Ticks.WithLabelValues(labels[:]...)); got != want {
			t.Errorf("%g ticks %v, want %g", got, labels, want)
		}
	}

	if got := valueOf(m.WaitingRuns); got != 1 {
		t.Errorf("%g wait", got)
	}

	given := func() int { given := h.e.cfg.Fleet.Given(placement.ProcessSlots); return given["n1"] + given["db"] }
	if given() != 1 {
		t.Errorf("%d attempts are counted, one is active", given())
	}

	h.decide(3.2) // the second attempt, which is the last one
	w.finish("b", task.Failed)
	h.see()

	if got := valueOf(m.TasksFailing); got != 1 {
		t.Errorf("%g tasks are failing", got)
	}

	w.put(w.store.Keys().Entry(ref("a")), "garbage")
	h.see()

	if got := m.Unreadable.Load(); got != 1 {
		t.Errorf("%d entries are unreadable", got)
	}

	h.gate.play(refused)
	h.decide(3.3)
	h.releaseShared()

	if valueOf(m.WaitingRuns) != 0 || valueOf(m.TasksFailing) != 0 || m.Unreadable.Load() != 0 || given() != 0 {
		t.Errorf("after the worker %g wait, %g are failing, %d are unreadable, %d are counted", valueOf(m.WaitingRuns), valueOf(m.TasksFailing), m.Unreadable.Load(), given())
	}
}

// valueOf returns the value of a counter or a gauge.
func valueOf(m prometheus.Metric) float64 {
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		panic(err)
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}

// The watch delivers the deletion of a queue record by the worker's own commit when the task may have been
// forgotten already. That must not bring the task back.
func TestQueue_OfATaskThatIsGoneNothingIsLeftInMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", cronned("@manual"), retries(2, time.Hour, task.Failed))
	w.trigger("a")
	h.decide(1)
	w.remove("a")
	w.finish("a", task.Failed) // a retry waits for a task that is gone
	h.decide(2)
	w.want("a")
	h.decide(3)

	if h.state.records.Tasks.Len() != 0 {
		t.Errorf("in memory are %v", slices.Collect(h.state.records.Tasks.All()))
	}
}

func TestQueue_WhatDoesNotFitIntoACommitIsInTheNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")

	all := names(120)
	for c := range slices.Chunk(all, 60) {
		w.createTogether(start, c, cronned("@manual"))
	}

	for _, name := range all {
		w.trigger(name)
	}

	h.decide(1)
	w.wantAll(all, "+0 dispatched manual")
}
