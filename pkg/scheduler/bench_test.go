package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// yes is a store that accepts every commit at once.
type yes struct{ revision int64 }

func (y *yes) Commit(context.Context, kv.Txn) (kv.Result, error) {
	y.revision++
	return kv.Result{Succeeded: true, Revision: y.revision}, nil
}

// benchWorker returns a worker that has loaded n tasks with a schedule, and its clock.
func benchWorker(b *testing.B, n int, schedule string) (*worker, *time.Time) {
	b.Helper()
	keys, err := record.NewKeys("/bench")
	if err != nil {
		b.Fatal(err)
	}

	now := start
	e := New(Config{
		Node: "n1", Store: store.New(nil, &yes{revision: 1000}, keys), Fleet: placement.NewFleet("n1", func() int { return 1 << 30 }),
		NextAttempt: executor.Next, Now: func() time.Time { return now }, Namespaces: openNamespaces, Logger: zap.NewNop(),
	})

	e.cfg.Fleet.Set([]task.Node{benchNode("n1")})
	w := newWorker(e, 0, store.Fences{})
	w.discardState()
	w.state.records.Watermark, w.state.records.WatermarkRev = record.Watermark{Time: task.At(start), Seen: 100}, 1

	batch := store.ShardBatch{Reset: true, Revision: 100}
	for i, name := range names(n) {
		t, entry := (&world{TB: b}).newTask(name, start, cronned(schedule), allow)
		t.Action = task.Action{Process: &task.Process{Command: []string{"/usr/bin/backup", "--all", name}}}
		entry.Action = t.Action
		batch.Events = append(batch.Events, store.ShardEvent{
			ShardKey: record.ShardKey{Kind: record.KindEntry, Ref: ref(name)}, Task: "default/" + name, Mod: int64(i%100) + 1, Create: int64(i%100) + 1, Value: written(entry),
		})
	}

	w.applyToShard(batch)
	w.applyActiveScan(nil)

	if err := w.runRound(b.Context()); err != nil {
		b.Fatal(err)
	}

	return w, &now
}

// endAll ends all active runs, as their nodes would.
func (w *worker) endAll() {
	for t := range w.state.records.Tasks.All() {
		for _, a := range t.Active() {
			w.e.cfg.Fleet.Release(a.Node, a.Pool)
		}

		if t.Activity != nil {
			t.Activity.Active = nil
			t.DropIdleActivity()
		}
	}
}

// One round in which all tasks of a shard tick.
func BenchmarkRound(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("%d due", n), func(b *testing.B) { rounds(b, n, time.Second, "ticks/s") })
	}
}

// One round in which all tasks of a shard are behind.
func BenchmarkRound_Behind(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("%d behind", n), func(b *testing.B) { rounds(b, n, 10*time.Second, "tasks/s") })
	}
}

// rounds measures rounds at the given interval, with tasks that tick every second.
func rounds(b *testing.B, tasks int, apart time.Duration, unit string) {
	w, now := benchWorker(b, tasks, "* * * * * *")
	ctx := b.Context()

	for b.Loop() {
		*now = now.Add(apart)

		if err := w.runRound(ctx); err != nil {
			b.Fatal(err)
		}

		b.StopTimer()
		w.endAll()
		b.StartTimer()
	}

	b.ReportMetric(float64(tasks)*float64(b.N)/b.Elapsed().Seconds(), unit)
}

// One round that decides nothing, or one tick, among many tasks: the cost of a wake-up.
func BenchmarkRound_AmongMany(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		w, now := benchWorker(b, n, "0 0 1 1 *")
		ctx := b.Context()
		b.Run(fmt.Sprintf("none due of %d", n), func(b *testing.B) {
			for b.Loop() {
				if err := w.runRound(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})

		_, entry := (&world{TB: b}).newTask("one", start, allow)
		w.applyToShard(store.ShardBatch{Revision: 100, Events: []store.ShardEvent{{
			ShardKey: record.ShardKey{Kind: record.KindEntry, Ref: ref("one")}, Task: "default/one", Mod: 50, Create: 50, Value: written(entry)}}})
		one := w.state.records.TaskNamed("default/one")
		b.Run(fmt.Sprintf("one due of %d", n), func(b *testing.B) {
			for b.Loop() {
				*now = now.Add(time.Second)

				if err := w.runRound(ctx); err != nil {
					b.Fatal(err)
				}

				one.Activity.Active = nil
				one.DropIdleActivity()
				w.e.cfg.Fleet.Release("n1", placement.ProcessSlots)
			}
		})
	}
}

// The time to decide one commit.
func BenchmarkPlan(b *testing.B) {
	w, now := benchWorker(b, 1000, "* * * * * *")
	*now = now.Add(time.Second)
	at := *now
	b.ReportAllocs()

	for b.Loop() {
		w.state.applyAbandoned(w.planRound(at))
	}
}

// A load of all entries of a shard.
func BenchmarkLoad(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		benchWorker(b, 10_000, "*/5 * * * *")
	}
}

// written returns the encoding of a record in etcd.
func written(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// benchNode returns a ready node that has more slots than it needs.
func benchNode(name string) task.Node {
	return task.Node{Name: name, State: task.NodeReady, Roles: []string{task.RoleExecutor}, Slots: 1 << 30, Revision: 10,
		Labels: map[string]string{"node": name}}
}

// BenchmarkLongQueue measures what an event costs the owner of a task with many manual runs that wait for the active
// one.
func BenchmarkLongQueue(b *testing.B) {
	for _, n := range []int{10, 100, task.MaxManualWaiting} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newWorld(b, "n1")
			h := w.work("n1")
			w.create("a", cronned("@manual"))
			w.trigger("a")
			h.see()
			h.blind(1)

			uid := h.state.records.TaskNamed("default/a").UID()
			var events []store.ShardEvent
			for i := range n {
				at := start.Add(time.Duration(i) * time.Millisecond)
				run := task.Run{
					ID: task.ManualRunID(at, uid), UID: uid, Namespace: "default", Task: "a", Attempt: 1, ScheduledTime: task.At(at),
					Trigger: task.TriggerManual, State: task.Queued, Reason: task.ReasonManual,
				}
				events = append(events, store.ShardEvent{
					ShardKey: record.ShardKey{Kind: record.KindQueued, Ref: ref("a"), Run: run.ID}, Key: w.store.Keys().Queued(ref("a"), run.ID),
					Task: "default/a", Mod: int64(1000 + i), Create: int64(1000 + i), Value: record.EncodeWaiting(task.Waiting{Run: run}),
				})
			}

			h.state.applyRecords(store.ShardBatch{Events: events, Revision: 1}, start)
			for b.Loop() {
				h.state.applyRecords(store.ShardBatch{Events: events[n-1:], Revision: 1}, start)
				h.state.applyAbandoned(h.planRound(sec(2)))
			}
		})
	}
}

// BenchmarkReconcile_Shard measures what a shard of 4,000 tasks costs once a minute, including etcd's part.
func BenchmarkReconcile_Shard(b *testing.B) {
	w := realWorlds(b)(b, "n1")
	const tasks = 4000
	for i := 0; i < tasks; i += 50 {
		var names []string
		for j := i; j < i+50; j++ {
			names = append(names, fmt.Sprintf("task-%06d", j))
		}
		w.createTogether(start, names, every("1h"))
	}

	h := w.work("n1")
	b.ReportAllocs()

	for b.Loop() {
		keys, rev, err := h.e.cfg.Store.ShardKeys(w.ctx, 0)
		w.ok(err)
		w.ok(recordListing{keys, rev}.reviewBy(w.ctx, h.worker))
	}

	if h.recordDiffs.NotEmpty() || h.state.records.Tasks.Len() != tasks {
		b.Fatalf("%d tasks, and the differences are %+v", h.state.records.Tasks.Len(), h.recordDiffs)
	}
}
