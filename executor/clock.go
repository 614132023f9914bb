package executor

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/proctree"
)

// clocks are those that deadlines are told on.
type clocks struct{ boot, mono func() time.Duration }

// clocksOf are the host's, or those of one that never sleeps.
func clocksOf(boot func() time.Duration) clocks {
	if boot != nil {
		return clocks{boot, boot}
	}
	return clocks{proctree.BootTime, monotonicTime}
}

// monotonicTime is CLOCK_MONOTONIC, which stands still while the host is suspended.
func monotonicTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("clock_gettime: " + err.Error()) // every Linux has it
	}
	return time.Duration(ts.Nano())
}

// renewals tells when a session was last renewed, on CLOCK_BOOTTIME. The
// session itself only knows the monotonic clock, which stands still in suspend.
//
//	boot time of the renewal = its monotonic time + (boot − monotonic) of then
//
// That difference only grows, by every suspend. It is sampled at each look, and
// the one of the look before is used: if the host slept since then, the renewal
// seems older than it was, never younger.
type renewals struct {
	clocks
	last  func() time.Time
	slept time.Duration // boot − monotonic at the look before
	seen  time.Time     // the renewal of the look before
	at    time.Duration // when that was
}

func newRenewals(c clocks, last func() time.Time) *renewals {
	return &renewals{clocks: c, last: last, slept: c.boot() - c.mono()}
}

// look returns when the last acknowledged renewal was sent.
func (r *renewals) look() time.Duration {
	// In this order: the time between the two readings makes a renewal older, not younger.
	boot := r.boot()
	mono, last := r.mono(), r.last()
	if !last.Equal(r.seen) || r.at == 0 {
		r.seen, r.at = last, mono-time.Since(last)+r.slept
	}

	r.slept = boot - mono

	return r.at
}
