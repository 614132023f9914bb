package check

import (
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// goesOn lets the owner decide ticks without runs until a time.
func (h hand) goesOn(until float64) {
	for h.now < h.at(until) {
		h.pass(1)
		h.sealed()
	}
}

// fails lets a tick every 20 seconds run and fail, one second before each deadline, up to a time.
func (h hand) fails(until float64) {
	for next := (h.now-simStart)/20_000*20 + 19; float64(next) <= until; next += 20 {
		h.goesOn(float64(next))
		h.runs(float64(next), task.Failed)
	}
	h.goesOn(until)
}

// opensAlert opens an alert of a kind.
func (h hand) opensAlert(kind task.AlertKind) task.Alert {
	a := task.Alert{UID: h.simTask.entry.UID, OpenedAt: h.time()}
	if kind == task.AlertSuccessBy {
		a.Deadline = task.At(time.UnixMilli(h.at(20)))
	}
	h.txn(op{h.keys.Alert(h.ref, kind), a})

	return a
}

// The task has a tick every second, and expects a success within a minute.
//
// Verifies: G58
func TestCheck_SuccessWithinAlertsInTime(t *testing.T) {
	const kind = task.AlertSuccessWithin
	succeeds := func(h hand, from, until float64) {
		for at := from; at < until; at += 20 {
			h.goesOn(at)
			h.runs(at, task.Succeeded)
		}
		h.goesOn(until)
	}
	pausedBy := func(h hand, by string) {
		h.txn(h.knows(func(e *task.Entry, own *task.Own) {
			e.Paused, own.Pauses = true, []task.Pause{{Since: h.time(), By: task.NewActor(by)}}
		}))
	}

	for name, c := range map[string]struct {
		promise string
		happens func(h hand)
	}{
		"opens":                         {"", func(h hand) { h.fails(100); h.opensAlert(kind); h.fails(300) }},
		"does not open":                 {"G58", func(h hand) { h.fails(200) }},
		"may open later":                {"", func(h hand) { h.fails(130) }},
		"a run succeeds":                {"", func(h hand) { h.fails(100); h.runs(100, task.Succeeded); h.fails(225) }},
		"does not open after a success": {"G58", func(h hand) { h.fails(100); h.runs(100, task.Succeeded); h.fails(300) }},
		"is shadow":                     {"", func(h hand) { h.update(h.simTask, false, func() { h.entry.Shadow = true }); h.goesOn(200) }},
		"expects nothing":               {"", func(h hand) { h.update(h.simTask, false, func() { h.entry.Alerts = nil }); h.fails(200) }},
		"a person pauses it":            {"", func(h hand) { pausedBy(h, "ann"); h.goesOn(200) }},
		"failures pause it":             {"G58", func(h hand) { pausedBy(h, task.PausedByFailures); h.goesOn(200) }},
		"is frozen":                     {"", func(h hand) { h.freeze(""); h.goesOn(200) }},
		"is edited":                     {"", func(h hand) { h.fails(100); h.update(h.simTask, true, func() { h.entry.Timeout++ }); h.fails(230) }},
		"gets another owner":            {"", func(h hand) { h.fails(100); h.assign(0, "a"); h.open(0); h.fails(300) }},
		"gets another owner at first":   {"G58", func(h hand) { h.fails(30); h.assign(0, "a"); h.open(0); h.fails(300) }},
		"is counted": {"", func(h hand) {
			h.fails(100)
			h.txn(op{h.keys.AlertsMore(0, h.ref.Namespace, "ops/pager"), task.Alert{More: map[task.AlertKind]int{kind: 1}}})
			h.fails(300)
		}},

		"closes": {"", func(h hand) {
			h.fails(100)
			a := h.opensAlert(kind)
			h.runs(101, task.Succeeded)
			a.Closed = &task.AlertClose{At: h.time(), Why: task.AlertSucceeded}
			h.txn(op{h.keys.Alert(h.ref, kind), a})
			succeeds(h, 120, 300)
		}},
		"does not close": {"G58", func(h hand) {
			h.fails(100)
			h.opensAlert(kind)
			succeeds(h, 101, 300)
		}},
		"does not close in a pause": {"G58", func(h hand) {
			h.fails(100)
			h.opensAlert(kind)
			pausedBy(h, "ann")
			h.goesOn(200)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t, func(e *task.Entry) {
				e.Alerts, e.Retry.Attempts = &task.Alerts{Failures: new(0), SuccessWithin: task.Duration(time.Minute)}, 1
			})
			c.happens(h)
			only(t, h.alertViolations(600), c.promise)

			// Nothing is judged after the calm.
			only(t, h.alertViolations(50), "")
		})
	}
}

// The task has a tick every second and a deadline every 20 seconds.
//
// Verifies: G58
func TestCheck_SuccessByAlertsInTime(t *testing.T) {
	const kind = task.AlertSuccessBy

	for name, c := range map[string]struct {
		promise string
		happens func(h hand)
	}{
		"opens":                  {"", func(h hand) { h.fails(60); h.opensAlert(kind); h.fails(300) }},
		"does not open":          {"G58", func(h hand) { h.fails(200) }},
		"may open later":         {"", func(h hand) { h.fails(110) }},
		"is not known to be due": {"", func(h hand) { h.goesOn(300) }},
		"its ticks are frozen": {"", func(h hand) {
			for at := 19.0; at < 200; at += 20 {
				h.goesOn(at)
				h.sealed(h.not(at, task.Skipped, task.ReasonFrozen))
			}
		}},
		"is paused": {"", func(h hand) {
			h.fails(60)
			h.txn(h.knows(func(e *task.Entry, own *task.Own) {
				e.Paused, own.Pauses = true, []task.Pause{{Since: h.time(), By: task.NewActor("ann")}}
			}))
			h.goesOn(300)
		}},
		"a run succeeds": {"", func(h hand) { h.fails(90); h.runs(99, task.Succeeded); h.fails(200) }},
		"does not close": {"G58", func(h hand) {
			h.fails(60)
			h.opensAlert(kind)
			for at := 79.0; at < 250; at += 20 {
				h.goesOn(at)
				h.runs(at, task.Succeeded)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t, func(e *task.Entry) {
				e.Alerts, e.Retry.Attempts = &task.Alerts{Failures: new(0), SuccessBy: "*/20 * * * * *"}, 1
			})
			c.happens(h)
			only(t, h.alertViolations(600), c.promise)
			only(t, h.alertViolations(50), "")
		})
	}
}

// alertViolations judges a history that was calm for some seconds. The histories decide few ticks, and change the entry outside of
// the API.
func (h hand) alertViolations(seconds float64) []Violation {
	calm := []Period{{From: time.UnixMilli(simStart), To: time.UnixMilli(h.at(seconds))}}
	return slices.DeleteFunc(h.check(Options{Calm: calm}).Violations, func(v Violation) bool {
		return v.Promise != "G57" && v.Promise != "G58"
	})
}
