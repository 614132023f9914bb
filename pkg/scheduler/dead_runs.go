package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
)

// applyDead applies the record of a dead run. No decision depends on dead runs. Their list is cut to its
// length, and those of a deleted task are deleted.
func (s *shardState) applyDead(ev *store.ShardEvent) {
	t := s.TaskOf(ev)
	switch {
	case ev.Deleted:
		delete(s.purges, ev.Key)
		s.rows.NoteDead(t, ev)
		s.dropTask(t)
	case t.Orphan(ev.Run):
		s.purges[ev.Key] = ev.Mod
	default:
		s.rows.NoteDead(t, ev)
		s.trimDead(t)
	}
}

// trimDead requests that the list of t's dead runs is cut to its length, if many have been added.
func (s *shardState) trimDead(t *taskstate.Task) {
	if t.Bad || !s.owner {
		return
	}

	if t.Dead++; int(t.Dead) < retention.TrimAfter(store.KeepDead, 0) {
		return
	}

	if s.trims.Ask(retention.Trim{Fences: s.fences, Ref: t.Ref(s.Shard), Dead: true}) {
		t.Dead = 0
	} else {
		t.Dead-- // the task's next dead run asks again
	}
}
