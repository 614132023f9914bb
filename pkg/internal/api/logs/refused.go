package logs

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// untilRefused returns a context that ends with the request, when the node stops serving requests, or when the
// caller loses its access. The node to which the request is forwarded cannot check the last, because it does
// not receive the caller's token.
func (h *Handlers) untilRefused(c *httpapi.Call) (context.Context, context.CancelFunc) {
	request := c.Request // captured here, because the caller replaces c.Request while the goroutine runs
	ctx, cancel := context.WithCancel(c.Context())

	callgroup.Start(func() {
		defer cancel()

		beat := time.NewTicker(h.Heartbeat)
		defer beat.Stop()

		for {
			select {
			case <-beat.C:
				if h.CheckStream(ctx, request) != nil {
					return
				}
			case <-h.Ends:
				return
			case <-ctx.Done():
				return
			}
		}
	}, func(p *callgroup.Panic) { h.Problems.LogFailure(request, httpapi.AsFailure(p)) })

	return ctx, cancel
}
