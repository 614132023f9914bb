package check

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestSnapshot(t *testing.T) {
	for _, c := range []struct {
		name, promise string
		mutate        func(*testing.T, *sim, *simTask)
	}{
		{"good", "", func(*testing.T, *sim, *simTask) {}},
		{"trimmed history", "", func(t *testing.T, s *sim, one *simTask) {
			one.entry.History.Keep = 3
			s.txn(op{s.keys.Entry(one.ref), one.entry})

			var keys []string
			for key := range s.kv {
				if strings.HasPrefix(key, s.keys.HistoryOf(one.ref)) {
					keys = append(keys, key)
				}
			}

			slices.Sort(keys)

			for _, key := range keys[:len(keys)-3] {
				s.txn(op{key, nil})
			}
		}},
		{"a lost tick", "G4", func(t *testing.T, s *sim, one *simTask) { s.txn(op{s.keys.Ended(one.ref, s.ids(one)[2]), nil}) }},
		{"two outcomes of a tick", "G3", func(t *testing.T, s *sim, one *simTask) {
			r := s.tickRun(one, s.now-s.now%1000, task.TriggerSchedule, task.Skipped)
			r.ID += "x"
			s.txn(s.ended(one, r))
		}},
		{"a run that ended and is active", "G3", func(t *testing.T, s *sim, one *simTask) {
			r := one.active.Run
			r.State, r.Token = task.Succeeded, one.active.create
			s.txn(s.waiting(one, task.Waiting{Run: r}))
		}},
		{"a run in two inboxes", "G8", func(t *testing.T, s *sim, one *simTask) { s.txn(s.dispatch(one, one.active.Run, "b")) }},
		{"two active runs", "G8", func(t *testing.T, s *sim, one *simTask) {
			s.txn(s.dispatch(one, s.tickRun(one, s.now+1000, task.TriggerSchedule, ""), "a"))
		}},
		{"a history record that is not final", "state", func(t *testing.T, s *sim, one *simTask) {
			s.txn(s.ended(one, s.tickRun(one, s.now+1000, task.TriggerSchedule, task.Running)))
		}},
		{"a shard without a watermark", "G5", func(t *testing.T, s *sim, _ *simTask) { s.txn(op{s.keys.Watermark(1), nil}) }},
		{"a spec without an entry", "form", func(t *testing.T, s *sim, one *simTask) { s.txn(op{s.keys.Entry(one.ref), nil}) }},
		{"an entry without a spec", "form", func(t *testing.T, s *sim, one *simTask) { s.txn(op{s.keys.Spec(one.ref), nil}) }},
		{"a record that cannot be read", "form", func(t *testing.T, s *sim, one *simTask) {
			s.txn(op{s.keys.Ended(one.ref, s.ids(one)[0]), json.RawMessage(`[]`)})
		}},
		{"a watermark behind", "G16", func(t *testing.T, s *sim, _ *simTask) { s.pass(3) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, 2, "a", "b")
			one := s.create("one", 0, 1, nil)

			for range 5 {
				s.pass(1)
				s.round(0)
				s.round(1)
				s.finish(one, task.Succeeded)
			}

			s.pass(1)
			s.round(0)
			c.mutate(t, s, one)

			r := Snapshot(s.keys, s.listed(), Options{Until: time.UnixMilli(s.now)})
			if c.promise == "" && !r.OK() {
				t.Errorf("a good snapshot: %s", r)
			}

			if c.promise != "" && !slices.ContainsFunc(r.Violations, func(v Violation) bool { return v.Promise == c.promise }) {
				t.Errorf("not caught as %s: %s", c.promise, r)
			}
		})
	}
}

// ids returns the ids of a task's history records, in order.
func (s *sim) ids(t *simTask) []string {
	var ids []string
	for key := range s.kv {
		if id, ok := strings.CutPrefix(key, s.keys.HistoryOf(t.ref)); ok {
			ids = append(ids, id)
		}
	}

	slices.Sort(ids)

	return ids
}

func TestSnapshot_OfNothing(t *testing.T) {
	if r := Snapshot(newSim(t, 1, "a").keys, nil, Options{}); !r.OK() || len(r.Notes) != 1 {
		t.Errorf("nothing is no violation, and worth a note: %s", r)
	}
}
