package scheduler

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func shadow(t *task.Task) { t.Shadow = true }

// Each tick has its own record, and nothing starts or waits, whatever the overlap policy, and even without
// a node that could run it.
//
// Verifies: G24
func TestShadow_EachTickIsRecordedAndNothingStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("skips", shadow)
	w.create("queues", shadow, func(t *task.Task) { t.Overlap = task.OverlapQueue })
	w.create("nowhere", shadow, on("role = none"))
	h.decide(1)
	h.decide(2)
	w.wantAll([]string{"skips", "queues", "nowhere"}, "+1 skipped shadow", "+2 skipped shadow")
}

// Verifies: G24
func TestShadow_LateTicksGoByTheMissedPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("all", shadow, every("1m"), missed(task.MissedAll, 3))
	w.create("latest", shadow, every("1m"), missed(task.MissedLatest, 3))
	w.create("skip", shadow, every("1m"), missed(task.MissedSkip, 3))
	w.create("deadline", shadow, every("1m"), func(t *task.Task) { t.Deadline = task.Duration(time.Second) })
	h.decide(310)
	h.decide(360)
	w.want("all", "+60..+120 missed 2 came_to_light_late", "+180 skipped catch_up shadow", "+240 skipped catch_up shadow", "+300 skipped shadow", "+360 skipped shadow")
	w.want("latest", "+60..+240 missed 4 came_to_light_late", "+300 skipped shadow", "+360 skipped shadow")
	w.want("skip", "+60..+240 missed 4 came_to_light_late", "+300 skipped shadow", "+360 skipped shadow")
	w.want("deadline", "+60..+300 missed 5 start_deadline", "+360 skipped shadow")
}

// More late ticks than one commit can hold.
//
// Verifies: G24
func TestShadow_ManyLateTicks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", shadow, missed(task.MissedAll, 1000), func(t *task.Task) { t.History.Keep = 1000 })
	h.decide(500)

	if got := w.stories()["a"]; len(got) != 500 || got[0] != "+1 skipped catch_up shadow" || got[499] != "+500 skipped shadow" {
		t.Errorf("%d records, the first %q, the last %q", len(got), got[0], got[len(got)-1])
	}
}

// Verifies: G24
func TestShadow_APersonsRunStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", shadow, every("10s"))
	w.trigger("a")
	h.decide(1)
	h.decide(10)
	w.want("a", "+0 dispatched manual", "+10 skipped shadow")
}

// Verifies: G24
func TestShadow_TicksRunFromItsEndOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", shadow)
	h.decide(1)
	w.update("a", false, func(t *task.Task) { t.Shadow = false })
	h.see()
	h.decide(2)
	w.update("a", false, func(t *task.Task) { t.Shadow = true })
	h.see()
	h.decide(3)
	w.want("a", "+1 skipped shadow", "+2 dispatched", "+3 skipped shadow")
}

// max_runs counts runs, and a shadow task has none.
//
// Verifies: G24
func TestShadow_UsesUpNoRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", shadow, func(t *task.Task) { t.MaxRuns = 1 })
	h.decide(1)
	h.decide(2)
	w.want("a", "+1 skipped shadow", "+2 skipped shadow")
}

// A schedule that counts from the end of the last run counts from the tick that would have been a run.
//
// Verifies: G24
func TestShadow_GoesOnAfterCompletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", shadow, every("10s after completion"))

	for second := range 40 {
		h.decide(float64(second))
	}

	w.want("a", "+10 skipped shadow", "+20 skipped shadow", "+30 skipped shadow")
}
