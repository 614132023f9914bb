package executor

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

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
			Requests:   task.Requests{RetryOf: a.RetryOf, CreatedBy: a.CreatedBy, EnvNames: a.EnvNames, Args: a.Args, TargetNode: a.TargetNode},
			StatusReport: task.StatusReport{
				Results:    end.Results,
				Checkpoint: end.Checkpoint,
				BadLines:   end.BadLines,
			},
			FanOut: task.FanOut{PartCount: a.PartCount},
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
