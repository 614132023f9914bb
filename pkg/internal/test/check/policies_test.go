package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/test/check/oracle"
	"github.com/carillonhq/carillon/pkg/task"
)

// hand is a task for whose shard the test writes the owner's commits one by one.
type hand struct {
	*sim
	*simTask
}

func newHand(t testing.TB, change func(*task.Entry)) hand {
	s := newSim(t, 1, "a")
	return hand{s, s.create("one", 0, 1, change)}
}

// at returns the time of the tick that many seconds after the beginning, in ms.
func (h hand) at(seconds float64) int64 { return simStart + int64(seconds*1000) }

// until advances the clock to a time.
func (h hand) until(seconds float64) { h.now = h.at(seconds) }

// sealed commits ops, with a watermark at the current time.
func (h hand) sealed(ops ...op) int64 {
	w := h.marks[0]
	w.Time, w.Seen = h.time(), max(w.Seen, h.simTask.create)
	return h.commit(0, w, ops...)
}

func (h hand) run(tick float64) task.Run {
	return h.tickRun(h.simTask, h.at(tick), task.TriggerSchedule, task.Dispatched)
}

// fires dispatches a tick.
func (h hand) fires(tick float64) op { return h.dispatch(h.simTask, h.run(tick), "a") }

// not records a tick that does not run.
func (h hand) not(tick float64, state task.State, reason string) op {
	r := h.run(tick)
	r.State, r.Reason = state, reason
	return h.ended(h.simTask, r)
}

// none records ticks that do not run in one range record, which was created at a given time.
func (h hand) none(first, last float64, count int64, reason string, created float64) op {
	r := h.run(first)
	r.State, r.Reason, r.CreatedAt = task.Skipped, reason, task.At(time.UnixMilli(h.at(created)))
	if count > 1 {
		r.Last, r.Count = task.At(time.UnixMilli(h.at(last))), count
	}

	return h.ended(h.simTask, r)
}

// waits queues a tick.
func (h hand) waits(tick float64, reason string) op {
	r := h.run(tick)
	r.State, r.Reason = task.Queued, reason
	return h.waiting(h.simTask, task.Waiting{Run: r})
}

// knows changes the entry as its owner does.
func (h hand) knows(change func(e *task.Entry, own *task.Own)) op {
	o := ownCounters(h.simTask.entry)
	change(&h.simTask.entry, &o)
	h.simTask.entry.Own = &o
	return op{h.keys.Entry(h.ref), h.simTask.entry}
}

// counts changes the entry so that it counts n runs up to a tick.
func (h hand) counts(tick float64, n int64) op {
	return h.knows(func(e *task.Entry, o *task.Own) { e.From, o.Runs = task.At(time.UnixMilli(h.at(tick))), o.Runs+n })
}

func (h hand) done(state task.State) { h.finish(h.simTask, state) }

// turn is a history and the guarantee that it breaks; "" for a valid one.
type turn struct {
	name, promise string
	entry         func(*task.Entry)
	happens       func(h hand)
}

func turns(t *testing.T, all []turn) {
	t.Helper()

	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			h := newHand(t, c.entry)
			c.happens(h)

			found := h.check(h.sim.asked()).Violations
			if c.promise == "" && len(found) > 0 {
				t.Errorf("nothing is wrong: %v", found)
			}

			if c.promise != "" && !slices.ContainsFunc(found, func(v Violation) bool { return v.Promise == c.promise }) {
				t.Errorf("not caught as %s: %v", c.promise, found)
			}
		})
	}
}

// Verifies: G21-G25
func TestCheck_Times(t *testing.T) {
	jittered := func(e *task.Entry) {
		e.UID, e.Jitter, e.Schedule = "aaaabbbbccccdddd", task.Duration(4*time.Second), task.Schedules{"*/5 * * * * *"}
	}

	due := func(h hand) float64 {
		tm, err := oracle.NewTiming(h.simTask.entry)
		if err != nil {
			t.Fatal(err)
		}

		if d := float64(tm.DueAt(h.at(5))-h.at(0)) / 1000; d > 5.1 && d < 8.9 {
			return d
		}

		t.Fatal("take another uid")

		return 0
	}

	jitter := func(decided, says float64) func(h hand) {
		return func(h hand) {
			h.until(5)
			h.sealed()
			h.until(due(h) + decided)
			op := h.fires(5)

			a := op.value.(task.Assigned)
			if says != 0 {
				a.DueAt = task.At(time.UnixMilli(h.at(due(h)) + int64(says-1)))
			}

			op.value, h.active.DueAt = a, a.DueAt
			h.sealed(op)
			h.done(task.Succeeded)
		}
	}

	pausedTill := func(seconds float64) func(*task.Entry) {
		return func(e *task.Entry) {
			e.Paused = true
			e.Own = &task.Own{Pauses: []task.Pause{{Since: e.From, By: task.NewActor("ann"), Until: task.At(time.UnixMilli(simStart + int64(seconds*1000)))}}}
		}
	}

	after := func(e *task.Entry) { e.Schedule = task.Schedules{"@every 2s after completion"} }
	anchor := func(h hand, seconds float64) op {
		return h.knows(func(e *task.Entry, _ *task.Own) { e.Anchor = task.At(time.UnixMilli(h.at(seconds))) })
	}

	turns(t, []turn{
		{"a tick that jitter put off", "", jittered, jitter(0, 1)},
		{"decided before it is due", "G6", jittered, jitter(-0.05, 1)},
		{"does not say that it was put off", "G6", jittered, jitter(0, 0)},
		{"is said to be due at another time", "G6", jittered, jitter(0.5, 3)},
		{"put off, and lost", "G4", jittered, func(h hand) { h.until(due(h)); h.sealed() }},
		{"put off, and not due yet", "", jittered, func(h hand) { h.until(due(h) - 0.001); h.sealed() }},
		{"never decided", "G16", jittered, func(h hand) { h.until(due(h)); h.commit(0, h.marks[0]) }},

		{"no ticks before the start", "", func(e *task.Entry) { e.Start = task.At(time.UnixMilli(simStart + 3000)) }, func(h hand) {
			h.until(2)
			h.sealed()
			h.until(3)
			h.sealed(h.fires(3))
			h.done(task.Succeeded)
		}},
		{"a tick after the end", "G7", func(e *task.Entry) { e.End = task.At(time.UnixMilli(simStart + 1000)) }, func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.done(task.Succeeded)
			h.until(2)
			h.sealed(h.fires(2))
			h.done(task.Succeeded)
		}},
		{"the last tick, at the end, is lost", "G4", func(e *task.Entry) { e.End = task.At(time.UnixMilli(simStart + 1000)) }, func(h hand) { h.until(1); h.sealed() }},

		{"a pause that ends", "", pausedTill(2), func(h hand) {
			h.until(3)
			h.sealed(h.fires(3))
			h.done(task.Succeeded)
		}},
		{"a tick within a pause that ends", "G7", pausedTill(2), func(h hand) { h.until(2); h.sealed(h.fires(2)); h.done(task.Succeeded) }},
		{"a tick after the pause is lost", "G4", pausedTill(2), func(h hand) { h.until(3); h.sealed() }},
		{"resumed before the end", "", pausedTill(9), func(h hand) {
			h.until(1.5)
			h.resume(h.simTask)
			h.until(2)
			h.sealed(h.fires(2))
			h.done(task.Succeeded)
		}},
		{"resumed after the end: what was silent stays so", "G7", pausedTill(2), func(h hand) {
			h.until(2.5)
			h.update(h.simTask, false, func() { h.simTask.entry.Paused, h.simTask.entry.Own = false, nil })
			h.sealed(h.not(2, task.Skipped, task.ReasonOverlap))
		}},
		{"resumed after the end", "", pausedTill(2), func(h hand) {
			h.until(2.5)
			h.update(h.simTask, false, func() { h.simTask.entry.Paused, h.simTask.entry.Own = false, nil })
			h.sealed()
			h.until(3)
			h.sealed(h.fires(3))
			h.done(task.Succeeded)
		}},

		{"counted from the end of a run", "", after, func(h hand) {
			h.until(2)
			h.sealed(h.fires(2))
			h.until(3)
			h.sealed()
			h.done(task.Succeeded)
			h.sealed(anchor(h, 3))
			h.until(5)
			h.sealed(h.fires(5))
			h.done(task.Succeeded)
		}},
		{"a tick before the run has ended", "G7", after, func(h hand) {
			h.until(2)
			h.sealed(h.fires(2))
			h.until(3)
			h.done(task.Succeeded)
			h.until(4)
			h.sealed(h.fires(4))
			h.done(task.Succeeded)
		}},
		{"counted while the run goes on", "G24", after, func(h hand) {
			h.until(2)
			h.sealed(h.fires(2))
			h.sealed(anchor(h, 2))
			h.done(task.Succeeded)
		}},
		{"counted from before the end", "G24", after, func(h hand) {
			h.until(2)
			h.sealed(h.fires(2))
			h.until(3)
			h.done(task.Succeeded)
			h.sealed(anchor(h, 2.5))
		}},
		{"counted anew without an outcome", "G4", after, func(h hand) { h.until(2); h.sealed(anchor(h, 2)) }},
		{"never counted anew", "G16", after, func(h hand) {
			h.until(2)
			h.sealed(h.fires(2))
			h.done(task.Succeeded)
			h.until(60)
			h.sealed()
		}},
	})
}

// Verifies: G21-G25
func TestCheck_OwnCounters(t *testing.T) {
	two := func(e *task.Entry) { e.MaxRuns = 2 }
	used := func(h hand) {
		for tick := range 2 {
			h.until(float64(tick + 1))
			h.sealed(h.fires(float64(tick+1)), h.counts(float64(tick+1), 1))
			h.done(task.Succeeded)
		}
	}

	pausing := func(e *task.Entry) { e.PauseAfter, e.Retry.Attempts = 2, 1 }
	fails := func(h hand, n int) {
		for range n {
			tick := float64((h.now-simStart)/1000 + 1)
			h.until(tick)
			h.sealed(h.fires(tick))
			h.done(task.Failed)
		}
	}

	counted := func(h hand, failures int, paused bool) op {
		return h.knows(func(e *task.Entry, o *task.Own) {
			o.Failures, o.Counted, e.Paused = failures, h.rev, paused
			if paused {
				o.Pauses = []task.Pause{{Since: h.time(), By: task.NewActor(task.PausedByFailures), Reason: "failed"}}
			}
		})
	}

	turns(t, []turn{
		{"as many runs as may be", "", two, func(h hand) { used(h); h.until(9); h.sealed() }},
		{"a run too many", "G7", two, func(h hand) { used(h); h.until(3); h.sealed(h.fires(3)); h.done(task.Succeeded) }},
		{"a run that is not counted", "G24", two, func(h hand) { h.until(1); h.sealed(h.fires(1)); h.done(task.Succeeded) }},
		{"a run that is counted twice", "G24", two, func(h hand) { h.until(1); h.sealed(h.fires(1), h.counts(1, 2)); h.done(task.Succeeded) }},
		{"a skipped tick counts for nothing", "G24", two, func(h hand) {
			h.until(1)
			h.sealed(h.not(1, task.Skipped, task.ReasonOverlap), h.counts(1, 1))
		}},
		{"more may run later", "", two, func(h hand) {
			used(h)
			h.until(4.5)
			h.sealed()
			h.update(h.simTask, false, func() { h.simTask.entry.MaxRuns = 3 })
			h.until(5)
			h.sealed(h.fires(5), h.counts(5, 1))
			h.done(task.Succeeded)
		}},
		{"an edit loses the count", "G24", two, func(h hand) {
			used(h)
			h.until(2.5)
			h.update(h.simTask, true, func() { h.simTask.entry.Own = nil })
			h.sealed()
		}},
		{"an edit that leaves no more runs, before its tick is decided", "", two, func(h hand) {
			h.until(1)
			h.sealed(h.fires(1), h.counts(1, 1))
			h.done(task.Succeeded)
			h.until(2.5)
			h.update(h.simTask, false, func() { h.simTask.entry.MaxRuns, h.simTask.entry.From = 1, h.time() })
		}},
		{"an owner changes what is its user's", "G7", two, func(h hand) {
			h.until(1)
			h.simTask.entry.Overlap = task.OverlapAllow
			h.sealed(h.fires(1), h.counts(1, 1))
			h.done(task.Succeeded)
		}},

		{"paused when it has failed often enough", "", pausing, func(h hand) { fails(h, 2); h.sealed(counted(h, 2, true)) }},
		{"more than enough need not be counted", "", pausing, func(h hand) { fails(h, 3); h.sealed(counted(h, 2, true)) }},
		{"more than there were", "G24", pausing, func(h hand) { fails(h, 2); h.sealed(counted(h, 3, true)) }},
		{"counted as it fails", "", pausing, func(h hand) {
			fails(h, 1)
			h.sealed(counted(h, 1, false))
			h.until(2)
			h.sealed(h.fires(2))
			h.done(task.Succeeded)
			fails(h, 1)
			h.sealed(counted(h, 1, false))
		}},
		{"a success was not counted", "G24", pausing, func(h hand) {
			fails(h, 1)
			h.sealed(counted(h, 1, false))
			h.until(2)
			h.sealed(h.fires(2))
			h.done(task.Succeeded)
			fails(h, 1)
			h.sealed(counted(h, 2, true))
		}},
		{"paused too soon", "G24", pausing, func(h hand) { fails(h, 1); h.sealed(counted(h, 1, true)) }},
		{"not paused", "G24", pausing, func(h hand) { fails(h, 2); h.sealed(counted(h, 2, false)) }},
		{"never counted", "G24", pausing, func(h hand) {
			fails(h, 2)
			h.until(30)
			h.sealed(h.none(3, 30, 28, task.ReasonOverlap, 30))
		}},
		{"resumed, and counted from the beginning", "", pausing, func(h hand) {
			fails(h, 2)
			h.sealed(counted(h, 2, true))
			h.update(h.simTask, true, func() {
				h.simTask.entry.Paused = false
				h.simTask.entry.Own = &task.Own{Counted: h.simTask.entry.Own.Counted}
			})

			fails(h, 1)
			h.sealed(counted(h, 1, false))
		}},
	})
}

func TestCheckProbeLog_StartDeadline(t *testing.T) {
	h := newHand(t, func(e *task.Entry) { e.Deadline = task.Duration(time.Second) })
	h.until(1)
	op := h.fires(1)
	a := op.value.(task.Assigned)
	a.StartBefore = task.At(time.UnixMilli(h.at(2)))
	op.value = a
	h.sealed(op)

	for at, promise := range map[int64]string{h.at(1.5): "", h.at(60): "G22"} {
		log := strings.Replace(probeLog("START", h.active), " now ", fmt.Sprintf(" %d ", at), 1)
		only(t, CheckProbeLog(strings.NewReader(log), h.keys, h.events), promise)
	}
}

func TestCheck_Shadows(t *testing.T) {
	shadow := func(e *task.Entry) { e.Shadow = true }
	skips := func(tick float64) func(h hand) {
		return func(h hand) { h.until(tick); h.sealed(h.not(tick, task.Skipped, task.ReasonShadow)) }
	}

	turns(t, []turn{
		{"a shadow's tick", "", shadow, skips(1)},
		{"a shadow's tick that is missed", "", shadow, func(h hand) { h.until(1); h.sealed(h.not(1, task.Missed, task.ReasonWindow)) }},
		{"a shadow runs", "G24", shadow, func(h hand) { h.until(1); h.sealed(h.fires(1)); h.done(task.Succeeded) }},
		{"a shadow waits", "G24", shadow, func(h hand) { h.until(1); h.sealed(h.waits(1, task.ReasonNoNode)) }},
		{"no shadow", "G24", nil, skips(1)},
		{"ticks in one record", "G24", shadow, func(h hand) { h.until(3); h.sealed(h.none(1, 3, 3, task.ReasonShadow, 3)) }},
		{"a record that grows", "G24", shadow, func(h hand) {
			skips(1)(h)
			h.until(2)
			h.sealed(h.none(1, 2, 2, task.ReasonShadow, 1))
		}},
	})
}

// Verifies: G21-G25
func TestCheck_SkippedForOverlap(t *testing.T) {
	turns(t, []turn{
		{"beside its own run", "", nil, func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.until(2)
			h.sealed(h.not(2, task.Skipped, task.ReasonOverlap))
			h.done(task.Succeeded)
		}},
		{"of a task that has had no run", "G23", nil, func(h hand) {
			h.until(1)
			h.sealed(h.not(1, task.Skipped, task.ReasonOverlap))
		}},
	})
}

// fannedOut is a run with one part. fan is its record of the part.
type fannedOut struct {
	h   hand
	run task.Run
	fan task.Fan
}

// fanOut dispatches a tick as a run with one part, which is not given out yet.
func (h hand) fanOut(tick float64) *fannedOut {
	h.until(tick)
	r := &fannedOut{h: h, run: h.run(tick), fan: task.Fan{Count: 1, Need: 1, Left: []int{0}}}
	r.run.State = task.Running
	h.sealed(r.put())

	return r
}

// put writes the record of the run.
func (f *fannedOut) put() op {
	fan := f.fan
	f.run.Fan = &fan

	return f.h.waiting(f.h.simTask, task.Waiting{Run: f.run})
}

// giveOut dispatches the part to node a.
func (f *fannedOut) giveOut() task.Run {
	part := f.h.tickRun(f.h.simTask, 0, task.TriggerPart, task.Dispatched)
	part.ID, part.ScheduledTime, part.PartCount = task.PartID(f.run.ID, 0), f.run.ScheduledTime, 1
	f.fan.Left = nil
	f.h.sealed(f.put(), f.h.dispatch(f.h.simTask, part, "a"))

	return part
}

// A part that waits for another attempt ends for the reason that its run was given, no matter which policy the task
// has by then.
func TestCheck_PartsThatAreReplaced(t *testing.T) {
	skips := func(h hand) {
		h.update(h.simTask, false, func() { h.entry.Overlap = task.OverlapSkip })
	}

	replace := func(e *task.Entry) {
		e.Overlap = task.OverlapReplace
		e.Target = task.Target{Parts: 1}
	}

	nothing := func(hand) {}

	// replaced dispatches a tick with one part, hands the part back unstarted, and ends it as replaced. If mark is
	// set, the run is marked as replaced: in the revision of the part's end if together is set, or else in a
	// revision of its own, with before and after called around it.
	replaced := func(h hand, mark, together bool, before, after func(h hand)) {
		r := h.fanOut(1)

		part := r.giveOut()
		h.handBack(h.simTask)

		h.until(2)
		h.sealed(h.waits(2, task.ReasonOverlap))
		before(h)

		if mark {
			r.fan.Cancel = task.ReasonReplaced
			h.sealed(r.put())
		}

		after(h)

		part.State, part.Reason = task.Cancelled, task.ReasonReplaced

		end := []op{{h.keys.Queued(h.ref, part.ID), nil}, h.ended(h.simTask, part)}
		if together {
			r.fan.Cancel = task.ReasonReplaced
			end = append(end, r.put())
		}

		h.sealed(end...)
	}

	// newer is the tick that replaces the run. hasDeadline gives it a start deadline while it waits, and misses ends it as missed.
	newer := func(h hand) task.Run {
		r := h.run(2)
		r.State, r.Reason, r.StartBefore = task.Queued, task.ReasonOverlap, task.At(time.UnixMilli(h.at(2)))
		return r
	}
	hasDeadline := func(h hand) { h.sealed(h.waiting(h.simTask, task.Waiting{Run: newer(h)})) }
	misses := func(h hand) {
		r := newer(h)
		r.State, r.Reason = task.Missed, task.ReasonDeadline
		h.sealed(op{h.keys.Queued(h.ref, r.ID), nil}, h.ended(h.simTask, r))
	}

	turns(t, []turn{
		{"under the policy", "", replace, func(h hand) { replaced(h, true, false, nothing, nothing) }},
		{"by a tick that missed its deadline meanwhile", "", replace, func(h hand) { replaced(h, true, false, hasDeadline, misses) }},
		{"in one revision", "", replace, func(h hand) { replaced(h, false, true, nothing, nothing) }},
		{"under the policy of that time", "", replace, func(h hand) { replaced(h, true, false, nothing, skips) }},
		{"against the policy", "G24", replace, func(h hand) { replaced(h, true, false, skips, nothing) }},
		{"without having been asked", "G24", replace, func(h hand) { replaced(h, false, false, nothing, nothing) }},
	})
}

// A part in an inbox is cancelled together with its run or for the same newer tick. That tick may have been decided
// before the part was given out: a part counts as old as its run.
func TestCheck_ActivePartsThatAreReplaced(t *testing.T) {
	allows := func(h hand) {
		h.update(h.simTask, false, func() { h.entry.Overlap = task.OverlapAllow })
	}

	replace := func(e *task.Entry) {
		e.Overlap = task.OverlapReplace
		e.Target = task.Target{Parts: 1}
	}

	nothing := func(hand) {}

	type when int
	const (
		never when = iota
		early      // before the part is given out
		late
	)

	// replaced dispatches a tick with one part, which a node has. The newer tick that replaces it is decided early,
	// late or never. If mark is set, the run is marked as replaced. Then between is called, and the part is
	// cancelled and ends.
	replaced := func(h hand, newer when, mark bool, between func(h hand)) {
		r := h.fanOut(1)

		decide := func(now when) {
			if now == newer {
				h.until(2)
				h.sealed(h.waits(2, task.ReasonOverlap))
			}
		}

		decide(early)

		r.giveOut()
		decide(late)

		if mark {
			r.fan.Cancel = task.ReasonReplaced
			h.sealed(r.put())
		}

		between(h)
		h.sealed(h.asked(task.ReasonReplaced))
		h.done(task.Cancelled)
	}

	turns(t, []turn{
		{"for a newer tick", "", replace, func(h hand) { replaced(h, late, true, nothing) }},
		{"for a tick decided before the part was given out", "", replace, func(h hand) { replaced(h, early, true, nothing) }},
		{"for no newer tick", "G24", replace, func(h hand) { replaced(h, never, true, nothing) }},
		{"under the policy of that time", "", replace, func(h hand) { replaced(h, late, true, allows) }},
		{"against the policy", "G24", replace, func(h hand) { replaced(h, late, false, allows) }},
	})
}

// A tick that was skipped replaces nothing.
func TestCheck_PartsAreNotReplacedBySkippedTicks(t *testing.T) {
	skip := func(e *task.Entry) {
		e.Overlap = task.OverlapSkip
		e.Target = task.Target{Parts: 1}
	}

	turns(t, []turn{
		{"a tick that was skipped before the part was given out", "G24", skip, func(h hand) {
			r := h.fanOut(1)
			h.until(2)
			h.sealed(h.not(2, task.Skipped, task.ReasonOverlap))
			h.update(h.simTask, false, func() { h.entry.Overlap = task.OverlapReplace })
			r.giveOut()
			r.fan.Cancel = task.ReasonReplaced
			h.sealed(r.put())
			h.sealed(h.asked(task.ReasonReplaced))
			h.done(task.Cancelled)
		}},
	})
}

// The recording begins while the run is under way. A tick that is older than the run is not a newer tick.
func TestCheck_PartsAreNotReplacedByOlderTicks(t *testing.T) {
	h := newHand(t, func(e *task.Entry) {
		e.Overlap = task.OverlapReplace
		e.Target = task.Target{Parts: 1}
	})

	h.until(1)
	h.sealed(h.not(1, task.Skipped, task.ReasonOverlap))
	r := h.fanOut(2)
	list := h.listed()
	h.events = nil

	r.giveOut()
	r.fan.Cancel = task.ReasonReplaced
	h.sealed(r.put())
	h.sealed(h.asked(task.ReasonReplaced))
	h.done(task.Cancelled)

	found := Check(h.keys, append(list, h.events...), Options{}).Violations
	if !slices.ContainsFunc(found, func(v Violation) bool { return v.Promise == "G24" }) {
		t.Errorf("found %v; want a breach of G24", found)
	}
}

// A tick is decided late, when the run of a trigger waits already. That run replaces the tick if it is newer than the tick.
//
// Verifies: G24
func TestCheck_TicksThatRunsOfTriggersReplace(t *testing.T) {
	for at, isWrong := range map[float64]bool{2.1: false, 1.9: true} {
		h := newHand(t, func(e *task.Entry) { e.Overlap = task.OverlapReplace })
		h.until(1)
		h.sealed(h.fires(1))

		h.until(2.2)
		triggered := h.tickRun(h.simTask, h.at(at), task.TriggerAfter, task.Queued)
		triggered.Causes = []task.Cause{{Task: "etl", Run: "r1", State: task.Succeeded}}
		triggered.ID, triggered.Reason = task.TriggeredRunID(time.UnixMilli(h.at(at)), h.simTask.entry.UID, triggered.Causes[0]), task.ReasonOverlap
		h.sealed(h.waiting(h.simTask, task.Waiting{Run: triggered}))

		tick := h.run(2)
		h.sealed(h.waits(2, task.ReasonOverlap))
		tick.State, tick.Reason, tick.EndedAt = task.Cancelled, task.ReasonReplaced, h.time()
		h.sealed(op{h.keys.Queued(h.ref, tick.ID), nil}, h.ended(h.simTask, tick))

		found := slices.ContainsFunc(h.check(Options{}).Violations, func(v Violation) bool {
			return v.Promise == "G24" && strings.Contains(v.Message, "is replaced by nothing")
		})
		if found != isWrong {
			t.Errorf("the tick of 2 s is replaced by a run of %g s: a violation: %t", at, found)
		}
	}
}

// What owners, nodes and trims decide by the fields of a task.
func TestCheck_Decisions(t *testing.T) {
	missed := func(ticks int, reason string) func(h hand) {
		return func(h hand) {
			h.until(float64(ticks))
			ops := []op{h.not(1, task.Missed, reason)}
			if ticks > 1 {
				ops = append(ops, h.fires(2))
			}
			h.sealed(ops...)
			if ticks > 1 {
				h.done(task.Succeeded)
			}
		}
	}
	selects := func(pool string) func(*task.Entry) {
		return func(e *task.Entry) { e.Target.Selector = "pool = " + pool }
	}
	runs := func(h hand) { h.until(1); h.sealed(h.fires(1)); h.done(task.Succeeded) }
	announced := func(h hand) { h.announce("pool", "a"); runs(h) }

	keeps := func(n int) func(*task.Entry) { return func(e *task.Entry) { e.History.Keep = n } }
	trimmed := func(h hand) {
		runs(h)
		h.until(2)
		h.sealed(h.another(2))
		h.done(task.Succeeded)
		h.txn(append(h.trim(1), h.chunk(0, ledger.Chunk{Spans: []ledger.Span{{First: 1000, Last: 1000, Count: 1}}}))...)
	}

	cordoned := func(seconds float64) func(h hand) {
		return func(h hand) {
			h.txn(op{h.keys.Node("a"), task.Node{
				Name: "a", Instance: h.sessions["a"], State: task.NodeCordoned, Roles: []string{task.RoleScheduler, task.RoleExecutor}, Weight: 1, Clock: h.time(),
			}})
			h.until(seconds)
			h.sealed(h.fires(seconds))
			h.done(task.Succeeded)
		}
	}
	rare := func(e *task.Entry) { e.Schedule = task.Schedules{"*/20 * * * * *"} }

	backsOff := func(e *task.Entry) {
		e.Schedule = task.Schedules{"* * * * *"}
		e.Retry.Backoff, e.Retry.MaxBackoff, e.Retry.Factor = task.Duration(30*time.Second), task.Duration(30*time.Second), 1
	}
	fails := func(h hand) { h.until(60); h.sealed(h.fires(60)); h.done(task.Failed) }
	retried := func(seconds float64) func(h hand) {
		return func(h hand) {
			fails(h)
			h.until(seconds)
			w := h.simTask.queue[0]
			h.simTask.queue, w.NotBefore = nil, task.Time{}
			h.sealed(op{h.keys.Queued(h.ref, w.ID), nil}, h.dispatch(h.simTask, w.Run, "a"))
			h.done(task.Succeeded)
		}
	}

	turns(t, []turn{
		{"an older tick is missed", "", nil, missed(2, task.ReasonCameToLightLate)},
		{"the newest tick is missed", "G24", nil, missed(1, task.ReasonCameToLightLate)},
		{"the newest tick is too old", "", nil, missed(1, task.ReasonWindow)},
		{"missed ticks are skipped", "", func(e *task.Entry) { e.Missed.Policy = task.MissedSkip }, missed(1, task.ReasonNoOwner)},
		{"a retry without backoff", "G24", backsOff, func(h hand) { h.hasty = true; fails(h) }},
		{"a retry after its backoff", "", backsOff, retried(90)},
		{"a retry before its backoff is over", "G24", backsOff, retried(65)},
		{"a node that matches", "", selects("a"), announced},
		{"a node that does not match", "G29", selects("b"), announced},
		{"a trim", "", keeps(1), trimmed},
		{"a trim of too much", "G25", keeps(2), trimmed},
		{"a node that has just been cordoned", "", rare, cordoned(20)},
		{"a node that has been cordoned for long", "G20", rare, cordoned(40)},
	})
}
