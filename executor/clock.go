package executor

import (
	"time"

	"golang.org/x/sys/unix"
)

// boottime is CLOCK_BOOTTIME: monotonic, and it counts the time in which the
// host was suspended. Deadlines that others rely on are told on this clock.
func boottime() time.Duration { return clock(unix.CLOCK_BOOTTIME) }

func clock(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic("clock_gettime: " + err.Error()) // both clocks exist since Linux 2.6.39
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
	last  func() time.Time
	slept time.Duration // boot − monotonic at the look before
	seen  time.Time     // the renewal of the look before
	at    time.Duration // when that was
}

func newRenewals(last func() time.Time) *renewals {
	return &renewals{last: last, slept: clock(unix.CLOCK_BOOTTIME) - clock(unix.CLOCK_MONOTONIC)}
}

// look returns when the last acknowledged renewal was sent.
func (r *renewals) look() time.Duration {
	// In this order: the time between the two readings makes a renewal older, not younger.
	boot := boottime()
	mono, last := clock(unix.CLOCK_MONOTONIC), r.last()
	if !last.Equal(r.seen) || r.at == 0 {
		r.seen, r.at = last, mono-time.Since(last)+r.slept
	}
	r.slept = boot - mono
	return r.at
}
