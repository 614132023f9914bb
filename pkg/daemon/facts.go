package daemon

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
const measureEvery = announceEvery

// limits are beyond what the node takes no runs; 0: no limit.
type limits struct {
	load             float64
	memory, diskFree task.Size
}

// facts measures the host, and says which of the node's own limits are passed.
type facts struct {
	host    *host
	limits  limits
	changed func() // what is pressed has changed
	log     *zap.Logger
	first   chan struct{} // closed: something was measured

	mu      sync.Mutex
	known   *task.Facts
	pressed []string
}

func newFacts(cfg Config, changed func(), log *zap.Logger) *facts {
	return &facts{host: newHost(cfg.DataDir), limits: limits{cfg.MaxLoad, cfg.MinMemoryFree, cfg.MinDiskFree}, changed: changed,
		log: log.Named("facts"), first: make(chan struct{})}
}

// run measures until ctx ends.
func (f *facts) run(ctx context.Context) error {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		f.take(f.host.measure(ctx))
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

// take keeps what was measured.
func (f *facts) take(now *task.Facts) {
	f.mu.Lock()
	was := f.pressed
	f.known, f.pressed = now, f.limits.pressed(now, was)
	is := f.pressed
	f.mu.Unlock()
	if !slices.Equal(was, is) {
		f.log.Info("pressure has changed", zap.Strings("pressed", is), zap.Strings("before", was), zap.Any("facts", now))
		f.changed()
	}
}

// tell is what the node announces.
func (f *facts) tell() (known *task.Facts, pressed []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known, f.pressed
}

// relief is by which part a fact has to be back within its limit before the node
// takes runs again: not for every breath it comes and goes.
const relief = 0.1

// pressed are the facts that are beyond their limits, where those before were. A fact
// that is not known stays what it was.
func (l limits) pressed(now *task.Facts, before []string) (list []string) {
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
	check(task.FactLoad1, l.load, more, -relief)
	check(task.FactMemoryFree, float64(l.memory), less, relief)
	check(task.FactDiskFree, float64(l.diskFree), less, relief)
	return list
}
