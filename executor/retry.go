package executor

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Next returns the queue record of the attempt that follows a, which ended with end. It
// returns nil if there is no next attempt: the retry policy excludes it, or the run
// was cancelled. spread is a random number in [0, 1) for the jitter of the backoff.
//
// Both that record the end of an attempt use it: the attempt's node and, for a lost attempt,
// the owner of the task's shard. In the record, the last of Attempts is the ended attempt
// with its token, and Attempt is the number of the next one. LatenessMS remains that of the
// first attempt. The run keeps its results, its checkpoint, which the next attempt receives,
// and who requested it.
func Next(a task.Assigned, end task.Run, now time.Time, spread float64) *task.Waiting {
	if a.Attempt = max(a.Attempt, 1); !a.Retries(end.State, end.ExitCode) {
		return nil
	}

	end.Attempt = a.Attempt
	// Only fields that the run keeps over its attempts are copied. In particular, cancels and pauses are not.
	return &task.Waiting{
		Run: task.Run{
			ID: a.ID, Namespace: a.Namespace, Task: a.Task, UID: a.UID, ScheduledTime: a.ScheduledTime,
			State: task.Queued, Reason: task.ReasonRetry, Trigger: a.Trigger, Owner: a.Owner, Shard: a.Shard,
			Attempt:    a.Attempt + 1,
			Attempts:   append(slices.Clip(a.Attempts), end.AsAttempt()),
			CreatedAt:  a.CreatedAt,
			NotBefore:  task.At(now.Add(a.Retry.Wait(a.Attempt, spread))),
			LatenessMS: end.LatenessMS,
			DueAt:      a.DueAt,
			Requests:   task.Requests{RetryOf: a.RetryOf, CreatedBy: a.CreatedBy, EnvNames: a.EnvNames},
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

// LostEnd returns the end of the attempt a, with its token, when its node is gone and its real
// outcome is unknown.
func LostEnd(a task.Assigned, token int64, now time.Time) task.Run {
	end := a.Unpaused()
	end.State, end.Reason, end.Token, end.EndedAt = task.Lost, task.ReasonNodeLost, token, task.At(now)
	return end
}
