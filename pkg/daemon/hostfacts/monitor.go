package hostfacts

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

// measureEvery is how often the node measures its host: as often as it announces
// itself, which it does anyhow. Facts alone never have it announced.
const measureEvery = 5 * time.Second

// Limits are beyond what the node takes no runs; 0: no limit.
type Limits struct {
	Load                 float64
	MemoryFree, DiskFree task.Size
}

// Monitor measures the host, and says which of the node's own limits are passed.
type Monitor struct {
	host    *host
	limits  Limits
	changed func() // what is exceeded has changed
	log     *zap.Logger
	first   chan struct{} // closed: something was measured

	mu       sync.Mutex
	known    *task.Facts
	exceeded []string
}

// NewMonitor returns a monitor of the host and of the file system of dataDir, which has
// measured nothing yet. changed is called when another set of limits is passed.
func NewMonitor(dataDir string, l Limits, changed func(), log *zap.Logger) *Monitor {
	return &Monitor{host: newHost(dataDir), limits: l, changed: changed,
		log: log.Named("facts"), first: make(chan struct{})}
}

// Measured is closed when the host has been measured once.
func (f *Monitor) Measured() <-chan struct{} { return f.first }

// Run measures until ctx ends.
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

// setFacts keeps what was measured.
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

// Known is what the node announces.
func (f *Monitor) Known() (known *task.Facts, exceeded []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known, f.exceeded
}

// reliefPart is by which part a fact has to be back within its limit before the node
// takes runs again: not for every breath it comes and goes.
const reliefPart = 0.1

// overLimits are the facts that are beyond their limits, where those before were. A fact
// that is not known stays what it was.
func (l Limits) overLimits(now *task.Facts, before []string) (list []string) {
	check := func(name string, limit float64, beyond func(v, limit float64) bool, back float64) {
		if limit == 0 {
			return
		}

		was := slices.Contains(before, name)
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
