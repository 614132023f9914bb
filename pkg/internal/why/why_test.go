package why_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/why"
	"github.com/carillonhq/carillon/pkg/task"
)

// at returns a UTC time on the day of most of these tests.
func at(clock string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05", "2026-03-10 "+clock)
	if err != nil {
		panic(err)
	}
	return t
}

// A world is Facts that a test changes.
type world struct{ why.Facts }

// nightly is a task that ticks each hour at :30 on two nodes, and is decided up to noon.
func nightly() *world {
	s := task.Defaults()
	s.Name, s.Schedule = "job", task.Schedules{"30 * * * *"}
	t := task.Task{Spec: s, UID: "uuuuuuuuuuuuuuuu", Generation: 1, CreatedAt: task.At(at("00:00:00")), UpdatedAt: task.At(at("00:00:00")), UpdatedBy: task.NewActor("ann"), Change: task.ChangeCreated}
	e := task.NewEntry(t, t.CreatedAt, t.CreatedAt)

	return &world{why.Facts{
		Namespace: "default", Name: "job", Shard: 7, Task: &t, Entry: &e, Covered: true,
		Owner:     &why.Owner{Node: "n1", Since: at("06:00:00"), Previous: []task.Assignment{{Node: "n2", Since: task.At(at("00:00:00"))}}},
		Watermark: &why.Watermark{Time: at("12:00:00"), All: true},
		Nodes:     []task.Node{node("n1"), node("n2")},
		Limits:    &task.Namespace{Name: "default", RunAs: []string{"*"}, Groups: []string{"*"}, Shell: true, EnvFiles: []string{"*"}},
		Now:       at("12:00:00"), Revision: 99,
	}}
}

func node(name string) task.Node {
	return task.Node{Name: name, State: task.NodeReady, Roles: []string{task.RoleScheduler, task.RoleExecutor}, Labels: map[string]string{"node": name}}
}

// secretly makes a task read a secret.
func secretly(s *task.Spec) {
	s.Action = task.Action{Process: &task.Process{Command: []string{"true"}, EnvFrom: []task.EnvFrom{{Secret: "db"}}}}
}

// timed returns nightly with another spec from the beginning.
func timed(edit func(*task.Spec)) *world {
	w := nightly()
	edit(&w.Task.Spec)
	e := task.NewEntry(*w.Task, w.Task.CreatedAt, w.Task.CreatedAt)
	w.Entry = &e

	return w
}

// change adds a new version of the task.
func (w *world) change(clock, who string, edit func(*task.Spec)) *world {
	old := *w.Task
	w.Versions = append(w.Versions, old)
	t := old
	t.Generation, t.UpdatedAt, t.UpdatedBy, t.Change = old.Generation+1, task.At(at(clock)), task.NewActor(who), task.ChangeUpdated
	edit(&t.Spec)
	e := task.NewEntry(t, w.Entry.From, w.Entry.Anchor)
	e.Own = w.Entry.Own
	if !task.SameTicks(old.Spec, t.Spec) {
		e.From, e.Anchor = t.UpdatedAt, t.UpdatedAt
	}

	if old.Paused && !t.Paused {
		e.From, t.Change = t.UpdatedAt, task.ChangeResumed
	}

	if !old.Paused && t.Paused {
		t.Change = task.ChangePaused
	}

	w.Task, w.Entry = &t, &e

	return w
}

// counts sets the ledger of the task.
func (w *world) counts(chunks ...ledger.Chunk) *world {
	var values [][]byte
	for _, c := range chunks {
		value, _ := c.MarshalJSON()
		values = append(values, value)
	}
	w.Ledger = ledger.NewBook(w.Task.UID, values)

	return w
}

// run records a run of the tick at a time.
func (w *world) run(clock string, state task.State, edit func(*task.Run)) *world {
	tick := at(clock)
	late := int64(12)
	r := task.Run{ID: task.RunID(tick, w.Task.UID), UID: w.Task.UID, ScheduledTime: task.At(tick), State: state, Trigger: task.TriggerSchedule,
		Owner: "n1", CreatedAt: task.At(tick), EndedAt: task.At(tick.Add(3 * time.Second))}
	if state != task.Skipped && state != task.Missed && state != task.Queued {
		r.Node, r.Attempt, r.DispatchedAt, r.StartedAt, r.LatenessMS = "n1", 1, task.At(tick), task.At(tick.Add(12*time.Millisecond)), &late
	}

	if !state.Final() {
		r.EndedAt = task.Time{}
	}

	if edit != nil {
		edit(&r)
	}

	w.Runs = append(w.Runs, r)

	return w
}

// all records a success for every tick.
func (w *world) all() *world {
	for h := range 12 {
		w.run(at("00:30:00").Add(time.Duration(h)*time.Hour).Format("15:04:05"), task.Succeeded, nil)
	}
	return w
}

func (w *world) ask(t *testing.T, text string) task.Answer { return w.askIn(t, text, "UTC") }

func (w *world) askIn(t *testing.T, text, zone string) task.Answer {
	t.Helper()
	q := why.Question{Timezone: zone}
	place, err := schedule.Location(zone)
	if err != nil {
		t.Fatal(err)
	}
	from, to, isRange := strings.Cut(text, " … ")
	read := func(s string) *why.Moment {
		if len(s) < len("2006-01-02") {
			s = "2026-03-10 " + s
		}

		m, err := why.ReadMoment(s, schedule.TimeBase{Zone: place})
		if err != nil {
			t.Fatal(err)
		}

		return &m
	}

	switch {
	case isRange:
		q.From, q.To = read(from), read(to)
	case text != "":
		q.At = read(text)
	}

	return why.For(w.Facts, q)
}

func code(n int) *int { return &n }

// A story consists of records, a question, and the verdict and sentence of the answer.
type story struct {
	name    string
	world   func() *world
	ask     string
	verdict task.Verdict
	says    []string
}

var stories = []story{
	{"succeeded", func() *world { return nightly().all() }, "02:30", task.VerdictSucceeded,
		[]string{"The tick of Tue 10 Mar 2026 02:30 UTC ran on n1 and succeeded after 2.99s."}},
	{"failed", func() *world {
		return nightly().run("02:30:00", task.Failed, func(r *task.Run) { r.Reason, r.ExitCode = task.ReasonExit, code(3) })
	}, "02:30", task.VerdictFailed, []string{"ran on n1 and failed with exit code 3"}},
	{"timed out", func() *world {
		return nightly().run("02:30:00", task.TimedOut, func(r *task.Run) { r.Reason = task.ReasonTimeout })
	}, "02:30", task.VerdictTimedOut, []string{"was stopped at its timeout"}},
	{"cancelled by a person", func() *world {
		return nightly().run("02:30:00", task.Cancelled, func(r *task.Run) { r.Reason, r.CancelledBy = task.ReasonCancelled, task.NewActor("bob") })
	}, "02:30", task.VerdictCancelled, []string{"was cancelled by bob"}},
	{"cancelled before it started", func() *world {
		return nightly().run("02:30:00", task.Cancelled, func(r *task.Run) {
			r.Reason, r.CancelledBy, r.Attempt, r.Node = task.ReasonCancelled, task.NewActor("bob"), 1, ""
			r.DispatchedAt, r.StartedAt, r.LatenessMS = task.Time{}, task.Time{}, nil
		})
	}, "02:30", task.VerdictCancelled, []string{"did not start: it was cancelled by bob"}},
	{"replaced", func() *world {
		return nightly().run("02:30:00", task.Cancelled, func(r *task.Run) { r.Reason = task.ReasonReplaced })
	}, "02:30", task.VerdictCancelled, []string{"was cancelled: a newer tick or ended run replaced it"}},
	{"not allowed by its namespace any more", func() *world {
		return nightly().run("02:30:00", task.Failed, func(r *task.Run) {
			r.Reason, r.Message, r.Node, r.Attempt = task.ReasonNamespace, "namespace team-a no longer allows the user root", "", 0
			r.DispatchedAt, r.StartedAt, r.LatenessMS = task.Time{}, task.Time{}, nil
		})
	}, "02:30", task.VerdictFailed, []string{"did not start: it failed: namespace team-a no longer allows the user root."}},
	{"not accepted by its task any more", func() *world {
		return nightly().run("02:30:00", task.Failed, func(r *task.Run) {
			r.Reason, r.Message, r.Node, r.Attempt = task.ReasonAccept, "changed after the run was requested: args: the task accepts no arguments (accept.args)", "", 0
			r.DispatchedAt, r.StartedAt, r.LatenessMS = task.Time{}, task.Time{}, nil
		})
	}, "02:30", task.VerdictFailed, []string{"did not start: it failed: its task no longer accepts the arguments, variables or node of the run (changed after"}},
	{"waits for the node of its request", func() *world {
		return nightly().run("11:30:00", task.Queued, func(r *task.Run) { r.Reason, r.TargetNode, r.Args = task.ReasonNoNode, "n9", []string{"a b"} })
	}, "11:30", task.VerdictWaiting, []string{"node n9, which its request named, is not available.", "Requested node", "n9", `"a b"`}},
	{"node lost, retried", func() *world {
		return nightly().run("02:30:00", task.Succeeded, func(r *task.Run) {
			r.Node, r.Attempt = "n2", 2
			r.Attempts = []task.Attempt{{Attempt: 1, State: task.Lost, Node: "n1", Reason: task.ReasonNodeLost}}
		})
	}, "02:30", task.VerdictSucceeded, []string{"ran on n2 and succeeded", "on attempt 2, after attempt 1 was lost on n1"}},
	{"lost", func() *world {
		return nightly().run("02:30:00", task.Lost, func(r *task.Run) { r.Reason = task.ReasonNodeLost })
	}, "02:30", task.VerdictLost, []string{"was lost: its node was lost while it ran"}},
	{"overlap", func() *world {
		return nightly().run("01:30:00", task.Succeeded, func(r *task.Run) { r.EndedAt = task.At(at("02:45:00")) }).
			run("02:30:00", task.Skipped, func(r *task.Run) { r.Reason = task.ReasonOverlap })
	}, "02:30", task.VerdictSkipped, []string{"was skipped: another run of the task was active (the run of Tue 10 Mar 2026 01:30 UTC on n1)"}},
	{"skipped in a range", func() *world {
		return nightly().run("02:30:00", task.Skipped, func(r *task.Run) { r.Reason, r.Count, r.Last = task.ReasonOverlap, 4, task.At(at("05:30:00")) })
	}, "04:30", task.VerdictSkipped, []string{"The tick of Tue 10 Mar 2026 04:30 UTC was skipped, one of 4 ticks from"}},
	{"frozen", func() *world {
		w := nightly().run("02:30:00", task.Skipped, func(r *task.Run) { r.Reason = task.ReasonFrozen })
		w.Freezes = &task.Freezes{Past: []task.Freeze{{Since: task.At(at("02:00:00")), By: task.NewActor("eve"), Reason: "storage", Ended: task.At(at("03:00:00")), EndedBy: task.NewActor("eve")}}}
		return w
	}, "02:30", task.VerdictSkipped, []string{`the cluster had been frozen since Tue 10 Mar 2026 02:00 UTC by eve: "storage"`}},
	{"frozen, and the freeze is forgotten", func() *world {
		return nightly().run("02:30:00", task.Skipped, func(r *task.Run) { r.Reason = task.ReasonFrozen })
	}, "02:30", task.VerdictSkipped, []string{"its namespace or the cluster was frozen"}},
	{"no owner", func() *world {
		return nightly().run("02:30:00", task.Missed, func(r *task.Run) {
			r.Reason, r.Message = task.ReasonNoOwner, "n1 opened the shard at 06:00, which was decided up to 02:10"
		})
	}, "02:30", task.VerdictMissed, []string{"was missed: its shard had no owner when it was due", "(n1 opened the shard at 06:00"}},
	{"of a lost history", func() *world {
		return nightly().run("02:30:00", task.Missed, func(r *task.Run) {
			r.Reason, r.Message = task.ReasonRestored, "restored on 2026-03-10T10:05:31Z from a backup of 2026-03-10T02:00:00Z; what was decided from then until 2026-03-10T09:49:58Z is lost"
		})
	}, "02:30", task.VerdictMissed, []string{"was missed: the cluster was restored from a backup", "it may have run (restored on 2026-03-10T10:05:31Z from a backup of 2026-03-10T02:00:00Z;"}},
	{"deadline", func() *world {
		return nightly().run("02:30:00", task.Missed, func(r *task.Run) { r.Reason = task.ReasonDeadline })
	}, "02:30", task.VerdictMissed, []string{"it could not start before its start deadline", "n1 processed it"}},
	{"caught up with", func() *world {
		return nightly().run("02:30:00", task.Succeeded, func(r *task.Run) {
			late := int64(3_600_000)
			r.Trigger, r.LatenessMS = task.TriggerCatchUp, &late
		})
	}, "02:30", task.VerdictSucceeded, []string{"ran on n1 as a catch-up run, 1h late, and succeeded"}},
	{"late", func() *world {
		return nightly().run("02:30:00", task.Succeeded, func(r *task.Run) { late := int64(90_000); r.LatenessMS = &late })
	}, "02:30", task.VerdictSucceeded, []string{"1m 30s late,"}},
	{"running", func() *world { return nightly().run("11:30:00", task.Running, nil) }, "11:30", task.VerdictRunning, []string{"has been running on n1 since"}},
	{"paused", func() *world {
		return nightly().run("11:30:00", task.Paused, func(r *task.Run) {
			r.PausedAt, r.PausedMS, r.PausedBy = task.At(at("11:45:00")), 60_000, task.NewActor("ann")
		})
	}, "11:30", task.VerdictRunning, []string{"is on n1, where it started on", "and has been paused since Tue 10 Mar 2026 11:45 UTC by ann", "for 16m in total"}},
	{"not what success asks for", func() *world {
		return nightly().run("02:30:00", task.Failed, func(r *task.Run) { r.Reason, r.ExitCode = task.ReasonOutput, code(0) })
	}, "02:30", task.VerdictFailed, []string{"failed: its process exited with a success code, but its output did not match the task's success rule"}},
	{"running on a node that is away", func() *world {
		w := nightly().run("11:30:00", task.Running, nil)
		w.Nodes = w.Nodes[1:]
		return w
	}, "11:30", task.VerdictRunning, []string{"n1 is not present, and unless it returns, the attempt will be declared lost"}},
	{"waiting for a node", func() *world {
		w := nightly().run("11:30:00", task.Queued, func(r *task.Run) { r.Reason = task.ReasonNoNode })
		w.Task.Target.Selector, w.Entry.Target.Selector = "role = db", "role = db"
		return w
	}, "11:30", task.VerdictWaiting, []string{`has been waiting for 30m: no available node matches its selector ("role = db")`}},
	{"waiting for its retry", func() *world {
		return nightly().run("11:30:00", task.Queued, func(r *task.Run) {
			r.Reason, r.NotBefore = task.ReasonRetry, task.At(at("12:05:00"))
			r.Attempts = []task.Attempt{{Attempt: 1, State: task.Failed, ExitCode: code(1), Node: "n2"}}
		})
	}, "11:30", task.VerdictWaiting, []string{"attempt 1 failed with exit code 1 on n2, and the next starts no earlier than 12:05 UTC; it will go to n1 if that node has a free slot."}},
	{"waiting for its retry, which stays on its node", func() *world {
		w := nightly().run("11:30:00", task.Queued, func(r *task.Run) {
			r.Reason, r.NotBefore = task.ReasonRetry, task.At(at("12:05:00"))
			r.Attempts = []task.Attempt{{Attempt: 1, State: task.Failed, ExitCode: code(1), Node: "n2"}}
		})

		w.Task.Target.Strategy, w.Entry.Target.Strategy = task.StrategySticky, task.StrategySticky
		return w
	}, "11:30", task.VerdictWaiting, []string{"and the next starts no earlier than 12:05 UTC."}},
	{"its retry found no other node", func() *world {
		return nightly().run("11:30:00", task.Running, func(r *task.Run) {
			r.Node, r.Attempt = "n2", 2
			r.Attempts = []task.Attempt{{Attempt: 1, State: task.Failed, ExitCode: code(1), Node: "n2"}}
		})
	}, "11:30", task.VerdictRunning, []string{"where attempt 1 had failed, because no other matching node had a free slot"}},

	{"its namespace forbids it", func() *world {
		w := timed(func(s *task.Spec) { s.Action = task.Action{Process: &task.Process{Shell: "true"}} })
		w.Limits.Shell = false
		return w
	}, "13:30", task.VerdictForbidden, []string{"It will fail unless something changes: the tick of Tue 10 Mar 2026 13:30 UTC is due in 1h 30m, but namespace default does not allow shell actions."}},
	{"its namespace is gone", func() *world {
		w := nightly()
		w.Limits = nil
		return w
	}, "13:30", task.VerdictForbidden, []string{"but there is no namespace default any more."}},
	{"no node of its namespace", func() *world {
		w := timed(func(s *task.Spec) { s.Target.Selector = "zone = a" })
		w.Limits.Nodes = "team = vault"
		w.Nodes[0].Labels["zone"] = "a"
		w.Nodes[1].Labels["zone"] = "a"
		w.Nodes[1].IgnoredLabels = map[string]string{"team": "vault"}
		return w
	}, "13:30", task.VerdictNoNode, []string{`but no available node matches "zone = a" and "team = vault" of namespace default (labels of n2 do not count, because its limit does not allow them: team=vault).`}},
	{"waiting for a node of its namespace", func() *world {
		w := nightly().run("11:30:00", task.Queued, func(r *task.Run) { r.Reason = task.ReasonNoNode })
		w.Limits.Nodes = "team = vault"
		return w
	}, "11:30", task.VerdictWaiting, []string{`has been waiting for 30m: no available node matches its selector ("team = vault" of namespace default)`}},

	{"no tick", func() *world { return nightly().all() }, "02:31", task.VerdictNoTick,
		[]string{"There was no tick on Tue 10 Mar 2026 02:31 UTC: the schedule is 30 * * * *; the previous tick was Tue 10 Mar 2026 02:30 UTC, the next was Tue 10 Mar 2026 03:30 UTC."}},
	{"within the minute", func() *world {
		w := nightly()
		w.Task.Schedule, w.Entry.Schedule = task.Schedules{"15 30 * * * *"}, task.Schedules{"15 30 * * * *"}
		return w.run("02:30:15", task.Succeeded, nil)
	}, "02:30", task.VerdictSucceeded, []string{"The tick of Tue 10 Mar 2026 02:30:15 UTC ran"}},
	{"manual task", func() *world {
		w := nightly()
		w.Task.Schedule, w.Entry.Schedule = task.Schedules{"@manual"}, task.Schedules{"@manual"}
		return w
	}, "02:30", task.VerdictNoTick, []string{"the schedule is @manual"}},
	{"boot task", func() *world {
		w := nightly()
		w.Task.Schedule, w.Entry.Schedule = task.Schedules{"@reboot"}, task.Schedules{"@reboot"}
		return w
	}, "02:30", task.VerdictNoTick, []string{"the schedule is @reboot, so the task runs only when a matching node boots"}},
	{"asked for", func() *world {
		return nightly().all().run("02:45:10", task.Succeeded, func(r *task.Run) { r.Trigger = task.TriggerManual })
	}, "02:45", task.VerdictSucceeded, []string{"The run that was requested on Tue 10 Mar 2026 02:45:10 UTC ran on n1 and succeeded"}},

	{"did not exist yet", func() *world { return nightly().all() }, "2026-03-09 22:30", task.VerdictNoTask,
		[]string{"Task default/job did not exist on Mon 9 Mar 2026 22:30 UTC: it was created on Tue 10 Mar 2026 00:00 UTC by ann."}},
	{"created at that very instant", func() *world { return nightly() }, "00:00:00", task.VerdictNoTask, []string{"did not exist"}},
	{"deleted", func() *world {
		return &world{why.Facts{Namespace: "default", Name: "job", Now: at("12:00:00"), Deleted: &task.Deletion{At: task.At(at("08:00:00")), By: task.NewActor("bob")}}}
	}, "09:30", task.VerdictNoTask, []string{"it had been deleted on Tue 10 Mar 2026 08:00 UTC by bob"}},
	{"before it was deleted", func() *world {
		return &world{why.Facts{Namespace: "default", Name: "job", Now: at("12:00:00"), Deleted: &task.Deletion{At: task.At(at("08:00:00")), By: task.NewActor("bob"), Why: "ttl"}}}
	}, "02:30", task.VerdictNoTask, []string{`was deleted, together with its history, on Tue 10 Mar 2026 08:00 UTC by bob: "ttl"; what happened on`}},

	{"version in force then", func() *world {
		return nightly().run("02:30:00", task.Succeeded, nil).change("05:00:00", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"0 * * * *"} })
	}, "04:00", task.VerdictNoTick, []string{"30 * * * *; the previous tick was"}},
	{"after the change", func() *world {
		return nightly().change("05:00:00", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"0 * * * *"} }).run("06:00:00", task.Succeeded, nil)
	}, "06:00", task.VerdictSucceeded, []string{"ran on n1"}},
	{"overtaken by a change", func() *world {
		w := nightly().change("02:30:20", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"0 * * * *"} })
		w.Watermark.Time = at("02:00:00")
		return w
	}, "02:30", task.VerdictOvertaken, []string{"was due, but no node had decided it when the task was changed (version 2) on Tue 10 Mar 2026 02:30:20 UTC by bob"}},
	{"paused, by its versions", func() *world {
		return nightly().change("02:00:00", "bob", func(s *task.Spec) { s.Paused = true }).
			change("02:10:00", "eve", func(s *task.Spec) { s.Description = "x" }).
			change("04:00:00", "ann", func(s *task.Spec) { s.Paused = false })
	}, "02:30", task.VerdictPaused, []string{"There was no tick on Tue 10 Mar 2026 02:30 UTC: the task was paused from Tue 10 Mar 2026 02:00 UTC until Tue 10 Mar 2026 04:00 UTC by bob."}},
	{"paused, as it is remembered", func() *world {
		w := nightly()
		w.Entry.Own = &task.Own{Pauses: []task.Pause{{Since: task.At(at("02:00:00")), By: task.NewActor("bob"), Reason: "maintenance", Until: task.At(at("03:00:00"))}}}
		return w
	}, "02:30", task.VerdictPaused, []string{`until Tue 10 Mar 2026 03:00 UTC by bob: "maintenance"`}},
	{"after a pause with an end", func() *world {
		w := nightly().run("03:30:00", task.Succeeded, nil)
		w.Entry.Own = &task.Own{Pauses: []task.Pause{{Since: task.At(at("02:00:00")), By: task.NewActor("bob"), Until: task.At(at("03:00:00"))}}}
		return w
	}, "03:30", task.VerdictSucceeded, []string{"ran"}},
	{"paused after failures", func() *world {
		w := nightly()
		w.Entry.Own = &task.Own{Pauses: []task.Pause{{Since: task.At(at("02:00:00")), By: task.NewActor(task.PausedByFailures), Reason: "3 runs in a row failed"}}}
		w.Entry.Paused, w.Task.Paused = true, true
		return w
	}, "02:30", task.VerdictPaused, []string{`by Carillon itself: "3 runs in a row failed"`}},

	{"trimmed", func() *world {
		w := nightly().run("11:30:00", task.Succeeded, nil)
		w.Task.History.Keep, w.Newer = 5, 4
		return w
	}, "02:30", task.VerdictForgotten, []string{"was decided, but its outcome is no longer on record"}},
	{"only failures are kept", func() *world {
		w := nightly().run("11:30:00", task.Succeeded, nil)
		w.Task.History.Record = task.RecordFailures
		return w
	}, "02:30", task.VerdictForgotten, []string{"no longer on record"}},
	{"version not kept", func() *world {
		w := nightly().change("05:00:00", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"0 * * * *"} })
		w.Versions = nil
		return w
	}, "02:30", task.VerdictForgotten, []string{"The schedule on Tue 10 Mar 2026 02:30 UTC is no longer on record"}},
	{"version not kept, outcome is", func() *world {
		w := nightly().run("02:30:00", task.Succeeded, nil).change("05:00:00", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"0 * * * *"} })
		w.Versions = nil
		return w
	}, "02:30", task.VerdictSucceeded, []string{"ran on n1 and succeeded"}},
	{"unreadable record", func() *world {
		w := nightly()
		w.Broken = []string{task.RunID(at("02:30:00"), w.Task.UID)}
		return w
	}, "02:30", task.VerdictUnreadable, []string{"has an outcome on record, but the record cannot be read"}},
	{"unreadable entry", func() *world {
		w := nightly()
		w.Entry, w.BrokenTask = nil, []string{"entry"}
		return w
	}, "02:30", task.VerdictUnreadable, []string{"entry cannot be read"}},
	{"no record of what was decided", func() *world { return nightly() }, "02:30", task.VerdictForgotten, []string{"was decided", "no records of that time have been trimmed; carillon audit"}},
	{"one of many that wait", func() *world {
		w := nightly()
		w.Unread = []why.Period{{From: at("02:00:00"), To: at("03:00:00")}}
		return w
	}, "02:30", task.VerdictForgotten, []string{"Not on record: the outcome was not read, because the task has too many records"}},
	{"older records trim nothing", func() *world {
		w := nightly().run("01:30:00", task.Succeeded, nil)
		w.Task.History.Keep = 1
		return w
	}, "02:30", task.VerdictForgotten, []string{"no records of that time have been trimmed"}},
	{"without a ledger, an older record may have been written later", func() *world {
		w := nightly().run("01:30:00", task.Succeeded, nil).change("02:30:20", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"0 * * * *"} })
		w.Watermark.Time = at("02:00:00")
		w.Task.History.Keep = 1
		return w.counts(ledger.NewUncounted(w.Task.UID, at("01:00:00")))
	}, "02:30", task.VerdictForgotten, []string{"Not on record: the outcome: records of the task have been deleted", "records are deleted without being counted"}},
	{"with a ledger, the tick was not decided", func() *world {
		w := nightly().run("01:30:00", task.Succeeded, nil).change("02:30:20", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"0 * * * *"} })
		w.Watermark.Time = at("02:00:00")
		w.Task.History.Keep = 1
		return w.counts(ledger.Chunk{UID: w.Task.UID, From: task.At(at("00:00:00")), Gone: task.At(at("01:00:00"))})
	}, "02:30", task.VerdictOvertaken, nil},
	{"a run of a deleted task of that name", func() *world {
		return nightly().run("02:30:00", task.Cancelled, func(r *task.Run) { r.UID = "oooooooooooooooo" }).all()
	}, "02:30", task.VerdictSucceeded, nil},
	{"a run of a deleted task, before the task was created", func() *world {
		w := nightly().all().created("05:00:00")
		for i := range w.Runs[:4] {
			w.Runs[i].UID = "oooooooooooooooo"
		}
		return w
	}, "02:30", task.VerdictNoTask, []string{"it was created on"}},
	{"just trimmed", func() *world {
		w := nightly().run("03:30:00", task.Succeeded, nil)
		w.Task.History.Keep = 1
		return w
	}, "02:30", task.VerdictForgotten, []string{"Carillon keeps the last 1 run of the task (history.keep), and 1 recorded run ended after this tick"}},
	{"kept less for a while", func() *world {
		return nightly().run("03:30:00", task.Succeeded, nil).change("04:00:00", "bob", func(s *task.Spec) { s.History.Keep = 1 }).
			change("05:00:00", "bob", func(s *task.Spec) { s.History.Keep = 20 })
	}, "02:30", task.VerdictForgotten, []string{"keeps the last 1 run of the task"}},
	{"decided by the entry, at its from", func() *world {
		w := nightly()
		w.Covered, w.Entry.From = false, task.At(at("11:30:00"))
		return w
	}, "11:30", task.VerdictForgotten, []string{"was decided"}},
	{"at the watermark, and behind its last task", func() *world {
		w := nightly()
		w.Watermark = &why.Watermark{Time: at("11:30:00")}
		return w
	}, "11:30", task.VerdictUndecided, nil},
	{"at the watermark", func() *world {
		w := nightly()
		w.Watermark = &why.Watermark{Time: at("11:30:00"), All: true}
		return w
	}, "11:30", task.VerdictForgotten, []string{"was decided"}},
	{"overtaken by a pause", func() *world {
		w := nightly().change("02:30:20", "bob", func(s *task.Spec) { s.Paused = true })
		w.Watermark.Time, w.Entry.From = at("02:40:00"), task.At(at("02:30:20"))
		return w
	}, "02:30", task.VerdictOvertaken, []string{"the task was paused (version 2) on Tue 10 Mar 2026 02:30:20 UTC by bob"}},
	{"overtaken by a pause after failures", func() *world {
		w := nightly()
		w.Entry.Paused, w.Entry.Own = true, &task.Own{Pauses: []task.Pause{{Since: task.At(at("02:30:20")), By: task.NewActor(task.PausedByFailures), Reason: "3 runs in a row failed"}}}
		return w
	}, "02:30", task.VerdictOvertaken, []string{"paused on Tue 10 Mar 2026 02:30:20 UTC"}},
	{"a version between is missing", func() *world {
		w := nightly().change("02:00:00", "bob", func(s *task.Spec) { s.Description = "x" }).change("04:00:00", "bob", func(s *task.Spec) { s.Description = "y" })
		w.Versions = w.Versions[:1]
		return w
	}, "02:30", task.VerdictForgotten, []string{"The schedule on", "the version of the task at that time"}},
	{"before max_runs was reached", func() *world {
		w := nightly()
		w.Task.MaxRuns, w.Entry.MaxRuns, w.Entry.From, w.Entry.Own = 3, 3, task.At(at("02:30:00")), &task.Own{Runs: 3}
		return w
	}, "02:30", task.VerdictForgotten, []string{"was decided"}},
	{"the last of max_runs", func() *world {
		w := nightly()
		w.Entry.MaxRuns, w.Entry.Own = 3, &task.Own{Runs: 2}
		return w
	}, "12:30", task.VerdictWillRun, nil},
	{"the first after max_runs", func() *world {
		w := nightly()
		w.Entry.MaxRuns, w.Entry.Own = 3, &task.Own{Runs: 2}
		return w
	}, "13:30", task.VerdictEnded, []string{"2 ticks have run, and 1 tick comes before it"}},

	{"undecided: owner away", func() *world {
		w := nightly()
		w.Watermark.Time, w.Nodes = at("11:00:00"), w.Nodes[1:]
		return w
	}, "11:30", task.VerdictUndecided, []string{"its shard (7) has no owner now: it is assigned to n1, which is not present; the ticks of the shard are decided up to Tue 10 Mar 2026 11:00 UTC"}},
	{"undecided: owner ineligible", func() *world {
		w := nightly()
		w.Watermark.Time, w.Nodes[0].Ineligible = at("11:00:00"), task.IneligibleClock
		return w
	}, "11:30", task.VerdictUndecided, []string{"schedules nothing now (clock)"}},
	{"undecided: owner behind", func() *world {
		w := nightly()
		w.Watermark.Time = at("11:00:00")
		return w
	}, "11:30", task.VerdictUndecided, []string{"n1 has owned its shard (7) since Tue 10 Mar 2026 06:00 UTC and has not processed the tick yet"}},
	{"undecided: not covered", func() *world {
		w := nightly()
		w.Covered = false
		return w
	}, "11:30", task.VerdictUndecided, []string{"has not processed the task since it was created"}},
	{"undecided: just now", func() *world {
		w := nightly()
		w.Now, w.Watermark.Time = at("11:30:01"), at("11:00:00")
		return w
	}, "11:30", task.VerdictUndecided, []string{"n1 is deciding it now"}},

	{"will run", func() *world { return nightly() }, "12:30", task.VerdictWillRun, []string{"It will run: the tick of Tue 10 Mar 2026 12:30 UTC is due in 30m, if nothing changes."}},
	{"will run, beside one that is active", func() *world { return nightly().run("11:30:00", task.Running, nil) }, "12:30", task.VerdictWillRun,
		[]string{"a run has been active since", "and if it still is then, this one is skipped"}},
	{"will be paused", func() *world { return nightly().change("11:00:00", "bob", func(s *task.Spec) { s.Paused = true }) }, "12:30", task.VerdictPaused,
		[]string{"There will be no tick on Tue 10 Mar 2026 12:30 UTC: the task has been paused since Tue 10 Mar 2026 11:00 UTC by bob."}},
	{"will be paused until", func() *world {
		w := nightly().change("11:00:00", "bob", func(s *task.Spec) { s.Paused, s.PausedUntil = true, task.At(at("13:00:00")) })
		w.Entry.Own = &task.Own{Pauses: []task.Pause{{Since: task.At(at("11:00:00")), By: task.NewActor("bob"), Until: task.At(at("13:00:00"))}}}
		return w
	}, "12:30", task.VerdictPaused, []string{"until Tue 10 Mar 2026 13:00 UTC by bob"}},
	{"after the pause", func() *world {
		w := nightly().change("11:00:00", "bob", func(s *task.Spec) { s.Paused, s.PausedUntil = true, task.At(at("13:00:00")) })
		w.Entry.Own = &task.Own{Pauses: []task.Pause{{Since: task.At(at("11:00:00")), By: task.NewActor("bob"), Until: task.At(at("13:00:00"))}}}
		return w
	}, "13:30", task.VerdictWillRun, []string{"It will run"}},
	{"will be frozen", func() *world {
		w := nightly()
		w.Freezes = &task.Freezes{Holding: []task.Freeze{{Namespace: "default", Since: task.At(at("11:00:00")), By: task.NewActor("eve")}}}
		return w
	}, "12:30", task.VerdictFrozen, []string{"namespace default has been frozen since Tue 10 Mar 2026 11:00 UTC by eve"}},
	{"a shadow's tick", func() *world {
		return nightly().run("02:30:00", task.Skipped, func(r *task.Run) { r.Reason = task.ReasonShadow })
	}, "02:30", task.VerdictSkipped, []string{"was skipped: its task is a shadow: its ticks are recorded but start nothing"}},
	{"will be a shadow's", func() *world { return timed(func(s *task.Spec) { s.Shadow = true }) }, "12:30", task.VerdictShadow,
		[]string{"It will start nothing: the tick of Tue 10 Mar 2026 12:30 UTC is due in 30m, and will be recorded as skipped"}},
	{"will find no node", func() *world {
		w := nightly()
		w.Entry.Target.Selector = "role = db"
		return w
	}, "12:30", task.VerdictNoNode, []string{`no available node matches "role = db"`}},
	{"will find all under pressure", func() *world {
		w := nightly()
		for i := range w.Nodes {
			w.Nodes[i].Blocked = []string{task.FactDiskFree}
		}
		return w
	}, "12:30", task.VerdictNoNode, []string{`no node is available (n1 accepts no runs: over its own limit of disk_free`}},
	{"will find no key for its secret", func() *world {
		w := timed(secretly)
		w.Nodes[0].Blocked = []string{task.BlockedByPolicy}
		return w
	}, "12:30", task.VerdictNoNode, []string{"no node with a key for secrets is available (n1 accepts no runs: its policy cannot be read; see its log; " +
		"it has no readable key for secrets (see its log); n2 accepts no runs: it has no readable key", "present: n1 (accepts no runs: policy), n2 (no key for secrets)"}},
	{"will find a key for its secret", func() *world {
		w := timed(secretly)
		w.Nodes[1].SecretKeys = []string{"k1"}
		return w
	}, "12:30", task.VerdictWillRun, []string{"It will run"}},
	{"waits for a key for its secret", func() *world {
		return timed(secretly).run("11:30:00", task.Queued, func(r *task.Run) { r.Reason = task.ReasonNoNode })
	}, "11:30", task.VerdictWaiting, []string{"has been waiting for 30m: no node was available (n1 accepts no runs: it has no readable key for secrets (see its log); n2"}},
	{"will find none of its order", func() *world {
		w := nightly()
		w.Entry.Target.Strategy, w.Entry.Target.Order = task.StrategyFirst, []string{"db-1", "db-2"}
		return w
	}, "12:30", task.VerdictNoNode, []string{`no node is available among db-1, db-2`}},
	{"will be no tick", func() *world { return nightly() }, "12:31", task.VerdictNoTick, []string{"There will be no tick on Tue 10 Mar 2026 12:31 UTC", "the next is Tue 10 Mar 2026 13:30 UTC"}},
	{"before its start", func() *world { return timed(func(s *task.Spec) { s.Start = task.At(at("05:00:00")) }) }, "02:30", task.VerdictOutside,
		[]string{"There was no tick on Tue 10 Mar 2026 02:30 UTC: the task has no ticks before its start, Tue 10 Mar 2026 05:00 UTC."}},
	{"after its end", func() *world { return timed(func(s *task.Spec) { s.End = task.At(at("13:00:00")) }) }, "13:30", task.VerdictOutside,
		[]string{"There will be no tick", "the task has no ticks after its end, Tue 10 Mar 2026 13:00 UTC"}},
	{"jitter", func() *world { return timed(func(s *task.Spec) { s.Jitter = task.Duration(20 * time.Minute) }) }, "12:30", task.VerdictWillRun, []string{"is due at 12:43:59.464 UTC (jitter), in 43m 59s"}},
	{"delayed by jitter", func() *world {
		w := timed(func(s *task.Spec) { s.Jitter = task.Duration(20 * time.Minute) })
		w.Now, w.Watermark.Time = at("12:35:00"), at("12:34:00")
		return w
	}, "12:30", task.VerdictWillRun, []string{"is due at 12:43:59.464 UTC (jitter)"}},
	{"after completion, to come", func() *world { return timed(func(s *task.Spec) { s.Schedule[0] = "@every 1h after completion" }) }, "14:00", task.VerdictDepends,
		[]string{"depends on when the runs before it end: each tick comes 1h after the previous run ends"}},
	{"after completion, no tick", func() *world { return timed(func(s *task.Spec) { s.Schedule[0] = "@every 1h after completion" }) }, "07:00", task.VerdictNoTick,
		[]string{"There was no tick on Tue 10 Mar 2026 07:00 UTC: each tick comes 1h after the previous run ends."}},
	{"after completion, trimmed", func() *world {
		w := timed(func(s *task.Spec) { s.Schedule[0] = "@every 1h after completion" })
		w.Newer = 20
		return w
	}, "07:00", task.VerdictForgotten, []string{"Whether there was a tick on Tue 10 Mar 2026 07:00 UTC is no longer on record"}},
	{"after completion, the last of several skipped ticks", func() *world {
		return timed(func(s *task.Spec) { s.Schedule[0] = "@every 1h after completion" }).run("05:30:00", task.Skipped, func(r *task.Run) {
			r.Reason, r.Count, r.Last = task.ReasonFrozen, 3, task.At(at("07:30:00"))
		})
	}, "07:30", task.VerdictSkipped, []string{"07:30"}},
	{"after completion, successes are not kept", func() *world {
		w := timed(func(s *task.Spec) {
			s.Schedule[0], s.History.Record = "@every 1h after completion", task.RecordFailures
		})
		w.Newer = 1
		return w.counts(ledger.NewUncounted(w.Task.UID, at("01:00:00")))
	}, "07:00", task.VerdictForgotten, []string{"Whether there was a tick on Tue 10 Mar 2026 07:00 UTC is no longer on record"}},
	{"after completion, few were kept later", func() *world {
		w := timed(func(s *task.Spec) { s.Schedule[0] = "@every 1h after completion" }).change("08:00:00", "bob", func(s *task.Spec) { s.History.Keep = 2 })
		w.Newer = 2
		return w
	}, "07:00", task.VerdictForgotten, []string{"Whether there was a tick on Tue 10 Mar 2026 07:00 UTC is no longer on record"}},
	{"@every, from when is forgotten", func() *world {
		w := timed(func(s *task.Spec) { s.Schedule[0] = "@every 1h" }).change("05:00:00", "bob", func(s *task.Spec) { s.Description = "x" }).
			change("06:00:00", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"@daily"} })
		w.Versions = w.Versions[1:]
		return w
	}, "05:30", task.VerdictForgotten, []string{"is no longer on record"}},
	{"@every, of a former version", func() *world {
		return timed(func(s *task.Spec) { s.Schedule[0] = "@every 1h" }).change("01:10:00", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"@every 30m"} }).
			change("06:00:00", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"@daily"} })
	}, "05:30", task.VerdictNoTick, []string{"@every 30m; the previous tick was Tue 10 Mar 2026 05:10 UTC, the next was Tue 10 Mar 2026 05:40 UTC"}},
	{"queue full", func() *world {
		return timed(func(s *task.Spec) { s.Overlap, s.Queue.Limit = task.OverlapQueue, 2 }).run("02:30:00", task.Skipped, func(r *task.Run) { r.Reason = task.ReasonQueueFull })
	}, "02:30", task.VerdictSkipped, []string{"the task already had the maximum number of waiting runs (queue.limit: 2)"}},
	{"dropped", func() *world {
		return nightly().run("02:30:00", task.Skipped, func(r *task.Run) { r.Reason, r.EndedAt = task.ReasonDropped, task.At(at("04:30:00")) }).
			run("03:30:00", task.Queued, nil).run("04:30:00", task.Queued, nil)
	}, "02:30", task.VerdictSkipped, []string{"a newer tick or ended run took its place (the run of Tue 10 Mar 2026 04:30 UTC)"}},
	{"replaced by", func() *world {
		return nightly().run("02:30:00", task.Cancelled, func(r *task.Run) { r.Reason = task.ReasonReplaced }).run("03:30:00", task.Succeeded, nil)
	}, "02:30", task.VerdictCancelled, []string{"a newer tick or ended run replaced it (the run of Tue 10 Mar 2026 03:30 UTC on n1)"}},
	{"max_runs reached", func() *world {
		w := nightly()
		w.Task.MaxRuns, w.Entry.MaxRuns, w.Entry.From = 3, 3, task.At(at("02:30:00"))
		w.Entry.Own = &task.Own{Runs: 3}
		return w
	}, "12:30", task.VerdictEnded, []string{"the task had reached max_runs (3)"}},
	{"max_runs will be reached", func() *world {
		w := nightly()
		w.Entry.MaxRuns, w.Entry.Own = 3, &task.Own{Runs: 2}
		return w
	}, "14:30", task.VerdictEnded, []string{"will probably not run: max_runs is 3, 2 ticks have run, and 2 ticks come before it"}},
}

func TestFor_RunWithParts(t *testing.T) {
	fan := func(ended, succeeded int) func(*task.Run) {
		return func(r *task.Run) {
			r.Node, r.Fan = "", &task.Fan{Count: 3, Need: 3, Ended: ended, Succeeded: succeeded}
		}
	}

	part := func(r *task.Run) { r.ID, r.Trigger, r.Node = task.PartID(r.ID, 1), task.TriggerPart, "n2" }
	for _, c := range []struct {
		name  string
		world *world
		ask   string
		want  task.Verdict
		says  string
	}{
		{"under way", nightly().run("11:30:00", task.Running, part).run("11:30:00", task.Running, fan(1, 1)), "", task.VerdictRunning,
			"has been running since Tue 10 Mar 2026 11:30:00.012 UTC; 1 of its 3 parts has ended"},
		{"not one has started", nightly().run("11:30:00", task.Running, func(r *task.Run) { fan(0, 0)(r); r.StartedAt = task.Time{} }), "", task.VerdictRunning,
			"has been running since Tue 10 Mar 2026 11:30 UTC; 0 of its 3 parts have ended"},
		{"asked about by its time", nightly().run("02:30:00", task.Running, part).run("02:30:00", task.Running, fan(2, 1)), "02:30", task.VerdictRunning,
			"2 of its 3 parts have ended"},
		{"succeeded", nightly().run("02:30:00", task.Succeeded, fan(3, 3)), "02:30", task.VerdictSucceeded, "(3 of 3 parts)"},
		{"failed", nightly().run("02:30:00", task.Failed, func(r *task.Run) {
			fan(3, 2)(r)
			r.Reason, r.Message = task.ReasonParts, "2 of 3 parts succeeded, 3 required; part 1 on n2: failed (exit_code)"
		}), "02:30", task.VerdictFailed, "part 1 on n2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := c.world.ask(t, c.ask)
			if a.Verdict != c.want || !strings.Contains(a.Sentence, c.says) {
				t.Errorf("%s: %s", a.Verdict, a.Sentence)
			}

			for _, l := range a.Lines {
				if strings.Contains(l.Says, " to on ") || strings.HasPrefix(l.Says, "to on") || strings.HasPrefix(l.Says, "to  on") || task.IsPart(l.Says) {
					t.Errorf("%s: %s", l.What, l.Says)
				}
			}
		})
	}
}

func TestFor_Stories(t *testing.T) {
	for _, c := range slices.Concat(stories, waitingStories, requestStories, ledgerStories, afterStories) {
		t.Run(c.name, func(t *testing.T) {
			a := c.world().ask(t, c.ask)
			if a.Verdict != c.verdict {
				t.Errorf("the verdict is %s, not %s", a.Verdict, c.verdict)
			}

			said := a.Sentence
			for _, l := range a.Lines {
				said += "\n" + l.What + ": " + l.Says
			}

			for _, part := range c.says {
				if !strings.Contains(said, part) {
					t.Errorf("%q is not in:\n%s", part, said)
				}
			}
		})
	}
}
