package state

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const clearedAfter = 2 * time.Second

var absenceStart = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// at returns the time that many seconds after start.
func absenceAt(seconds int) time.Time { return absenceStart.Add(time.Duration(seconds) * time.Second) }

// active returns a task with an active attempt, whose record has lost_after 30 s.
func absentAttempt() (*Task, *Attempt, store.Sighting) {
	uid := "abcd"
	a := &Attempt{Run: task.RunID(absenceStart, uid), Node: "n1", Create: 5}
	t := &Task{Text: "default/a" + uid, NameLen: uint16(len("default/a")), UIDLen: uint8(len(uid)), Present: true, Activity: &Activity{Active: []*Attempt{a}}}

	held := record.Held{Mod: 7}
	held.Instance, held.LostAfter = "i1", task.Duration(30*time.Second)

	return t, a, store.Sighting{Held: held}
}

func TestExamine_LostAfterTwoReadings(t *testing.T) {
	st, a, v := absentAttempt()
	examine := func(seconds int, present bool, cleared map[string]bool) AbsenceStep {
		return ExamineAttempt(st, a, present, absenceAt(seconds), clearedAfter, cleared)
	}

	if got := examine(0, true, nil); got != (AbsenceStep{}) {
		t.Errorf("a present node: %+v", got)
	}

	if got := examine(1, false, nil); got != (AbsenceStep{Read: true}) {
		t.Fatalf("the first reading: %+v", got)
	}

	r := AttemptReading{Task: st, Attempt: a}
	if again := r.Apply(v, absenceAt(1)); !again || a.Watch.Lost {
		t.Fatalf("after the first reading: %+v", a.Watch)
	}

	for _, c := range []struct {
		name    string
		seconds int
		cleared map[string]bool
		want    AbsenceStep
	}{
		{"too early for a proof", 2, nil, AbsenceStep{Again: absenceAt(3)}},
		{"a proof is unknown", 4, nil, AbsenceStep{Prove: "i1"}},
		{"no proof", 4, map[string]bool{"i1": false}, AbsenceStep{Again: absenceAt(6)}},
		{"a proof", 4, map[string]bool{"i1": true}, AbsenceStep{Read: true}},
		{"after lost_after", 31, nil, AbsenceStep{Read: true}},
	} {
		if got := examine(c.seconds, false, c.cleared); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}

	if again := r.Apply(v, absenceAt(31)); again || !a.Watch.Lost {
		t.Errorf("after the second reading: %+v", a.Watch)
	}
}

func TestApply_StartsOver(t *testing.T) {
	for name, change := range map[string]func(*store.Sighting){
		"the node is back":   func(v *store.Sighting) { v.NodePresent = true },
		"the record changed": func(v *store.Sighting) { v.Mod++ },
	} {
		t.Run(name, func(t *testing.T) {
			st, a, v := absentAttempt()
			r := AttemptReading{Task: st, Attempt: a}
			r.Apply(v, absenceAt(0))
			change(&v)

			if again := r.Apply(v, absenceAt(31)); !again || a.Watch != nil {
				t.Errorf("%t, %+v", again, a.Watch)
			}
		})
	}
}

func TestExamine_APresentNodeEndsTheAbsence(t *testing.T) {
	st, a, v := absentAttempt()
	AttemptReading{Task: st, Attempt: a}.Apply(v, absenceAt(0))
	ExamineAttempt(st, a, true, absenceAt(20), clearedAfter, nil)

	if got := ExamineAttempt(st, a, false, absenceAt(40), clearedAfter, nil); got != (AbsenceStep{Read: true}) || a.Watch.Lost {
		t.Errorf("%+v, %+v", got, a.Watch)
	}

	if r := (AttemptReading{Task: st, Attempt: a}); !r.First() {
		t.Error("it counts as the second reading")
	}
}

func TestExamine_CancelsOrphansOnce(t *testing.T) {
	st, a, v := absentAttempt()
	st.Present = false

	if got := ExamineAttempt(st, a, true, absenceAt(0), clearedAfter, nil); got != (AbsenceStep{Cancel: true}) {
		t.Fatalf("got %+v", got)
	}

	AttemptReading{Task: st, Attempt: a, Cancel: true}.Apply(v, absenceAt(0))
	if !a.Watch.Ask || a.Watch.Asked {
		t.Errorf("after the reading: %+v", a.Watch)
	}

	v.CancelRequested = true
	AttemptReading{Task: st, Attempt: a, Cancel: true}.Apply(v, absenceAt(0))
	if a.Watch.Ask || !a.Watch.Asked {
		t.Errorf("after somebody else has requested it: %+v", a.Watch)
	}

	if got := ExamineAttempt(st, a, true, absenceAt(0), clearedAfter, nil); got != (AbsenceStep{}) {
		t.Errorf("once it is requested: %+v", got)
	}
}
