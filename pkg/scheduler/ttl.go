package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ttlDeletedBy is recorded as the user who deleted a task because of its ttl.
const ttlDeletedBy = "carillon"

// deleteExpired requests the deletion of a task when its schedule has no further ticks, nothing of it waits
// or is active, and its ttl has passed since its last end. The deletion is a separate transaction that
// compares the entry, so an edit in the meantime prevents it (G25). Until then, each reason to wait is
// noted with the time at which it ends.
func (p *plan) deleteExpired(t *taskstate.Task) {
	if t.Policy.TTL == 0 || t.Timing.Manual || t.Next != 0 || !t.Idle() || p.changesEntry(t) {
		return
	}

	now := p.now.UnixMilli()
	since, over := t.Over(now)
	if !over {
		// A schedule that counts from the end of the last run is over only after its own end.
		if t.FollowsEnds() && t.Timing.End >= now {
			p.s.examineAgainAt(t, taskstate.Instant(t.Timing.End+1))
		}
		return
	}

	// The ttl cannot have passed, whatever the last end is. Avoid reading the history.
	if until := since + t.Policy.TTL; now < until {
		p.s.examineAgainAt(t, taskstate.Instant(until))
		return
	}

	// The ttl counts from the last end of a run, which must be read first.
	if !t.EnsurePast().Known {
		p.s.needHistory(t)
		return
	}

	if until := max(since, t.Past.Ended) + t.Policy.TTL; now < until {
		p.s.examineAgainAt(t, taskstate.Instant(until))
		return
	}

	// The deletion can fail or be dropped without notice. Check again later in any case.
	p.s.examineAgainAt(t, p.now.Add(ttlDeletionRetry))

	if t.BeingDeleted() {
		return
	}

	b := &retention.Deletion{Fences: p.s.fences, Ref: t.Ref(p.s.Shard), Mod: t.Mod, Tombstone: record.Tombstone{
		UID: t.UID(), Generation: int64(t.Generation), DeletedAt: task.At(p.now), DeletedBy: ttlDeletedBy,
		Why: "its schedule had ended, and its ttl of " + task.Duration(time.Duration(t.Policy.TTL)*time.Millisecond).String() + " was over",
	}}

	// From now on nothing of the task is dispatched (see BeingDeleted).
	t.Past.Deletion = b
	p.deletions = append(p.deletions, b)
}

// ttlDeletionRetry is the time after which a deletion that has not succeeded is requested again.
const ttlDeletionRetry = 10 * time.Second
