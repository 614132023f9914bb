package scheduler

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// runsAfter makes a task run after sources, without ticks of its own. Each source is NAME or NAME:WHEN.
func runsAfter(sources ...string) option {
	return func(t *task.Task) {
		for _, s := range sources {
			t.After = append(t.After, task.ParseSource(s))
		}

		t.Join, t.Schedule, t.Overlap, t.Queue.Limit = task.JoinAny, task.Schedules{task.ManualSchedule}, task.OverlapQueue, 100
	}
}

func overlap(policy string) option {
	return func(t *task.Task) { t.Overlap, t.Queue = policy, task.QueuePolicy{} }
}

// createDependent creates a task with sources, as the API does.
func (w *world) createDependent(name string, opts ...option) {
	w.Helper()
	t, e := w.newTask(name, w.clock(), opts...)
	e.Links = task.LinksOf(t, nil, nil)
	_, err := w.store.CreateTask(w.ctx, ref(name), t, e)
	w.ok(err)

	w.subscribe(t)
}

// subscribe writes the records that make a task a dependent of its sources.
func (w *world) subscribe(t task.Task) {
	w.Helper()

	for _, s := range t.After {
		w.put(w.store.Keys().Subscriber(ref(s.Task), t.Name), record.Encode(record.Subscriber{UID: t.UID, Generation: t.Generation, When: s.When, Results: s.Results}))
	}
}

// relink changes the sources of a dependent, as an edit by the API does.
func (w *world) relink(name string, opts ...option) {
	w.Helper()
	old, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)

	t := old.Task
	t.After = nil
	for _, o := range opts {
		o(&t)
	}
	t.Generation++

	for _, s := range old.Task.After {
		w.delete(w.store.Keys().Subscriber(ref(s.Task), name))
	}

	e := task.NewEntry(t, old.Entry.From, old.Entry.Anchor)
	e.Links = task.LinksOf(t, nil, nil)
	_, err = w.store.UpdateTask(w.ctx, old, t, e)
	w.ok(err)
	w.subscribe(t)
}

// removeDependent deletes a task together with its links, as the API does.
func (w *world) removeDependent(name string) {
	w.Helper()
	keys := w.store.Keys()
	old, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)

	ops := []clientv3.Op{clientv3.OpDelete(keys.Spec(ref(name))), clientv3.OpDelete(keys.Entry(ref(name))), clientv3.OpDelete(keys.Sent(ref(name)))}
	for _, prefix := range []string{keys.QueueOf(ref(name)), keys.HistoryOf(ref(name)), keys.Dead(ref(name)), keys.Triggers(ref(name))} {
		ops = append(ops, clientv3.OpDelete(prefix, clientPrefix))
	}
	for _, s := range old.Task.After {
		ops = append(ops, clientv3.OpDelete(keys.Subscriber(ref(s.Task), name)))
	}

	_, err = w.client.Txn(w.ctx).Then(ops...).Commit()
	w.ok(err)
}

// ended runs a task that has no ticks to its end, at the time that the clock shows.
func (tw *testWorker) ended(name string, state task.State) {
	tw.world.Helper()
	now := tw.world.clock().Sub(start).Seconds()
	tw.world.trigger(name)
	tw.decide(now)
	tw.world.finish(name, state)
	tw.see()
}

// send sends what the owner has been asked for.
func (tw *testWorker) send() {
	for tw.e.sender.SendNext(tw.ctx) {
	}
}

// triggersOf returns the keys of a task's triggers, in the order in which they were created.
func (w *world) triggersOf(name string) (list []string) {
	w.Helper()
	prefix := w.store.Keys().Triggers(ref(name))
	res, err := w.client.Get(w.ctx, prefix, clientPrefix, clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	w.ok(err)

	for _, e := range res.Kvs {
		list = append(list, strings.TrimPrefix(string(e.Key), prefix))
	}

	return list
}

// wantTriggers checks how many triggers of a task wait.
func (w *world) wantTriggers(name string, n int) {
	w.Helper()
	if got := w.triggersOf(name); len(got) != n {
		w.Errorf("%s has the triggers %q, want %d", name, got, n)
	}
}

// causes returns the causes of the runs of a task, the oldest run first: the sources with the states of their runs.
func (w *world) causes(name string) (list []string) {
	w.Helper()
	for _, r := range w.runs(name) {
		for _, c := range r.Causes {
			list = append(list, fmt.Sprintf("%s %s", c.Task, c.State))
		}
	}

	return list
}

// runs returns the runs of a task, the oldest first.
func (w *world) runs(name string) (list []task.Run) {
	w.Helper()
	runs, err := w.store.ShardRuns(w.ctx, []int{0}, "")
	w.ok(err)
	for _, h := range w.active(name) {
		runs = append(runs, h.Run)
	}

	for _, r := range runs {
		if r.Task == name {
			list = append(list, r)
		}
	}

	slices.SortFunc(list, func(a, b task.Run) int { return strings.Compare(a.ID, b.ID) })

	return list
}

func manual(t *task.Task) { t.Schedule = task.Schedules{task.ManualSchedule} }

func TestDependent_RunsAfterItsSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("etl", every("1h"))
	w.createDependent("report", runsAfter("etl"), func(t *task.Task) { t.After[0].Results = []string{"rows", "absent"} })
	w.createDependent("repair", runsAfter("etl:failed"))
	h.decide(3600)

	a := w.active("etl")[0]
	end := a.Run
	end.State, end.EndedAt, end.Results = task.Succeeded, task.At(w.clock()), map[string]string{"rows": "7", "other": "x"}
	w.ok(w.store.Finish(w.ctx, a, end, nil))

	h.see()
	h.send()
	w.wantTriggers("report", 1)
	w.wantTriggers("repair", 0)

	h.decide(3601)
	w.wantTriggers("report", 0)
	w.want("report", "+3601 dispatched after")
	w.want("repair")

	run := w.active("report")[0].Run
	want := []task.Cause{{Task: "etl", Run: a.ID, State: task.Succeeded, Results: map[string]string{"rows": "7"}}}
	if !reflect.DeepEqual(run.Causes, want) || !run.Period.Equal(a.ScheduledTime.Time) {
		t.Errorf("the run has the causes %+v and the period %s, want %+v and %s", run.Causes, run.Period, want, a.ScheduledTime)
	}
	if run.ID != task.TriggeredRunID(run.ScheduledTime.Time, run.UID, want[0]) {
		t.Errorf("the run has the id %s", run.ID)
	}

	// Nothing is sent or taken twice.
	h.lookAtSources()
	h.e.sender.LookNow(w.ctx)
	h.send()
	h.decide(3602)
	w.want("report", "+3601 dispatched after")
}

// An ended run counts for the subscribers that are older, and by the condition that they have now.
func TestDependent_OnlyNewerEndsThatMatchCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("always", runsAfter("a:ended"))
	h.ended("a", task.Succeeded)
	w.createDependent("late", runsAfter("a:ended"))
	h.send()
	w.wantTriggers("always", 1)
	w.wantTriggers("late", 0)

	// The end came before the link was changed.
	w.at(1)
	h.ended("a", task.Failed)
	w.relink("late", runsAfter("a:failed"))
	h.see()
	h.send()
	w.wantTriggers("always", 1) // it runs for the first one
	w.wantTriggers("late", 0)

	for i, state := range []task.State{task.Failed, task.TimedOut, task.Cancelled, task.Succeeded} {
		w.at(2 + float64(i))
		h.ended("a", state)
		h.send()
	}
	if got := append(w.causes("late"), w.triggersOf("late")...); len(got) != 2 || got[0] != "a failed" {
		t.Errorf("late was started for %q, want a run for the failed one and a trigger for the one that timed out", got)
	}
}

func TestDependent_WaitsInOrderWhileItIsBusy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("b", runsAfter("a:ended"))

	for i, state := range []task.State{task.Succeeded, task.Failed, task.Cancelled} {
		w.at(float64(i))
		h.ended("a", state)
		h.send()
	}

	for i := range 3 {
		h.decide(10 + float64(i))
		w.wantTriggers("b", 2-i)
		w.finish("b", task.Succeeded)
	}

	if got := w.causes("b"); !slices.Equal(got, []string{"a succeeded", "a failed", "a cancelled"}) {
		t.Errorf("b ran for %q", got)
	}
}

// putEnd writes the record of a run that has ended, as its node does. It returns the id of the run.
func (w *world) putEnd(name string, at float64, state task.State) string {
	w.Helper()
	st, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)

	r := endOf(st.Task, at, state)
	w.put(w.store.Keys().Ended(ref(name), r.ID), string(record.EncodeEnded(r)))

	return r.ID
}

// endOf returns a run of a task that has ended.
func endOf(t task.Task, at float64, state task.State) task.Run {
	return task.Run{
		ID: task.RunID(sec(at), t.UID), UID: t.UID, ScheduledTime: task.At(sec(at)), State: state, Reason: usual[state], Trigger: task.TriggerSchedule, Attempt: 1,
		StartedAt: task.At(sec(at)), EndedAt: task.At(sec(at)),
	}
}

// cursor returns the cursor of a source.
func (w *world) cursor(name string) (c record.Cursor, exists bool) {
	w.Helper()
	res, err := w.client.Get(w.ctx, w.store.Keys().Sent(ref(name)))
	w.ok(err)
	if len(res.Kvs) == 0 {
		return c, false
	}

	c, err = record.DecodeCursor(res.Kvs[0].Value)
	w.ok(err)

	return c, true
}

// revision returns the present revision of etcd.
func (w *world) revision() int64 {
	w.Helper()
	res, err := w.client.Get(w.ctx, "/x")
	w.ok(err)

	return res.Header.Revision
}

// newSource returns a world with a source a and a dependent b that runs after each end of a.
func newSource(t *testing.T, opts ...option) (*world, *testWorker) {
	t.Helper()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", append([]option{manual}, opts...)...)
	w.createDependent("b", runsAfter("a:ended"))
	h.see()

	return w, h
}

func TestSend_SendsEachEndOnce(t *testing.T) {
	t.Parallel()

	for name, tricks := range map[string][]trick{
		"no fault":                  nil,
		"applied, answer lost":      {appliedButLost},
		"lost":                      {lost},
		"refused":                   {refused},
		"lost, then applied twice ": {lost, appliedButLost, appliedButLost},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				w, h := newSource(t)
				first, second := w.putEnd("a", 1, task.Succeeded), w.putEnd("a", 2, task.Failed)
				h.see()
				h.gate.play(tricks...)
				h.send()

				// A failed attempt is repeated later.
				for range tricks {
					time.Sleep(time.Minute)
					h.send()
				}

				if got := w.triggersOf("b"); !slices.Equal(got, []string{"a~" + first, "a~" + second}) {
					t.Errorf("the triggers are %q", got)
				}
			})
		})
	}
}

// A copy of a transaction that arrives late writes nothing, because the cursor has moved.
func TestSend_LateCopyIsVoid(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w, h := newSource(t)
		w.putEnd("a", 1, task.Succeeded)
		h.see()
		h.gate.play(h.gate.delayed)
		h.send()
		w.wantTriggers("b", 0)
		time.Sleep(2 * time.Second)
		h.send()
		w.wantTriggers("b", 1)
		h.decide(3)
		w.wantTriggers("b", 0)
		h.gate.deliver()
		w.wantTriggers("b", 0)
	})
}

func TestSend_AFormerOwnerSendsNothing(t *testing.T) {
	t.Parallel()
	w, h := newSource(t)
	w.join("n2")
	w.putEnd("a", 1, task.Succeeded)
	h.see()

	var next *testWorker
	h.gate.play(before(func() { next = w.work("n2") }))
	h.send()
	w.wantTriggers("b", 0)

	// The new owner has not seen the end. It looks.
	next.send()
	w.wantTriggers("b", 0)
	next.lookAtSources()
	next.e.sender.LookNow(w.ctx)
	next.send()
	w.wantTriggers("b", 1)
}

// Nothing that is no end of a run of the present task starts a dependent.
func TestSend_OtherRecordsAreNotEnds(t *testing.T) {
	t.Parallel()
	w, h := newSource(t)
	w.putEnd("a", 1, task.Skipped)
	w.putEnd("a", 2, task.Missed)

	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)
	late := endOf(st.Task, 3, task.Succeeded)
	w.put(w.store.Keys().Late(ref("a"), late.ID, 7), string(record.EncodeEnded(late)))

	h.see()
	if h.e.sender.SendNext(w.ctx) {
		t.Error("the sender was asked to read a source of which no run has ended")
	}

	alone := endOf(st.Task, 4, task.Succeeded)
	alone.Alone = true
	w.put(w.store.Keys().Ended(ref("a"), alone.ID), string(record.EncodeEnded(alone)))

	foreign := endOf(task.Task{UID: "otheruid"}, 5, task.Succeeded)
	w.put(w.store.Keys().Ended(ref("a"), foreign.ID), string(record.EncodeEnded(foreign)))

	h.see()
	h.send()
	w.wantTriggers("b", 0)
}

// The ends of a source that was deleted do not count for one of the same name, whose dependents stay.
func TestSend_SourceIsCreatedAgain(t *testing.T) {
	t.Parallel()
	w, h := newSource(t)
	w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.gate.play(before(func() { w.removeDependent("a"); w.at(5); w.create("a", manual) }))
	h.send()
	w.wantTriggers("b", 0)

	h.see()
	w.putEnd("a", 6, task.Succeeded)
	h.see()
	h.send()
	w.wantTriggers("b", 1)
}

// The cursor is not written for each record of which nobody is owed anything, but it does not stay behind either.
func TestSend_CursorPassesWhatNobodyIsOwed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("b", runsAfter("a:failed"))

	for i := range 20 {
		w.putEnd("a", float64(i), task.Succeeded)
		h.see()
		h.send()
		if _, exists := w.cursor("a"); exists != (i >= 15) {
			t.Fatalf("after %d records, there is a cursor: %v", i+1, exists)
		}
	}

	if h.e.sender.SendNext(w.ctx) {
		t.Error("the sender has more to do")
	}
}

// Ends that are written at one revision have an order, so that a transaction may send a part of them.
func TestSend_ManyEndsOfOneRevision(t *testing.T) {
	t.Parallel()
	w, h := newSource(t)
	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)

	var ops []clientv3.Op
	for i := range 90 {
		r := endOf(st.Task, float64(i), task.Succeeded)
		ops = append(ops, clientv3.OpPut(w.store.Keys().Ended(ref("a"), r.ID), string(record.EncodeEnded(r))))
	}
	_, err = w.client.Txn(w.ctx).Then(ops...).Commit()
	w.ok(err)

	h.see()
	h.send()
	w.wantTriggers("b", 90)
}

func TestSend_HundredDependents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	for i := range task.MaxDependents {
		w.createDependent(fmt.Sprintf("b%02d", i), runsAfter("a"), func(t *task.Task) { t.After[0].Results = []string{"text"} })
	}

	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)
	r := endOf(st.Task, 1, task.Succeeded)
	r.Results = map[string]string{"text": strings.Repeat("x", task.MaxResultBytes-4)}
	w.put(w.store.Keys().Ended(ref("a"), r.ID), string(record.EncodeEnded(r)))
	w.putEnd("a", 2, task.Succeeded)
	h.see()
	h.send()

	for i := range task.MaxDependents {
		w.wantTriggers(fmt.Sprintf("b%02d", i), 2)
	}

	h.decide(3)
	for i := range task.MaxDependents {
		name := fmt.Sprintf("b%02d", i)
		if run := w.active(name); len(run) != 1 || run[0].Causes[0].Run != r.ID {
			t.Fatalf("%s runs %+v", name, run)
		}
	}
}

func TestSend_UnreadableRecords(t *testing.T) {
	t.Parallel()

	t.Run("an end", func(t *testing.T) {
		w, h := newSource(t)
		st, err := w.store.Task(w.ctx, ref("a"))
		w.ok(err)
		w.put(w.store.Keys().Ended(ref("a"), task.RunID(sec(1), st.Task.UID)), "{")
		id := w.putEnd("a", 2, task.Succeeded)
		h.see()
		h.send()
		if got := w.triggersOf("b"); !slices.Equal(got, []string{"a~" + id}) {
			t.Errorf("the triggers are %q", got)
		}
	})

	t.Run("a subscriber", func(t *testing.T) {
		w, h := newSource(t)
		w.put(w.store.Keys().Subscriber(ref("a"), "broken"), "{")
		w.putEnd("a", 2, task.Succeeded)
		h.see()
		h.send()
		w.wantTriggers("b", 1)
		w.wantTriggers("broken", 0)
	})

	for name, value := range map[string]string{"a cursor": "{", "a cursor of another etcd": `{"create":1000000}`} {
		t.Run(name, func(t *testing.T) {
			w, h := newSource(t)
			w.putEnd("a", 1, task.Succeeded)
			w.put(w.store.Keys().Sent(ref("a")), value)
			h.see()
			h.lookAtSources()
			h.e.sender.LookNow(w.ctx)
			before := w.revision()
			h.send()
			w.wantTriggers("b", 0)

			// What had ended by then is lost. What ends later is sent.
			if c, _ := w.cursor("a"); c.Create != before || c.Run != "" {
				t.Errorf("the cursor is %+v, the revision of the read was %d", c, before)
			}
			w.putEnd("a", 2, task.Succeeded)
			h.see()
			h.send()
			w.wantTriggers("b", 1)
		})
	}
}

// A history keeps what has not been sent, however few records it may have.
func TestTrim_KeepsUnsentEnds(t *testing.T) {
	t.Parallel()

	for name, history := range map[string]task.History{
		"ledger":        {Keep: 1},
		"no ledger":     {Keep: 1, Ledger: new(task.Duration)},
		"only failures": {Keep: 1, Record: task.RecordFailures},
	} {
		t.Run(name, func(t *testing.T) {
			w, h := newSource(t, keep(1))
			var want []string
			for i := range 5 {
				want = append(want, "a~"+w.putEnd("a", float64(i+1), task.Succeeded))
			}
			h.see()
			h.trimTo("a", history)
			if got := len(w.runs("a")); got != 5 {
				t.Fatalf("%d records stay before anything was sent, want 5", got)
			}

			h.send()
			if got := w.triggersOf("b"); !slices.Equal(got, want) {
				t.Errorf("the triggers are %q, want %q", got, want)
			}
			h.trimTo("a", history)
			if got := len(w.runs("a")); got != 1 {
				t.Errorf("%d records stay after everything was sent, want 1", got)
			}
		})
	}
}

// Records from before the first subscriber, or of a source without subscribers, are trimmed as usual.
func TestTrim_KeepsNothingForNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual, keep(1))
	for i := range 5 {
		w.putEnd("a", float64(i), task.Succeeded)
	}
	w.createDependent("b", runsAfter("a"))
	h.trimTo("a", task.History{Keep: 1})
	if got := len(w.runs("a")); got != 1 {
		t.Errorf("%d records stay from before there was a dependent, want 1", got)
	}

	w.putEnd("a", 6, task.Succeeded)
	w.putEnd("a", 7, task.Succeeded)
	w.removeDependent("b")
	h.trimTo("a", task.History{Keep: 1})
	if got := len(w.runs("a")); got != 1 {
		t.Errorf("%d records stay although the dependent is gone, want 1", got)
	}
}

func TestTake_ChangesBetweenSendAndTake(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		name   string
		change func(w *world)
		want   []string
		after  []string // after the change was taken back, and a second later
		undo   func(w *world)
	}{
		{name: "nothing", change: func(*world) {}, want: []string{"+10 dispatched after"}},
		{name: "another link", change: func(w *world) { w.relink("b", runsAfter("a:failed")) }, want: []string{"+10 skipped after unlinked"}},
		{name: "the same link", change: func(w *world) { w.relinkUnchanged("b") }, want: []string{"+10 dispatched after"}},
		{name: "no link", change: func(w *world) { w.relink("b", runsAfter("c")) }, want: []string{"+10 skipped after unlinked"}},
		{name: "deleted", change: func(w *world) { w.removeDependent("b") }},
		{name: "deleted by hand", change: func(w *world) { w.delete(w.store.Keys().Spec(ref("b"))); w.delete(w.store.Keys().Entry(ref("b"))) }},
		{name: "deleted and created again", change: func(w *world) {
			w.delete(w.store.Keys().Spec(ref("b")))
			w.delete(w.store.Keys().Entry(ref("b")))
			w.createDependent("b", runsAfter("a"))
		}},
		{name: "paused", change: func(w *world) { w.editDependent("b", paused) }, want: []string{"+10 skipped after paused"}},
		{name: "shadow", change: func(w *world) { w.editDependent("b", func(t *task.Task) { t.Shadow = true }) }, want: []string{"+10 skipped after shadow"}},
		{name: "deadline", change: func(w *world) { w.editDependent("b", func(t *task.Task) { t.Deadline = task.Duration(5e9) }) }, want: []string{"+10 missed after start_deadline"}},
		{name: "frozen", change: func(w *world) { w.freeze("") }, undo: func(w *world) { w.unfreeze("") }, after: []string{"+11 dispatched after"}},
	} {
		for _, seen := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, seen %v", c.name, seen), func(t *testing.T) {
				w, h := newSource(t)
				w.createDependent("other", runsAfter("a"))
				w.putEnd("a", 1, task.Succeeded)
				w.at(2)
				h.see()
				h.send()
				h.see()
				w.at(3)
				c.change(w)
				if seen {
					h.see()
				}

				h.blind(10)
				h.see()
				h.blind(10)
				w.want("b", c.want...)
				w.want("other", map[bool][]string{true: nil, false: {"+10 dispatched after"}}[c.name == "frozen"]...)

				if c.undo != nil {
					c.undo(w)
					w.wantTriggers("b", 1)
					h.wakeForFreezes()
					h.decide(11)
					w.want("b", c.after...)
				}
				w.wantTriggers("b", 0)

				h.see()
				h.blind(12)
				if exists := h.state.records.Tasks.Get("default/b") != nil; exists == strings.HasPrefix(c.name, "deleted") && !strings.HasSuffix(c.name, "again") {
					t.Errorf("the worker knows the task: %v", exists)
				}
			})
		}
	}
}

// editDependent changes a dependent without changing its links.
func (w *world) editDependent(name string, opts ...option) {
	w.Helper()
	old, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)

	t := old.Task
	for _, o := range opts {
		o(&t)
	}
	t.Generation++

	e := task.NewEntry(t, old.Entry.From, old.Entry.Anchor)
	e.Links, e.Own = task.LinksOf(t, old.Task.After, old.Entry.Links), old.Entry.Own
	_, err = w.store.UpdateTask(w.ctx, old, t, e)
	w.ok(err)
}

func (w *world) relinkUnchanged(name string) { w.Helper(); w.editDependent(name) }

// wakeForFreezes is what the follower of the freezes does.
func (tw *testWorker) wakeForFreezes() {
	tw.e.cfg.Freezes = func() (*task.Freezes, int64) {
		r, err := tw.world.store.Freezes(tw.world.ctx)
		tw.world.ok(err)

		return &r.Freezes, r.Mod
	}
	tw.state.examineAll()
}

// Runs of one commit keep the order of their triggers, and skipped triggers share a record that the ledger can read.
func TestTake_OutcomesOfOneMillisecond(t *testing.T) {
	t.Parallel()

	t.Run("runs", func(t *testing.T) {
		w := newWorld(t, "n1")
		h := w.work("n1")
		w.create("a", manual)
		w.createDependent("b", runsAfter("a"), overlap(task.OverlapAllow))
		var want []string
		for i := range 6 {
			want = append(want, w.putEnd("a", float64(i), task.Succeeded))
		}
		h.see()
		h.send()
		h.decide(10)

		var got []string
		for _, r := range w.runs("b") {
			got = append(got, r.Causes[0].Run)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the runs have the causes %q, want %q", got, want)
		}
	})

	t.Run("skipped", func(t *testing.T) {
		w := newWorld(t, "n1")
		h := w.work("n1")
		w.create("a", manual)
		w.createDependent("b", runsAfter("a"), overlap(task.OverlapSkip))
		for i := range 70 {
			w.putEnd("a", float64(i), task.Succeeded)
		}
		h.see()
		h.send()
		h.decide(100)
		w.want("b", "+100 dispatched after", "+100.001..+100.069 skipped 69 after overlap")

		// Those of the next commit are in the same record.
		w.putEnd("a", 101, task.Succeeded)
		h.see()
		h.send()
		h.decide(102)
		w.want("b", "+100 dispatched after", "+100.001..+102 skipped 70 after overlap")

		// A run ends the range.
		w.finish("b", task.Succeeded)
		h.see()
		for at := range 3 {
			w.putEnd("a", float64(103+at), task.Succeeded)
			h.see()
			h.send()
			h.decide(float64(103 + at))
		}
		w.want("b", "+100 succeeded after", "+100.001..+102 skipped 70 after overlap", "+103 dispatched after", "+104..+105 skipped 2 after overlap")

		// A new owner begins a new record.
		next := w.work("n1")
		w.putEnd("a", 106, task.Succeeded)
		next.see()
		next.send()
		next.decide(106)
		w.want("b", "+100 succeeded after", "+100.001..+102 skipped 70 after overlap", "+103 dispatched after", "+104..+105 skipped 2 after overlap", "+106 skipped after overlap")
	})
}

// The times of the record of skipped triggers do not go back with the clock.
func TestTake_SkippedWhileTheClockGoesBack(t *testing.T) {
	t.Parallel()
	w, h := newSource(t)
	w.editDependent("b", paused)

	for i, decided := range []float64{10, 8} {
		w.putEnd("a", float64(i+1), task.Succeeded)
		h.see()
		h.send()
		h.see()
		h.decide(decided)
	}

	w.want("b", "+10..+10.001 skipped 2 after paused")
	if r := w.runs("b")[0]; r.EndedAt.Before(r.Last.Time) {
		t.Errorf("the record ended at %s, before its last trigger at %s", r.EndedAt, r.Last)
	}
}

func TestTake_SkippedRangeThatWasTrimmed(t *testing.T) {
	t.Parallel()
	w, h := newSource(t)
	w.editDependent("b", paused)
	w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()
	h.decide(2)
	w.want("b", "+2 skipped after paused")

	w.delete(w.store.Keys().Ended(ref("b"), w.runs("b")[0].ID))
	w.putEnd("a", 3, task.Succeeded)
	h.see()
	h.send()
	h.decide(4)
	w.want("b", "+4 skipped after paused")
	w.wantTriggers("b", 0)
}

// Each pause has a record of its own, from which a resume counts what was dropped.
func TestTake_EachPauseHasARecord(t *testing.T) {
	t.Parallel()
	w, h := newSource(t)
	since := w.clock()

	for pause := range 2 {
		w.editDependent("b", paused)
		h.see()
		for i := range 2 {
			at := float64(1 + 4*pause + i)
			w.putEnd("a", at, task.Succeeded)
			h.see()
			h.send()
			h.decide(at)
		}

		n, err := w.store.DroppedTriggers(w.ctx, ref("b"), since)
		w.ok(err)
		if n != 2 {
			t.Errorf("pause %d has dropped %d", pause, n)
		}

		w.editDependent("b", func(t *task.Task) { t.Paused = false })
		h.see()
		h.decide(float64(4 + 4*pause))
		since = w.clock()
	}

	w.want("b", "+1..+2 skipped 2 after paused", "+5..+6 skipped 2 after paused")
}

// Triggers of a task whose entry cannot be read wait until it is repaired, up to a limit.
func TestTake_UnreadableEntry(t *testing.T) {
	t.Parallel()

	for _, known := range []bool{true, false} {
		w, h := newSource(t)
		old, err := w.store.Task(w.ctx, ref("b"))
		w.ok(err)
		entry := w.store.Keys().Entry(ref("b"))
		res, err := w.client.Get(w.ctx, entry)
		w.ok(err)

		w.put(entry, "garbage")
		if h.see(); !known {
			h = w.work("n1")
		}

		put := func(from, to int) {
			for i := from; i < to; i++ {
				w.put(w.store.Keys().Trigger(ref("b"), "a", fmt.Sprintf("r%04d", i)), record.Encode(task.Trigger{
					UID: old.Task.UID, Generation: 1, Cause: task.Cause{State: task.Succeeded}, At: task.At(w.clock()),
				}))
			}
			h.see()
		}

		put(0, task.MaxTriggerQueue)
		h.decide(1)
		w.wantTriggers("b", task.MaxTriggerQueue)
		w.want("b")

		put(task.MaxTriggerQueue, task.MaxTriggerQueue+2)
		h.decide(2)
		put(task.MaxTriggerQueue+2, task.MaxTriggerQueue+3)
		h.decide(3)
		w.wantTriggers("b", task.MaxTriggerQueue)
		w.want("b", "+2..+3 skipped 3 after dropped")

		w.put(entry, string(res.Kvs[0].Value))
		h.see()
		h.decide(4)
		if n := len(w.runs("b")); n < 2 {
			t.Errorf("known %v: %d records after the repair", known, n)
		}
	}
}

func TestTake_UnreadableTrigger(t *testing.T) {
	t.Parallel()
	w, h := newSource(t)
	w.put(w.store.Keys().Trigger(ref("b"), "a", "r1"), "{")
	w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()
	h.decide(2)
	w.want("b", "+2 skipped after bad_record", "+2.001 dispatched after")
	w.wantTriggers("b", 0)

	if c := w.runs("b")[0].Causes; len(c) != 1 || c[0].Task != "a" || c[0].Run != "r1" {
		t.Errorf("the record names %+v", c)
	}
}

// A trigger that was deleted or changed by somebody else makes one commit fail, and the others are on time although the watch is
// silent.
func TestTake_ConflictOfATrigger(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(w *world, key string){
		"deleted": func(w *world, key string) { w.delete(key) },
		"changed": func(w *world, key string) {
			res, err := w.client.Get(w.ctx, key)
			w.ok(err)
			w.put(key, string(res.Kvs[0].Value))
		},
		"the task is deleted": func(w *world, _ string) { w.removeDependent("b") },
		"the task is created again": func(w *world, _ string) {
			w.removeDependent("b")
			w.createDependent("b", runsAfter("a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, h := newSource(t)
			w.create("c", allow)
			id := w.putEnd("a", 1, task.Succeeded)
			h.see()
			h.send()
			h.see()
			change(w, w.store.Keys().Trigger(ref("b"), "a", id))

			commits := h.gate.commits
			h.blind(1)
			w.want("c", "+1 dispatched")
			if n := h.gate.commits - commits; n > 4 {
				t.Errorf("%d commits in the first round", n)
			}

			h.decide(2)
			w.wantTriggers("b", 0)
			w.want("b", map[string][]string{"changed": {"+1 dispatched after"}}[name]...)
		})
	}
}

// The reconciliation finds what a watch has lost.
func TestReconcile_FindsLinksAndTriggers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("b", runsAfter("a"))
	w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()
	h.see()
	before := fmt.Sprintf("%+v %d", h.state.records.Links.SentTo("default/a"), h.state.records.Links.Waiting())

	// As if no event had arrived.
	h.state.records.Links = state.Links{}
	h.reconcile()
	if got := fmt.Sprintf("%+v %d", h.state.records.Links.SentTo("default/a"), h.state.records.Links.Waiting()); got != before || !h.state.records.Links.IsSource("default/a") {
		t.Errorf("found %s, want %s", got, before)
	}
	h.blind(2)
	w.want("b", "+2 dispatched after")

	// As if no deletion had arrived.
	h.see()
	links := h.state.records.Links
	w.removeDependent("b")
	w.removeDependent("a")
	h.see()
	h.state.records.Links = links
	h.reconcile()
	if h.state.records.Links.IsSource("default/a") || h.state.records.Links.Waiting() != 0 {
		t.Errorf("left: %+v", h.state.records.Links)
	}
}

// A dependent may have a schedule, to which the fields that concern ticks apply.
func TestTake_BesideASchedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("b", runsAfter("a"), every("10s"), missed(task.MissedAll, 5), func(t *task.Task) { t.MaxRuns, t.Jitter = 2, task.Duration(time.Millisecond) })
	w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()
	h.decide(2)
	w.want("b", "+2 dispatched after")
	if due := w.active("b")[0].DueAt; !due.IsZero() {
		t.Errorf("the run is due at %s", due)
	}

	// A tick waits for the triggered run, and the trigger for the tick.
	w.putEnd("a", 3, task.Succeeded)
	h.see()
	h.send()
	h.decide(10)
	w.want("b", "+2 dispatched after", "+10 queued overlap")
	w.finish("b", task.Succeeded)
	h.decide(11)
	w.want("b", "+2 succeeded after", "+10 dispatched")
	w.wantTriggers("b", 1)
	w.finish("b", task.Succeeded)
	h.decide(12)
	w.want("b", "+2 succeeded after", "+10 succeeded", "+12 dispatched after")

	// Only ticks count for max_runs.
	w.finish("b", task.Succeeded)
	h.decide(30)
	w.finish("b", task.Succeeded)
	h.decide(60)
	w.want("b", "+2 succeeded after", "+10 succeeded", "+12 succeeded after", "+20 succeeded")
}

// A run and a tick of a task have different times, so that a time names one of them.
func TestTake_HasNoTimeOfATick(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("b", runsAfter("a"), every("10s"), overlap(task.OverlapAllow))
	w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()
	h.decide(10)
	w.want("b", "+10 dispatched", "+10.001 dispatched after")
}

func TestTake_ReplacesTheActiveRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("b", runsAfter("a"), overlap(task.OverlapReplace))
	w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()
	h.decide(1)
	w.putEnd("a", 2, task.Succeeded)
	newest := w.putEnd("a", 3, task.Succeeded)
	h.see()
	h.send()
	h.decide(3)
	h.decide(4)
	w.want("b", "+1 dispatched after", "+3 skipped after dropped", "+3.001 queued after overlap")
	w.finish("b", task.Cancelled)
	h.decide(5)
	w.want("b", "+1 cancelled after replaced", "+3 skipped after dropped", "+3.001 dispatched after")
	if run := w.active("b")[0]; run.Causes[0].Run != newest {
		t.Errorf("the run has the causes %+v", run.Causes)
	}
}

// A tick falls due while the run of a trigger waits that has replaced the run before. The tick is newer, so it replaces that run as well.
// It must not start beside it: the older run would cancel it as soon as it was active.
//
// Verifies: G24
func TestTake_IsReplacedByANewerTick(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("b", runsAfter("a"), every("10s"), overlap(task.OverlapReplace))
	h.see()
	h.decide(10)
	w.putEnd("a", 11, task.Succeeded)
	h.see()
	h.send()
	h.decide(12)
	w.want("b", "+10 dispatched", "+12 queued after overlap")

	w.finish("b", task.Cancelled)
	h.decide(20)
	h.decide(20)
	w.want("b", "+10 cancelled cancelled_by_user", "+12 dispatched after", "+20 queued overlap")
	if !w.active("b")[0].CancelRequested {
		t.Error("the tick does not replace the older run")
	}

	w.finish("b", task.Cancelled)
	h.decide(21)
	w.want("b", "+10 cancelled cancelled_by_user", "+12 cancelled after replaced", "+20 dispatched")
	if w.active("b")[0].CancelRequested {
		t.Error("the newest run is to be cancelled")
	}
}

// With missed all, each late tick runs. So late ticks let the run of an older trigger go first, and newer triggers wait for them.
//
// Verifies: G24
func TestTake_ReplacesNoLateTicks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("b", runsAfter("a"), every("10s"), overlap(task.OverlapReplace), missed(task.MissedAll, 5))
	h.see()
	h.decide(10)
	w.putEnd("a", 11, task.Succeeded)
	h.see()
	h.send()
	h.decide(12)
	w.finish("b", task.Cancelled)
	h.decide(35)
	w.want("b", "+10 cancelled cancelled_by_user", "+12 dispatched after", "+20 queued catch_up", "+30 queued catch_up")

	w.putEnd("a", 36, task.Succeeded)
	w.putEnd("a", 37, task.Succeeded)
	h.see()
	h.send()
	h.decide(37)
	w.wantTriggers("b", 1)
	if w.active("b")[0].CancelRequested {
		t.Error("a trigger replaces a run before late ticks")
	}

	// Both late ticks run, one after another. The second one starts within its grace, which ends the catch-up.
	w.finish("b", task.Succeeded)
	h.decide(38)
	w.want("b", "+10 cancelled cancelled_by_user", "+12 succeeded after", "+20 dispatched catch_up", "+30 queued catch_up", "+37 skipped after dropped")
	w.finish("b", task.Succeeded)
	h.decide(39)
	w.finish("b", task.Succeeded)
	h.decide(39.5)
	w.want("b", "+10 cancelled cancelled_by_user", "+12 succeeded after", "+20 succeeded catch_up", "+30 succeeded", "+37 skipped after dropped", "+39 dispatched after")
}

func TestTake_WaitsForANode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("b", runsAfter("a"), on("role = db"))
	w.putEnd("a", 1, task.Succeeded)
	w.putEnd("a", 2, task.Succeeded)
	h.see()
	h.send()
	h.decide(3)
	w.want("b", "+3 queued after no_matching_node")
	w.wantTriggers("b", 1)

	w.join("n2", "role=db")
	h.fleet()
	h.decide(4)
	w.want("b", "+3 dispatched after")
	w.wantTriggers("b", 1)
}

// Retries and parts keep what has started the run.
func TestTake_RetriesAndPartsKeepCauses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("b", runsAfter("a"), retries(2, 0, task.Failed))
	w.createDependent("c", runsAfter("a"), func(t *task.Task) { t.Target.Parts = 2 })
	id := w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()
	h.decide(2)
	h.decide(3)
	w.finish("b", task.Failed)
	h.decide(4)

	check := func(r task.Run) {
		t.Helper()
		if len(r.Causes) != 1 || r.Causes[0].Run != id || !r.Period.Equal(sec(1)) {
			t.Errorf("run %s of %s has the causes %+v and the period %s", r.ID, r.Task, r.Causes, r.Period)
		}
	}

	again := w.active("b")[0].Run
	if again.Attempt != 2 {
		t.Fatalf("attempt %d", again.Attempt)
	}
	check(again)

	parts := w.active("c")
	if len(parts) != 2 {
		t.Fatalf("%d parts", len(parts))
	}
	for _, part := range parts {
		check(part.Run)
	}

	w.finish("b", task.Failed)
	dead, err := w.store.DeadRuns(w.ctx, ref("b"))
	w.ok(err)
	check(dead[0].Run)
}

// Nodes die in the middle of a chain of tasks. Each end of the first task has exactly one outcome at the end of the chain.
func TestEngine_ChainSurvivesItsOwners(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		const length, ends = 5, 40

		w := newWorld(t, "n1", "n2")
		w.setClockToNow()
		w.create("t0", manual)
		for i := 1; i < length; i++ {
			w.createDependent(fmt.Sprintf("t%d", i), runsAfter(fmt.Sprintf("t%d", i-1)), keep(1))
		}

		owner := w.run("n1")
		for i := range ends {
			w.putEnd("t0", float64(i), task.Succeeded)
			w.finishAll(time.Second)

			// The former owner does not know yet that it has lost the shard.
			if i%7 == 3 {
				owner.gate.play(appliedButLost, lost)
			}
			if i%10 == 5 {
				owner = w.run([]string{"n2", "n1"}[i/10%2])
			}
		}

		w.eventually("all runs have ended", func() bool {
			w.finishAll(time.Second)
			for i := range length {
				if len(w.triggersOf(fmt.Sprintf("t%d", i))) > 0 || len(w.active(fmt.Sprintf("t%d", i))) > 0 {
					return false
				}
			}

			return w.counted(fmt.Sprintf("t%d", length-1))+int64(len(w.runs(fmt.Sprintf("t%d", length-1)))) >= ends
		})

		time.Sleep(2 * lookPeriod)
		w.finishAll(time.Second)
		for i := 1; i < length; i++ {
			name := fmt.Sprintf("t%d", i)
			if n := w.counted(name) + int64(len(w.runs(name))); n != ends {
				t.Errorf("%s has %d outcomes for %d ends", name, n, ends)
			}
		}
	})
}

// finishAll ends all active runs for some time.
func (w *world) finishAll(d time.Duration) {
	w.Helper()

	for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		all, err := w.store.Active(w.ctx)
		w.ok(err)
		w.setClockToNow()
		for _, h := range all {
			w.end(h, task.Succeeded)
		}
	}
}

// A trigger that was read before the watch has delivered it does not come back when the watch does.
func TestTake_LateEventOfATriggerThatWasTaken(t *testing.T) {
	t.Parallel()
	w, h := newSource(t)
	id := w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()

	key := w.store.Keys().Trigger(ref("b"), "a", id)
	events, err := w.store.RecordsNow(w.ctx, []string{key})
	w.ok(err)
	h.see()
	h.blind(2)
	w.wantTriggers("b", 0)

	h.state.applyRecords(store.ShardBatch{Events: events}, w.clock())
	if n := h.state.records.Links.Waiting(); n != 0 {
		t.Errorf("%d triggers wait", n)
	}
}

// A node that has preloaded a shard knows its links and triggers, and looks for ends that no owner has sent.
func TestTake_AfterAPreload(t *testing.T) {
	t.Parallel()
	w, h := newSource(t)
	w.join("n2")
	taken := w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()

	p := w.preload("n2", nil)
	p.isLoaded()
	unsent := w.putEnd("a", 2, task.Succeeded)
	next := p.takeOver()
	next.scan()

	next.decide(3)
	w.want("b", "+3 dispatched after")
	next.lookAtSources()
	next.e.sender.LookNow(w.ctx)
	next.send()
	w.finish("b", task.Succeeded)
	next.decide(4)
	w.want("b", "+3 succeeded after", "+4 dispatched after")

	if runs := w.runs("b"); runs[0].Causes[0].Run != taken || runs[1].Causes[0].Run != unsent {
		t.Errorf("the runs have the causes %+v and %+v", runs[0].Causes, runs[1].Causes)
	}
}

// A crash in the middle of a take leaves either the trigger or its outcome.
func TestTake_CrashOfTheOwner(t *testing.T) {
	t.Parallel()

	for _, applied := range []bool{true, false} {
		t.Run(fmt.Sprintf("applied %v", applied), func(t *testing.T) {
			w, h := newSource(t)
			w.putEnd("a", 1, task.Succeeded)
			h.see()
			h.send()
			h.see()
			h.gate.play(map[bool]trick{true: h.diesAfter, false: h.dies}[applied])
			_ = h.try(2)

			next := w.worker("n1", h.state.fences)
			next.open()
			next.decide(3)
			next.decide(4)
			w.want("b", map[bool]string{true: "+2", false: "+3"}[applied]+" dispatched after")
			w.wantTriggers("b", 0)
		})
	}
}

// While etcd refuses writes, a trigger waits.
func TestTake_RefusedIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	w, h := newSource(t)
	w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()
	h.see()
	h.gate.play(refused)
	h.blind(2)
	w.want("b")
	w.wantTriggers("b", 1)

	if d := h.sleepFor(); d > time.Second {
		t.Errorf("sleeps for %s", d)
	}
	h.blind(3.1)
	w.want("b", "+3.1 dispatched after")
}

// The namespace may not allow the dependent any more.
func TestTake_FailsIfTheNamespaceForbidsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", manual)
	w.createDependent("b", runsAfter("a"))
	w.createDependent("c", runsAfter("b:failed"))
	h.see()
	w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()
	h.e.cfg.Namespaces = func() Namespaces { return noNamespaces{} }
	h.decide(2)
	w.want("b", "+2 failed after namespace")
	w.wantTriggers("b", 0)

	dead, err := w.store.DeadRuns(w.ctx, ref("b"))
	w.ok(err)
	if len(dead) != 1 || len(dead[0].Causes) != 1 {
		t.Errorf("the dead runs are %+v", dead)
	}

	// It is an end, too.
	h.see()
	h.send()
	w.wantTriggers("c", 1)
}

// noNamespaces has no namespace.
type noNamespaces struct{}

func (noNamespaces) Namespace(string) *task.Namespace { return nil }
