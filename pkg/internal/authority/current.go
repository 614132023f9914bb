package authority

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// Current returns a view that has every change of the access records that Carillon had made when Current was called, like a
// linearizable read of all of them. It costs one read of two keys, however many records there are. Its error is
// task.ErrUnavailable.
func (k *Keeper) Current(ctx context.Context) (*View, error) {
	for {
		err := k.proveCurrent(ctx)
		if err == nil {
			return k.View(), nil // the proven view, or a newer one
		}

		// A change that was written just now is still on its way.
		if !errors.Is(err, errNotProven) || !clock.Sleep(ctx, 2*time.Millisecond) {
			return nil, fmt.Errorf("%w: read the access records: %w", task.ErrUnavailable, err)
		}
	}
}

// Await returns the first view for which is returns true. It returns task.ErrUnavailable if ctx ends first.
func (k *Keeper) Await(ctx context.Context, is func(*View) bool) (*View, error) {
	return k.awaitView(ctx, is)
}
