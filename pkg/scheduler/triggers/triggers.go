// Package triggers decides what happens to the triggers of a task that runs after others. A trigger is an ended run of one of its
// sources. The overlap policy applies to the runs that triggers start as it does to ticks, except that a trigger waits where a
// tick would have to be put into the queue.
//
// The package is pure: the same arguments give the same result. It knows neither nodes nor records. The scheduler describes the
// task, calls Decide, and carries out the result.
package triggers

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Dependent is a task with triggers, as far as their outcomes depend on it.
type Dependent struct {
	Exists bool   // the task has an entry; otherwise only Now is used
	Bad    bool   // the entry cannot be read, so nothing else of it is known
	UID    string // of the task
	// Generation returns the generation of the link to a source; 0: the task does not run after it.
	Generation func(source string) int64

	Now      time.Time
	Deadline time.Duration // the start deadline; 0: none
	Shadow   bool
	Paused   bool
	Frozen   bool

	Overlap    string // the overlap policy
	Limit      int    // how many triggers may wait (overlap queue)
	DropOldest bool   // beyond Limit, the oldest is dropped, not the newest

	// Idle means that no run of the task is active or waits. MayStart means that one more run may be active.
	Idle, MayStart bool

	// CatchingUp means that late ticks of the task wait or run, and each of them must run (missed all).
	CatchingUp bool
}

// Trigger is an ended run of a source, as far as its outcome depends on it.
type Trigger struct {
	Unreadable bool
	UID        string // of the dependent, as of when the trigger was sent
	Source     string
	Generation int64     // of the link, as of when the trigger was sent
	At         time.Time // when it was sent
	// IsLost means that the trigger, or the end of the run for which it was sent, was in the backup of a restore. So it may have got its
	// outcome in the lost history.
	IsLost bool
}

// Outcome is what happens to a trigger.
type Outcome int

const (
	Wait   Outcome = iota // nothing yet
	Delete                // delete it without a record: its task does not exist any more
	Skip                  // record that it starts nothing
	Miss                  // record that it could not start in time
	Start                 // start a run now; if no node accepts the run, it waits in the queue
	Queue                 // put a run into the queue, to replace the active ones

	Outcomes // how many there are
)

// Fate is an outcome and its reason: one of the task.Reason constants for Skip, Miss and Queue.
type Fate struct {
	Outcome Outcome
	Reason  string
}

// Decide returns the fate of each trigger of a task. waiting must be in the order in which the triggers were created. At most one
// of them starts, because a commit starts at most one run of a task (G11).
func Decide(d *Dependent, waiting []Trigger) []Fate {
	fates := make([]Fate, len(waiting))

	// live are the triggers for which the overlap policy decides.
	var live []*Fate
	for i := range waiting {
		if fates[i] = d.decideAlone(&waiting[i]); fates[i].Outcome == Wait {
			live = append(live, &fates[i])
		}
	}

	d.decideTogether(live)

	return fates
}

// decideAlone returns the fate of a trigger that does not depend on others. It is Wait if the overlap policy decides.
func (d *Dependent) decideAlone(t *Trigger) Fate {
	switch {
	case !d.Exists:
		return Fate{Outcome: Delete}
	case d.Bad && t.UID != "":
		return Fate{}
	case d.Bad:
		return Fate{Outcome: Delete} // neither says to which task a record of it would belong
	case t.Unreadable:
		return Fate{Skip, task.ReasonBadRecord}
	case t.UID != d.UID:
		return Fate{Outcome: Delete}
	case t.IsLost:
		return Fate{Miss, task.ReasonRestored}
	case d.Generation(t.Source) != t.Generation:
		return Fate{Skip, task.ReasonUnlinked}
	case d.Deadline > 0 && d.Now.Sub(t.At) > d.Deadline:
		return Fate{Miss, task.ReasonDeadline}
	case d.Shadow:
		return Fate{Skip, task.ReasonShadow}
	case d.Paused:
		return Fate{Skip, task.ReasonPaused}
	}

	return Fate{}
}

// decideTogether sets the fates of the triggers to which the overlap policy applies, the oldest first.
func (d *Dependent) decideTogether(live []*Fate) {
	if len(live) == 0 {
		return
	}

	// They wait until somebody repairs the entry, but not without a limit.
	if d.Bad {
		limitOldest(live, task.MaxTriggerQueue, task.ReasonDropped)
		return
	}

	// An end of a source does not come again, as a tick does. So triggers wait until the freeze is over.
	if d.Frozen {
		limitOldest(live, task.MaxTriggerQueue, task.ReasonFrozen)
		return
	}

	switch d.Overlap {
	case task.OverlapSkip:
		if d.Idle {
			live[0].Outcome, live = Start, live[1:]
		}
		skipAll(live, task.ReasonOverlap)
	case task.OverlapReplace:
		newest := len(live) - 1
		skipAll(live[:newest], task.ReasonDropped)

		// A run in the queue would replace late ticks. So the trigger waits until they have run.
		switch {
		case d.Idle:
			*live[newest] = Fate{Outcome: Start}
		case !d.CatchingUp:
			*live[newest] = Fate{Queue, task.ReasonOverlap}
		}
	case task.OverlapAllow:
		if d.MayStart {
			live[0].Outcome, live = Start, live[1:]
		}
		limitNewest(live, task.MaxTriggerQueue, task.ReasonQueueFull)
	default:
		if d.Idle {
			live[0].Outcome, live = Start, live[1:]
		}
		if d.DropOldest {
			limitOldest(live, d.Limit, task.ReasonDropped)
		} else {
			limitNewest(live, d.Limit, task.ReasonQueueFull)
		}
	}
}

// limitOldest skips the oldest of some triggers if there are more than the limit.
func limitOldest(live []*Fate, limit int, reason string) {
	skipAll(live[:max(0, len(live)-limit)], reason)
}

// limitNewest skips the newest of some triggers if there are more than the limit.
func limitNewest(live []*Fate, limit int, reason string) {
	skipAll(live[min(len(live), limit):], reason)
}

// skipAll skips triggers for a reason.
func skipAll(live []*Fate, reason string) {
	for _, f := range live {
		*f = Fate{Skip, reason}
	}
}
