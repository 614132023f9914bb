package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ttlDeletedBy is who deleted a task whose ttl was over.
const ttlDeletedBy = "carillon"

// deleteExpired has a task deleted when its schedule has nothing more to come, nothing of
// it waits or is active, and its ttl is over.
func (p *plan) deleteExpired(t *taskstate.Task) {
	if t.Policy.TTL == 0 || t.Timing.Manual || t.Next != 0 || !t.Idle() || p.changesEntry(t) {
		return
	}

	now := p.now.UnixMilli()
	since, over := t.Over(now)
	if !over {
		if t.FollowsEnds() && t.Timing.End >= now {
			p.s.lookAgainAt(t, t.Timing.End+1)
		}
		return
	}

	if until := since + t.Policy.TTL; now < until {
		p.s.lookAgainAt(t, until)
		return
	}

	if !t.EnsurePast().Known {
		p.s.needHistory(t)
		return
	}

	if until := max(since, t.Past.Ended) + t.Policy.TTL; now < until {
		p.s.lookAgainAt(t, until)
		return
	}

	p.s.lookAgainAt(t, now+ttlDeletionRetry.Milliseconds())

	if t.BeingDeleted() {
		return
	}

	b := &retention.Deletion{Fences: p.s.fences, Ref: t.Ref(p.s.Shard), Mod: t.Mod, Tombstone: record.Tombstone{
		UID: t.UID(), Generation: int64(t.Generation), DeletedAt: task.At(p.now), DeletedBy: ttlDeletedBy,
		Why: "its schedule had ended, and its ttl of " + task.Duration(time.Duration(t.Policy.TTL)*time.Millisecond).String() + " was over",
	}}
	t.Past.Deletion = b
	p.deletions = append(p.deletions, b)
}

// ttlDeletionRetry is when a deletion is asked for again that has not succeeded.
const ttlDeletionRetry = 10 * time.Second
