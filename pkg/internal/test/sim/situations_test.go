package sim

import (
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// The story of the policies, in seconds after its beginning: the node that owns all shards is killed, for a while
// no node owns any shard, then another node does. No tick is due at a moment whose timing cannot be predicted.
const (
	ownerDies       = 8
	successorStarts = 12.5
	successorReady  = 15
	storyEnds       = 28
)

// situation is a task, what happens to it, and the outcome of each of its ticks.
type situation struct {
	name  string
	ticks []float64 // in seconds after the beginning
	// runs is how long a run takes, exit how it ends.
	runs time.Duration
	exit int
	spec func(s *task.Spec, at func(float64) task.Time)
	// want is the outcome of each tick: its state and reason, after the reasons for which it waited, if any. ""
	// means that there must be no such tick.
	want []string
}

const (
	outcomeRan     = "succeeded"
	outcomeFailed  = "failed (exit_code)"
	outcomeNone    = ""
	outcomeSkipped = "skipped (overlap)"
	outcomeFrozen  = "skipped (frozen)"
	outcomeNoOwner = "missed (no_owner)"
)

// situations cover all policies, each with a failover in the middle.
var situations = []situation{
	{name: "overlap-skip", ticks: []float64{7.5, 16, 17.5}, runs: 9 * time.Second, want: []string{outcomeRan, outcomeSkipped, outcomeRan}},
	{name: "overlap-allow", ticks: []float64{6, 7, 16, 17}, runs: 11 * time.Second, want: []string{outcomeRan, outcomeRan, outcomeRan, outcomeRan},
		spec: func(s *task.Spec, _ func(float64) task.Time) { s.Overlap = task.OverlapAllow }},
	{name: "queue-newest", ticks: []float64{1, 1.8, 2.6, 3.4, 16, 16.8, 17.6, 18.4}, runs: 3 * time.Second,
		want: []string{outcomeRan, "overlap, " + outcomeRan, "overlap, " + outcomeRan, "skipped (queue_full)", outcomeRan, "overlap, " + outcomeRan, "overlap, " + outcomeRan, "skipped (queue_full)"},
		spec: queueing(2, task.DropNewest)},
	{name: "queue-oldest", ticks: []float64{1, 1.8, 2.6, 16, 16.8, 17.6}, runs: 3 * time.Second,
		want: []string{outcomeRan, "overlap, skipped (dropped)", "overlap, " + outcomeRan, outcomeRan, "overlap, skipped (dropped)", "overlap, " + outcomeRan}, spec: queueing(1, task.DropOldest)},
	{name: "queue-across", ticks: []float64{6, 7, 16, 17}, runs: 6500 * time.Millisecond,
		want: []string{outcomeRan, "overlap, " + outcomeRan, "overlap, " + outcomeRan, "skipped (queue_full)"}, spec: queueing(1, task.DropNewest)},
	{name: "replace", ticks: []float64{2, 4, 16, 17.5}, runs: time.Minute, want: []string{"cancelled (replaced)", "overlap, cancelled (replaced)",
		"overlap, cancelled (replaced)", "overlap, cancelled (cancelled_by_user)"}, spec: func(s *task.Spec, _ func(float64) task.Time) { s.Overlap = task.OverlapReplace }},
	{name: "max-active", ticks: []float64{1, 1.8, 2.6, 7, 16, 16.8, 17.6}, runs: 4 * time.Second,
		want: []string{outcomeRan, outcomeRan, "max_active, " + outcomeRan, outcomeRan, outcomeRan, outcomeRan, "max_active, " + outcomeRan},
		spec: func(s *task.Spec, _ func(float64) task.Time) { s.Overlap, s.MaxActive = task.OverlapAllow, 2 }},

	{name: "deadline-no-node", ticks: []float64{1, 16}, want: []string{"no_matching_node, missed (no_matching_node)", "no_matching_node, missed (no_matching_node)"},
		spec: func(s *task.Spec, _ func(float64) task.Time) {
			s.Target.Selector, s.Deadline = "gpu=yes", task.Duration(2*time.Second)
		}},
	{name: "deadline-queue", ticks: []float64{1, 2, 6, 7, 16, 17}, runs: 4 * time.Second,
		want: []string{outcomeRan, "overlap, missed (start_deadline)", outcomeRan, "overlap, missed (start_deadline)", outcomeRan, "overlap, missed (start_deadline)"},
		spec: func(s *task.Spec, at func(float64) task.Time) {
			queueing(3, task.DropNewest)(s, at)
			s.Deadline = task.Duration(2 * time.Second)
		}},
	{name: "max-runs", ticks: []float64{1, 3, 16, 17, 18}, want: []string{outcomeRan, outcomeRan, outcomeRan, outcomeNone, outcomeNone},
		spec: func(s *task.Spec, _ func(float64) task.Time) { s.MaxRuns = 3 }},
	{name: "paused-until", ticks: []float64{1, 2, 4, 7, 16, 17.5, 19}, want: []string{outcomeNone, outcomeNone, outcomeRan, outcomeNone, outcomeNone, outcomeRan, outcomeRan},
		spec: func(s *task.Spec, at func(float64) task.Time) {
			s.Paused, s.PausedUntil, s.PauseReason = true, at(3), "not yet"
		}},
	{name: "start-end", ticks: []float64{2, 3, 5, 16, 17}, want: []string{outcomeNone, outcomeRan, outcomeRan, outcomeRan, outcomeNone},
		spec: func(s *task.Spec, at func(float64) task.Time) { s.Start, s.End = at(2.5), at(16.5) }},
	{name: "jitter", ticks: []float64{2, 4, 16, 18}, want: []string{outcomeRan, outcomeRan, outcomeRan, outcomeRan},
		spec: func(s *task.Spec, _ func(float64) task.Time) { s.Jitter = task.Duration(time.Second) }},
	{name: "pause-after", ticks: []float64{1, 3, 16, 18, 20}, exit: 1, want: []string{outcomeFailed, outcomeFailed, outcomeFailed, outcomeNone, outcomeFailed},
		spec: func(s *task.Spec, _ func(float64) task.Time) { s.PauseAfter = 3 }},
	{name: "exit-retried", ticks: []float64{2, 16}, exit: 7, want: []string{"retry, failed (exit_code) at attempt 2", "retry, failed (exit_code) at attempt 2"}, spec: exitsWithCode},
	{name: "exit-final", ticks: []float64{2, 16}, exit: 8, want: []string{outcomeFailed, outcomeFailed}, spec: exitsWithCode},
	{name: "frozen", ticks: []float64{2, 4, 7, 16, 18.5}, want: []string{outcomeRan, outcomeFrozen, outcomeFrozen, outcomeFrozen, outcomeRan},
		spec: func(s *task.Spec, _ func(float64) task.Time) { s.Namespace = "frosty" }},

	{name: "missed-latest", ticks: []float64{9, 10, 11, 16}, want: []string{outcomeNoOwner, outcomeNoOwner, outcomeRan, outcomeRan}, spec: missedPolicy(task.MissedLatest, nil)},
	{name: "missed-skip", ticks: []float64{9, 10, 11, 16}, want: []string{outcomeNoOwner, outcomeNoOwner, outcomeNoOwner, outcomeRan}, spec: missedPolicy(task.MissedSkip, nil)},
	{name: "missed-all", ticks: []float64{9, 10, 11, 16}, want: []string{outcomeRan, outcomeRan, outcomeRan, outcomeRan}, spec: missedPolicy(task.MissedAll, nil)},
	{name: "missed-limit", ticks: []float64{9, 10, 11, 16}, want: []string{outcomeNoOwner, outcomeRan, outcomeRan, outcomeRan}, spec: missedPolicy(task.MissedAll, func(s *task.Spec) { s.Missed.Limit = 2 })},
	{name: "missed-window", ticks: []float64{9, 10, 11, 16}, want: []string{"missed (past_window)", "missed (past_window)", "missed (past_window)", outcomeRan},
		spec: missedPolicy(task.MissedAll, func(s *task.Spec) { s.Missed.Window = task.Duration(time.Second) })},
	{name: "missed-deadline", ticks: []float64{9, 10, 11, 16}, want: []string{"missed (start_deadline)", "missed (start_deadline)", "missed (start_deadline)", outcomeRan},
		spec: missedPolicy(task.MissedLatest, func(s *task.Spec) { s.Deadline = task.Duration(time.Second) })},
	{name: "late-in-grace", ticks: []float64{11, 16}, want: []string{outcomeRan, outcomeRan}},
}

func queueing(limit int, drop string) func(*task.Spec, func(float64) task.Time) {
	return func(s *task.Spec, _ func(float64) task.Time) {
		s.Overlap, s.Queue = task.OverlapQueue, task.QueuePolicy{Limit: limit, Drop: drop}
	}
}

func exitsWithCode(s *task.Spec, _ func(float64) task.Time) {
	s.Retry.Attempts, s.Retry.Backoff, s.Retry.On, s.Retry.ExitCodes = 2, task.Duration(300*time.Millisecond), []task.State{task.Failed}, []int{7}
}

// missedPolicy sets a policy for missed ticks, with a short grace.
func missedPolicy(policy string, more func(*task.Spec)) func(*task.Spec, func(float64) task.Time) {
	return func(s *task.Spec, _ func(float64) task.Time) {
		s.Missed.Policy, s.Missed.Grace = policy, task.Duration(time.Second)
		if more != nil {
			more(s)
		}
	}
}

// task returns the situation's task, for a story that begins at a time.
func (s situation) task(begin time.Time) task.Spec {
	at := func(seconds float64) task.Time {
		return task.At(begin.Add(time.Duration(seconds * float64(time.Second))))
	}

	spec := task.Defaults()
	spec.Name, spec.Namespace = s.name, simNamespace
	for _, tick := range s.ticks {
		spec.Schedule = append(spec.Schedule, "@at "+at(tick).Format(time.RFC3339Nano))
	}

	spec.Retry.Attempts, spec.History.Keep, spec.KillGrace = 1, 100, task.Duration(200*time.Millisecond)
	spec.Action.Process = &task.Process{Command: []string{"sim", s.runs.String(), fmt.Sprint(s.exit)}}
	if s.spec != nil {
		s.spec(&spec, at)
	}

	return spec
}
