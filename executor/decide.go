package executor

import (
	"time"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// phase is the phase of an attempt on this node; the package comment shows the transitions.
type phase int

const (
	phaseWaiting phase = iota // in the inbox, nothing started
	phaseRunning              // a process runs, or is being started
	phaseEnded                // no process is left; the end is not recorded yet
	phaseSettled              // the end is recorded, or the attempt was handed back
	phases
)

// action is the next step for an attempt, as decide returns it.
type action int

const (
	doNothing  action = iota
	doForget          // drop it from the state: its record is gone and nothing refers to it
	doAdopt           // rewrite its record under the latest session
	doReady           // start it when a slot is free
	doCancel          // end it as cancelled, without starting it
	doLose            // end it as lost
	doMiss            // end it as missed, without starting it: its start deadline has passed
	doHandBack        // return it to its shard's queue
	doKill            // kill its process
	doMark            // write to its record that it is running or paused, or its checkpoint
	doTurn            // pause or resume its process
	doRecord          // record its end
)

// view is the state outside the attempt that a decision may depend on.
type view struct {
	now      time.Time
	boot     time.Duration
	session  int  // number of the latest session; 0 before the first join
	fenced   bool // that session is known to have ended; only a later one can write
	draining bool // start nothing, and hand back what has not started
	stopping bool // kill all running attempts
	overdue  bool // the attempt may soon be declared lost; see joined.isOverdue
	dead     bool // the attempt's instance is not this one and counts as dead; see decideAttempt
	behind   bool // an earlier attempt with the same inbox key still has a process
	frozen   bool // its namespace is frozen, or the freezes are not known yet
}

// decide returns the next step for an attempt. It is a pure function of its arguments.
func decide(a *attempt, v view) action {
	switch a.phase {
	case phaseWaiting:
		return decideWaiting(a, v)
	case phaseRunning:
		return decideRunning(a, v)
	case phaseEnded:
		if a.writesBlocked(v) {
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

// decideWaiting decides about an attempt that has not started. The order of the cases
// matters: everything that forbids a start comes before doReady.
func decideWaiting(a *attempt, v view) action {
	switch {
	case a.gone && !a.busy:
		return doForget
	case a.gone, a.writesBlocked(v):
		return doNothing
	// The other instance may still run the attempt. Declaring it lost too early would let
	// its successor run beside it (G17).
	case a.foreign:
		if v.dead {
			return doLose
		}
		return doNothing
	// The inbox was completely known up to a later revision, so this token was started or
	// ended before. Starting it again would break G9.
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
	// Adoption compares the session's node key, so it cannot succeed under a session that
	// has ended. The next join changes v.session.
	case a.session != v.session && v.fenced:
		return doNothing
	// An attempt that was dispatched under an earlier session may have been declared lost
	// since. Only a rewrite that compares its record proves that it still belongs to this
	// node (G10).
	case a.session != v.session:
		return doAdopt
	case v.frozen, a.PauseRequested, v.overdue:
		return doNothing
	}

	return doReady
}

// decideHandedBack decides about an attempt whose hand-back may have been applied. Starting
// it here could start its run twice (G9), because the owner of the shard dispatches a queued
// attempt as one that was never started. So the node either hands it back again or adopts
// it. Both writes compare the same revision of the record as the first hand-back, so etcd
// applies at most one of the three.
func decideHandedBack(a *attempt, v view) action {
	switch {
	case v.draining, a.returns:
		return doHandBack
	case v.session == 0, v.fenced:
		return doNothing // adoption needs a session that is not known to have ended
	}

	return doAdopt
}

// tooLate reports whether the start deadline of an attempt has passed (G22). Retries and
// manual runs have no start deadline.
func tooLate(h *record.Held, now time.Time) bool {
	return !h.StartBefore.IsZero() && max(h.Attempt, 1) == 1 && h.Trigger != task.TriggerManual && now.After(h.StartBefore.Time)
}

// decideRunning decides about an attempt that has a process or is being started. Kills
// come first: they need no write and must not wait for etcd.
func decideRunning(a *attempt, v view) action {
	// Repeat a kill only to shorten its grace period, for example if the node is silent
	// for too long while a cancelled attempt still has a long grace.
	if k := killFor(a, v); k.Cause != process.CauseNone && (a.killed.Cause == process.CauseNone || k.Grace < a.killed.Grace) {
		return doKill
	}

	switch {
	case a.killed.Cause != process.CauseNone:
		return doNothing
	case a.pauseChanged():
		return doTurn // a pause needs no write, so it does not wait for one
	case a.writesBlocked(v), v.fenced:
		return doNothing
	case a.session != v.session:
		return doAdopt
	case a.spoke.hasNews(a.Checkpoint, v.now):
		return doMark
	case a.recordIsStale(v.now):
		return doMark
	}

	return doNothing
}

// killFor returns the most urgent reason to kill a running attempt, and the grace period
// for it. The zero Kill means that there is none.
func killFor(a *attempt, v view) process.Kill {
	grace := a.KillGrace.Std()

	switch {
	case a.gone:
		return process.Kill{Cause: process.CauseGone, Grace: 0} // its run may already have a successor elsewhere
	case v.overdue:
		return process.Kill{Cause: process.CauseSilent, Grace: min(grace, mostGrace)}
	case v.stopping:
		return process.Kill{Cause: process.CauseShutdown, Grace: min(grace, mostGrace)}
	case a.CancelRequested:
		return process.Kill{Cause: process.CauseCancel, Grace: grace}
	}

	return process.Kill{}
}

// writesBlocked reports whether no write about the attempt may be issued now: either one is in
// flight, or the last one failed, its backoff has not passed, and the inbox has not shown a
// newer revision of the record since.
func (a *attempt) writesBlocked(v view) bool {
	return a.busy || (v.now.Before(a.notBefore) && a.Mod <= a.failedAt)
}
