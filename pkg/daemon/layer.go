package daemon

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

// layer is parts of a node that stop together. A node's layers stop in the
// reverse of the order in which they started, whatever it was that failed: no
// part loses what it stands on.
type layer struct {
	ctx    context.Context // of the parts; not the caller's: it ends when end is called
	stop   context.CancelFunc
	parts  errgroup.Group
	failed chan<- struct{} // told when a part ends before it was asked to
}

func newLayer(ctx context.Context, failed chan<- struct{}) *layer {
	l := &layer{failed: failed}
	l.ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	return l
}

// run starts a part.
func (l *layer) run(part func(context.Context) error) {
	l.parts.Go(func() error {
		err := part(l.ctx)
		if l.ctx.Err() == nil {
			select {
			case l.failed <- struct{}{}:
			default:
			}
		}
		return err
	})
}

// end stops the parts, waits for them, and returns the first failure.
func (l *layer) end() error {
	l.stop()
	if err := l.parts.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
