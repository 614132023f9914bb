package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/sim"
	"github.com/carillonhq/carillon/pkg/task"
)

// Runs with parts that fail, are cancelled and are retried, while nodes join and leave.
func TestFanOuts_CrossWhateverHappens(t *testing.T) {
	racetest.SkipIfShort(t)
	t.Parallel()

	o := sim.Options{
		Tasks: 8, Duration: 25 * time.Second, Only: []string{"kill host", "cut"}, Shape: withParts,
		Calls: []string{"trigger", "cancel", "cancel", "cancel", "retry"},
	}
	requireAllReached(t, []string{"run with parts", "run with parts failed", "run with parts cancelled", "part lost", "part tried again", "dead run again"},
		[]uint64{1}, nil, o)
}

// withParts gives tasks runs with parts. The parts take a while, and some fail.
func withParts(s *task.Spec) {
	n := s.History.Keep
	*s = withShortRuns(*s)
	s.Schedule, s.Target = task.Schedules{"*/5 * * * * *"}, []task.Target{
		{Parts: 3, Count: 1, Strategy: task.StrategyRandom},
		{Count: task.All, Succeed: "any", Strategy: task.StrategyAuto},
		{Count: 2, Stagger: task.Duration(time.Second), Strategy: task.StrategyRoundRobin},
		{Parts: 2, Count: 1, Succeed: "50%", Strategy: task.StrategyAuto},
	}[n%4]
	s.Retry.Attempts, s.Retry.Backoff, s.Retry.On = 2, task.Duration(300*time.Millisecond), []task.State{task.Failed, task.Lost}
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "1500ms", fmt.Sprint(n / 4 % 2)}}}
}
