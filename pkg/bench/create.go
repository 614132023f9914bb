package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// measureCreate measures how fast tasks are created, while a scheduler loads them: in bulk through the API, one at
// a time through the store, and one at a time through the API. The tasks have one tick a day.
func (b *bench) measureCreate(ctx context.Context) (err error) {
	sample := load{tasks: 1, period: 24 * time.Hour, origin: time.Now().Truncate(time.Second), action: noopAction, overlap: defaultOverlap, keep: b.Keep}

	// Measure etcd alone first, with records of the same size.
	limits := map[string]*Result{}
	if b.Limit > 0 {
		s, err := sizesOf(ctx, sample)
		if err != nil {
			return err
		}

		list, err := b.measureLimits(ctx, b.Limit/2, s, limitCreate)
		if err != nil {
			return err
		}

		bulk, err := b.limitBulk(ctx, b.Limit/2, s)
		if err != nil {
			return err
		}

		limits[limitCreate], limits[limitCreateBulk] = &list[0], &bulk
	}

	// The scheduler of the node loads the tasks while they are created.
	c, err := b.createCluster(ctx, benchNamespace)
	if err != nil {
		return err
	}

	n, err := c.startNode(ctx, nil, newTickObserver(c.keys))
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, n.stop()) }()

	transport := loopbackTransport(b.Callers)
	defer transport.CloseIdleConnections()

	api, err := client.New(client.Config{Server: n.daemon.Address(), Token: n.token, HTTP: &http.Client{Transport: transport}})
	if err != nil {
		return err
	}

	// What is created through the store shares requests to etcd, as in the node.
	batcher := kv.NewBatcher(b.client, kv.BatcherConfig{Logger: b.log})
	batching, stopBatcher := context.WithCancel(context.WithoutCancel(ctx))
	batched := make(chan struct{})
	go func() { defer close(batched); _ = batcher.Run(batching) }()
	defer func() { stopBatcher(); <-batched }()

	profiled, err := b.startProfile()
	if err != nil {
		return err
	}

	// Create tasks in three ways. Each leaves its tasks in place for the next.
	var results []Result
	var made int64
	for _, way := range []struct {
		name, limit string
		callers     int
		create      createFunc
	}{
		{"create/bulk", limitCreateBulk, 1, inBulk(api)},
		{"create/store", limitCreate, b.Callers, oneByOne(c.taskCreator(batcher))},
		{"create/api", limitCreate, b.Callers, oneByOne(func(ctx context.Context, s task.Spec) error {
			_, err := api.Tasks.Create(ctx, s.Namespace, s)
			return err
		})},
	} {
		res, n, err := b.createBy(ctx, way.name, way.callers, way.create)
		if err != nil {
			return errors.Join(err, profiled())
		}

		res.compareWith(limits[way.limit])
		results, made = append(results, res), made+n
	}

	if err := errors.Join(profiled(), n.stop()); err != nil {
		return err
	}

	// Every acknowledged task must exist, as a spec and as an entry.
	found, err := c.countTasks(ctx)
	if err == nil && found != [2]int64{made, made} {
		err = fmt.Errorf("%d tasks were created, etcd has %d specs and %d entries", made, found[0], found[1])
	}

	for i := range results {
		results[i].setVerified(err)
	}

	b.addResults(results...)

	for _, name := range []string{limitCreateBulk, limitCreate} {
		if limit := limits[name]; limit != nil {
			b.addResults(*limit)
		}
	}

	return ctx.Err()
}

// createFunc creates tasks until there are no more, and calls done after each.
type createFunc func(ctx context.Context, tasks iter.Seq[task.Spec], done func()) error

// oneByOne returns a createFunc that makes one call for each task.
func oneByOne(create func(context.Context, task.Spec) error) createFunc {
	return func(ctx context.Context, tasks iter.Seq[task.Spec], done func()) error {
		for s := range tasks {
			if err := create(ctx, s); err != nil {
				return err
			}
			done()
		}

		return nil
	}
}

// inBulk returns a createFunc that uses the bulk API.
func inBulk(c *client.Client) createFunc {
	return func(ctx context.Context, tasks iter.Seq[task.Spec], done func()) error {
		for r, err := range c.Tasks.ApplyAll(ctx, tasks, client.BatchOptions{CreateOnly: true}) {
			if err == nil {
				err = r.Err()
			}

			if err != nil {
				return err
			}

			done()
		}

		return nil
	}
}

// taskCreator returns a function that creates a task through the store, without the API.
func (c *cluster) taskCreator(writes kv.Committer) func(context.Context, task.Spec) error {
	through := store.New(c.client, writes, c.keys)

	return func(ctx context.Context, s task.Spec) error {
		now := task.At(time.Now())
		t := task.Task{Spec: s, UID: task.NewUID(), Generation: 1, CreatedAt: now, UpdatedAt: now, UpdatedBy: task.NewActor("bench")}
		_, err := through.CreateTask(ctx, c.taskRef(s.Namespace, s.Name), t, task.NewEntry(t, now, now))

		return err
	}
}

// createBy creates tasks with concurrent callers for the configured duration. It also returns how many tasks it
// created in all, including the warm-up.
func (b *bench) createBy(ctx context.Context, name string, callers int, create createFunc) (res Result, created int64, err error) {
	res.Name = name
	spec := task.Defaults()
	spec.Namespace, spec.Schedule, spec.Action = benchNamespace, task.Schedules{"@every 24h"}, noopAction
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var next, done atomic.Int64
	var wg sync.WaitGroup
	var stop atomic.Bool
	tag := task.NewUID()

	// All callers draw from one sequence of names, which ends when the measurement does.
	tasks := func(yield func(task.Spec) bool) {
		for !stop.Load() && run.Err() == nil {
			s := spec
			s.Name = fmt.Sprintf("%s-%07d", tag, next.Add(1))
			if !yield(s) {
				return
			}
		}
	}

	for range callers {
		wg.Go(func() {
			if err := create(run, tasks, func() { done.Add(1) }); err != nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}

	b.progress.beginStep("%s", name)

	// Callers already work during the warm-up. Only what they create afterwards is measured.
	clock.Sleep(run, b.Warmup)

	watch := startWatch(done.Load())
	for left := b.Duration; left > 0 && clock.Sleep(run, min(left, 200*time.Millisecond)); left = b.Duration - time.Since(watch.began) {
		b.progress.showStatus("%s  %s/s", name, formatNumber(watch.ratePerSecond(done.Load())))
	}

	watch.fillResult(done.Load(), &res)

	// Let every caller finish its last task, so that created is exact.
	stop.Store(true)
	wg.Wait()

	return res, done.Load(), context.Cause(run)
}

// limitCreateBulk is the rate of etcd for bulk creation: for as many tasks as share a transaction, it compares and
// puts a spec and an entry.
const limitCreateBulk = "limit/create_bulk"

// limitBulk measures limitCreateBulk, with as many concurrent requests as the batcher has.
func (b *bench) limitBulk(ctx context.Context, took time.Duration, s sizes) (res Result, err error) {
	b.progress.beginStep("%s", limitCreateBulk)
	res.Name = limitCreateBulk
	l := &limiter{etcdTarget: b.etcdTarget, sizes: s}
	root := fmt.Sprintf("%slimit/%s/", b.keys.Root(), task.NewUID())
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var count atomic.Int64
	var wg sync.WaitGroup

	for i := range bulkInFlight {
		c := &caller{limiter: l, root: fmt.Sprintf("%s%04d/", root, i), spec: makeValue(s.spec), entry: makeValue(s.entry)}
		wg.Go(func() {
			for run.Err() == nil {
				if err := c.createMany(ctx); err != nil {
					cancel(fmt.Errorf("%s: %w", limitCreateBulk, err))
				}
				count.Add(store.MaxTogether)
			}
		})
	}

	// A fifth of the time is for warming up.
	clock.Sleep(run, took/5)
	watch := startWatch(count.Load())
	for more := clock.Sleep(run, took); more && count.Load() == watch.first; { // at least one request
		more = clock.Sleep(run, took)
	}

	watch.fillResult(count.Load(), &res)
	err = context.Cause(run)
	cancel(nil)
	wg.Wait()

	return res, errors.Join(err, b.deletePrefix(ctx, root))
}

// bulkInFlight is how many requests are in flight.
const bulkInFlight = 4

// createMany creates store.MaxTogether tasks in one transaction.
func (c *caller) createMany(ctx context.Context) error {
	var cmps []clientv3.Cmp
	var ops []clientv3.Op
	for range store.MaxTogether {
		spec, entry := c.nextKey("tasks"), c.nextKey("shards")
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(spec), "=", 0), clientv3.Compare(clientv3.ModRevision(entry), "=", 0))
		ops = append(ops, clientv3.OpPut(spec, c.spec), clientv3.OpPut(entry, c.entry))
	}

	_, err := c.commitTxn(ctx, cmps, ops)

	return err
}
