package scheduler

import (
	"context"
	"fmt"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// abandoned returns a world in which node n2 has had an attempt of task a since +1, and is gone. Its owner
// has examined it at +10.
func abandoned(t *testing.T, opts ...option) (*world, *testWorker, record.Held) {
	t.Helper()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", append([]option{cronned("1 * * * * *"), on("node = n2")}, opts...)...)
	h.decide(1)
	a := w.active("a")[0]
	w.leave("n2")
	h.fleet()
	h.decide(10)

	return w, h, a
}

func TestLost_AfterLostAfterAndNotBefore(t *testing.T) {
	t.Parallel()
	w, h, a := abandoned(t)
	h.decide(129.9)
	w.want("a", "+1 dispatched", "+61 missed came_to_light_late", "+121 skipped overlap")

	if d := h.sleepFor(); d > 2*time.Second {
		t.Errorf("sleeps for %s", d)
	}

	h.decide(130)
	w.want("a", "+1 lost node_lost", "+61 missed came_to_light_late", "+121 skipped overlap")
	runs, err := w.store.Runs(w.ctx, ref("a"))
	w.ok(err)

	if last := runs[len(runs)-1]; last.Token != a.Create || last.Node != "n2" || last.EndedAt.IsZero() {
		t.Errorf("the lost run is %+v", last)
	}

	if n := h.e.cfg.Fleet.Given(placement.ProcessSlots)["n2"]; n != 0 {
		t.Errorf("%d attempts are still counted for n2", n)
	}

	h.decide(182)
	w.want("a", "+1 lost node_lost", "+61 missed came_to_light_late", "+121 skipped overlap", "+181 queued no_matching_node")
}

// The node of a request is gone. Nobody knows whether the request has arrived, and no process slot is counted.
func TestLost_RequestMayHaveReachedItsTarget(t *testing.T) {
	t.Parallel()
	w, h, a := abandoned(t, requests)

	if given := h.e.cfg.Fleet.Given(placement.HTTPSlots); given["n2"] != 1 || len(h.e.cfg.Fleet.Given(placement.ProcessSlots)) != 0 {
		t.Errorf("HTTP attempts are counted as %v", given)
	}

	h.decide(130)
	w.want("a", "+1 lost node_lost", "+61 missed came_to_light_late", "+121 skipped overlap")
	runs, err := w.store.Runs(w.ctx, ref("a"))
	w.ok(err)

	if last := runs[len(runs)-1]; last.Token != a.Create || last.Message != "its request may have reached its target" {
		t.Errorf("the lost run is %+v", last)
	}

	if given := h.e.cfg.Fleet.Given(placement.HTTPSlots); len(given) != 0 {
		t.Errorf("still counted: %v", given)
	}
}

// An attempt is lost after the time in its record, whatever the cluster's setting is by then, because its
// node uses the record as well.
//
// Verifies: G17
func TestLost_AfterTheLostAfterOfItsRecord(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		assigned, now, lease time.Duration
		want                 float64 // seconds until the attempt is lost
	}{
		"the setting is shorter now":     {5 * time.Minute, 12 * time.Second, 0, 300},
		"the setting is longer now":      {12 * time.Second, 5 * time.Minute, 0, 12},
		"it was the default":             {0, 12 * time.Second, 0, 120},
		"its node has a long lease":      {12 * time.Second, 12 * time.Second, 3 * time.Minute, 190},
		"the longest that there is":      {24 * time.Hour, 12 * time.Second, 0, 24 * 3600},
		"its node's lease is short, too": {30 * time.Second, 30 * time.Second, 2 * time.Second, 30},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "n1")
			w.joinAs(task.Node{Name: "n2", Slots: 1000, State: task.NodeReady, Roles: both, LeaseTTL: task.Duration(c.lease)})
			h := w.work("n1")
			setting := task.Duration(c.assigned)
			h.e.cfg.Cluster = func() task.Cluster { return task.Cluster{Shards: 1, LostAfter: setting} }
			w.create("a", cronned("1 0 * * * *"), on("node = n2"))
			h.decide(1)

			if got := w.active("a")[0].EffectiveLostAfter(); got.Std().Seconds() != c.want {
				t.Errorf("its record says %s", got)
			}

			setting = task.Duration(c.now)
			w.leave("n2")
			h.fleet()
			h.decide(10)
			h.decide(10 + c.want - 0.1)

			if got := w.story("a")[0]; got != "+1 dispatched" {
				t.Errorf("before that time it is %s", got)
			}

			h.decide(10 + c.want + 2) // the owner reads every two seconds

			if got := w.story("a")[0]; got != "+1 lost node_lost" {
				t.Errorf("after that time it is %s", got)
			}
		})
	}
}

func TestLost_SoonWhenItsInstanceIsProvedDead(t *testing.T) {
	t.Parallel()
	w, h, a := abandoned(t)
	w.ok(w.store.PutCleared(w.ctx, a.Instance, task.At(sec(10))))
	h.decide(11.9)
	w.want("a", "+1 dispatched")
	h.decide(12)
	w.want("a", "+1 lost node_lost")
}

func TestLost_SoonWhenProvedDeadOnlyLater(t *testing.T) {
	t.Parallel()
	w, h, a := abandoned(t)
	h.decide(20)
	w.ok(w.store.PutCleared(w.ctx, "another", task.At(sec(20))))
	h.decide(22)
	w.want("a", "+1 dispatched")
	w.ok(w.store.PutCleared(w.ctx, a.Instance, task.At(sec(22))))
	h.decide(22 + h.sleepFor().Seconds())
	w.want("a", "+1 lost node_lost")
}

func TestLost_WithRetryWaitsForItsNextAttempt(t *testing.T) {
	t.Parallel()
	w, h, a := abandoned(t, retries(2, 5*time.Second, task.Lost))
	h.decide(130)
	w.want("a", "+1 queued retry #2", "+61 missed came_to_light_late", "+121 skipped overlap")
	w.join("n2")
	h.fleet()
	h.decide(137)
	w.want("a", "+1 dispatched #2", "+61 missed came_to_light_late", "+121 skipped overlap")

	next := w.active("a")[0]
	if next.Create <= a.Create || len(next.Attempts) != 1 || next.Attempts[0].Token != a.Create || next.Attempts[0].State != task.Lost {
		t.Errorf("the next attempt is %+v", next)
	}
}

func TestLost_NotWhenTheNodeIsBack(t *testing.T) {
	t.Parallel()

	for _, seen := range []bool{true, false} { // whether the mirror of the nodes shows it
		w, h, _ := abandoned(t)
		h.decide(50)
		w.join("n2")

		if seen {
			h.fleet()
		}

		h.decide(130)
		h.decide(140)
		w.want("a", "+1 dispatched", "+61 missed came_to_light_late", "+121 skipped overlap")
		h.wantNoConflict()
		// Gone again: the time starts over.
		w.leave("n2")
		h.fleet()
		h.decide(150)
		h.decide(269)

		if got := w.story("a")[0]; got != "+1 dispatched" {
			t.Errorf("seen %t: after another 119 s: %s", seen, got)
		}

		h.decide(271)

		if got := w.story("a")[0]; got != "+1 lost node_lost" {
			t.Errorf("seen %t: after another 121 s: %s", seen, got)
		}
	}
}

func TestLost_NotWhenTheRecordWasAdopted(t *testing.T) {
	t.Parallel()
	w, h, a := abandoned(t)
	w.join("n2")
	session := w.sessions["n2"]
	a.Instance = "n2-3"
	mod, err := w.store.Rewrite(w.ctx, session, a)
	w.ok(err)
	w.leave("n2")
	h.decide(130)
	w.want("a", "+1 dispatched", "+61 missed came_to_light_late", "+121 skipped overlap")
	h.wantNoConflict()

	for s := 132.0; s < 250; s += 2 { // what it has read now must be unchanged for two minutes
		h.decide(s)
	}

	if got := w.active("a"); len(got) != 1 || got[0].Mod != mod {
		t.Fatalf("active are %+v", got)
	}
}

// wantNoConflict checks that the second reading has found the change, before a commit of other decisions
// failed because of it.
func (tw *testWorker) wantNoConflict() {
	tw.world.Helper()
	var d dto.Metric
	tw.world.ok(tw.e.metrics.Commits.WithLabelValues("conflict").Write(&d))

	if n := d.GetCounter().GetValue(); n > 0 {
		tw.world.Errorf("%v commits had a conflict", n)
	}
}

func TestLost_CommitComparesNodeAndRecordOnceMore(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(w *world, a record.Held){
		"back": func(w *world, _ record.Held) { w.join("n2") },
		"adopted": func(w *world, a record.Held) {
			w.join("n2")
			_, err := w.store.Rewrite(w.ctx, w.sessions["n2"], a)
			w.ok(err)
			w.leave("n2")
		},
		"ended": func(w *world, a record.Held) { w.end(a, task.Succeeded) },
	} {
		t.Run(name, func(t *testing.T) {
			w, h, a := abandoned(t)
			h.decide(120)
			h.see()
			h.gate.play(before(func() { change(w, a) }))
			h.bounded(t, 130)

			want := "+1 dispatched"
			if name == "ended" {
				want = "+1 succeeded"
			}

			h.decide(131)
			h.decide(140)

			if got := w.story("a")[0]; got != want {
				t.Errorf("it is %s", got)
			}
		})
	}
}

// The commit of a lost attempt takes ten seconds, and finds that the node has ended the attempt meanwhile. The wait of the next attempt is
// counted from then, not from when the commit began: otherwise its time would look like that of a wrong clock.
//
// Verifies: G24
func TestLost_RetryAfterASlowCommitWaits(t *testing.T) {
	t.Parallel()
	w, h, a := abandoned(t, retries(2, 5*time.Second, task.Failed, task.Lost))
	h.decide(120)
	h.see()
	h.gate.play(before(func() {
		w.at(140)
		w.end(a, task.Failed)
	}))
	h.blind(130)
	w.join("n2")
	h.fleet()
	h.blind(141)

	if got := w.story("a")[0]; got != "+1 queued retry #2" {
		t.Errorf("before its time, it is %s", got)
	}

	h.decide(147)
	if got := w.story("a")[0]; got != "+1 dispatched #2" {
		t.Errorf("at its time, it is %s", got)
	}
}

// A conflict because of another task's record in the same commit must not make the attempt wait for two
// more minutes.
func TestLost_ConflictOfAnotherTaskDoesNotBeginTheWaitAnew(t *testing.T) {
	t.Parallel()
	w, h, _ := abandoned(t)
	w.create("m", cronned("@manual"))
	h.decide(120)
	w.trigger("m")
	h.see()
	h.gate.play(before(func() { w.update("m", false) }))
	h.blind(130)
	h.decide(130.1)

	if got := w.story("a")[0]; got != "+1 lost node_lost" {
		t.Errorf("it is %s", got)
	}
}

func TestLost_RefusedCommitDoesNotBeginTheWaitAnew(t *testing.T) {
	t.Parallel()
	w, h, _ := abandoned(t)
	h.decide(122)
	h.gate.play(refused)
	h.decide(130)
	h.decide(132)

	if got := w.story("a")[0]; got != "+1 lost node_lost" {
		t.Errorf("it is %s", got)
	}
}

func TestLost_OfADeletedTaskHasNoSuccessorAndLeavesNothing(t *testing.T) {
	t.Parallel()
	w, h, _ := abandoned(t, retries(3, time.Second, task.Lost))
	w.remove("a")
	w.create("a", cronned("@manual"))
	h.decide(130)
	h.decide(140)
	h.decide(150)
	w.want("a")
}

func TestWorker_AttemptThatEndsBetweenOpenAndScan(t *testing.T) {
	t.Parallel()

	for _, c := range []string{"before the scan", "after the scan, told before", "after the scan, told after"} {
		t.Run(c, func(t *testing.T) {
			w := newWorld(t, "n1", "n2").judged()
			w.create("a", retries(2, time.Second, task.Failed))
			w.create("b")
			w.work("n1").decide(1)
			h := w.startOwner("n2")
			w.ok(h.load())
			end := func() { w.finish("a", task.Failed); w.finish("b", task.Succeeded) }

			switch c {
			case "before the scan":
				end()
				h.scan()
				h.see()
			case "after the scan, told before":
				keys, _, err := w.store.ScanActive(w.ctx)
				w.ok(err)
				end()
				h.see()
				h.applyActiveScan(keys)
			default:
				h.scan()
				end()
				h.see()
			}

			if n := h.e.cfg.Fleet.Given(placement.ProcessSlots)["n1"]; n != 0 {
				t.Errorf("%d attempts are counted for n1", n)
			}

			h.blind(2)
			w.want("a", "+1 dispatched #2", "+2 skipped overlap")
			w.want("b", "+1 succeeded", "+2 dispatched")

			if h.state.endedSince != nil {
				t.Error("the ends since the opening are kept for ever")
			}
		})
	}
}

// The record of an attempt on an absent node cannot be read, so it is unknown for how long the node lets it
// run. The task waits for the longest possible time, even if an instance is proved dead, and then
// continues.
func TestLost_WhenItsRecordCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2")
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), on("node = n2"), retries(3, time.Second, task.Lost))
	h.decide(1)
	a := w.active("a")[0]
	key := w.store.Keys().Run("n2", ref("a"), a.ID)
	w.put(key, "{garbage")
	w.leave("n2")
	w.ok(w.store.PutCleared(w.ctx, a.Instance, task.At(sec(5))))
	h.fleet()
	h.decide(10)

	const longest = 24 * 3600
	for _, s := range []float64{130, 3600, longest + 9.9} {
		h.decide(s)
		if got := w.story("a"); len(got) > 0 && got[0] == "+1 lost node_lost" {
			t.Errorf("lost too soon, after %v s: %s", s-10, w.story("a"))
		}
	}

	h.decide(longest + 12) // the owner reads every two seconds

	if got := w.story("a")[0]; got != "+1 lost node_lost" {
		t.Fatalf("it is %s", got)
	}

	runs, err := w.store.Runs(w.ctx, ref("a"))
	w.ok(err)

	last := runs[len(runs)-1]
	if last.Node != "n2" || last.UID == "" || last.Message == "" || last.Trigger != task.TriggerSchedule {
		t.Errorf("the lost run is %+v", last)
	}

	if keys, _, err := w.store.ScanActive(w.ctx); err != nil || len(keys) != 0 {
		t.Errorf("left in inboxes: %v, %v", keys, err)
	}

	w.join("n2")
	h.fleet()
	h.decide(2*longest + 2)

	if got := w.story("a"); got[len(got)-1] != "+172801 dispatched" {
		t.Errorf("its task does not go on: %s", got)
	}
}

// As long as its node is present, the record is left to that node: its version may understand and run it.
func TestLost_NotWhileTheNodeOfAnUnreadableRecordIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2")
	h := w.work("n1")
	w.create("a", cronned("1 * * * * *"), on("node = n2"))
	h.decide(1)
	w.put(w.store.Keys().Run("n2", ref("a"), w.active("a")[0].ID), "{garbage")

	for s := 10.0; s < 300; s += 30 {
		h.decide(s)
	}

	if keys, _, err := w.store.ScanActive(w.ctx); err != nil || len(keys) != 1 {
		t.Errorf("in inboxes: %v, %v", keys, err)
	}
}

// Hundreds of attempts of a lost node are read by the hundred, not one by one, and ticks of other tasks do
// not wait for all of that.
func TestLost_ReadsManyAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2")
	h := w.work("n1")

	const many = maxReadingsPerRound + 100
	for i := range many {
		w.create(fmt.Sprintf("a%03d", i), cronned("1 * * * * *"), on("node = n2"))
	}

	h.decide(1)
	w.leave("n2")
	h.fleet()
	counted := &sightings{Store: h.e.cfg.Store}
	h.e.cfg.Store = counted
	h.decide(10)

	if counted.calls != 1 || counted.attempts != maxReadingsPerRound {
		t.Errorf("%d calls read %d attempts in the first round", counted.calls, counted.attempts)
	}

	if d := h.sleepFor(); d > 0 {
		t.Errorf("the others are looked at in %s only", d)
	}

	h.decide(10.1)

	if counted.attempts != many {
		t.Errorf("%d attempts read after two rounds", counted.attempts)
	}

	h.decide(130.2)
	h.decide(130.3)

	if keys, _, err := w.store.ScanActive(w.ctx); err != nil || len(keys) != 0 {
		t.Errorf("%d are still active, %v", len(keys), err)
	}
}

type sightings struct {
	Store
	calls, attempts int
}

func (s *sightings) Sightings(ctx context.Context, runs []record.RunKey) ([]store.Sighting, error) {
	s.calls++
	s.attempts += len(runs)
	return s.Store.Sightings(ctx, runs)
}
