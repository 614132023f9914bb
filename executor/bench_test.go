package executor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/guardian/guardiantest"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// instantInbox is an inbox whose writes succeed at once, to measure the cost of the executor itself.
type instantInbox struct {
	Inbox
	batches  chan store.InboxBatch
	finished atomic.Int64
}

func (i *instantInbox) FollowInbox(ctx context.Context, _ string, _ time.Duration, apply func(store.InboxBatch) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-i.batches:
			if err := apply(b); err != nil {
				return err
			}
		}
	}
}

func (i *instantInbox) FollowFreezes(ctx context.Context, _ time.Duration, apply func(store.FreezeRecord) error) error {
	if err := apply(store.FreezeRecord{Revision: 1}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (i *instantInbox) Finish(context.Context, record.Held, task.Run, *task.Waiting) error {
	i.finished.Add(1)
	return nil
}

func BenchmarkExecutor(b *testing.B) {
	for name, action := range map[string]task.Action{"noop": {Noop: &task.Noop{}}, "true": {Process: &task.Process{Command: []string{"/bin/true"}}},
		"echo": {Process: &task.Process{Command: []string{"/bin/echo", "one line"}}}, "http": {HTTP: &task.HTTP{URL: "http://api"}}} {
		for _, guarded := range []bool{false, true} {
			for _, setting := range []string{cgroup.Off, cgroup.Auto} {
				if guarded && name == "noop" || setting != cgroup.Off && action.Process == nil {
					continue
				}
				b.Run(fmt.Sprintf("%s/guardian=%v/cgroup=%s", name, guarded, setting), func(b *testing.B) { benchmarkExecutor(b, action, guarded, setting) })
			}
		}
	}
}

// answerAtOnce runs an HTTP attempt whose response arrives at once.
func answerAtOnce(a process.Attempt, _ *process.Orders) process.Result {
	r := process.Result{StartedAt: time.Now(), State: task.Succeeded}
	if err := a.MayStart(); err != nil {
		return process.Result{NotStarted: true}
	}
	a.OnStarted(r.StartedAt)
	r.EndedAt = time.Now()

	return r
}

func benchmarkExecutor(b *testing.B, action task.Action, guarded bool, setting string) {
	in := &instantInbox{batches: make(chan store.InboxBatch)}
	cfg := Config{Node: "n1", Instance: "i1", Slots: 16, Dir: b.TempDir(), Inbox: in}

	groups, err := cgroup.Open(cgroup.Config{Setting: setting, Node: "n1", Instance: "bench"})
	if err != nil {
		b.Fatal(err)
	}

	cfg.Groups = groups
	cfg.HTTP = func(*spool.Spool) (AttemptRunner, error) { return runnerFunc(answerAtOnce), nil }
	ctx, cancel := context.WithCancel(context.Background())
	guardianEnded := make(chan error, 1)

	if guarded {
		cfg.Guardian = guardian.NewClient(guardiantest.Config(cfg.Dir))
		go func() { guardianEnded <- cfg.Guardian.Run(ctx) }()
	} else {
		guardianEnded <- nil
	}

	e, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}

	done := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { done <- e.Run(running) }()
	e.Joined(Session{Fence: kv.CreateFence("n", 1), LastRenewal: time.Now})
	in.batches <- store.InboxBatch{Reset: true, Revision: 1}
	b.ReportAllocs()
	own, children := executortest.CPU(b, unix.RUSAGE_SELF), executortest.CPU(b, unix.RUSAGE_CHILDREN)
	b.ResetTimer()

	for i := 0; i < b.N; {
		rev := int64(2 + 2*i)
		var put, gone store.InboxBatch
		for range min(100, b.N-i) {
			a := executortest.Assigned("r"+strconv.Itoa(i), nil)
			a.Action, a.ScheduledTime = action, task.At(time.Now())
			put.Events = append(put.Events, store.InboxEvent{Held: &record.Held{Assigned: a, Mod: rev, Create: rev}, Mod: rev, Key: a.ID})
			gone.Events = append(gone.Events, store.InboxEvent{Deleted: true, Mod: rev + 1, Key: a.ID})
			i++
		}

		put.Revision, gone.Revision = rev, rev+1
		in.batches <- put

		for in.finished.Load() < int64(i) { // as in a real inbox, a finished attempt is gone
			time.Sleep(100 * time.Microsecond)
		}

		in.batches <- gone
	}

	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
	each := func(now, before time.Duration) float64 {
		return float64(now-before) / float64(b.N) / float64(time.Microsecond)
	}

	b.ReportMetric(each(executortest.CPU(b, unix.RUSAGE_SELF), own), "own-cpu-µs/op")
	processes := executortest.CPU(b, unix.RUSAGE_CHILDREN)
	b.ReportMetric(each(processes, children), "processes-cpu-µs/op")
	stop()
	cancel()

	if err := errors.Join(<-done, <-guardianEnded, groups.Close()); err != nil {
		b.Error(err)
	}

	if guarded {
		b.ReportMetric(each(executortest.CPU(b, unix.RUSAGE_CHILDREN), processes), "guardian-cpu-µs/op")
	}
}
