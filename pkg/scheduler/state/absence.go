package state

import (
	"time"

	"github.com/carillonhq/carillon/pkg/store"
)

// AttemptReading is an attempt whose record must be read.
type AttemptReading struct {
	Task    *Task
	Attempt *Attempt
	Cancel  bool // to cancel it; otherwise because its node is absent
}

// AbsenceStep is what to do about an attempt now. At most one field is set.
type AbsenceStep struct {
	Read   bool   // read the attempt because its node is absent
	Cancel bool   // read the attempt to cancel it
	Prove  string // find out whether this instance is proved dead, and call ExamineAttempt again
	Again  time.Time
}

// ExamineAttempt returns what to do about an attempt of t: whether its owner must read it, because its node is absent or
// to cancel it.
//
// An attempt is lost when its node was absent and its record unchanged at two readings. The time between them must be
// at least the lost_after in the record, or clearedAfter if its instance is proved dead: no process of it is left
// (G17).
//
// present reports whether its node is present. cleared holds the instances for which it is known whether they are proved
// dead. If the attempt may have to be read later, AbsenceStep.Again is when to call ExamineAttempt again.
func ExamineAttempt(t *Task, a *Attempt, present bool, now time.Time, clearedAfter time.Duration, cleared map[string]bool) AbsenceStep {
	// The results of an earlier round do not count. The attempt is read again before the commit that ends it.
	if a.Watch != nil {
		a.Watch.Lost, a.Watch.Ask = false, false
	}

	// The node is present: the attempt is not lost. If the node was absent before, that period is over. The attempt
	// must be cancelled if its task is gone, a newer tick replaces it, or its run ends.
	if present {
		if a.Watch != nil {
			a.Watch.Since = time.Time{}
		}
		return AbsenceStep{Cancel: (t.Orphan(a.Run) || t.ReplacesAttempt(a, now.UnixMilli()) || t.GoesWithParent(a.Run)) && !a.Watched().Asked}
	}

	// The node is absent, and the attempt has not been read since: read it for the first time.
	if a.Watched().Since.IsZero() {
		return AbsenceStep{Read: true}
	}

	// A second reading is due after lost_after, or after clearedAfter if the instance is proved dead.
	waited := now.Sub(a.Watch.Since)
	if waited >= a.Watch.LostAfter() {
		return AbsenceStep{Read: true}
	}

	if waited >= clearedAfter && a.Watch.Unreadable == nil {
		instance := a.Watch.Held.Instance
		dead, known := cleared[instance]
		switch {
		case !known && instance != "":
			return AbsenceStep{Prove: instance}
		case dead:
			return AbsenceStep{Read: true}
		}
	}

	// Whether the instance is proved dead can change at any time, so check at intervals of clearedAfter.
	again := clearedAfter
	if waited < again {
		again -= waited
	}

	return AbsenceStep{Again: now.Add(again)}
}

// First reports whether this is the first of the two readings that show that the attempt is lost.
func (r AttemptReading) First() bool { return !r.Cancel && r.Attempt.Watched().Since.IsZero() }

// Apply stores what was read of the attempt. read is the time immediately after the reading. again reports whether the
// attempt must be examined once more after clearedAfter.
func (r AttemptReading) Apply(v store.Sighting, read time.Time) (again bool) {
	watch := r.Attempt.Watched()
	switch {
	case r.Cancel:
		// Skip a cancel that was requested before, by the API or by a former owner.
		if v.Err == nil {
			watch.Held, watch.Ask, watch.Asked = v.Held, !v.CancelRequested, v.CancelRequested
		}
		return false
	case r.First():
		// If the node is present, its record has not reached this node's mirror yet. Otherwise the time of absence
		// starts after the reading, so that it is never overestimated.
		if !v.NodePresent {
			watch.Held, watch.Unreadable, watch.Since = v.Held, v.Err, read
		}
		return true
	case v.NodePresent || v.Mod != watch.Held.Mod:
		// Second reading: the node has been back, or its new session has adopted the attempt. Start over.
		r.Attempt.Watch = nil
		return true
	}

	// Absent at both readings, and the record is unchanged: the attempt is lost. The commit compares both again.
	watch.Lost = true

	return false
}
