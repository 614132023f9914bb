package check

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// flowing is a task with a workflow. The test writes the commits of its owner, and what nodes and users write.
type flowing struct {
	*sim
	etl    *simTask
	plan   task.Plan
	run    task.Run
	fan    task.Fan
	kept   map[string]map[string]string // what a retry keeps
	active map[int]*simRun
	ended  map[int]task.Run
}

// exampleSteps returns a workflow: extract reports how many items load has, two of which run at a time; check follows, repair if
// load fails, and clean cleans up.
func exampleSteps() *task.Workflow {
	return &task.Workflow{Steps: map[string]task.Step{
		"extract": {Noop: &task.Noop{}},
		"load": {
			Needs: []string{"extract"}, Map: "${steps.extract.results.n}", MaxParallel: 2,
			Process: &task.Process{Command: []string{"load"}, Env: map[string]string{"KEY": "${item} of ${steps.extract.results.key}"}},
		},
		"check":  {Needs: []string{"load"}, Noop: &task.Noop{}},
		"repair": {Needs: []string{"load"}, When: task.WhenFailed, Noop: &task.Noop{}},
		"clean":  {Needs: []string{"check"}, When: task.WhenAlways, Timeout: task.Duration(60e9), Noop: &task.Noop{}},
		"report": {Noop: &task.Noop{}},
	}}
}

func newFlowing(t testing.TB, steps *task.Workflow) *flowing {
	s := newSim(t, 1, "a", "b")
	f := &flowing{sim: s, active: map[int]*simRun{}, ended: map[int]task.Run{}}
	f.etl = s.create("etl", 0, 1, func(e *task.Entry) {
		e.Schedule, e.Action, e.Retry.Attempts = task.Schedules{task.ManualSchedule}, task.Action{Workflow: &task.Workflow{}}, 2
	})
	f.edit(steps)

	return f
}

// edit gives the task other steps.
func (f *flowing) edit(steps *task.Workflow) {
	f.etl.steps = steps
	f.update(f.etl, false, func() {})
}

// commits commits as the owner, which has seen everything.
func (f *flowing) commits(ops ...op) {
	w := f.marks[0]
	w.Seen = f.rev
	f.commit(0, w, ops...)
}

// late commits as the owner, which has not seen what happened from a revision on.
func (f *flowing) late(since int64, ops ...op) {
	w := f.marks[0]
	w.Seen = max(w.Seen, since-1)
	f.commit(0, w, ops...)
}

func (f *flowing) dataKey() string { return f.keys.RunData(f.etl.ref, f.run.ID) }

// parent returns the write of the record of the run.
func (f *flowing) parent() op {
	r, fan := f.run, f.fan
	r.State, r.Reason, r.Fan = task.Running, "", &fan

	return f.waiting(f.etl, task.Waiting{Run: r})
}

// begins lets a run that a user has requested begin.
func (f *flowing) begins() *flowing {
	f.pass(1)
	f.manual(f.etl)
	f.run, f.etl.queue = f.etl.queue[0].Run, nil
	f.plan = task.Plan{Generation: f.etl.entry.Generation, Workflow: *f.etl.steps, Retry: f.etl.entry.Retry}
	f.fan = task.Fan{Flow: task.NewFlow(&f.plan)}
	f.commits(f.parent(), op{f.dataKey(), task.RunData{Plan: f.plan}})

	return f
}

// beginsTwoMaps begins a run whose maps load and again have the same items, and carries it out up to the end of load.
func (f *flowing) beginsTwoMaps(n string, items int) {
	steps := exampleSteps()
	again := steps.Steps["load"]
	again.Needs = []string{"load"}
	steps.Steps["again"] = again
	f.edit(steps)

	f.begins().extracted(n)
	f.opens("load", items)
	for i := range items {
		f.gives("load", i)
		f.ends("load", i, task.Succeeded, nil)
	}
}

// step returns a step of the run.
func (f *flowing) step(name string) *task.FlowStep {
	return &f.fan.Flow.Steps[stepNumber(f.fan.Flow, name)]
}

// open opens a step without a commit.
func (f *flowing) open(name string, parts int) {
	s := f.step(name)
	s.OpenedAt, s.First, s.Count = f.time(), f.fan.Count, parts
	for range parts {
		f.fan.Left = append(f.fan.Left, f.fan.Count)
		f.fan.Count++
	}
}

// opens opens a step with some parts.
func (f *flowing) opens(name string, parts int) { f.open(name, parts); f.commits(f.parent()) }

// part returns an attempt of a part.
func (f *flowing) part(name string, i int) task.Assigned {
	s, p := f.step(name), f.plan.Workflow.Steps[name]
	r := f.tickRun(f.etl, 0, task.TriggerPart, task.Dispatched)
	r.ID, r.ScheduledTime, r.Step, r.DispatchedAt = task.PartID(f.run.ID, s.First+i), f.run.ScheduledTime, name, f.time()
	if s.IsMap {
		r.Item = new(s.ItemOf(s.First + i))
	}

	a := task.Assigned{Run: r, Instance: f.sessions["a"], Generation: f.plan.Generation, Action: p.Action(), Timeout: p.Timeout, Retry: f.plan.Retry}
	a.Values, _ = valuesOf(name, p, s.ItemOf(s.First+i), f.results)

	return a
}

// results returns what a step has reported.
func (f *flowing) results(step string) map[string]string {
	if s := f.step(step); s.IsKept {
		return f.kept[step]
	}
	return f.ended[f.step(step).First].Results
}

// give returns the dispatch of a part. change may change the attempt.
func (f *flowing) give(name string, i int, change func(a *task.Assigned)) op {
	part := f.step(name).First + i
	f.fan.Left = slices.DeleteFunc(slices.Clone(f.fan.Left), func(p int) bool { return p == part })

	return f.attempt(name, i, change)
}

// attempt returns the dispatch of an attempt of a part that was given before.
func (f *flowing) attempt(name string, i int, change func(a *task.Assigned)) op {
	a := f.part(name, i)
	if change != nil {
		change(&a)
	}
	f.active[f.step(name).First+i] = &simRun{Assigned: a, node: "a", create: f.rev + 1}

	return op{f.keys.Run("a", f.etl.ref, a.ID), withoutID(a)}
}

// gives dispatches a part of a step.
func (f *flowing) gives(name string, i int) {
	ops := f.give(name, i, nil)
	f.commits(f.parent(), ops)
}

// ends lets a node record the end of a part.
func (f *flowing) ends(name string, i int, state task.State, results map[string]string) {
	part := f.step(name).First + i
	a := f.active[part]
	delete(f.active, part)

	r := a.Run
	r.State, r.Token, r.Node, r.StartedAt, r.Results = state, a.create, a.node, f.time(), results
	r.Reason = map[task.State]string{task.Failed: task.ReasonExit, task.TimedOut: task.ReasonTimeout, task.Cancelled: task.ReasonCancelled}[state]
	f.ended[part] = r
	f.txn(op{f.keys.Run(a.node, f.etl.ref, a.ID), nil}, f.sim.ended(f.etl, r))
}

// runs opens a step with one part, and lets that end.
func (f *flowing) runs(name string, state task.State, results map[string]string) {
	f.opens(name, 1)
	f.gives(name, 0)
	f.ends(name, 0, state, results)
}

// extracted lets extract end, so that load has n items, and report succeed.
func (f *flowing) extracted(n string) *flowing {
	f.runs("report", task.Succeeded, nil)
	f.runs("extract", task.Succeeded, map[string]string{"n": n, "key": "k"})
	return f
}

// cancels lets a user cancel the run.
func (f *flowing) cancels(force bool) {
	f.fan.Cancel, f.run.CancelledBy = task.ReasonCancelled, task.NewActor("ann")
	f.fan.Flow.Forced = force
	f.txn(f.parent())
}

// pauses lets a user pause the run.
func (f *flowing) pauses() {
	f.run.PausedAt, f.run.PausedBy = f.time(), task.NewActor("ann")
	f.txn(f.parent())
}

// frozen lets the owner count for how long the run was frozen.
func (f *flowing) frozen(ms int64) {
	f.fan.Flow.FrozenMS, f.fan.Flow.FrozenUntil = ms, f.time()
	f.commits(f.parent())
}

// timesOut lets the owner end the run early.
func (f *flowing) timesOut() {
	f.fan.Cancel = task.ReasonTimeout
	f.commits(f.parent())
}

// conclude returns the writes of the end of the run.
func (f *flowing) conclude(state task.State, change func(data *task.RunData)) []op {
	r, fan := f.run, f.fan
	r.State, r.StartedAt = state, f.time()
	r.Reason = map[task.State]string{task.Failed: task.ReasonSteps, task.TimedOut: task.ReasonTimeout, task.Cancelled: task.ReasonCancelled}[state]

	for _, part := range slices.Sorted(maps.Keys(f.ended)) {
		fan.Parts = append(fan.Parts, f.ended[part].AsPart())
	}
	fan.Left, r.Fan = nil, &fan

	ops := []op{{f.keys.Queued(f.etl.ref, r.ID), nil}, f.sim.ended(f.etl, r)}
	if state == task.Succeeded {
		return append(ops, op{f.dataKey(), nil})
	}

	data := task.RunData{Plan: f.plan, Results: map[string]map[string]string{}}
	if results := f.results("extract"); results != nil {
		data.Results["extract"] = results
	}
	if change != nil {
		change(&data)
	}

	return append(ops, op{f.keys.DeadRun(f.etl.ref, r.ID), r}, op{f.dataKey(), data})
}

// concludes ends the run.
func (f *flowing) concludes(state task.State) { f.commits(f.conclude(state, nil)...) }

// retries lets a user retry the dead run. keep returns which steps are kept, and change may change the rest.
func (f *flowing) retries(keep []string, change func(fan *task.Fan, data *task.RunData)) {
	of, old := f.run.ID, f.dataKey()
	f.pass(1)
	r := f.tickRun(f.etl, f.now, task.TriggerManual, task.Queued)
	r.ID, r.Owner, r.Reason, r.RetryOf = task.ManualRunID(time.UnixMilli(f.now), f.etl.entry.UID), "", task.ReasonManual, of

	fan, data := task.Fan{Flow: task.NewFlow(&f.plan)}, task.RunData{Plan: f.plan, Results: map[string]map[string]string{}}
	fan.Flow.Retries = of
	for _, name := range keep {
		s := &fan.Flow.Steps[stepNumber(fan.Flow, name)]
		s.IsKept, s.Kept = true, 1
		if results := f.results(name); results != nil {
			data.Results[name] = results
		}
	}
	if change != nil {
		change(&fan, &data)
	}

	f.run, f.fan, f.kept, f.ended = r, fan, data.Results, map[int]task.Run{}
	w := task.Waiting{Run: r}
	w.Fan = &fan
	f.txn(f.waiting(f.etl, w), op{f.dataKey(), data}, op{f.keys.DeadRun(f.etl.ref, of), nil}, op{old, nil})
}

// unbegun ends a retry that waits.
func (f *flowing) unbegun(isDead bool) {
	r, fan := f.run, f.fan
	r.State, r.Reason, r.Fan = task.Cancelled, task.ReasonCancelled, &fan
	ops := []op{{f.keys.Queued(f.etl.ref, r.ID), nil}, f.sim.ended(f.etl, r)}
	if isDead {
		ops = append(ops, op{f.keys.DeadRun(f.etl.ref, r.ID), r})
	} else {
		ops = append(ops, op{f.dataKey(), nil})
	}
	f.txn(ops...)
}

// keepItems returns a change of a retry: load repeats only some items.
func keepItems(kept int, left ...int) func(fan *task.Fan, data *task.RunData) {
	return func(fan *task.Fan, _ *task.RunData) {
		s := &fan.Flow.Steps[stepNumber(fan.Flow, "load")]
		s.Items, s.Kept = left, kept
	}
}

// flowTest is a history of a run, and the guarantee that it breaks, or "".
type flowTest struct {
	name, promise string
	happens       func(f *flowing)
}

// runFlowTests judges histories. Each must break no other guarantee.
func runFlowTests(t *testing.T, tests []flowTest) {
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			f := newFlowing(t, exampleSteps())
			c.happens(f)
			only(t, Check(f.keys, f.events, Options{Remembered: true}).Violations, c.promise)
		})
	}
}

// Verifies: G65
func TestCheck_StepsFollowTheirPlan(t *testing.T) {
	const ok, failed = task.Succeeded, task.Failed

	// loaded ends both items of load.
	loaded := func(f *flowing, second task.State) {
		f.begins().extracted("2")
		f.opens("load", 2)
		f.gives("load", 0)
		f.gives("load", 1)
		f.ends("load", 0, ok, nil)
		f.ends("load", 1, second, nil)
	}

	runFlowTests(t, []flowTest{
		{"all steps succeed", "", func(f *flowing) {
			loaded(f, ok)
			f.runs("check", ok, nil)
			f.runs("clean", ok, nil)
			f.concludes(ok)
		}},
		{"a step fails", "", func(f *flowing) {
			loaded(f, failed)
			f.runs("repair", ok, nil)
			f.runs("clean", ok, nil)
			f.concludes(failed)
		}},
		{"a map without items", "", func(f *flowing) {
			f.begins().extracted("0")
			f.opens("load", 0)
			f.runs("check", ok, nil)
			f.runs("clean", ok, nil)
			f.concludes(ok)
		}},
		{"the values of a map do not exist", "", func(f *flowing) {
			f.begins()
			f.runs("extract", ok, nil)
			s := f.step("load")
			s.Reason = task.ReasonValues
			f.commits(f.parent())
			f.runs("repair", ok, nil)
			f.runs("clean", ok, nil)
			f.concludes(failed)
		}},
		{"the items of two maps exceed the limit of parts", "", func(f *flowing) {
			f.beginsTwoMaps("548", 548)
			f.step("again").Reason = task.ReasonValues
			f.commits(f.parent())
		}},
		{"the items of two maps just fit", "G65", func(f *flowing) {
			f.beginsTwoMaps("547", 547)
			f.step("again").Reason = task.ReasonValues
			f.commits(f.parent())
		}},
		{"the items of a map exist", "G65", func(f *flowing) {
			f.begins().extracted("2")
			f.step("load").Reason = task.ReasonValues
			f.commits(f.parent())
		}},

		{"a step begins before its need has ended", "G65", func(f *flowing) {
			f.begins().extracted("2")
			f.opens("load", 2)
			f.gives("load", 0)
			f.ends("load", 0, ok, nil)
			f.opens("check", 1)
		}},
		{"a step begins before its need has begun", "G65", func(f *flowing) { f.begins(); f.opens("check", 1) }},
		{"a step begins although its need has failed", "G65", func(f *flowing) {
			loaded(f, failed)
			f.opens("check", 1)
		}},
		{"a step for failures begins without one", "G65", func(f *flowing) {
			loaded(f, ok)
			f.opens("repair", 1)
		}},
		{"a step begins after another one has failed", "G65", func(f *flowing) {
			f.begins()
			f.runs("report", failed, nil)
			f.opens("extract", 1)
		}},
		{"its owner has not seen the failure", "", func(f *flowing) {
			f.begins()
			f.opens("report", 1)
			f.gives("report", 0)
			f.ends("report", 0, failed, nil)
			f.open("extract", 1)
			f.late(f.rev, f.parent())
		}},
		{"an item begins after another step has failed", "G65", func(f *flowing) {
			f.begins()
			f.runs("extract", ok, map[string]string{"n": "2", "key": "k"})
			f.opens("load", 2)
			f.gives("load", 0)
			f.runs("report", failed, nil)
			f.gives("load", 1)
		}},
		{"an item begins after one of the same step has failed", "", func(f *flowing) {
			f.begins().extracted("2")
			f.opens("load", 2)
			f.gives("load", 0)
			f.ends("load", 0, failed, nil)
			f.gives("load", 1)
		}},
		{"more items than max_parallel", "G65", func(f *flowing) {
			f.begins().extracted("3")
			f.opens("load", 3)
			f.gives("load", 0)
			f.gives("load", 1)
			f.gives("load", 2)
		}},
		{"more parts than items", "G65", func(f *flowing) { f.begins().extracted("2"); f.opens("load", 3) }},
		{"a step begins twice", "G65", func(f *flowing) {
			f.begins()
			f.opens("extract", 1)
			f.opens("extract", 1)
		}},
		{"another action than in the plan", "G65", func(f *flowing) {
			f.begins().extracted("2")
			f.opens("load", 2)
			f.commits(f.give("load", 0, func(a *task.Assigned) { a.Action.Process.Command = []string{"other"} }), f.parent())
		}},
		{"the action of another generation", "G65", func(f *flowing) {
			f.begins().extracted("2")
			f.opens("load", 2)
			f.edit(exampleSteps())
			f.commits(f.give("load", 0, func(a *task.Assigned) { a.Generation++ }), f.parent())
		}},
		{"an edit while it runs", "", func(f *flowing) {
			f.begins().extracted("1")
			f.edit(&task.Workflow{Steps: map[string]task.Step{"other": {Noop: &task.Noop{}}}})
			f.opens("load", 1)
			f.gives("load", 0)
		}},
		{"a value that was not reported", "G65", func(f *flowing) {
			f.begins().extracted("2")
			f.opens("load", 2)
			f.commits(f.give("load", 0, func(a *task.Assigned) { a.Values["steps.extract.results.key"] = "x" }), f.parent())
		}},
		{"the value of another item", "G65", func(f *flowing) {
			f.begins().extracted("2")
			f.opens("load", 2)
			f.commits(f.give("load", 0, func(a *task.Assigned) { a.Values["item"] = "1" }), f.parent())
		}},
		{"no values", "G65", func(f *flowing) {
			f.begins().extracted("2")
			f.opens("load", 2)
			f.commits(f.give("load", 0, func(a *task.Assigned) { a.Values = nil }), f.parent())
		}},
		{"the name of another step", "G65", func(f *flowing) {
			f.begins()
			f.opens("extract", 1)
			f.commits(f.give("extract", 0, func(a *task.Assigned) { a.Step = "check" }), f.parent())
		}},
		{"a part twice", "G9", func(f *flowing) {
			f.begins()
			f.opens("extract", 1)
			f.gives("extract", 0)
			f.fan.Left = []int{0}
			f.commits(f.parent())
		}},

		{"a plan of another generation", "G7", func(f *flowing) {
			f.etl.entry.Generation++ // the owner knows a version that does not exist
			f.begins()
		}},
		{"a plan of other steps", "G65", func(f *flowing) {
			f.etl.steps = &task.Workflow{Steps: map[string]task.Step{"other": {Noop: &task.Noop{}}}}
			f.begins()
		}},
		{"a record of other steps", "G65", func(f *flowing) {
			f.pass(1)
			f.manual(f.etl)
			f.run, f.etl.queue = f.etl.queue[0].Run, nil
			f.plan = task.Plan{Generation: f.etl.entry.Generation, Workflow: *f.etl.steps}
			f.fan = task.Fan{Flow: task.NewFlow(&f.plan)}
			f.step("check").Needs = []int{0}
			f.commits(f.parent(), op{f.dataKey(), task.RunData{Plan: f.plan}})
		}},
		{"no plan", "G65", func(f *flowing) {
			f.pass(1)
			f.manual(f.etl)
			f.run, f.etl.queue = f.etl.queue[0].Run, nil
			f.fan = task.Fan{Flow: task.NewFlow(&task.Plan{Generation: 2, Workflow: *f.etl.steps})}
			f.commits(f.parent())
		}},
		{"a step begins while the run is paused", "G53", func(f *flowing) { f.begins().pauses(); f.opens("extract", 1) }},
		{"a part begins while the run is paused", "G53", func(f *flowing) { f.begins().opens("extract", 1); f.pauses(); f.gives("extract", 0) }},
		{"a step begins after a pause", "", func(f *flowing) {
			f.begins().pauses()
			f.run.PausedAt, f.run.PausedBy, f.run.PausedMS = task.Time{}, nil, 1
			f.txn(f.parent())
			f.opens("extract", 1)
		}},
		{"a freeze ends", "", func(f *flowing) {
			f.begins().frozen(0)
			f.pass(1)
			f.frozen(1)
		}},
		{"a pause begins and ends", "", func(f *flowing) {
			f.begins().frozen(0)
			f.pass(1)
			f.fan.Flow.FrozenMS, f.fan.Flow.FrozenUntil = 1, f.time()
			f.pauses()
			f.pass(1)
			f.run.PausedAt, f.run.PausedBy, f.run.PausedMS, f.fan.Flow.FrozenUntil = task.Time{}, nil, 1, f.time()
			f.txn(f.parent())
			f.opens("extract", 1)
		}},
		{"a freeze counts for longer than it can have lasted", "G65", func(f *flowing) {
			f.begins().frozen(0)
			f.pass(1)
			f.frozen(1e9)
		}},
		{"a freeze during a pause counts twice", "G65", func(f *flowing) {
			f.begins().frozen(0)
			f.pauses()
			f.pass(1)
			f.run.PausedAt, f.run.PausedBy, f.run.PausedMS, f.fan.Flow.FrozenMS, f.fan.Flow.FrozenUntil = task.Time{}, nil, 1, 1, f.time()
			f.txn(f.parent())
		}},
		{"a freeze is not counted any more", "G65", func(f *flowing) {
			f.begins().frozen(0)
			f.pass(1)
			f.frozen(1)
			f.frozen(0)
		}},
		{"a freeze is counted without a commit", "G1", func(f *flowing) {
			f.begins()
			f.fan.Flow.FrozenUntil = f.time()
			f.txn(f.parent())
		}},
		{"the steps change while it runs", "G65", func(f *flowing) { f.begins(); f.step("check").Needs = nil; f.commits(f.parent()) }},
		{"the plan changes while it runs", "G65", func(f *flowing) {
			f.begins()
			f.plan.Workflow.OnFailure = task.OnFailureContinue
			f.commits(op{f.dataKey(), task.RunData{Plan: f.plan}})
		}},
		{"the data is deleted while it runs", "G65", func(f *flowing) { f.begins(); f.commits(op{f.dataKey(), nil}) }},

		{"it ends before a step", "G65", func(f *flowing) { f.begins().extracted("2"); f.concludes(ok) }},
		{"it succeeds although a step has failed", "G65", func(f *flowing) {
			loaded(f, failed)
			f.runs("repair", ok, nil)
			f.runs("clean", ok, nil)
			f.concludes(ok)
		}},
		{"it fails although no step has failed", "G65", func(f *flowing) {
			loaded(f, ok)
			f.runs("check", ok, nil)
			f.runs("clean", ok, nil)
			f.concludes(failed)
		}},
		{"its data remains", "G65", func(f *flowing) {
			loaded(f, ok)
			f.runs("check", ok, nil)
			f.runs("clean", ok, nil)
			f.commits(f.conclude(ok, nil)[:2]...)
		}},
		{"it fails, and is not dead", "G25", func(f *flowing) {
			loaded(f, failed)
			f.runs("repair", ok, nil)
			f.runs("clean", ok, nil)
			f.commits(append(f.conclude(failed, nil)[:2], op{f.dataKey(), nil})...)
		}},
		{"its data does not have the results", "G65", func(f *flowing) {
			loaded(f, failed)
			f.runs("repair", ok, nil)
			f.runs("clean", ok, nil)
			f.commits(f.conclude(failed, func(data *task.RunData) { data.Results = nil })...)
		}},
	})
}

// Verifies: G65, G66
func TestCheck_StepsOfEndingRuns(t *testing.T) {
	const ok, failed = task.Succeeded, task.Failed

	// loading begins both items of load.
	loading := func(f *flowing) *flowing {
		f.begins().extracted("3")
		f.opens("load", 3)
		f.gives("load", 0)
		f.gives("load", 1)
		return f
	}
	// cut ends them early.
	cut := func(f *flowing) {
		f.ends("load", 0, task.Cancelled, nil)
		f.ends("load", 1, task.Cancelled, nil)
	}
	// asks lets the owner request the end of a part.
	asks := func(f *flowing, name string, byOwner bool) {
		a := f.active[f.step(name).First]
		a.CancelRequested, a.CancelledBy = true, task.NewActor("ann")
		o := op{f.keys.Run("a", f.etl.ref, a.ID), withoutID(a.Assigned)}
		if byOwner {
			f.commits(o)
		} else {
			f.txn(o)
		}
	}
	cleaning := func(f *flowing) { f.opens("clean", 1); f.gives("clean", 0) }

	runFlowTests(t, []flowTest{
		{"cleanup runs after a cancel", "", func(f *flowing) {
			loading(f).cancels(false)
			cut(f)
			f.runs("clean", ok, nil)
			f.concludes(task.Cancelled)
		}},
		{"cleanup fails after a cancel", "", func(f *flowing) {
			loading(f).cancels(false)
			cut(f)
			f.runs("clean", failed, nil)
			f.concludes(task.Cancelled)
		}},
		{"cleanup runs after the timeout", "", func(f *flowing) {
			loading(f).timesOut()
			cut(f)
			f.runs("clean", ok, nil)
			f.concludes(task.TimedOut)
		}},
		{"force", "", func(f *flowing) {
			loading(f).cancels(true)
			cut(f)
			f.concludes(task.Cancelled)
		}},
		{"force during cleanup", "", func(f *flowing) {
			loading(f).cancels(false)
			cut(f)
			cleaning(f)
			f.cancels(true)
			asks(f, "clean", true)
			f.ends("clean", 0, task.Cancelled, nil)
			f.concludes(task.Cancelled)
		}},
		{"nothing has begun", "", func(f *flowing) { f.begins().cancels(false); f.concludes(task.Cancelled) }},

		{"a step begins after a cancel", "G65", func(f *flowing) { f.begins().cancels(false); f.opens("extract", 1) }},
		{"an item begins after a cancel", "G65", func(f *flowing) { loading(f).cancels(false); f.ends("load", 0, ok, nil); f.gives("load", 2) }},
		{"an item begins after the timeout", "G65", func(f *flowing) { loading(f).timesOut(); f.ends("load", 0, ok, nil); f.gives("load", 2) }},
		{"cleanup begins although nothing before it has", "G65", func(f *flowing) { f.begins().cancels(false); f.opens("clean", 1) }},
		{"cleanup begins after force", "G65", func(f *flowing) {
			loading(f).cancels(true)
			cut(f)
			f.opens("clean", 1)
		}},
		{"cleanup begins before what it follows has ended", "G65", func(f *flowing) { loading(f).cancels(false); f.opens("clean", 1) }},
		{"a part of cleanup begins after force", "G65", func(f *flowing) {
			loading(f).cancels(false)
			cut(f)
			f.opens("clean", 1)
			f.cancels(true)
			f.gives("clean", 0)
		}},
		{"the next attempt begins after a cancel", "G65", func(f *flowing) {
			f.begins()
			f.opens("extract", 1)
			f.gives("extract", 0)
			a := f.active[0]
			w := task.Waiting{Run: a.Unpaused()}
			w.State, w.Reason = task.Queued, task.ReasonHandBack
			f.txn(op{f.keys.Run("a", f.etl.ref, a.ID), nil}, f.waiting(f.etl, w))
			f.cancels(false)
			f.commits(op{f.keys.Queued(f.etl.ref, a.ID), nil}, f.attempt("extract", 0, nil))
		}},
		{"force is withdrawn", "G65", func(f *flowing) { loading(f).cancels(true); f.cancels(false) }},

		{"no cleanup after a failure", "G66", func(f *flowing) {
			f.begins()
			f.runs("report", ok, nil)
			f.runs("extract", failed, nil)
			f.concludes(failed)
		}},
		{"no cleanup after a cancel", "G66", func(f *flowing) {
			loading(f).cancels(false)
			cut(f)
			f.concludes(task.Cancelled)
		}},
		{"a cancel ends cleanup", "G66", func(f *flowing) {
			loading(f).cancels(false)
			cut(f)
			cleaning(f)
			asks(f, "clean", true)
		}},
		{"a user ends a part of cleanup", "", func(f *flowing) {
			loading(f).cancels(false)
			cut(f)
			cleaning(f)
			asks(f, "clean", false)
		}},
		{"a timeout ends cleanup", "G66", func(f *flowing) {
			loading(f).timesOut()
			cut(f)
			cleaning(f)
			asks(f, "clean", true)
		}},

		{"cancelled, but the record says failed", "G65", func(f *flowing) {
			loading(f).cancels(false)
			cut(f)
			f.runs("clean", ok, nil)
			f.concludes(failed)
		}},
		{"timed out, but the record says cancelled", "G65", func(f *flowing) {
			loading(f).timesOut()
			cut(f)
			f.runs("clean", ok, nil)
			f.concludes(task.Cancelled)
		}},
		{"the timeout has cut nothing", "", func(f *flowing) {
			f.etl.steps = nil
			f.edit(&task.Workflow{Steps: map[string]task.Step{"extract": {Noop: &task.Noop{}}, "clean": {Needs: []string{"extract"}, When: task.WhenAlways, Timeout: 60e9, Noop: &task.Noop{}}}})
			f.begins().runs("extract", ok, nil)
			cleaning(f)
			f.timesOut()
			f.ends("clean", 0, ok, nil)
			f.concludes(ok)
		}},
		{"timed out, although nothing was cut", "G65", func(f *flowing) {
			f.edit(&task.Workflow{Steps: map[string]task.Step{"extract": {Noop: &task.Noop{}}, "clean": {Needs: []string{"extract"}, When: task.WhenAlways, Timeout: 60e9, Noop: &task.Noop{}}}})
			f.begins().runs("extract", ok, nil)
			cleaning(f)
			f.timesOut()
			f.ends("clean", 0, ok, nil)
			f.concludes(task.TimedOut)
		}},
		{"a part is cancelled, and the run is not", "G65", func(f *flowing) {
			loading(f)
			cut(f)
			f.runs("clean", ok, nil)
			f.concludes(ok)
		}},
	})
}

// Verifies: G65
func TestCheck_RetriesKeepWhatSucceeded(t *testing.T) {
	const ok, failed = task.Succeeded, task.Failed

	// dead is a run whose item 1 of load has failed.
	dead := func(f *flowing) *flowing {
		f.begins().extracted("3")
		f.opens("load", 3)
		for i, state := range []task.State{ok, failed, ok} {
			f.gives("load", i)
			f.ends("load", i, state, nil)
		}
		f.runs("repair", ok, nil)
		f.runs("clean", ok, nil)
		f.concludes(failed)
		return f
	}
	begun := func(f *flowing) *flowing { f.commits(f.parent()); return f }
	keep := []string{"extract", "report"}

	runFlowTests(t, []flowTest{
		{"repeats what failed", "", func(f *flowing) {
			dead(f).retries(keep, keepItems(2, 1))
			begun(f).opens("load", 1)
			f.gives("load", 0)
			f.ends("load", 0, ok, nil)
			f.runs("check", ok, nil)
			f.runs("clean", ok, nil)
			f.concludes(ok)
		}},
		{"from a step", "", func(f *flowing) { dead(f).retries(keep, nil) }},
		{"from the first step", "", func(f *flowing) { dead(f).retries([]string{"report"}, nil) }},
		{"after an edit", "", func(f *flowing) {
			dead(f).edit(&task.Workflow{Steps: map[string]task.Step{"other": {Noop: &task.Noop{}}}})
			f.retries(keep, keepItems(2, 1))
			begun(f)
		}},
		{"does not begin, and is retried", "", func(f *flowing) {
			dead(f).retries(keep, keepItems(2, 1))
			f.unbegun(true)
			f.retries(keep, keepItems(2, 1))
			begun(f).opens("load", 1)
		}},
		{"does not begin, is retried, and its record is written again", "", func(f *flowing) {
			dead(f).retries(keep, keepItems(2, 1))
			ended := f.keys.Ended(f.etl.ref, f.run.ID)
			f.unbegun(true)
			record := json.RawMessage(f.kv[ended].Value)
			f.retries(keep, keepItems(2, 1))
			f.txn(op{ended, record})
		}},
		{"does not begin, and its retry repeats more", "G65", func(f *flowing) {
			dead(f).retries(keep, keepItems(2, 1))
			f.unbegun(true)
			f.retries(keep, keepItems(1, 0, 1))
		}},
		{"does not begin, and is not dead", "G25", func(f *flowing) {
			dead(f).retries(keep, keepItems(2, 1))
			f.unbegun(false)
		}},
		{"repeats what succeeded", "G65", func(f *flowing) { dead(f).retries(nil, nil) }},
		{"repeats an item that succeeded", "G65", func(f *flowing) { dead(f).retries(keep, keepItems(1, 1, 2)) }},
		{"keeps an item that failed", "G65", func(f *flowing) { dead(f).retries(keep, keepItems(3)) }},
		{"keeps a step that failed", "G65", func(f *flowing) { dead(f).retries([]string{"extract", "report", "load"}, nil) }},
		{"keeps items that it does not name", "G65", func(f *flowing) { dead(f).retries(keep, keepItems(2)) }},
		{"keeps cleanup", "G65", func(f *flowing) { dead(f).retries([]string{"extract", "report", "clean"}, keepItems(2, 1)) }},
		{"keeps what follows a step that is repeated", "G65", func(f *flowing) { dead(f).retries([]string{"report", "load"}, nil) }},
		{"another plan", "G65", func(f *flowing) {
			dead(f).retries(keep, func(fan *task.Fan, data *task.RunData) {
				keepItems(2, 1)(fan, data)
				data.Plan.Selector = "x=y"
			})
		}},
		{"no plan", "G65", func(f *flowing) {
			dead(f).retries(keep, keepItems(2, 1))
			f.events = slices.DeleteFunc(f.events, func(ev Event) bool { return !ev.Deleted && ev.Key == f.dataKey() })
			f.events = slices.DeleteFunc(f.events, func(ev Event) bool { return ev.Deleted && ev.Key == f.dataKey() })
		}},
		{"other values", "G65", func(f *flowing) {
			dead(f).retries(keep, keepItems(2, 1))
			begun(f).opens("load", 1)
			f.commits(f.give("load", 0, func(a *task.Assigned) { a.Values["steps.extract.results.key"] = "x" }), f.parent())
		}},
	})
}

// Verifies: G65
func TestCheck_RunDataIsRemoved(t *testing.T) {
	for _, c := range []struct {
		name, promise string
		happens       func(f *flowing)
	}{
		{"of a run that has ended", "", func(f *flowing) {}},
		{"of a run that does not exist", "G65", func(f *flowing) {
			f.txn(op{f.keys.RunData(f.etl.ref, "20261120T120000.000Z-x"), task.RunData{Plan: f.plan}})
		}},
		{"of a dead run that is dismissed", "", func(f *flowing) {
			f.txn(op{f.keys.DeadRun(f.etl.ref, f.run.ID), nil})
			f.commits(op{f.dataKey(), nil})
		}},
		{"that remains of a dismissed run", "G65", func(f *flowing) { f.txn(op{f.keys.DeadRun(f.etl.ref, f.run.ID), nil}) }},
		{"of a dead run", "G65", func(f *flowing) { f.commits(op{f.dataKey(), nil}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFlowing(t, exampleSteps())
			f.begins().cancels(false)
			f.concludes(task.Cancelled)
			c.happens(f)
			only(t, Check(f.keys, f.events, Options{Ended: true}).Violations, c.promise)
		})
	}
}

// The records of a run are deleted with its task, while a node still has a part.
//
// Verifies: G65
func TestCheck_DeletedWorkflow(t *testing.T) {
	f := newFlowing(t, exampleSteps())
	f.begins().opens("extract", 1)
	f.gives("extract", 0)

	f.txn(op{f.keys.Spec(f.etl.ref), nil}, op{f.keys.Entry(f.etl.ref), nil}, op{f.dataKey(), nil}, op{f.keys.Queued(f.etl.ref, f.run.ID), nil})
	only(t, Check(f.keys, f.events, Options{}).Violations, "")
}
