package scheduler

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkTrim measures the CPU time that trims take for a fire: of the trimmers, the client and etcd, which are all in
// this process. A round adds records to the histories of many tasks, and trims them.
func BenchmarkTrim(b *testing.B) {
	newWorld := realWorlds(b)

	for _, ledger := range []string{"0s", "30d"} {
		for _, added := range []int{5, 10, 60} {
			b.Run(fmt.Sprintf("ledger=%s/added=%d", ledger, added), func(b *testing.B) {
				benchmarkTrim(b, newWorld(b, "n1"), ledger == "30d", added)
			})
		}
	}
}

func benchmarkTrim(b *testing.B, w *world, ledger bool, added int) {
	const tasks = 200
	h := w.work("n1")
	history := keeps(20)
	if !ledger {
		history.Ledger = new(task.Duration)
	}

	jobs := make([]retention.Trim, tasks)
	written := make([]int, tasks)
	for i := range jobs {
		w.create(fmt.Sprint("t", i), cronned("* * * * *"))
	}
	h.see()

	// write adds records to the history of each task, as if one had been written each minute.
	write := func(records int) {
		var all errgroup.Group
		all.SetLimit(16)
		for i := range jobs {
			all.Go(func() error {
				for range records {
					at := start.Add(time.Duration(written[i]) * time.Minute)
					r := task.Run{
						ID: task.RunID(at, jobs[i].UID), UID: jobs[i].UID, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule, State: task.Succeeded,
						Attempt: 1, Node: "n7", Owner: "n3", StartedAt: task.At(at), EndedAt: task.At(at.Add(time.Second)), LatenessMS: new(int64(4)),
					}
					if _, err := w.client.Put(w.ctx, w.store.Keys().Ended(jobs[i].Ref, r.ID), record.Encode(r)); err != nil {
						return err
					}
					written[i]++
				}

				return nil
			})
		}
		w.ok(all.Wait())
	}

	for i := range jobs {
		jobs[i] = h.trimJob(fmt.Sprint("t", i), history)
		jobs[i].Added = added
	}
	write(20)

	var spent time.Duration
	for b.Loop() {
		b.StopTimer()
		write(added)
		before := cpuTime()
		b.StartTimer()

		var all errgroup.Group
		all.SetLimit(16)
		for _, job := range jobs {
			all.Go(func() error { return h.e.trims.Trim(w.ctx, job) })
		}
		w.ok(all.Wait())

		spent += cpuTime() - before
	}

	b.ReportMetric(float64(spent.Microseconds())/float64(b.N*tasks*added), "µs-cpu/fire")
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
