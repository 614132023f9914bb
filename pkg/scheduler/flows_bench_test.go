package scheduler

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkTasks_Memory measures what a task at rest takes in the memory of its owner. A workflow takes no more than any other task: its
// steps are in no entry.
func BenchmarkTasks_Memory(b *testing.B) {
	const tasks = 10_000

	steps := map[string]task.Step{}
	for i := range task.MaxSteps {
		steps[fmt.Sprint("step-", i)] = task.Step{Process: &task.Process{Command: []string{"/usr/bin/backup", "--all", fmt.Sprint(i)}}}
	}

	for name, action := range map[string]task.Action{
		"process": {Process: &task.Process{Command: []string{"/usr/bin/backup"}}}, "noop": {Noop: &task.Noop{}}, "workflow": {Workflow: &task.Workflow{Steps: steps}},
	} {
		b.Run(name, func(b *testing.B) {
			var before, after runtime.MemStats
			for b.Loop() {
				w, _ := benchWorker(b, 0, "")
				runtime.GC()
				runtime.ReadMemStats(&before)

				for i, name := range names(tasks) {
					t, _ := (&world{TB: b}).newTask(name, start, cronned("0 0 1 1 *"), allow)
					t.Action = action
					entry := task.NewEntry(t, task.At(start), task.At(start))
					w.applyToShard(store.ShardBatch{Revision: 100, Events: []store.ShardEvent{{
						ShardKey: record.ShardKey{Kind: record.KindEntry, Ref: ref(name)}, Task: "default/" + name, Mod: int64(i%100) + 1, Create: int64(i%100) + 1, Value: written(entry),
					}}})
				}

				runtime.GC()
				runtime.ReadMemStats(&after)
				runtime.KeepAlive(w)
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/tasks, "B/task")
		})
	}
}

// BenchmarkFlow_Map runs a map of 1,000 items, whose parts end at once. The owner writes its commits one after another, so a run takes at
// least as long as these: their number is the metric.
func BenchmarkFlow_Map(b *testing.B) {
	const items = 1000
	commits := 0

	for b.Loop() {
		w := newWorld(b, "n1")
		w.create("a", cronned("@manual"), flow(map[string]task.Step{"load": {Map: "1000", MaxParallel: 50, Noop: &task.Noop{}}}))
		w.trigger("a")
		h := w.work("n1")

		for at := 1.0; len(w.runData("a")) > 0 || at < 3; at++ {
			before := w.revision()
			h.decide(at)
			commits += int(w.revision() - before)
			for _, held := range w.active("a") {
				end := held.Run
				end.State, end.EndedAt = task.Succeeded, task.At(w.clock())
				w.ok(w.store.Finish(w.ctx, held, end, executor.Next(held.Assigned, end, w.clock(), 0.5)))
			}
		}
	}

	b.ReportMetric(float64(commits)/float64(b.N)/items, "commits/item")
}
