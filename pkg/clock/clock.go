// Package clock provides a sleep that ends with a context, and random durations. It imports no other package of
// this module, so every package can use it.
package clock

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep waits for d and returns true. It returns false at once when ctx ends, or if it has ended already.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err() == nil
	}

	t := time.NewTimer(d)
	defer t.Stop()

	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Jitter returns a random duration between half of d and one and a half of d. Use it for periods and pauses that many
// nodes have, so that they do not act at the same moment.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }
