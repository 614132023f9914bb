package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// buriedBy is who deleted a task whose ttl was over.
const buriedBy = "carillon"

// buried reports whether a burial of t is under way.
func (t *taskState) buried() bool {
	return t.past != nil && t.past.burial != nil && !t.past.burial.over.Load()
}

// bury has a task deleted when its schedule has nothing more to come, nothing of
// it waits or is active, and its ttl is over.
func (p *plan) bury(t *taskState) {
	if t.how.ttl == 0 || t.when.manual || t.next != 0 || !t.idle() || p.changesEntry(t) {
		return
	}
	now := p.now.UnixMilli()
	since, over := t.over(now)
	if !over {
		if t.follows() && t.when.end >= now {
			p.s.rest(t, t.when.end+1)
		}
		return
	}
	if until := since + t.how.ttl; now < until {
		p.s.rest(t, until)
		return
	}
	if !t.history().known {
		p.s.study(t)
		return
	}
	if until := max(since, t.past.ended) + t.how.ttl; now < until {
		p.s.rest(t, until)
		return
	}
	p.s.rest(t, now+burialPatience.Milliseconds())
	if t.buried() {
		return
	}
	b := &burial{fences: p.s.fences, ref: t.ref(p.s.shard), mod: t.mod, stone: store.Tombstone{
		UID: t.uidText(), Generation: int64(t.generation), DeletedAt: task.At(p.now), DeletedBy: buriedBy,
		Why: "its schedule had ended, and its ttl of " + task.Duration(time.Duration(t.how.ttl)*time.Millisecond).String() + " was over",
	}}
	t.past.burial = b
	p.deletions = append(p.deletions, b)
}

// burialPatience is when a burial is asked for again that has not succeeded.
const burialPatience = 10 * time.Second

// over reports whether a task has no tick to come, ever, and since when: the last
// one's, or since the entry says that it begins. Nothing of it is undecided.
func (t *taskState) over(now int64) (since int64, over bool) {
	switch {
	case t.spent():
		return t.from, true
	case t.follows():
		return t.when.end, t.when.end != 0 && t.when.end < now
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
