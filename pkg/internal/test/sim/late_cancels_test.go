package sim_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/sim"
	"github.com/carillonhq/carillon/pkg/task"
)

// Runs are cancelled while etcd is full, and their nodes end them, while daemons are killed and sessions end. No cancelled
// attempt is retried, each run ends, and the history is as if etcd had only been slow.
func TestLateCancels_CrossWhateverHappens(t *testing.T) {
	racetest.SkipIfShort(t)
	t.Parallel()

	o := sim.Options{
		Plain: true, Tasks: 4, Slots: 40, Duration: 90 * time.Second, Only: []string{"etcd full", "kill", "stall watches"},
		Calls: []string{"trigger", "cancel active", "cancel active", "cancel active", "cancel active", "turn"},
		Shape: func(s *task.Spec) { // many long runs beside each other, some of which fail and are retried
			s.Schedule, s.Overlap, s.Timeout = task.Schedules{"*/2 * * * * *"}, task.OverlapAllow, 0
			s.Retry.Attempts, s.Retry.Backoff, s.Retry.On = 3, task.Duration(time.Second), []task.State{task.Failed, task.Lost}
			s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "20s", []string{"0", "1"}[s.History.Keep%2]}}}
		},
	}

	seeds := []uint64{1, 2, 3}
	if testing.Short() {
		seeds, o.Duration = seeds[:1], 50*time.Second
	}

	requireAllReached(t, []string{"run cancelled in a full etcd", "fault etcd full", "fault kill"}, seeds, nil, o)
}
