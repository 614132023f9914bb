package executor

import (
	"slices"
	"strings"
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

// action is the next step for an attempt, as nextStep returns it. Executor.decideAttempt executes it.
type action int

const (
	doNothing  action = iota
	doForget          // drop it from the state: its record is gone and nothing refers to it
	doAdopt           // rewrite its record under the latest session
	doReady           // start it when a slot is free and, for HTTP, its target takes it
	doCancel          // end it as cancelled, without starting it
	doLose            // end it as lost
	doMiss            // end it as missed, without starting it: its start deadline has passed
	doHandBack        // return it to its shard's queue
	doKill            // kill its process
	doMark            // write to its record that it is running or paused, or its checkpoint
	doTurn            // pause or resume its process
	doRecord          // record its end
)

// view is the state outside the attempt that a decision may depend on. The first six fields are the same for all
// attempts of one pass.
type view struct {
	now      time.Time     // wall clock; compared with start deadlines and backoffs
	boot     time.Duration // CLOCK_BOOTTIME; compared with renewals
	session  int           // number of the latest session; 0 before the first join
	fenced   bool          // that session is known to have ended; only a later one can write
	draining bool          // start nothing, and hand back what has not started
	stopping bool          // kill all running attempts
	overdue  bool          // the attempt may soon be declared lost; see joined.isOverdue
	dead     bool          // the attempt's instance is not this one and counts as dead; see decideAttempt
	behind   bool          // an earlier attempt with the same inbox key still has a process
	frozen   bool          // its namespace is frozen, or the freezes are not known yet
}

// nextStep returns the next step for an attempt. It is a pure function of its arguments. Calling it again without a
// change of the state returns the same step, so a step that cannot be taken now, because its queue is full, is
// decided again later.
func nextStep(a *attempt, v view) action {
	switch a.phase {
	case phaseWaiting:
		return decideWaiting(a, v)
	case phaseRunning:
		return decideRunning(a, v)
	case phaseEnded:
		// The end is recorded even if the record is gone or the session has ended. Finish finds out whether the
		// attempt was declared lost, and then keeps the result as late (G12).
		if a.writesBlocked(v) {
			return doNothing
		}
		return doRecord
	case phaseSettled:
		// The attempt stays known until the inbox shows that its record is gone. A list that is older than the
		// end would otherwise show it as new.
		if a.recordGone {
			return doForget
		}
	}

	return doNothing
}

// decideWaiting decides about an attempt that has not started. The order of the cases
// matters: everything that forbids a start comes before doReady.
func decideWaiting(a *attempt, v view) action {
	switch {
	case a.recordGone && !a.busy:
		return doForget
	// A write in flight still refers to the attempt, or its backoff has not passed.
	case a.recordGone, a.writesBlocked(v):
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
	// A hand-back in doubt does not matter here. The request for the cancel has changed the record, so an earlier
	// hand-back that had not been applied by then is void.
	case a.CancelRequested:
		return doCancel
	case a.mayBeHandedBack():
		return decideHandedBack(a, v)
	case tooLate(a.Held, v.now):
		return doMiss
	case v.draining, a.mustHandBack:
		return doHandBack
	// Before the first join nothing may be written or started. An earlier attempt of the same run whose process still
	// ends must not overlap with this one (G8).
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
	// The attempt belongs to the latest session, but must not start yet. It stays in the inbox, where a cancel or its
	// start deadline can still end it. If it is overdue, it may have been declared lost already.
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
	case v.draining, a.mustHandBack:
		return doHandBack
	case v.session == 0, v.fenced:
		return doNothing // adoption needs a session that is not known to have ended
	}

	return doAdopt
}

// tooLate reports whether the start deadline of an attempt has passed (G22). Retries and
// runs that users requested have no start deadline.
func tooLate(h *record.Held, now time.Time) bool {
	return !h.StartBefore.IsZero() && h.CountedAttempt() == 1 && (h.Trigger != task.TriggerManual || h.IsBootRun()) && now.After(h.StartBefore.Time)
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
		return doNothing // its end is near, and the write of the end includes everything else
	case a.pauseChanged():
		return doTurn // a pause needs no write, so it does not wait for one
	case a.writesBlocked(v), v.fenced:
		return doNothing
	case a.session != v.session:
		return doAdopt
	case a.reported.hasNews(a.Checkpoint, v.now):
		return doMark
	case a.recordIsStale(v.now):
		return doMark
	}

	return doNothing
}

// killFor returns the most urgent reason to kill a running attempt, and the grace period
// for it. The zero Kill means that there is none. The cases are ordered by urgency, not by grace period.
func killFor(a *attempt, v view) process.Kill {
	grace := a.KillGrace.Std()
	if a.kind == task.KindHTTP {
		grace = 0 // a request is cancelled at once
	}

	switch {
	case a.recordGone:
		// The run may already have a successor on another node (G8), so there is no grace period.
		return process.Kill{Cause: process.CauseGone, Grace: 0}
	case v.overdue:
		// The grace period is limited so that the attempt is gone before it is declared lost (G17).
		return process.Kill{Cause: process.CauseSilent, Grace: min(grace, maxGrace)}
	case v.stopping:
		return process.Kill{Cause: process.CauseShutdown, Grace: min(grace, maxGrace)}
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

// firstUnsentBackoff is the longest wait after the first attempt of a run that was not sent. It doubles up to
// task.MaxUnsentBackoff.
const firstUnsentBackoff = time.Second

// Next returns the queue record of the attempt that follows a, which ended with end. It
// returns nil if there is no next attempt: the retry policy excludes it, or the run
// was cancelled. spread is a random number in [0, 1) for the jitter of the backoff.
//
// Both that record the end of an attempt use it: the attempt's node and, for a lost attempt,
// the owner of the task's shard. In the record, the last of Attempts is the ended attempt
// with its token, and Attempt is the number of the next one. LatenessMS remains that of the
// first attempt. The run keeps its results, its checkpoint, which the next attempt receives,
// and who requested it.
//
// An attempt that was not sent is free for a while: it is counted in Unsent instead of Attempts, and another one follows
// whatever the retry policy says.
func Next(a task.Assigned, end task.Run, now time.Time, spread float64) *task.Waiting {
	return nextAttempt(a, end, 0, now, spread)
}

// nextAttempt is Next for an attempt whose target asked to wait for retryAfter; 0 if it did not.
func nextAttempt(a task.Assigned, end task.Run, retryAfter time.Duration, now time.Time, spread float64) *task.Waiting {
	a.Attempt = max(a.Attempt, 1)
	end.Attempt = a.Attempt

	if isFree(a, end, now) {
		w := successor(a, end)
		w.Reason, w.NotBeforeBy = task.ReasonTarget, task.NotBeforeByTarget
		w.NotBefore = task.At(now.Add(unsentWait(a, retryAfter, spread)))
		w.Unsent = addUnsent(a.Unsent, end, now)
		if end.StartedAt.IsZero() {
			w.StartBefore = a.StartBefore // nothing of the run has started yet, so its start deadline still applies
		}

		return w
	}

	if !a.Retries(end.State, end.ExitCode) {
		return nil
	}

	w := successor(a, end)
	w.Reason = task.ReasonRetry
	w.NotBefore = task.At(now.Add(a.Retry.Wait(a.CountedAttempt(), spread)))
	w.Attempts = append(slices.Clip(a.Attempts), end.AsAttempt())

	return w
}

// successor returns the queue record of the next attempt without what depends on how a ended. Only fields that
// the run keeps over its attempts are copied. In particular, cancels and pauses are not.
func successor(a task.Assigned, end task.Run) *task.Waiting {
	return &task.Waiting{
		Run: task.Run{
			ID: a.ID, Namespace: a.Namespace, Task: a.Task, UID: a.UID, ScheduledTime: a.ScheduledTime,
			State: task.Queued, Trigger: a.Trigger, Owner: a.Owner, Shard: a.Shard,
			Attempt:    a.Attempt + 1,
			Attempts:   a.Attempts,
			Unsent:     a.Unsent,
			CreatedAt:  a.CreatedAt,
			LatenessMS: end.LatenessMS,
			DueAt:      a.DueAt,
			Requests:   task.Requests{RetryOf: a.RetryOf, CreatedBy: a.CreatedBy, EnvNames: a.EnvNames, Args: a.Args, TargetNode: a.TargetNode, BootID: a.BootID, Alone: a.Alone},
			Causation:  a.Causation,
			StatusReport: task.StatusReport{
				Results:    end.Results,
				Checkpoint: end.Checkpoint,
				BadLines:   end.BadLines,
			},
			FanOut: task.FanOut{PartCount: a.PartCount, Step: a.Step, Item: a.Item},
		},
		Env: a.Env,
	}
}

// isFree reports whether an attempt does not count for the retry policy: its request was not sent, and unsent_for has
// not passed since the first such attempt of the run. A cancelled run gets no other attempt.
func isFree(a task.Assigned, end task.Run, now time.Time) bool {
	h := a.Action.HTTP
	if h == nil || a.CancelRequested || end.State != task.Failed || end.Reason != task.ReasonUnsent {
		return false
	}

	limit := h.EffectiveUnsentFor()
	if a.Unsent == nil {
		return limit > 0
	}

	return endedAt(end, now).Sub(a.Unsent.First.Time) <= limit
}

// endedAt returns the end of an attempt, or now if it is not known. It does not change while the end cannot be recorded.
func endedAt(end task.Run, now time.Time) time.Time {
	if end.EndedAt.IsZero() {
		return now
	}
	return end.EndedAt.Time
}

// unsentWait returns how long after an attempt that was not sent the next one may start. The backoff has full jitter, so
// that the runs that wait for a target do not return to it at the same time. A target that asked for more time gets it,
// up to the max_backoff of the task.
func unsentWait(a task.Assigned, retryAfter time.Duration, spread float64) time.Duration {
	n := 0
	if a.Unsent != nil {
		n = a.Unsent.Count
	}

	limit := task.MaxUnsentBackoff
	if n < 10 { // the power is limited before the multiplication, which could overflow
		limit = min(limit, firstUnsentBackoff<<n)
	}

	jittered := time.Duration(float64(limit) * spread)

	return max(jittered, min(retryAfter, a.Retry.MaxBackoff.Std())).Truncate(time.Millisecond)
}

// addUnsent returns u with one more attempt.
func addUnsent(u *task.Unsent, end task.Run, now time.Time) *task.Unsent {
	next := task.Unsent{First: task.At(endedAt(end, now))}
	if u != nil {
		next = *u
	}

	next.Count++
	next.Last = task.At(endedAt(end, now))
	next.Node = end.Node // the next attempt prefers another node
	next.Message = strings.TrimPrefix(strings.TrimPrefix(end.Message, targetDownPrefix), process.NotSentPrefix)

	return &next
}

// LostEnd returns the end of the attempt a, with its token, when its node is gone and its real
// outcome is unknown.
func LostEnd(a task.Assigned, token int64, now time.Time) task.Run {
	end := a.Unpaused()
	end.State, end.Reason, end.Token, end.EndedAt = task.Lost, task.ReasonNodeLost, token, task.At(now)
	end.Message = a.LostMessage()

	return end
}
