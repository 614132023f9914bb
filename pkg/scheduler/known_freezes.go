package scheduler

import (
	"sync/atomic"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// freezes is what a lost commit has told of the freezes before whoever follows
// them has: it counts until that one knows anything other than it did then.
type freezes struct {
	learned atomic.Pointer[learnedFreezes]
}

type learnedFreezes struct {
	instead int64 // the mod revision of what was taken for the newest
	is      *store.FreezeRecord
}

// currentFreezes is the freezes by which to decide, and the mod revision of their record,
// which every commit compares.
func (e *Engine) currentFreezes() (*task.Freezes, int64) {
	f, mod := e.cfg.Freezes()
	if l := e.freezes.learned.Load(); l != nil && l.instead == mod {
		return &l.is.Freezes, l.is.Mod
	}
	return f, mod
}

// learnFreezes takes the freezes that a commit lost to.
func (e *Engine) learnFreezes(is *store.FreezeRecord) {
	_, mod := e.cfg.Freezes()
	if is.Mod > mod || is.Mod == 0 && mod != 0 { // deleted, by hand
		e.freezes.learned.Store(&learnedFreezes{instead: mod, is: is})
		return
	}

	e.freezes.learned.Store(nil) // who follows them is ahead
}
