package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestWorker_DecidesATickOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	created := w.create("a")
	h.decide(0.999)
	w.want("a")
	opened := w.mark()
	h.decide(1)
	h.decide(1)
	h.decide(1.9)
	w.want("a", "+1 dispatched")
	w.wantMark(1, "")

	if m := w.mark(); m.Seen < created || m.Nonce == "" || m.Nonce == opened.Nonce {
		t.Errorf("the watermark is %+v after %+v; the task was created at %d", m, opened, created)
	}

	a := w.active("a")[0]
	if a.Node != "n1" || a.Owner != "n1" || a.Instance != "n1-1" || a.Attempt != 1 || a.Action.Noop == nil ||
		!a.CreatedAt.Equal(sec(1)) || !a.DispatchedAt.Equal(sec(1)) || a.Trigger != task.TriggerSchedule {
		t.Errorf("the attempt is %+v", a)
	}

	w.finish("a", task.Succeeded)
	h.decide(2.005)
	w.want("a", "+1 succeeded", "+2 dispatched")
	w.wantMark(2.005, "")
}

func TestWorker_DecidesNothingWhenNothingIsDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("@manual"))
	w.create("b", every("1h"))
	before := w.mark()
	commits := h.gate.commits

	for s := range 10 {
		h.decide(float64(s))
	}

	if w.mark() != before || h.gate.commits != commits {
		t.Errorf("%d commits; the watermark is %+v, it was %+v", h.gate.commits-commits, w.mark(), before)
	}
}

// Verifies: G3
func TestWorker_GoesOnWhereAnotherStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("a", allow)
	w.create("b", allow)
	w.work("n1").decide(1)
	h := w.work("n2")
	h.decide(1.5)
	h.decide(2)
	w.want("a", "+1 dispatched", "+2 dispatched")
	w.want("b", "+1 dispatched", "+2 dispatched")
}

// names returns n names that sort by their number.
func names(n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("t%05d", i))
	}
	return list
}

func TestWorker_DecidesInTheOrderOfTimeAndTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")

	// 150 tasks: the last 15 tick at +1, the others at +2.
	all := names(150)
	for c := range slices.Chunk(all[:135], 50) {
		w.createTogether(start, c, cronned("2 * * * * *"))
	}

	w.createTogether(start, all[135:], cronned("1 * * * * *"))
	h.gate.play(pass, h.dies)
	h.see()

	if err := h.try(2.5); err == nil {
		t.Fatal("all fit into one commit")
	}

	first := w.mark()
	if !first.Time.Equal(sec(2)) || first.Last == "" {
		t.Fatalf("the watermark is %+v: not within the herd of +2", first)
	}

	stories := w.stories()

	for i, name := range all {
		n := len(stories[name])
		if want := i >= 135 || "default/"+name <= first.Last; (n == 1) != want {
			t.Errorf("task %s has %d runs; the watermark is %s %s", name, n, first.Time, first.Last)
		}
	}
}

// Verifies: G4
func TestWorker_HerdIsSplitAndNoneLostWhenTheOwnerDiesInBetween(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()

	all := names(250)
	for c := range slices.Chunk(all, 50) {
		w.createTogether(start, c, every("1s"), allow)
	}

	h := w.work("n1")
	h.gate.play(pass, h.dies)

	if h.try(1) == nil {
		t.Fatal("all fit into two commits")
	}

	if m := w.mark(); !m.Time.Equal(sec(1)) || m.Last == "" {
		t.Fatalf("the watermark is %+v, not a partial one", m)
	}

	h = w.work("n2")
	h.gate.play(pass, h.diesAfter)
	_ = h.try(1.2)
	h = w.work("n1")
	h.decide(1.3)
	w.wantMark(1.2, "") // up to the time of the second commit
	w.wantAll(all, "+1 dispatched")
	h.decide(2)
	w.wantAll(all, "+1 dispatched", "+2 dispatched")
}

func TestWorker_TasksBehindAPartialWatermarkAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()

	all := names(250)
	for c := range slices.Chunk(all, 50) {
		w.createTogether(start, c, every("1s"), allow)
	}

	h := w.work("n1")
	h.gate.play(pass, h.dies)
	_ = h.try(1)
	done := w.mark().Last
	// When the next owner continues, all tasks have a second tick due. Those whose first tick is decided
	// are on time, the others are behind.
	w.work("n2").decide(2)
	n := slices.IndexFunc(all, func(name string) bool { return "default/"+name > done })
	w.wantAll(all[:n], "+1 dispatched", "+2 dispatched")
	w.wantAll(all[n:], "+1 missed came_to_light_late", "+2 dispatched")
}

// Verifies: G4
func TestWorker_EntryBehindTheWatermarkIsCaughtUpBeforeItIsCovered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	w.create("a", allow)
	h := w.work("n1")
	h.decide(1)
	h.decide(2)
	h.decide(3)
	created := w.createAt(sec(1.5), "b", allow, missed(task.MissedAll, 10))
	h.see()

	if w.mark().Seen >= created {
		t.Fatal("the entry is covered before its ticks are decided")
	}

	h.blind(3.2)
	w.want("b", "+2 dispatched", "+3 dispatched")
	w.wantMark(3, "")

	if m := w.mark(); m.Seen < created {
		t.Errorf("seen is %d, the entry was created at %d and is decided up to the watermark", m.Seen, created)
	}

	if f := w.from("b"); f != 3 {
		t.Errorf("from is +%g", f)
	}

	h.decide(4)
	w.want("b", "+2 dispatched", "+3 dispatched", "+4 dispatched")
}

// Verifies: G4
func TestWorker_SeenWaitsForAllEntriesOfARevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("a", allow)
	h := w.work("n1")
	h.decide(1)
	h.decide(2)
	// More than one commit can hold: each task has ten ticks up to the watermark.
	all := names(30)
	w.createTogether(sec(-8), all, allow, missed(task.MissedAll, 100))
	created := w.entryCreated(all[0])

	for pieces := 0; ; pieces++ {
		h.see()
		h.gate.play(pass, h.dies)
		died := h.try(2.1) != nil

		undecided := 0
		for _, from := range w.froms(all...) {
			if from < 2 {
				undecided++
			}
		}

		m := w.mark()
		if !m.Time.Equal(sec(2)) || (m.Seen >= created) != (undecided == 0) {
			t.Fatalf("with %d entries undecided, created at %d, the watermark is %+v", undecided, created, m)
		}

		if !died && undecided == 0 {
			if pieces < 2 {
				t.Fatalf("they took %d commits", pieces)
			}
			break
		}

		h = w.work([]string{"n2", "n1"}[pieces%2])
	}

	h.gate.tricks = nil
	h.decide(3)
	stories := w.stories()

	for _, name := range all {
		if got := stories[name]; len(got) != 11 {
			t.Fatalf("task %s: %q", name, got)
		}
	}

	w.wantMark(3, "")
}

func (w *world) entryCreated(name string) int64 {
	w.Helper()
	res, err := w.client.Get(w.ctx, w.store.Keys().Entry(ref(name)))
	w.ok(err)

	return res.Kvs[0].CreateRevision
}

func TestWorker_PausedTaskHasNoTicksAndStillRunsWhenAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", paused)
	h.decide(5)
	w.want("a")
	w.trigger("a")
	h.decide(6)
	w.want("a", "+5 dispatched manual")
	w.resume("a")
	h.decide(6.5)
	w.finish("a", task.Succeeded)
	h.decide(7)
	w.want("a", "+5 succeeded manual", "+7 dispatched")
}

// Verifies: G5
func TestWorker_ClockThatGoesBackDecidesNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("a", allow)
	h := w.work("n1")
	h.decide(4)
	h.decide(5)
	w.want("a", "+1..+3 missed 3 came_to_light_late", "+4 dispatched", "+5 dispatched")

	for _, s := range []float64{2, 3, 4.5} {
		h.decide(s)
		w.work("n2").decide(s)
		h = w.work("n1")
	}

	w.wantMark(5, "")
	h.decide(6)
	w.want("a", "+1..+3 missed 3 came_to_light_late", "+4 dispatched", "+5 dispatched", "+6 dispatched")
}

// The owner's clock is behind that of the owner before it. It finds entries with ticks up to the watermark
// that are still to come by its clock.
//
// Verifies: G6
func TestWorker_DecidesNoTickBeforeItsTimeForAnEntryBehindTheWatermark(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	w.create("a", allow)
	h := w.work("n1")
	h.decide(1)
	h.decide(2)
	h.decide(3)
	w.createAt(sec(1), "b", allow)
	h.decide(1.5)
	w.want("b")

	if m := w.mark(); m.Seen >= w.entryCreated("b") {
		t.Errorf("seen is %d: the entry of revision %d is covered while it has undecided ticks", m.Seen, w.entryCreated("b"))
	}

	if d := h.sleepFor(); d > 500*time.Millisecond {
		t.Errorf("sleeps for %s, the next tick is half a second away", d)
	}

	h.decide(2)
	w.want("b", "+2 dispatched")
	h.decide(3)
	w.want("b", "+2 dispatched", "+3 dispatched")
	w.wantMark(3, "")
	h.decide(4)
	w.want("b", "+2 dispatched", "+3 dispatched", "+4 dispatched")
	w.want("a", "+1 dispatched", "+2 dispatched", "+3 dispatched", "+4 dispatched")
}

// Verifies: G11
func TestWorker_TicksOfOneTaskNeverStartTwoRunsInOneRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", allow)
	w.trigger("a")
	w.trigger("a")
	h.decide(1)

	all := w.active("a")
	if len(all) != 3 {
		t.Fatalf("%d runs are active", len(all))
	}

	tokens := map[int64]bool{}
	for _, a := range all {
		tokens[a.Create] = true
	}

	if len(tokens) != 3 {
		t.Errorf("three runs have the tokens %v", tokens)
	}
}

// Verifies: G8
func TestWorker_OverlapSkipsWhileARunIsActiveOrWaitsToBeRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("skip", retries(2, 3*time.Second, task.Failed))
	w.create("allow", allow)
	h.decide(1)
	h.decide(2)
	w.want("skip", "+1 dispatched", "+2 skipped overlap")
	w.want("allow", "+1 dispatched", "+2 dispatched")
	w.finish("skip", task.Failed)
	h.decide(3)
	w.want("skip", "+1 queued retry #2", "+2..+3 skipped 2 overlap")
	h.decide(5.5)
	w.want("skip", "+1 dispatched #2", "+2..+3 skipped 2 overlap", "+4 missed came_to_light_late", "+5 skipped overlap")
}

// What the worker's own commits did to the queue is known before the watch delivers it.
func TestWorker_EventsOnTheirWayUndoNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", on("role = db"), cronned("1 * * * * *"))
	h.decide(1)
	w.want("a", "+1 queued no_matching_node")
	q := *h.state.records.TaskNamed("default/a").Queue()[0]
	w.join("db", "role=db")
	h.fleet()
	h.blind(1.1)
	w.want("a", "+1 dispatched")
	commits := h.gate.commits
	h.applyToShard(store.ShardBatch{Revision: q.Mod, Events: []store.ShardEvent{{
		ShardKey: record.ShardKey{Kind: record.KindQueued, Ref: ref("a"), Run: q.ID}, Task: "default/a", Mod: q.Mod, Create: q.Mod, Value: written(q.Waiting),
	}}})

	if n := len(h.state.records.TaskNamed("default/a").Queue()); n != 0 {
		t.Errorf("%d runs wait after the event of the one that is dispatched", n)
	}

	h.blind(1.15)
	h.decide(1.2)

	if n := len(h.state.records.TaskNamed("default/a").Queue()); n != 0 || h.gate.commits != commits || len(h.state.gone) != 0 {
		t.Errorf("%d runs wait, %d commits, gone %v", n, h.gate.commits-commits, h.state.gone)
	}

	w.want("a", "+1 dispatched")
}

func TestWorker_AnEndConcernsNoLaterAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	s := h.state.records.TaskNamed("default/a")
	h.state.addActiveAttempt(s, &state.Attempt{Run: "r", Node: "n1", Create: 10})
	h.state.applyAttemptEnd(s, "r", 10)
	h.state.applyAttemptEnd(s, "other", 11)

	if len(s.Active()) != 1 {
		t.Fatal("the attempt ended by what was there before it")
	}

	h.state.applyAttemptEnd(s, "r", 11)

	if len(s.Active()) != 0 {
		t.Error("the attempt did not end")
	}
}

func TestWorker_LoadsAShardOfSeveralPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")

	all := names(1001) // a page has 1000 records
	for c := range slices.Chunk(all, 60) {
		w.createTogether(start, c, cronned("0 * * * * *"), allow)
	}

	h := w.work("n1")
	if h.state.records.Tasks.Len() != len(all) || h.state.applied != h.state.records.WatermarkRev {
		t.Fatalf("%d tasks are loaded, up to revision %d; opened at %d", h.state.records.Tasks.Len(), h.state.applied, h.state.records.WatermarkRev)
	}

	h.decide(60)
	w.wantAll(all, "+60 dispatched")
	w.wantMark(60, "")
}
