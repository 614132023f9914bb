package hostfacts

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

// measureEvery is the interval at which the host is measured. It equals the interval at which nodes announce
// themselves. A change of facts alone does not cause an announcement.
const measureEvery = 5 * time.Second

// Limits are the limits of the node's settings. While one is exceeded, the node accepts no runs. 0 means no limit.
type Limits struct {
	Load                 float64
	MemoryFree, DiskFree task.Size
}

// Monitor measures the host and determines which limits are exceeded. Its methods may be called from any goroutine.
type Monitor struct {
	host    *host
	limits  Limits
	changed func() // called when the set of exceeded limits has changed
	log     *zap.Logger
	first   chan struct{} // closed after the first measurement

	mu       sync.Mutex
	known    *task.Facts // the last measurement; nil: none yet
	exceeded []string    // the names of the facts whose limits are exceeded
}

// NewMonitor returns a monitor of the host and of the file system that contains dataDir. It measures nothing before
// Run. changed is called when the set of exceeded limits has changed.
func NewMonitor(dataDir string, l Limits, changed func(), log *zap.Logger) *Monitor {
	return &Monitor{host: newHost(dataDir), limits: l, changed: changed,
		log: log.Named("facts"), first: make(chan struct{})}
}

// Measured returns a channel that is closed when the host has been measured once.
func (f *Monitor) Measured() <-chan struct{} { return f.first }

// Run measures every measureEvery until ctx ends.
func (f *Monitor) Run(ctx context.Context) error {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		f.setFacts(f.host.measureFacts(ctx))

		if first {
			close(f.first)
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// setFacts stores a measurement and calls changed if other limits are exceeded now.
func (f *Monitor) setFacts(now *task.Facts) {
	f.mu.Lock()
	was := f.exceeded
	f.known, f.exceeded = now, f.limits.overLimits(now, was)
	is := f.exceeded
	f.mu.Unlock()

	if !slices.Equal(was, is) {
		f.log.Info("limits exceeded on this host changed", zap.Strings("exceeded", is), zap.Strings("before", was), zap.Any("facts", now))
		f.changed()
	}
}

// Known returns the last measurement and the names of the facts whose limits are exceeded.
func (f *Monitor) Known() (known *task.Facts, exceeded []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known, f.exceeded
}

// reliefPart is the fraction by which a fact has to be within its limit again before the limit
// no longer counts as exceeded. This hysteresis keeps changes, which are announced at once, rare.
const reliefPart = 0.1

// overLimits returns the names of the facts that exceed their limits. before is the previous result. An unknown fact
// keeps its state.
func (l Limits) overLimits(now *task.Facts, before []string) (list []string) {
	check := func(name string, limit float64, beyond func(v, limit float64) bool, back float64) {
		if limit == 0 {
			return
		}

		was := slices.Contains(before, name)
		// A limit that is exceeded is tightened, so that the fact has to be well within it before it no longer counts.
		if was {
			limit *= 1 + back
		}

		v, known := now.Fact(name)
		if known && beyond(v, limit) || !known && was {
			list = append(list, name)
		}
	}

	more := func(v, limit float64) bool { return v > limit }
	less := func(v, limit float64) bool { return v < limit }
	check(task.FactLoad1, l.Load, more, -reliefPart)
	check(task.FactMemoryFree, float64(l.MemoryFree), less, reliefPart)
	check(task.FactDiskFree, float64(l.DiskFree), less, reliefPart)

	return list
}
