package bench

import (
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// pacedClock is the wall clock of a saturated node. The benchmark advances it as ticks are decided, and never beyond the
// real time: leases, attempts and etcd use that.
type pacedClock struct {
	ms atomic.Int64 // the time that it shows

	mu    sync.Mutex
	steps []step // when it showed which time, oldest first
}

// step is an advance of the clock: at the real time at, it showed ms.
type step struct {
	ms int64
	at time.Time
}

func newPacedClock(at time.Time) *pacedClock {
	c := &pacedClock{}
	c.ms.Store(at.UnixMilli())
	return c
}

// Now returns the time that the clock shows.
func (c *pacedClock) Now() time.Time { return time.UnixMilli(c.ms.Load()).UTC() }

// boot is the boot clock of a node. Its distance to Now never changes, because a node does not trust a wall clock that
// jumps.
func (c *pacedClock) boot() time.Duration { return time.Duration(c.ms.Load()) * time.Millisecond }

// advanceTo advances the clock. It never moves backward.
func (c *pacedClock) advanceTo(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if ms > c.ms.Load() {
		c.steps = append(c.steps, step{ms, time.Now()})
		c.ms.Store(ms)
	}
}

// forgetBefore drops the steps that are not needed for ticks from ms on.
func (c *pacedClock) forgetBefore(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.indexOf(ms); n > 4096 {
		c.steps = append([]step(nil), c.steps[n:]...)
	}
}

// indexOf returns the first step at which the clock showed ms or later.
func (c *pacedClock) indexOf(ms int64) int {
	return sort.Search(len(c.steps), func(i int) bool { return c.steps[i].ms >= ms })
}

// eachReached calls f for each of the ticks, which are in ms and ascending, with the real time at which the clock
// reached it.
func (c *pacedClock) eachReached(ticks []int64, f func(at time.Time)) {
	if len(ticks) == 0 {
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
