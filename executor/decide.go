package executor

import (
	"time"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// phase is where an attempt is in its life here; see the package comment.
type phase int

const (
	phaseWaiting phase = iota // in the inbox, nothing started
	phaseRunning              // a process runs, or is being started
	phaseEnded                // nothing runs; the end is to be recorded
	phaseSettled              // recorded, or handed back
	phases
)

// action is what is to be done about an attempt now.
type action int

const (
	doNothing  action = iota
	doForget          // nothing of it is left
	doAdopt           // rewrite it under the latest session
	doReady           // start it when there is a slot
	doCancel          // end it as cancelled, unstarted
	doLose            // end it as lost
	doMiss            // end it as missed, unstarted: its start deadline has passed
	doHandBack        // queue it again
	doKill            // end its process
	doMark            // write that it runs, or stands still
	doTurn            // have its process stand still, or go on
	doRecord          // record its end
)

// view is all that a decision may rest on, beside the attempt.
type view struct {
	now      time.Time
	boot     time.Duration
	session  int  // the latest; 0: never joined
	fenced   bool // that session is known to be over: only the next one can write
	draining bool // start nothing, hand back
	stopping bool // kill what runs
	overdue  bool // the attempt's session was silent for so long that the attempt is about to be declared lost
	dead     bool // the attempt's instance is another and proved dead, or has had the attempt's lost_after
	behind   bool // an older attempt in the same place still has a process
	frozen   bool // its namespace is frozen, or nobody knows yet
}

// decide says what is to be done about an attempt. It depends on nothing but
// its arguments.
func decide(a *attempt, v view) action {
	switch a.phase {
	case phaseWaiting:
		return decideWaiting(a, v)
	case phaseRunning:
		return decideRunning(a, v)
	case phaseEnded:
		if a.resting(v) {
			return doNothing
		}
		return doRecord
	case phaseSettled:
		if a.gone {
			return doForget
		}
	}

	return doNothing
}

func decideWaiting(a *attempt, v view) action {
	switch {
	case a.gone && !a.busy:
		return doForget
	case a.gone, a.resting(v):
		return doNothing
	case a.foreign:
		if v.dead {
			return doLose
		}
		return doNothing
	case a.stale:
		return doLose
	case a.CancelRequested:
		return doCancel
	case a.mayBeHandedBack():
		return decideHandedBack(a, v)
	case tooLate(a.Held, v.now):
		return doMiss
	case v.draining, a.returns:
		return doHandBack
	case v.session == 0, v.behind:
		return doNothing
	case a.session != v.session && v.fenced:
		return doNothing
	case a.session != v.session:
		return doAdopt
	case v.frozen, a.PauseRequested, v.overdue:
		return doNothing
	}

	return doReady
}

// decideHandedBack decides about an attempt that may have been handed back. To start it
// here could start its run twice, since the owner of its shard dispatches what is in the
// queue as never started. So the node hands it back again, or adopts it: both compare the
// record that the first hand-back compares, and only one of them can be applied.
func decideHandedBack(a *attempt, v view) action {
	switch {
	case v.draining, a.returns:
		return doHandBack
	case v.session == 0, v.fenced:
		return doNothing // only a session that may still hold can adopt
	}

	return doAdopt
}

// tooLate reports whether the start deadline of a tick has passed: a retry, and
// what a person asked for, have none.
func tooLate(h *record.Held, now time.Time) bool {
	return !h.StartBefore.IsZero() && max(h.Attempt, 1) == 1 && h.Trigger != task.TriggerManual && now.After(h.StartBefore.Time)
}

func decideRunning(a *attempt, v view) action {
	if k := killFor(a, v); k.Cause != process.CauseNone && (a.killed.Cause == process.CauseNone || k.Grace < a.killed.Grace) {
		return doKill
	}

	switch {
	case a.killed.Cause != process.CauseNone:
		return doNothing
	case a.turns():
		return doTurn // whatever becomes of writes
	case a.resting(v), v.fenced:
		return doNothing
	case a.session != v.session:
		return doAdopt
	case a.spoke.news(a.Checkpoint, v.now):
		return doMark
	case a.unsaid(v.now):
		return doMark
	}

	return doNothing
}

// killFor is the most urgent reason to end a running attempt.
func killFor(a *attempt, v view) process.Kill {
	grace := a.KillGrace.Std()

	switch {
	case a.gone:
		return process.Kill{Cause: process.CauseGone, Grace: 0} // a successor may be running by now
	case v.overdue:
		return process.Kill{Cause: process.CauseSilent, Grace: min(grace, mostGrace)}
	case v.stopping:
		return process.Kill{Cause: process.CauseShutdown, Grace: min(grace, mostGrace)}
	case a.CancelRequested:
		return process.Kill{Cause: process.CauseCancel, Grace: grace}
	}

	return process.Kill{}
}

// resting reports whether no write may be tried now: one is under way, or the
// last one failed a moment ago and nothing newer was seen since.
func (a *attempt) resting(v view) bool {
	return a.busy || (v.now.Before(a.notBefore) && a.Mod <= a.failedAt)
}
