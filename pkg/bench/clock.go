package bench

import (
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// fakeClock is the scheduler's. It stands still until it is started, in one of two
// ways: steady, as fast as the wall's, or driven forward by whoever sees that
// ticks are decided.
//
//	held at origin ──steady──▶ wall clock + shift
//	      └──advance──▶ driven ──advance──▶ …
type fakeClock struct {
	ms    atomic.Int64 // what it shows while it does not go by itself
	shift atomic.Int64 // ns from the wall's to this one, if it is steady
	goes  atomic.Bool  // it is steady

	mu    sync.Mutex
	steps []step // how a driven one came to show what it shows, oldest first
}

// step is a move of a driven clock: at a real time it came to show ms.
type step struct {
	ms int64
	at time.Time
}

func newFakeClock(at time.Time) *fakeClock {
	c := &fakeClock{}
	c.ms.Store(at.UnixMilli())
	return c
}

// Now is what the scheduler takes for the time.
func (c *fakeClock) Now() time.Time {
	if c.goes.Load() {
		return time.Now().Add(time.Duration(c.shift.Load()))
	}
	return time.UnixMilli(c.ms.Load()).UTC()
}

// runSteadily lets the clock go on by itself, from what it is to show now.
func (c *fakeClock) runSteadily(from time.Time) {
	c.shift.Store(int64(time.Until(from)))
	c.goes.Store(true)
}

// stopRunning stops a steady clock.
func (c *fakeClock) stopRunning() {
	c.ms.Store(c.Now().UnixMilli())
	c.goes.Store(false)
}

// advanceTo drives the clock forward; it never goes back.
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

// forgetBefore drops what is not needed to tell when ticks from ms on were reached.
func (c *fakeClock) forgetBefore(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.indexOf(ms); n > 4096 {
		c.steps = append([]step(nil), c.steps[n:]...)
	}
}

func (c *fakeClock) indexOf(ms int64) int {
	return sort.Search(len(c.steps), func(i int) bool { return c.steps[i].ms >= ms })
}

// eachReached calls f for each of some ascending ticks, in ms, with the real time at
// which the clock reached it.
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
