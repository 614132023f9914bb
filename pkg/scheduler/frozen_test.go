package scheduler

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// freeze freezes a namespace, or everything if it is "", as the API does. unfreeze ends the freeze.
func (w *world) freeze(namespace string) {
	w.Helper()
	w.refreeze(func(f task.Freezes) task.Freezes {
		f, _ = f.Freeze(task.Freeze{Namespace: namespace, Since: task.At(w.clock()), By: task.NewActor("ann"), Reason: "a move"})
		return f
	})
}

func (w *world) unfreeze(namespace string) {
	w.Helper()
	w.refreeze(func(f task.Freezes) task.Freezes {
		f, _, _ = f.Unfreeze(namespace, task.At(w.clock()), task.NewActor("ann"))
		return f
	})
}

func (w *world) refreeze(change func(task.Freezes) task.Freezes) {
	w.Helper()
	old, err := w.store.Freezes(w.ctx)
	w.ok(err)
	_, err = w.store.SetFreezes(w.ctx, old, change(old.Freezes))
	w.ok(err)
}

// The worker receives no signal about freezes. It learns of them because its commits fail.
func TestFrozen_NoTickRunsFromTheFreezeOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", allow)
	h.decide(1)
	h.gate.play(before(func() { w.freeze("") })) // decided to run, and not committed yet
	h.decide(2)
	h.decide(3)
	w.unfreeze("")
	h.decide(4)
	w.freeze("others")
	h.decide(5)
	w.want("a", "+1 dispatched", "+2..+3 skipped 2 frozen", "+4 dispatched", "+5 dispatched")
}

func TestFrozen_OfANamespaceOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", allow)
	w.freeze("default")
	h.decide(1)
	w.freeze("others")
	w.unfreeze("default")
	h.decide(2)
	w.want("a", "+1 skipped frozen", "+2 dispatched")
}

func TestFrozen_LateTicksAreSkippedWhateverThePolicySays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("all", every("1m"), missed(task.MissedAll, 5))
	w.create("latest", every("1m"), missed(task.MissedLatest, 5))
	w.create("one", every("1h"))
	w.freeze("")
	h.decide(3700)
	w.unfreeze("")
	h.decide(3720)
	w.want("all", "+60..+3660 skipped 61 frozen", "+3720 dispatched")
	w.want("latest", "+60..+3660 skipped 61 frozen", "+3720 dispatched")
	w.want("one", "+3600 skipped frozen")
}

// A task that the watermark does not cover, with ticks that the watermark has passed.
func TestFrozen_TicksOfANewTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a")
	h.decide(5)
	w.freeze("")
	w.createAt(sec(2), "b")
	h.decide(5.5)
	w.want("b", "+3..+5 skipped 3 frozen")
}

func TestFrozen_WhatWaitsStaysAndGoesOnAfterwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	h.e.cfg.Freezes = func() (*task.Freezes, int64) { // the follower reports the freeze
		r, err := w.store.Freezes(w.ctx)
		w.ok(err)
		return &r.Freezes, r.Mod
	}

	w.create("a", cronned("@manual"))
	w.create("b", cronned("1 * * * * *"), retries(3, time.Second, task.Failed))
	h.decide(1)
	w.freeze("")
	w.trigger("a")
	w.at(2)
	w.finish("b", task.Failed)
	h.decide(10)
	w.want("a", "+1 queued manual")
	w.want("b", "+1 queued retry #2")
	w.unfreeze("")
	h.state.examineAll()
	h.decide(11)
	w.want("a", "+1 dispatched manual")
	w.want("b", "+1 dispatched #2")
}

// While nothing may start, no run is cancelled to make room for another.
func TestFrozen_WhatRunsIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", replaces, cronned("*/10 * * * * *"))
	h.decide(10)
	h.gate.play(pass, before(func() { w.freeze("") })) // the tick waits, and the active run is not cancelled yet
	h.decide(20)
	h.decide(21)
	w.want("a", "+10 dispatched", "+20 queued overlap")

	if w.active("a")[0].CancelRequested {
		t.Error("the run is cancelled for a successor that may not start")
	}

	w.unfreeze("")
	h.decide(30) // learns of the end of the freeze
	h.decide(31)

	if !w.active("a")[0].CancelRequested {
		t.Error("the run is not cancelled")
	}
}

// The follower of the freezes may be ahead of what a commit has returned, or behind it.
func TestFrozen_TheNewestThatIsKnownCounts(t *testing.T) {
	t.Parallel()
	frozen := func(by string) *task.Freezes {
		f, _ := task.Freezes{}.Freeze(task.Freeze{By: task.NewActor(by)})
		return &f
	}

	followed, mod := frozen("followed"), int64(5)
	e := &Engine{cfg: Config{Freezes: func() (*task.Freezes, int64) { return followed, mod }}}
	want := func(by string, rev int64) {
		t.Helper()
		f, at := e.currentFreezes()
		if at != rev || f.Of("any") == nil && by != "" || by != "" && !f.Of("any").By.Is(by) {
			t.Errorf("it goes by %+v of revision %d, want %q of %d", f, at, by, rev)
		}
	}

	learned := func(rev int64) *store.FreezeRecord {
		return &store.FreezeRecord{Freezes: *frozen("learned"), Mod: rev}
	}

	want("followed", 5)
	e.learnFreezes(learned(7))
	want("learned", 7)
	e.learnFreezes(learned(9))
	want("learned", 9)
	followed, mod = frozen("newer"), 8 // on the way to revision 9
	want("newer", 8)
	e.learnFreezes(learned(9))
	want("learned", 9)
	mod = 12
	want("newer", 12)
	e.learnFreezes(learned(9)) // read before that
	want("newer", 12)
	e.learnFreezes(&store.FreezeRecord{}) // somebody has deleted the record
	want("", 0)
	mod = 0
	want("newer", 0)
}
