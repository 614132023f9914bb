package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/scheduler/evaluator"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// alerting is an option: a task with alerts for ops/slack.
func alerting(change ...func(a *task.Alerts)) option {
	return func(t *task.Task) {
		t.Alerts = &task.Alerts{Notify: []string{"ops/slack"}}
		for _, c := range change {
			c(t.Alerts)
		}
	}
}

// alerts describes the alerts of the shard: "a failures: open", "b failures: closed, succeeded by ann". Those that are counted have
// the name of the receiver.
func (w *world) alerts() map[string]string {
	w.Helper()
	all, err := w.store.AlertsOfShards(w.ctx, []int{0})
	w.ok(err)

	list := map[string]string{}
	for _, a := range all[0] {
		name := fmt.Sprintf("%s %s", a.Task, a.Kind)
		if a.Kind == task.AlertMore {
			name = a.Receiver
		}

		switch {
		case a.IsOpen() && a.Kind == task.AlertMore:
			list[name] = fmt.Sprint("open, ", a.More)
		case a.IsOpen():
			list[name] = "open"
		default:
			list[name] = "closed, " + string(a.Closed.Why)
			if a.Closed.By != nil {
				list[name] += " by " + a.Closed.By.String()
			}
		}
	}

	return list
}

// alert returns the alert about failures of a task.
func (w *world) alert(name string) task.Alert {
	w.Helper()
	all, err := w.store.AlertsOfShards(w.ctx, []int{0})
	w.ok(err)

	i := slices.IndexFunc(all[0], func(a task.Alert) bool { return a.Task == name && a.Kind == task.AlertFailures })
	if i < 0 {
		w.Fatalf("%s has no alert", name)
	}

	return all[0][i]
}

// wantAlerts waits until the alerts of the shard are these.
func (w *world) wantAlerts(within time.Duration, want map[string]string) {
	w.Helper()
	deadline := time.Now().Add(within)
	for !maps.Equal(w.alerts(), want) {
		if !time.Now().Before(deadline) {
			w.Fatalf("the alerts are %q, want %q", w.alerts(), want)
		}
		time.Sleep(time.Second)
	}
}

// awaitAlerts waits until a condition on alerts holds. It asks less often than eventually, because an evaluator visits a shard
// every few seconds.
func (w *world) awaitAlerts(what string, cond func() bool) {
	w.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(time.Second) {
		if time.Now().After(deadline) {
			w.Fatalf("not in time: %s; the alerts are %q", what, w.alerts())
		}
	}
}

// runAs starts a run of a task, which ends in a state.
func (w *world) runAs(name string, s task.State) {
	w.Helper()
	w.setClockToNow()
	w.trigger(name)
	w.eventually(name+" runs", func() bool { return len(w.active(name)) == 1 })
	w.setClockToNow()
	w.finish(name, s)
}

// dismiss dismisses the dead runs of a task.
func (w *world) dismiss(name string) {
	w.Helper()
	list, err := w.store.DeadRuns(w.ctx, ref(name))
	w.ok(err)
	for _, d := range list {
		w.ok(w.store.Dismiss(w.ctx, ref(name), d, task.NewActor("ann"), time.Now()))
	}
}

// notMet returns the tasks with an expectation that is not met, as queries see them.
func (r *runningEngine) notMet() (names []string) {
	_ = r.EachIndex(context.Background(), "user:ann", nil, func(_ readmodel.ShardAnswer, x *readmodel.Index) bool {
		x.EachRow(0, func(r *readmodel.Row) {
			if r.Flags&readmodel.AlertFlags != 0 {
				names = append(names, r.Name)
			}
		})

		return true
	})
	slices.Sort(names)

	return names
}

// An alert opens when runs fail, and closes for the reason for which that ends.
//
// Verifies: G57, G58
func TestAlerts_OpenAndClose(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		r := w.run("n1")
		for _, name := range []string{"succeeds", "dismissed", "deleted", "unwatched", "retried"} {
			w.create(name, cronned("@manual"), allow, alerting())
		}
		w.create("twice", cronned("@manual"), allow, alerting(func(a *task.Alerts) { a.Failures = new(2) }))
		w.create("quiet", cronned("@manual"), allow)

		all := []string{"deleted", "dismissed", "quiet", "retried", "succeeds", "twice", "unwatched"}
		for _, name := range all {
			w.runAs(name, task.Failed)
		}
		want := map[string]string{"succeeds failures": "open", "dismissed failures": "open", "deleted failures": "open", "unwatched failures": "open", "retried failures": "open"}
		w.wantAlerts(20*time.Second, want)

		if got := r.notMet(); !slices.Equal(got, []string{"default/deleted", "default/dismissed", "default/retried", "default/succeeds", "default/unwatched"}) {
			t.Errorf("queries find %q", got)
		}
		if a := w.alert("succeeds"); a.Openings != 1 || a.Failures != 1 || a.Run == "" || a.Since.IsZero() || !slices.Equal(a.Notify, []string{"ops/slack"}) {
			t.Errorf("%+v", a)
		}

		w.runAs("twice", task.Failed)
		want["twice failures"] = "open"
		w.wantAlerts(30*time.Second, want)

		// Someone starts the dead run again: the alert stays open until that run has ended.
		st, err := w.store.Task(w.ctx, ref("retried"))
		w.ok(err)
		dead, err := w.store.DeadRuns(w.ctx, ref("retried"))
		w.ok(err)
		again := dead[0].Waiting
		again.Run = task.Run{ID: task.ManualRunID(time.Now(), st.Task.UID), Namespace: "default", Task: "retried", UID: st.Task.UID, ScheduledTime: task.At(time.Now()), Attempt: 1, State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual}
		w.ok(w.store.Revive(w.ctx, st, dead[0], again))

		w.runAs("succeeds", task.Succeeded)
		w.dismiss("dismissed")
		w.remove("deleted")
		w.update("unwatched", false, func(t *task.Task) { t.Alerts, t.UpdatedBy = nil, task.NewActor("bob") })
		want["succeeds failures"], want["dismissed failures"] = "closed, succeeded", "closed, dismissed by ann"
		want["deleted failures"], want["unwatched failures"] = "closed, deleted", "closed, not_watched by bob"
		w.wantAlerts(30*time.Second, want)
		time.Sleep(time.Minute)
		w.wantAlerts(0, want)

		// The retried run is cancelled. Nothing of the failure is left.
		w.finish("retried", task.Cancelled)
		want["retried failures"] = "closed, dismissed"
		w.wantAlerts(time.Minute, want)

		// It fails again within two hours: the same alert opens again.
		first := w.alert("succeeds")
		w.runAs("succeeds", task.Failed)
		want["succeeds failures"] = "open"
		w.wantAlerts(30*time.Second, want)
		if a := w.alert("succeeds"); a.ID != first.ID || a.Openings != 2 || len(a.Opened) != 1 || !a.Opened[0].Equal(first.OpenedAt.Time) {
			t.Errorf("%+v, first %+v", a, first)
		}

		// Labels and receivers follow the task.
		w.update("succeeds", false, alerting(func(a *task.Alerts) { a.Notify = []string{"pager"} }), func(t *task.Task) { t.Labels = map[string]string{"owner": "data"} })
		w.awaitAlerts("the alert follows", func() bool {
			a := w.alert("succeeds")
			return slices.Equal(a.Notify, []string{"default/pager"}) && a.Labels["owner"] == "data" && a.Openings == 2
		})

		if n := r.NotEvaluated(); n != 0 {
			t.Errorf("%d tasks are not evaluated", n)
		}
	})
}

// A new owner goes on with the alerts that it finds, also those of tasks that were deleted while the shard had no owner.
func TestAlerts_ANewOwnerGoesOn(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2").judged()
		w.setClockToNow()
		first := w.run("n1")
		for _, name := range []string{"a", "b", "c", "d"} {
			w.create(name, cronned("@manual"), allow, alerting())
		}
		for _, name := range []string{"a", "b", "c"} {
			w.runAs(name, task.Failed)
		}
		w.wantAlerts(20*time.Second, map[string]string{"a failures": "open", "b failures": "open", "c failures": "open"})

		// d fails, c is deleted and created again, and b succeeds, while nobody owns the shard.
		for _, name := range []string{"b", "d"} {
			w.setClockToNow()
			w.trigger(name)
			w.eventually(name+" runs", func() bool { return len(w.active(name)) == 1 })
		}
		first.stop()
		<-first.work
		w.setClockToNow()
		w.finish("b", task.Succeeded)
		w.finish("d", task.TimedOut)
		w.remove("c")
		w.create("c", cronned("@manual"), allow, alerting())
		time.Sleep(time.Minute)
		w.wantAlerts(0, map[string]string{"a failures": "open", "b failures": "open", "c failures": "open"})

		second := w.run("n2")
		w.wantAlerts(time.Minute, map[string]string{"a failures": "open", "b failures": "closed, succeeded", "c failures": "closed, deleted", "d failures": "open"})
		w.awaitAlerts("queries find them", func() bool { return slices.Equal(second.notMet(), []string{"default/a", "default/d"}) })

		w.runAs("a", task.Succeeded)
		w.runAs("c", task.Failed)
		w.wantAlerts(time.Minute, map[string]string{"a failures": "closed, succeeded", "b failures": "closed, succeeded", "c failures": "open", "d failures": "open"})
		if a := w.alert("c"); a.Openings != 1 {
			t.Errorf("the alert of another task of the name: %+v", a)
		}
	})
}

// A shard has at most 50 open alerts of a namespace for a receiver, and counts the others. When there is room, they get their own.
//
// Verifies: G58
func TestAlerts_WithoutRoomAreCounted(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1")
		w.setClockToNow()
		r := w.run("n1")

		var names []string
		for i := range 60 {
			names = append(names, fmt.Sprintf("t%02d", i))
		}
		w.createTogether(w.clock(), names, cronned("@manual"), allow, alerting())
		w.create("dba", cronned("@manual"), allow, alerting(func(a *task.Alerts) { a.Notify = []string{"ops/slack", "ops/dba"} }))

		count := func() (open, closed int, more string) {
			for name, is := range w.alerts() {
				switch {
				case name == "ops/slack" || name == "ops/dba":
					more = name + " " + is
				case is == "open":
					open++
				default:
					closed++
				}
			}
			return open, closed, more
		}

		for _, name := range names {
			w.setClockToNow()
			w.trigger(name)
		}
		w.eventually("all run", func() bool { return len(w.active("t00")) == 1 && len(w.active("t59")) == 1 })
		for _, name := range names {
			w.setClockToNow()
			w.finish(name, task.Failed)
		}
		w.awaitAlerts("fifty are open", func() bool {
			open, _, more := count()
			return open == 50 && more == "ops/slack open, map[failures:10]"
		})
		if got := r.notMet(); len(got) != 60 {
			t.Errorf("queries find %d tasks, want 60", len(got))
		}

		// Another receiver of a further alert has room, so it has a record.
		w.runAs("dba", task.Failed)
		w.awaitAlerts("the other receiver hears of it", func() bool { return w.alerts()["dba failures"] == "open" })

		// There is room again only when fewer than 25 are open: a storm that ends opens nothing.
		for _, name := range names[:20] {
			w.runAs(name, task.Succeeded)
		}
		time.Sleep(time.Minute)
		counted := func() (n int) {
			for _, name := range names {
				if w.alerts()[name+" failures"] == "" {
					n++
				}
			}
			return n
		}
		open, closed, more := count()
		if open+closed != 51 || open > 45 || open < 25 {
			t.Errorf("%d open, %d closed, %q", open, closed, more)
		}

		for _, name := range names[20:45] {
			w.runAs(name, task.Succeeded)
		}
		w.awaitAlerts("all have room", func() bool {
			open, _, more := count()
			return open == 16 && more == "ops/slack closed, solved" && counted() <= 10
		})
		if got := r.notMet(); len(got) != 16 {
			t.Errorf("queries find %q", got)
		}
	})
}

// A new owner goes on with what the former one counted. It judges what fell due before it came 15 minutes later, and nothing is
// solved in the meantime.
//
// Verifies: G58
func TestAlerts_ANewOwnerCountsTheSame(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2")
		w.setClockToNow()
		first := w.run("n1")

		var names []string
		for i := range 60 {
			names = append(names, fmt.Sprintf("t%02d", i))
		}
		w.createTogether(w.clock(), names, cronned("@manual"), allow, alerting(func(a *task.Alerts) { a.SuccessWithin = task.Duration(time.Minute) }))

		const ten = "open, map[success_within:10]"
		w.awaitAlerts("ten are counted", func() bool { return w.alerts()["ops/slack"] == ten })
		first.stop()
		<-first.work

		w.setClockToNow()
		w.run("n2")
		for range 20 * 12 {
			time.Sleep(5 * time.Second)
			if got := w.alerts()["ops/slack"]; got != ten {
				t.Fatalf("under the new owner, %s", got)
			}
		}
	})
}

// A closed alert is deleted after two hours.
func TestAlerts_ClosedOnesAreDeleted(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1")
		w.setClockToNow()
		w.run("n1")
		w.create("a", cronned("@manual"), allow, alerting())
		w.create("b", cronned("@manual"), allow, alerting())
		w.runAs("a", task.Failed)
		w.runAs("b", task.Failed)
		w.wantAlerts(time.Minute, map[string]string{"a failures": "open", "b failures": "open"})
		w.runAs("a", task.Succeeded)
		w.wantAlerts(time.Minute, map[string]string{"a failures": "closed, succeeded", "b failures": "open"})

		time.Sleep(119 * time.Minute)
		w.wantAlerts(0, map[string]string{"a failures": "closed, succeeded", "b failures": "open"})
		time.Sleep(2 * time.Minute)
		w.wantAlerts(0, map[string]string{"b failures": "open"})
	})
}

// Deadlines and times without success are found although nothing happens.
func TestAlerts_OfSuccessesThatDoNotCome(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1") // at 12:00
		w.setClockToNow()
		w.run("n1")
		within := alerting(func(a *task.Alerts) { a.Failures, a.SuccessWithin = new(0), task.Duration(time.Hour) })
		by := alerting(func(a *task.Alerts) { a.Failures, a.SuccessBy = new(0), "30 13 * * *" })
		w.create("late", cronned("@manual"), allow, within)
		w.create("fine", cronned("@manual"), allow, within)
		w.create("paused", cronned("@manual"), allow, within)
		w.create("missed", cronned("0 13 * * *"), on("node = nowhere"), by)
		w.create("done", cronned("0 13 * * *"), allow, by)

		time.Sleep(32 * time.Minute)
		w.runAs("fine", task.Succeeded)
		w.pause("paused")
		time.Sleep(27 * time.Minute)
		w.wantAlerts(0, map[string]string{})
		time.Sleep(90 * time.Second)
		w.wantAlerts(0, map[string]string{"late success_within": "open"})

		w.eventually("it runs", func() bool { return len(w.active("done")) == 1 })
		w.setClockToNow()
		w.finish("done", task.Succeeded)
		time.Sleep(time.Until(time.Date(2026, 1, 2, 13, 30, 14, 0, time.UTC)))
		w.wantAlerts(0, map[string]string{"late success_within": "open"})
		time.Sleep(30 * time.Second)
		w.wantAlerts(0, map[string]string{"late success_within": "open", "missed success_by": "open"})
		time.Sleep(2 * time.Minute)
		w.wantAlerts(0, map[string]string{"late success_within": "open", "fine success_within": "open", "missed success_by": "open"})

		w.runAs("late", task.Succeeded)
		w.runAs("fine", task.Failed)
		w.pause("fine")
		w.wantAlerts(time.Minute, map[string]string{"late success_within": "closed, succeeded", "fine success_within": "closed, paused", "missed success_by": "open"})
	})
}

// An hour without owner: what passed in it is judged fifteen minutes after the opening, what passes later in time.
func TestAlerts_DeadlinesWithoutOwnerWait(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2") // at 12:00
		w.setClockToNow()
		first := w.run("n1")
		by := func(cron string) option {
			return alerting(func(a *task.Alerts) { a.Failures, a.SuccessBy = new(0), cron })
		}
		w.create("before", cronned("@manual"), by("30 12 * * *"))
		w.create("caught-up", cronned("20 12 * * *"), by("30 12 * * *"))
		w.create("after", cronned("@manual"), by("5 13 * * *"))
		// They are older than their deadlines of yesterday.
		for _, name := range []string{"before", "caught-up", "after"} {
			w.update(name, false, func(t *task.Task) { t.UpdatedAt = task.At(start.Add(-72 * time.Hour)) })
		}

		time.Sleep(time.Minute)
		first.stop()
		<-first.work
		time.Sleep(time.Until(start.Add(time.Hour)))
		w.run("n2")

		w.eventually("the late tick runs", func() bool { return len(w.active("caught-up")) == 1 })
		time.Sleep(time.Until(start.Add(time.Hour + 6*time.Minute)))
		w.wantAlerts(0, map[string]string{"after success_by": "open"})
		w.setClockToNow()
		w.finish("caught-up", task.Succeeded)
		time.Sleep(time.Until(start.Add(time.Hour + 16*time.Minute)))
		w.wantAlerts(0, map[string]string{"after success_by": "open", "before success_by": "open"})
	})
}

// Etcd is lost at 12:03, and a backup of then is restored at 13:00.
func TestAlerts_OfWhatARestoreHasLost(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1") // at 12:00
		w.setClockToNow()
		lost := w.run("n1")
		expecting := func(set func(a *task.Alerts)) option {
			return alerting(func(a *task.Alerts) { a.Failures = new(0); set(a) })
		}
		w.create("within", cronned("@manual"), allow, expecting(func(a *task.Alerts) { a.SuccessWithin = task.Duration(30 * time.Minute) }))
		w.create("by", cronned("@manual"), expecting(func(a *task.Alerts) { a.SuccessBy = "30 12 * * *" }))
		w.create("late", cronned("10 12,18 * * *"), expecting(func(a *task.Alerts) { a.MaxLateness = task.Duration(5 * time.Minute) }))
		w.create("long", cronned("@manual"), allow, expecting(func(a *task.Alerts) { a.MaxDuration = task.Duration(10 * time.Minute) }))
		for _, name := range []string{"within", "by"} { // they are older than the deadline of yesterday
			w.update(name, false, func(t *task.Task) { t.UpdatedAt = task.At(start.Add(-72 * time.Hour)) })
		}

		time.Sleep(time.Minute)
		w.runAs("within", task.Succeeded)
		w.trigger("long")
		w.eventually("it runs", func() bool { return len(w.active("long")) == 1 })
		w.setClockToNow()
		w.start("long")
		time.Sleep(2 * time.Minute)
		lost.stop()
		<-lost.work

		time.Sleep(time.Until(start.Add(time.Hour)))
		w.setClockToNow()
		w.gap = w.restore(3590)
		w.run("n1")

		for time.Since(start) < 85*time.Minute {
			time.Sleep(time.Minute)
			w.wantAlerts(0, map[string]string{})
		}
		time.Sleep(6 * time.Minute) // what the restored cluster does not do is missed
		w.wantAlerts(0, map[string]string{"within success_within": "open"})
	})
}

// hangingAlerts is a store whose reads for alerts hang from some time on.
type hangingAlerts struct {
	evaluator.Store
	from time.Time
}

func (h *hangingAlerts) ReadToEvaluate(ctx context.Context, refs []record.Ref, readsDead bool) (store.AlertReading, error) {
	if time.Now().After(h.from) {
		<-ctx.Done()
	}

	return h.Store.ReadToEvaluate(ctx, refs, readsDead)
}

// A node whose evaluator hangs announces that within five minutes.
func TestAlerts_AHangingEvaluatorIsSeen(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1")
		w.setClockToNow()
		r := w.run("n1", func(e *Engine) {
			s := &hangingAlerts{e.cfg.Store, time.Now().Add(time.Minute)}
			e.evaluator = evaluator.New(evaluator.Config{Store: s, Shards: e.shardsToEvaluate, Now: time.Now, MayWrite: func() error { return nil }, Logger: zap.NewNop()})
		})
		for _, name := range []string{"a", "b", "c"} {
			w.create(name, cronned("@manual"), allow, alerting())
		}
		w.create("plain", cronned("@manual"), allow)

		w.runAs("a", task.Failed)
		w.wantAlerts(30*time.Second, map[string]string{"a failures": "open"})
		time.Sleep(time.Minute)
		w.runAs("b", task.Failed)
		time.Sleep(4 * time.Minute)
		if n := r.NotEvaluated(); n != 0 {
			t.Errorf("%d tasks are not evaluated", n)
		}
		time.Sleep(90 * time.Second)
		if n := r.NotEvaluated(); n != 3 {
			t.Errorf("%d tasks are not evaluated, want all", n)
		}
		synctest.Wait()
	})
}

// start notes that the oldest attempt of a task has started.
func (w *world) start(name string) {
	w.Helper()
	a := w.active(name)[0]
	a.State, a.StartedAt = task.Running, task.At(w.clock())
	_, err := w.store.Rewrite(w.ctx, w.sessions["n1"], a)
	w.ok(err)
}

// pauseBy pauses a task with a record of the pause, or ends the pause.
func (w *world) pauseBy(name string, p task.Pause) {
	w.Helper()
	old, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)
	t := old.Task
	t.Paused = p.Ended.IsZero()
	t.Generation++
	e := task.NewEntry(t, old.Entry.From, old.Entry.Anchor)
	e.Own = &task.Own{Pauses: []task.Pause{p}}
	_, err = w.store.UpdateTask(w.ctx, old, t, e)
	w.ok(err)
}

// Ticks that do not start, runs that take long, and pauses that last long are found although nothing else happens.
//
// Verifies: G57, G58
func TestAlerts_OfLimits(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged() // at 12:00
		w.setClockToNow()
		w.run("n1")
		limit := func(set func(a *task.Alerts)) option {
			return alerting(func(a *task.Alerts) { a.Failures = new(0); set(a) })
		}
		late := limit(func(a *task.Alerts) { a.MaxLateness = task.Duration(5 * time.Minute) })
		long := limit(func(a *task.Alerts) { a.MaxDuration = task.Duration(10 * time.Minute) })

		w.create("nowhere", cronned("10 12,18 * * *"), on("node = nowhere"), late)
		w.create("no-slot", cronned("10 12,18 * * *"), late)
		w.create("on-time", cronned("10 12,18 * * *"), late)
		w.create("long", cronned("@manual"), allow, long)
		w.create("short", cronned("@manual"), allow, long)
		w.create("paused", cronned("@manual"), allow, limit(func(a *task.Alerts) { a.MaxPause = task.Duration(20 * time.Minute) }))
		w.create("quiet", cronned("10 12,18 * * *"), on("node = nowhere"))
		w.pauseBy("paused", task.Pause{Since: task.At(w.clock()), By: task.NewActor("ann")})

		time.Sleep(2 * time.Minute)
		w.setClockToNow()
		for _, name := range []string{"long", "short"} {
			w.trigger(name)
			w.eventually(name+" runs", func() bool { return len(w.active(name)) == 1 })
			w.setClockToNow()
			w.start(name)
		}
		time.Sleep(9 * time.Minute)
		w.wantAlerts(0, map[string]string{})
		w.setClockToNow()
		w.finish("short", task.Succeeded)
		w.start("on-time")

		want := map[string]string{"long max_duration": "open"}
		w.wantAlerts(2*time.Minute, want)
		time.Sleep(time.Until(start.Add(15*time.Minute + 14*time.Second)))
		w.wantAlerts(0, want)
		want["nowhere max_lateness"], want["no-slot max_lateness"] = "open", "open"
		w.wantAlerts(time.Minute, want)
		time.Sleep(time.Until(start.Add(19 * time.Minute)))
		w.wantAlerts(0, want)
		want["paused max_pause"] = "open"
		w.wantAlerts(2*time.Minute, want)

		w.setClockToNow()
		w.start("no-slot")
		w.finish("long", task.Succeeded)
		w.pauseBy("paused", task.Pause{Since: task.At(start), By: task.NewActor("ann"), Ended: task.At(w.clock()), EndedBy: task.NewActor("bob")})
		want["no-slot max_lateness"], want["long max_duration"], want["paused max_pause"] = "closed, started", "closed, succeeded", "closed, resumed by bob"
		w.wantAlerts(2*time.Minute, want)
	})
}

// A pause by a person that follows another one is judged, also if the former one ended without a change of the entry, or if the scheduler
// had paused the task. In both cases, the row of the task stays paused.
//
// Verifies: G58
func TestAlerts_OfFurtherPauses(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged() // at 12:00
		w.setClockToNow()
		w.run("n1")
		at := func(minute int) task.Time { return task.At(start.Add(time.Duration(minute) * time.Minute)) }

		first := map[string]task.Pause{
			"ended":  {Since: at(0), By: task.NewActor("ann"), Until: at(2)},
			"failed": {Since: at(0), By: task.NewActor(task.PausedByFailures)},
		}
		for name, p := range first {
			w.create(name, cronned("@manual"), allow, alerting(func(a *task.Alerts) { a.Failures, a.MaxPause = new(0), task.Duration(5*time.Minute) }))
			w.pauseBy(name, p)
		}

		// By then all tasks have been judged, and nothing more is expected of their first pauses.
		time.Sleep(time.Until(start.Add(7 * time.Minute)))
		w.wantAlerts(0, map[string]string{})
		w.setClockToNow()
		for name := range first {
			w.pauseBy(name, task.Pause{Since: at(7), By: task.NewActor("ann")})
		}

		time.Sleep(time.Until(start.Add(11*time.Minute + 50*time.Second)))
		w.wantAlerts(0, map[string]string{})
		w.wantAlerts(time.Minute, map[string]string{"ended max_pause": "open", "failed max_pause": "open"})
	})
}

// After an opening, only the deadlines of a task wait for the runs that were missed. A task that has one and another expectation is
// judged as usual.
//
// Verifies: G58
func TestAlerts_OtherExpectationsDoNotWaitForDeadlines(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged() // at 12:00
		w.setClockToNow()
		w.run("n1")
		and := func(set func(a *task.Alerts)) option {
			return alerting(func(a *task.Alerts) { a.Failures, a.SuccessBy = new(0), "0 3 * * *"; set(a) })
		}

		w.create("paused", cronned("@manual"), allow, and(func(a *task.Alerts) { a.MaxPause = task.Duration(5 * time.Minute) }))
		w.create("late", cronned("3 12 * * *"), on("node = nowhere"), and(func(a *task.Alerts) { a.MaxLateness = task.Duration(2 * time.Minute) }))
		w.create("old", cronned("3 12 * * *"), on("node = nowhere"), and(func(a *task.Alerts) { a.SuccessWithin = task.Duration(5 * time.Minute) }))
		w.pauseBy("paused", task.Pause{Since: task.At(w.clock()), By: task.NewActor("ann")})

		time.Sleep(time.Until(start.Add(4*time.Minute + 50*time.Second)))
		w.wantAlerts(0, map[string]string{})
		time.Sleep(time.Until(start.Add(9*time.Minute + 30*time.Second)))
		w.wantAlerts(0, map[string]string{"paused max_pause": "open", "late max_lateness": "open", "old success_within": "open"})
	})
}

// readRules returns a function that returns the rules of alerts as etcd has them.
func (w *world) readRules() func() *alert.Rules {
	var known *alert.Rules

	return func() *alert.Rules {
		res, err := w.etcd.Get(w.ctx, w.store.Keys().AlertRules(), clientv3.WithPrefix())
		if err != nil {
			return nil
		}

		var list []task.AlertRule
		for _, e := range res.Kvs {
			if rule, ok := record.DecodeAlertRule(w.store.Keys(), e); ok {
				list = append(list, rule)
			}
		}
		known = alert.CompileRules(list, res.Header.Revision, known)

		return known
	}
}

// labelled is an option: a task with these labels.
func labelled(labels map[string]string) option { return func(t *task.Task) { t.Labels = labels } }

// A rule watches tasks without alerts of their own, also those that came before it. Its alerts follow what it says, and close when it does
// not apply any more.
//
// Verifies: G57, G58
func TestAlerts_OfRules(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		r := w.run("n1", func(e *Engine) { e.cfg.AlertRules = w.readRules() })
		data := labelled(map[string]string{"team": "data"})
		for _, name := range []string{"deleted-rule", "relabelled", "exempt", "created-again"} {
			w.create(name, cronned("@manual"), allow, data)
		}
		w.create("other", cronned("@manual"), allow)
		w.create("own", cronned("@manual"), allow, data, alerting(func(a *task.Alerts) { a.Failures = new(2) }))

		all := []string{"created-again", "deleted-rule", "exempt", "other", "own", "relabelled"}
		for _, name := range all {
			w.runAs(name, task.Failed)
		}
		time.Sleep(time.Minute)
		w.wantAlerts(0, map[string]string{})

		put := func(name, selector string, a task.Alerts) {
			w.put(w.store.Keys().AlertRule("default", name), record.EncodeAlertRule(task.AlertRule{Selector: selector, Alerts: a, UpdatedBy: task.NewActor("ann")}))
		}
		put("m", "team=data", task.Alerts{Notify: []string{"ops/slack"}})
		want := map[string]string{"created-again failures": "open", "deleted-rule failures": "open", "exempt failures": "open", "relabelled failures": "open"}
		w.wantAlerts(30*time.Second, want)
		if a := w.alert("exempt"); a.Rule != "m" || !slices.Equal(a.Notify, []string{"ops/slack"}) {
			t.Errorf("%+v", a)
		}
		if got := r.notMet(); len(got) != 4 {
			t.Errorf("queries find %q", got)
		}

		// The rule has other receivers now, and another rule comes before it for some tasks.
		put("m", "team=data", task.Alerts{Notify: []string{"ops/mail"}})
		put("a", "team=web", task.Alerts{Failures: new(0), SuccessWithin: task.Duration(time.Hour)})
		w.awaitAlerts("the receivers change", func() bool { return slices.Equal(w.alert("exempt").Notify, []string{"ops/mail"}) })
		w.wantAlerts(0, want)

		w.update("relabelled", false, labelled(map[string]string{"team": "web"}))
		w.update("exempt", false, func(t *task.Task) { t.Alerts, t.UpdatedBy = &task.Alerts{Failures: new(0)}, task.NewActor("bob") })
		w.remove("created-again")
		want["relabelled failures"], want["exempt failures"], want["created-again failures"] = "closed, not_watched", "closed, not_watched by bob", "closed, deleted"
		w.wantAlerts(30*time.Second, want)

		w.create("created-again", cronned("@manual"), allow, data)
		w.runAs("created-again", task.Failed)
		want["created-again failures"] = "open"
		w.wantAlerts(30*time.Second, want)

		w.delete(w.store.Keys().AlertRule("default", "m"))
		want["created-again failures"], want["deleted-rule failures"] = "closed, not_watched", "closed, not_watched"
		w.wantAlerts(30*time.Second, want)
		if got := r.notMet(); len(got) != 0 {
			t.Errorf("queries find %q", got)
		}
	})
}
