package task

import (
	"math"
	"slices"
	"time"
)

// Wants reports whether another attempt follows attempt number attempt (from 1), which ended in state s.
// exitCode is that of its process, or nil.
func (r Retry) Wants(attempt int, s State, exitCode *int) bool {
	return attempt < r.Attempts && r.retryable(s, exitCode)
}

// retryable reports whether an attempt that ended this way is retried while attempts are left.
func (r Retry) retryable(s State, exitCode *int) bool {
	if !slices.Contains(r.On, s) {
		return false
	}
	return s != Failed || len(r.ExitCodes) == 0 || exitCode != nil && slices.Contains(r.ExitCodes, *exitCode)
}

// Wait returns how long after the end of attempt n (from 1) the next one may start: Backoff × Factor^(n−1), at
// most MaxBackoff, changed by at most ± Jitter of itself. spread is a random number in [0, 1).
func (r Retry) Wait(n int, spread float64) time.Duration {
	// The power is limited before the multiplication, because 0 × ∞ is not a number.
	d := float64(r.Backoff) * min(math.Pow(r.Factor, float64(n-1)), math.MaxFloat64)
	d = min(d, float64(r.MaxBackoff))
	d *= 1 + r.Jitter*(2*spread-1)
	return time.Duration(max(d, 0)).Truncate(time.Millisecond)
}
