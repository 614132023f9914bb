package daemon_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// first refers to the oldest tick with a state and a reason, in a situation.
func first(state task.State, reason string) string { return fmt.Sprintf("first %s %s", state, reason) }

// asks returns the time about which a situation asks.
func (c *cluster) asks(t *testing.T, s situation) string {
	t.Helper()
	var state task.State
	var reason string
	if n, _ := fmt.Sscanf(s.at, "first %s %s", &state, &reason); n != 2 {
		return s.at
	}
	var found task.Run
	eventually(t, func() error {
		runs, err := c.client("n1").Runs.ListByTask(t.Context(), "default", s.task, client.RunListOptions{})
		for _, r := range slices.Backward(runs) {
			if found = r; r.State == state && r.Reason == reason && r.Trigger != task.TriggerManual {
				return nil
			}
		}
		return fmt.Errorf("no tick of %s is %s (%s): %d runs, %v", s.task, state, reason, len(runs), err)
	})
	return stamp(found.ScheduledTime)
}

// passes waits until a time has passed.
func passes(t *testing.T, at time.Time) {
	t.Helper()
	eventually(t, func() error {
		if left := time.Until(at); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
}

// The effects of policies, pauses, freezes and changes on ticks, created by real daemons.
func TestWhy_WhatPoliciesDo(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "8", "--lease-ttl", "2s", "--slots", "60")
	c.lostAfter(12 * time.Second)
	c.start("n1")
	c.start("n3", "--role", "executor,api")
	tick := c.policyTasks(t)
	then, cl, ctx := asked(tick), c.client("n1"), t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const new2096 = "2096-01-01T00:00:00Z"
	must(cl.Tasks.PauseWith(ctx, "default", "ahead", client.PauseRequest{Until: task.At(time.Date(2097, 1, 1, 0, 0, 0, 0, time.UTC)), Reason: "until the move"}, 0))
	c.unlessAway(func() error { _, err := cl.Freezes.Begin(ctx, "ice", "storage is full"); return err })
	cold := asked(time.Now().Add(2 * time.Second).Truncate(time.Second))
	c.answers(t, "n1", []situation{
		{"will be paused until", "ahead", new2096, task.VerdictPaused, []string{"There will be no tick on", `until Tue 1 Jan 2097 00:00 UTC by service:bootstrap (token `, `): "until the move"`}},
		{"after the pause", "ahead", "2098-01-01T00:00:00Z", task.VerdictWillRun, []string{"It will run"}},
		{"before its start", "bounded", "2089-01-01T00:00:00Z", task.VerdictOutside, []string{"the task has no ticks before its start, Sun 1 Jan 2090 00:00 UTC"}},
		{"after its end", "bounded", "2095-01-01T00:00:00Z", task.VerdictOutside, []string{"the task has no ticks after its end"}},
		{"jitter", "jitters", new2096, task.VerdictWillRun, []string{"(jitter), in", "delayed by jitter"}},
		{"after completion", "follows", new2096, task.VerdictDepends, []string{"depends on when the runs before it end: each tick comes 1h after the previous run ends"}},
		{"will be frozen", "ice/frost", new2096, task.VerdictFrozen, []string{`namespace ice has been frozen since`, `by service:bootstrap (token `, `): "storage is full"`}},
		{"frozen", "ice/frost", "", task.VerdictSkipped, []string{"was skipped", `namespace ice had been frozen since`, `by service:bootstrap (token `, `): "storage is full"`}},
		{"ran", "changed", then, task.VerdictSucceeded, []string{"Version: 1, created", "in force now"}},
		{"used up its attempts", "dies", then, task.VerdictFailed, []string{"failed with exit code 1", "Dead: it has used up its attempts; carillon run retry"}},
	})

	must(cl.Tasks.Patch(ctx, "default", "changed", []byte(`{"schedule":"0 0 1 1 *"}`), 0))
	must(cl.Tasks.PauseWith(ctx, "default", "rests", client.PauseRequest{Reason: "maintenance"}, 0))
	must(cl.Tasks.PauseWith(ctx, "default", "naps", client.PauseRequest{For: task.Duration(4 * time.Second)}, 0))
	asleep := time.Now().Add(time.Second).Truncate(time.Second)
	must(nil, cl.Tasks.Delete(ctx, "default", "gone", 0))

	c.answers(t, "n1", []situation{
		{"queue full", "full", first(task.Skipped, task.ReasonQueueFull), task.VerdictSkipped, []string{"the task already had the maximum number of waiting runs (queue.limit: 1)"}},
		{"waits in the queue", "full", first(task.Queued, task.ReasonOverlap), task.VerdictWaiting, []string{"another run of the task was active"}},
		{"dropped", "drops", first(task.Skipped, task.ReasonDropped), task.VerdictSkipped, []string{"it was the oldest that waited, and a newer tick or ended run took its place"}},
		{"replaced", "replaces", first(task.Cancelled, task.ReasonReplaced), task.VerdictCancelled, []string{"was cancelled: a newer tick or ended run replaced it (the run of"}},
		{"max_active", "crowd", first(task.Queued, task.ReasonLimit), task.VerdictWaiting, []string{"the task already had as many active runs as max_active allows"}},
		{"start deadline", "hurries", first(task.Missed, task.ReasonDeadline), task.VerdictMissed, []string{"it could not start before its start deadline"}},
		{"no node before its deadline", "nowhere", first(task.Missed, task.ReasonNoNode), task.VerdictMissed, []string{"no available node matches its selector"}},
		{"max_runs", "twice", asked(tick.Add(time.Hour)), task.VerdictEnded, []string{"the task had reached max_runs (2)"}},
		{"paused after failures", "fails", asked(tick.Add(time.Hour)), task.VerdictPaused, []string{`by Carillon itself: "2 runs in a row failed"`}},
		{"deleted by its ttl", "brief", asked(tick.Add(time.Hour)), task.VerdictNoTask, []string{"was deleted on", "its ttl of 1s was over"}},
		{"deleted", "gone", asked(tick.Add(time.Hour)), task.VerdictNoTask, []string{"There is no task default/gone: it was deleted on", "by service:bootstrap"}},
		{"before it was deleted", "gone", then, task.VerdictNoTask, []string{"together with its history"}},
		{"version in force then", "changed", then, task.VerdictSucceeded, []string{"Version: 1, created", ", until", "by service:bootstrap"}},
		{"version in force now", "changed", asked(tick.Add(time.Hour)), task.VerdictNoTick, []string{"0 0 1 1 *", "Version: 2, changed"}},
	})
	passes(t, asleep.Add(1500*time.Millisecond))
	must(cl.Tasks.Resume(ctx, "default", "rests", 0))
	must(cl.Tasks.Rollback(ctx, "default", "changed", client.RollbackRequest{}, 0))
	must(cl.Freezes.End(ctx, "ice"))
	c.answers(t, "n1", []situation{
		{"paused then", "rests", asked(asleep), task.VerdictPaused, []string{"There was no tick on", "the task was paused from", `by service:bootstrap (token `, `): "maintenance"`}},
		{"paused for a while", "naps", asked(asleep), task.VerdictPaused, []string{"the task was paused from", "until", "by service:bootstrap"}},
		{"rolled back", "changed", asked(tick.Add(time.Hour)), task.VerdictWillRun, []string{"Version: 3, rolled back"}},
		{"frozen then", "ice/frost", cold, task.VerdictSkipped, []string{`namespace ice had been frozen since`, "ended"}},
		{"will run again", "ice/frost", new2096, task.VerdictWillRun, nil},
	})

	// A tick that no node decided before its task was changed.
	c.nodes["n1"].signal(syscall.SIGKILL)
	down := time.Now().Add(time.Second).Truncate(time.Second)
	c.answers(t, "n3", []situation{{"not decided", "rests", asked(down), task.VerdictUndecided, []string{"has no owner now"}}})
	eventually(t, func() error {
		_, err := c.client("n3").Tasks.Patch(ctx, "default", "rests", []byte(`{"schedule":"0 0 1 1 *"}`), 0)
		return err
	})
	c.answers(t, "n3", []situation{{"overtaken", "rests", asked(down), task.VerdictOvertaken, []string{"was due, but no node had decided it when the task was changed (version", "undecided ticks before that were dropped"}}})
	down = time.Now().Truncate(time.Second)
	passes(t, down.Add(2*time.Second))
	c.start("n1")
	c.answers(t, "n1", []situation{{"no owner", "misses", asked(down), task.VerdictMissed, []string{"was missed, one of", "its shard had no owner when it was due"}}})
}

// policyTasks creates tasks with one policy each. Most tick every second. All that do are created before the
// returned tick, which is the only one of some tasks.
func (c *cluster) policyTasks(t *testing.T) (tick time.Time) {
	t.Helper()
	create := func(name, schedule, shell string, edit func(*task.Spec)) {
		t.Helper()
		s := once(name, tick, shell)
		if s.Schedule[0] = schedule; schedule == "" {
			s.Schedule[0] = "@at " + asked(tick)
		}
		s.History.Keep = 500
		if edit != nil {
			edit(&s)
		}
		c.create("n1", s)
	}
	const every, yearly, long = "* * * * * *", "0 0 1 1 *", "exec sleep 300"
	queue := func(limit int, drop string) func(*task.Spec) {
		return func(s *task.Spec) { s.Overlap, s.Queue = task.OverlapQueue, task.QueuePolicy{Limit: limit, Drop: drop} }
	}
	create("changed", every, "", nil)
	create("rests", every, "", nil)
	create("naps", every, "", nil)
	create("misses", every, "", func(s *task.Spec) { s.Missed.Policy, s.Missed.Grace = task.MissedSkip, task.Duration(time.Second) })
	create("ahead", yearly, "", nil)
	create("gone", every, "", nil)
	create("bounded", yearly, "", func(s *task.Spec) {
		s.Start, s.End = task.At(time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC)), task.At(time.Date(2094, 6, 1, 0, 0, 0, 0, time.UTC))
	})
	create("jitters", yearly, "", func(s *task.Spec) { s.Jitter = task.Duration(time.Hour) })
	create("follows", "@every 1h after completion", "", nil)
	create("frost", every, "", func(s *task.Spec) { s.Namespace = "ice" })
	create("full", every, long, queue(1, task.DropNewest))
	create("drops", every, long, queue(1, task.DropOldest))
	create("replaces", every, long, func(s *task.Spec) { s.Overlap = task.OverlapReplace })
	create("crowd", every, long, func(s *task.Spec) { s.Overlap, s.MaxActive = task.OverlapAllow, 1 })
	create("hurries", every, long, func(s *task.Spec) { queue(10, "")(s); s.Deadline = task.Duration(time.Second) })
	create("nowhere", every, "", func(s *task.Spec) { s.Target.Selector, s.Deadline = "site = moon", task.Duration(time.Second) })
	create("twice", every, "", func(s *task.Spec) { s.MaxRuns = 2 })
	create("fails", every, "exit 1", func(s *task.Spec) { s.PauseAfter = 2 })
	tick = time.Now().Add(3 * time.Second).Truncate(time.Second)
	create("dies", "", "exit 1", nil)
	create("brief", "", "", func(s *task.Spec) { s.TTL = task.Duration(time.Second) })
	return tick
}
