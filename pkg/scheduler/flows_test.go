package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// flow makes a task a workflow with these steps. Steps without an action run a process.
func flow(steps map[string]task.Step) option {
	return func(t *task.Task) {
		w := &task.Workflow{Steps: maps.Clone(steps)}
		for name, s := range w.Steps {
			if s.Process == nil && s.HTTP == nil && s.Noop == nil {
				s.Process = &task.Process{Command: []string{name}}
			}
			w.Steps[name] = s
		}
		t.Action = task.Action{Workflow: w}
	}
}

// needing is a step that begins after others.
func needing(needs ...string) task.Step { return task.Step{Needs: needs} }

// orders has a map of the files that its first step reports, and cleanup.
func orders() map[string]task.Step {
	return map[string]task.Step{
		"extract": {},
		"load": {
			Needs: []string{"extract"}, Map: "${steps.extract.results.files}", MaxParallel: 2,
			Process: &task.Process{Command: []string{"load"}, Env: map[string]string{"FILE": "${item}"}},
		},
		"pay":   {Needs: []string{"load"}, HTTP: &task.HTTP{URL: "http://svc.test/pay", Method: "POST"}},
		"clean": {Needs: []string{"pay"}, When: task.WhenAlways, Timeout: task.Duration(time.Minute)},
	}
}

// step returns the attempt of a step, NAME or NAME/ITEM.
func (w *world) step(name, step string) record.Held {
	w.Helper()

	for _, h := range w.active(name) {
		if stepName(h.Run) == step {
			return h
		}
	}

	w.Fatalf("step %s of %s is not active: %v", step, name, w.activeSteps(name))

	return record.Held{}
}

// stepName returns NAME or NAME/ITEM of a part of a workflow.
func stepName(r task.Run) string {
	if r.Item != nil {
		return fmt.Sprintf("%s/%d", r.Step, *r.Item)
	}
	return r.Step
}

// activeSteps returns the steps of a task that are in inboxes.
func (w *world) activeSteps(name string) (steps []string) {
	w.Helper()
	for _, h := range w.active(name) {
		steps = append(steps, stepName(h.Run))
	}
	slices.Sort(steps)

	return steps
}

// wantSteps checks which steps of a task are in inboxes.
func (w *world) wantSteps(name string, want ...string) {
	w.Helper()
	if got := w.activeSteps(name); !slices.Equal(got, want) {
		w.Errorf("active steps are %q; want %q", got, want)
	}
}

// endStep ends an attempt of a step.
func (w *world) endStep(name, step string, state task.State, results ...string) {
	w.Helper()
	h := w.step(name, step)
	end := h.Run
	end.State, end.EndedAt, end.Reason, end.StartedAt = state, task.At(w.clock()), why(h, state), h.DispatchedAt
	if state == task.Failed {
		end.ExitCode = new(1)
	}
	for i := 0; i < len(results); i += 2 {
		if end.Results == nil {
			end.Results = map[string]string{}
		}
		end.Results[results[i]] = results[i+1]
	}
	w.ok(w.store.Finish(w.ctx, h, end, executor.Next(h.Assigned, end, w.clock(), 0.5)))
}

// flowParts describes the parts of the run of a task that has ended: NAME/ITEM and the state, and "left" for those that did not begin.
func (w *world) flowParts(name string) (list []string) {
	w.Helper()
	p := w.parent(name)
	for _, part := range p.Fan.Parts {
		list = append(list, stepName(p.OfPart(part))+" "+string(part.State))
	}
	for _, i := range p.Fan.Left {
		list = append(list, stepName(p.OfPart(task.Part{Index: i}))+" left")
	}

	return list
}

// runData returns the runs of which data exist.
func (w *world) runData(name string) (runs []string) {
	w.Helper()
	prefix := w.store.Keys().RunDataOf(ref(name))
	all, err := w.etcd.Get(w.ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	w.ok(err)
	for _, e := range all.Kvs {
		runs = append(runs, strings.TrimPrefix(string(e.Key), prefix))
	}

	return runs
}

func TestFlow_StepsBeginAfterTheirNeedsAndGetTheirValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2")
	w.create("a", cronned("1 0 12 * * *"), flow(orders()))
	h := w.work("n1")
	h.decide(1)
	w.wantSteps("a", "extract")
	if got := w.runData("a"); len(got) != 1 || got[0] != w.parent("a").ID {
		t.Errorf("data of runs %q", got)
	}

	w.at(2)
	w.endStep("a", "extract", task.Succeeded, "files", `["a b","c",3]`)
	h.decide(2)
	w.wantSteps("a", "load/0", "load/1")
	if got := w.step("a", "load/0"); !maps.Equal(got.Values, map[string]string{"item": "a b", "item.index": "0"}) || got.Action.Process.Command[0] != "load" || got.Generation != 1 {
		t.Errorf("load/0 is %+v with values %v", got.Assigned, got.Values)
	}

	w.endStep("a", "load/1", task.Succeeded)
	h.decide(3)
	w.wantSteps("a", "load/0", "load/2")
	w.endStep("a", "load/0", task.Succeeded)
	w.endStep("a", "load/2", task.Succeeded)
	h.decide(4)
	w.wantSteps("a", "pay")
	if got := w.step("a", "pay"); got.Action.HTTP == nil {
		t.Errorf("pay is %+v", got.Action)
	}

	w.endStep("a", "pay", task.Succeeded)
	h.decide(5)
	w.wantSteps("a", "clean")
	if got := w.step("a", "clean"); got.Timeout != task.Duration(time.Minute) {
		t.Errorf("clean is %+v", got.Assigned)
	}

	w.endStep("a", "clean", task.Succeeded)
	h.decide(6)
	w.want("a", "+1 succeeded")
	h.decide(7)
	if n, data := w.left(), w.runData("a"); n != 0 || len(data) != 0 {
		t.Errorf("%d records of parts and data of runs %q are left", n, data)
	}
	if got, want := w.flowParts("a"), []string{"extract succeeded", "load/0 succeeded", "load/1 succeeded", "load/2 succeeded", "pay succeeded", "clean succeeded"}; !slices.Equal(got, want) {
		t.Errorf("parts %q; want %q", got, want)
	}
}

// cancelRun marks the run of a task, as the API does.
func (w *world) cancelFlow(name string, force bool) {
	w.Helper()
	w.changeParent(name, func(q *task.Waiting) {
		f := *q.Fan
		flow := *f.Flow
		f.Cancel, flow.Forced, f.Flow, q.Fan, q.CancelledBy = task.ReasonCancelled, force, &flow, &f, task.NewActor("ann")
	})
}

// changeParent changes the record of the run of a task, as the API does.
func (w *world) changeParent(name string, change func(*task.Waiting)) {
	w.Helper()
	key := w.store.Keys().Queued(ref(name), w.parent(name).ID)
	res, err := w.client.Get(w.ctx, key)
	w.ok(err)
	k, _ := w.store.Keys().ParseShard(key)
	q, err := record.DecodeWaiting(k, res.Kvs[0].Value)
	w.ok(err)
	change(&q)
	w.put(key, string(record.EncodeWaiting(q)))
}

// The new owner of each phase knows nothing but what is in etcd. The result is the same.
func TestFlow_OwnerChangesInEachPhase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("a", cronned("1 0 12 * * *"), flow(orders()))
	phase := func(at float64) *testWorker {
		h := w.work([]string{"n1", "n2"}[int(at)%2])
		h.decide(at)
		return h
	}

	h := w.work("n1")
	h.gate.play(pass, h.dies)
	_ = h.tryOnce(1)
	phase(1.5)
	w.wantSteps("a", "extract")
	w.endStep("a", "extract", task.Succeeded, "files", `["a","b"]`)
	phase(2)
	w.wantSteps("a", "load/0", "load/1")
	phase(3)
	w.wantSteps("a", "load/0", "load/1")
	w.endStep("a", "load/1", task.Succeeded)
	w.endStep("a", "load/0", task.Succeeded)
	phase(4)
	w.wantSteps("a", "pay")

	// The slot of the request is counted as one of a request, by a new owner, too.
	h = phase(5)
	if got := h.e.cfg.Fleet.Given(1); len(got) != 1 {
		t.Errorf("slots of requests: %v", got)
	}
	if got := h.e.cfg.Fleet.Given(0); len(got) != 0 {
		t.Errorf("slots of processes: %v", got)
	}

	w.endStep("a", "pay", task.Succeeded)
	phase(6)
	w.endStep("a", "clean", task.Succeeded)
	phase(7)
	w.want("a", "+1 succeeded")
	phase(8)
	if n, data := w.left(), w.runData("a"); n != 0 || len(data) != 0 {
		t.Errorf("%d records of parts and data of runs %q are left", n, data)
	}
}

// tryOnce is like decide for a worker that may crash.
func (tw *testWorker) tryOnce(at float64) error {
	tw.world.Helper()
	tw.see()
	tw.world.at(at)

	return tw.runRound(tw.ctx)
}

func TestFlow_FailureStopsTheRestAndBecomesDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(orders()))
	h := w.work("n1")
	h.decide(1)
	w.endStep("a", "extract", task.Succeeded, "files", `["a","b","c"]`, "unused", "x")
	h.decide(2)
	w.endStep("a", "load/1", task.Failed)
	h.decide(3)
	w.wantSteps("a", "load/0", "load/2") // items of the step that failed go on
	w.endStep("a", "load/0", task.Succeeded)
	w.endStep("a", "load/2", task.Succeeded)
	h.decide(4)
	w.wantSteps("a", "clean")
	w.endStep("a", "clean", task.Succeeded)
	h.decide(5)
	w.want("a", "+1 failed steps")

	if p := w.parent("a"); p.Message != "step load/1: exit code 1" {
		t.Errorf("the message is %q", p.Message)
	}

	dead, err := w.store.DeadRuns(w.ctx, ref("a"))
	w.ok(err)
	if len(dead) != 1 || len(dead[0].Fan.Parts) != 5 || dead[0].Fan.Flow == nil {
		t.Fatalf("dead are %+v", dead)
	}
	data := w.readRunData("a", dead[0].ID)
	if want := map[string]map[string]string{"extract": {"files": `["a","b","c"]`}}; len(data.Plan.Workflow.Steps) != 4 || fmt.Sprint(data.Results) != fmt.Sprint(want) {
		t.Errorf("its data are %+v", data)
	}
}

// readRunData returns the data of a run.
func (w *world) readRunData(name, run string) task.RunData {
	w.Helper()
	res, err := w.client.Get(w.ctx, w.store.Keys().RunData(ref(name), run))
	w.ok(err)
	if len(res.Kvs) == 0 {
		w.Fatalf("run %s has no data", run)
	}
	data, err := record.Decode[task.RunData](res.Kvs[0].Value)
	w.ok(err)

	return data
}

func TestFlow_CancelEndsAllButCleanup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(orders()), retries(5, time.Second))
	h := w.work("n1")
	h.decide(1)
	w.endStep("a", "extract", task.Succeeded, "files", `["a","b","c"]`)
	h.decide(2)
	w.cancelFlow("a", false)
	h.decide(3)
	for _, step := range []string{"load/0", "load/1"} {
		if a := w.step("a", step); !a.CancelRequested || a.CancelReason != task.ReasonCancelled {
			t.Errorf("%s is %+v", step, a.Assigned)
		}
	}

	w.endStep("a", "load/0", task.Cancelled)
	w.endStep("a", "load/1", task.Cancelled)

	// A new owner goes on with the cleanup.
	h = w.work("n1")
	h.decide(4)
	w.wantSteps("a", "clean")
	h.decide(5)
	if a := w.step("a", "clean"); a.CancelRequested {
		t.Error("the cleanup is cancelled")
	}

	w.endStep("a", "clean", task.Succeeded)
	h.decide(6)
	w.want("a", "+1 cancelled cancelled_by_user")
	if p := w.parent("a"); p.CancelledBy == nil || !slices.Equal(p.Fan.Left, []int{3}) {
		t.Errorf("it ended as %+v, %v left", p, p.Fan.Left)
	}

	dead, err := w.store.DeadRuns(w.ctx, ref("a"))
	w.ok(err)
	if len(dead) != 1 || len(w.runData("a")) != 1 {
		t.Errorf("dead are %+v, data of %q", dead, w.runData("a"))
	}
}

func TestFlow_ForcedCancelEndsCleanup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"load": {}, "clean": {Needs: []string{"load"}, When: task.WhenAlways, Timeout: task.Duration(time.Minute)}}))
	h := w.work("n1")
	h.decide(1)
	w.endStep("a", "load", task.Failed)
	h.decide(2)
	w.cancelFlow("a", true)
	h.decide(3)
	if a := w.step("a", "clean"); !a.CancelRequested {
		t.Error("the cleanup is not cancelled")
	}
	w.endStep("a", "clean", task.Cancelled)
	h.decide(4)
	w.want("a", "+1 cancelled cancelled_by_user")
}

// A part can be cancelled by itself while etcd is full. That cancels its run.
func TestFlow_CancelledPartCancelsTheRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"x": {}, "y": {}, "z": needing("y")}))
	h := w.work("n1")
	h.decide(1)
	w.wantSteps("a", "x", "y")
	w.endStep("a", "x", task.Cancelled)
	h.decide(2)
	h.decide(2.5)
	if a := w.step("a", "y"); !a.CancelRequested {
		t.Error("the other step goes on")
	}
	w.endStep("a", "y", task.Cancelled)
	h.decide(3)
	w.want("a", "+1 cancelled cancelled_by_user")
}

func TestFlow_TimeoutOfTheRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(orders()), func(t *task.Task) { t.Timeout = task.Duration(10 * time.Second) })
	h := w.work("n1")
	h.decide(1)
	h.decide(10.9)
	if w.step("a", "extract").CancelRequested {
		t.Error("it was cut too early")
	}
	h.decide(11)
	h.decide(11.1)
	if a := w.step("a", "extract"); !a.CancelRequested || a.CancelReason != task.ReasonTimeout {
		t.Errorf("extract is %+v", a.Assigned)
	}
	w.endStep("a", "extract", task.Cancelled)
	h.decide(12)
	w.wantSteps("a", "clean")
	w.endStep("a", "clean", task.Succeeded)
	h.decide(13)
	w.want("a", "+1 timed_out")
}

// The clock of a run stands still while it is frozen or paused.
func TestFlow_FreezeAndPauseDoNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"x": {}, "y": needing("x")}), func(t *task.Task) { t.Timeout = task.Duration(4 * time.Hour) })
	h := w.work("n1")
	h.decide(1)

	const hour = 3600
	frozen := task.Freezes{Holding: []task.Freeze{{Since: task.At(sec(100)), Reason: "x"}}}
	h.freeze(frozen)
	w.endStep("a", "x", task.Succeeded)
	h.decide(200)
	w.wantSteps("a") // nothing begins
	h.decide(6 * hour)
	thawed, _, _ := frozen.Unfreeze("", task.At(sec(6*hour+100)), nil)
	h.freeze(thawed)
	h.state.examineAll()
	h.decide(6*hour + 101)
	w.wantSteps("a", "y")
	if p := w.parent("a"); p.Fan.Cancel != "" {
		t.Errorf("it was cut: %s", p.Fan.Cancel)
	}

	// A pause of two hours, and then the rest of the four hours.
	w.changeParent("a", func(q *task.Waiting) { q.PausedAt = task.At(sec(7 * hour)) })
	h.decide(9 * hour)
	w.changeParent("a", func(q *task.Waiting) { q.PausedAt, q.PausedMS = task.Time{}, 2*hour*1000 })
	h.decide(12 * hour)
	if p := w.parent("a"); p.Fan.Cancel != "" {
		t.Errorf("it was cut: %s", p.Fan.Cancel)
	}
	h.decide(12*hour + 1.5)
	if p := w.parent("a"); p.Fan.Cancel != task.ReasonTimeout {
		t.Error("it was not cut")
	}
}

// A freeze and a pause that overlap hold the run once, also when both have ended.
func TestFlow_FreezeInAPauseCountsOnce(t *testing.T) {
	t.Parallel()
	const hour = 3600
	for _, c := range []struct {
		name                 string
		frozen, thawed, held float64 // in hours
	}{
		{"within the pause", 3, 5, 4},
		{"begins before it", 1, 3, 5},
		{"ends after it", 4, 8, 6},
		{"around it", 1, 8, 7},
		{"apart from it", 7, 8, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1")
			w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"x": {}}), func(t *task.Task) { t.Timeout = task.Duration(4 * time.Hour) })
			h := w.work("n1")
			h.decide(1)

			freezes := task.Freezes{Holding: []task.Freeze{{Since: task.At(sec(c.frozen * hour)), Reason: "x"}}}
			at := func(hours float64, do func()) func() {
				return func() { h.decide(hours * hour); do(); h.state.examineAll(); h.decide(hours*hour + 0.001) }
			}
			pause := func(paused bool, hours float64) func() {
				return at(hours, func() {
					if err := w.store.SetFlowPaused(t.Context(), ref("a"), w.parent("a").ID, paused, task.NewActor("ann"), sec(hours*hour)); err != nil {
						t.Fatal(err)
					}
				})
			}
			steps := map[float64]func(){
				2: pause(true, 2), 6: pause(false, 6),
				c.frozen: at(c.frozen, func() { h.freeze(freezes) }),
				c.thawed: at(c.thawed, func() {
					thawed, _, _ := freezes.Unfreeze("", task.At(sec(c.thawed*hour)), nil)
					h.freeze(thawed)
				}),
			}
			for _, hours := range slices.Sorted(maps.Keys(steps)) {
				steps[hours]()
			}

			h.decide((4 + c.held) * hour)
			if p := w.parent("a"); p.Fan.Cancel != "" {
				t.Errorf("it was cut before 4 h and the %v h in which it was held: %s", c.held, p.Fan.Cancel)
			}
			h.decide((4+c.held)*hour + 2)
			if p := w.parent("a"); p.Fan.Cancel != task.ReasonTimeout {
				t.Errorf("it was not cut after 4 h and the %v h in which it was held", c.held)
			}
		})
	}
}

// The record of freezes has only the latest ones. A freeze that is not in it any more holds the timeout of a run nevertheless, and
// once, if the run was paused meanwhile, too.
func TestFlow_ForgottenFreezeHoldsTheTimeout(t *testing.T) {
	t.Parallel()
	const hour = 3600
	for name, paused := range map[string]bool{"without a pause": false, "with a pause": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1")
			w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"x": {}}), func(t *task.Task) { t.Timeout = task.Duration(4 * time.Hour) })
			h := w.work("n1")
			h.decide(1)
			pause := func(pause bool, hours float64) {
				if paused {
					w.at(hours * hour)
					w.ok(w.store.SetFlowPaused(t.Context(), ref("a"), w.parent("a").ID, pause, task.NewActor("ann"), sec(hours*hour)))
				}
			}

			freezes := task.Freezes{Holding: []task.Freeze{{Since: task.At(sec(hour)), Reason: "x"}}}
			h.freeze(freezes)
			pause(true, 2)
			freezes, _, _ = freezes.Unfreeze("", task.At(sec(3*hour)), nil)
			h.freeze(freezes)
			h.state.examineAll()
			h.decide(3 * hour)
			pause(false, 3.5)

			held := 2.0
			if paused {
				held = 2.5
			}

			// Freezes of another namespace replace that of the run.
			for i := range 60 {
				at := 3.5*hour + float64(i)
				freezes, _ = freezes.Freeze(task.Freeze{Namespace: "other", Since: task.At(sec(at)), Reason: "x"})
				freezes, _, _ = freezes.Unfreeze("other", task.At(sec(at+0.5)), nil)
			}
			h.freeze(freezes)

			h = w.work("n1")
			h.freeze(freezes)
			h.decide((4 + held) * hour)
			if p := w.parent("a"); p.Fan.Cancel != "" {
				t.Errorf("it was cut before 4 h and the %v h in which it was held: %s", held, p.Fan.Cancel)
			}
			h.decide((4+held)*hour + 2)
			if p := w.parent("a"); p.Fan.Cancel != task.ReasonTimeout {
				t.Errorf("it was not cut after 4 h and the %v h in which it was held", held)
			}
		})
	}
}

// freeze sets the freezes that the worker knows.
func (tw *testWorker) freeze(f task.Freezes) {
	tw.world.Helper()
	key := tw.world.store.Keys().Freezes()
	mod := tw.world.put(key, record.Encode(f))
	tw.e.cfg.Freezes = func() (*task.Freezes, int64) { return &f, mod }
}

func TestFlow_PausedRunBeginsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"x": {}, "y": needing("x")}))
	h := w.work("n1")
	h.decide(1)
	w.changeParent("a", func(q *task.Waiting) { q.PausedAt = task.At(sec(1)) })
	w.endStep("a", "x", task.Succeeded)
	h.decide(2)
	w.wantSteps("a")
	w.changeParent("a", func(q *task.Waiting) { q.PausedAt = task.Time{} })
	h.decide(3)
	w.wantSteps("a", "y")
}

// A replacement cuts the run, which cleans up first.
func TestFlow_ReplacedRunCleansUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1,3 0 12 * * *"), flow(map[string]task.Step{"x": {}, "clean": {Needs: []string{"x"}, When: task.WhenAlways, Timeout: task.Duration(time.Minute)}}),
		func(t *task.Task) { t.Overlap = task.OverlapReplace })
	h := w.work("n1")
	h.decide(1)
	h.decide(3)
	h.decide(3.1)
	h.decide(3.2)
	if a := w.step("a", "x"); a.CancelReason != task.ReasonReplaced {
		t.Errorf("x is %+v", a.Assigned)
	}
	w.endStep("a", "x", task.Cancelled)
	h.decide(4)
	h.decide(4.1)
	if a := w.step("a", "clean"); a.CancelRequested {
		t.Error("the cleanup is replaced")
	}
	w.endStep("a", "clean", task.Succeeded)
	h.decide(5)
	w.wantSteps("a", "x")
	if got := w.story("a"); len(got) < 1 || got[0] != "+1 cancelled replaced" {
		t.Errorf("the runs are %q", got)
	}
}

func TestFlow_RetriesOfAPartAreThoseOfItsStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	steps := map[string]task.Step{"x": {Retry: &task.Retry{Attempts: 2, Backoff: task.Duration(2 * time.Second), MaxBackoff: task.Duration(time.Minute), Factor: 1, On: []task.State{task.Failed}}}}
	w.create("a", cronned("1 0 12 * * *"), flow(steps))
	h := w.work("n1")
	h.decide(1)
	w.at(2)
	w.endStep("a", "x", task.Failed)
	h.decide(3)
	w.wantSteps("a")
	h = w.work("n1")
	h.decide(5.5)
	if a := w.step("a", "x"); a.Attempt != 2 || a.Action.Process.Command[0] != "x" {
		t.Errorf("the attempt is %+v", a.Assigned)
	}
	w.endStep("a", "x", task.Failed)
	h.decide(6)
	w.want("a", "+1 failed steps")
}

// A map over a result that is no list fails before any of its items begins.
func TestFlow_ValueThatDoesNotExistFailsTheStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(orders()))
	w.create("b", cronned("1 0 12 * * *"), flow(map[string]task.Step{
		"x": {}, "y": {Needs: []string{"x"}, Process: &task.Process{Command: []string{"y"}, Env: map[string]string{"K": "${steps.x.results.k}"}}},
	}))
	h := w.work("n1")
	h.decide(1)
	w.endStep("a", "extract", task.Succeeded, "files", "no list")
	w.endStep("b", "x", task.Succeeded)
	h.decide(2)
	w.wantSteps("a", "clean")
	w.endStep("a", "clean", task.Succeeded)
	h.decide(3)
	w.want("a", "+1 failed steps")
	w.want("b", "+1 failed steps")
	if p := w.parent("b"); !strings.Contains(p.Message, `step y: step x has reported no result "k"`) || p.Fan.Parts[1].Reason != task.ReasonValues {
		t.Errorf("b ended with %q, %+v", p.Message, p.Fan.Parts)
	}
}

// A run keeps the definition with which it began.
func TestFlow_KeepsItsPlanAfterAnEdit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"x": {}, "y": needing("x")}))
	h := w.work("n1")
	h.decide(1)
	w.update("a", false, flow(map[string]task.Step{"other": {}}))
	w.endStep("a", "x", task.Succeeded)
	h = w.work("n1")
	h.decide(2)
	w.wantSteps("a", "y")
	if a := w.step("a", "y"); a.Generation != 1 {
		t.Errorf("y is of generation %d", a.Generation)
	}
	w.endStep("a", "y", task.Succeeded)
	h.decide(3)
	w.want("a", "+1 succeeded")
	w.at(4)
	w.trigger("a")
	h.decide(4)
	w.wantSteps("a", "other")
}

// Without its data, a run cannot go on: what is active ends, and the run fails.
func TestFlow_LostDataEndTheRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"x": {}, "y": {}, "z": needing("y")}))
	h := w.work("n1")
	h.decide(1)
	w.delete(w.store.Keys().RunData(ref("a"), w.parent("a").ID))
	w.endStep("a", "y", task.Succeeded)
	h = w.work("n1")
	h.decide(2)
	h.decide(3)
	if a := w.step("a", "x"); !a.CancelRequested {
		t.Error("x goes on")
	}
	w.endStep("a", "x", task.Cancelled)
	h.decide(4)
	w.want("a", "+1 failed bad_record")
}

// A run whose steps cannot be read ends. The next one has steps if the spec was repaired meanwhile, by hand, so that the entry is
// still the same.
func TestFlow_ReadsARepairedSpecAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 * 12 * * *"), flow(map[string]task.Step{"x": {}}))
	key := w.store.Keys().Spec(ref("a"))
	good, err := w.client.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}

	w.put(key, `{"name": "a", `)
	h := w.work("n1")
	h.decide(1)
	h.decide(61)
	w.want("a", "+1 failed bad_record", "+61 failed bad_record")

	w.put(key, string(good.Kvs[0].Value))
	h.decide(121)
	w.wantSteps("a", "x")
}

// A part whose record was deleted by hand is lost, and its run ends.
func TestFlow_PartWithoutARecordIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"x": {}}))
	h := w.work("n1")
	h.decide(1)
	a := w.step("a", "x")
	w.delete(w.store.Keys().Run("n1", ref("a"), a.ID))
	h = w.work("n1")
	h.decide(2)
	h.decide(2 + task.DefaultLostAfter.Std().Seconds() + 1)
	w.want("a", "+1 failed steps")
	if p := w.parent("a"); p.Fan.Parts[0].State != task.Lost {
		t.Errorf("parts are %+v", p.Fan.Parts)
	}
}

// While the record of a run cannot be read, it is not known which of its parts clean up: none is replaced.
func TestFlow_PartOfAnUnreadableRunIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1,3 0 12 * * *"), flow(map[string]task.Step{"x": {}, "clean": {Needs: []string{"x"}, When: task.WhenAlways, Timeout: task.Duration(time.Minute)}}),
		func(t *task.Task) { t.Overlap = task.OverlapReplace })
	h := w.work("n1")
	h.decide(1)
	w.endStep("a", "x", task.Succeeded)
	h.decide(2)
	parent, _, _ := task.ParentOf(w.step("a", "clean").ID)
	h.decide(3)
	w.put(w.store.Keys().Queued(ref("a"), parent), "{garbage")
	h.decide(4)
	h.decide(5)
	if a := w.step("a", "clean"); a.CancelRequested {
		t.Error("the cleanup is replaced")
	}
}

// The record of an ended part without a final state, which somebody wrote by hand, counts as one that cannot be read: the run ends.
func TestFlow_PartWithoutAStateHasFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"x": {}}))
	h := w.work("n1")
	h.decide(1)
	a := w.step("a", "x")
	w.delete(w.store.Keys().Run("n1", ref("a"), a.ID))
	w.put(w.store.Keys().Ended(ref("a"), a.ID), "{}")
	h = w.work("n1")
	h.decide(2)
	h.decide(3)
	w.want("a", "+1 failed steps")
	if p := w.parent("a"); p.Fan.Parts[0].State != task.Failed || p.Fan.Parts[0].Reason != task.ReasonBadEntry {
		t.Errorf("parts are %+v", p.Fan.Parts)
	}
}

// queueRetry queues a run that retries another one, as the API does: extract and two of three items of load are kept. It returns its ID.
func (w *world) queueRetry(change func(*task.Run)) string {
	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)
	plan := task.NewPlan(st.Task)
	f := task.NewFlow(plan)
	f.Retries = "20260101T120000.000Z-" + st.Task.UID[:4]
	for i := range f.Steps {
		switch s := &f.Steps[i]; s.Name {
		case "extract":
			s.IsKept, s.Kept = true, 1
		case "load":
			s.Items, s.Kept = task.PartNumbers{1}, 2
		}
	}
	now := task.At(w.clock())
	run := task.Run{
		ID: task.ManualRunID(now.Time, st.Task.UID), Namespace: "default", Task: "a", UID: st.Task.UID, ScheduledTime: now, CreatedAt: now, Attempt: 1,
		State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual, FanOut: task.FanOut{Fan: &task.Fan{Flow: f}},
	}
	change(&run)
	w.put(w.store.Keys().RunData(ref("a"), run.ID), record.Encode(task.RunData{Plan: *plan, Results: map[string]map[string]string{"extract": {"files": `["a","b","c"]`}}}))
	_, err = w.store.Enqueue(w.ctx, st, task.Waiting{Run: run})
	w.ok(err)

	return run.ID
}

// A retry that does not begin becomes a dead run, so what the run that it retries has kept can be retried again.
func TestFlow_RetryThatDoesNotBeginIsDead(t *testing.T) {
	t.Parallel()
	for state, end := range map[task.State]func(w *world, h *testWorker, run string){
		task.Cancelled: func(w *world, h *testWorker, run string) {
			_, err := w.store.CancelQueued(w.ctx, ref("a"), run, task.NewActor("ann"), w.clock())
			w.ok(err)
			h.decide(1)
		},
		task.Missed: func(_ *world, h *testWorker, _ string) { h.decide(120) },
	} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1")
			w.create("a", cronned("0 0 1 1 * *"), flow(orders()))
			run := w.queueRetry(func(r *task.Run) { r.StartBefore = task.At(r.CreatedAt.Add(time.Minute)) })
			end(w, w.work("n1"), run)

			dead, err := w.store.DeadRuns(w.ctx, ref("a"))
			w.ok(err)
			if len(dead) != 1 || dead[0].ID != run || dead[0].State != state || !slices.ContainsFunc(dead[0].Fan.Flow.Steps, func(s task.FlowStep) bool { return s.IsKept }) || len(w.runData("a")) != 1 {
				t.Errorf("dead runs %+v, data of %q", dead, w.runData("a"))
			}
		})
	}
}

// A retry has its plan and the results that it keeps from the API. It repeats only what did not succeed.
func TestFlow_RetryRepeatsWhatFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("0 0 1 1 * *"), flow(orders()))
	w.queueRetry(func(*task.Run) {})

	h := w.work("n1")
	h.decide(1)
	w.wantSteps("a", "load/1")
	if a := w.step("a", "load/1"); a.Values["item"] != "b" {
		t.Errorf("its values are %v", a.Values)
	}
	h = w.work("n1")
	w.endStep("a", "load/1", task.Succeeded)
	h.decide(2)
	w.endStep("a", "pay", task.Succeeded)
	h.decide(3)
	w.endStep("a", "clean", task.Succeeded)
	h.decide(4)
	h.decide(5)
	if p := w.parent("a"); p.State != task.Succeeded || len(w.runData("a")) != 0 {
		t.Errorf("it ended as %s, with data of %q", p.State, w.runData("a"))
	}
}

// The sweep deletes data of runs that have no other record, and nothing else. The deletion of a task deletes the rest.
func TestFlow_SweepAndDeletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(orders()))
	h := w.work("n1")
	h.decide(1)
	active := w.parent("a").ID
	w.put(w.store.Keys().RunData(ref("a"), "20260101T120000.000Z-zzzz"), "{}")
	dead := "20260101T130000.000Z-zzzz"
	w.put(w.store.Keys().RunData(ref("a"), dead), "{}")
	w.put(w.store.Keys().DeadRun(ref("a"), dead), "{}")
	w.ok(h.e.cfg.Store.SweepRunData(w.ctx, h.state.fences, ref("a")))
	if got := w.runData("a"); !slices.Equal(got, []string{dead, active}) {
		t.Errorf("data of runs %q", got)
	}
	w.remove("a")
	if got := w.runData("a"); len(got) != 0 {
		t.Errorf("data of runs %q after the deletion", got)
	}
}

// The memory of an owner does not depend on the number of steps.
func TestFlow_EntryHasNoSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	steps := map[string]task.Step{}
	for i := range task.MaxSteps {
		steps[fmt.Sprint("s", i)] = task.Step{}
	}
	w.create("a", cronned("0 0 1 1 * *"), flow(steps))
	h := w.work("n1")
	if got := h.state.records.Tasks.Get("default/a"); got.Action() != `{"workflow":{}}` || !got.IsWorkflow() {
		t.Errorf("the owner keeps %d bytes: %.100s", len(got.Action()), got.Action())
	}
}

// The namespace must allow each step when the run begins, and when a part starts.
func TestFlow_NamespaceForbidsAStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1,10 0 12 * * *"), flow(map[string]task.Step{
		"x": {}, "y": {Needs: []string{"x"}, Process: &task.Process{Command: []string{"y"}, User: "app"}},
	}))
	h := w.work("n1")
	h.decide(1)
	forbid := &task.Namespace{Name: "default", RunAs: []string{"web"}, Groups: []string{"*"}, Revision: 8}
	h.e.cfg.Namespaces = func() Namespaces { return oneNamespace{forbid} }
	w.endStep("a", "x", task.Succeeded)
	h.decide(2)
	w.want("a", "+1 failed steps")
	if p := w.parent("a"); p.Fan.Parts[1].Reason != task.ReasonNamespace || !strings.Contains(p.Message, "the user app of step y") {
		t.Errorf("it ended with %q, %+v", p.Message, p.Fan.Parts)
	}

	h.decide(10)
	w.want("a", "+1 failed steps", "+10 failed namespace")
}

// A map of 1,000 items takes one commit for each item, and few others.
func TestFlow_LargeMap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"x": {Map: "1000", MaxParallel: 1000}}))
	h := w.work("n1")
	before := h.gate.commits
	h.see()
	w.at(1)
	w.ok(h.runRound(h.ctx))
	if n := h.gate.commits - before; n > 1005 {
		t.Errorf("%d commits", n)
	}
	if n := len(w.active("a")); n != task.MaxMapItems {
		t.Errorf("%d items are active", n)
	}
}

// A plan has one attempt at a time. What it starts after a step must not get the values of the step.
func TestFlow_ValuesStayWithTheirStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(orders()))
	w.create("b", cronned("0 0 1 1 * *"))
	h := w.work("n1")
	h.decide(1)
	w.endStep("a", "extract", task.Succeeded, "files", `["secret"]`)
	w.at(2)
	w.trigger("b")
	h.decide(2)

	w.wantSteps("a", "load/0")
	started := w.active("b")
	if len(started) != 1 || len(started[0].Values) != 0 {
		t.Errorf("b has %d attempts: %+v", len(started), started)
	}
}

// largeSteps has n steps that report a result, and a last step that reads all of them.
func largeSteps(n int, last string) map[string]task.Step {
	steps := map[string]task.Step{}
	end := task.Step{Process: &task.Process{Command: []string{last}, Env: map[string]string{}}}
	for i := range n {
		name := fmt.Sprintf("s%02d", i)
		steps[name] = task.Step{}
		end.Needs = append(end.Needs, name)
		end.Process.Env["K"+name] = "${steps." + name + ".results.k}"
	}
	steps[last] = end

	return steps
}

// Each byte of a result may take six in JSON. The commits of a run stay within the limits of etcd.
func TestFlow_LargeResults(t *testing.T) {
	t.Parallel()
	const n = 98
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(largeSteps(n, "last")))
	w.create("b", cronned("1 0 12 * * *"), flow(largeSteps(20, "last")))
	h := w.work("n1")
	h.decide(1)
	value := strings.Repeat("<", task.MaxResultBytes-1)
	for i := range n {
		w.endStep("a", fmt.Sprintf("s%02d", i), task.Succeeded, "k", value)
	}
	for i := range 20 {
		w.endStep("b", fmt.Sprintf("s%02d", i), task.Succeeded, "k", value[:2000])
	}
	h.decide(2)
	h.decide(3)
	w.want("a", "+1 failed steps")
	if p := w.parent("a"); !strings.Contains(p.Message, "step last: the values of its references are") || !strings.Contains(p.Message, "at most 262144 are allowed") {
		t.Errorf("it ended with %q", p.Message)
	}

	// Another task goes on, and values of 240 KiB are given to the node.
	if got := w.step("b", "last"); len(got.Values) != 20 {
		t.Errorf("last of b has %d values", len(got.Values))
	}

	// What was kept fits, and a retry repeats the rest.
	dead, err := w.store.DeadRuns(w.ctx, ref("a"))
	w.ok(err)
	if len(dead) != 1 {
		t.Fatalf("%d dead runs", len(dead))
	}
	data := w.readRunData("a", dead[0].ID)
	if size := len(record.Encode(data)); size > maxRunData || size < maxRunData/2 {
		t.Errorf("its data are %d bytes", size)
	}
	for _, s := range dead[0].Fan.Flow.Steps {
		if _, has := data.Results[s.Name]; s.Name != "last" && has == s.NoResults {
			t.Errorf("step %s: has results %t, marked as without %t", s.Name, has, s.NoResults)
		}
	}
}

// forgetfulPlans forgets every third answer, as if another shard had removed the plan from the cache.
type forgetfulPlans struct {
	plans
	asked int
}

// Plan implements plans.
func (f *forgetfulPlans) Plan(uid string, generation int64) *state.FlowPlan {
	if f.asked++; f.asked%3 == 0 {
		return nil
	}
	return f.plans.Plan(uid, generation)
}

// The plan of a task may disappear from the cache while a run begins. The run has its data nevertheless.
func TestFlow_PlanIsForgottenWhileARunBegins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1,5 0 12 * * *"), flow(map[string]task.Step{"x": {}, "y": needing("x")}))
	h := w.work("n1")
	h.decide(1)
	w.endStep("a", "x", task.Succeeded)
	h.decide(2)
	w.endStep("a", "y", task.Succeeded)
	h.decide(3)

	h.state.ports.plans = &forgetfulPlans{plans: h.state.ports.plans}
	h.see()
	w.at(5)
	w.ok(h.runRound(h.ctx))
	w.wantSteps("a", "x")
	if got := w.runData("a"); len(got) != 1 {
		t.Errorf("data of runs %q", got)
	}
}

// A run keeps the timeout with which it began. That of a task that is no workflow any more is for an attempt.
func TestFlow_KeepsItsTimeoutAfterAnEdit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 * * *"), flow(map[string]task.Step{"x": {}}), func(t *task.Task) { t.Timeout = task.Duration(time.Minute) })
	h := w.work("n1")
	h.decide(1)
	w.update("a", false, func(t *task.Task) {
		t.Action, t.Timeout = task.Action{Process: &task.Process{Command: []string{"other"}}}, task.Duration(5*time.Second)
	})
	h.decide(10)
	h.decide(11)
	if p := w.parent("a"); p.Fan.Cancel != "" {
		t.Errorf("it was cut after 10 seconds: %s", p.Fan.Cancel)
	}
	h.decide(61)
	if p := w.parent("a"); p.Fan.Cancel != task.ReasonTimeout {
		t.Errorf("it was not cut after a minute: %q", p.Fan.Cancel)
	}
}

// Cleanup that finds no node has an end, so that the run has one.
func TestFlow_CleanupWithoutANodeIsMissed(t *testing.T) {
	t.Parallel()
	steps := map[string]task.Step{"x": {}, "clean": {
		Needs: []string{"x"}, When: task.WhenAlways, Timeout: task.Duration(time.Minute), Target: &task.StepTarget{Selector: "zone = b"},
	}}

	for name, retried := range map[string]bool{"its first attempt": false, "another attempt": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "n1")
			w.join("n2", "zone=a")
			steps, waits := maps.Clone(steps), []string{"+1 running"}
			if retried {
				waits = append(waits, "+1 queued part retry #2")
				clean := steps["clean"]
				clean.Target = &task.StepTarget{Selector: "zone = a"}
				clean.Retry = &task.Retry{Attempts: 2, Backoff: task.Duration(10 * time.Second), MaxBackoff: task.Duration(time.Minute), Factor: 1, On: []task.State{task.Failed}}
				steps["clean"] = clean
			}
			w.create("a", cronned("1 0 12 2 1 *"), flow(steps))
			h := w.work("n1")
			h.decide(1)
			w.cancelFlow("a", false)
			h.decide(2)
			w.endStep("a", "x", task.Cancelled)
			h.decide(3)
			opened := 3.0
			if retried {
				w.wantSteps("a", "clean")
				w.at(4)
				w.endStep("a", "clean", task.Failed)
				w.leave("n2")
				h.fleet()
				h.decide(5)
				opened = 16
			}
			h.decide(opened)
			w.wantSteps("a")
			h.decide(opened + 3500)
			w.want("a", waits...)
			h.decide(opened + 3601)
			h.decide(opened + 3602)
			w.want("a", "+1 cancelled cancelled_by_user")
			p := w.parent("a")
			if end := p.Fan.Parts[1]; end.State != task.Missed || end.Reason != task.ReasonNoNode {
				t.Errorf("clean ended as %s, %s", end.State, end.Reason)
			}
		})
	}
}

// Cleanup of a run that was cut waits an hour for a node from when it finds none. What it did before, and a freeze, do not count.
func TestFlow_CleanupWaitsForANodeFromWhenItFindsNone(t *testing.T) {
	t.Parallel()
	const hour = 3600
	newCleanup := func(t *testing.T, items task.MapSource) (*world, *testWorker) {
		w := newWorld(t, "n1")
		w.join("n2", "zone=b")
		w.create("a", cronned("1 0 12 2 1 *"), flow(map[string]task.Step{"x": {}, "clean": {
			Needs: []string{"x"}, When: task.WhenAlways, Timeout: task.Duration(time.Hour), Map: items, MaxParallel: 1, Target: &task.StepTarget{Selector: "zone = b"},
		}}))

		return w, w.work("n1")
	}

	t.Run("the items before have taken long", func(t *testing.T) {
		t.Parallel()
		w, h := newCleanup(t, "2")
		h.decide(1)
		w.cancelFlow("a", false)
		h.decide(2)
		w.endStep("a", "x", task.Cancelled)
		h.decide(3)
		w.wantSteps("a", "clean/0")
		w.at(2 * hour)
		w.endStep("a", "clean/0", task.Succeeded)
		w.leave("n2")
		h.fleet()
		h.decide(2 * hour)
		h.decide(3*hour - 1)
		w.join("n2", "zone=b")
		h.fleet()
		h.decide(3*hour - 0.5)
		w.wantSteps("a", "clean/1")
	})

	t.Run("it was frozen", func(t *testing.T) {
		t.Parallel()
		w, h := newCleanup(t, "1")
		h.decide(1)
		w.cancelFlow("a", false)
		h.decide(2)
		w.leave("n2")
		h.fleet()
		w.endStep("a", "x", task.Cancelled)
		h.decide(3)
		frozen := task.Freezes{Holding: []task.Freeze{{Since: task.At(sec(100)), Reason: "x"}}}
		h.freeze(frozen)
		h.state.examineAll()
		h.decide(100)
		thawed, _, _ := frozen.Unfreeze("", task.At(sec(2*hour)), nil)
		h.freeze(thawed)
		h.state.examineAll()
		h.decide(2 * hour)
		w.join("n2", "zone=b")
		h.fleet()
		h.decide(2*hour + 60)
		w.wantSteps("a", "clean/0")
	})

	t.Run("it was cancelled late", func(t *testing.T) {
		t.Parallel()
		w, h := newCleanup(t, "1")
		h.decide(1)
		w.leave("n2")
		h.fleet()
		w.endStep("a", "x", task.Succeeded)
		h.decide(3)
		w.at(2 * hour)
		w.cancelFlow("a", false)
		h.decide(2 * hour)
		w.join("n2", "zone=b")
		h.fleet()
		h.decide(2*hour + 60)
		w.wantSteps("a", "clean/0")
	})
}

// A workflow may become a task that sticks to its node. The steps of its last run do not concern that.
func TestFlow_StepsDoNotStick(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", cronned("1 0 12 2 1 *"), flow(map[string]task.Step{"x": {}, "y": needing("x")}))
	h := w.work("n1")
	h.decide(1)
	w.update("a", false, func(t *task.Task) {
		t.Action, t.Target.Strategy = task.Action{Process: &task.Process{Command: []string{"other"}}}, task.StrategySticky
	})
	w.endStep("a", "x", task.Succeeded)
	h.decide(2)
	w.wantSteps("a", "y")
	h.see()
	if got := h.state.records.Tasks.Get("default/a").Own().Node; got != "" {
		t.Errorf("the task sticks to node %s of its step", got)
	}
}
