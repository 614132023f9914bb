package scheduler

import "github.com/carillonhq/carillon/pkg/store"

// applyDead takes note of a dead run: it is nothing to decide about, but the list
// of them is kept at its length, and those of a task that is gone go, too.
func (w *worker) applyDead(ev *store.ShardEvent) {
	t := w.taskOf(ev)
	switch {
	case ev.Deleted:
		delete(w.purges, ev.Key)
		w.settled(t, ev)
		w.drop(t)
	case t.orphan(ev.Run):
		w.purges[ev.Key] = ev.Mod
	case !t.bad && w.owner:
		if t.dead++; int(t.dead) < trimAfter(store.KeepDead) {
			return
		}
		if w.e.trims.ask(trim{fences: w.fences, ref: t.ref(w.shard), dead: true}) {
			t.dead = 0
		} else {
			t.dead-- // its next one asks again
		}
	}
}
