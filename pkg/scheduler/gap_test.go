package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// restore makes the present content of etcd that of a backup which was restored. What was due up to a time, in seconds after the start,
// may have been decided in the lost history. The nodes join again.
func (w *world) restore(until float64) *task.Gap {
	w.Helper()
	present, err := w.store.Present(w.ctx)
	w.ok(err)

	r := task.Restored{
		Epoch: present.Cluster.Epoch + 1, FromEpoch: present.Cluster.Epoch, ID: "r", At: task.At(w.clock()), Revision: present.Revision,
		BackupTime: task.At(start.Add(-time.Second)), Until: task.At(sec(until)),
	}
	c := present.Cluster.WithRestore(r)
	w.ok(w.store.ChangeCluster(w.ctx, present.Record(), c))

	for _, node := range slices.Sorted(maps.Keys(w.sessions)) {
		w.leave(node)
		w.join(node)
	}

	return c.Gap()
}

// workIn makes a node the owner after a restore. Its worker has loaded the shard.
func (w *world) workIn(gap *task.Gap, node string) *testWorker {
	w.Helper()
	f := w.assign(node)
	f.Gap = gap
	h := w.worker(node, f)
	h.open()

	return h
}

func TestGap_TicksAreMissedWhateverThePolicySays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("all", every("1m"), missed(task.MissedAll, 100))
	w.create("latest", every("1m"))
	w.create("often", every("1s"), missed(task.MissedAll, 3), allow)
	w.create("hourly", every("1h"))
	w.create("shadow", every("1m"), missed(task.MissedAll, 100), func(t *task.Task) { t.Shadow = true })
	w.create("after", after("10s"))
	w.create("at", cronned("@at 2026-01-02T12:10:00Z"))
	h.decide(0.5)
	h.die()

	w.at(3605)
	h = w.workIn(w.restore(3600), "n1")
	h.decide(3605)
	w.want("all", "+60..+3600 missed 60 restored")
	w.want("latest", "+60..+3600 missed 60 restored")
	if got := w.story("often"); len(got) < 3 || got[0] != "+1..+3600 missed 3600 restored" || got[1] != "+3601..+3602 missed 2 no_owner" {
		t.Errorf("often: %q", got)
	}
	w.want("hourly", "+3600 missed restored")
	w.want("shadow", "+60..+3600 missed 60 restored")
	w.want("at", "+600 missed restored")
	w.want("after", "+10 missed restored")

	// Ticks that are due later run as usual.
	h.decide(3660)
	w.want("all", "+60..+3600 missed 60 restored", "+3660 dispatched")
	w.want("latest", "+60..+3600 missed 60 restored", "+3660 dispatched")
	if got := w.story("after"); len(got) != 2 || !strings.Contains(got[1], " dispatched") {
		t.Errorf("after completion: %q", got)
	}
}

// A tick that is due at the moment, and would run.
func TestGap_TicksOnTimeAreMissed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("10s"))
	h.decide(1)
	h.die()

	w.at(9)
	h = w.workIn(w.restore(20), "n1") // the clock of the restore was ahead
	for _, at := range []float64{10, 20, 30} {
		h.decide(at)
	}
	w.want("a", "+10 missed restored", "+20 missed restored", "+30 dispatched")
}

func TestGap_ComesBeforeAFreeze(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("1m"))
	w.create("b", every("1h"))
	h.decide(0.5)
	w.freeze("")
	h.die()

	w.at(3700)
	h = w.workIn(w.restore(3600), "n1")
	h.decide(3720)
	w.want("a", "+60..+3600 missed 60 restored", "+3660..+3720 skipped 2 frozen")
	w.want("b", "+3600 missed restored")
}

// With jitter, the time at which a tick is due counts: until then, the lost history cannot have decided it.
//
// Verifies: G68
func TestGap_CountsWhenATickIsDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("1m"), jitter(time.Minute))
	ticks, dues := w.dues("a", 300)
	h.decide(0.5)
	h.die()

	if dues[2] <= ticks[2] {
		t.Fatalf("the tick +%g is due at +%g", ticks[2], dues[2])
	}
	w.at(dues[2])
	h = w.workIn(w.restore((ticks[2]+dues[2])/2), "n1")
	h.decide(dues[2])

	got := w.story("a")
	if want := "+60..+120 missed 2 restored"; len(got) != 2 || got[0] != want || !strings.HasSuffix(got[1], "dispatched") {
		t.Errorf("due at %v: %q", dues[:3], got)
	}
}

func TestGap_RunsThatWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	unplaced := on("node = n9")
	w.create("asked", manual, unplaced)
	w.create("asked-again", manual, unplaced, retries(3, time.Hour, task.Lost))
	w.create("ticked", cronned("1 0 12 2 1 *"), unplaced, retries(3, time.Hour, task.Lost))
	w.create("begun", cronned("1 0 12 2 1 *"), retries(3, time.Hour, task.Failed))
	w.create("begun-again", cronned("1 0 12 2 1 *"), retries(3, time.Minute, task.Failed, task.Lost))
	w.trigger("asked")
	w.trigger("asked-again")
	h.decide(1)
	w.finish("begun", task.Failed)
	w.finish("begun-again", task.Failed)
	h.decide(2)
	w.want("begun", "+1 queued retry #2")
	h.die()

	gap := w.restore(100)
	w.trigger("asked") // requested after the restore
	w.at(101)
	h = w.workIn(gap, "n1")
	h.decide(101)
	w.want("asked", "+0 lost manual restored", "+2 queued manual no_matching_node")
	w.want("asked-again", "+0 queued manual no_matching_node")
	w.want("ticked", "+1 missed restored")
	w.want("begun", "+1 lost restored #2")
	w.want("begun-again", "+1 dispatched #2")
	for name, want := range map[string]int{"asked": 1, "asked-again": 0, "ticked": 0, "begun": 1} {
		if got := w.dead(name); len(got) != want {
			t.Errorf("dead runs of %s: %q", name, got)
		}
	}
}

// Each of these runs becomes a record of history and a dead run with its variables. More of them wait than fit into one request of etcd.
func TestGap_MoreRunsThanACommitHasRoomFor(t *testing.T) {
	t.Parallel()

	for name, input := range map[string]task.ManualInput{"many": {}, "large": {Env: map[string]string{"DATA": strings.Repeat("x", 60<<10)}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			var names []string
			for i := range 60 {
				names = append(names, fmt.Sprintf("asked-%d", i))
			}
			w.createTogether(start, names, manual, on("node = n9"))
			h.decide(1)
			for _, name := range names {
				w.triggerWith(name, input)
			}
			h.die()

			gap := w.restore(100)
			w.at(101)
			h = w.workIn(gap, "n1")
			for range 8 {
				h.decide(101)
			}
			for _, name := range names {
				if got := w.dead(name); len(got) != 1 {
					t.Fatalf("dead runs of %s: %q", name, got)
				}
			}
		})
	}
}

// The last of these restores has lost nothing, but the records of the first one are still those of a backup.
func TestGap_AMoveLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("asked", manual, on("node = n9"))
	w.create("parts", cronned("1 0 12 2 1 *"), parts(3), stagger(time.Minute))
	w.create("a", every("1m"), missed(task.MissedAll, 100))
	w.trigger("asked")
	h.decide(1)
	h.decide(1)
	h.die()

	w.at(60)
	if gap := w.restore(-1); gap != nil {
		t.Fatalf("a move has the gap %+v", gap)
	}
	h = w.workIn(nil, "n1")
	h.decide(61)
	w.want("asked", "+0 queued manual no_matching_node")
	w.want("a", "+60 dispatched")
	if p := w.parent("parts"); p.State != task.Running || p.Fan.Cancel != "" {
		t.Errorf("the run with parts is %s %q", p.State, p.Fan.Cancel)
	}
}

// An attempt of the backup is lost as that of any node which is gone.
func TestGap_AttemptsInInboxes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("once", cronned("1 0 12 2 1 *"), on("node = n2"), pauseAfter(1))
	w.create("again", cronned("1 0 12 2 1 *"), on("node = n2"), retries(3, time.Minute, task.Lost))
	w.create("finished", cronned("1 0 12 2 1 *"), on("node = n2"))
	h.decide(1)
	h.die()

	gap := w.restore(100)
	w.leave("n2")
	w.at(101)
	h = w.workIn(gap, "n1")
	h.decide(101)
	w.finish("finished", task.Succeeded) // what a node has recorded is true
	h.decide(220)
	w.want("once", "+1 dispatched")
	h.decide(222)
	h.decide(223)
	w.want("once", "+1 lost restored")
	w.want("again", "+1 queued retry #2")
	w.want("finished", "+1 succeeded")
	if got := w.dead("once"); len(got) != 1 {
		t.Errorf("the dead runs of once are %q", got)
	}

	// It is no failure in a row.
	if w.entry("once").Paused {
		t.Error("the task is paused")
	}
	for _, r := range w.runs("once") {
		if !strings.Contains(r.Message, "restored on") {
			t.Errorf("the message is %q", r.Message)
		}
	}
}

func TestGap_RunsWithParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 2 1 *"), parts(4), on("node = n2"), retries(3, time.Minute, task.Lost, task.Failed))
	for range 6 {
		h.decide(1)
	}
	w.end(w.part("a", 0), task.Succeeded)
	w.end(w.part("a", 1), task.Failed) // waits for its next attempt
	h.die()

	gap := w.restore(100)
	w.leave("n2")
	w.at(101)
	h = w.workIn(gap, "n1")
	for _, at := range []float64{101, 222, 223, 224, 225} {
		h.decide(at)
	}
	w.want("a", "+1 lost restored")
	w.wantParts("a", "0 succeeded n2", "1 lost", "2 lost n2", "3 lost n2")
	if got := w.dead("a"); len(got) != 1 {
		t.Fatalf("the dead runs are %q", got)
	}

	// A retry gives out what has no success on record.
	list, err := w.store.DeadRuns(w.ctx, ref("a"))
	w.ok(err)
	if left := list[0].Fan.Left; !slices.Equal(left, task.PartNumbers{1, 2, 3}) {
		t.Errorf("a retry would give out %v", left)
	}
}

// All parts of the run had ended in the backup, so nothing is lost.
func TestGap_ARunWhosePartsHaveEndedEndsAsUsual(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 2 1 *"), parts(2))
	for range 4 {
		h.decide(1)
	}
	w.end(w.part("a", 0), task.Succeeded)
	w.end(w.part("a", 1), task.Succeeded)
	h.die()

	w.at(101)
	h = w.workIn(w.restore(100), "n1")
	h.decide(101)
	h.decide(101)
	w.want("a", "+1 succeeded")
}

func TestGap_Workflows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("active", cronned("1 0 12 2 1 *"), flow(orders()))
	w.create("between", cronned("1 0 12 2 1 *"), flow(map[string]task.Step{"first": {}, "second": needing("first")}))
	for range 4 {
		h.decide(1)
	}
	w.endStep("between", "first", task.Succeeded)
	h.die()

	gap := w.restore(100)
	w.leave("n2")
	w.at(101)
	h = w.workIn(gap, "n1")
	h.decide(101)
	h.decide(101)
	w.want("between", "+1 lost restored")
	if got := w.activeSteps("between"); len(got) != 0 {
		t.Errorf("steps %q have begun", got)
	}

	// Nothing of the other one begins either, not even its cleanup, when its step has ended.
	w.endStep("active", "extract", task.Succeeded, "files", `["x"]`)
	for range 4 {
		h.decide(102)
	}
	w.want("active", "+1 lost restored")
	if parts := w.flowParts("active"); !slices.Equal(parts, []string{"extract succeeded"}) {
		t.Errorf("the parts are %q", parts)
	}
	if len(w.dead("active")) != 1 || len(w.runData("active")) != 1 {
		t.Errorf("dead runs %q, data %q", w.dead("active"), w.runData("active"))
	}
}

// A trigger of the backup, and one that is sent afterwards for a run that had ended in the backup.
func TestGap_Triggers(t *testing.T) {
	t.Parallel()

	for name, isSent := range map[string]bool{"sent before the backup": true, "not sent before the backup": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1")
			h := w.work("n1")
			w.create("etl", manual)
			w.createDependent("report", runsAfter("etl"))
			h.ended("etl", task.Succeeded)
			if isSent {
				h.send()
				w.wantTriggers("report", 1)
			}
			h.die()

			gap := w.restore(100)
			w.at(101)
			h = w.workIn(gap, "n1")
			h.see()
			h.lookAtSources()
			h.e.sender.LookNow(h.ctx)
			h.send()
			h.decide(101)
			w.want("report", "+101 missed after restored")
			w.wantTriggers("report", 0)

			// An end after the restore starts the task as usual.
			w.at(102)
			h.ended("etl", task.Succeeded)
			h.send()
			h.decide(103)
			w.want("report", "+101 missed after restored", "+103 dispatched after")
		})
	}
}

// Otherwise the ttl would delete the only trace of what may have run.
func TestGap_TasksOutliveTheirTTL(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("lost", cronned("@at 2026-01-02T12:00:10Z"), ttl(time.Minute))
	w.create("ran", cronned("@at 2026-01-02T12:00:01Z"), ttl(time.Minute))
	h.decide(1)
	w.endAs("ran", task.Succeeded, 2)
	h.die()

	const week = 7 * 24 * 3600
	w.at(20)
	h = w.workIn(w.restore(15), "n1")
	h.wantDeletion("lost", 20, week+19, true)
	w.wantThere("ran", false)
	h.decide(week + 21)
	h.deleteExpired()
	w.wantThere("lost", false)
}

// The owner may have read the history before the task had a ttl, so only its newest records.
func TestGap_TasksOutliveATTLThatTheyGetLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("@at 2026-01-02T12:00:10Z"), ttl(time.Minute))
	h.decide(1)
	h.die()

	w.at(20)
	h = w.workIn(w.restore(15), "n1")
	h.decide(20)
	h.see()
	p := h.state.records.Tasks.Get("default/a").EnsurePast()
	p.Known, p.HasRestored, p.IsReadForTTL = true, false, false
	h.wantDeletion("a", 90, 200, true)
}
