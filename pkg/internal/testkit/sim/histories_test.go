package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/testkit/sim"
	"github.com/carillonhq/carillon/pkg/task"
)

// forgetful are tasks that keep few records, and of which much follows from the last one: when they are deleted, when
// they tick next, and whether they are paused.
func forgetful(s *task.Spec) {
	s.History.Keep = 1 + s.History.Keep%3
	s.TTL, s.Retry.Attempts = task.Duration(6*time.Second), 1
	s.Start, s.End = task.Time{}, task.At(time.Now().Add(15*time.Second))
}

// TestShortHistories lives through clusters whose tasks keep one to three records: what ended last stays, and so no task
// is deleted before its ttl is over, and none ticks before its period is.
func TestShortHistories(t *testing.T) {
	t.Parallel()
	seeds := []uint64{38, 35} // in these, tasks were deleted too early
	if testing.Short() {
		seeds = seeds[:1]
	}

	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			runInBubble(t, seed, sim.Options{Shape: forgetful})
		})
	}
}
