package scheduler

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkTrim measures the CPU time that trims take for a fire: of the trimmers, the client and etcd, which are all in
// this process. A round adds records to the histories of many tasks, and trims them. The garbage is collected between the
// rounds, because a process that waits for the disk collects it with all of its idle processors. So the allocations count
// in addition.
func BenchmarkTrim(b *testing.B) {
	for _, ledger := range []string{"0s", "30d"} {
		for _, added := range []int{5, 10, 60} {
			b.Run(fmt.Sprintf("ledger=%s/added=%d", ledger, added), func(b *testing.B) {
				benchmarkTrim(b, realWorlds(b)(b, "n1"), ledger == "30d", added)
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

	jobs := make([]background.Trim, tasks)
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
				puts := make([]clientv3.Op, records)
				for j := range puts {
					at := start.Add(time.Duration(written[i]) * time.Minute)
					r := task.Run{
						ID: task.RunID(at, jobs[i].UID), UID: jobs[i].UID, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule, State: task.Succeeded,
						Attempt: 1, Node: "n7", Owner: "n3", StartedAt: task.At(at), EndedAt: task.At(at.Add(time.Second)), LatenessMS: new(int64(4)),
					}
					puts[j] = clientv3.OpPut(w.store.Keys().Ended(jobs[i].Ref, r.ID), record.Encode(r))
					written[i]++
				}

				_, err := w.client.Txn(w.ctx).Then(puts...).Commit()

				return err
			})
		}
		w.ok(all.Wait())
	}

	for i := range jobs {
		jobs[i] = h.trimJob(fmt.Sprint("t", i), history)
		jobs[i].Added = added
	}
	write(20)

	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var spent time.Duration
	var allocated allocations

	for b.Loop() {
		b.StopTimer()
		write(added)
		runtime.GC()
		before, allocatedBefore := cpuTime(), allocationsUntilNow()
		b.StartTimer()

		var all errgroup.Group
		all.SetLimit(16)
		for _, job := range jobs {
			all.Go(func() error { return h.e.trims.Trim(w.ctx, job) })
		}
		w.ok(all.Wait())

		spent += cpuTime() - before
		now := allocationsUntilNow()
		allocated.bytes += now.bytes - allocatedBefore.bytes
		allocated.objects += now.objects - allocatedBefore.objects
	}

	fires := float64(b.N * tasks * added)
	b.ReportMetric(float64(spent.Microseconds())/fires, "µs-cpu/fire")
	b.ReportMetric(float64(allocated.bytes)/fires, "B/fire")
	b.ReportMetric(float64(allocated.objects)/fires, "allocs/fire")
}

// allocations are numbers of bytes and objects that were allocated.
type allocations struct{ bytes, objects uint64 }

// allocationsUntilNow returns what this process has allocated since it began.
func allocationsUntilNow() allocations {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	return allocations{bytes: m.TotalAlloc, objects: m.Mallocs}
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
