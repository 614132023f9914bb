package bench

import (
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// fakeClock is the clock of the scheduler. It does not advance until it is started in one of two ways: it runs
// steadily, as fast as the real clock, or it is advanced by the benchmark as ticks are decided.
//
//	held at origin ──steady──▶ wall clock + shift
//	      └──advance──▶ driven ──advance──▶ …
type fakeClock struct {
	ms    atomic.Int64 // the time that it shows while it does not run steadily
	shift atomic.Int64 // ns from the real clock to this one while it runs steadily
	goes  atomic.Bool  // it runs steadily

	mu    sync.Mutex
	steps []step // when an advanced clock showed which time, oldest first
}

// step is an advance of the clock: at the real time at, it showed ms.
type step struct {
	ms int64
	at time.Time
}

func newFakeClock(at time.Time) *fakeClock {
	c := &fakeClock{}
	c.ms.Store(at.UnixMilli())
	return c
}

// Now returns the time for the scheduler.
func (c *fakeClock) Now() time.Time {
	if c.goes.Load() {
		return time.Now().Add(time.Duration(c.shift.Load()))
	}
	return time.UnixMilli(c.ms.Load()).UTC()
}

// runSteadily lets the clock run as fast as the real clock, starting from a time.
func (c *fakeClock) runSteadily(from time.Time) {
	c.shift.Store(int64(time.Until(from)))
	c.goes.Store(true)
}

// stopRunning stops a clock that runs steadily.
func (c *fakeClock) stopRunning() {
	c.ms.Store(c.Now().UnixMilli())
	c.goes.Store(false)
}

// advanceTo advances the clock. It never moves backward.
func (c *fakeClock) advanceTo(ms int64) {
	if ms <= c.ms.Load() {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	if ms <= c.ms.Load() {
		return
	}

	c.steps = append(c.steps, step{ms, time.Now()})
	c.ms.Store(ms)
}

// forgetBefore drops the steps that are not needed for ticks from ms on.
func (c *fakeClock) forgetBefore(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.indexOf(ms); n > 4096 {
		c.steps = append([]step(nil), c.steps[n:]...)
	}
}

// indexOf returns the first step at which the clock showed ms or later.
func (c *fakeClock) indexOf(ms int64) int {
	return sort.Search(len(c.steps), func(i int) bool { return c.steps[i].ms >= ms })
}

// eachReached calls f for each of the ticks, which are in ms and ascending, with the real time at which the clock
// reached it.
func (c *fakeClock) eachReached(ticks []int64, f func(at time.Time)) {
	if len(ticks) == 0 {
		return
	}

	if c.goes.Load() {
		shift := time.Duration(c.shift.Load())
		for _, t := range ticks {
			f(time.UnixMilli(t).Add(-shift))
		}
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	// Both lists are ascending, so one pass is enough.
	i := c.indexOf(ticks[0])
	for _, t := range ticks {
		for i < len(c.steps) && c.steps[i].ms < t {
			i++
		}

		if i < len(c.steps) {
			f(c.steps[i].at)
		}
	}
}
