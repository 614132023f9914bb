package executor

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestExecutor_WhatHasNotStartedByItsDeadlineIsMissed(t *testing.T) {
	n := newNode(t, newEtcd(t), func(c *Config) { c.Slots = 1 })
	n.join()
	n.assign("first", "echo $$ >@first; while ! test -e @go; do sleep 0.01; done")
	n.began("first")
	soon := func(a *task.Assigned) { a.StartBefore = task.At(time.Now().Add(50 * time.Millisecond)) }
	n.assign("r1", "", soon)
	n.assign("r2", "", soon, func(a *task.Assigned) { a.Attempt = 2 })
	n.assign("r3", "", soon, func(a *task.Assigned) { a.Trigger = task.TriggerManual })

	r := n.ended("r1") // although it waits for a slot
	if r.State != task.Missed || r.Reason != task.ReasonDeadline || !r.StartedAt.IsZero() || r.LatenessMS != nil || r.EndedAt.Before(r.StartBefore.Time) {
		t.Errorf("got %+v", r)
	}

	if d, _ := read[task.Run](n, n.keys.DeadRun(ref, "r1")); d != nil {
		t.Error("the run is dead although it never ran")
	}

	n.touch("go")

	for _, run := range []string{"first", "r2", "r3"} {
		if r := n.ended(run); r.State != task.Succeeded {
			t.Errorf("%s: got %+v", run, r)
		}
	}
}

func TestExecutor_AFrozenRunIsMissedByItsDeadline(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.freeze("")
	n.join()
	n.assign("r1", "", noop, func(a *task.Assigned) { a.StartBefore = task.At(time.Now().Add(50 * time.Millisecond)) })

	if r := n.ended("r1"); r.State != task.Missed || r.Reason != task.ReasonDeadline {
		t.Errorf("got %+v", r)
	}
}

func TestExecutor_LatenessIsFromWhenATickFallsDue(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()
	n.assign("r1", "", noop, func(a *task.Assigned) {
		a.ScheduledTime, a.DueAt = task.At(time.Now().Add(-time.Hour)), task.At(time.Now().Add(-2*time.Second))
	})

	if r := n.ended("r1"); r.LatenessMS == nil || *r.LatenessMS < 1990 || *r.LatenessMS > 300_000 {
		t.Errorf("got %+v", r)
	}
}

func TestExecutor_ACancelGivesTheEndItsReason(t *testing.T) {
	n := newNode(t, newEtcd(t), func(c *Config) { c.Slots = 1 })
	n.join()
	n.assign("runs", "echo $$ >@runs; sleep 1000")
	n.began("runs")
	n.assign("waits", "")

	for _, c := range []struct{ run, reason string }{{"waits", task.ReasonDeleted}, {"runs", task.ReasonReplaced}} {
		n.change(c.run, func(a *task.Assigned) { a.CancelRequested, a.CancelReason = true, c.reason })
		if r := n.ended(c.run); r.State != task.Cancelled || r.Reason != c.reason {
			t.Errorf("got %+v", r)
		}
	}
}

func TestExecutor_RetriesTheExitCodesThatThePolicyNames(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()
	policy := func(a *task.Assigned) {
		a.Retry = task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Failed, task.TimedOut}, ExitCodes: []int{75, 111}}
	}

	n.assign("named", "exit 75", policy)
	n.assign("another", "exit 1", policy)
	n.assign("signal", "kill -9 $$", policy)
	n.assign("slow", "sleep 1000", policy, func(a *task.Assigned) { a.Timeout = task.Duration(50 * time.Millisecond) })
	n.assign("last", "exit 75", policy, func(a *task.Assigned) { a.Attempt = 2 })

	for _, run := range []string{"another", "signal", "last"} {
		if r := n.ended(run); r.State != task.Failed || n.waits(run) != nil {
			t.Errorf("%s: %+v, waits %+v", run, r, n.waits(run))
		}

		if d, _ := read[task.Run](n, n.keys.DeadRun(ref, run)); d == nil {
			t.Errorf("%s is not among the dead", run)
		}
	}

	for _, run := range []string{"named", "slow"} {
		executortest.Eventually(t, run+" waits for its next attempt", func() bool { return n.waits(run) != nil })
		if d, _ := read[task.Run](n, n.keys.DeadRun(ref, run)); d != nil || n.history(run) != nil {
			t.Errorf("%s has another attempt, and is on record as ended", run)
		}
	}
}
