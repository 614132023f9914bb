package absence

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const clearedAfter = 2 * time.Second

var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// at returns the time that many seconds after start.
func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// active returns a task with an active attempt, whose record has lost_after 30 s.
func active() (*taskstate.Task, *taskstate.Attempt, store.Sighting) {
	uid := "abcd"
	a := &taskstate.Attempt{Run: task.RunID(start, uid), Node: "n1", Create: 5}
	t := &taskstate.Task{Text: "default/a" + uid, NameLen: uint16(len("default/a")), UIDLen: uint8(len(uid)), Present: true, Activity: &taskstate.Activity{Active: []*taskstate.Attempt{a}}}

	held := record.Held{Mod: 7}
	held.Instance, held.LostAfter = "i1", task.Duration(30*time.Second)

	return t, a, store.Sighting{Held: held}
}

func TestExamine_LostAfterTwoReadings(t *testing.T) {
	st, a, v := active()
	examine := func(seconds int, present bool, cleared map[string]bool) Step {
		return Examine(st, a, present, at(seconds), clearedAfter, cleared)
	}

	if got := examine(0, true, nil); got != (Step{}) {
		t.Errorf("a present node: %+v", got)
	}

	if got := examine(1, false, nil); got != (Step{Read: true}) {
		t.Fatalf("the first reading: %+v", got)
	}

	r := Reading{Task: st, Attempt: a}
	if again := r.Apply(v, at(1)); !again || a.Watch.Lost {
		t.Fatalf("after the first reading: %+v", a.Watch)
	}

	for _, c := range []struct {
		name    string
		seconds int
		cleared map[string]bool
		want    Step
	}{
		{"too early for a proof", 2, nil, Step{Again: at(3)}},
		{"a proof is unknown", 4, nil, Step{Prove: "i1"}},
		{"no proof", 4, map[string]bool{"i1": false}, Step{Again: at(6)}},
		{"a proof", 4, map[string]bool{"i1": true}, Step{Read: true}},
		{"after lost_after", 31, nil, Step{Read: true}},
	} {
		if got := examine(c.seconds, false, c.cleared); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}

	if again := r.Apply(v, at(31)); again || !a.Watch.Lost {
		t.Errorf("after the second reading: %+v", a.Watch)
	}
}

func TestApply_StartsOver(t *testing.T) {
	for name, change := range map[string]func(*store.Sighting){
		"the node is back":   func(v *store.Sighting) { v.NodePresent = true },
		"the record changed": func(v *store.Sighting) { v.Mod++ },
	} {
		t.Run(name, func(t *testing.T) {
			st, a, v := active()
			r := Reading{Task: st, Attempt: a}
			r.Apply(v, at(0))
			change(&v)

			if again := r.Apply(v, at(31)); !again || a.Watch != nil {
				t.Errorf("%t, %+v", again, a.Watch)
			}
		})
	}
}

func TestExamine_APresentNodeEndsTheAbsence(t *testing.T) {
	st, a, v := active()
	Reading{Task: st, Attempt: a}.Apply(v, at(0))
	Examine(st, a, true, at(20), clearedAfter, nil)

	if got := Examine(st, a, false, at(40), clearedAfter, nil); got != (Step{Read: true}) || a.Watch.Lost {
		t.Errorf("%+v, %+v", got, a.Watch)
	}

	if r := (Reading{Task: st, Attempt: a}); !r.First() {
		t.Error("it counts as the second reading")
	}
}

func TestExamine_CancelsOrphansOnce(t *testing.T) {
	st, a, v := active()
	st.Present = false

	if got := Examine(st, a, true, at(0), clearedAfter, nil); got != (Step{Cancel: true}) {
		t.Fatalf("got %+v", got)
	}

	Reading{Task: st, Attempt: a, Cancel: true}.Apply(v, at(0))
	if !a.Watch.Ask || a.Watch.Asked {
		t.Errorf("after the reading: %+v", a.Watch)
	}

	v.CancelRequested = true
	Reading{Task: st, Attempt: a, Cancel: true}.Apply(v, at(0))
	if a.Watch.Ask || !a.Watch.Asked {
		t.Errorf("after somebody else has requested it: %+v", a.Watch)
	}

	if got := Examine(st, a, true, at(0), clearedAfter, nil); got != (Step{}) {
		t.Errorf("once it is requested: %+v", got)
	}
}
