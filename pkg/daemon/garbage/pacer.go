// Package garbage sets how much the heap may grow before Go collects garbage: more than by default while the heap is
// small, and less while the process is idle.
//
// It is for a process that has little in memory and creates much garbage when it is busy. If GOGC is set, the package
// changes nothing. GOMEMLIMIT applies in any case.
//
// The package is separate from daemon, because its tests change the garbage collector of their whole process.
package garbage

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// garbageRoom is the number of bytes by which the heap may grow before a collection. By default, Go collects when the
// heap has doubled. A daemon has little in memory and
// creates much garbage when it is busy, so it would collect dozens of times a second.
// This took a fifth of the processor time of a run (docs/benchmarks.md).
const garbageRoom = 128 << 20

// Values of GOGC in percent of the live heap.
const (
	maxGarbage   = 800              // maximum, for a small heap
	busyGarbage  = 100              // minimum while the process is busy; Go's default
	idleGarbage  = 40               // minimum of an idle process, which has time to collect and should use less memory
	idleInterval = 10 * time.Second // a process without a collection for this long is idle
)

// minIdleGarbage is the number of bytes of garbage at which an idle process with a small heap collects. After a burst,
// such as loading many tasks, the next collection could otherwise be minutes away.
const minIdleGarbage = 32 << 20

// MakeRoom adjusts GOGC from now on until stop is called, which restores its former value. If the user has set GOGC, it
// does nothing. GOMEMLIMIT applies in any case.
func MakeRoom() (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}

	g := &pacer{former: debug.SetGCPercent(100), ended: make(chan struct{})}
	g.noteCollection()
	g.wg.Go(func() { g.collectPeriodically(idleInterval) })

	return g.stop
}

// pacer adjusts GOGC after each collection.
type pacer struct {
	former int // GOGC before MakeRoom
	ended  chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	over    bool      // stop was called
	percent int       // the value of GOGC
	last    time.Time // when the last collection ended
}

// noteCollection sets GOGC after a collection, and arranges to be called after the next one.
func (pa *pacer) noteCollection() {
	pa.mu.Lock()
	defer pa.mu.Unlock()

	if pa.over {
		return
	}

	now := time.Now()
	idle := now.Sub(pa.last) > idleInterval
	pa.last = now
	if p := gogcPercent(liveHeap(), idle); p != pa.percent {
		pa.percent = p
		debug.SetGCPercent(p)
	}

	sentinel := new([16]byte) // unreachable, so the next collection runs its cleanup
	runtime.AddCleanup(sentinel, func(g *pacer) { g.noteCollection() }, pa)
}

// collectPeriodically collects garbage if there was no collection for the interval and there is enough garbage.
func (pa *pacer) collectPeriodically(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-pa.ended:
			return
		case <-t.C:
		}

		pa.mu.Lock()
		idle := time.Since(pa.last) >= every
		pa.mu.Unlock()

		if live := liveHeap(); idle && heapInUse() > live+worthCollecting(live) {
			runtime.GC()
		}
	}
}

// stop restores GOGC and waits for the goroutine. It may be called more than once.
func (pa *pacer) stop() {
	pa.mu.Lock()
	first := !pa.over
	if first {
		pa.over = true
		debug.SetGCPercent(pa.former)
		close(pa.ended)
	}
	pa.mu.Unlock()

	pa.wg.Wait()
}

// gogcPercent returns the value of GOGC for a live heap of that many bytes. It is a multiple of ten, so that it changes
// rarely: setting it stops the program for a moment.
func gogcPercent(live uint64, idle bool) int {
	least := uint64(busyGarbage)
	if idle {
		least = idleGarbage
	}

	percent := garbageRoom / max(live/100, 1)
	return int(min(max(percent, least), maxGarbage)) / 10 * 10
}

// worthCollecting returns the number of bytes of garbage at which an idle process collects. A collection costs as much as
// the live heap is large: two seconds of CPU for a node with a million tasks. So it also waits for a quarter of the live
// heap, which is less than idleGarbage.
func worthCollecting(live uint64) uint64 { return max(minIdleGarbage, live/4) }

// liveHeap returns the bytes that the last collection found alive. heapInUse returns the bytes that
// are alive or garbage now.
func liveHeap() uint64  { return readMetric("/gc/heap/live:bytes") }
func heapInUse() uint64 { return readMetric("/memory/classes/heap/objects:bytes") }

// readMetric reads a runtime metric whose value is an integer.
func readMetric(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
