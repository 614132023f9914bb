package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/election"
	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/executor/workdir"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/scheduler"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

// How writes are sent to etcd: each in its own request, or many in one.
const (
	commitDirect = "direct"
	commitBatch  = "batch"
)

const (
	nodeName  = "bench"
	settleFor = time.Minute     // limits how long due ticks and runs may take to end
	loadFor   = 5 * time.Minute // limits how long all shards may take to be loaded
)

// rigConfig describes the node.
type rigConfig struct {
	Shards   int
	Commit   string // direct or batch
	Slots    int    // processes that run at the same time
	Executor bool   // false: runs stay in the inbox
	Guardian bool   // start a guardian, as an agent does
	HTTP     bool   // the executor supports HTTP actions
	// Cgroup is the setting for attempts: cgroup.Auto or cgroup.Off.
	Cgroup string
}

// rig is a cluster of one node, without a daemon. It joins once, and its parts can be started and
// stopped any number of times.
//
//	newRig ─► joined ─work─► working ─stop─► joined … ─close─► gone
type rig struct {
	*etcdTarget
	cfg     rigConfig
	log     *zap.Logger
	plain   *store.Store // each write in its own request
	store   *store.Store // through the committer that is measured
	cluster task.Cluster
	metrics *prometheus.Registry // of the committer

	base       context.Context // of everything that outlives a stop
	cancel     context.CancelFunc
	background *errgroup.Group // goroutines that run until close

	session  *kv.Session
	fence    kv.Fence // the node's session
	node     task.Node
	owners   []record.Owner // of all shards, as they are after joinCluster
	joinedAt int64          // etcd's revision before the node joined, at which reading back begins
}

// newRig creates the cluster. The caller must call close, unless newRig fails.
func newRig(ctx context.Context, s *etcdTarget, cfg rigConfig, log *zap.Logger) (_ *rig, err error) {
	r := &rig{etcdTarget: s, cfg: cfg, log: log, metrics: prometheus.NewRegistry()}
	r.base, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.background, r.base = errgroup.WithContext(r.base)
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(ctx))
		}
	}()

	r.plain = store.New(s.client, kv.Direct(s.client), s.keys)
	batcher := kv.NewBatcher(s.client, kv.BatcherConfig{Logger: log, Registerer: r.metrics})
	r.background.Go(func() error { return batcher.Run(r.base) })

	if r.store = r.plain; cfg.Commit == commitBatch {
		r.store = store.New(s.client, batcher, s.keys)
	}

	r.cluster, _, err = r.plain.Bootstrap(ctx, cfg.Shards, time.Now(), store.OpenAccess())

	return r, err
}

// joinCluster registers the node, and waits until it owns every shard.
func (r *rig) joinCluster(ctx context.Context) (err error) {
	if r.joinedAt, err = r.currentRevision(ctx); err != nil {
		return err
	}

	// Register the node under a session, as a daemon does.
	r.session, err = kv.OpenSession(r.base, r.client, kv.SessionConfig{TTL: 30 * time.Second, Logger: r.log})
	if err != nil {
		return err
	}

	now := task.At(time.Now())
	r.node = task.Node{
		Name: nodeName, Instance: task.NewUID(), State: task.NodeReady, Version: daemon.Version(),
		Labels: map[string]string{"node": nodeName, "os": runtime.GOOS, "arch": runtime.GOARCH},
		Roles:  []string{task.RoleScheduler, task.RoleExecutor}, Slots: r.cfg.Slots, Weight: 1, Clock: now, StartedAt: now,
	}

	there, err := r.plain.Present(ctx)
	if err != nil {
		return err
	}
	if r.fence, _, err = r.plain.Register(ctx, r.node, r.session.Lease(), there.Record()); err != nil {
		return err
	}

	// The only node becomes the leader, and assigns all shards to itself.
	vote := election.New(r.client, election.Config{Prefix: r.keys.Root(), Node: nodeName, TTL: 30 * time.Second, Logger: r.log})
	r.background.Go(func() error {
		return vote.Run(r.base, func(ctx context.Context, t election.Term) error {
			return shard.NewRebalancer(shard.RebalancerConfig{
				Store: r.plain, Shards: r.cluster.Shards, Now: time.Now, Logger: r.log,
			}).Lead(ctx, t.Fence)
		})
	})

	return r.awaitCondition(ctx, "every shard has an owner", func() (bool, error) {
		r.owners, err = r.plain.Owners(ctx)
		return len(r.owners) == r.cluster.Shards, err
	})
}

// awaitCondition polls until a condition holds, for settleFor at most.
func (r *rig) awaitCondition(ctx context.Context, condition string, is func() (bool, error)) error {
	return r.awaitWithin(ctx, settleFor, condition, is)
}

// awaitTimeout polls until a condition holds. It fails after a time, or when a part of the rig fails.
func (r *rig) awaitWithin(ctx context.Context, most time.Duration, condition string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("not in %s: %s", most, condition))
	defer cancel()
	for {
		ok, err := is()
		if ok || err != nil {
			return err
		}
		if !clock.Sleep(ctx, 2*time.Millisecond) {
			return context.Cause(ctx)
		}
		if err := r.base.Err(); err != nil {
			return fmt.Errorf("the rig is broken: %w", context.Cause(r.base))
		}
	}
}

// work holds the parts of a node that a benchmark starts and stops.
type work struct {
	observer *tickObserver
	clock    *fakeClock
	engine   *scheduler.Engine
	metrics  *prometheus.Registry
	loaded   time.Duration // from the start until every shard was ready to fire

	cancel         context.CancelFunc
	parts          *errgroup.Group    // the goroutines of scheduler, keeper and executor
	background     *errgroup.Group    // the guardian, which outlives the parts
	stopBackground context.CancelFunc // ends background
	groups         *cgroup.Groups
}

// startParts starts the node's parts for a load, with the clock held at the load's origin. It returns when every
// shard is ready to fire. The caller must call stopParts, unless startParts fails.
func (r *rig) startParts(ctx context.Context, l load) (_ *work, err error) {
	began := time.Now()
	w := &work{clock: newFakeClock(l.origin), metrics: prometheus.NewRegistry()}
	w.observer = newTickObserver(r.store, w.clock, l.allTimetables(r.cluster.Shards))
	base, leave := context.WithCancel(r.base)
	running, cancel := context.WithCancel(base)
	w.stopBackground, w.cancel = leave, cancel
	w.background, base = errgroup.WithContext(base)
	w.parts, running = errgroup.WithContext(running)
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stopParts())
		}
	}()

	// Without an executor, placement sees a node whose slots are always free.
	free := func() int { return r.cfg.Slots }
	if r.cfg.Executor {
		e, err := r.startExecutor(base, w)
		if err != nil {
			return nil, err
		}

		free = e.Free
		w.parts.Go(func() error { return e.Run(running) })
		e.Joined(executor.Session{Fence: r.fence, LastRenewal: r.session.LastRenewal})
	}

	// Wire the scheduler as package daemon does, with the tickObserver as its store and the clock of the benchmark.
	fleet := placement.NewFleet(nodeName, free)
	nodes, err := r.plain.Nodes(ctx)
	if err != nil {
		return nil, err
	}

	fleet.Set(nodes)
	w.engine = scheduler.New(scheduler.Config{
		Node: nodeName, Store: w.observer, Fleet: fleet, NextAttempt: executor.Next, Now: w.clock.Now,
		Namespaces: func() scheduler.Namespaces { return scheduler.OpenNamespaces{} },
		Logger:     r.log.Named("scheduler"), Registerer: w.metrics,
		PastRate: 200_000, // as fast as possible, and not during the measurement
	})
	keeper := shard.NewKeeper(shard.KeeperConfig{
		Node: nodeName, Owners: func() []record.Owner { return r.owners }, Fence: r.plain.OwnerFence,
		Session: func() (kv.Fence, bool) { return r.fence, true }, Work: w.engine.Work, Logger: r.log.Named("keeper"),
	})

	w.parts.Go(func() error { return w.engine.Run(running) })
	w.parts.Go(func() error { return keeper.Run(running) })

	// The clock is held, so nothing is due: the shards are ready when all are opened and loaded.
	err = r.awaitWithin(ctx, loadFor, "every shard is loaded", func() (bool, error) {
		return w.observer.opened.Load() >= int64(r.cluster.Shards) && w.nothingOverdue(), nil
	})

	if err != nil {
		err = fmt.Errorf("%w (opened %d, %d of them again)", err, w.observer.opened.Load(), w.observer.reopened.Load())
	}

	w.loaded = time.Since(began)

	return w, err
}

// startExecutor returns an executor, with a guardian if one is configured.
func (r *rig) startExecutor(ctx context.Context, w *work) (*executor.Executor, error) {
	dir := filepath.Join(r.dir, "node")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the node's directory: %w", err)
	}

	groups, err := cgroup.Open(cgroup.Config{Setting: cmp.Or(r.cfg.Cgroup, cgroup.Off), Node: nodeName, Instance: r.node.Instance, Logger: r.log})
	if err != nil {
		return nil, err
	}

	w.groups = groups
	var watchdog *guardian.Client
	if r.cfg.Guardian {
		watchdog = guardian.NewClient(guardian.Config{
			Hello: guardian.Hello{Instance: r.node.Instance, Dir: dir, Groups: groups.Roots()}, Logger: r.log,
		})
		w.background.Go(func() error { return watchdog.Run(ctx) })
	}

	cfg := executor.Config{
		Node: nodeName, Instance: r.node.Instance, Slots: r.cfg.Slots, Dir: dir, Workdirs: workdir.Root("", nodeName, dir), Inbox: w.observer, Guardian: watchdog, Groups: groups, Logger: r.log,
	}
	if r.cfg.HTTP {
		cfg.HTTP = func(output *spool.Spool) (executor.AttemptRunner, error) { return newHTTPRunner(ctx, output) }
	}

	return executor.New(cfg)
}

// nothingOverdue reports whether all shards are loaded, and no tick up to the clock's time is undecided.
func (w *work) nothingOverdue() bool {
	return w.engine.Overdue(w.clock.Now(), -time.Millisecond) == nil
}

// awaitSettled waits until every due tick is decided and, with an executor, every run has ended. The clock must be
// held.
func (r *rig) awaitSettled(ctx context.Context, w *work) error {
	return r.awaitCondition(ctx, "every tick is decided and every run has ended", func() (bool, error) {
		return w.nothingOverdue() && (!r.cfg.Executor || w.outcomeCounts()["run"] == w.observer.finished.Load()), nil
	})
}

// stopParts ends the parts and waits for them.
func (w *work) stopParts() error {
	w.cancel()
	err := w.parts.Wait()
	w.stopBackground()

	err = errors.Join(unlessStopped(err), unlessStopped(w.background.Wait()), w.groups.Close())
	if err != nil {
		return fmt.Errorf("stop the node: %w", err)
	}

	return nil
}

// unlessStopped returns err, unless the part was stopped on purpose.
func unlessStopped(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// outcomeCounts returns how many ticks the scheduler has counted for each outcome.
func (w *work) outcomeCounts() map[string]int64 {
	all := map[string]int64{}
	for label, n := range readMetric(w.metrics, "carillon_ticks_total") {
		all[label] = int64(n)
	}
	return all
}

// readMetric reads a counter by its label, or the count and the sum of a histogram. It returns 0 for what it cannot
// read. The comparison with etcd then fails.
func readMetric(r *prometheus.Registry, name string) map[string]float64 {
	all := map[string]float64{}
	families, _ := r.Gather()
	for _, f := range families {
		if f.GetName() != name {
			continue
		}

		for _, m := range f.GetMetric() {
			label := ""
			if l := m.GetLabel(); len(l) > 0 {
				label = l[0].GetValue()
			}

			if h := m.GetHistogram(); h != nil {
				all["count"], all["sum"] = float64(h.GetSampleCount()), h.GetSampleSum()
			} else {
				all[label] = m.GetCounter().GetValue()
			}
		}
	}

	return all
}

// groupCommitStats counts ticks, commits, transactions and requests, to compute how many ticks share a commit and
// how many transactions share a request.
type groupCommitStats struct{ ticks, commits, transactions, requests float64 }

// readGroupCommitStats reads the counts.
func (r *rig) readGroupCommitStats(w *work) (c groupCommitStats) {
	for _, n := range readMetric(w.metrics, "carillon_ticks_total") {
		c.ticks += n
	}

	c.commits = readMetric(w.metrics, "carillon_commits_total")["ok"]
	h := readMetric(r.metrics, "carillon_batch_transactions")
	c.transactions, c.requests = h["sum"], h["count"]

	return c
}

// subtractFrom sets the ratios for the time between two readings.
func (c groupCommitStats) subtractFrom(before groupCommitStats, res *Result) {
	if n := c.commits - before.commits; n > 0 {
		res.PerCommit = roundTo((c.ticks-before.ticks)/n, 1)
	}

	if n := c.requests - before.requests; n > 0 {
		res.PerRequest = roundTo((c.transactions-before.transactions)/n, 1)
	}
}

// close removes the node from the cluster, and ends what newRig has started.
func (r *rig) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()

	var err error
	if r.session != nil {
		err = r.session.Close(ctx)
	}

	r.cancel()

	return errors.Join(err, unlessStopped(r.background.Wait()))
}
