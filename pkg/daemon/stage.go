package daemon

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/wake"
)

// stage is a group of components that stop together. A node's stages stop in the
// reverse order of their start, whichever component failed, so no
// component outlives those on which it depends.
type stage struct {
	ctx    context.Context // passed to the components; ends with stopParts and not with the caller's context
	stop   context.CancelFunc
	parts  errgroup.Group
	failed wake.Signal // receives a value when a component ends before stopParts
}

// newStage returns a stage without components.
func newStage(ctx context.Context, failed wake.Signal) *stage {
	s := &stage{failed: failed}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

// startPart runs a component on a goroutine.
func (s *stage) startPart(part func(context.Context) error) {
	s.parts.Go(func() error {
		err := part(s.ctx)

		if s.ctx.Err() == nil {
			s.failed.Send()
		}

		return err
	})
}

// stopParts stops the components, waits for them, and returns the first error that is not a cancellation.
func (s *stage) stopParts() error {
	s.stop()
	if err := s.parts.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
