package executor

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/proctree"
)

// clocks are CLOCK_BOOTTIME, which counts suspend, and CLOCK_MONOTONIC, which does not.
type clocks struct{ boot, mono func() time.Duration }

// clocksOf returns the host's clocks or, if boot is set, those of a host that never suspends.
func clocksOf(boot func() time.Duration) clocks {
	if boot != nil {
		return clocks{boot, boot}
	}
	return clocks{proctree.BootTime, monotonicTime}
}

// monotonicTime returns CLOCK_MONOTONIC, which stops while the host is suspended.
func monotonicTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("clock_gettime: " + err.Error()) // Linux always has this clock
	}
	return time.Duration(ts.Nano())
}

// renewals converts the time of a session's last renewal to CLOCK_BOOTTIME. The session
// itself measures with Go's monotonic clock, which stops during suspend.
//
//	boot time of the renewal = its monotonic time + (boot − monotonic) at that time
//
// The difference grows with every suspend and never shrinks. Each call of lastRenewal samples it and uses
// the sample of the previous call. If the host was suspended since then, the renewal appears
// older than it was, never younger, so attempts are killed too early rather than too late (G17).
type renewals struct {
	clocks
	last  func() time.Time // Session.LastRenewal
	slept time.Duration    // boot − monotonic at the previous call
	seen  time.Time        // the renewal at the previous call
	at    time.Duration    // boot time of that renewal
}

// newRenewals returns the renewals of a new session. last is Session.LastRenewal.
func newRenewals(c clocks, last func() time.Time) *renewals {
	return &renewals{clocks: c, last: last, slept: c.boot() - c.mono()}
}

// lastRenewal returns when the last acknowledged renewal was sent, on CLOCK_BOOTTIME.
func (r *renewals) lastRenewal() time.Duration {
	// The order matters: time that passes between the readings makes a renewal older, not younger.
	boot := r.boot()
	mono, last := r.mono(), r.last()
	if !last.Equal(r.seen) || r.at == 0 {
		// A new renewal. Its boot time is computed once: at a later call, slept would include a suspend that
		// came after the renewal.
		r.seen, r.at = last, mono-time.Since(last)+r.slept
	}

	r.slept = boot - mono

	return r.at
}
