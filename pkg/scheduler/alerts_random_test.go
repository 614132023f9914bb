package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/scheduler/evaluator"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// slowAlerts is a store whose writes of alerts arrive some time after the reading on which they are based, and whose answers may be
// lost.
type slowAlerts struct {
	evaluator.Store

	mu   sync.Mutex
	rand *rand.Rand
}

func (s *slowAlerts) PutAlert(ctx context.Context, f store.Fences, w *store.AlertWrite) (int64, error) {
	s.mu.Lock()
	late, isLost := time.Duration(s.rand.IntN(3000))*time.Millisecond, s.rand.IntN(10) == 0
	s.mu.Unlock()

	time.Sleep(late)
	mod, err := s.Store.PutAlert(ctx, f, w)
	if isLost {
		return 0, task.ErrUnknown
	}

	return mod, err
}

// alertJudge follows the records of tasks with failures: 1, and judges each change of an alert by what they are at its revision.
type alertJudge struct {
	keys   record.Keys
	tasks  map[string]*judgedTask
	faults []string
}

// judgedTask is what the records of a task are at a revision.
type judgedTask struct {
	uid         string           // of the entry; "": there is none
	watched     bool             // the entry has alerts
	dead        map[string]int64 // create revisions
	lastSuccess int64            // its create revision
	alert       *task.Alert

	removed map[string]int64 // create revisions of dead runs that are gone
	retried map[string]bool  // the runs that repeat a dead run which counted
	busy    map[string]bool  // the runs in the queue or in an inbox, by key
}

// isFailing reports whether the task is failing, for an alert of a task with a uid.
func (j *judgedTask) isFailing() bool {
	for run, create := range j.dead {
		if create > j.lastSuccess && task.RunBelongs(run, j.uid) {
			return true
		}
	}

	return false
}

// apply applies the events of one revision.
func (a *alertJudge) apply(events []check.Event) {
	for _, ev := range events {
		if k, ok := a.keys.ParseShard(ev.Key); ok && k.Ref.Name != "" {
			a.applyRecord(a.task(k.Ref.Name), k, ev)
		}
		if k, ok := a.keys.ParseRun(ev.Key); ok {
			a.task(k.Ref.Name).noteBusy(k.Run, ev)
		}
	}

	for _, ev := range events {
		alert, _, ok := a.keys.ParseAlert(ev.Key)
		if !ok {
			continue
		}

		j := a.task(alert.Task)
		before := j.alert
		if j.alert = nil; ev.Deleted {
			continue
		}

		now, err := record.Decode[task.Alert](ev.Value)
		if err != nil {
			panic(err)
		}
		j.alert = &now
		if fault := j.judge(before); fault != "" {
			a.faults = append(a.faults, fmt.Sprintf("revision %d, %s: %s", ev.Revision, alert.Task, fault))
		}
	}
}

// task returns a task.
func (a *alertJudge) task(name string) *judgedTask {
	if a.tasks[name] == nil {
		a.tasks[name] = &judgedTask{dead: map[string]int64{}, removed: map[string]int64{}, retried: map[string]bool{}, busy: map[string]bool{}}
	}
	return a.tasks[name]
}

// applyRecord applies an event of a shard.
func (a *alertJudge) applyRecord(j *judgedTask, k record.ShardKey, ev check.Event) {
	switch {
	case k.Kind == record.KindEntry && ev.Deleted:
		j.uid, j.watched = "", false
	case k.Kind == record.KindEntry:
		e, err := record.DecodeEntry(ev.Value)
		if err != nil {
			panic(err)
		}
		if e.UID != j.uid {
			j.lastSuccess = 0
		}
		j.uid, j.watched = e.UID, e.Alerts != nil
	case k.Kind == record.KindQueued:
		j.noteBusy(k.Run, ev)
		if w, err := record.DecodeWaiting(k, ev.Value); !ev.Deleted && err == nil && w.RetryOf != "" && j.removed[w.RetryOf] > j.lastSuccess {
			j.retried[k.Run] = true
		}
	case k.Kind == record.KindDead && ev.Deleted:
		j.removed[k.Run] = j.dead[k.Run]
		delete(j.dead, k.Run)
	case k.Kind == record.KindDead:
		j.dead[k.Run] = ev.CreateRevision
	case k.Kind == record.KindEnded && !ev.Deleted:
		if end, ok := record.EndOf(ev.Value); ok && end.State == task.Succeeded && task.RunBelongs(k.Run, j.uid) {
			j.lastSuccess = ev.CreateRevision
		}
	}
}

// noteBusy notes that a run waits or is active, or that it no longer does at this key.
func (j *judgedTask) noteBusy(run string, ev check.Event) {
	if j.busy[ev.Key+" "+run] = true; ev.Deleted {
		delete(j.busy, ev.Key+" "+run)
	}
}

// isRetried reports whether a dead run that counted was started again and has not ended.
func (j *judgedTask) isRetried() bool {
	for key := range j.busy {
		if _, run, _ := strings.Cut(key, " "); j.retried[run] {
			return true
		}
	}

	return false
}

// judge returns what is wrong about a change of the alert, or "".
func (j *judgedTask) judge(before *task.Alert) string {
	wasOpen := before != nil && before.IsOpen()

	switch now := j.alert; {
	case now.IsOpen() == wasOpen && (before == nil || before.UID == now.UID):
		return ""
	case now.IsOpen() && (!j.isFailing() || !j.watched || now.UID != j.uid):
		return "it opens, and the task is not failing"
	case now.IsOpen():
		return ""
	case now.Closed.Why == task.AlertDeleted && now.UID != j.uid, now.Closed.Why == task.AlertNotWatched && !j.watched:
		return ""
	case now.Closed.Why != task.AlertSucceeded && now.Closed.Why != task.AlertDismissed:
		return "it closes as " + string(now.Closed.Why)
	case j.isFailing():
		return "it closes, and the task is failing"
	case now.Closed.Why == task.AlertDismissed && now.Closed.By == nil && j.isRetried():
		return "it closes as dismissed, and a failed run was started again"
	}

	return ""
}

// Random runs, retries, dismissals, edits, deletions and changes of the owner, with slow and lost writes of alerts: each change of an
// alert is right at its revision, and when nothing happens any more, the alerts of failing tasks are open and all others closed.
//
// Verifies: G57, G58
func TestAlerts_RandomHistories(t *testing.T) {
	t.Parallel()

	seeds := 12
	if testing.Short() {
		seeds = 4
	}

	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			inVirtualTime(t, func(t *testing.T) { randomAlerts(t, seed) })
		})
	}
}

// randomAlerts makes one random history and judges it.
func randomAlerts(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 57))
	w := newWorld(t, "n1", "n2")
	w.setClockToNow()
	w.record()

	start := func(node string) *runningEngine {
		return w.run(node, func(e *Engine) {
			s := &slowAlerts{Store: e.cfg.Store, rand: rand.New(rand.NewPCG(seed, r.Uint64()))}
			e.evaluator = evaluator.New(evaluator.Config{Store: s, Shards: e.shardsToEvaluate, Now: time.Now, MayWrite: func() error { return nil }, Logger: zap.NewNop()})
		})
	}
	engine := start("n1")

	names := []string{"a", "b", "c"}
	create := func(name string) { w.create(name, cronned("@manual"), allow, alerting()) }
	for _, name := range names {
		create(name)
	}

	for range 150 {
		w.setClockToNow()
		name := names[r.IntN(len(names))]
		st, err := w.store.Task(w.ctx, ref(name))
		exists := err == nil
		active := w.active(name)
		dead, err := w.store.DeadRuns(w.ctx, ref(name))
		w.ok(err)

		switch x := r.IntN(100); {
		case !exists:
			create(name)
		case x < 30 && len(active) < 2:
			w.trigger(name)
		case x < 60 && len(active) > 0:
			w.end(active[r.IntN(len(active))], []task.State{task.Succeeded, task.Failed, task.Failed, task.Cancelled}[r.IntN(4)])
		case x < 70 && len(dead) > 0:
			d := dead[r.IntN(len(dead))]
			again := task.Waiting{Run: task.Run{ID: task.ManualRunID(time.Now(), st.Task.UID), Namespace: "default", Task: name, UID: st.Task.UID, ScheduledTime: task.At(time.Now()),
				CreatedAt: task.At(time.Now()), Attempt: 1, State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual, Requests: task.Requests{RetryOf: d.ID}}}
			if err := w.store.Revive(w.ctx, st, d, again); err != nil && !strings.Contains(err.Error(), "conflict") {
				w.ok(err)
			}
		case x < 85 && len(dead) > 0:
			_ = w.store.Dismiss(w.ctx, ref(name), dead[r.IntN(len(dead))], task.NewActor("ann"), time.Now())
		case x < 88:
			w.update(name, false, func(t *task.Task) {
				if t.Alerts == nil {
					alerting()(t)
				} else {
					t.Alerts = nil
				}
			})
		case x < 90:
			w.remove(name)
		case x < 91:
			engine.stop()
			<-engine.work
			engine = start([]string{"n1", "n2"}[r.IntN(2)])
		}

		time.Sleep(time.Duration(r.IntN(8000)) * time.Millisecond)
	}

	// Everything ends, and the evaluator has time.
	for _, name := range names {
		for range 20 {
			w.setClockToNow()
			if active := w.active(name); len(active) > 0 {
				w.end(active[0], task.Cancelled)
			}
			time.Sleep(time.Second)
		}
	}
	time.Sleep(3 * time.Minute)

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w.ok(w.recorder.CatchUp(ctx))

	judge := &alertJudge{keys: w.store.Keys(), tasks: map[string]*judgedTask{}}
	events := w.recorder.Events()
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Revision == events[0].Revision {
			n++
		}
		judge.apply(events[:n])
		events = events[n:]
	}

	opened := 0
	for name, j := range judge.tasks {
		isOpen := j.alert != nil && j.alert.IsOpen()
		if want := j.watched && j.isFailing(); isOpen != want {
			judge.faults = append(judge.faults, fmt.Sprintf("in the end, the alert of %s is open: %t, want %t: %+v", name, isOpen, want, j))
		}
		if j.alert != nil {
			opened += j.alert.Openings
		}
	}
	slices.Sort(judge.faults)
	if len(judge.faults) > 0 || opened == 0 {
		t.Errorf("%d openings; %s", opened, strings.Join(judge.faults, "\n"))
	}
}
