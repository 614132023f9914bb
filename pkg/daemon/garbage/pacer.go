package garbage

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// Go collects garbage when the heap has doubled. A daemon has little in memory and
// makes much garbage when it is busy, so it would collect dozens of times a second:
// a fifth of the processor time of a run (docs/benchmarks.md). So the heap may grow
// by at least this much first.
const garbageRoom = 128 << 20

// GOGC, in percent of what is alive: at most, of a small heap; at least, while the
// node is busy, as Go has it; and of an idle one, which has time to collect and
// need not keep as much again as it uses.
const (
	mostGarbage  = 800
	busyGarbage  = 100
	idleGarbage  = 40
	idleInterval = 10 * time.Second // between two collections
)

// After a burst, such as the load of many tasks, the next collection may be minutes
// away. Whoever has been idle since then collects what is worth it.
const worthCollecting = 32 << 20

// MakeRoom lets garbage take up room before it is collected, from now on
// until stop is called. If the user has set GOGC, that stands, and nothing is done;
// GOMEMLIMIT holds in any case.
func MakeRoom() (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}

	g := &pacer{former: debug.SetGCPercent(100), ended: make(chan struct{})}
	g.noteCollection()
	g.wg.Go(func() { g.collectPeriodically(idleInterval) })

	return g.stop
}

type pacer struct {
	former int
	ended  chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	over    bool
	percent int
	last    time.Time // when the last collection ended
}

// noteCollection is called after each collection, and has itself called after the next.
func (g *pacer) noteCollection() {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.over {
		return
	}

	now := time.Now()
	idle := now.Sub(g.last) > idleInterval
	g.last = now
	if p := gogcPercent(liveHeap(), idle); p != g.percent {
		g.percent = p
		debug.SetGCPercent(p)
	}

	sentinel := new([16]byte) // nobody holds it: the next collection finds it
	runtime.AddCleanup(sentinel, func(g *pacer) { g.noteCollection() }, g)
}

// collectPeriodically collects, while nothing else does, what is worth it.
func (g *pacer) collectPeriodically(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-g.ended:
			return
		case <-t.C:
		}

		g.mu.Lock()
		idle := time.Since(g.last) >= every
		g.mu.Unlock()

		if idle && heapInUse() > liveHeap()+worthCollecting {
			runtime.GC()
		}
	}
}

func (g *pacer) stop() {
	g.mu.Lock()
	first := !g.over
	if first {
		g.over = true
		debug.SetGCPercent(g.former)
		close(g.ended)
	}
	g.mu.Unlock()

	g.wg.Wait()
}

// gogcPercent is GOGC for so many bytes alive, in steps of ten: to set it stops
// the program for a moment.
func gogcPercent(live uint64, idle bool) int {
	least := uint64(busyGarbage)
	if idle {
		least = idleGarbage
	}

	percent := garbageRoom / max(live/100, 1)
	return int(min(max(percent, least), mostGarbage)) / 10 * 10
}

// liveHeap is the bytes that the last collection found alive, heapInUse those that
// are alive or garbage now.
func liveHeap() uint64  { return readMetric("/gc/heap/live:bytes") }
func heapInUse() uint64 { return readMetric("/memory/classes/heap/objects:bytes") }

func readMetric(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
