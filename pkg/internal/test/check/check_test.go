package check

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// story is a valid history with many kinds of records: two nodes, two shards, runs that end, fail and are retried,
// are skipped, missed, lost and handed back, a pause, an update, and a node that dies.
func story(t testing.TB) (*sim, *simTask) {
	s := newSim(t, 2, "a", "b")
	one := s.create("one", 0, 1, nil)
	two := s.create("two", 1, 2, nil)

	for range 4 {
		s.pass(1)
		s.round(0)
		s.round(1)
		s.finish(one, task.Succeeded)

		if two.active != nil {
			s.running(two)
			s.finish(two, task.Failed) // waits, and is dispatched again in the next round
		}
	}

	s.pass(1)
	s.round(0)
	s.pass(1)
	s.round(0) // skipped: the run is still active
	s.handBack(one)
	s.round(0)
	s.finish(one, task.Succeeded)
	s.manual(one)
	s.pause(two)
	s.crash("a", "b")
	s.pass(3)
	s.round(0) // missed, and caught up
	s.lose(one)
	s.round(0)
	s.round(1)
	s.resume(two)
	s.join("a")
	s.pass(2.5)
	s.round(0)
	s.round(1)
	s.update(one, true, func() { one.schedule(2) })
	s.pass(2)
	s.finish(one, task.Succeeded)
	s.round(0)
	s.round(1)

	return s, one
}

func (s *sim) check(opts Options) Report { return Check(s.keys, s.events, opts) }

func TestCheck_PassesAGoodHistory(t *testing.T) {
	s, _ := story(t)
	r := s.check(Options{Until: time.UnixMilli(s.now), Remembered: true})
	if !r.OK() {
		t.Fatal(r)
	}

	if r.Summary.Ticks < 15 || r.Summary.Undecided != 0 || r.Summary.Skipped[task.ReasonOverlap] == 0 ||
		r.Summary.Missed[task.ReasonCameToLightLate] == 0 || r.Summary.Ended[task.Lost] != 1 || r.Summary.Manual != 1 {
		t.Errorf("the summary does not tell the story:\n%s", r.Summary)
	}
}

func TestCheck_PassesAHistoryThatBeginsInTheMiddle(t *testing.T) {
	s, _ := story(t)
	for at := int64(11); at < s.rev; at++ {
		var events []Event
		past := &sim{kv: map[string]Event{}, rev: at}
		for _, ev := range s.events {
			switch {
			case ev.Revision > at:
				events = append(events, ev)
			case ev.Deleted:
				delete(past.kv, ev.Key)
			default:
				past.kv[ev.Key] = ev
			}
		}

		if r := Check(s.keys, append(past.listed(), events...), Options{}); !r.OK() {
			t.Fatalf("from revision %d: %s", at, r)
		}
	}
}

// find returns the index of the n-th event that fits, counted from 0.
func (s *sim) find(t testing.TB, n int, fits func(Event) bool) int {
	t.Helper()

	for i, ev := range s.events {
		if fits(ev) {
			if n == 0 {
				return i
			}
			n--
		}
	}

	t.Fatal("the story has no such event")

	return -1
}

func put(part string) func(Event) bool {
	return func(ev Event) bool { return !ev.Deleted && strings.Contains(ev.Key, part) }
}

func created(part string) func(Event) bool {
	return func(ev Event) bool { return put(part)(ev) && ev.CreateRevision == ev.Revision }
}

// alter changes the n-th event that fits.
func alter[T any](t testing.TB, s *sim, n int, fits func(Event) bool, change func(*T)) {
	t.Helper()
	i := s.find(t, n, fits)
	var v T
	if err := json.Unmarshal(s.events[i].Value, &v); err != nil {
		t.Fatal(err)
	}

	change(&v)
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}

	s.events[i].Value = b
}

func (s *sim) drop(i int) { s.events = slices.Delete(slices.Clone(s.events), i, i+1) }

func with(state string) func(Event) bool {
	return func(ev Event) bool {
		return put("/history/")(ev) && strings.Contains(string(ev.Value), `"state":"`+state+`"`)
	}
}

// Verifies: G1-G12
func TestCheck_CatchesEachBrokenPromise(t *testing.T) {
	for _, c := range []struct {
		name, promise string
		mutate        func(*testing.T, *sim, *simTask)
	}{
		{"another node decides", "G1", func(t *testing.T, s *sim, _ *simTask) {
			alter(t, s, 1, created("/runs/"), func(a *task.Assigned) { a.Owner = "b" })
		}},
		{"a run without a commit", "G1", func(t *testing.T, s *sim, one *simTask) {
			s.pass(1)
			s.txn(s.decide(one, s.due(one))...)
		}},
		{"a commit without an owner", "G1", func(t *testing.T, s *sim, _ *simTask) {
			s.txn(op{s.keys.Owner(0), nil})
			s.commit(0, s.marks[0])
		}},
		{"a new owner does not open", "G1", func(t *testing.T, s *sim, _ *simTask) {
			s.assign(0, "a")
			s.pass(2)
			s.round(0)
		}},
		{"an entry is rewritten outside of a commit", "G1", func(t *testing.T, s *sim, one *simTask) {
			one.entry.From = s.time()
			s.txn(op{s.keys.Entry(one.ref), one.entry})
		}},
		{"a commit after the node's key is gone", "G2", func(t *testing.T, s *sim, _ *simTask) {
			s.txn(op{s.keys.Node("b"), nil})
			s.pass(2)
			s.round(0)
		}},
		{"a run for an instance that is gone", "G2", func(t *testing.T, s *sim, _ *simTask) {
			alter(t, s, 2, created("/runs/"), func(a *task.Assigned) { a.Instance = "a-0" })
		}},
		{"an owner is written in a term that is over", "G2", func(t *testing.T, s *sim, _ *simTask) {
			s.txn(op{s.keys.Leader() + "1f", nil})
			s.assign(0, "a")
		}},
		{"a tick twice, after its end", "G3", func(t *testing.T, s *sim, one *simTask) {
			i := s.find(t, 0, with("succeeded"))
			k, _ := s.keys.ParseShard(s.events[i].Key)
			old, _ := record.DecodeEnded(k, s.events[i].Value)
			s.commit(0, s.marks[0], s.dispatch(one, old, "b"))
		}},
		{"a tick twice, under two ids", "G3", func(t *testing.T, s *sim, one *simTask) {
			s.pass(2)
			ops := s.decide(one, s.due(one))
			other := s.tickRun(one, one.active.ScheduledTime.UnixMilli(), task.TriggerSchedule, task.Skipped)
			other.ID += "-x"
			w := s.marks[0]
			w.Time = s.time()
			s.commit(0, w, append(ops, s.ended(one, other))...)
		}},
		{"a range over a tick that ran", "G3", func(t *testing.T, s *sim, one *simTask) {
			alter(t, s, 0, with("missed"), func(r *task.Run) {
				r.ScheduledTime = task.At(r.ScheduledTime.Add(-time.Second))
				r.Count++
			})
		}},
		{"a range that counts wrong", "G3", func(t *testing.T, s *sim, _ *simTask) {
			alter(t, s, 0, with("missed"), func(r *task.Run) { r.Count++ })
		}},
		{"a decision that its commit does not seal", "G3", func(t *testing.T, s *sim, one *simTask) {
			s.finish(one, task.Succeeded)
			s.pass(2)
			s.commit(0, s.marks[0], s.decide(one, s.due(one))...)
		}},
		{"a lost tick", "G4", func(t *testing.T, s *sim, _ *simTask) { s.drop(s.find(t, 0, with("skipped"))) }},
		{"lost ticks of a range", "G4", func(t *testing.T, s *sim, _ *simTask) { s.drop(s.find(t, 0, with("missed"))) }},
		{"a lost tick of a task that is deleted later", "G4", func(t *testing.T, s *sim, one *simTask) {
			s.finish(one, task.Succeeded)
			s.remove(one)
			s.drop(s.find(t, 0, with("skipped")))
		}},
		{"a run vanishes", "G4", func(t *testing.T, s *sim, one *simTask) {
			s.txn(op{s.keys.Run(one.active.node, one.ref, one.active.ID), nil})
		}},
		{"a watermark goes back", "G5", func(t *testing.T, s *sim, _ *simTask) {
			w := s.marks[0]
			w.Time = task.At(w.Time.Add(-time.Second))
			s.commit(0, w)
		}},
		{"a watermark goes back by name", "G5", func(t *testing.T, s *sim, _ *simTask) {
			w := s.marks[0]
			w.Last = "default/one"
			s.commit(0, w)
		}},
		{"seen goes back", "G5", func(t *testing.T, s *sim, _ *simTask) {
			w := s.marks[0]
			w.Seen--
			s.commit(0, w)
		}},
		{"an early run", "G6", func(t *testing.T, s *sim, _ *simTask) {
			alter(t, s, 1, created("/runs/"), func(a *task.Assigned) { a.CreatedAt = task.At(a.ScheduledTime.Add(-time.Millisecond)) })
		}},
		{"a run after a pause", "G7", func(t *testing.T, s *sim, one *simTask) {
			s.finish(one, task.Succeeded)
			s.pause(one)
			s.pass(2)
			one.entry.Paused = false // its owner has not seen the pause
			s.round(0)
		}},
		{"a run after the delete", "G7", func(t *testing.T, s *sim, one *simTask) {
			s.finish(one, task.Succeeded)
			s.remove(one)
			s.tasks = append(s.tasks, one)
			s.pass(2)
			s.round(0)
		}},
		{"a run of the old schedule", "G7", func(t *testing.T, s *sim, one *simTask) {
			s.finish(one, task.Succeeded)
			s.update(one, true, func() { one.schedule(5) })
			one.period = 1
			s.pass(1)
			s.round(0)
			s.pass(1)
			s.round(0)
		}},
		{"a run of an old generation", "G7", func(t *testing.T, s *sim, _ *simTask) {
			i := s.find(t, 0, func(ev Event) bool { return put("/runs/")(ev) && strings.Contains(string(ev.Value), `"generation":2`) })
			alter(t, s, 0, func(ev Event) bool { return ev.Revision == s.events[i].Revision && put("/runs/")(ev) }, func(a *task.Assigned) { a.Generation = 1 })
		}},
		{"two active runs", "G8", func(t *testing.T, s *sim, one *simTask) {
			one.active = nil
			s.pass(2)
			s.round(0)
		}},
		{"a run beside one that waits for its retry", "G8", func(t *testing.T, s *sim, one *simTask) {
			s.finish(one, task.Failed)
			one.queue = nil
			s.pass(2)
			s.round(0)
		}},
		{"one run in two inboxes", "G8", func(t *testing.T, s *sim, one *simTask) {
			s.commit(0, s.marks[0], s.dispatch(one, one.active.Run, "a"))
		}},
		{"a retry that is not wanted", "G9", func(t *testing.T, s *sim, one *simTask) {
			one.active.Retry.Attempts, one.active.Retry.On = 9, []task.State{task.Lost}
			s.finish(one, task.Lost)
		}},
		{"an end without an inbox record", "G10", func(t *testing.T, s *sim, _ *simTask) {
			alter(t, s, 0, with("succeeded"), func(r *task.Run) { r.Token++ })
		}},
		{"two runs of a task start at once", "G11", func(t *testing.T, s *sim, one *simTask) {
			s.update(one, true, func() { one.entry.Overlap = task.OverlapAllow })
			s.pass(4)
			w := s.marks[0]
			w.Time = s.time()

			var ops []op
			for _, tick := range s.due(one) {
				ops = append(ops, s.dispatch(one, s.tickRun(one, tick, task.TriggerSchedule, task.Dispatched), "b"))
			}

			s.commit(0, w, ops...)
		}},
		{"a token shrinks", "G11", func(t *testing.T, s *sim, _ *simTask) {
			has := func(ev Event) bool { return put("/history/")(ev) && strings.Contains(string(ev.Value), `"attempts":`) }
			alter(t, s, 0, has, func(r *task.Run) { r.Attempts[0].Token = r.Token + 1 })
		}},
		{"an outcome is overwritten", "G12", func(t *testing.T, s *sim, one *simTask) {
			ev := s.events[s.find(t, 0, with("lost"))]
			s.txn(op{ev.Key, json.RawMessage(strings.Replace(string(ev.Value), "lost", "succeeded", 1))})
		}},
		{"an outcome comes while its attempt is still there", "G12", func(t *testing.T, s *sim, one *simTask) {
			r := one.active.Run
			r.State, r.Token = task.Succeeded, one.active.create
			s.txn(s.ended(one, r))
		}},
		{"a tick that was due is not decided", "G16", func(t *testing.T, s *sim, _ *simTask) { s.pass(10) }},
		{"an illegal step", "state", func(t *testing.T, s *sim, one *simTask) {
			s.running(one)
			one.active.State = task.Dispatched
			s.txn(op{s.keys.Run("b", one.ref, one.active.ID), withoutID(one.active.Assigned)})
		}},
		{"a record that cannot be read", "form", func(t *testing.T, s *sim, _ *simTask) {
			s.events[s.find(t, 0, with("succeeded"))].Value = []byte("{")
		}},
		{"a history that goes back", "form", func(t *testing.T, s *sim, _ *simTask) { s.events = append(s.events, s.events[0]) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, one := story(t)
			c.mutate(t, s, one)

			r := s.check(Options{Until: time.UnixMilli(s.now)})
			if !slices.ContainsFunc(r.Violations, func(v Violation) bool { return v.Promise == c.promise }) {
				t.Errorf("not caught as %s:\n%s", c.promise, r)
			}
		})
	}
}
