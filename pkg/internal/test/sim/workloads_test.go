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

// forgetful gives tasks short histories, on whose last record much depends: when the task is deleted, when its next
// tick is, and whether it is paused.
func forgetful(s *task.Spec) {
	s.History.Keep = 1 + s.History.Keep%3
	s.TTL, s.Retry.Attempts = task.Duration(6*time.Second), 1
	s.Start, s.End = task.Time{}, task.At(time.Now().Add(15*time.Second))
}

// Tasks keep one to three records. The latest end is kept, so no task is deleted before its ttl is over, and none
// has its next tick before its period is over.
//
// Verifies: G25
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

// Runs are cancelled while etcd is full, and their nodes end them, while daemons are killed and sessions end. No cancelled
// attempt is retried, each run ends, and the history is as if etcd had only been slow.
//
// Verifies: G38
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

// Runs are paused and resumed all the time, while nodes join and leave, sessions end, and writes are lost, late and
// repeated.
//
// Verifies: G53
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

// Tasks with alerts fail, are retried, dismissed, edited and deleted, while nodes are killed and watches stall. Alerts and messages
// are always those of the records.
//
// Verifies: G57, G58, G59
func TestAlerts_CrossWhateverHappens(t *testing.T) {
	racetest.SkipIfShort(t)
	t.Parallel()

	paths := []string{"alert opens", "alert closes as succeeded", "alert closes as dismissed", "message to a receiver", "dead run again"}
	o := sim.Options{
		Workloads: []string{"alerts"}, Plain: true, Only: []string{"kill", "kill host", "stall watches", "held", "revoke a lease"}, Duration: time.Minute, Tasks: 8,
		Calls: []string{"apply", "trigger", "pause", "resume", "delete"},
	}

	requireAllReached(t, paths, []uint64{1, 2}, nil, o)
}

// Hosts boot again and again, while leaders lose their terms, and answers of etcd are lost. Each boot gives each task one run.
//
// Verifies: G62
func TestBoots_CrossWhateverHappens(t *testing.T) {
	racetest.SkipIfShort(t)
	t.Parallel()

	o := sim.Options{
		Workloads: []string{"boots"}, Only: []string{"kill", "revoke a lease", "stall watches", "held", "cut"}, Duration: time.Minute, Tasks: 8, Rough: true,
		Calls: []string{"apply", "patch", "trigger", "freeze", "unfreeze", "retry"},
	}

	requireAllReached(t, []string{"run for a boot", "fault reboot"}, []uint64{1, 2}, nil, o)
}

// Tasks run after others, in chains and fans that change and whose records are damaged, while nodes are killed when they send triggers and
// when they take them, watches stall, and answers are lost. Each end starts each dependent once.
//
// Verifies: G63, G64
func TestDependents_CrossWhateverHappens(t *testing.T) {
	racetest.SkipIfShort(t)
	t.Parallel()

	o := sim.Options{
		Workloads: []string{"dependents"}, Only: []string{"kill", "kill host", "join", "stall watches", "break watches", "held", "deaf", "revoke a lease"},
		Calls: []string{"apply", "apply", "pause", "resume", "resume", "freeze", "unfreeze", "retry", "cancel"},
	}
	paths := []string{
		"trigger sent", "trigger's run succeeded", "trigger's run failed", "trigger's run skipped", "several triggers in a record",
		"written by hand: sent", "written by hand: triggers", "written by hand: subscribers", "API answers cycle", "fault kill in a send",
	}

	requireAllReached(t, paths, []uint64{1, 2, 3}, nil, o)
}

// Tasks send requests to targets that fail now and then, while nodes are killed, cut off and drained.
//
// Verifies: G9
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

// Workflows with maps, failures, cleanup and steps that hang are cancelled, paused, retried, edited and deleted, while nodes are killed when
// they write their records, watches stall, and answers are lost. Each run follows its plan, and cleanup is not lost.
//
// Verifies: G65, G66
func TestWorkflows_CrossWhateverHappens(t *testing.T) {
	racetest.SkipIfShort(t)
	t.Parallel()

	o := sim.Options{
		Workloads: []string{"workflows"}, Only: []string{"kill", "kill host", "join", "stall watches", "break watches", "held", "deaf", "revoke a lease"},
		Calls: []string{"apply", "apply", "trigger", "delete", "freeze", "unfreeze", "unfreeze", "resume"}, Plain: true, Slots: 20, Tasks: 8,
	}
	paths := []string{
		"workflow succeeded", "workflow failed", "workflow cancelled", "workflow timed_out", "workflow paused", "workflow ended by force", "workflow tried again succeeded",
		"step without a value", "step kept", "items kept", "map of several items", "repair", "cleanup after a cancel", "cleanup after the timeout", "step skipped",
		"step tried again", "step lost", "fault kill in a step",
	}

	requireAllReached(t, paths, []uint64{1, 2, 3}, nil, o)
}
