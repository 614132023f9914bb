package httpapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// conflicts is how often a change that certainly did not happen is decided anew: beside
// one that writes all the time half of the tries fail, and sixteen wait for 0.6 s on the average.
const conflicts = 16

// RetryConflict calls f until it returns anything but task.ErrConflict. Such an
// error is definite: f wrote nothing, and what it knew is out of date.
func RetryConflict(ctx context.Context, f func() error) error {
	for i := 1; ; i++ {
		err := f()
		if i == conflicts || !errors.Is(err, task.ErrConflict) {
			return err
		}

		if !clock.Sleep(ctx, rand.N(time.Duration(i)*10*time.Millisecond)) {
			return err
		}
	}
}
