package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/sim"
	"github.com/carillonhq/carillon/pkg/task"
)

// forgetful gives tasks short histories, on whose last record much depends: when the task is deleted, when its next
// tick is, and whether it is paused.
func forgetful(s *task.Spec) {
	s.History.Keep = 1 + s.History.Keep%3
	s.TTL, s.Retry.Attempts = task.Duration(6*time.Second), 1
	s.Start, s.End = task.Time{}, task.At(time.Now().Add(15*time.Second))
}

// Tasks keep one to three records. The latest end is kept, so no task is deleted before its ttl is over, and none
// has its next tick before its period is over.
func TestShortHistories(t *testing.T) {
	racetest.SkipIfShort(t)
	t.Parallel()

	seeds := []uint64{38, 35} // with these seeds, tasks were deleted too early
	if testing.Short() {
		seeds = seeds[:1]
	}

	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			runInBubble(t, seed, sim.Options{Shape: forgetful})
		})
	}
}
