package executor

import (
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
)

// compareList counts the changes that the watch of the inbox has lost. It is called with a list
// before the list is applied. A change at or before the revision up to which the inbox was
// known is certainly lost. Any other difference may still be in flight: either the watch
// reports it soon, as an echo, or a later list finds that it was lost.
func (e *Executor) compareList(b store.InboxBatch) {
	missed := e.pendingDiffs.Lost(e.patience)
	listed := make(map[string]bool, len(b.Events))
	for i := range b.Events {
		ev := &b.Events[i]
		listed[ev.Key] = true
		a := e.byKey[ev.Key]
		switch {
		// Known already: as unreadable, or at this revision or a later one.
		case ev.Err != nil && e.unreadable[ev.Key], a != nil && a.Mod >= ev.Mod:
		case ev.Mod <= e.floor:
			missed++
		default:
			e.pendingDiffs.Add(ev.Key, ev.Mod)
		}
	}

	for key, a := range e.byKey {
		if !listed[key] && a.Mod <= b.Revision {
			// The record was deleted after a.Mod, at a revision that the list does not show.
			e.pendingDiffs.Add(key, a.Mod+1)
		}
	}

	if missed > 0 {
		e.metrics.repairs.Add(float64(missed))
		e.log.Warn("repaired the inbox: its watch had missed changes", zap.Int("attempts", missed), zap.Int64("rev", b.Revision))
	}
}

// applyReplay takes note of events that the watch reports after a list has already shown them.
func (e *Executor) applyReplay(b store.InboxBatch) {
	if len(b.Events) == 0 { // a new watch, which does not replay what the list has shown
		e.pendingDiffs.Clear()
	}

	for i := range b.Events {
		e.pendingDiffs.Resolve(b.Events[i].Key, b.Events[i].Mod)
	}
}
