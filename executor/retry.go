package executor

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Next is the queue record of the attempt that follows a, which ended as end
// says; nil if none does: the policy does not want one, or the run was
// cancelled. spread is a random number in [0, 1).
//
// It serves whoever records the end of an attempt: its node, and, for a lost
// one, the owner of the task's shard. The record names the ended attempt, with
// its token, as the last of Attempts; its Attempt is the number of the next.
// LatenessMS stays that of the first attempt. What the run has said of itself goes on
// with it: results, and the checkpoint, which the next attempt is given. So does who asked for it.
func Next(a task.Assigned, end task.Run, now time.Time, spread float64) *task.Waiting {
	if a.Attempt = max(a.Attempt, 1); !a.Retries(end.State, end.ExitCode) {
		return nil
	}

	end.Attempt = a.Attempt
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
			PartCount: a.PartCount,
		},
		Env: a.Env,
	}
}

// LostEnd is how the attempt a ended if its node is gone: nobody knows.
func LostEnd(a task.Assigned, token int64, now time.Time) task.Run {
	end := a.Unpaused()
	end.State, end.Reason, end.Token, end.EndedAt = task.Lost, task.ReasonNodeLost, token, task.At(now)
	return end
}
