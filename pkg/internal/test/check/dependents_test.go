package check

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// chain is a task, etl, with a dependent, report. The test writes the commits of the owners of both.
type chain struct {
	*sim
	etl, report *simTask
}

// newChain returns a chain. change changes the entry of report before it is created.
func newChain(t testing.TB, source task.Source, change func(e *task.Entry)) *chain {
	s := newSim(t, 2, "a", "b")
	c := &chain{sim: s}
	c.etl = s.create("etl", 0, 1, func(e *task.Entry) { e.Retry.Attempts = 1 })
	c.report = s.create("report", 1, 1, func(e *task.Entry) {
		e.Schedule, e.Overlap, e.Queue, e.Retry.Attempts = task.Schedules{task.ManualSchedule}, task.OverlapQueue, task.QueuePolicy{Limit: 2}, 1
		if change != nil {
			change(e)
		}
	})
	source.Task = "etl"
	c.edit(source)

	return c
}

// edit lets report run after a source, from now on.
func (c *chain) edit(source task.Source, more ...op) {
	c.relink(source, op{c.keys.Subscriber(c.etl.ref, "report"), record.Subscriber{
		UID: c.report.entry.UID, Generation: c.report.entry.Generation + 1, When: source.When, Results: source.Results,
	}})
}

// relink is edit with other writes of subscribers.
func (c *chain) relink(source task.Source, subscribers ...op) {
	r := c.report
	r.entry.Generation++
	r.after, r.entry.Links = nil, nil
	if source.Task != "" {
		r.after, r.entry.Links = task.Sources{source}, []task.Link{{Task: source.Task, Generation: r.entry.Generation}}
	}
	c.write(r, subscribers...)
}

// seconds lets a run of etl end a second later than the one before, with a state.
func (c *chain) ends(state task.State, change func(r *task.Run)) task.Run {
	c.pass(1)
	c.round(0)
	if change != nil {
		change(&c.etl.active.Run)
	}
	run := c.etl.active.Run
	c.finish(c.etl, state)
	run.State = state

	return run
}

// cursor returns the write of the cursor of etl: at the end of a run.
func (c *chain) cursor(run task.Run) op {
	return op{c.keys.Sent(c.etl.ref), record.Cursor{Create: c.kv[c.keys.Ended(c.etl.ref, run.ID)].CreateRevision, Run: run.ID}}
}

// trigger returns the write of the trigger of an ended run.
func (c *chain) trigger(run task.Run, change func(t *task.Trigger)) op {
	t := task.Trigger{
		UID: c.report.entry.UID, Generation: c.report.entry.Links[0].Generation, Period: run.ScheduledTime, At: c.time(),
		Cause: task.Cause{Task: "etl", Run: run.ID, State: run.State},
	}
	if change != nil {
		change(&t)
	}

	return op{c.keys.Trigger(c.report.ref, "etl", run.ID), t}
}

// sends commits as the owner of etl.
func (c *chain) sends(ops ...op) { c.commit(0, c.marks[0], ops...) }

// sent sends the trigger of an ended run.
func (c *chain) sent(run task.Run) { c.sends(c.trigger(run, nil), c.cursor(run)) }

// takes commits as the owner of report.
func (c *chain) takes(ops ...op) { c.commit(1, c.marks[1], ops...) }

// gone returns the deletion of the trigger of an ended run.
func (c *chain) gone(run task.Run) op {
	return op{c.keys.Trigger(c.report.ref, "etl", run.ID), nil}
}

// triggered returns the record of the run that a trigger starts, decided some milliseconds from now.
func (c *chain) triggered(run task.Run, later int64, state task.State) task.Run {
	cause := task.Cause{Task: "etl", Run: run.ID, State: run.State}
	at := task.At(time.UnixMilli(c.now + later))

	return task.Run{
		ID: task.TriggeredRunID(at.Time, c.report.entry.UID, cause), UID: c.report.entry.UID, ScheduledTime: at, State: state, Trigger: task.TriggerAfter,
		Owner: c.owners[1], CreatedAt: at, Attempt: 1, Causation: task.Causation{Causes: []task.Cause{cause}, Period: run.ScheduledTime},
	}
}

// starts returns the dispatch of the run that a trigger starts.
func (c *chain) starts(run task.Run) op {
	return c.dispatch(c.report, c.triggered(run, 0, task.Dispatched), "b")
}

// queues returns the record of such a run that waits.
func (c *chain) queues(run task.Run, later int64) op {
	w := task.Waiting{Run: c.triggered(run, later, task.Queued)}
	w.Reason = task.ReasonNoNode

	return c.waiting(c.report, w)
}

// skips returns the record of triggers that do not run.
func (c *chain) skips(run task.Run, count int64, reason string) op {
	r := c.triggered(run, 0, task.Skipped)
	r.Reason = reason
	if count > 1 {
		r.Count, r.Last = count, task.At(r.ScheduledTime.Add(time.Duration(count-1)*time.Millisecond))
	}

	return c.ended(c.report, r)
}

// runsThrough lets the trigger of an ended run start a run, which succeeds.
func (c *chain) runsThrough(run task.Run) {
	c.takes(c.gone(run), c.starts(run))
	c.finish(c.report, task.Succeeded)
}

// rows returns results as a run reports them.
func rows(n string) map[string]string { return map[string]string{"rows": n} }

// Verifies: G63
func TestCheck_SentTriggers(t *testing.T) {
	const ok, failed = task.Succeeded, task.Failed
	after := func(when task.When) task.Source { return task.Source{Task: "etl", When: when} }

	for _, c := range []struct {
		name, promise string
		source        task.Source
		happens       func(c *chain)
	}{
		{"an end has a trigger", "", after(""), func(c *chain) { r := c.ends(ok, nil); c.sent(r); c.runsThrough(r) }},
		{"each of two ends has one", "", after(""), func(c *chain) {
			one, two := c.ends(ok, nil), c.ends(ok, nil)
			c.sent(one)
			c.sent(two)
			c.runsThrough(one)
			c.runsThrough(two)
		}},
		{"an end that does not match has none", "", after(task.WhenFailed), func(c *chain) { c.sends(c.cursor(c.ends(ok, nil))) }},
		{"a failed end matches", "G63", after(task.WhenFailed), func(c *chain) { c.sends(c.cursor(c.ends(failed, nil))) }},
		{"any end matches", "G63", after(task.WhenEnded), func(c *chain) { c.sends(c.cursor(c.ends(failed, nil))) }},
		{"an end has none", "G63", after(""), func(c *chain) { c.sends(c.cursor(c.ends(ok, nil))) }},
		{"the first of two ends has none", "G63", after(""), func(c *chain) {
			c.ends(ok, nil)
			r := c.ends(ok, nil)
			c.sent(r)
			c.runsThrough(r)
		}},
		{"an end is not sent", "G63", after(""), func(c *chain) { c.ends(ok, nil) }},
		{"an end that does not match is not passed", "", after(task.WhenFailed), func(c *chain) { c.ends(ok, nil) }},
		{"a run that starts nothing", "", after(""), func(c *chain) { c.sends(c.cursor(c.ends(ok, func(r *task.Run) { r.Alone = true }))) }},

		{"a trigger for an end that does not match", "G63", after(task.WhenFailed), func(c *chain) { r := c.ends(ok, nil); c.sent(r); c.runsThrough(r) }},
		{"a trigger for a run that starts nothing", "G63", after(""), func(c *chain) {
			r := c.ends(ok, func(r *task.Run) { r.Alone = true })
			c.sent(r)
			c.runsThrough(r)
		}},
		{"a trigger for an end before the link", "G63", after(""), func(c *chain) {
			c.relink(task.Source{}, op{c.keys.Subscriber(c.etl.ref, "report"), nil})
			r := c.ends(ok, nil)
			c.edit(after(""))
			c.sent(r)
			c.runsThrough(r)
		}},
		{"a trigger without the cursor", "G63", after(""), func(c *chain) { r := c.ends(ok, nil); c.sends(c.trigger(r, nil)); c.runsThrough(r) }},
		{"a trigger twice", "G63", after(""), func(c *chain) {
			r := c.ends(ok, nil)
			for range 2 {
				c.sent(r)
				c.runsThrough(r)
				c.pass(1)
			}
		}},
		{"a trigger is written again", "G63", after(""), func(c *chain) { r := c.ends(ok, nil); c.sent(r); c.sends(c.trigger(r, nil)); c.runsThrough(r) }},
		{"a trigger for another task of that name", "G63", after(""), func(c *chain) {
			r := c.ends(ok, nil)
			c.sends(c.trigger(r, func(t *task.Trigger) { t.UID = "x" }), c.cursor(r))
			c.takes(c.gone(r))
		}},
		{"outside of a commit", "", after(""), func(c *chain) { r := c.ends(ok, nil); c.txn(c.trigger(r, nil), c.cursor(r)); c.runsThrough(r) }},
		{"without an owner", "G1", after(task.WhenFailed), func(c *chain) { r := c.ends(ok, nil); c.txn(op{c.keys.Owner(0), nil}); c.txn(c.cursor(r)) }},

		{"a cursor goes back", "G63", after(""), func(c *chain) {
			one, two := c.ends(failed, nil), c.ends(failed, nil)
			c.sends(c.cursor(two))
			c.sends(c.cursor(one))
		}},
		{"a cursor of a revision that did not exist", "G63", after(""), func(c *chain) { c.sends(op{c.keys.Sent(c.etl.ref), record.Cursor{Create: c.rev + 2}}) }},
		{"a cursor is deleted", "G63", after(""), func(c *chain) {
			r := c.ends(failed, nil)
			c.sends(c.cursor(r))
			c.sends(op{c.keys.Sent(c.etl.ref), nil})
		}},
		{"a damaged cursor is replaced", "", after(""), func(c *chain) {
			c.ends(ok, nil)
			c.txn(op{c.keys.Sent(c.etl.ref), "damaged"})
			c.sends(op{c.keys.Sent(c.etl.ref), record.Cursor{Create: c.rev}})
		}},
		{"a damaged cursor stays", "G63", after(""), func(c *chain) { c.txn(op{c.keys.Sent(c.etl.ref), "damaged"}); c.ends(ok, nil) }},

		{"trimmed after it was sent", "", after(""), func(c *chain) {
			r := c.ends(ok, nil)
			c.sent(r)
			c.sends(op{c.keys.Ended(c.etl.ref, r.ID), nil})
			c.runsThrough(r)
		}},
		{"trimmed before it was sent", "G63", after(""), func(c *chain) { c.sends(op{c.keys.Ended(c.etl.ref, c.ends(ok, nil).ID), nil}) }},
		{"trimmed, and not owed", "", after(task.WhenFailed), func(c *chain) { c.sends(op{c.keys.Ended(c.etl.ref, c.ends(ok, nil).ID), nil}) }},
		{"deleted with its task", "", after(""), func(c *chain) { c.ends(ok, nil); c.remove(c.etl) }},

		{"the results that the dependent asks for", "", task.Source{Task: "etl", Results: []string{"rows", "none"}}, func(c *chain) {
			r := c.ends(ok, func(r *task.Run) { r.Results = map[string]string{"rows": "7", "more": "8"} })
			c.sends(c.trigger(r, func(t *task.Trigger) { t.Cause.Results = rows("7") }), c.cursor(r))
			run := c.triggered(r, 0, task.Dispatched)
			run.Causes[0].Results = rows("7")
			c.takes(c.gone(r), c.dispatch(c.report, run, "b"))
			c.finish(c.report, ok)
		}},
		{"other results", "G63", task.Source{Task: "etl", Results: []string{"rows"}}, func(c *chain) {
			r := c.ends(ok, func(r *task.Run) { r.Results = rows("7") })
			c.sent(r)
			c.runsThrough(r)
		}},
		{"another state", "G63", after(task.WhenEnded), func(c *chain) {
			r := c.ends(failed, nil)
			r.State = ok
			c.sent(r)
			c.runsThrough(r)
		}},
		{"another period", "G63", after(""), func(c *chain) {
			r := c.ends(ok, nil)
			r.ScheduledTime = c.time()
			r.ScheduledTime = task.At(r.ScheduledTime.Add(-time.Hour))
			c.sent(r)
			c.runsThrough(r)
		}},

		{"an edit between the end and its trigger", "", after(""), func(c *chain) {
			r := c.ends(ok, nil)
			c.edit(after(task.WhenEnded))
			c.sends(c.cursor(r)) // the link is newer than the end
		}},
		{"an edit between the read and the commit", "", after(""), func(c *chain) {
			r := c.ends(ok, nil)
			sent := c.trigger(r, nil)
			c.edit(after(task.WhenFailed))
			c.sends(sent, c.cursor(r))
			c.takes(c.gone(r), c.skips(r, 1, task.ReasonUnlinked))
		}},
		{"an edit before the read", "G63", after(""), func(c *chain) {
			one, two := c.ends(failed, nil), c.ends(ok, nil)
			sent := c.trigger(two, nil)
			c.edit(after(task.WhenFailed))
			c.sends(c.cursor(one)) // the next commit compares this cursor, so it was read after the edit
			c.sends(sent, c.cursor(two))
			c.takes(c.gone(two), c.skips(two, 1, task.ReasonUnlinked))
		}},

		{"a link without its record", "G63", after(""), func(c *chain) { c.relink(task.Source{Task: "etl", When: task.WhenFailed}) }},
		{"a link with the record of another", "G63", after(""), func(c *chain) {
			c.relink(after(task.WhenFailed), op{c.keys.Subscriber(c.etl.ref, "report"), record.Subscriber{UID: c.report.entry.UID, Generation: c.report.entry.Generation + 1}})
		}},
		{"a record without its link", "G63", after(""), func(c *chain) { c.relink(task.Source{}) }},
		{"a deleted dependent", "", after(""), func(c *chain) { c.removeReport() }},
		{"a deleted dependent with its record", "G63", after(""), func(c *chain) { c.remove(c.report) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newChain(t, c.source, nil)
			c.happens(f)
			only(t, f.check(Options{Ended: true, Remembered: true}).Violations, c.promise)
		})
	}
}

// removeReport deletes report as the API does.
func (c *chain) removeReport() {
	c.remove(c.report)

	// The deletion of the triggers and of the record of the subscriber belong to the same transaction.
	for _, o := range append(c.below(c.keys.Triggers(c.report.ref)), op{c.keys.Subscriber(c.etl.ref, "report"), nil}) {
		delete(c.kv, o.key)
		c.events = append(c.events, Event{Revision: c.rev, ModRevision: c.rev, Key: o.key, Deleted: true, At: time.UnixMilli(c.now)})
	}
}

// Ends are sent within 20 s, while nothing happens to the shard.
//
// Verifies: G63
func TestCheck_SentInTime(t *testing.T) {
	for name, test := range map[string]struct {
		promise string
		late    int // seconds until the trigger
		between func(c *chain)
		calm    bool
	}{
		"in time":                {"", 18, nil, true},
		"too late":               {"G63", 30, nil, true},
		"too late, after faults": {"", 30, nil, false},
		"the shard gets another owner": {"", 30, func(c *chain) {
			c.assign(0, "b")
			c.open(0)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChain(t, task.Source{}, nil)
			from := c.time().Time
			c.pass(1)
			c.round(0)
			c.finish(c.etl, task.Succeeded)
			run := c.lastEnd(t)

			for range test.late {
				c.pass(1)
				c.open(1)
				if test.between != nil {
					test.between(c)
				}
			}

			c.sent(run)
			c.runsThrough(run)

			o := Options{}
			if test.calm {
				o.Calm = []Period{{From: from, To: c.time().Time}}
			}
			only(t, c.check(o).Violations, test.promise)
		})
	}
}

// lastEnd returns the last run of etl that has ended.
func (c *chain) lastEnd(t *testing.T) task.Run {
	t.Helper()

	for _, ev := range slices.Backward(c.events) {
		if k, ok := c.keys.ParseShard(ev.Key); ok && k.Kind == record.KindEnded && k.Ref == c.etl.ref {
			r, err := record.DecodeEnded(k, ev.Value)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
	}

	t.Fatal("no run has ended")

	return task.Run{}
}

// Verifies: G64
func TestCheck_TakenTriggers(t *testing.T) {
	allow := func(e *task.Entry) { e.Overlap, e.Queue = task.OverlapAllow, task.QueuePolicy{} }
	ends := func(c *chain, n int) (runs []task.Run) {
		for range n {
			runs = append(runs, c.ends(task.Succeeded, nil))
			c.sent(runs[len(runs)-1])
		}
		return runs
	}
	pauses := func(c *chain) { c.update(c.report, false, func() { c.report.entry.Paused = true }) }
	freezes := func(c *chain) { hand{sim: c.sim}.freeze("") }

	for _, c := range []struct {
		name, promise string
		change        func(e *task.Entry)
		happens       func(c *chain)
	}{
		{"a run", "", nil, func(c *chain) { c.runsThrough(ends(c, 1)[0]) }},
		{"a run that waits", "", nil, func(c *chain) {
			r := ends(c, 1)[0]
			c.takes(c.gone(r), c.queues(r, 0))
			c.takes(op{c.keys.Queued(c.report.ref, c.triggered(r, 0, "").ID), nil}, c.starts(r))
			c.finish(c.report, task.Succeeded)
		}},
		{"a skip", "", nil, func(c *chain) { r := ends(c, 1)[0]; pauses(c); c.takes(c.gone(r), c.skips(r, 1, task.ReasonPaused)) }},
		{"three skips in a record", "", nil, func(c *chain) {
			r := ends(c, 3)
			pauses(c)
			c.takes(c.gone(r[0]), c.gone(r[1]), c.gone(r[2]), c.skips(r[0], 3, task.ReasonPaused))
		}},
		{"a record of skips that grows", "", nil, func(c *chain) {
			r := ends(c, 3)
			pauses(c)
			c.takes(c.gone(r[0]), c.skips(r[0], 1, task.ReasonPaused))
			c.takes(c.gone(r[1]), c.gone(r[2]), c.skips(r[0], 3, task.ReasonPaused))
		}},
		{"a record of skips that grows by too few", "G64", nil, func(c *chain) {
			r := ends(c, 3)
			pauses(c)
			c.takes(c.gone(r[0]), c.skips(r[0], 1, task.ReasonPaused))
			c.takes(c.gone(r[1]), c.gone(r[2]), c.skips(r[0], 2, task.ReasonPaused))
		}},
		{"a missed one", "", nil, func(c *chain) {
			r := c.triggered(ends(c, 1)[0], 0, task.Missed)
			r.Reason = task.ReasonDeadline
			c.takes(op{c.keys.Trigger(c.report.ref, "etl", r.Causes[0].Run), nil}, c.ended(c.report, r))
		}},

		{"nothing", "G64", nil, func(c *chain) { ends(c, 1) }},
		{"a trigger without an outcome", "G64", nil, func(c *chain) { c.takes(c.gone(ends(c, 1)[0])) }},
		{"one of two triggers without an outcome", "G64", nil, func(c *chain) {
			r := ends(c, 2)
			c.takes(c.gone(r[0]), c.gone(r[1]), c.starts(r[0]))
			c.finish(c.report, task.Succeeded)
		}},
		{"a run without a trigger", "G64", nil, func(c *chain) {
			r := c.ends(task.Succeeded, nil)
			c.sent(r)
			c.takes(c.starts(c.etl.active0(r)))
			c.finish(c.report, task.Succeeded)
			c.runsThrough(r)
		}},
		{"a trigger that stays", "G64", nil, func(c *chain) {
			r := ends(c, 1)[0]
			c.takes(c.starts(r))
			c.finish(c.report, task.Succeeded)
			c.pass(1)
			c.runsThrough(r)
		}},
		{"a trigger with two runs", "G64", nil, func(c *chain) {
			r := ends(c, 1)[0]
			c.runsThrough(r)
			c.pass(1)
			c.takes(c.starts(r))
			c.finish(c.report, task.Succeeded)
		}},
		{"a run and a skip", "G64", nil, func(c *chain) {
			r := ends(c, 1)[0]
			other := c.triggered(r, 1, task.Skipped)
			other.Reason = task.ReasonOverlap
			c.takes(c.gone(r), c.starts(r), c.ended(c.report, other))
			c.finish(c.report, task.Succeeded)
		}},
		{"a run without a cause", "G64", nil, func(c *chain) {
			r := ends(c, 1)[0]
			run := c.triggered(r, 0, task.Dispatched)
			run.Causes = nil
			c.takes(c.gone(r), c.dispatch(c.report, run, "b"))
			c.finish(c.report, task.Succeeded)
		}},
		{"a run with another period", "G64", nil, func(c *chain) {
			r := ends(c, 1)[0]
			run := c.triggered(r, 0, task.Dispatched)
			run.Period = task.Time{}
			c.takes(c.gone(r), c.dispatch(c.report, run, "b"))
			c.finish(c.report, task.Succeeded)
		}},
		{"outside of a commit", "G1", nil, func(c *chain) { r := ends(c, 1)[0]; c.txn(c.gone(r), c.skips(r, 1, task.ReasonOverlap)) }},

		{"the newer one first", "G64", nil, func(c *chain) { r := ends(c, 2); c.runsThrough(r[1]); c.pass(1); c.runsThrough(r[0]) }},
		{"the second while the first runs", "G64", allow, func(c *chain) {
			r := ends(c, 2)
			c.takes(c.gone(r[0]), c.starts(r[0]))
			c.report.entry.Overlap = task.OverlapQueue
			c.update(c.report, false, func() {})
			c.pass(1)
			c.takes(c.gone(r[1]), c.queues(r[1], 0))
			c.finish(c.report, task.Succeeded)
			c.leave()
		}},
		{"one beside a manual run that waits", "", nil, func(c *chain) { r := ends(c, 1)[0]; c.manual(c.report); c.runsThrough(r); c.leave() }},
		{"two at once", "", allow, func(c *chain) {
			r := ends(c, 2)
			c.takes(c.gone(r[0]), c.gone(r[1]), c.starts(r[0]), c.queues(r[1], 1))
			c.finish(c.report, task.Succeeded)
			c.leave()
		}},
		{"two in one millisecond", "G64", allow, func(c *chain) {
			r := ends(c, 2)
			c.takes(c.gone(r[0]), c.gone(r[1]), c.starts(r[0]), c.queues(r[1], 0))
			c.finish(c.report, task.Succeeded)
			c.leave()
		}},
		{"two in the other order", "G64", allow, func(c *chain) {
			r := ends(c, 2)
			c.takes(c.gone(r[0]), c.gone(r[1]), c.queues(r[0], 1), c.starts(r[1]))
			c.finish(c.report, task.Succeeded)
			c.leave()
		}},
		{"one after the other with an earlier time", "G64", allow, func(c *chain) {
			r := ends(c, 2)
			c.takes(c.gone(r[0]), c.starts(r[0]))
			c.takes(c.gone(r[1]), c.queues(r[1], -1))
			c.finish(c.report, task.Succeeded)
			c.leave()
		}},

		{"a run of a paused task", "G7", nil, func(c *chain) { r := ends(c, 1)[0]; pauses(c); c.runsThrough(r) }},
		{"skipped as paused, and is not", "G64", nil, func(c *chain) { r := ends(c, 1)[0]; c.takes(c.gone(r), c.skips(r, 1, task.ReasonPaused)) }},
		{"a run of a frozen task", "G21", nil, func(c *chain) { r := ends(c, 1)[0]; freezes(c); c.takes(c.gone(r), c.queues(r, 0)); c.leave() }},
		{"a run of a shadow", "G24", func(e *task.Entry) { e.Shadow = true }, func(c *chain) { c.runsThrough(ends(c, 1)[0]) }},
		{"a shadow", "", func(e *task.Entry) { e.Shadow = true }, func(c *chain) { r := ends(c, 1)[0]; c.takes(c.gone(r), c.skips(r, 1, task.ReasonShadow)) }},
		{"a full queue", "", nil, func(c *chain) {
			r := ends(c, 3)
			c.takes(c.gone(r[2]), c.skips(r[2], 1, task.ReasonQueueFull))
			for _, one := range r[:2] {
				c.pass(1)
				c.runsThrough(one)
			}
		}},
		{"a full queue that is not", "G64", nil, func(c *chain) {
			r := ends(c, 2)
			c.takes(c.gone(r[1]), c.skips(r[1], 1, task.ReasonQueueFull))
			c.pass(1)
			c.runsThrough(r[0])
		}},
		{"a run for a former link", "G64", nil, func(c *chain) {
			r := ends(c, 1)[0]
			c.edit(task.Source{Task: "etl", When: task.WhenEnded})
			c.runsThrough(r)
		}},
		{"a former link", "", nil, func(c *chain) {
			r := ends(c, 1)[0]
			c.edit(task.Source{Task: "etl", When: task.WhenEnded})
			c.takes(c.gone(r), c.skips(r, 1, task.ReasonUnlinked))
		}},
		{"a former link that is not", "G64", nil, func(c *chain) { r := ends(c, 1)[0]; c.takes(c.gone(r), c.skips(r, 1, task.ReasonUnlinked)) }},
		{"a damaged trigger", "", nil, func(c *chain) {
			r := ends(c, 1)[0]
			c.txn(op{c.keys.Trigger(c.report.ref, "etl", r.ID), "damaged"})
			c.takes(c.gone(r), c.skips(r, 1, task.ReasonBadRecord))
		}},
		{"a run of a damaged trigger", "G64", nil, func(c *chain) {
			r := ends(c, 1)[0]
			c.txn(op{c.keys.Trigger(c.report.ref, "etl", r.ID), "damaged"})
			c.runsThrough(r)
		}},

		{"deleted with its task", "", nil, func(c *chain) { ends(c, 1); c.removeReport() }},
		{"of a former task", "", nil, func(c *chain) { r := c.ends(task.Succeeded, nil); c.sentToFormer(r); c.takes(c.gone(r)) }},
		{"a run for a former task", "G64", nil, func(c *chain) { r := c.ends(task.Succeeded, nil); c.sentToFormer(r); c.runsThrough(r) }},

		{"a retry keeps its cause", "", nil, func(c *chain) { c.repeats(ends(c, 1)[0], true) }},
		{"a retry loses its cause", "G64", nil, func(c *chain) { c.repeats(ends(c, 1)[0], false) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newChain(t, task.Source{}, c.change)
			c.happens(f)
			only(t, f.check(Options{Ended: true, Remembered: true}).Violations, c.promise)
		})
	}
}

// active0 returns a run of etl that never ended.
func (t *simTask) active0(like task.Run) task.Run {
	like.ID = "x" + like.ID
	return like
}

// leave cancels what report has in the queue.
func (c *chain) leave() {
	for key, ev := range c.kv {
		k, ok := c.keys.ParseShard(key)
		if !ok || k.Kind != record.KindQueued {
			continue
		}

		w, err := record.DecodeWaiting(k, ev.Value)
		if err != nil {
			panic(err)
		}
		w.State, w.Reason = task.Cancelled, task.ReasonCancelled
		c.txn(op{key, nil}, c.ended(c.report, w.Run))
	}
}

// sentToFormer sends the trigger of an ended run to a task that is deleted and created again between the read of its record and the commit.
func (c *chain) sentToFormer(run task.Run) {
	trigger, cursor := c.trigger(run, nil), c.cursor(run)
	former := c.report
	c.removeReport()
	c.report = c.create("report", 1, 1, func(e *task.Entry) {
		e.Schedule, e.Overlap, e.Queue = former.entry.Schedule, former.entry.Overlap, former.entry.Queue
	})
	c.edit(task.Source{Task: "etl"})
	c.sends(trigger, cursor)
}

// repeats lets the run that a trigger has started fail, and repeats it.
func (c *chain) repeats(run task.Run, keep bool) {
	c.takes(c.gone(run), c.starts(run))
	dead := c.report.active.Run
	c.finish(c.report, task.Failed)
	c.pass(1)

	w := task.Waiting{Run: c.tickRun(c.report, c.now, task.TriggerManual, task.Queued)}
	w.ID, w.Owner, w.Reason, w.RetryOf = task.ManualRunID(time.UnixMilli(c.now), c.report.entry.UID), "", task.ReasonManual, dead.ID
	if keep {
		w.Causation = dead.Causation
	}
	c.txn(op{c.keys.DeadRun(c.report.ref, dead.ID), nil}, c.waiting(c.report, w))
	c.report.queue = nil
	c.takes(op{c.keys.Queued(c.report.ref, w.ID), nil}, c.dispatch(c.report, w.Run, "b"))
	c.finish(c.report, task.Succeeded)
}

// A recording may begin at any revision.
//
// Verifies: G63, G64
func TestCheck_DependentsFromTheMiddle(t *testing.T) {
	c := newChain(t, task.Source{}, nil)
	for range 3 {
		r := c.ends(task.Succeeded, nil)
		c.sent(r)
		c.runsThrough(r)
		c.edit(task.Source{Task: "etl", Results: []string{"rows"}})
		c.sends(c.cursor(c.ends(task.Failed, nil)))
	}

	for at := int64(11); at < c.rev; at++ {
		var events []Event
		past := &sim{kv: map[string]Event{}, rev: at}
		for _, ev := range c.events {
			switch {
			case ev.Revision > at:
				events = append(events, ev)
			case ev.Deleted:
				delete(past.kv, ev.Key)
			default:
				past.kv[ev.Key] = ev
			}
		}

		if r := Check(c.keys, append(past.listed(), events...), Options{}); !r.OK() {
			t.Fatalf("from revision %d: %s", at, r)
		}
	}
}

func TestOwed(t *testing.T) {
	c := newChain(t, task.Source{When: task.WhenFailed}, nil)
	owed := func() []string {
		return Owed(c.keys, slices.Collect(maps.Values(c.kv)))
	}

	c.ends(task.Succeeded, nil)
	if got := owed(); got != nil {
		t.Errorf("an end that does not match is owed: %v", got)
	}

	run := c.ends(task.Failed, nil)
	if got, want := owed(), []string{c.keys.Ended(c.etl.ref, run.ID)}; !slices.Equal(got, want) {
		t.Errorf("owed is %v, want %v", got, want)
	}

	c.sent(run)
	if got, want := owed(), []string{c.keys.Trigger(c.report.ref, "etl", run.ID)}; !slices.Equal(got, want) {
		t.Errorf("owed is %v, want %v", got, want)
	}

	c.runsThrough(run)
	if got := owed(); got != nil {
		t.Errorf("owed is %v although all has its outcome", got)
	}
}
