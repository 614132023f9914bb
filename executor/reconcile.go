package executor

import (
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
)

// compare counts what the watch of the inbox has lost, when a list has come and
// before it is applied. What was written at or before the revision up to which
// the inbox was known is lost for certain. What else the list has otherwise may
// be on its way: the watch tells of it soon, as an echo, or it is lost, as a
// later list finds.
func (e *Executor) compare(b store.InboxBatch) {
	missed := e.doubts.Lost(e.patience)
	listed := make(map[string]bool, len(b.Events))
	for i := range b.Events {
		ev := &b.Events[i]
		listed[ev.Key] = true
		a := e.byKey[ev.Key]
		switch {
		case ev.Err != nil && e.unreadable[ev.Key], a != nil && a.Mod >= ev.Mod:
		case ev.Mod <= e.floor:
			missed++
		default:
			e.doubts.Add(ev.Key, ev.Mod)
		}
	}

	for key, a := range e.byKey {
		if !listed[key] && a.Mod <= b.Revision {
			e.doubts.Add(key, a.Mod+1)
		}
	}

	if missed > 0 {
		e.metrics.repairs.Add(float64(missed))
		e.log.Warn("repaired what the watch of the inbox had not told", zap.Int("attempts", missed), zap.Int64("rev", b.Revision))
	}
}

// echo takes what the watch tells after a list has told it.
func (e *Executor) echo(b store.InboxBatch) {
	if len(b.Events) == 0 { // a new watch, which will not
		e.doubts.Clear()
	}

	for i := range b.Events {
		e.doubts.Echo(b.Events[i].Key, b.Events[i].Mod)
	}
}
