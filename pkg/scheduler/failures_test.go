package scheduler

import (
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

func pauseAfter(n int) option { return func(t *task.Task) { t.PauseAfter = n } }

// endAs ends the oldest attempt of a task.
func (w *world) endAs(name string, state task.State, at float64) {
	w.Helper()
	w.at(at)
	w.finish(name, state)
}

func (w *world) wantPaused(name string, failures int) {
	w.Helper()
	e, own := w.entry(name), w.own(name)
	if !e.Paused || len(own.Pauses) == 0 || !own.Pauses[len(own.Pauses)-1].By.Is(task.PausedByFailures) || own.Failures != failures ||
		!strings.Contains(own.Pauses[len(own.Pauses)-1].Reason, fmt.Sprint(failures)) {
		w.Errorf("paused %t, %+v", e.Paused, own)
	}
}

func TestPauseAfterFailures_InARow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("10s"), pauseAfter(3))
	at := 10.0
	next := func(state task.State) {
		h.decide(at)
		w.endAs("a", state, at+1)
		at += 10
	}

	next(task.Succeeded)
	h.decide(at - 9)

	if own := w.own("a"); own.Counted != 0 {
		t.Errorf("a success that changes nothing was written: %+v", own)
	}

	for _, s := range []task.State{task.Failed, task.TimedOut, task.Succeeded, task.Failed, task.Cancelled, task.Lost} {
		next(s)
	}

	h.decide(at - 9)

	if e, own := w.entry("a"), w.own("a"); e.Paused || own.Failures != 2 {
		t.Fatalf("paused %t, %+v", e.Paused, own)
	}

	next(task.TimedOut)
	h.decide(at - 8)
	w.wantPaused("a", 3)
	n := len(w.story("a"))
	h.decide(at + 50)

	if got := w.story("a"); len(got) != n {
		t.Errorf("the task fires although it is paused: %v", got)
	}

	// After a resume, the count starts at zero.
	w.write("a", func(e *task.Entry) {
		e.Paused, e.From, e.Own.Failures = false, task.At(sec(at+50)), 0
		e.Own.Pauses[0].Ended = task.At(sec(at + 50))
	})

	at += 60
	next(task.Failed)
	next(task.Failed)
	h.decide(at - 8)

	if w.entry("a").Paused {
		t.Error("failures before the pause count after it")
	}

	next(task.Failed)
	h.decide(at - 8)
	w.wantPaused("a", 3)

	if n := len(w.own("a").Pauses); n != 2 {
		t.Errorf("%d pauses", n)
	}
}

func TestPauseAfterFailures_ManualRunsCountAndOthersDoNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("10s"), pauseAfter(2), retries(2, 0, task.Failed))
	w.create("b", every("10s"))
	h.decide(1)
	w.trigger("a")
	h.decide(2)
	w.endAs("a", task.Failed, 3) // the first attempt; a retry follows
	h.decide(4)
	w.endAs("a", task.Failed, 5)
	h.decide(10)

	if own := w.own("a"); own.Failures != 1 {
		t.Fatalf("%+v", own)
	}

	zombie := w.active("a")[0]
	w.endAs("b", task.Failed, 11)
	h.decide(11)
	h.decide(20)
	w.endAs("b", task.Failed, 21)
	w.end(zombie, task.Failed)
	h.decide(21)
	w.endAs("a", task.Succeeded, 22)
	h.decide(22)

	if own := w.own("a"); own.Failures != 0 || w.entry("a").Paused || w.entry("b").Paused {
		t.Fatalf("%+v", own)
	}
}

// Each end counts once, no matter which events the owners saw and when they died.
func TestPauseAfterFailures_OverFailover(t *testing.T) {
	t.Parallel()

	for name, then := range map[string]func(w *world, h *testWorker) *testWorker{
		"nobody saw the ends": func(w *world, _ *testWorker) *testWorker { return w.work("n2") },
		"the owner counted some": func(w *world, h *testWorker) *testWorker {
			h.decide(14)
			return w.work("n2")
		},
		"it died when it counted": func(w *world, h *testWorker) *testWorker {
			h.see()
			h.gate.play(h.dies)
			_ = h.try(14)

			return w.work("n2")
		},
		"it counted and died": func(w *world, h *testWorker) *testWorker {
			h.see()
			h.gate.play(h.diesAfter)
			_ = h.try(14)

			return w.work("n2")
		},
		"its count arrives late": func(w *world, h *testWorker) *testWorker {
			h.see()
			h.gate.play(func(s func() (kv.Result, error)) (kv.Result, error) { h.die(); return h.gate.delayed(s) })
			_ = h.try(14)
			h2 := w.work("n2")
			h.gate.deliver()

			return h2
		},
		"the next owner saw them before": func(w *world, _ *testWorker) *testWorker {
			a := w.preload("n2", nil)
			a.isLoaded()
			h := a.takeOver()
			h.scan()

			return h
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1", "n2").judged()
			h := w.work("n1")
			w.create("a", every("10s"), allow, pauseAfter(3))
			w.create("b", every("10s"), allow, pauseAfter(3))
			h.decide(10)
			h.decide(20)
			w.endAs("a", task.Failed, 21)
			h.decide(22)
			h.decide(30)
			w.endAs("a", task.Failed, 31)
			w.endAs("b", task.Succeeded, 31)
			w.endAs("b", task.Failed, 32)
			h = then(w, h)
			h.decide(33)

			if e, own := w.entry("a"), w.own("a"); e.Paused || own.Failures != 2 {
				t.Fatalf("a: paused %t, %+v", e.Paused, own)
			}

			if own := w.own("b"); own.Failures != 1 {
				t.Fatalf("b: %+v", own)
			}

			w.endAs("a", task.Failed, 34)
			w.endAs("b", task.Failed, 34)
			h = w.work("n1")
			h.decide(35)
			w.wantPaused("a", 3)
			h.decide(36)
			w.work("n2").decide(37)
			w.wantPaused("a", 3)

			if own := w.own("b"); own.Failures != 2 || w.entry("b").Paused || len(w.own("a").Pauses) != 1 {
				t.Fatalf("b: %+v", own)
			}
		})
	}
}

// A success that the history does not keep still ends the failures before it, even if the count does not
// change.
func TestPauseAfterFailures_OfAHistoryOfFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", every("10s"), allow, pauseAfter(2), func(t *task.Task) { t.History.Record = task.RecordFailures })
	h.decide(10)
	h.decide(20)
	h.decide(30)
	w.endAs("a", task.Failed, 31)
	h.decide(31)
	w.endAs("a", task.Succeeded, 32)
	w.endAs("a", task.Failed, 33)
	h.decide(34)

	if n := w.own("a").Failures; n != 1 {
		t.Fatalf("%d failures in a row", n)
	}

	// While there is a dead run from before the success, its record stays.
	dead, err := w.store.DeadRuns(w.ctx, ref("a"))
	w.ok(err)
	for _, d := range dead {
		w.ok(w.store.Dismiss(w.ctx, ref("a"), d, task.NewActor("ann"), w.clock()))
	}
	h.trimTo("a", task.History{Keep: 20, Record: task.RecordFailures})

	if n := len(w.story("a")); n != 2 {
		t.Fatalf("%d records are left", n)
	}

	w.work("n2").decide(35)

	if e := w.entry("a"); e.Paused || w.own("a").Failures != 1 {
		t.Errorf("after a failover: paused %t, %d failures in a row", e.Paused, w.own("a").Failures)
	}
}

func TestPauseAfterFailures_WhatIsReadAndToldCountsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("a", every("10s"), pauseAfter(3))
	w.work("n1").decide(10)
	h := w.work("n2")
	w.endAs("a", task.Failed, 11)
	h.gate.play(refused)
	h.blind(12)  // reads the history, and cannot write the result
	h.decide(13) // the watch has delivered the end as well

	if n := w.own("a").Failures; n != 1 {
		t.Errorf("%d failures are counted", n)
	}

	// The count may have been written although the answer to the commit was lost.
	h.decide(20)
	w.endAs("a", task.Failed, 21)
	h.gate.play(appliedButLost)
	h.decide(22)
	h.decide(23)

	if n := w.own("a").Failures; n != 2 {
		t.Errorf("%d failures are counted", n)
	}
}

// A record that is written again, as when the output of its run is deleted, is not another failure.
func TestPauseAfterFailures_OfARewrittenRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("a", every("10s"), pauseAfter(3))
	h := w.work("n1")
	h.decide(10)
	w.endAs("a", task.Failed, 11)
	h.decide(20)
	w.endAs("a", task.Failed, 21)
	h.decide(22)

	rewrite := func() {
		t.Helper()
		prefix := w.store.Keys().HistoryOf(ref("a"))
		res, err := w.etcd.Get(w.ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(1))
		w.ok(err)
		w.put(string(res.Kvs[0].Key), string(res.Kvs[0].Value))
	}

	rewrite()
	h.decide(23)
	if e := w.entry("a"); e.Paused || w.own("a").Failures != 2 {
		t.Errorf("paused %t, %d failures in a row", e.Paused, w.own("a").Failures)
	}

	rewrite()
	w.work("n2").decide(24)
	if e := w.entry("a"); e.Paused || w.own("a").Failures != 2 {
		t.Errorf("after a failover: paused %t, %d failures in a row", e.Paused, w.own("a").Failures)
	}
}

func TestPauseAfterFailures_CutsAPauseWithAnEndShort(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("10s"), allow, pauseAfter(2))
	h.decide(10)
	h.decide(20)
	w.pauseUntil("a", 60)
	w.endAs("a", task.Failed, 21)
	w.endAs("a", task.Failed, 22)
	h.decide(23)
	w.wantPaused("a", 2)
	h.decide(100)

	if got := w.story("a"); len(got) != 2 {
		t.Errorf("it fires: %v", got)
	}

	if p := w.own("a").Pauses; len(p) != 2 || !p[0].Ended.Equal(sec(23)) {
		t.Errorf("%+v", p)
	}
}

// Failures that are enough to pause the task are not added to those before a success that did not have to
// be read.
func TestPauseAfterFailures_OfASuccessThatIsNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", every("10s"), allow, pauseAfter(5))

	for i := range 10 {
		h.decide(float64(10 * (i + 1)))
	}

	for i := range 4 {
		w.endAs("a", task.Failed, 101+float64(i))
	}

	h.decide(105)

	if n := w.own("a").Failures; n != 4 {
		t.Fatalf("%d failures in a row", n)
	}

	w.endAs("a", task.Succeeded, 106)

	for i := range 5 {
		w.endAs("a", task.Failed, 107+float64(i))
	}

	w.work("n2").decide(113)
	w.wantPaused("a", 5)
}

// An edit may lower the limit below the current count. The next failures that reach it pause the task, also
// after a success.
func TestPauseAfterFailures_FewerThanAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("10s"), allow, pauseAfter(5))

	for i := range 7 {
		h.decide(float64(10 * (i + 1)))
	}

	for i := range 4 {
		w.endAs("a", task.Failed, 71+float64(i))
	}

	h.decide(75)
	w.update("a", false, pauseAfter(2))
	w.endAs("a", task.Succeeded, 76)

	for i := range 2 {
		w.endAs("a", task.Failed, 77+float64(i))
	}

	h.decide(79)
	w.wantPaused("a", 2)
}

// A history is read no further back than necessary.
func TestPauseAfterFailures_OfALongHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2") // not checked, because the history is made by hand
	w.create("a", every("10s"), pauseAfter(5))
	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)
	record := func(at float64, state task.State) {
		id := task.RunID(sec(at), st.Task.UID)
		w.put(w.store.Keys().Ended(ref("a"), id), fmt.Sprintf(`{"uid":"%s","scheduled_time":"2026-01-02T12:00:00Z","state":"%s","trigger":"schedule","ended_at":"2026-01-02T12:00:00Z"}`, st.Task.UID, state))
	}

	for i := range 30 {
		record(float64(-1000+i), task.Failed)
	}

	record(-900, task.Succeeded)

	for i := range 3 {
		record(float64(-100-i), task.Failed) // the order of the keys differs from the order of the ends
		record(float64(-90-i), task.Skipped)
	}

	w.put(w.store.Keys().Ended(ref("a"), task.RunID(sec(-80), st.Task.UID)+"~late~1"), `{"state":"failed"}`)
	w.put(w.store.Keys().Ended(ref("a"), task.RunID(sec(-70), "zzzz")), `{"state":"failed"}`)
	h := w.work("n1")
	h.decide(1)

	if own := w.own("a"); own.Failures != 3 || w.entry("a").Paused {
		t.Fatalf("%+v", own)
	}

	for i := range 12 {
		record(float64(-60+i), task.Failed)
	}

	w.work("n2").decide(2)

	if e := w.entry("a"); !e.Paused {
		t.Fatalf("%+v", e.Own)
	}
}
