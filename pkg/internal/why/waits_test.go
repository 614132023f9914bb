package why_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// frozen returns w with a freeze of the cluster.
func frozen(w *world) *world {
	w.Freezes = &task.Freezes{Holding: []task.Freeze{{Since: task.At(at("11:00:00")), By: task.NewActor("bob"), Reason: "the database moves"}}}
	return w
}

func manual(r *task.Run) { r.Trigger, r.Reason = task.TriggerManual, task.ReasonManual }

func overlaps(policy string, edit func(*task.Spec)) *world {
	return timed(func(s *task.Spec) {
		if s.Overlap = policy; edit != nil {
			edit(s)
		}
	})
}

// webs returns w with two nodes that have the role web.
func (w *world) webs() *world {
	w.Nodes = nil
	for _, name := range []string{"n1", "n2"} {
		w.Nodes = append(w.Nodes, task.Node{Name: name, State: task.NodeReady, Roles: []string{task.RoleExecutor}, Labels: map[string]string{"role": "web"}})
	}
	return w
}

func waits(r *task.Run) { r.Reason = task.ReasonOverlap }

// Runs that wait, and ticks that will have to wait.
var waitingStories = []story{
	{"asked for while frozen", func() *world { return frozen(nightly().run("11:45:00", task.Queued, manual)) }, "11:45:00", task.VerdictWaiting,
		[]string{`has been waiting for 15m: the cluster has been frozen since Tue 10 Mar 2026 11:00 UTC by bob: "the database moves".`, "Frozen: the cluster"}},
	{"waiting for another run, and frozen", func() *world { return frozen(nightly().run("11:30:00", task.Queued, waits)) }, "11:30", task.VerdictWaiting,
		[]string{"another run of the task was active or waiting; in addition, the cluster has been frozen since"}},
	{"its next attempt finds no node", func() *world {
		w := timed(func(s *task.Spec) { s.Target.Selector = "node = n2" }).run("11:30:00", task.Queued, func(r *task.Run) {
			r.Reason, r.NotBefore = task.ReasonRetry, task.At(at("11:50:10"))
			r.Attempts = []task.Attempt{{Attempt: 1, State: task.Lost, Node: "n2", EndedAt: task.At(at("11:50:00"))}}
		})

		w.Nodes = w.Nodes[:1]
		return w
	}, "11:30", task.VerdictWaiting, []string{`has been waiting for 10m: no available node matches "node = n2"; attempt 1 was lost on n2.`}},
	{"too few nodes for its count", func() *world {
		return timed(func(s *task.Spec) { s.Target.Count, s.Target.Selector = 5, "role = web" }).webs().run("11:30:00", task.Queued, func(r *task.Run) { r.Reason = task.ReasonCount })
	}, "11:30", task.VerdictWaiting, []string{`2 available nodes match "role = web", and target.count is 5.`}},
	{"would find too few nodes for its count", func() *world {
		return timed(func(s *task.Spec) { s.Target.Count = 5 }).webs()
	}, "12:30", task.VerdictNoNode, []string{"It will not start unless something changes", "but 2 nodes are available, and target.count is 5."}},
	{"too few nodes for its rule", func() *world {
		return timed(func(s *task.Spec) { s.Target.Count, s.Target.Succeed = task.All, "3" }).webs()
	}, "12:30", task.VerdictNoNode, []string{"2 nodes are available, and 3 must succeed."}},
	{"enough nodes since a moment", func() *world {
		return timed(func(s *task.Spec) { s.Target.Count = 2 }).webs().run("11:30:00", task.Queued, func(r *task.Run) { r.Reason = task.ReasonCount })
	}, "11:30", task.VerdictWaiting, []string{"the number of nodes that matched its selector was too low for target.count or target.succeed, or above 1000"}},
	{"skipped for one that waited for a node", func() *world {
		w := timed(func(s *task.Spec) { s.Schedule = task.Schedules{"*/10 * * * *"} })
		return w.run("11:30:00", task.Missed, func(r *task.Run) { r.Reason, r.EndedAt = task.ReasonNoNode, task.At(at("11:45:00")) }).
			run("11:40:00", task.Skipped, func(r *task.Run) { r.Reason = task.ReasonOverlap })
	}, "11:40", task.VerdictSkipped, []string{"was skipped: another run of the task was waiting (the run of Tue 10 Mar 2026 11:30 UTC)."}},
	{"missed for want of any node", func() *world {
		return nightly().run("02:30:00", task.Missed, func(r *task.Run) { r.Reason = task.ReasonNoNode })
	}, "02:30", task.VerdictMissed, []string{"was missed: no node was available"}},
	{"late is the first attempt", func() *world {
		return nightly().run("02:30:00", task.Succeeded, func(r *task.Run) {
			r.Attempt, r.DispatchedAt, r.StartedAt = 2, task.At(at("02:31:00")), task.At(at("02:31:00"))
			r.Attempts = []task.Attempt{{Attempt: 1, State: task.Failed, Node: "n2", StartedAt: task.At(at("02:30:01"))}}
		})
	}, "02:30", task.VerdictSucceeded, []string{"Dispatched: to n1 on 2026-03-10 02:31:00.000 UTC, its first attempt had started 1s after it fell due"}},
	{"in an inbox, and frozen", func() *world {
		return frozen(nightly().run("11:30:00", task.Dispatched, func(r *task.Run) { r.StartedAt = task.Time{} }))
	}, "11:30", task.VerdictRunning, []string{"is not known to have started; the cluster has been frozen since"}},
	{"running, whatever is frozen", func() *world { return frozen(nightly().run("11:30:00", task.Running, nil)) }, "11:30", task.VerdictRunning,
		[]string{"has been running on n1 since Tue 10 Mar 2026 11:30:00.012 UTC."}},
	{"held up by a freeze that ended", func() *world {
		w := nightly().run("10:45:00", task.Succeeded, func(r *task.Run) {
			r.Trigger, r.DispatchedAt, r.StartedAt = task.TriggerManual, task.At(at("11:00:01")), task.At(at("11:00:02"))
		})
		w.Freezes = &task.Freezes{Past: []task.Freeze{{Since: task.At(at("10:00:00")), By: task.NewActor("bob"), Reason: "x", Ended: task.At(at("11:00:00")), EndedBy: task.NewActor("ann")}}}
		return w
	}, "10:45:00", task.VerdictSucceeded, []string{`Frozen: the cluster, since Tue 10 Mar 2026 10:00 UTC by bob: "x", ended Tue 10 Mar 2026 11:00 UTC by ann`}},

	{"will run after a pause", func() *world {
		w := timed(func(s *task.Spec) { s.Paused, s.PausedUntil = true, task.At(at("14:00:00")) })
		w.Entry.Own = &task.Own{Pauses: []task.Pause{{Since: task.At(at("10:00:00")), By: task.NewActor("bob"), Reason: "holidays", Until: task.At(at("14:00:00"))}}}
		return w
	}, "14:30", task.VerdictWillRun, []string{`if nothing changes; until then the task is paused by bob: "holidays".`, "Paused: from"}},
	{"will be skipped if the queue stays full", func() *world {
		return overlaps(task.OverlapQueue, func(s *task.Spec) { s.Queue.Limit = 1 }).run("10:30:00", task.Running, nil).run("11:30:00", task.Queued, waits)
	}, "12:30", task.VerdictWillRun, []string{"1 run is waiting, the most that queue.limit allows, and if that does not change, this one is skipped"}},
	{"will wait beside a tick that is caught up with", func() *world {
		return overlaps(task.OverlapQueue, func(s *task.Spec) { s.Queue.Limit = 1 }).run("10:30:00", task.Running, nil).
			run("11:30:00", task.Queued, func(r *task.Run) { r.Reason = task.ReasonCatchUp })
	}, "12:30", task.VerdictWillRun, []string{"a run has been active since Tue 10 Mar 2026 10:30 UTC, and if it still is then, this one waits"}},
	{"will take the place of the oldest", func() *world {
		return overlaps(task.OverlapQueue, func(s *task.Spec) { s.Queue = task.QueuePolicy{Limit: 1, Drop: task.DropOldest} }).
			run("10:30:00", task.Running, nil).run("11:30:00", task.Queued, waits)
	}, "12:30", task.VerdictWillRun, []string{"the oldest of them is skipped"}},
	{"will wait in the queue", func() *world { return overlaps(task.OverlapQueue, nil).run("11:30:00", task.Running, nil) }, "12:30", task.VerdictWillRun,
		[]string{"a run has been active since Tue 10 Mar 2026 11:30 UTC, and if it still is then, this one waits"}},
	{"will be skipped if another still waits for its next attempt", func() *world {
		return nightly().run("11:30:00", task.Queued, func(r *task.Run) {
			r.Reason, r.Attempt, r.Attempts = task.ReasonRetry, 2, []task.Attempt{{StartedAt: task.At(at("11:30:00"))}}
		})
	}, "12:30", task.VerdictWillRun, []string{"a run is waiting for its next attempt, and if it still is then, this one is skipped"}},
	{"far from what is active now", func() *world { return overlaps(task.OverlapQueue, nil).run("11:30:00", task.Running, nil) }, "2099-12-31 23:30", task.VerdictWillRun,
		[]string{"if nothing changes."}},
	{"the last day that there is", func() *world { return nightly() }, "2100-12-31", task.VerdictRange, []string{"24 ticks from Fri 31 Dec 2100 00:00 UTC until Sat 1 Jan 2101 00:00 UTC"}},
	{"will wait behind another", func() *world {
		return overlaps(task.OverlapQueue, nil).run("11:30:00", task.Queued, func(r *task.Run) { r.Reason = task.ReasonNoNode })
	}, "12:30", task.VerdictWillRun, []string{"a run is waiting, and if it still is then, this one waits behind it"}},
	{"will wait for max_active", func() *world {
		return overlaps(task.OverlapAllow, func(s *task.Spec) { s.MaxActive = 1 }).run("11:30:00", task.Running, nil)
	}, "12:30", task.VerdictWillRun, []string{"1 run is active, the most that max_active allows, and if that does not change, this one waits"}},
	{"will run beside others", func() *world {
		return overlaps(task.OverlapAllow, func(s *task.Spec) { s.MaxActive = 2 }).run("11:30:00", task.Running, nil)
	}, "12:30", task.VerdictWillRun, []string{"if nothing changes."}},
	{"will be skipped if another still waits", func() *world {
		return nightly().run("11:30:00", task.Queued, func(r *task.Run) { r.Reason = task.ReasonNoNode })
	}, "12:30", task.VerdictWillRun, []string{"a run is waiting (no matching node), and if it still is then, this one is skipped"}},
}

// Without a time, the answer says what comes next, even if it is nothing.
func TestFor_SaysThatNothingComes(t *testing.T) {
	scheduled := func(text string, edit func(*task.Spec)) *world {
		return timed(func(s *task.Spec) {
			if s.Schedule = (task.Schedules{text}); edit != nil {
				edit(s)
			}
		})
	}

	for _, c := range []struct {
		name  string
		world *world
		says  []string
	}{
		{"a single tick", scheduled("@at 2026-03-10T02:30:00Z", nil).run("02:30:00", task.Succeeded, nil), []string{"There are no more ticks: the schedule (@at 2026-03-10T02:30:00Z) has ended."}},
		{"an end", scheduled("30 * * * *", func(s *task.Spec) { s.End = task.At(at("03:00:00")) }).run("02:30:00", task.Succeeded, nil),
			[]string{"There are no more ticks: the task's end was Tue 10 Mar 2026 03:00 UTC."}},
		{"after completion", scheduled("@every 1h after completion", nil).run("01:00:00", task.Running, nil),
			[]string{"The next tick comes 1h after the active or waiting run ends."}},
		{"by hand", scheduled("@manual", nil), nil},
	} {
		var said []string
		for _, also := range c.world.ask(t, "").Also {
			said = append(said, also.Sentence)
		}

		if !slices.Equal(said, c.says) {
			t.Errorf("%s: said %q, not %q", c.name, strings.Join(said, " "), c.says)
		}
	}
}
