package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// measureCreate measures how fast tasks are created, while a scheduler loads them: in bulk through the API, one at
// a time through the store, and one at a time through the API. The tasks have one tick a day.
func (b *bench) measureCreate(ctx context.Context) (err error) {
	b.Rig.Executor = false
	l := load{period: 24 * time.Hour, origin: time.Now().Truncate(time.Second), action: noopAction, overlap: defaultOverlap, keep: b.Keep}
	sample := l
	sample.tasks = 1

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

	// Start a node without an executor. Its scheduler loads the tasks while they are created.
	r, w, err := b.prepareRig(ctx, l)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, r.close(ctx)) }()

	w.clock.runSteadily(l.origin)

	api, closeAPI, err := b.serveAPI(ctx, r)
	if err != nil {
		return errors.Join(err, w.stopParts())
	}

	profiled, err := b.startProfile()
	if err != nil {
		return errors.Join(err, closeAPI(), w.stopParts())
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
		{"create/store", limitCreate, b.Callers, oneByOne(r.createTask)},
		{"create/api", limitCreate, b.Callers, oneByOne(func(ctx context.Context, s task.Spec) error {
			_, err := api.Tasks.Create(ctx, s.Namespace, s)
			return err
		})},
	} {
		res, n, err := b.createBy(ctx, way.name, way.callers, way.create)
		if err != nil {
			return errors.Join(err, profiled(), closeAPI(), w.stopParts())
		}

		res.compareWith(limits[way.limit])
		results, made = append(results, res), made+n
	}

	if err := errors.Join(profiled(), closeAPI(), w.stopParts()); err != nil {
		return err
	}

	// Every acknowledged task must exist, as a spec and as an entry.
	found, err := r.countTasks(ctx)
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

// createTask creates a task through the store, without the API.
func (r *rig) createTask(ctx context.Context, s task.Spec) error {
	now := task.At(time.Now())
	t := task.Task{Spec: s, UID: task.NewUID(), Generation: 1, CreatedAt: now, UpdatedAt: now, UpdatedBy: "bench"}
	_, err := r.store.CreateTask(ctx, r.taskRef(s.Namespace, s.Name), t, task.NewEntry(t, now, now))
	return err
}

// createToken creates a token that may do everything, and the namespace of the tasks. It returns the token's secret.
func (r *rig) createToken(ctx context.Context) (string, error) {
	if _, err := r.plain.PutNamespace(ctx, 0, store.OpenNamespace(benchNamespace), time.Now()); err != nil {
		return "", err
	}

	secrets, err := createTokens(ctx, r.plain, 1)
	if err != nil {
		return "", err
	}

	return secrets[0], nil
}

// createTokens creates n tokens, each of another subject that may do everything. It returns their secrets.
func createTokens(ctx context.Context, s *store.Store, n int) (secrets []string, err error) {
	now := time.Now()
	binding := task.Binding{Name: "bench", Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Cluster: true}

	for i := range n {
		subject := fmt.Sprintf("%s:bench-%d", access.KindService, i)
		binding.Subjects = append(binding.Subjects, subject)

		secret, token := authority.NewSecret()
		token.Subject, token.CreatedAt = subject, task.At(now)
		if err := s.CreateToken(ctx, token); err != nil {
			return nil, err
		}

		secrets = append(secrets, secret)
	}

	_, err = s.PutBinding(ctx, 0, binding, now)

	return secrets, err
}

// serveAPI serves the API on the loopback interface, without TLS. It returns a client, and a function that ends
// both.
func (b *bench) serveAPI(ctx context.Context, r *rig) (*client.Client, func() error, error) {
	secret, err := r.createToken(ctx)
	if err != nil {
		return nil, nil, err
	}

	keeper := authority.New(r.plain.Client(), r.plain.Keys(), r.log)
	handler, err := api.New(api.Config{Store: r.store, Access: keeper, Cluster: r.cluster, Node: nodeName, Ref: r.taskRef, Logger: r.log})
	if err != nil {
		return nil, nil, err
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}

	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: zap.NewStdLog(r.log)}
	transport := &http.Transport{MaxIdleConnsPerHost: b.Callers}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	keeping, stopKeeper := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	go func() { defer close(kept); _ = keeper.Run(keeping) }()

	closeAll := func() error {
		transport.CloseIdleConnections()
		err := server.Close()
		stopKeeper()
		<-kept
		if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}

		return err
	}

	if _, err := keeper.AwaitLoaded(ctx); err != nil {
		return nil, nil, errors.Join(err, closeAll())
	}

	c, err := client.New(client.Config{Server: "http://" + listener.Addr().String(), Token: secret, HTTP: &http.Client{Transport: transport}})
	if err != nil {
		return nil, nil, errors.Join(err, closeAll())
	}

	return c, closeAll, nil
}

// taskRef returns a task's name with its shard.
func (r *rig) taskRef(namespace, name string) record.Ref {
	return refOf(namespace, name, r.cluster.Shards)
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

// countTasks counts the specs and the entries in etcd.
func (r *rig) countTasks(ctx context.Context) (n [2]int64, err error) {
	if n[0], err = r.plain.CountSpecs(ctx); err != nil {
		return n, err
	}

	all := make([]int, r.cluster.Shards)
	for id := range all {
		all[id] = id
	}

	shards, err := r.plain.CountEntries(ctx, all)
	for _, tasks := range shards {
		n[1] += int64(tasks)
	}

	return n, err
}
