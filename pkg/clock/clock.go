// Package clock waits for time to pass, until a context ends. It imports nothing of
// this module, so that every package can use it.
package clock

import (
	"context"
	"time"
)

// Sleep waits for d. It returns false, at once, if ctx ends first or has ended.
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
