package daemon

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// watchdogLimit is for how many seconds of the watchdog's own time a part may
// stand still. A part beats every two seconds at the latest. Seconds in which the
// whole process stands still do not count, however many: etcd counts those.
const watchdogLimit = 15

// watchdog sees to it that a lease never outlives what it stands for: while one of
// the node's parts stands still, sessions are not renewed, and none is opened.
type watchdog struct {
	log    *zap.Logger
	parts  []*watchedPart
	wedged atomic.Pointer[error]
	looks  atomic.Int64
}

// beater is a part of the node whose number of beats grows while it lives.
type beater interface {
	Beats() int64
}

// watchedPart is a part with a number that grows while it lives.
type watchedPart struct {
	name  string
	part  beater
	last  int64
	still int
}

func newWatchdog(log *zap.Logger) *watchdog { return &watchdog{log: log.Named("watchdog")} }

// watchPart has a part watched, from its first beat on.
func (w *watchdog) watchPart(name string, part beater) {
	w.parts = append(w.parts, &watchedPart{name: name, part: part})
}

// run watches until ctx ends, as the parts do.
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

// checkAlive says which part stands still; nil if none does.
func (w *watchdog) checkAlive() error {
	if err := w.wedged.Load(); err != nil {
		return *err
	}
	return nil
}
