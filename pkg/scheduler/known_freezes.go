package scheduler

import (
	"sync/atomic"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// freezes holds the freezes record that a rejected commit returned. It is used until the follower of that
// record (Config.Freezes) reports another one than it did at that time.
type freezes struct {
	learned atomic.Pointer[learnedFreezes]
}

type learnedFreezes struct {
	instead int64               // the mod revision that the follower reported at that time
	is      *store.FreezeRecord // the record to use instead
}

// currentFreezes returns the newest freezes that are known, and the mod revision of their record, which
// every commit compares (G21). The freezes are nil if there are none.
func (e *Engine) currentFreezes() (*task.Freezes, int64) {
	f, mod := e.cfg.Freezes()
	if l := e.freezes.learned.Load(); l != nil && l.instead == mod {
		return &l.is.Freezes, l.is.Mod
	}
	return f, mod
}

// learnFreezes stores the freezes record to which a commit lost.
func (e *Engine) learnFreezes(is *store.FreezeRecord) {
	_, mod := e.cfg.Freezes()
	if is.Mod > mod || is.Mod == 0 && mod != 0 {
		// Mod 0 means that the record is gone, which happens only if somebody deletes it by hand.
		e.freezes.learned.Store(&learnedFreezes{instead: mod, is: is})
		return
	}

	e.freezes.learned.Store(nil) // the follower is already ahead
}
