package scheduler

import (
	"fmt"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// deaf makes the worker's watch deliver nothing from now on.
func (tw *testWorker) deaf() { tw.batches = nil }

// A tick after an acknowledged edit has an outcome, although the owner's watch has delivered nothing. The
// commit that would pass it fails, and the owner reads the entries.
//
// Verifies: G4
func TestRevised_NoTickAfterAnEditIsPassed(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		opts []option
		edit func(w *world)
		want []string
	}{
		"resumed":          {[]option{every("10s"), paused}, func(w *world) { w.resume("a") }, []string{"+10 dispatched", "+20 dispatched"}},
		"another schedule": {[]option{every("1h")}, func(w *world) { w.update("a", true, every("10s")) }, []string{"+10 dispatched", "+20 dispatched"}},
		"two edits": {[]option{every("1h")}, func(w *world) {
			w.update("a", true, every("5s"))
			w.update("a", true, every("10s"))
		}, []string{"+10 dispatched", "+20 dispatched"}},
		"max_runs raised": {[]option{every("5s"), maxRuns(1)}, func(w *world) { w.update("a", true, maxRuns(9), every("10s")) },
			[]string{"+5 dispatched", "+10 dispatched", "+20 dispatched"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", append(c.opts, allow)...)
			w.create("b", every("1s"), allow)
			h.decide(5)
			h.decide(9)
			h.deaf()
			w.at(9.5)
			c.edit(w)

			for s := 10.0; s <= 20; s++ {
				h.blind(s)
			}

			w.want("a", c.want...)
		})
	}
}

// Edits before each commit of a shard slow it down but do not stop it: ticks are decided in their entries,
// and the watermark stays.
//
// Verifies: G4
func TestRevised_EditsDoNotStopAShard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("1h"))
	w.create("b", every("1s"), allow)
	h.decide(1)
	mark := h.state.records.Watermark.Time

	n := 0
	edits := func(times int) {
		for range times {
			h.gate.play(before(func() { n++; w.update("a", true, every(fmt.Sprintf("%dm", 60+n))) }))
		}
	}

	edits(10)
	before := h.gate.commits
	h.decide(2)
	w.want("b", "+1 dispatched", "+2 dispatched")

	if lost := h.gate.commits - before - 1; lost != maxOvertaken {
		t.Errorf("%d commits were lost, want %d", lost, maxOvertaken)
	}

	if !h.state.records.Watermark.Time.Equal(mark.Time) || w.entry("b").From.Sub(start).Seconds() != 2 {
		t.Errorf("the watermark is %v, from of b %v", h.state.records.Watermark.Time, w.entry("b").From)
	}

	// While edits continue, one attempt finds that out.
	before = h.gate.commits
	h.decide(3)

	if lost := h.gate.commits - before - 1; lost != 1 {
		t.Errorf("%d commits were lost, want 1", lost)
	}

	h.gate.tricks = nil
	h.decide(4)
	w.wantMark(4, "")
	w.want("b", "+1 dispatched", "+2 dispatched", "+3 dispatched", "+4 dispatched")
	w.work("n1").decide(5)
	w.want("b", "+1 dispatched", "+2 dispatched", "+3 dispatched", "+4 dispatched", "+5 dispatched")
}

// An edit that gives a task no new tick does not affect the shard's commits.
func TestRevised_OtherEditsCostNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("1h"))
	w.create("b", every("1s"), allow)
	h.decide(1)
	h.gate.play(before(func() {
		w.pause("a")
		w.update("a", false, func(t *task.Task) { t.Labels = map[string]string{"x": "y"} })
		w.create("c", every("1h"))
		w.remove("a")
	}))

	commits := h.gate.commits
	h.decide(2)

	if n := h.gate.commits - commits; n != 1 {
		t.Errorf("%d commits, want 1", n)
	}

	if res, err := w.client.Get(w.ctx, w.store.Keys().Revised(0)); err != nil || len(res.Kvs) != 0 {
		t.Errorf("revised: %v, %v", res, err)
	}
}

// Somebody may delete the key by hand. That counts as an edit.
func TestRevised_TheKeyIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("1s"), allow)
	h.decide(1)
	w.update("a", true, every("2s"))
	h.decide(3)
	w.delete(w.store.Keys().Revised(0))
	h.blind(5)
	h.decide(7)
	w.wantMark(7, "")

	if h.state.revised != 0 {
		t.Errorf("revised is %d", h.state.revised)
	}
}

// A task is created and edited while the watch is late, and a commit of the owner fails because of the
// edit. The owner reads the entries of the tasks that it knows. Then the watch delivers the new task, but
// not its edit yet. Until it has, the watermark does not cover the new task.
func TestRevised_EditOfATaskThatTheWatchHasYetToTellOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("b", every("1s"), allow)
	h.decide(1)

	batches := h.batches
	h.deaf()
	w.at(1.2)
	created := w.create("a", every("1h"), allow)
	w.update("a", true, every("5s"))
	h.blind(2)

	for h.state.applied < created {
		told, _ := splitBatch(<-batches, created)
		w.ok(h.applyBatch(told))
	}

	for s := 3.0; s <= 6; s++ {
		h.blind(s)
	}

	if h.state.records.Watermark.Seen >= created {
		t.Errorf("the watermark speaks for a task that was created at revision %d: seen is %d", created, h.state.records.Watermark.Seen)
	}

	w.work("n1").decide(7)
	w.want("a", "+5 dispatched")
}
