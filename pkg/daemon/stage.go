package daemon

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

// stage is parts of a node that stop together. A node's stages stop in the
// reverse of the order in which they started, whatever it was that failed: no
// part loses what it stands on.
type stage struct {
	ctx    context.Context // of the parts; not the caller's: it ends when stopParts is called
	stop   context.CancelFunc
	parts  errgroup.Group
	failed chan<- struct{} // told when a part ends before it was asked to
}

func newStage(ctx context.Context, failed chan<- struct{}) *stage {
	s := &stage{failed: failed}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

// startPart starts a part.
func (s *stage) startPart(part func(context.Context) error) {
	s.parts.Go(func() error {
		err := part(s.ctx)

		if s.ctx.Err() == nil {
			select {
			case s.failed <- struct{}{}:
			default:
			}
		}

		return err
	})
}

// stopParts stops the parts, waits for them, and returns the first failure.
func (s *stage) stopParts() error {
	s.stop()
	if err := s.parts.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
