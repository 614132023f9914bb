package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

const benchNamespace = "bench"

// load describes the tasks of a benchmark. They are equal except for their anchors. Each has one tick in every
// period, spread evenly or all at once. Task i has its ticks at origin + the offset of i + k periods, k ≥ 1.
type load struct {
	tasks   int
	period  time.Duration // whole milliseconds
	herd    bool          // all tasks have their ticks at the same instants
	origin  time.Time     // no tick is due at or before it
	action  task.Action
	overlap string
	keep    int // ended runs that are kept for each task
}

// anchorOffset returns how much later than the origin the anchor of task i is.
func (l load) anchorOffset(i int) time.Duration {
	if l.herd {
		return 0
	}
	return time.Duration(int64(i)*l.period.Milliseconds()/int64(l.tasks)) * time.Millisecond
}

func taskName(i int) string { return fmt.Sprintf("t%07d", i) }

// makeTask returns the spec and the entry of task i.
func (l load) makeTask(i int) (task.Task, task.Entry) {
	spec := task.Defaults()
	spec.Namespace, spec.Name = benchNamespace, taskName(i)
	spec.Schedule = task.Schedules{"@every " + l.period.String()}
	spec.Action, spec.Overlap, spec.History.Keep = l.action, l.overlap, l.keep
	anchor := task.At(l.origin.Add(l.anchorOffset(i)))
	t := task.Task{Spec: spec, UID: task.NewUID(), Generation: 1, CreatedAt: anchor, UpdatedAt: anchor, UpdatedBy: "bench"}

	return t, task.NewEntry(t, task.At(l.origin), anchor)
}

// timetable lists the ticks of a load in one shard, in the order in which they are decided.
type timetable struct {
	origin, period int64 // ms
	due            []due // by offset, then name
}

// due is one task of a timetable.
type due struct {
	offset int64 // in ms after the start of each period
	name   string
}

// allTimetables returns the timetables of all shards.
func (l load) allTimetables(shards int) []timetable {
	tables := make([]timetable, shards)
	for i := range tables {
		tables[i].origin, tables[i].period = l.origin.UnixMilli(), l.period.Milliseconds()
	}

	for i := range l.tasks {
		t := &tables[shard.Of(benchNamespace, taskName(i), shards)]
		t.due = append(t.due, due{l.anchorOffset(i).Milliseconds(), benchNamespace + "/" + taskName(i)})
	}

	for _, t := range tables {
		slices.SortFunc(t.due, func(a, b due) int { return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.name, b.name)) })
	}

	return tables
}

// nthTick returns the n-th tick of the shard, in ms; n starts at 0.
func (t *timetable) nthTick(n int) int64 {
	cycle, i := n/len(t.due), n%len(t.due)
	return t.origin + int64(cycle+1)*t.period + t.due[i].offset
}

// isDecided reports whether a watermark decides the n-th tick.
func (t *timetable) isDecided(n int, w record.Watermark) bool {
	return w.Decided(task.At(time.UnixMilli(t.nthTick(n))), t.due[n%len(t.due)].name)
}

// createTasks writes n tasks, many in each request.
func createTasks(ctx context.Context, client *kv.Client, keys record.Keys, shards, n int, of func(i int) (task.Task, task.Entry), done func(n int64)) error {
	const atOnce = 60
	return writeTasks(ctx, client, keys, n, atOnce, func(s *store.Store, _ *putCollector, i int) error {
		t, e := of(i)
		_, err := s.CreateTask(ctx, refOf(t.Namespace, t.Name, shards), t, e)

		return err
	}, done)
}

// refOf returns a task's name with its shard.
func refOf(namespace, name string, shards int) record.Ref {
	return record.Ref{Namespace: namespace, Name: name, Shard: shard.Of(namespace, name, shards)}
}

// writeTasks calls write for n tasks, and sends what it puts to etcd, atOnce tasks in each request. write puts with the
// store, or adds to the collector. No comparisons are needed, because nobody else writes below the prefix.
func writeTasks(ctx context.Context, client *kv.Client, keys record.Keys, n, atOnce int, write func(s *store.Store, ops *putCollector, i int) error, done func(n int64)) error {
	const callers = 4
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var next, made atomic.Int64
	var wg sync.WaitGroup

	for range callers {
		wg.Go(func() {
			var ops putCollector
			s := store.New(client, &ops, keys)

			for first := int(next.Add(int64(atOnce))) - atOnce; first < n && ctx.Err() == nil; first = int(next.Add(int64(atOnce))) - atOnce {
				last := min(first+atOnce, n)
				ops = ops[:0]

				var err error
				for i := first; i < last && err == nil; i++ {
					err = write(s, &ops, i)
				}

				if err == nil {
					_, err = client.Txn(ctx).Then(ops...).Commit()
				}

				if err != nil {
					cancel(fmt.Errorf("create the tasks: %w", err))
					return
				}

				done(made.Add(int64(last - first)))
			}
		})
	}

	wg.Wait()

	return context.Cause(ctx)
}

// putCollector is a committer that only collects puts.
type putCollector []clientv3.Op

// Commit collects the puts of a transaction, and reports a success.
func (g *putCollector) Commit(_ context.Context, t kv.Txn) (kv.Result, error) {
	for _, op := range t.Then {
		if op.IsPut() { // there is nothing to delete yet
			*g = append(*g, op)
		}
	}

	return kv.Result{Succeeded: true}, nil
}
