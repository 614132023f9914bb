package check

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/task"
)

// expects returns a change of an entry so that the task alerts after some failures in a row, and repeats no run.
func expects(failures int) func(*task.Entry) {
	return func(e *task.Entry) {
		e.Alerts, e.Retry.Attempts = &task.Alerts{Failures: &failures, Notify: []string{"pager"}}, 1
	}
}

// runs lets a tick run, with the given end.
func (h hand) runs(tick float64, state task.State) {
	h.until(tick)
	h.sealed(h.fires(tick))
	h.done(state)
}

// alert returns the write of the alert about failures of the task.
func (h hand) alert(change func(a *task.Alert)) op {
	a := task.Alert{UID: h.simTask.entry.UID, OpenedAt: h.time(), Notify: []string{h.ref.Namespace + "/pager"}}
	if change != nil {
		change(&a)
	}

	return op{h.keys.Alert(h.ref, task.AlertFailures), a}
}

// closedAs returns the closing of the alert.
func (h hand) closedAs(why task.AlertReason, by string) op {
	return h.alert(func(a *task.Alert) { a.Closed = &task.AlertClose{At: h.time(), Why: why, By: task.NewActor(by)} })
}

// dead returns the deletion of the dead run of a tick.
func (h hand) dead(tick float64) op {
	return op{h.keys.DeadRun(h.ref, task.RunID(time.UnixMilli(h.at(tick)), h.simTask.entry.UID)), nil}
}

// again starts the dead run of a tick again.
func (h hand) again(tick float64) {
	w := task.Waiting{Run: h.tickRun(h.simTask, h.now, task.TriggerManual, task.Queued)}
	w.ID, w.Owner, w.Reason = task.ManualRunID(time.UnixMilli(h.now), h.simTask.entry.UID), "", task.ReasonManual
	w.RetryOf = task.RunID(time.UnixMilli(h.at(tick)), h.simTask.entry.UID)
	h.txn(h.dead(tick), h.waiting(h.simTask, w))
}

// evaluatedIf returns options that judge all alerts when the history ends, or those which do not.
func (h hand) evaluatedIf(isQuiet bool) Options {
	if !isQuiet {
		return Options{}
	}
	return Options{Evaluated: h.time().Time}
}

// Verifies: G57, G58
func TestCheck_Alerts(t *testing.T) {
	const failed, succeeded = task.Failed, task.Succeeded

	for _, c := range []struct {
		name, promise string
		isQuiet       bool // nothing has changed for a long time
		failures      int
		happens       func(h hand)
	}{
		{"opens after a failure", "", true, 1, func(h hand) { h.runs(1, failed); h.txn(h.alert(nil)) }},
		{"opens after two", "", true, 2, func(h hand) { h.runs(1, failed); h.runs(2, failed); h.txn(h.alert(nil)) }},
		{"opens after one of two", "G57", false, 2, func(h hand) { h.runs(1, failed); h.txn(h.alert(nil)) }},
		{"opens without a failure", "G57", false, 1, func(h hand) { h.runs(1, succeeded); h.txn(h.alert(nil)) }},
		{"opens for a failure before the last success", "G57", false, 1, func(h hand) { h.runs(1, failed); h.runs(2, succeeded); h.txn(h.alert(nil)) }},
		{"opens in the revision of the failure", "G57", false, 1, func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.txn(h.alert(nil))
			h.done(failed)
		}},
		{"opens after the dismissal", "G57", false, 1, func(h hand) { h.runs(1, failed); h.txn(h.dead(1)); h.txn(h.alert(nil)) }},
		{"opens although nothing is expected", "G57", false, 0, func(h hand) { h.runs(1, failed); h.txn(h.alert(nil)) }},
		{"opens for a deleted task", "G57", false, 1, func(h hand) { h.runs(1, failed); h.remove(h.simTask); h.txn(h.alert(nil)) }},
		{"opens for a task that never existed", "G58", false, 1, func(h hand) { h.runs(1, failed); h.txn(h.alert(func(a *task.Alert) { a.UID = "x" })) }},

		{"closes after a success", "", true, 1, func(h hand) {
			h.runs(1, failed)
			h.txn(h.alert(nil))
			h.runs(2, succeeded)
			h.txn(h.closedAs(task.AlertSucceeded, ""))
		}},
		{"closes as succeeded while it fails", "G57", false, 1, func(h hand) {
			h.runs(1, failed)
			h.txn(h.alert(nil))
			h.txn(h.closedAs(task.AlertSucceeded, ""))
		}},
		{"closes as succeeded after a dismissal", "G57", false, 1, func(h hand) {
			h.runs(1, failed)
			h.txn(h.alert(nil))
			h.txn(h.dead(1))
			h.txn(h.closedAs(task.AlertSucceeded, ""))
		}},
		{"closes with the dismissal", "", true, 1, func(h hand) {
			h.runs(1, failed)
			h.txn(h.alert(nil))
			h.txn(h.dead(1), h.closedAs(task.AlertDismissed, "ann"))
		}},
		{"closes with one of two dismissals", "G57", false, 1, func(h hand) {
			h.runs(1, failed)
			h.runs(2, failed)
			h.txn(h.alert(nil))
			h.txn(h.dead(1), h.closedAs(task.AlertDismissed, "ann"))
		}},
		{"closes after the dismissal", "", true, 1, func(h hand) {
			h.runs(1, failed)
			h.txn(h.alert(nil))
			h.txn(h.dead(1))
			h.txn(h.closedAs(task.AlertDismissed, ""))
		}},
		{"closes while the run is repeated", "G57", false, 1, func(h hand) {
			h.runs(1, failed)
			h.txn(h.alert(nil))
			h.again(1)
			h.txn(h.closedAs(task.AlertDismissed, ""))
		}},
		{"closes as deleted", "G57", false, 1, func(h hand) { h.runs(1, failed); h.txn(h.alert(nil)); h.txn(h.closedAs(task.AlertDeleted, "ann")) }},
		{"closes as paused", "G57", false, 1, func(h hand) { h.runs(1, failed); h.txn(h.alert(nil)); h.txn(h.closedAs(task.AlertPaused, "ann")) }},
		{"closes as not expected", "G57", false, 1, func(h hand) { h.runs(1, failed); h.txn(h.alert(nil)); h.txn(h.closedAs(task.AlertNotWatched, "ann")) }},
		{"closes after the deletion", "", true, 1, func(h hand) {
			h.runs(1, failed)
			h.txn(h.alert(nil))
			h.remove(h.simTask)
			h.txn(h.closedAs(task.AlertDeleted, "ann"))
		}},
		{"is deleted while it is open", "G57", false, 1, func(h hand) {
			h.runs(1, failed)
			h.txn(h.alert(nil))
			h.txn(op{h.keys.Alert(h.ref, task.AlertFailures), nil})
		}},

		{"does not open", "G58", true, 1, func(h hand) { h.runs(1, failed) }},
		{"is counted", "", true, 1, func(h hand) {
			h.runs(1, failed)
			h.txn(op{h.keys.AlertsMore(0, h.ref.Namespace, "ops/pager"), task.Alert{More: map[task.AlertKind]int{task.AlertFailures: 1}}})
		}},
		{"need not open after one of two", "", true, 2, func(h hand) { h.runs(1, failed) }},
		{"does not close after a success", "G58", true, 1, func(h hand) { h.runs(1, failed); h.txn(h.alert(nil)); h.runs(2, succeeded) }},
		{"does not close after the deletion", "G58", true, 1, func(h hand) { h.runs(1, failed); h.txn(h.alert(nil)); h.remove(h.simTask) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHand(t, expects(c.failures))
			c.happens(h)
			only(t, h.check(h.evaluatedIf(c.isQuiet)).Violations, c.promise)
		})
	}
}

// Verifies: G57
func TestCheck_AlertsAboutSuccessWithin(t *testing.T) {
	for name, c := range map[string]struct {
		promise string
		within  time.Duration
		opensAt float64
		closed  task.AlertReason
	}{
		"in time":               {"", time.Minute, 90, ""},
		"too early":             {"G57", time.Minute, 30, ""},
		"not expected":          {"G57", 0, 90, ""},
		"closes while it holds": {"G57", time.Minute, 90, task.AlertSucceeded},
		"paused":                {"G57", time.Minute, 90, task.AlertPaused},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t, func(e *task.Entry) {
				e.Alerts = &task.Alerts{Failures: new(0), SuccessWithin: task.Duration(c.within)}
			})
			h.runs(1, task.Succeeded)
			h.until(c.opensAt)

			key, a := h.keys.Alert(h.ref, task.AlertSuccessWithin), task.Alert{UID: h.simTask.entry.UID, OpenedAt: h.time()}
			h.txn(op{key, a})
			if c.closed != "" {
				a.Closed = &task.AlertClose{At: h.time(), Why: c.closed}
				h.txn(op{key, a})
			}

			only(t, h.check(Options{}).Violations, c.promise)

			// A time of a wrong clock proves nothing.
			if name == "too early" {
				only(t, h.check(Options{WrongClocks: []WrongClock{{"a", a.OpenedAt.Time, a.OpenedAt.Time}}}).Violations, "")
			}
		})
	}
}

// A run waits for long, succeeds, and its record is deleted. The ledger tells its tick, but not its end, or nothing. So the alert may open
// before a success has been missing for the whole time.
//
// Verifies: G57
func TestCheck_AlertsAboutSuccessesInTheLedger(t *testing.T) {
	const tick, ends = 1, 40

	for name, c := range map[string]struct {
		opensAt float64
		trims   func(h hand) []op
		isWrong bool
	}{
		"on record":            {75, nil, true},
		"in the ledger":        {75, func(h hand) []op { return append(h.trim(tick), h.chunk(1, ledger.Chunk{Spans: spans(tick, tick, 1)})) }, false},
		"in the ledger, early": {45, func(h hand) []op { return append(h.trim(tick), h.chunk(1, ledger.Chunk{Spans: spans(tick, tick, 1)})) }, true},
		"without a ledger":     {45, func(h hand) []op { return h.trim(tick) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t, func(e *task.Entry) {
				e.Alerts = &task.Alerts{Failures: new(0), SuccessWithin: task.Duration(time.Minute)}
			})
			h.until(tick)
			h.sealed(h.fires(tick))
			h.until(ends)
			h.done(task.Succeeded)
			if c.trims != nil {
				h.txn(c.trims(h)...)
			}

			h.until(c.opensAt)
			h.txn(op{h.keys.Alert(h.ref, task.AlertSuccessWithin), task.Alert{UID: h.simTask.entry.UID, OpenedAt: h.time()}})

			found := slices.ContainsFunc(h.check(Options{}).Violations, func(v Violation) bool { return v.Promise == "G57" })
			if found != c.isWrong {
				t.Errorf("a violation of G57: %t, want %t", found, c.isWrong)
			}
		})
	}
}

// The clock of a node is an hour ahead, or behind, when a run ends there. Such an end says nothing about when the run succeeded.
//
// Verifies: G57
func TestCheck_AlertsAboutSuccessesByWrongClocks(t *testing.T) {
	for name, c := range map[string]struct {
		off     time.Duration
		again   bool // another run succeeds after that, at 20 s
		opensAt float64
		isWrong bool
	}{
		"ahead":                            {time.Hour, false, 90, false},
		"behind":                           {-time.Hour, false, 30, false},
		"ahead, and another one succeeds":  {time.Hour, true, 90, false},
		"behind, and another one succeeds": {-time.Hour, true, 30, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t, func(e *task.Entry) {
				e.Alerts = &task.Alerts{Failures: new(0), SuccessWithin: task.Duration(time.Minute)}
			})
			h.until(1)
			h.sealed(h.fires(1))
			h.now += c.off.Milliseconds()
			wrong := h.time().Time
			h.done(task.Succeeded)
			h.now -= c.off.Milliseconds()
			if c.again {
				h.runs(20, task.Succeeded)
			}

			h.until(c.opensAt)
			h.txn(op{h.keys.Alert(h.ref, task.AlertSuccessWithin), task.Alert{UID: h.simTask.entry.UID, OpenedAt: h.time()}})

			found := h.check(Options{WrongClocks: []WrongClock{{"a", wrong.Add(-time.Minute), wrong.Add(time.Minute)}}}).Violations
			if is := slices.ContainsFunc(found, func(v Violation) bool { return v.Promise == "G57" }); is != c.isWrong {
				t.Errorf("a violation of G57: %t, want %t", is, c.isWrong)
			}
		})
	}
}

// Verifies: G57, G58
func TestCheck_AlertsAboutPauses(t *testing.T) {
	pausedSince := func(h hand, by string) {
		h.txn(h.knows(func(e *task.Entry, own *task.Own) {
			e.Paused, own.Pauses = true, []task.Pause{{Since: h.time(), By: task.NewActor(by)}}
		}))
	}
	opened := func(h hand, closed *task.AlertClose) {
		h.txn(op{h.keys.Alert(h.ref, task.AlertMaxPause), task.Alert{UID: h.simTask.entry.UID, OpenedAt: h.time(), Closed: closed}})
	}
	resumed := func(h hand) {
		h.txn(h.knows(func(e *task.Entry, own *task.Own) { e.Paused, own.Pauses = false, nil }))
	}

	for name, c := range map[string]struct {
		promise string
		happens func(h hand)
	}{
		"opens":                 {"", func(h hand) { pausedSince(h, "ann"); h.pass(80); opened(h, nil) }},
		"does not open":         {"G58", func(h hand) { pausedSince(h, "ann"); h.pass(80) }},
		"is not due":            {"", func(h hand) { pausedSince(h, "ann"); h.pass(50) }},
		"paused after failures": {"", func(h hand) { pausedSince(h, task.PausedByFailures); h.pass(80) }},
		"opens without a pause": {"G57", func(h hand) { opened(h, nil); pausedSince(h, "ann") }},
		"closes during the pause": {"G57", func(h hand) {
			pausedSince(h, "ann")
			opened(h, nil)
			opened(h, &task.AlertClose{At: h.time(), Why: task.AlertResumed})
		}},
		"stays after the pause": {"G58", func(h hand) { pausedSince(h, "ann"); h.pass(80); opened(h, nil); resumed(h) }},
		"closes after the pause": {"", func(h hand) {
			pausedSince(h, "ann")
			h.pass(80)
			opened(h, nil)
			resumed(h)
			opened(h, &task.AlertClose{At: h.time(), Why: task.AlertResumed})
		}},
		"is counted, not recorded": {"", func(h hand) {
			pausedSince(h, "ann")
			h.pass(80)
			h.txn(op{h.keys.AlertsMore(0, h.ref.Namespace, "ops/pager"), task.Alert{More: map[task.AlertKind]int{task.AlertMaxPause: 1}}})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t, func(e *task.Entry) {
				e.Alerts = &task.Alerts{Failures: new(0), MaxPause: task.Duration(time.Minute)}
			})
			c.happens(h)

			// These histories decide few ticks, and change the entry outside of the API.
			found := slices.DeleteFunc(h.check(h.evaluatedIf(true)).Violations, func(v Violation) bool {
				return v.Promise != "G57" && v.Promise != "G58"
			})
			only(t, found, c.promise)
		})
	}
}

// The task has a tick every second and a deadline every 20 seconds.
//
// Verifies: G57, G58
func TestCheck_AlertsAboutSuccessBy(t *testing.T) {
	opens := func(h hand, deadline float64) (op, task.Alert) {
		a := task.Alert{UID: h.simTask.entry.UID, OpenedAt: h.time(), Deadline: task.At(time.UnixMilli(h.at(deadline)))}
		return op{h.keys.Alert(h.ref, task.AlertSuccessBy), a}, a
	}
	opened := func(h hand, deadline float64) { w, _ := opens(h, deadline); h.txn(w) }
	closed := func(h hand, deadline float64, why task.AlertReason) {
		w, a := opens(h, deadline)
		h.txn(w)
		a.Closed = &task.AlertClose{At: h.time(), Why: why}
		h.txn(op{w.key, a})
	}
	at := func(seconds float64, then func(h hand)) func(h hand) {
		return func(h hand) { h.until(seconds); then(h) }
	}

	for name, c := range map[string]struct {
		promise string
		isQuiet bool
		happens func(h hand)
	}{
		"no run": {"", false, at(36, func(h hand) { opened(h, 20) })},
		"the tick before succeeded": {"", false, func(h hand) {
			h.runs(18, task.Succeeded)
			at(36, func(h hand) { opened(h, 20) })(h)
		}},
		"the tick succeeded": {"G57", false, func(h hand) {
			h.runs(19, task.Succeeded)
			at(36, func(h hand) { opened(h, 20) })(h)
		}},
		"a later tick succeeded": {"G57", false, func(h hand) {
			h.runs(30, task.Succeeded)
			at(36, func(h hand) { opened(h, 20) })(h)
		}},
		"the tick failed": {"", false, func(h hand) {
			h.runs(19, task.Failed)
			at(36, func(h hand) { opened(h, 20) })(h)
		}},
		"the tick was skipped by another run": {"", false, func(h hand) {
			h.until(19)
			h.sealed(h.not(19, task.Skipped, task.ReasonOverlap))
			at(36, func(h hand) { opened(h, 20) })(h)
		}},
		"the tick was frozen": {"G57", false, func(h hand) {
			h.until(18.5)
			h.freeze("")
			h.until(19)
			h.sealed(h.not(19, task.Skipped, task.ReasonFrozen))
			at(36, func(h hand) { opened(h, 20) })(h)
		}},
		"too early":   {"G57", false, at(34, func(h hand) { opened(h, 20) })},
		"no deadline": {"G57", false, at(36, func(h hand) { opened(h, 19) })},
		"paused": {"G57", false, func(h hand) {
			h.txn(h.knows(func(e *task.Entry, own *task.Own) {
				e.Paused, own.Pauses = true, []task.Pause{{Since: h.time(), By: task.NewActor("ann")}}
			}))
			at(36, func(h hand) { opened(h, 20) })(h)
		}},

		"paused after failures": {"", false, func(h hand) {
			h.txn(h.knows(func(e *task.Entry, own *task.Own) {
				e.Paused, own.Pauses = true, []task.Pause{{Since: h.time(), By: task.NewActor(task.PausedByFailures)}}
			}))
			at(36, func(h hand) { h.sealed(); opened(h, 20) })(h)
		}},
		"the tick did not exist": {"G57", false, at(36, func(h hand) { h.sealed(); opened(h, 20) })},

		"closes after a success": {"", false, func(h hand) {
			h.until(36)
			w, a := opens(h, 20)
			h.txn(w)
			h.runs(37, task.Succeeded)
			a.Closed = &task.AlertClose{At: h.time(), Why: task.AlertSucceeded}
			h.txn(op{w.key, a})
		}},
		"closes after a success of an older tick": {"G57", false, func(h hand) {
			h.runs(18, task.Succeeded)
			at(36, func(h hand) { closed(h, 20, task.AlertSucceeded) })(h)
		}},
		"closes as paused": {"G57", false, at(36, func(h hand) { closed(h, 20, task.AlertPaused) })},
		"does not close": {"G58", true, func(h hand) {
			at(36, func(h hand) { opened(h, 20) })(h)
			h.txn(h.knows(func(e *task.Entry, own *task.Own) {
				e.Paused, own.Pauses = true, []task.Pause{{Since: h.time(), By: task.NewActor("ann")}}
			}))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t, func(e *task.Entry) {
				e.Alerts, e.Retry.Attempts = &task.Alerts{Failures: new(0), SuccessBy: "*/20 * * * * *"}, 1
			})
			c.happens(h)

			// These histories decide few ticks, and change the entry outside of the API.
			found := slices.DeleteFunc(h.check(h.evaluatedIf(c.isQuiet)).Violations, func(v Violation) bool {
				return v.Promise != "G57" && v.Promise != "G58"
			})
			only(t, found, c.promise)
		})
	}
}

// A rule expects nothing of a task that could not have such a block of its own.
//
// Verifies: G57
func TestCheck_AlertsOfRulesThatDoNotFit(t *testing.T) {
	none, day := task.Duration(0), task.Duration(24*time.Hour)

	for name, c := range map[string]struct {
		kind    task.AlertKind
		history task.History
		manual  bool
		isFit   bool
	}{
		"success_by":                            {kind: task.AlertSuccessBy, isFit: true},
		"success_by without a ledger":           {kind: task.AlertSuccessBy, history: task.History{Ledger: &none}},
		"success_by with keep_for":              {kind: task.AlertSuccessBy, history: task.History{Ledger: &none, KeepFor: day}, isFit: true},
		"success_by with failures":              {kind: task.AlertSuccessBy, history: task.History{Record: task.RecordFailures}, isFit: true},
		"success_by of failures without ticks":  {kind: task.AlertSuccessBy, history: task.History{Record: task.RecordFailures}, manual: true},
		"success_within without a ledger":       {kind: task.AlertSuccessWithin, history: task.History{Ledger: &none}, isFit: true},
		"success_within with failures only":     {kind: task.AlertSuccessWithin, history: task.History{Record: task.RecordFailures, Ledger: &none}},
		"success_within of failures with ticks": {kind: task.AlertSuccessWithin, history: task.History{Record: task.RecordFailures, Ledger: &day}, isFit: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t, func(e *task.Entry) {
				c.history.Keep = 3
				if e.History = c.history; c.manual {
					e.Schedule = task.Schedules{task.ManualSchedule}
				}
			})
			h.txn(op{h.keys.AlertRule(h.ref.Namespace, "all"), task.AlertRule{Alerts: task.Alerts{Failures: new(0), SuccessBy: "*/20 * * * * *", SuccessWithin: task.Duration(time.Minute)}}})

			key := h.keys.Alert(h.ref, c.kind)
			a := task.Alert{UID: h.simTask.entry.UID, OpenedAt: h.time()}
			h.txn(op{key, a})
			a.Closed = &task.AlertClose{At: h.time(), Why: task.AlertNotWatched}
			h.txn(op{key, a})

			var closing []string
			for _, v := range h.check(Options{}).Violations {
				if v.Promise == "G57" && strings.Contains(v.Message, "closes as not_watched") {
					closing = append(closing, v.Message)
				}
			}
			if (len(closing) > 0) != c.isFit {
				t.Errorf("the closing as not_watched has the violations %v; the rule fits: %v", closing, c.isFit)
			}
		})
	}
}

// pager is a receiver beside a task with an open alert.
type pager struct {
	hand
	receiver *simTask
	sent     task.AlertsSent
	opened   uint64 // the key of the alert
}

func newPager(t *testing.T) *pager {
	p := &pager{hand: newHand(t, expects(1))}
	p.receiver = p.sim.create("pager", 0, 1, func(e *task.Entry) { e.Schedule = task.Schedules{"@manual"} })
	p.runs(1, task.Failed)
	p.txn(p.alert(nil))

	j := newMessageJudge(judge{})
	j.clusterID = "c"
	p.sent.UID = p.receiver.entry.UID
	p.opened = j.keyOf(&task.Alert{Namespace: p.hand.ref.Namespace, Task: p.hand.ref.Name, Kind: task.AlertFailures, UID: p.simTask.entry.UID})

	return p
}

// begins writes a message.
func (p *pager) begins(change func(m *task.AlertMessage)) {
	p.pass(1)
	w := task.Waiting{Run: p.tickRun(p.receiver, p.now, task.TriggerManual, task.Queued)}
	w.ID, w.Owner, w.Reason = task.ManualRunID(p.time().Time, p.receiver.entry.UID), "", task.ReasonManual

	m := &task.AlertMessage{Runs: []string{w.ID}, Revision: p.rev, At: p.time()}
	change(m)
	p.sent.Sending = m
	p.receiver.queue = append(p.receiver.queue, w)
	p.txn(op{p.keys.SentTo(p.receiver.ref), p.sent}, p.waiting(p.receiver, w))
}

// ends lets the message begin and end, and notes that it was delivered.
func (p *pager) ends() {
	w := p.receiver.queue[0]
	p.receiver.queue = nil
	p.commit(0, p.marks[0], op{p.keys.Queued(p.receiver.ref, w.ID), nil}, p.dispatch(p.receiver, w.Run, "a"))
	p.finish(p.receiver, task.Succeeded)

	p.sent.Delivered, p.sent.Sending = task.AlertKeys{p.opened}, nil
	p.txn(op{p.keys.SentTo(p.receiver.ref), p.sent})
}

// Verifies: G59
func TestCheck_Messages(t *testing.T) {
	for _, c := range []struct {
		name, promise string
		happens       func(p *pager)
	}{
		{"one that opens, one that closes", "", func(p *pager) {
			p.begins(func(m *task.AlertMessage) { m.Opened = task.AlertKeys{p.opened} })
			p.ends()
			p.hand.runs(30, task.Succeeded)
			p.txn(p.closedAs(task.AlertSucceeded, ""))
			p.begins(func(m *task.AlertMessage) { m.Closed = task.AlertKeys{p.opened} })
		}},
		{"its run is not queued", "G59", func(p *pager) {
			p.begins(func(m *task.AlertMessage) { m.Runs = []string{"x"} })
		}},
		{"opens what is not open", "G59", func(p *pager) {
			p.begins(func(m *task.AlertMessage) { m.Opened = task.AlertKeys{7} })
		}},
		{"opens what was not open at its revision", "G59", func(p *pager) {
			p.begins(func(m *task.AlertMessage) { m.Opened, m.Revision = task.AlertKeys{p.opened}, p.rev-1 })
		}},
		{"opens what was delivered", "G59", func(p *pager) {
			p.sent.Delivered = task.AlertKeys{p.opened}
			p.begins(func(m *task.AlertMessage) { m.Opened = task.AlertKeys{p.opened} })
		}},
		{"closes what is open", "G59", func(p *pager) {
			p.sent.Delivered = task.AlertKeys{p.opened}
			p.begins(func(m *task.AlertMessage) { m.Closed = task.AlertKeys{p.opened} })
		}},
		{"closes what was not told", "G59", func(p *pager) {
			p.begins(func(m *task.AlertMessage) { m.Closed = task.AlertKeys{7} })
		}},
		{"begins while another one waits", "G59", func(p *pager) {
			p.begins(func(m *task.AlertMessage) {})
			p.begins(func(m *task.AlertMessage) {})
		}},
		{"a group with a run for each alert", "", func(p *pager) {
			p.sent.Group = task.GroupTask
			p.begins(func(m *task.AlertMessage) { m.Opened = task.AlertKeys{p.opened} })
			p.ends()
			p.pass(70)
			p.begins(func(m *task.AlertMessage) { m.Opened, m.Repeats = task.AlertKeys{p.opened}, true })
		}},
		{"a group with two runs for one alert", "G59", func(p *pager) {
			p.sent.Group = task.GroupTask
			p.begins(func(m *task.AlertMessage) { m.Opened, m.Runs = task.AlertKeys{p.opened}, append(m.Runs, m.Runs[0]) })
		}},
		{"a group twice in a minute", "G59", func(p *pager) {
			p.sent.Group = task.GroupTask
			p.begins(func(m *task.AlertMessage) { m.Opened = task.AlertKeys{p.opened} })
			p.ends()
			p.begins(func(m *task.AlertMessage) { m.Opened, m.Repeats = task.AlertKeys{p.opened}, true })
		}},
		{"a group opens what was delivered", "G59", func(p *pager) {
			p.sent.Group, p.sent.Delivered = task.GroupTask, task.AlertKeys{p.opened}
			p.begins(func(m *task.AlertMessage) { m.Opened = task.AlertKeys{p.opened} })
		}},
		{"many", "G59", func(p *pager) {
			for range messageLimit + 1 {
				p.begins(func(m *task.AlertMessage) {})
				p.ends()
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPager(t)
			c.happens(p)

			var found []Violation
			for _, v := range p.check(Options{}).Violations {
				if v.Promise != "G4" { // ticks that these histories do not decide
					found = append(found, v)
				}
			}
			only(t, found, c.promise)
		})
	}
}
