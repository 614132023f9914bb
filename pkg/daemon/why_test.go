package daemon_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

// situation is a question about a task and the expected answer: the verdict, and parts of the sentence or of the
// evidence.
type situation struct {
	name, task, at string
	verdict        task.Verdict
	says           []string
}

// answers asks a node until it returns the verdict, because the event may be about to happen. Then it compares the
// rest of the answer.
func (c *cluster) answers(t *testing.T, node string, list []situation) {
	t.Helper()
	for _, s := range list {
		t.Run(s.name, func(t *testing.T) {
			var a task.Answer
			namespace, name, ok := strings.Cut(s.task, "/")
			if !ok {
				namespace, name = "default", s.task
			}
			at := c.asks(t, s)
			eventually(t, func() (err error) {
				if a, err = c.client(node).Tasks.Why(t.Context(), namespace, name, client.WhyQuestion{At: at}); err == nil {
					err = s.differs(a)
				}
				return err
			})
			t.Log(a.Sentence)
		})
	}
}

// differs returns an error that names the difference between an answer and the expected one.
func (s situation) differs(a task.Answer) error {
	all := a.Sentence
	for _, l := range a.Lines {
		all += "\n" + l.What + ": " + l.Says
	}
	if a.Verdict != s.verdict {
		return fmt.Errorf("%s is %s, not %s:\n%s", s.at, a.Verdict, s.verdict, all)
	}
	for _, part := range s.says {
		if !strings.Contains(all, part) {
			return fmt.Errorf("%s: %q is not in:\n%s", s.at, part, all)
		}
	}
	return nil
}

// once returns a task with one tick. Without a shell line it does nothing, and its ticks do not wait for each
// other, because on a slow machine one would be skipped because of the one before.
func once(name string, tick time.Time, shell string) task.Spec {
	s := spec(name, shell)
	s.Schedule = task.Schedules{"@at " + tick.UTC().Format(time.RFC3339)}
	if shell == "" {
		s.Action, s.Overlap = task.Action{Noop: &task.Noop{}}, task.OverlapAllow
	}
	return s
}

// asked formats a time as in a question.
func asked(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// damage makes a record of a task unreadable.
func (c *cluster) damage(t *testing.T, key func(record.Ref) string, name string) {
	t.Helper()
	ref := record.Ref{Namespace: "default", Name: name, Shard: shard.Of("default", name, 8)}
	k := key(ref)
	res, err := c.etcd.Client().Get(t.Context(), k, clientv3.WithPrefix())
	if err != nil || len(res.Kvs) != 1 {
		t.Fatalf("%s: %d keys, %v", k, len(res.Kvs), err)
	}
	if _, err := c.etcd.Client().Put(t.Context(), string(res.Kvs[0].Key), `{"state":`); err != nil {
		t.Fatal(err)
	}
}

// Each situation is created with real daemons, and the question is sent to the API.
func TestWhy_WhatHappensInACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "8", "--lease-ttl", "2s")
	c.lostAfter(12 * time.Second)
	c.start("n1", "--label", "site=a")
	c.start("n2", "--label", "site=b")
	tick := c.manyTasks(t)
	then := asked(tick)

	run := c.trigger("n1", "byhand")
	c.until("n1", "byhand", run.ID, task.Succeeded)
	victim := c.trigger("n1", "victim")
	c.until("n1", "victim", victim.ID, task.Running)
	if _, err := c.client("n1").Runs.Cancel(t.Context(), "default", "victim", victim.ID); err != nil {
		t.Fatal(err)
	}
	who := c.updatedBy(t, "ok")
	c.answers(t, "n1", []situation{
		{"succeeded", "ok", then, task.VerdictSucceeded, []string{"The tick of", "succeeded", "Decided: by n", "Version: 1, created", "by " + who}},
		{"exit code, and its last words", "fails", then, task.VerdictFailed, []string{"failed with exit code 3", `Last output: "broken pipe"`, "exit_code"}},
		{"timed out", "slow", then, task.VerdictTimedOut, []string{"was stopped at its timeout"}},
		{"retried", "again", then, task.VerdictSucceeded, []string{"on attempt 2, after attempt 1 failed with exit code 1", "Attempt: 1 on n"}},
		{"waits for its retry", "later", then, task.VerdictWaiting, []string{"it is waiting for its next attempt; attempt 1 failed with exit code 1", "and the next starts no earlier than"}},
		{"no node", "nowhere", then, task.VerdictWaiting, []string{`no available node matches its selector ("site = moon")`, "present: n1, n2"}},
		{"running", "long", then, task.VerdictRunning, []string{"has been running on n1 since"}},
		{"overlap", "overlap", "", task.VerdictSkipped, []string{"another run of the task was active (the run of", "Active then: the run of", "still"}},
		{"asked for by hand", "byhand", stamp(run.ScheduledTime), task.VerdictSucceeded, []string{"The run that was requested on"}},
		{"cancelled", "victim", stamp(victim.ScheduledTime), task.VerdictCancelled, []string{"was cancelled by " + who}},
		{"manual", "byhand", "2026-01-01T00:00:00Z", task.VerdictNoTask, []string{"did not exist on Thu 1 Jan 2026 00:00 UTC: it was created on"}},
		{"not a tick, and manual", "byhand", then, task.VerdictNoTick, []string{"@manual"}},
		{"not a tick", "ok", "2096-01-01T00:00:30Z", task.VerdictNoTick, []string{"There will be no tick", "the previous tick was"}},
		{"ran before it is trimmed", "few", then, task.VerdictSucceeded, []string{"Decided: by n"}},
		{"this, too", "fewer", then, task.VerdictSucceeded, []string{"Decided: by n"}},
		{"will run", "yearly", "2096-01-01T00:00:00Z", task.VerdictWillRun, []string{"It will run: the tick of Sun 1 Jan 2096 00:00 UTC is due in"}},
		{"will find no node", "nowhere2", "2096-01-01T00:00:00Z", task.VerdictNoNode, []string{`no available node matches "site = moon"`}},
		{"paused", "paused", "2096-01-01T00:00:00Z", task.VerdictPaused, []string{"There will be no tick on Sun 1 Jan 2096 00:00 UTC: the task has been paused since", "by " + who}},
	})

	// Another run of each ends, and their histories keep one.
	c.trigger("n1", "few")
	c.trigger("n1", "fewer")
	c.answers(t, "n1", []situation{
		{"trimmed", "few", then, task.VerdictSucceeded, []string{"succeeded; further details are no longer kept"}},
		{"trimmed, without a ledger", "fewer", then, task.VerdictForgotten, []string{"is no longer on record", "keeps the last 1 run of the task (history.keep)"}},
	})

	c.answers(t, "n1", []situation{{"ran before it was damaged", "damaged", then, task.VerdictSucceeded, nil}})
	c.damage(t, c.keys.HistoryOf, "damaged")
	c.damage(t, c.keys.Entry, "damaged2")
	c.answers(t, "n1", []situation{
		{"unreadable record", "damaged", then, task.VerdictUnreadable, []string{"has an outcome on record, but the record cannot be read"}},
		{"unreadable entry", "damaged2", "2096-01-01T00:00:00Z", task.VerdictUnreadable, []string{"The task's entry cannot be read"}},
	})

	// A node dies while it runs attempts. One of them may be started again elsewhere.
	c.answers(t, "n1", []situation{
		{"runs on the node that will be lost", "moves", then, task.VerdictRunning, []string{"has been running on n2 since"}},
		{"this, too", "gone", then, task.VerdictRunning, []string{"has been running on n2 since"}},
	})
	c.start("n3", "--label", "site=c", "--role", "executor,api")
	c.nodes["n2"].signal(syscall.SIGKILL)
	c.answers(t, "n3", []situation{
		{"node lost", "gone", then, task.VerdictLost, []string{"was lost: its node was lost while it ran", "node_lost"}},
		{"node lost, and run elsewhere", "moves", then, task.VerdictSucceeded, []string{"ran on n3", "on attempt 2, after attempt 1 was lost on n2"}},
	})

	// No node is left that decides.
	c.nodes["n1"].signal(syscall.SIGKILL)
	down := time.Now().Add(time.Second).Truncate(time.Second)
	c.answers(t, "n3", []situation{
		{"no owner", "skips", asked(down), task.VerdictUndecided, []string{"has not been decided yet: its shard (", ") has no owner now: it is assigned to n1, which is not present; the ticks of the shard are decided up to", "Owner: shard"}},
		{"runs on a node that is away", "long", then, task.VerdictRunning, []string{"n1 is not present, and unless it returns, the attempt will be declared lost"}},
	})
	passes(t, down.Add(3*time.Second))
	c.start("n1", "--label", "site=a")
	c.answers(t, "n3", []situation{
		{"missed", "skips", asked(down), task.VerdictMissed, []string{"was missed, one of", "and missed.policy did not allow a catch-up run"}},
		{"its daemon was stopped", "long", then, task.VerdictLost, nil},
	})
	c.caughtUp(t)
}

func stamp(t task.Time) string { b, _ := t.MarshalText(); return string(b) }

func (c *cluster) updatedBy(t *testing.T, name string) string {
	t.Helper()
	one, err := c.client("n1").Tasks.Get(t.Context(), "default", name)
	if err != nil {
		t.Fatal(err)
	}
	return one.UpdatedBy.String()
}

// manyTasks creates tasks whose one tick is at the same instant, which it returns, and a few others. The others
// are created first, to measure how long that takes.
func (c *cluster) manyTasks(t *testing.T) (tick time.Time) {
	t.Helper()
	began := time.Now()
	with := func(s task.Spec, edit func(*task.Spec)) { edit(&s); c.create("n1", s) }
	none := func(*task.Spec) {}
	every := func(s *task.Spec) { s.Schedule = task.Schedules{"* * * * * *"} }
	yearly := func(s *task.Spec) { s.Schedule = task.Schedules{"0 0 1 1 *"} }
	on := func(selector string) func(*task.Spec) { return func(s *task.Spec) { s.Target.Selector = selector } }
	with(spec("overlap", "exec sleep 300"), func(s *task.Spec) { every(s); s.Target.Selector = "site = a" })
	with(spec("byhand", "true"), none)
	with(spec("victim", "exec sleep 300"), none)
	with(once("skips", tick, ""), func(s *task.Spec) {
		every(s)
		s.Missed.Policy, s.Missed.Grace = task.MissedSkip, task.Duration(time.Second)
	})
	with(once("catches", tick, ""), func(s *task.Spec) {
		every(s)
		s.Missed.Policy, s.Missed.Grace, s.History.Keep = task.MissedAll, task.Duration(time.Second), 500
	})
	with(once("yearly", tick, ""), yearly)
	with(once("damaged2", tick, ""), yearly)
	with(once("nowhere2", tick, ""), func(s *task.Spec) { yearly(s); s.Target.Selector = "site = moon" })
	with(once("paused", tick, ""), func(s *task.Spec) { yearly(s); s.Paused = true })
	tick = time.Now().Add(3*time.Second + 3*time.Since(began)).Truncate(time.Second)
	with(once("ok", tick, "true"), none)
	with(once("fails", tick, "echo working; echo broken pipe; exit 3"), none)
	with(once("slow", tick, "exec sleep 60"), func(s *task.Spec) {
		s.Timeout, s.KillGrace = task.Duration(300*time.Millisecond), task.Duration(time.Second)
	})
	with(once("again", tick, "[ $CARILLON_ATTEMPT = 2 ]"), func(s *task.Spec) { s.Retry.Attempts, s.Retry.Backoff = 2, 0 })
	with(once("later", tick, "exit 1"), func(s *task.Spec) {
		s.Retry.Attempts, s.Retry.Backoff, s.Retry.MaxBackoff = 2, task.Duration(time.Hour), task.Duration(time.Hour)
	})
	with(once("nowhere", tick, ""), on("site = moon"))
	with(once("long", tick, "exec sleep 300"), on("site = a"))
	with(once("gone", tick, "exec sleep 300"), on("site = b"))
	with(once("moves", tick, "[ $CARILLON_ATTEMPT = 2 ] || exec sleep 300"), func(s *task.Spec) {
		s.Target.Selector = "site in (b, c)"
		s.Retry = task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Lost}}
	})
	with(once("damaged", tick, ""), none)
	with(once("few", tick, ""), func(s *task.Spec) { s.History.Keep = 1 })
	with(once("fewer", tick, ""), func(s *task.Spec) { s.History.Keep, s.History.Ledger = 1, new(task.Duration) })
	return tick
}

// caughtUp finds the tick that was caught up, and asks about it.
func (c *cluster) caughtUp(t *testing.T) {
	t.Helper()
	var late task.Run
	eventually(t, func() error {
		runs, err := c.client("n1").Runs.ListByTask(t.Context(), "default", "catches", client.RunListOptions{State: task.Succeeded})
		for _, r := range runs {
			if late = r; r.Trigger == task.TriggerCatchUp {
				return nil
			}
		}
		return fmt.Errorf("no tick of %d was caught up with (%v)", len(runs), err)
	})
	c.answers(t, "n1", []situation{{"caught up with", "catches", stamp(late.ScheduledTime), task.VerdictSucceeded, []string{"as a catch-up run,", "late, and succeeded"}}})
}

// The daemon's clock is set to days in March and October, and the daemon is stopped in between. The test checks
// the answers about the ticks of those days.
func TestWhy_WhenTheClocksChange(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "8", "--lease-ttl", "2s")
	c.lostAfter(12 * time.Second)
	restart := func(now string) {
		at, err := time.Parse(time.RFC3339, now)
		if err != nil {
			t.Fatal(err)
		}
		if p := c.nodes["n1"]; p != nil {
			p.signal(syscall.SIGTERM)
		}
		c.node("n1").setClock(time.Until(at))
		c.start("n1")
	}
	restart("2026-03-28T12:00:00Z")
	create := func(name, schedule, gap, fold string, window time.Duration) {
		s := once(name, time.Time{}, "")
		s.Schedule, s.Timezone, s.DST = task.Schedules{schedule}, "Europe/Berlin", task.DST{Gap: gap, Fold: fold}
		s.Missed.Window, s.Missed.Policy = task.Duration(window), task.MissedAll
		c.create("n1", s)
	}
	const days = 20 * 24 * time.Hour
	create("gap", "30 2 29 3 *", "run-after", "first", days)
	create("gapskip", "30 2 29 3 *", "skip", "first", days)
	create("old", "30 2 29 3 *", "run-after", "first", time.Hour)
	create("hourly", "30 * 29 3 *", "run-after", "first", days)
	restart("2026-03-30T12:00:00Z")
	c.answers(t, "n1", []situation{
		{"gap", "gap", "2026-03-29 02:30", task.VerdictSucceeded, []string{"02:30 does not exist on Sun 29 Mar 2026: the clocks go from 02:00 CET to 03:00 CEST; ticks in this gap run once, at its end (dst.gap: run-after).",
			"The tick of Sun 29 Mar 2026 03:00 CEST (01:00 UTC) ran on n1 as a catch-up run,"}},
		{"the instant after the gap", "gap", "2026-03-29T03:00", task.VerdictSucceeded, []string{"03:00 CEST (01:00 UTC) ran on n1 as a catch-up run"}},
		{"gap that is skipped", "gapskip", "2026-03-29 02:30", task.VerdictInGap, []string{"ticks in this gap are skipped (dst.gap: skip)"}},
		{"past its window", "old", "2026-03-29 02:30", task.VerdictMissed, []string{"does not exist", "was missed: it was older than missed.window when the owner of its shard processed it"}},
		{"gap of a schedule that knows none", "hourly", "2026-03-29 02:30", task.VerdictNoTick, []string{"does not exist", "the previous tick was Sun 29 Mar 2026 01:30 CET (00:30 UTC), the next was Sun 29 Mar 2026 03:30 CEST (01:30 UTC)"}},
		{"before it was created", "gap", "2026-03-28 03:00", task.VerdictNoTask, []string{"Task default/gap did not exist on Sat 28 Mar 2026 03:00 CET (02:00 UTC): it was created on Sat 28 Mar 2026 13:00"}},
		{"gap to come", "gap", "2027-03-29 02:30", task.VerdictWillRun, []string{"It will run: the tick of Mon 29 Mar 2027 02:30 CEST (00:30 UTC)"}},
	})
	create("fold", "30 2 25 10 *", "run-after", "first", days)
	create("foldboth", "30 2 25 10 *", "run-after", "both", days)
	restart("2026-10-26T12:00:00Z")
	c.answers(t, "n1", []situation{
		{"fold", "fold", "2026-10-25 02:30", task.VerdictSucceeded, []string{"02:30 exists twice on Sun 25 Oct 2026, at 02:30 CEST and at 02:30 CET, and only the first is a tick (dst.fold: first).",
			"The tick of Sun 25 Oct 2026 02:30 CEST (00:30 UTC) ran on n1 as a catch-up run"}},
		{"the second pass", "fold", "2026-10-25T02:30:00+01:00", task.VerdictNoTick, []string{"There was no tick on Sun 25 Oct 2026 02:30 CET (01:30 UTC)"}},
		{"both passes", "foldboth", "2026-10-25 02:30", task.VerdictSucceeded, []string{"and both are ticks."}},
	})
	eventually(t, func() error {
		a, err := c.client("n1").Tasks.Why(t.Context(), "default", "foldboth", client.WhyQuestion{From: "2026-10-01", To: "2026-10-31", Timezone: "UTC"})
		if err == nil && (a.Verdict != task.VerdictRange || a.Counts[task.VerdictSucceeded] != 2) {
			err = fmt.Errorf("of October it says %s: %s", a.Verdict, a.Sentence)
		}
		return err
	})
}
