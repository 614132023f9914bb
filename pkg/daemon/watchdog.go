package daemon

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// watchdogLimit is the number of seconds without a beat after which a component counts as stuck. Components beat
// at least every two seconds. The seconds are counted by the watchdog's own ticks, so time in which the
// whole process was stopped does not count; the lease covers that case.
const watchdogLimit = 15

// watchdog makes sure that the node does not keep its lease while it does no work: while one of
// the node's components is stuck, sessions are not renewed and none is opened.
type watchdog struct {
	log    *zap.Logger
	parts  []*watchedPart        // set before run
	wedged atomic.Pointer[error] // which component is stuck; nil or a nil error: none
	looks  atomic.Int64          // number of checks; the service manager's watchdog compares it
}

// beater is a component with a counter that grows while it makes progress. Before the first beat it is 0.
type beater interface {
	Beats() int64
}

// watchedPart is a component and its counter at the previous check.
type watchedPart struct {
	name  string
	part  beater
	last  int64 // its counter at the previous check
	still int   // number of checks in a row without a change
}

// newWatchdog returns a watchdog without components.
func newWatchdog(log *zap.Logger) *watchdog { return &watchdog{log: log.Named("watchdog")} }

// watchPart adds a component, which is checked from its first beat on. It must be called before run.
func (w *watchdog) watchPart(name string, part beater) {
	w.parts = append(w.parts, &watchedPart{name: name, part: part})
}

// run checks the components every second until ctx ends.
func (w *watchdog) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			w.checkParts()
		}
	}
}

// checkParts checks all components once and records whether one is stuck.
func (w *watchdog) checkParts() {
	var err error
	for _, p := range w.parts {
		if now := p.part.Beats(); now != p.last || now == 0 {
			p.last, p.still = now, 0
		} else {
			p.still++
		}

		if p.still >= watchdogLimit {
			err = fmt.Errorf("the node's %s does not respond", p.name)
		}
	}

	switch was := w.checkAlive(); {
	case err != nil && was == nil:
		w.log.Error("a component of this node does not respond: ending its session", zap.Error(err))
	case err == nil && was != nil:
		w.log.Info("all components of this node respond again")
	}

	w.wedged.Store(&err)
	w.looks.Add(1)
}

// checkAlive returns an error that names a stuck component, or nil if there is none.
func (w *watchdog) checkAlive() error {
	if err := w.wedged.Load(); err != nil {
		return *err
	}
	return nil
}
