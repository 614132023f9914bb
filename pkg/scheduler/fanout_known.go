package scheduler

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// returned is how a part ended.
type returned struct {
	task.Part
	parent string
	mod    int64
}

// back counts the parts of a run that have ended, and how many succeeded.
func (t *taskState) back(q *waiting) (ended, succeeded int) {
	for _, r := range t.activity.returned {
		if r.parent != q.ID {
			continue
		}
		ended++
		if r.State == task.Succeeded {
			succeeded++
		}
	}
	return ended, succeeded
}

// parentOf is the run that a part belongs to, if it is under way.
func (t *taskState) parentOf(part string) *waiting {
	id, _, is := task.ParentOf(part)
	if !is || t.activity == nil {
		return nil
	}
	for _, q := range t.activity.queue {
		if q.ID == id && q.UnderWay() {
			return q
		}
	}
	return nil
}

// endsWithParent is why a part is to end with its run; "": it is not.
func (t *taskState) endsWithParent(part string) (reason, who string) {
	if q := t.parentOf(part); q != nil {
		return q.Fan.Cancel, q.CancelledBy
	}
	return "", ""
}

// goesWithParent reports whether an attempt is of a part that is to end with its run.
func (t *taskState) goesWithParent(part string) bool {
	reason, _ := t.endsWithParent(part)
	return reason != ""
}

// knowsParent reports whether the queue has a record of the run that a part belongs
// to, if only one that cannot be read.
func (t *taskState) knowsParent(part string) bool {
	id, _, _ := task.ParentOf(part)
	return t.activity != nil && (slices.Contains(t.activity.unreadable, id) || slices.ContainsFunc(t.activity.queue, func(q *waiting) bool { return q.ID == id }))
}

// applyPart takes note of how a part has ended. Its record goes when that of its run
// is in history, or when its task is gone.
func (s *shardState) applyPart(ev *store.ShardEvent) {
	t := s.taskOf(ev)
	if ev.Deleted {
		delete(s.purges, ev.Key)
		if t.activity != nil {
			delete(t.activity.returned, ev.Run)
		}
		if t.depends() {
			s.look(t) // the next tick, or the ttl, waits until nothing of the run is left
		}
		s.drop(t)
		return
	}
	s.ended(t, ev.Run, ev.Mod)
	end, err := record.DecodeEnded(ev.ShardKey, ev.Value)
	if err != nil {
		end = task.Run{ID: ev.Run, State: task.Failed, Reason: task.ReasonBadEntry}
		s.notify(notice{kind: partUnreadable, task: t.fullName(), run: ev.Run, err: err})
	}
	s.takeBack(t, ev.Run, end.AsPart(), ev.Mod)
}

// takeBack notes that a part has ended.
func (s *shardState) takeBack(t *taskState, id string, p task.Part, mod int64) {
	parent, _, is := task.ParentOf(id)
	if !is {
		return
	}
	l := s.ensureActivity(t)
	if l.returned == nil {
		l.returned = map[string]returned{}
	}
	l.returned[id] = returned{p, parent, mod}
	s.look(t)
}

// forgetParts has the records of parts deleted whose run has ended: once. They are known until the
// watch has told of that.
func (p *plan) forgetParts(t *taskState) {
	if t.activity == nil || len(t.activity.returned) == 0 {
		return
	}
	ref := t.ref(p.s.shard)
	for id, r := range t.activity.returned {
		key := p.s.keys.Ended(ref, id)
		if _, purged := p.s.gone[key]; !purged && !t.knowsParent(id) {
			p.s.purges[key] = r.mod
		}
	}
}
