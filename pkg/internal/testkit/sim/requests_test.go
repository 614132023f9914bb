package sim_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/testkit/sim"
)

// Tasks send requests to targets that fail now and then, while nodes are killed, cut off and drained.
func TestRequests(t *testing.T) {
	t.Parallel()
	requireAllReached(t, []string{
		"run waits for its target", "tick waits for a target", "request not sent", "request not answered", "target asks to wait", "run ended as lost", "fault kill host", "fault cut",
	}, []uint64{1, 2}, nil, sim.Options{Workloads: []string{"requests"}, Only: []string{"kill", "kill host", "cut", "held", "stall watches", "drain", "clock"}, Duration: time.Minute})
}
