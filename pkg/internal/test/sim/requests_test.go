package sim_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/sim"
	"github.com/carillonhq/carillon/pkg/task"
)

// Tasks send requests to targets that fail now and then, while nodes are killed, cut off and drained.
func TestRequests(t *testing.T) {
	racetest.SkipIfShort(t)
	t.Parallel()

	paths := []string{
		"run waits for its target", "tick waits for a target", "request not sent", "request not answered", "target asks to wait", "run ended as lost", "fault kill host", "fault cut",
	}
	o := sim.Options{
		Workloads: []string{"requests"}, Only: []string{"kill", "kill host", "cut", "held", "stall watches", "drain", "clock"}, Duration: time.Minute, Tasks: 12,
		Shape: func(s *task.Spec) { // many ticks
			s.Schedule, s.Start, s.End, s.Shadow, s.MaxRuns = task.Schedules{"*/2 * * * * *"}, task.Time{}, task.Time{}, false, 0
		},
	}

	requireAllReached(t, paths, []uint64{1}, []uint64{2}, o)
}
