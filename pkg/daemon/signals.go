package daemon

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// oneSignal is the time within which several signals count as one. A process may receive a signal twice: from the
// service manager, and from a parent that forwards it.
const oneSignal = time.Second

// Signals returns a context that ends at the first SIGINT or SIGTERM. A signal that arrives more than a
// second later has its default effect and ends the process, so a drain that hangs cannot prevent that.
func Signals(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(oneSignal, stop) })
	return ctx, stop
}
