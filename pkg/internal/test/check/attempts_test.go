package check

import (
	"fmt"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// put writes the active attempt's inbox record.
func (s *sim) put(t *simTask) {
	s.txn(op{s.keys.Run(t.active.node, t.ref, t.active.ID), withoutID(t.active.Assigned)})
}

// ask requests a pause, or the end of one.
func (s *sim) ask(t *simTask, pause bool) {
	a := t.active
	a.PauseRequested, a.PausedBy, a.ResumedBy = pause, task.NewActor("ann"), nil
	if !pause {
		a.ResumedBy = task.NewActor("bob")
	}

	s.put(t)
}

// obey makes the attempt's node do what was requested. Each call adds some ms of paused time.
func (s *sim) obey(t *simTask) {
	a := t.active
	if a.StartedAt.IsZero() {
		a.StartedAt = s.time()
	}

	switch {
	case a.PauseRequested && a.State != task.Paused:
		a.State, a.PausedAt = task.Paused, s.time()
	case !a.PauseRequested && a.State == task.Paused:
		a.State, a.PausedAt, a.PausedBy, a.PausedMS = task.Running, task.Time{}, nil, a.PausedMS+5
	}

	s.put(t)
}

func TestCheck_Pauses(t *testing.T) {
	paused := func(s *sim, one *simTask) {
		s.pass(1)
		s.round(0)
		s.ask(one, true)
		s.obey(one)
	}

	for _, c := range []struct {
		name, promise string
		happen        func(s *sim, one *simTask)
	}{
		{"paused, and resumed, twice", "", func(s *sim, one *simTask) {
			paused(s, one)

			for range 2 {
				s.ask(one, false)
				s.obey(one)
				s.ask(one, true)
				s.obey(one)
			}

			s.finish(one, task.Succeeded)
		}},
		{"resumed before it stood still", "", func(s *sim, one *simTask) {
			s.pass(1)
			s.round(0)
			s.running(one)
			s.ask(one, true)
			s.ask(one, false)
			s.finish(one, task.Succeeded)
		}},
		{"it cannot be paused", "", func(s *sim, one *simTask) {
			s.pass(1)
			s.round(0)
			s.running(one)
			s.ask(one, true)
			one.active.PauseRequested, one.active.PausedBy, one.active.Message = false, nil, "it could not be"
			s.put(one)
			s.finish(one, task.Succeeded)
		}},
		{"nobody has asked", "state", func(s *sim, one *simTask) {
			s.pass(1)
			s.round(0)
			one.active.State, one.active.PausedAt = task.Paused, s.time()
			s.put(one)
		}},
		{"the request is overwritten", "state", func(s *sim, one *simTask) {
			s.pass(1)
			s.round(0)
			s.ask(one, true)
			one.active.PauseRequested, one.active.PausedBy, one.active.State = false, nil, task.Running
			s.put(one)
		}},
		{"nobody knows since when", "state", func(s *sim, one *simTask) {
			paused(s, one)
			one.active.PausedAt = task.Time{}
			s.put(one)
		}},
		{"it runs, and says since when it is paused", "state", func(s *sim, one *simTask) {
			paused(s, one)
			s.ask(one, false)
			one.active.State = task.Running
			s.put(one)
		}},
		{"the sum shrinks", "state", func(s *sim, one *simTask) {
			paused(s, one)
			s.ask(one, false)
			s.obey(one)
			one.active.PausedMS = 0
			s.put(one)
		}},
		{"it ends, and is paused", "state", func(s *sim, one *simTask) {
			paused(s, one)
			s.careless = true
			s.finish(one, task.Failed)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, one, _ := calm(t)
			c.happen(s, one)
			r := s.check(Options{})
			only(t, r.Violations, c.promise)

			if c.promise != "" && len(r.Violations) != 1 {
				t.Error(fmt.Sprint(r.Violations))
			}
		})
	}
}

// Verifies: G29
func TestCheck_Accept(t *testing.T) {
	all := task.Accept{Args: 1, Env: []string{"DAY"}, Target: true}
	for name, c := range map[string]struct {
		accept  task.Accept
		give    func(*task.Run)
		promise string
	}{
		"nothing is given":      {task.Accept{}, func(*task.Run) {}, ""},
		"all is accepted":       {all, func(r *task.Run) { r.Args, r.TargetNode = []string{"x"}, "a" }, ""},
		"arguments are not":     {task.Accept{Target: true}, func(r *task.Run) { r.Args = []string{"x"} }, "G29"},
		"the node is not":       {task.Accept{Args: 1}, func(r *task.Run) { r.TargetNode = "a" }, "G29"},
		"it is at another node": {all, func(r *task.Run) { r.TargetNode = "b" }, "G29"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 1, "a")
			one := s.create("one", 0, 3600, func(e *task.Entry) { e.Accept = c.accept })
			run := s.tickRun(one, s.now, task.TriggerManual, task.Queued)
			run.ID, run.Owner, run.Reason = task.ManualRunID(run.ScheduledTime.Time, one.entry.UID), "", task.ReasonManual
			c.give(&run)
			w := task.Waiting{Run: run}
			one.queue = append(one.queue, w)
			s.txn(s.waiting(one, w))
			s.pass(1)
			s.round(0)

			only(t, s.check(Options{}).Violations, c.promise)
		})
	}
}
