// Package clock provides a sleep that ends with a context. It imports no other package of
// this module, so every package can use it.
package clock

import (
	"context"
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
