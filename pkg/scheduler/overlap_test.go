package scheduler

import (
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func replaces(t *task.Task) { t.Overlap = task.OverlapReplace }
func queues(limit int, drop string) option {
	return func(t *task.Task) {
		t.Overlap, t.Queue = task.OverlapQueue, task.QueuePolicy{Limit: limit, Drop: drop}
	}
}
func atMost(n int) option {
	return func(t *task.Task) { t.Overlap, t.MaxActive = task.OverlapAllow, n }
}

func TestOverlap_QueueRunsTicksOneAfterAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", queues(2, ""))

	for s := 1; s <= 5; s++ {
		h.decide(float64(s))
	}

	w.want("a", "+1 dispatched", "+2 queued overlap", "+3 queued overlap", "+4..+5 skipped 2 queue_full")
	w.pause("a")
	w.finish("a", task.Succeeded)
	h.decide(6)
	w.want("a", "+1 succeeded", "+2 dispatched", "+3 queued overlap", "+4..+5 skipped 2 queue_full")
	h = w.work("n1") // another owner continues
	w.finish("a", task.Failed)
	h.decide(7)
	w.want("a", "+1 succeeded", "+2 failed", "+3 dispatched", "+4..+5 skipped 2 queue_full")
}

func TestOverlap_QueueDropsTheOldest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", queues(2, task.DropOldest))

	for s := 1; s <= 5; s++ {
		h.decide(float64(s))
	}

	w.want("a", "+1 dispatched", "+2 skipped dropped", "+3 skipped dropped", "+4 queued overlap", "+5 queued overlap")
	w.update("a", false, queues(1, task.DropOldest)) // too many wait now; they are dropped with the next tick
	h.decide(6)
	w.want("a", "+1 dispatched", "+2 skipped dropped", "+3 skipped dropped", "+4 skipped dropped", "+5 skipped dropped", "+6 queued overlap")
}

// A retry belongs to the run that is active. It starts before waiting ticks, is never dropped, and does not
// count toward the limit.
func TestOverlap_QueueLetsRetriesGoFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", queues(1, task.DropOldest), retries(2, 2*time.Second, task.Failed))
	h.decide(1)
	w.finish("a", task.Failed)
	h.decide(2)
	h.decide(2.5)
	w.want("a", "+1 queued retry #2", "+2 queued overlap")
	h.decide(3)
	w.want("a", "+1 dispatched #2", "+2 skipped dropped", "+3 queued overlap")
	w.ok(w.store.HandBack(w.ctx, w.active("a")[0]))
	h.decide(3.5)
	w.want("a", "+1 dispatched #2", "+2 skipped dropped", "+3 queued overlap")
}

func TestOverlap_QueueKeepsTicksInOrderWithoutANode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", queues(3, ""), on("role = db"))
	h.decide(1)
	h.decide(2)
	w.want("a", "+1 queued no_matching_node", "+2 queued no_matching_node")
	w.join("db", "role=db")
	h.fleet()
	h.decide(3)
	w.want("a", "+1 dispatched", "+2 queued no_matching_node", "+3 queued no_matching_node")
}

func TestOverlap_ReplaceCancelsThenStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", replaces)
	h.decide(1)
	h.decide(2)
	h.decide(2) // the watch has delivered the waiting tick
	w.want("a", "+1 dispatched", "+2 queued overlap")

	a := w.active("a")[0]
	if !a.CancelRequested || a.CancelReason != task.ReasonReplaced || a.CancelledBy != nil {
		t.Fatalf("the attempt that is to give way: %+v", a)
	}

	commits := h.gate.commits
	h.decide(2.5)

	if h.gate.commits != commits {
		t.Error("the cancel is requested more than once")
	}

	h.decide(3) // a third tick before the first run has ended: the second never runs
	h.decide(3)
	w.want("a", "+1 dispatched", "+2 cancelled replaced", "+3 queued overlap")
	w.finish("a", task.Cancelled)
	h.decide(3.5)
	w.want("a", "+1 cancelled replaced", "+2 cancelled replaced", "+3 dispatched")
}

// A replacement is on record, so every owner completes it: it requests cancels that may not have been
// requested yet.
func TestOverlap_ReplaceIsSeenThroughByTheNextOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", replaces)
	h.decide(1)
	h.decide(2)
	w.want("a", "+1 dispatched", "+2 queued overlap")

	if w.active("a")[0].CancelRequested {
		t.Fatal("asked too early for this test")
	}

	h = w.work("n2")
	h.decide(2.5)

	if !w.active("a")[0].CancelRequested {
		t.Error("the next owner does not ask")
	}

	h = w.work("n1")
	commits := h.gate.commits
	h.decide(2.6)

	if h.gate.commits != commits {
		t.Error("a requested cancel is requested again")
	}

	w.finish("a", task.Cancelled)
	h.decide(2.7)
	w.want("a", "+1 cancelled replaced", "+2 dispatched")
}

// The attempt that must be cancelled fails, starts, or is handed back at the same moment. It is replaced in
// each case.
func TestOverlap_ReplaceWhileTheAttemptChanges(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(w *world, a record.Held){
		"runs": func(w *world, a record.Held) {
			a.State = task.Running
			_, err := w.store.Rewrite(w.ctx, w.sessions["n1"], a)
			w.ok(err)
		},
		"fails":          func(w *world, a record.Held) { w.end(a, task.Failed) },
		"is handed back": func(w *world, a record.Held) { w.ok(w.store.HandBack(w.ctx, a)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", replaces, retries(3, time.Hour, task.Failed))
			h.decide(1)
			h.decide(2)
			h.see()
			h.gate.play(before(func() { change(w, w.active("a")[0]) }))
			h.blind(2)

			for s := 2.1; s < 2.9; s += 0.2 {
				h.decide(s)
			}

			if name == "runs" {
				if a := w.active("a")[0]; !a.CancelRequested || a.State != task.Running {
					t.Fatalf("%+v", a)
				}

				w.finish("a", task.Cancelled)
				h.decide(2.9)
				w.want("a", "+1 cancelled replaced", "+2 dispatched")

				return
			}

			got := w.story("a")
			if len(got) != 2 || !slices.Contains([]string{"+1 cancelled replaced", "+1 cancelled replaced #2"}, got[0]) || got[1] != "+2 dispatched" {
				t.Errorf("%q", got)
			}
		})
	}
}

func TestOverlap_ReplaceEndsRetriesAndLeavesManualRunsWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", replaces, retries(2, time.Hour, task.Failed), cronned("*/10 * * * * *"))
	w.at(1)
	w.trigger("a")
	h.decide(1)
	w.at(2)
	w.trigger("a")
	w.finish("a", task.Failed)
	h.decide(2)
	w.want("a", "+1 queued manual retry #2", "+2 queued manual")
	h.decide(10)
	h.decide(10.1)
	w.want("a", "+1 cancelled manual replaced #2", "+2 queued manual", "+10 dispatched")
	w.finish("a", task.Succeeded)
	h.decide(11)
	w.want("a", "+1 cancelled manual replaced #2", "+2 dispatched manual", "+10 succeeded")
	h.decide(20) // a manual run that has begun is replaced as well
	h.decide(20)

	if !w.active("a")[0].CancelRequested {
		t.Error("the manual run stays")
	}
}

// A tick replaces older runs only. A newer tick that is decided while an older one waits to replace a run
// starts after that one.
func TestOverlap_ReplaceSparesWhatIsNewer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", replaces, missed(task.MissedAll, 1), func(t *task.Task) { t.Missed.Grace = task.Duration(time.Second) })
	h.decide(1)
	h.decide(2)
	w.want("a", "+1 dispatched", "+2 queued overlap")
	h.decide(9)
	h.decide(9.1)
	w.want("a", "+1 dispatched", "+2 queued overlap", "+3..+8 missed 6 came_to_light_late", "+9 queued catch_up")
	w.pause("a")
	w.finish("a", task.Cancelled)
	h.decide(9.2)
	w.want("a", "+1 cancelled replaced", "+2 dispatched", "+3..+8 missed 6 came_to_light_late", "+9 queued catch_up")
	w.finish("a", task.Succeeded)
	h.decide(9.3)
	w.want("a", "+1 cancelled replaced", "+2 succeeded", "+3..+8 missed 6 came_to_light_late", "+9 dispatched")
}

// A run that was cancelled for a tick ends as replaced, even if that tick could not start in time.
func TestOverlap_ReplaceByATickThatComesTooLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", replaces, func(t *task.Task) { t.Deadline = task.Duration(3 * time.Second) })
	h.decide(1)
	h.decide(2)
	w.pause("a")
	h.decide(2.1)
	h.decide(6)
	w.want("a", "+1 dispatched", "+2 missed start_deadline")
	w.finish("a", task.Cancelled)
	h.decide(7)
	w.want("a", "+1 cancelled replaced", "+2 missed start_deadline")
}

// An owner that is about to cancel a run learns from the conflict that the task's policy is no longer
// replace.
//
// Verifies: G7
func TestOverlap_ReplaceWasSwitchedOffUnseen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", replaces)
	h.decide(1)
	h.decide(2)
	h.see()
	w.update("a", false, func(t *task.Task) { t.Overlap = task.OverlapSkip })
	h.blind(2.1)

	if active := w.active("a"); len(active) != 1 || active[0].CancelRequested {
		t.Errorf("active are %+v", active)
	}
}

// The node of the run that must be replaced is silent. The replacing tick waits until that run is lost.
func TestOverlap_ReplaceWaitsForASilentNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", replaces, on("node = n2"), cronned("*/10 * * * * *"))
	h.decide(10)
	w.update("a", false, on("node = n1"))
	w.leave("n2")
	h.fleet()
	h.decide(20)
	h.decide(25)
	w.want("a", "+10 dispatched", "+20 queued overlap")
	w.pause("a")

	for s := 30.; s <= 150; s += 60 {
		h.decide(s)
	}

	w.want("a", "+10 lost node_lost", "+20 dispatched")
}

func TestOverlap_ReplaceOfACatchUpGoesAtItsPace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	h.pace(1)
	w.create("a", replaces, cronned("30 * * * * *"))
	h.decide(30)

	if !h.state.ports.tokens.Take(w.clock()) {
		t.Fatal("no token")
	}

	h.decide(110) // the tick of +90 is late
	h.decide(110)
	w.want("a", "+30 dispatched", "+90 queued catch_up overlap")

	if !h.state.ports.tokens.Take(w.clock()) {
		t.Fatal("no token")
	}

	w.finish("a", task.Cancelled)
	h.decide(110.1)
	w.want("a", "+30 cancelled replaced", "+90 queued catch_up")
	h.decide(111.2)
	w.want("a", "+30 cancelled replaced", "+90 dispatched catch_up")
}

func TestOverlap_AtMostSoManyAreActive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", atMost(2), retries(2, 10*time.Second, task.Failed))

	for s := 1; s <= 4; s++ {
		h.decide(float64(s))
	}

	w.want("a", "+1 dispatched", "+2 dispatched", "+3 queued max_active", "+4 queued max_active")
	w.pause("a")
	w.finish("a", task.Failed) // its retry waits, and is one of the two
	h.decide(5)
	w.want("a", "+1 queued retry #2", "+2 dispatched", "+3 queued max_active", "+4 queued max_active")
	w.trigger("a")
	w.finish("a", task.Succeeded)
	h.decide(6)
	w.want("a", "+1 queued retry #2", "+2 succeeded", "+3 dispatched", "+4 queued max_active", "+5 queued manual")
	h.decide(14)
	w.want("a", "+1 dispatched #2", "+2 succeeded", "+3 dispatched", "+4 queued max_active", "+5 queued manual")
	w.finish("a", task.Succeeded)
	w.finish("a", task.Succeeded)
	h.decide(15)
	w.want("a", "+1 succeeded #2", "+2 succeeded", "+3 succeeded", "+4 dispatched", "+5 dispatched manual")
}

// The same with another owner at every moment. The checker judges at every revision which runs are active
// at the same time.
//
// Verifies: G8
func TestOverlap_PoliciesThroughFailovers(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		opt  option
		want []string
	}{
		"queue":   {queues(2, task.DropOldest), []string{"+1 succeeded", "+2 skipped dropped", "+3 skipped dropped", "+4 succeeded", "+5 succeeded"}},
		"replace": {replaces, []string{"+1 cancelled replaced", "+2 cancelled replaced", "+3 cancelled replaced", "+4 cancelled replaced", "+5 succeeded"}},
		"two":     {atMost(2), []string{"+1 succeeded", "+2 succeeded", "+3 succeeded", "+4 succeeded", "+5 succeeded"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1", "n2")
			w.record()
			w.create("a", c.opt)

			for s := 1; s <= 5; s++ {
				for i := range 3 { // two owners die, before or after their commit
					h := w.work([]string{"n1", "n2"}[i%2])
					h.gate.play([]trick{h.dies, h.diesAfter, pass}[i])
					_ = h.try(float64(s))
				}
			}

			w.pause("a")
			h := w.work("n1")

			for i := range 12 {
				h.decide(6 + float64(i)/10)
				h.decide(6 + float64(i)/10)

				for _, a := range w.active("a") {
					if a.CancelRequested {
						w.end(a, task.Cancelled)
					} else if name != "replace" || len(w.story("a")) == 5 && a.ScheduledTime.Equal(sec(5)) {
						w.end(a, task.Succeeded)
					}
				}
			}

			w.want("a", c.want...)
			w.judge(check.Options{Ended: true})
		})
	}
}

// A queued run that is past its start deadline is missed when the owner finds it. The worker wakes up for
// that.
func TestDeadline_OfWhatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	deadline := func(t *task.Task) { t.Deadline = task.Duration(4 * time.Second) }
	w.create("a", queues(3, ""), deadline, cronned("*/2 * * * * *"))
	w.create("b", on("role = db"), deadline, cronned("2 * * * * *"))
	w.create("c", deadline, cronned("2 * * * * *"), retries(2, time.Hour, task.Failed))
	h.decide(2)

	if a := w.active("a"); len(a) != 1 || !a[0].StartBefore.Equal(sec(6)) {
		t.Fatalf("%+v", a)
	}

	w.finish("c", task.Failed)
	h.decide(4)
	w.pause("a")
	h.decide(6)
	w.want("a", "+2 dispatched", "+4 queued overlap")
	w.want("b", "+2 queued no_matching_node")

	if d := h.sleepFor(); d <= 0 || d > 100*time.Millisecond {
		t.Errorf("it sleeps for %s", d)
	}

	h.blind(6.2)
	w.want("b", "+2 missed no_matching_node")
	h = w.work("n1")
	h.decide(8)
	w.want("a", "+2 dispatched", "+4 queued overlap")
	h.decide(8.1)
	w.want("a", "+2 dispatched", "+4 missed start_deadline")
	w.want("c", "+2 queued retry #2") // it has started before
}

// A run that was handed back has not started, so its deadline applies.
func TestDeadline_OfWhatWasHandedBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("2 * * * * *"), func(t *task.Task) { t.Deadline = task.Duration(4 * time.Second) })
	h.decide(2)
	w.ok(w.store.HandBack(w.ctx, w.active("a")[0]))
	h.decide(7)
	w.want("a", "+2 missed start_deadline")
}

func TestDeadline_OfATickThatIsDecidedLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("0 * * * * *"), func(t *task.Task) { t.Deadline = task.Duration(4 * time.Second) })
	h.decide(64) // on time, because it is within its grace
	h.decide(125)
	h.decide(400) // late: 180, 240, 300, 360
	w.want("a", "+60 dispatched", "+120 missed start_deadline", "+180..+360 missed 4 start_deadline")
}

func TestTaskState_CountsWhatIsActiveAndWhatWaits(t *testing.T) {
	t.Parallel()
	queued := func(trigger, reason string, attempt int) *state.Waiting {
		return &state.Waiting{Waiting: task.Waiting{Run: task.Run{ID: "r", Trigger: trigger, Reason: reason, Attempt: attempt}}}
	}

	taskWith := func(l state.Activity) state.Task {
		return state.Task{Text: "default/aothr", NameLen: uint16(len("default/a")), UIDLen: uint8(len("othr")), Present: true, Activity: &l}
	}

	waits := func(list ...*state.Waiting) state.Task { return taskWith(state.Activity{Queue: list}) }
	// Runs of a deleted task whose name another task has now.
	former := task.RunID(sec(1), "gone")
	formerRetry := queued(task.TriggerSchedule, task.ReasonRetry, 2)
	formerRetry.ID = former
	for _, c := range []struct {
		name string
		t    state.Task
		want tickpolicy.Activity
	}{
		{"nothing", state.Task{}, tickpolicy.Activity{}},
		{"active", taskWith(state.Activity{Active: []*state.Attempt{{}}}), tickpolicy.Activity{Active: 1}},
		{"a tick's run waits", waits(queued(task.TriggerSchedule, task.ReasonNoNode, 1)), tickpolicy.Activity{Ticks: 1, All: 1}},
		{"for others", waits(queued(task.TriggerSchedule, task.ReasonOverlap, 1), queued(task.TriggerCatchUp, task.ReasonLimit, 1)), tickpolicy.Activity{Ticks: 2, Held: 2, All: 2}},
		{"for its turn", waits(queued(task.TriggerCatchUp, task.ReasonCatchUp, 1)), tickpolicy.Activity{Ticks: 1, Late: 1, All: 1}},
		{"a manual run waits", waits(queued(task.TriggerManual, task.ReasonManual, 1)), tickpolicy.Activity{All: 1}},
		{"a manual run's retry waits", waits(queued(task.TriggerManual, task.ReasonRetry, 2)), tickpolicy.Activity{Begun: 1, All: 1}},
		{"a run was handed back", waits(queued(task.TriggerCatchUp, task.ReasonHandBack, 1)), tickpolicy.Activity{Begun: 1, All: 1}},
		{"an attempt of a deleted task is active", taskWith(state.Activity{Active: []*state.Attempt{{Run: former}}}), tickpolicy.Activity{}},
		{"a retry of a deleted task waits", waits(formerRetry), tickpolicy.Activity{}},
	} {
		if got := c.t.Doing(0); got != c.want || got.Begun != c.t.DispatchedWaiting() {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
