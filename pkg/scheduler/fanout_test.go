package scheduler

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func parts(n int) option        { return func(t *task.Task) { t.Target.Parts = n } }
func count(n task.Count) option { return func(t *task.Task) { t.Target.Count = n } }
func succeed(s string) option   { return func(t *task.Task) { t.Target.Succeed = task.Succeed(s) } }
func stagger(d time.Duration) option {
	return func(t *task.Task) { t.Target.Stagger = task.Duration(d) }
}

// parent returns the record of the one run of a task with parts.
func (w *world) parent(name string) task.Run {
	w.Helper()
	runs, err := w.store.Runs(w.ctx, ref(name))
	w.ok(err)

	runs = slices.DeleteFunc(runs, func(r task.Run) bool { return r.Fan == nil })
	if len(runs) != 1 {
		w.Fatalf("%d runs of %s have parts", len(runs), name)
	}

	return runs[0]
}

// wantParts checks the states of the parts, in the order of their numbers.
func (w *world) wantParts(name string, want ...string) {
	w.Helper()
	p := w.parent(name)
	var got []string
	if p.State.Final() {
		for _, part := range p.Fan.Parts {
			got = append(got, fmt.Sprintf("%d %s %s", part.Index, part.State, part.Node))
		}
	} else {
		found, err := w.store.PartsOf(w.ctx, ref(name), p.ID)
		w.ok(err)

		for i := range p.Fan.Count {
			r, ok := found[i]
			switch {
			case slices.Contains(p.Fan.Left, i):
				got = append(got, fmt.Sprintf("%d left", i))
			case !ok:
				got = append(got, fmt.Sprintf("%d nowhere", i))
			default:
				got = append(got, fmt.Sprintf("%d %s %s", i, r.State, r.Node))
			}
		}
	}

	for i := range got {
		got[i] = strings.TrimSpace(got[i])
	}

	if !slices.Equal(got, want) {
		w.Errorf("parts are %q; want %q", got, want)
	}
}

// part returns the attempt of a part.
func (w *world) part(name string, index int) record.Held {
	w.Helper()

	for _, h := range w.active(name) {
		if _, i, ok := task.ParentOf(h.ID); ok && i == index {
			return h
		}
	}

	w.Fatalf("part %d of %s is not active", index, name)

	return record.Held{}
}

// left returns how many records of ended parts exist.
func (w *world) left() int {
	w.Helper()
	all, err := w.etcd.Get(w.ctx, w.store.Keys().PartsIn(0), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	w.ok(err)

	return len(all.Kvs)
}

func TestFanOut_PartsRunOnAnyNodesAndTheRunEndsWithTheLast(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), parts(3))
	h.decide(1)
	w.wantParts("a", "0 dispatched n1", "1 dispatched n1", "2 dispatched n1")

	tokens := map[int64]bool{}
	for _, a := range w.active("a") {
		tokens[a.Create] = true
		if a.PartCount != 3 || a.Trigger != task.TriggerPart {
			t.Errorf("a part is %+v", a.Run)
		}
	}

	if len(tokens) != 3 {
		t.Errorf("tokens are %v", tokens)
	}

	w.at(2)
	w.end(w.part("a", 1), task.Succeeded)
	w.end(w.part("a", 0), task.Succeeded)
	h.decide(3.5)

	if p := w.parent("a"); p.State != task.Running || p.Fan.Ended != 2 || p.Fan.Succeeded != 2 {
		t.Errorf("the run is %s, %+v", p.State, p.Fan)
	}

	w.end(w.part("a", 2), task.Succeeded)
	h.decide(4)
	w.want("a", "+1 succeeded")
	w.wantParts("a", "0 succeeded n1", "1 succeeded n1", "2 succeeded n1")
	h.decide(4.1)

	if n := w.left(); n != 0 {
		t.Errorf("%d records of parts are left", n)
	}
}

func TestFanOut_AllNodesThatMatchHaveAPartAndLaterOnesNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	w.join("d1", "role=db")
	w.join("d2", "role=db")
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), count(task.All), on("role = db"), succeed("50%"))
	h.decide(1)
	w.join("d3", "role=db")
	h.fleet()
	h.decide(1.1)
	w.wantParts("a", "0 dispatched d1", "1 dispatched d2")
	w.at(2)
	w.end(w.part("a", 0), task.Failed)
	w.end(w.part("a", 1), task.Succeeded)
	h.decide(2)
	w.want("a", "+1 succeeded")
}

func TestFanOut_FailsByItsRuleAndIsDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2", "n3").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), count(2))
	h.decide(1)
	w.at(2)
	w.end(w.part("a", 0), task.Failed)
	w.end(w.part("a", 1), task.Succeeded)
	h.decide(2)
	w.want("a", "+1 failed parts")

	p := w.parent("a")
	if p.Reason != task.ReasonParts || !strings.Contains(p.Message, "1 of 2 parts succeeded") {
		t.Errorf("it ended as %q: %s", p.Reason, p.Message)
	}

	dead, err := w.store.DeadRuns(w.ctx, ref("a"))
	w.ok(err)

	if len(dead) != 1 || !slices.Equal(dead[0].Fan.Left, []int{0}) || dead[0].Fan.Kept != 1 {
		t.Errorf("dead are %+v", dead)
	}
}

func TestFanOut_OverlapIsAboutTheRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("1s"), parts(2))
	h.decide(1)
	h.decide(2)
	w.end(w.part("a", 0), task.Succeeded)
	h.decide(3)
	w.end(w.part("a", 1), task.Succeeded)
	h.decide(3.5)
	h.decide(4)
	runs, err := w.store.Runs(w.ctx, ref("a"))
	w.ok(err)

	var got []string
	for _, r := range runs {
		if !task.IsPart(r.ID) {
			got = append(got, fmt.Sprintf("%s x%d", r.State, max(r.Count, 1)))
		}
	}

	if want := []string{"running x1", "skipped x2", "succeeded x1"}; !slices.Equal(got, want) {
		t.Errorf("runs are %q; want %q", got, want)
	}
}

// A run that has its parts does not wait, so it does not count toward the limit of the queue.
func TestFanOut_UnderWayDoesNotCountAsWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", every("1s"), parts(1), allow)
	h := w.work("n1")
	parent := h.state.records.Tasks.Get("default/a")
	for range tickpolicy.MaxWaiting {
		h.state.ensureActivity(parent).Queue = append(h.state.ensureActivity(parent).Queue, &state.Waiting{Waiting: task.Waiting{Run: task.Run{State: task.Running, FanOut: task.FanOut{Fan: &task.Fan{}}}}})
	}

	if d := parent.Doing(0); d.All != 0 || d.Begun != tickpolicy.MaxWaiting || parent.Policy.Rule.DecideWaitingTick(d) != tickpolicy.Wait {
		t.Errorf("it does %+v", d)
	}
}

func TestFanOut_FewerNodesThanItsCount_WaitsForThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), count(2))
	h.decide(1)
	w.want("a", "+1 queued number_of_nodes")
	w.join("n2")
	h.fleet()
	h.state.examineAll()
	h.decide(2)
	w.wantParts("a", "0 dispatched n1", "1 dispatched n2")
}

// Facts of nodes change without an event for the workers.
func TestFanOut_ThatWaitsForFactsIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("a", cronned("@every 1h"), count(2), on("disk_free > 10Gi"))
	w.trigger("a")
	h := w.work("n1")
	h.decide(1)
	h.decide(2) // the worker wakes up by itself
	nodes, err := w.store.Nodes(w.ctx)
	w.ok(err)
	free := int64(20 << 30)

	for i := range nodes {
		nodes[i].Facts = &task.Facts{Disk: 1 << 40, DiskFree: &free}
	}

	h.e.cfg.Fleet.Set(nodes)
	h.decide(2 + lookForFacts.Seconds())
	w.wantParts("a", "0 dispatched n1", "1 dispatched n2")
}

// A thousand parts take a thousand commits. Ticks that become due meanwhile are decided in between.
func TestFanOut_OtherTicksGoBetweenItsParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), parts(20))
	w.create("b", cronned("2 0 12 * * *"))
	h.see()
	h.gate.play(pass, pass, pass, before(func() { w.at(2) }))
	h.blind(1)

	if n := len(w.parent("a").Fan.Left); n < 10 {
		t.Errorf("%d parts are left when something else falls due", n)
	}

	h.decide(2)
	w.want("b", "+2 dispatched")

	if p := w.parent("a"); len(p.Fan.Left) > 0 || len(w.active("a")) != 20 {
		t.Errorf("%d parts are left, %d are active", len(p.Fan.Left), len(w.active("a")))
	}
}

func TestFanOut_StaggersItsParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), parts(3), stagger(5*time.Second))
	h.decide(1)
	w.wantParts("a", "0 dispatched n1", "1 left", "2 left")
	h.decide(5.9)
	w.wantParts("a", "0 dispatched n1", "1 left", "2 left")
	// Another owner continues.
	h = w.work("n1")
	h.decide(6.1)
	w.wantParts("a", "0 dispatched n1", "1 dispatched n1", "2 left")
	h.decide(11.2)
	w.wantParts("a", "0 dispatched n1", "1 dispatched n1", "2 dispatched n1")
}

func TestFanOut_AnotherOwnerGoesOnWithIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), parts(3), stagger(time.Second))
	h.decide(1)
	h.decide(2)
	w.end(w.part("a", 0), task.Succeeded)
	h = w.work("n2") // has not seen the end
	h.decide(3)
	w.wantParts("a", "0 succeeded n1", "1 dispatched n1", "2 dispatched n2")
	w.end(w.part("a", 1), task.Succeeded)
	w.end(w.part("a", 2), task.Succeeded)
	h = w.work("n1")
	h.decide(4)
	w.want("a", "+1 succeeded")
}

func TestFanOut_Cancelled_GivesNothingMoreOutAndEndsWhatRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), parts(3), stagger(time.Second), retries(3, time.Minute, task.Failed))
	h.decide(1)
	h.decide(2)
	w.end(w.part("a", 0), task.Failed) // waits for another attempt
	h.decide(2.1)
	w.wantParts("a", "0 queued", "1 dispatched n1", "2 left")
	_, err := w.store.CancelQueued(w.ctx, ref("a"), w.parent("a").ID, task.NewActor("ada"), w.clock())
	w.ok(err)
	h.decide(2.2)
	h.decide(3.2)
	w.wantParts("a", "0 cancelled", "1 dispatched n1", "2 left")

	a := w.part("a", 1)
	if !a.CancelRequested || !a.CancelledBy.Is("ada") {
		t.Fatalf("part 1 is not cancelled: %+v", a.Assigned)
	}

	w.end(a, task.Cancelled)
	h.decide(4)
	w.want("a", "+1 cancelled cancelled_by_user")
	w.wantParts("a", "0 cancelled", "1 cancelled n1", "2 cancelled")

	if p := w.parent("a"); !p.CancelledBy.Is("ada") || p.Reason != task.ReasonCancelled {
		t.Errorf("the run is %+v", p)
	}
}

// The commit that assigns a part compares the run's record. So it fails if the run was cancelled, even if
// the watch has not delivered that.
func TestFanOut_CancelledUnseen_GivesNothingMoreOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), parts(2), stagger(time.Second))
	h.decide(1)
	h.see()
	_, err := w.store.CancelQueued(w.ctx, ref("a"), w.parent("a").ID, task.NewActor("ada"), w.clock())
	w.ok(err)
	h.blind(3)
	w.wantParts("a", "0 dispatched n1", "1 left")

	if p := w.parent("a"); p.Fan.Cancel != task.ReasonCancelled || !p.CancelledBy.Is("ada") {
		t.Errorf("the run is %+v", p)
	}
}

// No part of a cancelled run gets another attempt, even if the watch has not delivered the cancel.
func TestFanOut_CancelledUnseen_TriesNoPartAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), parts(2), retries(3, time.Second, task.Failed))
	h.decide(1)
	w.end(w.part("a", 0), task.Failed)
	h.decide(1.1)
	_, err := w.store.CancelQueued(w.ctx, ref("a"), w.parent("a").ID, task.NewActor("ada"), w.clock())
	w.ok(err)
	h.blind(3)
	w.wantParts("a", "0 cancelled", "1 dispatched n1")
}

func TestFanOut_Replaced_GivesWayAsAWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("2s"), parts(2), stagger(time.Second), func(t *task.Task) { t.Overlap = task.OverlapReplace })
	h.decide(2)
	h.decide(4)
	h.decide(4.1)

	a := w.part("a", 0)
	if !a.CancelRequested || a.CancelReason != task.ReasonReplaced {
		t.Fatalf("part 0 is not cancelled: %+v", a.Assigned)
	}

	for _, a := range w.active("a") {
		w.end(a, task.Cancelled)
	}

	h.decide(5)
	h.decide(5.1)
	runs, err := w.store.Runs(w.ctx, ref("a"))
	w.ok(err)

	runs = slices.DeleteFunc(runs, func(r task.Run) bool { return task.IsPart(r.ID) })
	if len(runs) != 2 || runs[1].State != task.Cancelled || runs[1].Reason != task.ReasonReplaced || runs[0].State != task.Running {
		t.Errorf("runs are %+v", runs)
	}
}

// The replacing tick may miss its own start deadline while the parts end, or may be withdrawn.
func TestFanOut_Replaced_ByATickThatIsMissedSince(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("2s"), parts(1), func(t *task.Task) { t.Overlap, t.Deadline = task.OverlapReplace, task.Duration(time.Second) })
	h.decide(2)
	h.decide(4)
	h.decide(4.1)
	h.decide(5.2)
	w.update("a", false, func(t *task.Task) { t.Overlap = task.OverlapSkip })
	w.at(5.5)
	w.end(w.part("a", 0), task.Cancelled)
	h.decide(5.6)
	w.want("a", "+2 cancelled replaced", "+4 missed start_deadline")
}

func TestFanOut_PartOfALostNode_IsLostAndOthersGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2", "n3").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), count(task.All), succeed("any"))
	h.decide(1)
	w.leave("n3")
	h.fleet()
	h.state.examineAll()
	h.decide(2)
	w.end(w.part("a", 0), task.Succeeded)
	w.end(w.part("a", 1), task.Failed)
	h.decide(130)
	h.state.examineAll()
	h.decide(131)
	h.decide(132)
	w.want("a", "+1 succeeded")
	w.wantParts("a", "0 succeeded n1", "1 failed n2", "2 lost n3")
}

func TestFanOut_RetryOfALostPart_WaitsForItsOwnNodeAlone(t *testing.T) {
	t.Parallel()

	for _, back := range []bool{true, false} {
		w := newWorld(t, "n1", "n2").judged()
		h := w.work("n1")
		w.create("a", cronned("1 0 12 * * *"), count(task.All), retries(2, 0, task.Lost))
		h.decide(1)
		w.at(2)
		w.end(w.part("a", 0), task.Succeeded)
		w.leave("n2")
		h.fleet()
		h.state.examineAll()
		h.decide(3)
		h.state.examineAll()
		h.decide(124)
		w.wantParts("a", "0 succeeded n1", "1 queued")

		if back {
			w.join("n2")
			h.fleet()
			h.state.examineAll()
			h.decide(130)
			w.wantParts("a", "0 succeeded n1", "1 dispatched n2")
			continue
		}

		h.decide(245)
		h.decide(246)
		w.want("a", "+1 failed parts")
		w.wantParts("a", "0 succeeded n1", "1 lost")
	}
}

func TestFanOut_NodeGoneBeforeItsPart_LosesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), count(task.All), stagger(time.Minute))
	h.decide(1)
	w.end(w.part("a", 0), task.Succeeded)
	w.leave("n2")
	h.fleet()
	h.state.examineAll()
	h.decide(62)
	w.wantParts("a", "0 succeeded n1", "1 left")
	h.decide(183)
	h.decide(183.1)
	w.want("a", "+1 failed parts")
	w.wantParts("a", "0 succeeded n1", "1 lost n2")
}

func deadline(d time.Duration) option { return func(t *task.Task) { t.Deadline = task.Duration(d) } }

// Parts without a node are missed when their start deadline has passed. Parts that were assigned before
// continue, and count.
func TestFanOut_PartWithoutANodeIsMissedAtItsDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	w.join("n2", "role=db")
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), on("role = db"), parts(3), deadline(10*time.Second), succeed("1"))
	w.create("b", cronned("1 0 12 * * *"), on("role = db"), parts(3)) // there is no such node
	h.see()
	h.gate.play(pass, pass, pass, before(func() { w.leave("n2"); h.fleet() }))
	h.blind(1)

	gone := len(w.active("a"))
	if gone == 0 || gone == 3 {
		t.Fatalf("%d parts were given out", gone)
	}

	h.decide(10.9)

	if n := len(w.parent("a").Fan.Left); n != 3-gone {
		t.Errorf("%d parts are left before the deadline", n)
	}

	h.decide(11.2)
	h.decide(11.3)

	if p := w.parent("a"); len(p.Fan.Left) != 0 || p.State != task.Running {
		t.Errorf("after the deadline it is %+v", p.Fan)
	}

	for _, a := range w.active("a") {
		w.end(a, task.Succeeded)
	}

	h.decide(12)
	w.want("a", "+1 succeeded")

	for i, p := range w.parent("a").Fan.Parts {
		if i >= gone && (p.State != task.Missed || p.Reason != task.ReasonNoNode || p.Node != "" || p.Attempt != 0) {
			t.Errorf("part %d is %+v", i, p)
		}
	}

	if n := len(w.parent("b").Fan.Left); n == 0 {
		t.Error("without a deadline none is left")
	}
}

// A part that was handed back has not started, so its deadline applies. It does not apply to another
// attempt of a part.
func TestFanOut_PartThatIsHandedBackIsMissedAtItsDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	w.join("n2", "role=db")
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), on("role = db"), parts(3), deadline(10*time.Second), succeed("any"), retries(2, time.Second, task.Failed))
	h.decide(1)
	w.ok(w.store.HandBack(w.ctx, w.part("a", 0)))
	w.end(w.part("a", 1), task.Failed)
	w.leave("n2")
	h.fleet()
	h.decide(10.9)
	w.wantParts("a", "0 queued", "1 queued", "2 dispatched n2")
	h.decide(11.2)
	w.wantParts("a", "0 missed", "1 queued", "2 dispatched n2")
}

// With stagger, the deadline of each part counts from its turn, whether or not others were missed before,
// and whichever node owns the shard.
func TestFanOut_DeadlineOfAStaggeredPartCountsFromItsTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	w.join("n2", "role=db")
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), on("role = db"), parts(4), stagger(time.Minute), deadline(10*time.Second), succeed("any"))
	h.decide(1)
	w.wantParts("a", "0 dispatched n2", "1 left", "2 left", "3 left")
	w.end(w.part("a", 0), task.Succeeded)
	w.leave("n2")
	h.fleet()
	h.decide(61)
	h.decide(71)
	w.wantParts("a", "0 succeeded n2", "1 left", "2 left", "3 left")
	h.decide(71.2)
	w.wantParts("a", "0 succeeded n2", "1 missed", "2 left", "3 left")
	h = w.work("n1")
	h.decide(131)
	w.wantParts("a", "0 succeeded n2", "1 missed", "2 left", "3 left")
	h.decide(131.2)
	w.wantParts("a", "0 succeeded n2", "1 missed", "2 missed", "3 left")
	w.join("n2", "role=db")
	h.fleet()
	h.decide(181)
	w.wantParts("a", "0 succeeded n2", "1 missed", "2 missed", "3 dispatched n2")
}

func TestFanOut_OfADeletedTask_LeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), parts(3), stagger(time.Second))
	h.decide(1)
	h.decide(2)
	w.end(w.part("a", 0), task.Succeeded)
	w.remove("a")
	h.decide(2.5)

	a := w.part("a", 1)
	if !a.CancelRequested {
		t.Fatalf("part 1 is not cancelled: %+v", a.Assigned)
	}

	w.end(a, task.Cancelled)
	h.decide(3)
	h.decide(3.1)

	if n := w.left(); n != 0 || len(w.active("a")) > 0 || len(w.story("a")) > 0 {
		t.Errorf("%d records of parts are left, %q", n, w.story("a"))
	}
}

// Verifies: G26
func TestFanOut_RepeatedRunHasTheFailedPartsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2", "n3").judged()
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), count(task.All), func(t *task.Task) { t.Accept.Env = []string{"A"} })
	h.decide(1)
	w.end(w.part("a", 0), task.Succeeded)
	failed := w.part("a", 1)
	failed.Checkpoint = "row 17"
	w.end(failed, task.Failed)
	w.end(w.part("a", 2), task.Succeeded)
	h.decide(2)
	dead, err := w.store.DeadRuns(w.ctx, ref("a"))
	w.ok(err)

	if run := w.parent("a"); run.Fan.Checkpoints != nil || !maps.Equal(dead[0].Fan.Checkpoints, map[int]string{1: "row 17"}) {
		t.Errorf("checkpoints are %v with the run that has ended, %v with the dead one", run.Fan.Checkpoints, dead[0].Fan.Checkpoints)
	}

	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)
	w.at(3)
	w.ok(w.store.Revive(w.ctx, st, dead[0], task.Waiting{Run: task.Run{ID: task.ManualRunID(w.clock(), st.Task.UID), UID: st.Task.UID,
		ScheduledTime: task.At(w.clock()), CreatedAt: task.At(w.clock()), Attempt: 1, State: task.Queued, Reason: task.ReasonManual,
		Trigger: task.TriggerManual, Requests: task.Requests{RetryOf: dead[0].ID, CreatedBy: task.NewActor("ann"), EnvNames: []string{"A"}}, FanOut: task.FanOut{Fan: dead[0].Fan}}, Env: map[string]string{"A": "1"}}))
	h.decide(3)
	h.decide(3.1)
	asked := func(where string, r task.Run) {
		t.Helper()
		if !r.CreatedBy.Is("ann") || !slices.Equal(r.EnvNames, []string{"A"}) {
			t.Errorf("%s: asked for by %q with %q", where, r.CreatedBy, r.EnvNames)
		}
	}

	runs, err := w.store.Runs(w.ctx, ref("a")) // the newest first
	w.ok(err)
	asked("under way", runs[slices.IndexFunc(runs, func(r task.Run) bool { return r.Fan != nil && r.RetryOf != "" })])
	asked("its part", w.part("a", 1).Run)

	if all := w.active("a"); len(all) != 1 || all[0].Node != "n2" || all[0].PartCount != 3 || all[0].Checkpoint != "row 17" {
		t.Fatalf("active are %+v", all)
	}

	if waiting, err := w.store.Runs(w.ctx, ref("a")); err != nil || slices.ContainsFunc(waiting, func(r task.Run) bool { return r.Fan != nil && r.Fan.Checkpoints[1] != "" }) {
		t.Errorf("what a part has begun with is still with its run: %+v, %v", waiting, err)
	}

	w.end(w.part("a", 1), task.Succeeded)
	h.decide(4)
	w.want("a", "+1 failed parts", "+3 succeeded manual")
	runs, err = w.store.Runs(w.ctx, ref("a"))
	w.ok(err)
	asked("in the end", runs[slices.IndexFunc(runs, func(r task.Run) bool { return r.Fan != nil && r.RetryOf != "" })])
}

// Somebody deletes a record. The run does not wait for that part forever.
func TestFanOut_PartThatIsNowhere_IsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), parts(2))
	h.decide(1)
	a := w.part("a", 1)
	w.end(w.part("a", 0), task.Succeeded)
	w.delete(w.store.Keys().Run("n1", ref("a"), a.ID))
	h = w.work("n1")
	h.decide(2)
	w.wantParts("a", "0 succeeded n1", "1 nowhere")
	h.decide(123)
	h.decide(123.1)
	w.want("a", "+1 failed parts")
	w.wantParts("a", "0 succeeded n1", "1 lost")
}

// The number of parts is unknown. The run stays active, and no other run begins.
func TestFanOut_WhoseRecordCannotBeReadIsActive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("1s"), parts(2))
	h.decide(1)
	w.put(w.store.Keys().Queued(ref("a"), w.parent("a").ID), "{")
	h.decide(2)

	if n := len(w.active("a")); n != 2 {
		t.Errorf("%d parts are active", n)
	}
}

// The records of a run with the largest number of parts fit into a request to etcd, and into the room that
// the plan reserves.
func TestFanOut_AThousandPartsFit(t *testing.T) {
	t.Parallel()
	q := &state.Waiting{Waiting: task.Waiting{Run: task.Run{ID: task.RunID(start, "abcd"), FanOut: task.FanOut{Fan: &task.Fan{Count: task.MaxParts, Need: task.MaxParts}}}}}
	parent := &state.Task{Activity: &state.Activity{Returned: map[string]state.Returned{}}}
	for i := range task.MaxParts {
		node := fmt.Sprintf("%s%04d", strings.Repeat("n", task.MaxName-4), i)
		q.Fan.Nodes = append(q.Fan.Nodes, node)
		end := task.Run{ID: task.PartID(q.ID, i), State: task.TimedOut, Reason: task.ReasonTimeout, Node: node, Attempt: 100, Token: 1 << 50,
			StartedAt: task.At(sec(1)), EndedAt: task.At(sec(2)), ExitCode: new(int), Signal: "SIGKILL",
			Usage: task.Usage{CPUMS: 1000, MemoryPeak: 1 << 40, IORead: 1 << 40, IOWritten: 1 << 40}, Message: strings.Repeat("\x01", 1000),
			StatusReport: task.StatusReport{Results: map[string]string{"k": strings.Repeat("\x01", 200)}, Checkpoint: strings.Repeat("\x01", task.MaxCheckpoint)}}
		parent.Activity.Returned[end.ID] = state.Returned{Part: end.AsPart(), Parent: q.ID, Mod: 1}
	}

	end := state.ConcludeParts(parent, q, sec(3))
	if end.State != task.Failed || len(end.Fan.Parts) != task.MaxParts || len(end.Message) > 1024 {
		t.Fatalf("it ended as %s with %d parts: %s", end.State, len(end.Fan.Parts), end.Message)
	}

	if p := end.Fan.Parts[0]; p.Usage.CPUMS != 1000 || len(p.Message) != task.MaxPartMessage || len(p.Results) != 1 {
		t.Errorf("of the first part is kept: %+v", p)
	}

	if end.Usage != (task.Usage{CPUMS: 1000 * task.MaxParts, MemoryPeak: 1 << 40, IORead: task.MaxParts << 40, IOWritten: task.MaxParts << 40}) {
		t.Errorf("all of it used %+v", end.Usage)
	}

	record, err := json.Marshal(end)
	if err != nil {
		t.Fatal(err)
	}

	end.Fan = end.Fan.Again()
	dead, err := json.Marshal(end)
	if err != nil {
		t.Fatal(err)
	}

	if n := len(end.Fan.Checkpoints); n == 0 {
		t.Error("no checkpoint is kept")
	}

	if n := len(record) + len(dead); n > roomForParent {
		t.Errorf("the records of its end take %d bytes, and there is room for %d", n, roomForParent)
	}
}
