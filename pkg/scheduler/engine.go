package scheduler

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/scheduler/activescan"
	"github.com/carillonhq/carillon/pkg/scheduler/board"
	"github.com/carillonhq/carillon/pkg/scheduler/definition"
	"github.com/carillonhq/carillon/pkg/scheduler/failures"
	"github.com/carillonhq/carillon/pkg/scheduler/pace"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// NextAttempt is the queue record of the attempt that follows one that ended,
// by its retry policy; nil if none does.
type NextAttempt func(a task.Assigned, end task.Run, now time.Time, spread float64) *task.Waiting

// Config says what to schedule, and with what.
type Config struct {
	Node        string
	Store       Store
	Fleet       *placement.Fleet
	NextAttempt NextAttempt
	// ClearedAfter is how long those of an instance are that is proved dead; default 2 s.
	ClearedAfter time.Duration
	// Reconcile is how often, about, a shard is compared with what etcd holds; default 1 min.
	Reconcile time.Duration
	Now       func() time.Time
	// Cluster, if set, is what the cluster's record says: of its shards this node may
	// catch up with its part of the rate, and attempts that it assigns are waited for
	// as long as the record says. Without it, the defaults hold.
	Cluster func() task.Cluster
	// Freezes are the freezes as they are known, and their record's mod revision;
	// nil: none. They may be old: a commit that did not know the newest fails, and
	// tells them. Look says that they have changed.
	Freezes func() (*task.Freezes, int64)
	// May, if set, is asked before each commit; its error ends the worker.
	May        func() error
	Logger     *zap.Logger
	Registerer prometheus.Registerer // may be nil
}

// Engine serves the shards that its node owns. Shards run side by side and
// share the fleet, the scan for active runs and the trims of history.
type Engine struct {
	reconciler *reconciler

	cfg        Config
	freezes    freezes
	scans      *activescan.Scanner
	trims      *retention.Trimmer
	ttlDeleter *retention.Deleter
	failures   *failures.Reader
	recent     board.Recent
	board      boardCache
	pace       *pace.Limiter
	loads      slots
	ahead      slots // of loads that nobody waits for
	metrics    *metrics

	timings  *definition.Cache[definition.Timing]
	policies *definition.Cache[definition.Policy]

	made     time.Time
	progress progress
	beats    atomic.Int64

	mu       sync.Mutex
	workers  map[int]*worker
	preloads map[int]*preload
}

// New makes an Engine.
func New(cfg Config) *Engine {
	if cfg.Cluster == nil {
		cfg.Cluster = func() task.Cluster { return task.Cluster{} }
	}

	if cfg.May == nil {
		cfg.May = func() error { return nil }
	}

	if cfg.Freezes == nil {
		cfg.Freezes = func() (*task.Freezes, int64) { return nil, 0 }
	}

	if cfg.ClearedAfter == 0 {
		cfg.ClearedAfter = 2 * time.Second
	}

	e := &Engine{
		cfg: cfg, made: time.Now(), scans: activescan.New(cfg.Store.ScanActive), trims: retention.NewTrimmer(cfg.Store, cfg.Logger),
		metrics: newMetrics(cfg.Registerer), workers: map[int]*worker{}, preloads: map[int]*preload{},
		loads: make(slots, loadsAtOnce), ahead: make(slots, aheadAtOnce()), timings: definition.NewCache(definition.NewTiming), policies: definition.NewCache(definition.NewPolicy),
	}
	e.ttlDeleter = retention.NewDeleter(cfg.Store, e.metrics.expired.Inc, cfg.Logger)
	e.reconciler = newReconciler(e)
	e.failures = failures.NewReader(cfg.Store, cfg.Logger)
	e.pace = pace.NewLimiter(e.catchUpRate)

	return e
}

func (e *Engine) parseTiming(text []byte) (*definition.Timing, error) { return e.timings.Get(text) }
func (e *Engine) parsePolicy(text []byte) (*definition.Policy, error) { return e.policies.Get(text) }

// loadsAtOnce is how many shards are loaded side by side: enough to keep the
// processors and etcd busy, and few enough that the first ones fire soon and
// that not everything is in memory twice.
const loadsAtOnce = 4

// aheadAtOnce is how many shards are loaded that are not ours yet: nobody waits
// for them, and they leave a processor to those that are taken over meanwhile.
func aheadAtOnce() int { return min(loadsAtOnce, max(1, runtime.GOMAXPROCS(0)/2)) }

// slots is a number of places.
type slots chan struct{}

// acquireSlot waits for a place; leave gives it back.
func (s slots) acquireSlot(ctx context.Context) (leave func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// catchUpRate is this node's share of the cluster's rate: as large as its share of
// the shards.
func (e *Engine) catchUpRate() float64 {
	c := e.cfg.Cluster()

	e.mu.Lock()
	owned := max(len(e.workers), 1)
	e.mu.Unlock()

	rate := float64(c.CatchUp())
	if owned < c.Shards {
		rate *= float64(owned) / float64(c.Shards)
	}

	return rate
}

// Run serves what the shards share, until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.scans.Run(ctx) })
	g.Go(func() error { return e.trims.Run(ctx) })
	g.Go(func() error { return e.ttlDeleter.Run(ctx) })
	g.Go(func() error { return e.failures.Run(ctx) })
	g.Go(func() error { return e.runHeartbeat(ctx) })
	g.Go(func() error { return e.reconciler.reconcileUntilDone(ctx) })

	return g.Wait()
}

// Work serves one shard under its fences: until ctx ends, or until the shard is
// no longer ours (task.ErrFenced) or is damaged (store.ErrDamaged). It goes on
// with what Preload has loaded.
func (e *Engine) Work(ctx context.Context, shard int, f store.Fences) error {
	w := newWorker(e, shard, f)
	if p := e.takePreload(shard); p != nil {
		w = p.handOver(f)
	}

	e.mu.Lock()
	e.workers[shard] = w
	e.mu.Unlock()

	e.metrics.shards.Inc()
	defer func() {
		e.metrics.shards.Dec()
		w.releaseShared()
		e.mu.Lock()
		if e.workers[shard] == w {
			delete(e.workers, shard)
		}
		e.mu.Unlock()
	}()

	return w.serveUntilDone(ctx)
}

// Look tells all workers that nodes have come, gone or changed, or freezes have.
func (e *Engine) Look() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.workers {
		w.wakeUp()
	}
}

// Unreadable returns how many entries of the node's shards do not fire because they cannot be read.
func (e *Engine) Unreadable() int { return int(e.metrics.unreadable.Load()) }

// Overdue returns an error that names the first shard that has a tick older
// than age which nobody has decided, or that is still being loaded after age.
func (e *Engine) Overdue(now time.Time, age time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()

	for id, w := range e.workers {
		since := w.undecided.Load()
		if since > 0 && now.Sub(time.UnixMilli(since)) > age {
			if !w.serving.Load() {
				return fmt.Errorf("shard %d is being loaded since %s", id, task.At(time.UnixMilli(since)).Format(time.RFC3339))
			}
			return fmt.Errorf("shard %d has an undecided tick of %s", id, task.At(time.UnixMilli(since)).Format(time.RFC3339))
		}
	}

	return nil
}

var (
	// errReload means that the shard may have changed unseen: open it again.
	errReload = errors.New("changes of the shard may have been missed")
)

type metrics struct {
	ticks    *prometheus.CounterVec
	outcome  [4]prometheus.Counter // of ticks, in the order of outcomes
	lateness prometheus.Histogram
	commits  *prometheus.CounterVec
	commit   prometheus.Histogram
	opens    prometheus.Counter
	ahead    *prometheus.CounterVec
	shards   prometheus.Gauge
	bad      prometheus.GaugeFunc // shows unreadable
	waiting  prometheus.Gauge
	lost     prometheus.Counter
	settled  *prometheus.CounterVec
	aside    prometheus.Counter
	paused   prometheus.Counter
	expired  prometheus.Counter

	unreadable atomic.Int64 // entries of the node's shards that cannot be read
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		ticks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_ticks_total",
			Help: "Ticks that were decided, by outcome: run, queued, skipped, missed."}, []string{"outcome"}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "carillon_tick_lateness_seconds",
			Help:    "Time from a tick to the commit that decided to run it.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}}),
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_commits_total",
			Help: "Commits of shards, by result: ok, conflict, fenced, moved, error."}, []string{"result"}),
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "carillon_commit_seconds",
			Help: "Duration of a commit, including the time to resolve an unknown outcome.", Buckets: prometheus.ExponentialBuckets(.0005, 2, 15)}),
		opens: prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_shard_opens_total",
			Help: "Times that a shard was opened and loaded."}),
		ahead: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_shard_preloads_total",
			Help: "Shards that this node preloaded, by result: used, dropped (the node did not become the owner)."}, []string{"result"}),
		shards:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "carillon_shards_owned", Help: "Shards that this node owns."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carillon_waiting_runs", Help: "Runs in the queues of the shards of this node."}),
		lost:    prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_lost_attempts_total", Help: "Attempts that this node declared lost."}),
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_commits_settled_total",
			Help: "Commits whose outcome was unknown at first, by the outcome that was found: ours (an earlier copy had been applied), not_ours (it had not been applied)."}, []string{"as"}),
		aside: prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_tasks_set_aside_total",
			Help: "Tasks that get no more ticks because every commit for them failed."}),
		paused:  prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_tasks_paused_total", Help: "Tasks that were paused because too many consecutive runs failed."}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_tasks_expired_total", Help: "Tasks that were deleted because their schedule had ended and their ttl had expired."}),
	}
	m.bad = prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "carillon_unreadable_entries", Help: "Task entries that have no ticks because they cannot be read."},
		func() float64 { return float64(m.unreadable.Load()) })

	m.outcome = [4]prometheus.Counter{m.ticks.WithLabelValues("run"), m.ticks.WithLabelValues("queued"),
		m.ticks.WithLabelValues("skipped"), m.ticks.WithLabelValues("missed")}
	m.ahead.WithLabelValues("used")
	m.ahead.WithLabelValues("dropped")
	m.settled.WithLabelValues(store.OutcomeApplied)
	m.settled.WithLabelValues(store.OutcomeNotFound)

	if r != nil {
		r.MustRegister(m.ticks, m.lateness, m.commits, m.commit, m.opens, m.ahead, m.shards, m.bad, m.waiting, m.lost, m.settled, m.aside, m.paused, m.expired)
	}

	return m
}

// countOutcomes counts ticks, and lost attempts.
func (m *metrics) countOutcomes(o outcomes) {
	for i, n := range [...]int64{o.run, o.queued, o.skipped, o.missed} {
		if n > 0 {
			m.outcome[i].Add(float64(n))
		}
	}

	m.lost.Add(float64(o.lost))
}
