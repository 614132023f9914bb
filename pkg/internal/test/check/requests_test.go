package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// requesting makes a task send requests. Attempts that are not sent are free for 10 s.
func requesting(e *task.Entry) {
	e.Action = task.Action{HTTP: &task.HTTP{URL: "http://svc/x", Method: "POST", UnsentFor: new(task.Duration(10 * time.Second))}}
	e.Retry = task.Retry{Attempts: 1, MaxBackoff: task.Duration(time.Minute)}
}

// unsent ends the active attempt: nothing of its request was sent. change makes the record wrong.
func (s *sim) unsent(t *simTask, change func(w *task.Waiting)) {
	a := t.active
	t.active = nil
	w := task.Waiting{Run: a.Run}
	w.State, w.Reason, w.Attempt, w.NotBeforeBy, w.NotBefore = task.Queued, task.ReasonTarget, a.Attempt+1, task.NotBeforeByTarget, s.time()

	u := task.Unsent{First: s.time()}
	if a.Unsent != nil {
		u = *a.Unsent
	}
	u.Count, u.Last = u.Count+1, s.time()
	w.Unsent = &u

	if change != nil {
		change(&w)
	}

	t.queue = append(t.queue, w)
	s.txn(op{s.keys.Run(a.node, t.ref, a.ID), nil}, s.waiting(t, w))
}

// end ends the active attempt and its run, with a reason.
func (s *sim) end(t *simTask, state task.State, reason string) {
	a := t.active
	t.active = nil
	r := a.Run
	r.State, r.Reason, r.Token, r.Node, r.EndedAt = state, reason, a.create, a.node, s.time()
	s.txn(append(s.deadOf(t, r), op{s.keys.Run(a.node, t.ref, a.ID), nil}, s.ended(t, r))...)
}

// Verifies: G9-G11
func TestCheck_Requests(t *testing.T) {
	// again dispatches the waiting run after some time.
	again := func(s *sim, seconds float64) {
		s.pass(seconds)
		s.round(0)
	}

	for _, c := range []struct {
		name, promise string
		change        func(e *task.Entry)
		happen        func(s *sim, one *simTask)
	}{
		{"free attempts, then a success", "", nil, func(s *sim, one *simTask) {
			for range 4 {
				s.unsent(one, nil)
				again(s, 2)
			}
			s.end(one, task.Succeeded, "")
		}},
		{"not sent after unsent_for", "", nil, func(s *sim, one *simTask) {
			s.unsent(one, nil)
			again(s, 11)
			s.end(one, task.Failed, task.ReasonUnsent)
		}},
		{"not sent, and nothing is free", "", func(e *task.Entry) { e.Action.HTTP.UnsentFor = new(task.Duration(0)) }, func(s *sim, one *simTask) {
			s.end(one, task.Failed, task.ReasonUnsent)
		}},
		{"free although nothing is", "G9", func(e *task.Entry) { e.Action.HTTP.UnsentFor = new(task.Duration(0)) }, func(s *sim, one *simTask) {
			s.unsent(one, nil)
		}},
		{"free after unsent_for", "G9", nil, func(s *sim, one *simTask) {
			s.unsent(one, nil)
			again(s, 5)
			s.unsent(one, nil)
			again(s, 5.1)
			s.unsent(one, nil)
		}},
		{"the first one is forgotten", "G9", nil, func(s *sim, one *simTask) {
			s.unsent(one, nil)
			again(s, 10.1)
			s.unsent(one, func(w *task.Waiting) { w.Unsent.First = w.Unsent.Last })
		}},
		{"counted although free", "G9", nil, func(s *sim, one *simTask) {
			s.unsent(one, nil)
			again(s, 2)
			s.end(one, task.Failed, task.ReasonUnsent)
		}},
		{"a process that was not sent", "G9", func(e *task.Entry) { e.Action = task.Action{Noop: &task.Noop{}} }, func(s *sim, one *simTask) {
			s.unsent(one, nil)
		}},
		{"counted twice", "state", nil, func(s *sim, one *simTask) {
			s.unsent(one, func(w *task.Waiting) { w.Unsent.Count = 2 })
		}},
		{"counted and listed", "state", nil, func(s *sim, one *simTask) {
			s.unsent(one, func(w *task.Waiting) { w.Attempts = []task.Attempt{{Attempt: 1, Reason: task.ReasonUnsent}} })
		}},
		{"the count is lost", "state", nil, func(s *sim, one *simTask) {
			s.unsent(one, nil)
			one.queue[0].Unsent = nil
			again(s, 2)
		}},
		{"waits for another reason", "state", nil, func(s *sim, one *simTask) {
			s.unsent(one, func(w *task.Waiting) { w.Reason = task.ReasonRetry })
		}},
		{"cancelled, and tried again", "G9", nil, func(s *sim, one *simTask) {
			one.active.CancelRequested = true
			s.put(one)
			s.unsent(one, nil)
		}},
		{"as late as the target asked", "", nil, func(s *sim, one *simTask) {
			s.unsent(one, func(w *task.Waiting) { w.NotBefore = task.At(w.Unsent.Last.Add(40 * time.Second)) })
			again(s, 40)
		}},
		{"earlier than the target asked", "G9", nil, func(s *sim, one *simTask) {
			s.unsent(one, func(w *task.Waiting) { w.NotBefore = task.At(w.Unsent.Last.Add(40 * time.Second)) })
			again(s, 20)
		}},
		{"the wait is bounded by max_backoff", "", nil, func(s *sim, one *simTask) {
			s.unsent(one, func(w *task.Waiting) { w.NotBefore = task.At(w.Unsent.Last.Add(time.Hour)) })
			again(s, 60)
		}},
		{"a POST that was not answered is lost", "", nil, func(s *sim, one *simTask) {
			s.end(one, task.Lost, task.ReasonUnanswered)
		}},
		{"a POST that was not answered failed", "G9", nil, func(s *sim, one *simTask) {
			s.end(one, task.Failed, task.ReasonUnanswered)
		}},
		{"a GET that was not answered failed", "", func(e *task.Entry) { e.Action.HTTP.Method = "GET" }, func(s *sim, one *simTask) {
			s.end(one, task.TimedOut, task.ReasonUnanswered)
		}},
		{"a tick starts while a run waits for its target", "G24", func(e *task.Entry) { e.Overlap = task.OverlapAllow }, func(s *sim, one *simTask) {
			s.unsent(one, nil)
			w := s.marks[0]
			w.Time, w.Seen = s.time(), s.rev
			s.commit(0, w)

			s.pass(1)
			w.Time = s.time()
			s.commit(0, w, s.dispatch(one, s.tickRun(one, s.now, task.TriggerSchedule, ""), "a"))
		}},
		{"the owner has not seen yet that the run waits", "", func(e *task.Entry) { e.Overlap = task.OverlapAllow }, func(s *sim, one *simTask) {
			s.unsent(one, nil)
			w := s.marks[0]
			s.pass(1)
			w.Time = s.time()
			s.commit(0, w, s.dispatch(one, s.tickRun(one, s.now, task.TriggerSchedule, ""), "a"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, 1, "a")
			one := s.create("one", 0, 5, func(e *task.Entry) {
				requesting(e)
				if c.change != nil {
					c.change(e)
				}
			})
			s.now = (s.now/5000 + 1) * 5000
			s.round(0)
			s.update(one, false, func() { one.period, one.entry.Schedule = 1, task.Schedules{"* * * * * *"} })
			if one.active == nil {
				t.Fatal("nothing was dispatched")
			}

			c.happen(s, one)
			requireViolation(t, s.check(Options{}).Violations, c.promise)
		})
	}
}

// requireViolation fails if there is no violation of a promise, or if there is one although promise is "".
func requireViolation(t *testing.T, got []Violation, promise string) {
	t.Helper()
	if promise == "" && len(got) > 0 {
		t.Errorf("a valid history: %v", got)
	}
	if promise != "" && !slices.ContainsFunc(got, func(v Violation) bool { return v.Promise == promise }) {
		t.Errorf("not caught as %s: %v", promise, got)
	}
}

// Verifies: G9-G11
func TestCheckProbeLog_Requests(t *testing.T) {
	for _, c := range []struct {
		name, promise string
		log           []string
	}{
		{"nothing arrived", "", nil},
		{"the target asked to wait", "", []string{"START", "ASK", "END"}},
		{"it arrived", "G9", []string{"START", "END"}},
		{"it arrived twice", "G9", []string{"START", "ASK", "END", "START", "ASK"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, 1, "a")
			one := s.create("one", 0, 1, requesting)
			s.pass(1)
			s.round(0)

			var log strings.Builder
			for _, word := range c.log {
				fmt.Fprintf(&log, "%s %s %d %d now svc\n", word, one.active.ID, one.active.Attempt, one.active.create)
			}

			s.unsent(one, nil)
			requireViolation(t, CheckProbeLog(strings.NewReader(log.String()), s.keys, s.events), c.promise)
		})
	}
}
