package task

import (
	"math"
	"slices"
	"time"
)

// Wants reports whether an attempt, counted from 1, that ended in state s is to
// be followed by another. exitCode is that of its process; nil if it has none.
func (r Retry) Wants(attempt int, s State, exitCode *int) bool {
	return attempt < r.Attempts && r.retryable(s, exitCode)
}

// retryable reports whether an attempt that ended so is followed by another as
// long as there are any left.
func (r Retry) retryable(s State, exitCode *int) bool {
	if !slices.Contains(r.On, s) {
		return false
	}
	return s != Failed || len(r.ExitCodes) == 0 || exitCode != nil && slices.Contains(r.ExitCodes, *exitCode)
}

// Wait is how long after attempt n (counted from 1) ended the next may start:
// Backoff × Factor^(n−1), at most MaxBackoff, then moved by up to ± Jitter of
// itself. spread is a random number in [0, 1).
func (r Retry) Wait(n int, spread float64) time.Duration {
	// Bounded before it is multiplied: 0 × ∞ is no number.
	d := float64(r.Backoff) * min(math.Pow(r.Factor, float64(n-1)), math.MaxFloat64)
	d = min(d, float64(r.MaxBackoff))
	d *= 1 + r.Jitter*(2*spread-1)
	return time.Duration(max(d, 0)).Truncate(time.Millisecond)
}
