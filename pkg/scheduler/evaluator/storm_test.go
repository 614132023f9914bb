package evaluator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// failingTasks is a store in which the last run of each task has failed. Reading twenty tasks takes 10 ms, writing an alert 5.
type failingTasks struct {
	alerts *task.Alerts

	mu     sync.Mutex
	read   int
	opened map[string]time.Time      // by task
	more   map[string]map[string]int // by namespace and shard: the alerts that are counted
}

func (f *failingTasks) AlertsOfShards(_ context.Context, shards []int) (map[int][]task.Alert, error) {
	all := map[int][]task.Alert{}
	for _, shard := range shards {
		all[shard] = nil
	}

	return all, nil
}

func (f *failingTasks) ReadToEvaluate(_ context.Context, refs []record.Ref, _ bool) (store.AlertReading, error) {
	time.Sleep(10 * time.Millisecond)

	f.mu.Lock()
	f.read += len(refs)
	f.mu.Unlock()

	r := store.AlertReading{Revision: 100}
	for _, ref := range refs {
		run := store.ShardEvent{ShardKey: record.ShardKey{Ref: ref, Run: task.RunID(noon, "k3f9")}, Key: ref.String(), Mod: 7, Create: 7}
		r.Tasks = append(r.Tasks, store.TaskReading{Ref: ref, Entry: &task.Entry{UID: "k3f9", Alerts: f.alerts}, EntryMod: 1, History: []store.ShardEvent{run}, Dead: []store.ShardEvent{run}})
	}

	return r, nil
}

func (f *failingTasks) RecordsAt(_ context.Context, keys []string, _ int64) (events []store.ShardEvent, err error) {
	for _, key := range keys {
		events = append(events, store.ShardEvent{Key: key, ShardKey: record.ShardKey{Run: task.RunID(noon, "k3f9")}, Value: record.EncodeEnded(task.Run{State: task.Failed, EndedAt: task.At(noon)})})
	}

	return events, nil
}

func (f *failingTasks) ActiveRunsAt(context.Context, record.Ref, int64, []store.InboxRun) ([]store.ActiveRecord, bool, error) {
	panic("failures need no other records")
}

func (f *failingTasks) AlertFactsAt(context.Context, record.Ref, int64, *store.AlertFacts) error {
	panic("failures need no other records")
}

func (f *failingTasks) PutAlert(_ context.Context, _ store.Fences, w *store.AlertWrite) (int64, error) {
	time.Sleep(5 * time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened[w.Alert.Namespace+"/"+w.Alert.Task] = time.Now()

	return 101, nil
}

func (f *failingTasks) PutMoreAlerts(_ context.Context, _ store.Fences, shard int, a task.Alert) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.more[a.Namespace] == nil {
		f.more[a.Namespace] = map[string]int{}
	}
	f.more[a.Namespace][fmt.Sprint(shard)] = a.More[task.AlertFailures]

	return 102, nil
}

func (f *failingTasks) DeleteAlerts(context.Context, store.Fences, int, []task.Alert) error {
	panic("nothing is closed")
}

// pausedTask is a store with a task that was paused after failures and has never succeeded.
type pausedTask struct {
	failingTasks
	entry   task.Entry
	current []task.Alert
	refused int // the next readings fail
}

func (p *pausedTask) AlertsOfShards(_ context.Context, shards []int) (map[int][]task.Alert, error) {
	return map[int][]task.Alert{shards[0]: p.alertsNow()}, nil
}

func (p *pausedTask) alertsNow() []task.Alert {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.current
}

// pauseBy pauses the task. The next reading fails.
func (p *pausedTask) pauseBy(person string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = 1
	p.entry.Own = &task.Own{Pauses: append(slices.Clone(p.entry.Own.Pauses), task.Pause{By: task.NewActor(person)})}
}

func (p *pausedTask) ReadToEvaluate(ctx context.Context, refs []record.Ref, readsDead bool) (store.AlertReading, error) {
	r, err := p.failingTasks.ReadToEvaluate(ctx, refs, readsDead)

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused > 0 {
		p.refused--
		return store.AlertReading{}, task.ErrUnavailable
	}
	e := p.entry
	r.Tasks[0].Entry, r.Tasks[0].Alerts = &e, p.current

	return r, err
}

func (p *pausedTask) ActiveRunsAt(context.Context, record.Ref, int64, []store.InboxRun) ([]store.ActiveRecord, bool, error) {
	return nil, true, nil
}

func (p *pausedTask) AlertFactsAt(context.Context, record.Ref, int64, *store.AlertFacts) error {
	return nil
}

func (p *pausedTask) PutAlert(_ context.Context, _ store.Fences, w *store.AlertWrite) (int64, error) {
	a := w.Alert
	a.ID, a.Mod = 101, 101

	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = []task.Alert{a}

	return 101, nil
}

// The row of a task that was paused after failures looks as if its open alert had to close. Its records say that it stays, so the task
// is evaluated. When a person pauses it, too, the row stays the same, and the alert closes, also if the task cannot be read at once.
func TestEvaluator_ATaskThatWasReadIsEvaluated(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		created := task.At(time.Now())
		time.Sleep(time.Hour)

		a := &task.Alerts{Failures: new(0), SuccessWithin: task.Duration(time.Minute)}
		p := &pausedTask{entry: task.Entry{
			UID: "k3f9", Alerts: a, Schedule: task.Schedules{"* * * * *"}, From: created, Anchor: created,
			Paused: true, Own: &task.Own{Pauses: []task.Pause{{By: task.NewActor(task.PausedByFailures)}}},
		}}

		s := Shard{Index: &readmodel.Index{}, Opened: created.Time}
		slot := s.Index.Put(readmodel.NoSlot, readmodel.Row{Name: "shop/paused", Flags: readmodel.History | readmodel.Failing | readmodel.Paused, Failures: 2}, readmodel.Details{}, a)
		e := New(Config{Store: p, Shards: func() []Shard { return []Shard{s} }, Now: time.Now, MayWrite: func() error { return nil }, Logger: zap.NewNop()})
		go e.Run(t.Context())

		for minute := range 20 {
			time.Sleep(time.Minute)
			synctest.Wait()
			if n, alerts := e.NotEvaluated(), p.alertsNow(); n != 0 || len(alerts) != 1 || !alerts[0].IsOpen() {
				t.Fatalf("after %d minutes, %d tasks are not evaluated; the alerts are %+v", minute+1, n, alerts)
			}
		}

		p.pauseBy("user:ann")
		s.Index.JudgeAgain(slot)
		time.Sleep(3 * visitIdleEvery)
		synctest.Wait()
		if a := p.alertsNow()[0]; a.IsOpen() || a.Closed.Why != task.AlertPaused {
			t.Errorf("after a pause by a person, the alert is %+v", a)
		}
	})
}

// Ten thousand tasks fail at once. A lone one of another namespace does not wait for them, and all of them have an alert or are
// counted within the time that G58 allows.
//
// Verifies: G58
func TestEvaluator_OneNamespaceDoesNotWaitForAStorm(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		const shards, tasks = 4, 10_000
		f := &failingTasks{alerts: &task.Alerts{Notify: []string{"ops/slack"}}, opened: map[string]time.Time{}, more: map[string]map[string]int{}}

		var list []Shard
		for id := range shards {
			list = append(list, Shard{ID: id, Index: &readmodel.Index{}, Opened: time.Now()})
		}
		e := New(Config{Store: f, Shards: func() []Shard { return list }, Now: time.Now, MayWrite: func() error { return nil }, Logger: zap.NewNop()})
		go e.Run(t.Context())
		time.Sleep(time.Second)

		began := time.Now()
		add := func(id int, name string) {
			list[id].Index.Put(readmodel.NoSlot, readmodel.Row{Name: name, Flags: readmodel.History | readmodel.Failing, Failures: 1}, readmodel.Details{}, f.alerts)
			list[id].Index.NoteApplied(100)
		}
		for i := range tasks {
			add(i%shards, fmt.Sprintf("big/t%05d", i))
		}
		time.Sleep(7 * time.Second)
		add(2, "small/lone")
		lone := time.Now()
		time.Sleep(time.Until(began.Add(time.Minute)))
		synctest.Wait()

		f.mu.Lock()
		defer f.mu.Unlock()

		if at, ok := f.opened["small/lone"]; !ok || at.Sub(lone) > 15*time.Second {
			t.Errorf("the alert of the lone task opened after %s: %t", at.Sub(lone), ok)
		}

		counted := 0
		for _, n := range f.more["big"] {
			counted += n
		}
		if len(f.opened) != shards*maxOpen+1 || counted != tasks-shards*maxOpen {
			t.Errorf("%d alerts are open and %d are counted, of %d", len(f.opened), counted, tasks+1)
		}
		if f.read > tasks+tasks/10 {
			t.Errorf("%d readings of %d tasks", f.read, tasks+1)
		}
		if n := e.NotEvaluated(); n != 0 {
			t.Errorf("%d tasks are not evaluated", n)
		}
	})
}
