package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkHub measures the CPU time of an event while it happens: that of etcd, which is in the same process, and that of
// readers that encode each event. Without readers, it is the cost of writing alone.
func BenchmarkHub(b *testing.B) {
	for _, readers := range []int{0, 1, 100} {
		b.Run(fmt.Sprint("hub/readers=", readers), func(b *testing.B) { benchmarkReaders(b, readers, true) })
		if readers > 0 {
			b.Run(fmt.Sprint("own/readers=", readers), func(b *testing.B) { benchmarkReaders(b, readers, false) })
		}
	}
}

func benchmarkReaders(b *testing.B, readers int, shared bool) {
	const each = 20 // events in each commit

	c := clusterOf(b, embeddedtest.StartServer(b).InProcess())
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()

	hub := eventlog.NewHub(c.log, nil)
	var running, done sync.WaitGroup
	running.Go(func() { _ = hub.Run(ctx) })
	defer running.Wait()
	defer cancel()

	want := (b.N + each - 1) / each * each
	begun := make(chan struct{}, readers)
	for range readers {
		done.Go(func() {
			got, first := 0, true
			err := followFor(ctx, hub, c.log, shared, func(batch eventlog.Batch) error {
				if first {
					first = false
					begun <- struct{}{}
				}

				for _, e := range batch.Events {
					if _, err := e.JSON(); err != nil {
						return err
					}
				}

				if got += len(batch.Events); got >= want {
					return errEnough
				}

				return nil
			})
			if !errors.Is(err, errEnough) {
				b.Error(err)
			}
		})
	}

	for range readers {
		<-begun
	}

	b.ResetTimer()
	before := cpuTime(b)

	for n := 0; n < want; n += each {
		var ops []clientv3.Op
		for i := range each {
			id := task.RunID(noon.Add(time.Duration(n+i)*time.Minute), "k3f9")
			ops = append(ops, clientv3.OpPut(c.keys.Run("n1", ref, id), benchmarkRun))
		}

		_, err := c.etcd.Txn(ctx).Then(ops...).Commit()
		ok(b, err)
	}

	done.Wait()
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/1000/float64(want), "cpu-µs/event")
	b.ReportMetric(float64(hub.Stats().Behind), "behind")
}

const benchmarkRun = `{"uid":"k3f9aaaaaaaaaaaa","scheduled_time":"2026-11-20T12:00:00.000Z","state":"dispatched","trigger":"schedule","owner":"n1","attempt":1,"created_at":"2026-11-20T12:00:00.001Z","instance":"i1","generation":1,"action":{"noop":{}}}`

// followFor follows new events through a hub or with a watch of its own.
func followFor(ctx context.Context, hub *eventlog.Hub, log eventlog.Log, shared bool, apply func(eventlog.Batch) error) error {
	if !shared {
		return log.FollowEvents(ctx, eventlog.Query{}, apply)
	}

	r, err := hub.Open(ctx, eventlog.Query{})
	if err != nil {
		return err
	}

	defer r.Close()

	return r.Follow(ctx, apply)
}

// cpuTime returns the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	ok(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
