package logs

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// untilRefused ends with ctx, when the node stops answering, or when the caller is not
// let in any more: the node that is asked cannot know of that, as it has no token to
// look at.
func (h *Handlers) untilRefused(c *httpapi.Call) (context.Context, context.CancelFunc) {
	request := c.Request // the caller replaces c.r while the goroutine below runs
	ctx, cancel := context.WithCancel(c.Context())

	go func() {
		defer cancel()

		beat := time.NewTicker(h.Heartbeat)
		defer beat.Stop()

		for {
			select {
			case <-beat.C:
				if h.Refused(ctx, request) {
					return
				}
			case <-h.Ends:
				return
			case <-ctx.Done():
				return
			}
		}
	}()

	return ctx, cancel
}
