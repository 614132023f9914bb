package sim_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/sim"
	"github.com/carillonhq/carillon/pkg/task"
)

// Runs are paused and resumed all the time, while nodes join and leave, sessions end, and writes are lost, late and
// repeated.
func TestPauses_CrossWhateverHappens(t *testing.T) {
	racetest.SkipIfShort(t)
	t.Parallel()

	calls := []string{"apply", "trigger", "cancel", "turn", "turn", "turn", "turn", "turn", "turn", "turn"}
	long := func(s *task.Spec) { // long runs that can be replaced
		s.Shadow, s.Start, s.Timeout = false, task.Time{}, task.Duration(12*time.Second)
		s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "6s", "0"}}}
	}

	seeds := []uint64{1, 5}
	if testing.Short() {
		seeds = seeds[:1]
	}

	requireAllReached(t, []string{"run paused", "run resumed", "run ended after a pause"}, seeds, nil,
		sim.Options{Calls: calls, Shape: long, Tasks: 3, Duration: 40 * time.Second})
}
