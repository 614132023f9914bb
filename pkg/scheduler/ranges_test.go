package scheduler

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestRange_TicksSkippedForTheSameReasonAreOneRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a")

	for s := 1; s <= 4; s++ {
		h.decide(float64(s))
	}

	w.want("a", "+1 dispatched", "+2..+4 skipped 3 overlap")
	runs, err := w.store.ShardRuns(w.ctx, []int{0}, "")
	w.ok(err)

	if r := runs[0]; len(runs) != 1 || !r.CreatedAt.Equal(sec(2)) || !r.EndedAt.Equal(sec(4)) || !strings.HasPrefix(r.ID, "20260102T120002") {
		t.Errorf("%+v", runs)
	}

	h = w.work("n2") // does not know the range
	h.decide(5)
	h.decide(6)
	w.want("a", "+1 dispatched", "+2..+4 skipped 3 overlap", "+5..+6 skipped 2 overlap")
	w.finish("a", task.Succeeded)
	h.decide(7)
	h.decide(8)
	w.want("a", "+1 succeeded", "+2..+4 skipped 3 overlap", "+5..+6 skipped 2 overlap", "+7 dispatched", "+8 skipped overlap")
}

// Anything that happens between two skipped ticks, and another version of the task, ends a range.
func TestRange_EndsWithWhateverElseBecomesOfATick(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", queues(1, ""))

	for s := 1; s <= 4; s++ {
		h.decide(float64(s))
	}

	w.want("a", "+1 dispatched", "+2 queued overlap", "+3..+4 skipped 2 queue_full")
	w.update("a", false, func(t *task.Task) { t.Overlap, t.Queue = task.OverlapSkip, task.QueuePolicy{} })
	h.decide(5)
	w.want("a", "+1 dispatched", "+2 queued overlap", "+3..+4 skipped 2 queue_full", "+5 skipped overlap")
	w.update("a", true, every("2s"))
	h.decide(6)
	h.decide(8)
	w.pause("a")
	h.decide(10)
	w.at(11)
	w.resume("a")
	h.decide(12)
	w.want("a", "+1 dispatched", "+2 queued overlap", "+3..+4 skipped 2 queue_full", "+5 skipped overlap", "+6..+8 skipped 2 overlap", "+12 skipped overlap")

	if len(h.state.skippedSpans) != 1 {
		t.Errorf("%d ranges are remembered", len(h.state.skippedSpans))
	}

	w.remove("a")
	h.decide(13)

	if len(h.state.skippedSpans) != 0 {
		t.Error("the range of a task that is gone is remembered")
	}
}

// A range does not grow over a tick whose run somebody else has queued, on time or late.
func TestRange_EndsAtATickWhoseRunExists(t *testing.T) {
	t.Parallel()

	for _, at := range []float64{240, 299} {
		w := newWorld(t, "n1")
		h := w.work("n1")
		w.create("a", cronned("0 * * * * *"))
		for _, s := range []float64{60, 120, 180} {
			h.decide(s)
		}

		st, err := w.store.Task(w.ctx, ref("a"))
		w.ok(err)
		w.put(w.store.Keys().Queued(ref("a"), task.RunID(sec(240), st.Task.UID)), "{") // as of a newer version
		h.see()
		h.decide(at)
		h.decide(300)

		if got := w.story("a"); !slices.Contains(got, "+120..+180 skipped 2 overlap") || !slices.Contains(got, "+300 skipped overlap") {
			t.Errorf("decided at %v: %q", at, got)
		}
	}
}

// If the record was trimmed or changed, the next skipped tick begins a new range.
func TestRange_BeginsAnewIfItsRecordIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a")

	for s := 1; s <= 3; s++ {
		h.decide(float64(s))
	}

	past, err := w.store.History(w.ctx, ref("a"), false)
	w.ok(err)
	h.gate.play(before(func() { w.ok(w.store.TrimHistory(w.ctx, h.state.fences, ref("a"), past)) }))
	h.decide(4)
	h.decide(5)
	w.want("a", "+1 dispatched", "+4..+5 skipped 2 overlap")

	if len(h.state.due) != 1 || h.state.records.Tasks.Get("default/a").Bad {
		t.Error("the task is set aside")
	}
}

// A commit of unknown outcome counts once.
func TestRange_ThroughUnknownOutcomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a")
	h.decide(1)
	h.decide(2)
	h.gate.play(appliedButLost)
	h.decide(3)
	h.gate.play(lost)
	h.decide(4)
	h.gate.play(refused)
	h.decide(5)
	h.decide(5)
	h.decide(6)
	w.want("a", "+1 dispatched", "+2..+6 skipped 5 overlap")
}

func TestMissed_SaysWhyAndWhatProvesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("a", cronned("0 * * * * *"), func(t *task.Task) { t.Missed.Window = task.Duration(5 * time.Minute) })
	w.work("n1").decide(60)
	w.at(400)
	h := w.work("n2")
	h.decide(600)
	w.want("a", "+60 dispatched", "+120..+240 missed 3 past_window", "+300..+360 missed 2 no_owner", "+420..+540 missed 3 came_to_light_late", "+600 skipped overlap")
	runs, err := w.store.ShardRuns(w.ctx, []int{0}, "")
	w.ok(err)

	for _, r := range runs {
		says := map[string][]string{
			task.ReasonNoOwner:         {"n2 opened shard 0 at 2026-01-02T12:06:40Z", "decided up to 2026-01-02T12:01:00Z"},
			task.ReasonWindow:          {"decided at 2026-01-02T12:10:00Z", "missed.window is 5m"},
			task.ReasonCameToLightLate: {"decided at 2026-01-02T12:10:00Z", "n2 has owned shard 0 since 2026-01-02T12:06:40Z"},
		}[r.Reason]
		for _, words := range says {
			if !strings.Contains(r.Message, words) {
				t.Errorf("%s: %q does not say %q", r.Reason, r.Message, words)
			}
		}
	}
}

// In a shard in which nothing was decided yet, there is no watermark to mention.
func TestMissed_TellsOfNoWatermarkBeforeTheFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("0 * * * * *"))
	w.at(300)
	w.work("n1").decide(300)
	runs, err := w.store.ShardRuns(w.ctx, []int{0}, "")
	w.ok(err)

	told := false
	for _, r := range runs {
		told = told || r.State == task.Missed
		if strings.Contains(r.Message, "1970") || strings.Contains(r.Message, "decided up to") {
			t.Errorf("%s: %s", r.Reason, r.Message)
		}
	}

	if !told {
		t.Error("nothing was missed")
	}
}

// Opening the shard again, because of missed changes, does not begin a new ownership.
func TestMissed_BelongToTheOwnerThatOpensAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("0 * * * * *"))
	h := w.work("n1")
	w.at(300)
	h.open()
	h.decide(300)
	w.want("a", "+60..+240 missed 4 came_to_light_late", "+300 dispatched")
}

// A task without decisions for ten years is decided with few records and commits.
func TestMissed_TenYearsAreFewRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1") // not checked, because the checker would visit every tick
	w.createAt(start.AddDate(-10, 0, 0), "a", missed(task.MissedAll, 3))
	h := w.work("n1")
	h.decide(0)

	if got := w.story("a"); len(got) != 5 || h.gate.commits > 4 {
		t.Errorf("%q, in %d commits", got, h.gate.commits)
	}
}
