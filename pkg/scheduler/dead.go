package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/store"
)

// applyDead takes note of a dead run: it is nothing to decide about, but the list
// of them is kept at its length, and those of a task that is gone go, too.
func (s *shardState) applyDead(ev *store.ShardEvent) {
	t := s.taskOf(ev)
	switch {
	case ev.Deleted:
		delete(s.purges, ev.Key)
		s.noteDismissed(t, ev)
		s.drop(t)
	case t.orphan(ev.Run):
		s.purges[ev.Key] = ev.Mod
	case !t.bad && s.owner:
		if t.dead++; int(t.dead) < retention.TrimAfter(store.KeepDead) {
			return
		}
		if s.trims.Ask(retention.Trim{Fences: s.fences, Ref: t.ref(s.shard), Dead: true}) {
			t.dead = 0
		} else {
			t.dead-- // its next one asks again
		}
	}
}
