package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ttlDeletedBy is who deleted a task whose ttl was over.
const ttlDeletedBy = "carillon"

// beingDeleted reports whether t is being deleted since its ttl is over.
func (t *taskState) beingDeleted() bool {
	return t.past != nil && t.past.deletion != nil && !t.past.deletion.IsOver()
}

// deleteExpired has a task deleted when its schedule has nothing more to come, nothing of
// it waits or is active, and its ttl is over.
func (p *plan) deleteExpired(t *taskState) {
	if t.how.TTL == 0 || t.when.Manual || t.next != 0 || !t.idle() || p.changesEntry(t) {
		return
	}
	now := p.now.UnixMilli()
	since, over := t.over(now)
	if !over {
		if t.follows() && t.when.End >= now {
			p.s.rest(t, t.when.End+1)
		}
		return
	}
	if until := since + t.how.TTL; now < until {
		p.s.rest(t, until)
		return
	}
	if !t.history().known {
		p.s.needHistory(t)
		return
	}
	if until := max(since, t.past.ended) + t.how.TTL; now < until {
		p.s.rest(t, until)
		return
	}
	p.s.rest(t, now+ttlDeletionRetry.Milliseconds())
	if t.beingDeleted() {
		return
	}
	b := &retention.Deletion{Fences: p.s.fences, Ref: t.ref(p.s.shard), Mod: t.mod, Tombstone: record.Tombstone{
		UID: t.uidText(), Generation: int64(t.generation), DeletedAt: task.At(p.now), DeletedBy: ttlDeletedBy,
		Why: "its schedule had ended, and its ttl of " + task.Duration(time.Duration(t.how.TTL)*time.Millisecond).String() + " was over",
	}}
	t.past.deletion = b
	p.deletions = append(p.deletions, b)
}

// ttlDeletionRetry is when a deletion is asked for again that has not succeeded.
const ttlDeletionRetry = 10 * time.Second

// over reports whether a task has no tick to come, ever, and since when: the last
// one's, or since the entry says that it begins. Nothing of it is undecided.
func (t *taskState) over(now int64) (since int64, over bool) {
	switch {
	case t.spent():
		return t.from, true
	case t.follows():
		return t.when.End, t.when.End != 0 && t.when.End < now
	case t.after(max(t.from, now)) != 0:
		return 0, false
	}
	s := t.schedule()
	last, ok := s.LastDue(instant(now), t.uidText())
	if !ok {
		return t.from, true
	}
	return max(t.from, t.due(last.UnixMilli())), true
}
