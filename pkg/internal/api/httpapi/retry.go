package httpapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxConflicts is the maximum number of attempts to make a change that other writers interfere with. Next to a
// writer that writes all the time, half of the attempts fail. Sixteen attempts wait 0.6 s on average.
const maxConflicts = 16

// RetryConflict calls f until it returns anything but task.ErrConflict, or until the attempts are used up. A
// conflict is definite: f has written nothing, and must read the current state again. RetryConflict never
// repeats a write of unknown outcome.
func RetryConflict(ctx context.Context, f func() error) error {
	for i := 1; ; i++ {
		err := f()
		if i == maxConflicts || !errors.Is(err, task.ErrConflict) {
			return err
		}

		if !clock.Sleep(ctx, rand.N(time.Duration(i)*10*time.Millisecond)) {
			return err
		}
	}
}
