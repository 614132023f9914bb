package scheduler

import (
	"strings"
	"sync/atomic"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// freezes is what a lost commit has told of the freezes before whoever follows
// them has: it counts until that one knows anything other than it did then.
type freezes struct{ learned atomic.Pointer[lesson] }

type lesson struct {
	instead int64 // the mod revision of what was taken for the newest
	is      *store.FreezeRecord
}

// frozen is the freezes by which to decide, and the mod revision of their record,
// which every commit compares.
func (e *Engine) frozen() (*task.Freezes, int64) {
	f, mod := e.cfg.Freezes()
	if l := e.freezes.learned.Load(); l != nil && l.instead == mod {
		return &l.is.Freezes, l.is.Mod
	}
	return f, mod
}

// learn takes the freezes that a commit lost to.
func (e *Engine) learn(is *store.FreezeRecord) {
	_, mod := e.cfg.Freezes()
	if is.Mod > mod || is.Mod == 0 && mod != 0 { // deleted, by hand
		e.freezes.learned.Store(&lesson{instead: mod, is: is})
		return
	}
	e.freezes.learned.Store(nil) // who follows them is ahead
}

// isFrozen reports whether nothing of a task's namespace may start.
func (p *plan) isFrozen(t *taskState) bool {
	if p.freezes == nil || len(p.freezes.Holding) == 0 {
		return false
	}
	namespace, _, _ := strings.Cut(t.fullName(), "/")
	return p.freezes.Of(namespace) != nil
}

// skipFrozen decides all of a task's undecided ticks up to an instant: none runs,
// however late it is, and whatever the missed policy says of those.
func (p *plan) skipFrozen(t *taskState, upTo int64) bool {
	if !p.fits(t, 3, 2*t.bytes()) {
		return false
	}
	s := t.schedule()
	first, last, count, _ := s.Missed(instant(t.next-1), instant(t.lastDue(upTo)), 1)
	if count > 0 {
		run := p.newRun(t, first.UnixMilli(), task.RunID(first, t.uidText()), task.TriggerSchedule)
		if count > 1 {
			run.Last, run.Count = task.At(last), count
		}
		p.skip(t, run, task.ReasonFrozen)
		p.move(t, last.UnixMilli())
	}
	p.lookAgain(t)
	return true
}
