package daemon

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// oneSignal is how close together several signals count as one: a service
// manager tells the process, and whoever started it passes the word on.
const oneSignal = time.Second

// Signals returns a context that ends at the first SIGINT or SIGTERM. From a
// second later on the system's own way takes over, so that nothing can keep the
// process from being stopped.
func Signals(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(oneSignal, stop) })
	return ctx, stop
}
