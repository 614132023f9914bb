package sim_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/sim"
	"github.com/carillonhq/carillon/pkg/task"
)

// kind is a kind of tasks and of what happens to them, which the seeds of TestSeeds rarely reach. Most kinds have short
// histories, so that answers about past ticks depend on what is left.
type kind struct {
	name string
	sim.Options
}

var usualCalls = []string{
	"apply", "apply", "apply", "pause", "resume", "resume", "delete", "trigger", "trigger", "cancel", "patch", "pause until",
	"freeze", "unfreeze", "unfreeze", "retry", "retry", "rollback",
}

var kinds = []kind{
	{"edits on a slow etcd", sim.Options{
		Tasks: 5, Rough: true, Workloads: []string{}, Only: []string{"etcd without a leader", "held"}, Shape: withLittleHistory,
		Calls: []string{"edit", "edit twice", "patch", "patch", "rollback", "pause", "resume", "resume", "pause until", "edit history", "trigger"},
	}},
	{"edits in rough weather", sim.Options{
		Tasks: 5, Rough: true, Workloads: []string{"ledgers"},
		Calls: []string{"edit", "edit twice", "patch", "patch", "rollback", "pause", "resume", "resume", "pause until", "change policy", "edit history", "freeze", "unfreeze", "unfreeze", "trigger"},
	}},
	{"ticks each 100 ms", sim.Options{
		Tasks: 4, Workloads: []string{"ledgers", "edit schedules", "drain nodes"}, Shape: withFastTicks,
	}},
	{"after completion", sim.Options{
		Tasks: 6, Workloads: []string{"small history", "ledgers", "drain nodes", "pause runs", "freeze", "re-create"}, Shape: withTicksAfterCompletion,
		Calls: append(slices.Clone(usualCalls), "pause", "resume", "trigger", "cancel", "retry", "edit"),
	}},
	{"max_runs and failures", sim.Options{
		Workloads: []string{"ledgers", "small history", "pause runs", "drain nodes", "freeze"}, Shape: withMaxRuns,
		Calls: append(slices.Clone(usualCalls), "patch", "edit", "retry", "trigger", "rollback"),
	}},
	{"many parts", sim.Options{
		Tasks: 4, Slots: 32, Workloads: []string{"fan out", "ledgers", "drain nodes", "pause runs"}, Shape: withManyParts,
		Calls: append(slices.Clone(usualCalls), "cancel", "cancel", "retry", "retry", "trigger"),
	}},
	{"sixteen schedules", sim.Options{
		Tasks: 5, Workloads: []string{"ledgers", "edit schedules"}, Shape: withSixteenSchedules,
	}},
	{"everything at once", sim.Options{
		Workloads: []string{"drain nodes", "pause runs", "edit schedules", "change policies", "small history", "fan out", "freeze", "re-create",
			"change lost_after", "revoke", "limit namespace", "requests", "manual input", "ledgers"},
	}},
}

// TestKinds simulates each kind. CARILLON_SIM="first number duration" continues with other seeds, each of the next kind.
func TestKinds(t *testing.T) {
	racetest.SkipIfShort(t)
	t.Parallel()

	var first, number uint64
	var duration string
	n, _ := fmt.Sscan(os.Getenv("CARILLON_SIM"), &first, &number, &duration)
	trouble, _ := time.ParseDuration(duration)

	switch {
	case n >= 2:
	case testing.Short():
		first, number = 0, 1
	default:
		first, number = 0, uint64(len(kinds))
	}

	for seed := first; seed < first+number; seed++ {
		k := kinds[seed%uint64(len(kinds))]
		t.Run(fmt.Sprintf("%s/%d", k.name, seed), func(t *testing.T) {
			k.Duration = trouble
			runInBubble(t, seed, k.Options)
		})
	}
}

// withoutLimits removes all limits of time and number, and the shadow.
func withoutLimits(s *task.Spec) {
	s.Shadow, s.Start, s.End, s.MaxRuns, s.TTL, s.PauseAfter, s.Deadline, s.Jitter = false, task.Time{}, task.Time{}, 0, 0, 0, 0, 0
	s.Target = task.Defaults().Target
}

// withProcess gives a task runs of a length and with an exit code.
func withProcess(s *task.Spec, length string, exit int) {
	s.Timeout, s.Action = 0, task.Action{Process: &task.Process{Command: []string{"sim", length, fmt.Sprint(exit)}}}
}

// withLittleHistory gives tasks one to three records, and ledgers of different lengths, or none.
func withLittleHistory(s *task.Spec) {
	n := s.History.Keep
	ledgers := []*task.Duration{nil, new(task.Duration(0)), new(task.Duration(20 * time.Second)), new(task.Duration(24 * time.Hour))}

	withoutLimits(s)
	s.History = task.History{Keep: 1 + n%3, Record: task.RecordAll, Ledger: ledgers[n%4]}
	s.Schedule = task.Schedules{sim.RareTick, "* * * * 11 *"}
}

// withFastTicks gives tasks ticks that are faster than a slow etcd.
func withFastTicks(s *task.Spec) {
	withoutLimits(s)
	s.Schedule = task.Schedules{"@every 100ms"}
	if s.Action = (task.Action{Noop: &task.Noop{}}); s.History.Keep%2 == 1 {
		withProcess(s, "130ms", 0)
	}
}

// withTicksAfterCompletion gives tasks ticks that depend on the last of one or two records.
func withTicksAfterCompletion(s *task.Spec) {
	n := s.History.Keep
	withoutLimits(s)
	s.Schedule = task.Schedules{[]string{"@every 1s after completion", "@every 4s after completion", "@every 100ms after completion"}[n%3]}
	s.History.Keep, s.PauseAfter = 1+n%2, n%3
	if n%2 == 0 {
		s.End, s.TTL = task.At(time.Now().Add(20*time.Second)), task.Duration(3*time.Second)
	}
	withProcess(s, []string{"50ms", "900ms", "3s"}[n%3], n%2)
}

// withMaxRuns limits the number of runs, and pauses tasks after failures.
func withMaxRuns(s *task.Spec) {
	n := s.History.Keep
	withoutLimits(s)
	s.MaxRuns, s.PauseAfter, s.History.Keep = int64(3+n%12), n%4, 1+n%2
	s.Jitter = task.Duration(time.Duration(n%3) * 600 * time.Millisecond)
	withProcess(s, "400ms", n%2)
}

// withManyParts gives tasks runs of many parts that are lost and retried.
func withManyParts(s *task.Spec) {
	n := s.History.Keep
	if s.Shadow {
		return
	}

	s.Target = task.Target{Count: 1, Parts: 20 + n%45, Succeed: []task.Succeed{"", "any", "50%"}[n%3]}
	if n%2 == 0 {
		s.Target.Stagger = task.Duration(200 * time.Millisecond)
	}

	s.Schedule = task.Schedules{"*/5 * * * * *"}
	s.Retry = task.Retry{
		Attempts: 2, Backoff: task.Duration(500 * time.Millisecond), Factor: 1, MaxBackoff: task.Duration(time.Second),
		On: []task.State{task.Failed, task.Lost},
	}
	withProcess(s, "700ms", n%3/2)
}

// withSixteenSchedules gives tasks as many expressions as a task may have, most of them with the same ticks.
func withSixteenSchedules(s *task.Spec) {
	withoutLimits(s)
	s.Queue.Limit, s.MaxActive = min(s.Queue.Limit, task.DefaultQueue), 0 // long queues of long runs would not end while the simulation waits

	s.Schedule = nil
	for i := range 8 {
		s.Schedule = append(s.Schedule, fmt.Sprintf("*/%d * * * * *", i+1), fmt.Sprintf("@every %ds", i+2))
	}
}
