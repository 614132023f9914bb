// Package scheduler decides ticks. One goroutine for each owned shard gives every tick its outcome and puts
// runs into the inboxes of nodes.
//
// # One worker
//
//	open ──► load ──► scan ──► rounds ◄──┐
//	  ▲                          │       │ events of the shard, time, nodes
//	  │  watermark changed,      ├───────┘
//	  └── events missed ◄────────┤
//	                             └──► fenced: stop
//
// A worker opens its shard with an empty commit. From then on, delayed writes of earlier workers fail. The
// worker loads the shard at the revision of that commit, and finds the active runs with a scan that begins
// after the commit. Then it decides in rounds. A round fixes one value of now. It decides tasks that are
// behind first, then everything else that is due, in (due time, task) order, then waiting runs. Each commit
// contains the watermark, so one write records what was decided and how far. Each shard has at most one
// commit in flight.
//
// # Guarantees
//
// A tick is decided at most once, whatever fails (G3), because deciding it and moving the watermark (or the
// entry's from) is one conditional write. No tick is lost (G4): the watermark moves only past decided
// ticks, and entries that it does not cover yet are decided first. An acknowledged pause, update or delete
// takes precedence (G7), because the commit of a tick compares the entry.
//
// There is no upper bound on lateness under overload or while etcd is unavailable. A worker keeps no state
// that it cannot load again.
//
// # Failures
//
//   - The shard or the session is lost (task.ErrFenced): the worker stops.
//   - Another writer changed the watermark (store.ErrMoved), or events may have been missed (errReload):
//     the worker opens and loads the shard again.
//   - etcd is unavailable, or the outcome of a commit is unknown: the worker tries again. The next opening
//     determines the outcome.
//   - The shard has no watermark (store.ErrDamaged): the worker stops and reports it.
package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/evaluator"
	"github.com/carillonhq/carillon/pkg/scheduler/node"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// NextAttempt returns the queue record of the attempt that follows one that ended with end, by the retry
// policy in a. It returns nil if no attempt follows. spread is a random number in [0, 1) for the jitter of
// the backoff.
type NextAttempt func(a task.Assigned, end task.Run, now time.Time, spread float64) *task.Waiting

// Config is the configuration of an Engine.
type Config struct {
	Node        string // name of this node
	Store       Store
	Fleet       *placement.Fleet // the nodes that may get runs; shared by all shards
	NextAttempt NextAttempt      // required
	// Ref returns the reference of a task, whose shard may be another node's. If it is nil, all tasks are in shard 0.
	Ref func(namespace, name string) record.Ref
	// ClearedAfter is how long a node must be absent before its attempts are lost, if its instance is
	// proved dead. The default is 2 s.
	ClearedAfter time.Duration
	// Reconcile is about how often a shard is compared with what etcd holds. The default is 1 min.
	Reconcile time.Duration
	// PastRate is how many tasks per second are read to find out how their runs had ended before their shard
	// was opened. The default is background.DefaultPastRate.
	PastRate int
	// Now returns the time by which ticks are decided. Required.
	Now func() time.Time
	// Cluster returns the cluster's record as it is known: the number of shards, the catch-up rate, lost_after for new
	// attempts, and for how long ledgers remember ticks. If it is nil, the defaults hold.
	Cluster func() task.Cluster
	// Freezes returns the freezes as they are known, and the mod revision of their record. It returns nil
	// if there are none. They may be out of date: a commit that does not know the newest ones fails and
	// returns them. The caller calls WakeWorkers when they have changed. May be nil.
	Freezes func() (*task.Freezes, int64)
	// Namespaces returns the records of the namespaces as they are known, or nil if they are not known yet:
	// then nothing is decided. They may be a moment out of date. The caller calls WakeWorkers when they have changed.
	// Required.
	Namespaces func() Namespaces
	// AlertRules returns the rules of alerts as they are known, or nil while they are not. May be nil: there are none.
	AlertRules func() *alert.Rules
	// MayCommit is called before each commit. If it returns an error, the worker ends with task.ErrFenced. May be
	// nil.
	MayCommit  func() error
	Logger     *zap.Logger
	Registerer prometheus.Registerer // may be nil
}

// Engine serves the shards that its node owns. Each shard has its own worker. The workers share the
// fleet, the scan for active attempts, the catch-up pace, and the goroutines that trim, delete and compare.
type Engine struct {
	cfg          Config
	freezes      freezes
	scans        *node.ActiveScanner
	trims        *background.Trimmer
	sender       *background.Sender
	ttlDeleter   *background.Deleter
	pastRuns     *background.PastReader
	reconciler   *background.Reconciler
	evaluator    *evaluator.Evaluator
	patience     time.Duration // differenceTimeout; shorter in tests
	recent       node.Recent
	pace         *node.CatchUpLimiter
	scanLimit    *node.ScanLimiter
	loads        slots
	preloadSlots slots // places for loads of shards that this node does not own yet
	metrics      *node.Metrics

	definitions *state.SharedDefinitions
	plans       *state.FlowPlans

	made     time.Time    // origin of the monotonic times in progress
	progress progress     // when any worker last made progress
	beats    atomic.Int64 // see Beats

	// mu protects workers and preloads, by shard.
	mu       sync.Mutex
	workers  map[int]*worker
	preloads map[int]*preload
}

// New returns an Engine. It does no I/O. Work can be called only while Run is running.
func New(cfg Config) *Engine {
	if cfg.Cluster == nil {
		cfg.Cluster = func() task.Cluster { return task.Cluster{} }
	}

	if cfg.MayCommit == nil {
		cfg.MayCommit = func() error { return nil }
	}

	if cfg.Freezes == nil {
		cfg.Freezes = func() (*task.Freezes, int64) { return nil, 0 }
	}

	if cfg.Ref == nil {
		cfg.Ref = func(namespace, name string) record.Ref { return record.Ref{Namespace: namespace, Name: name} }
	}

	if cfg.ClearedAfter == 0 {
		cfg.ClearedAfter = 2 * time.Second
	}

	e := &Engine{
		cfg: cfg, made: time.Now(), scans: node.NewActiveScanner(cfg.Store.ScanActive), trims: background.NewTrimmer(cfg.Store, cfg.Cluster, cfg.Now, cfg.Logger),
		metrics: node.NewMetrics(cfg.Registerer), patience: differenceTimeout, workers: map[int]*worker{}, preloads: map[int]*preload{},
		loads: make(slots, loadsAtOnce), preloadSlots: make(slots, preloadsAtOnce()), definitions: state.NewSharedDefinitions(), plans: state.NewFlowPlans(state.MaxFlowPlans),
	}
	e.ttlDeleter = background.NewDeleter(cfg.Store, e.metrics.Expired.Inc, cfg.Logger)
	e.reconciler = background.NewReconciler(cfg.Store, e.openShards, cfg.Logger)
	if cfg.Reconcile != 0 {
		e.reconciler.Period = cfg.Reconcile
	}

	e.pastRuns = background.NewPastReader(cfg.Store, cmp.Or(cfg.PastRate, background.DefaultPastRate), func() bool { return e.Overdue(cfg.Now(), readmodel.OverdueAfter) != nil }, cfg.Logger)
	e.sender = background.NewSender(background.SenderConfig{
		Store: cfg.Store, Ref: cfg.Ref, Now: cfg.Now, Overdue: func() bool { return e.Overdue(cfg.Now(), readmodel.OverdueAfter) != nil },
		CountSent: func(n int) { e.metrics.TriggersSent.Add(float64(n)) }, Logger: cfg.Logger,
	})
	e.pace = node.NewCatchUpLimiter(e.catchUpRate)
	e.scanLimit = node.NewScanLimiter()
	e.evaluator = evaluator.New(evaluator.Config{
		Store: cfg.Store, Shards: e.shardsToEvaluate, Rules: e.knownRules, Now: func() time.Time { return e.cfg.Now() }, MayWrite: func() error { return e.cfg.MayCommit() }, Logger: cfg.Logger,
	})
	node.RegisterNotEvaluated(cfg.Registerer, e.NotEvaluated)
	node.RegisterShards(cfg.Registerer, func() int { return cfg.Cluster().Shards })
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(newTaskCollector(e))
	}

	return e
}

// loadsAtOnce is how many shards a node loads at a time. That is enough to keep the processors and etcd
// busy, and few enough that the first shards fire soon and that a whole load is not in memory twice.
const loadsAtOnce = 4

// preloadsAtOnce is how many shards are preloaded at a time. Nobody waits for them, so they leave a processor
// to shards that are taken over meanwhile.
func preloadsAtOnce() int { return min(loadsAtOnce, max(1, runtime.GOMAXPROCS(0)/2)) }

// slots is a counting semaphore.
type slots chan struct{}

// acquireSlot waits for a place, or until ctx ends. The caller must call leave once to give the place back.
func (s slots) acquireSlot(ctx context.Context) (leave func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// catchUpRate returns this node's part of the cluster's catch-up rate, in runs per second. The part
// corresponds to its share of the shards, so all nodes together keep to the rate.
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

// Run runs what the shards share, until ctx ends or one of these parts fails.
func (e *Engine) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.scans.Run(ctx) })
	g.Go(func() error { return e.trims.Run(ctx) })
	g.Go(func() error { return e.sender.Run(ctx) })
	g.Go(func() error { return e.ttlDeleter.Run(ctx) })
	g.Go(func() error { return e.pastRuns.Run(ctx) })
	g.Go(func() error { return e.runHeartbeat(ctx) })
	g.Go(func() error { return e.reconciler.Run(ctx) })
	g.Go(func() error { return e.evaluator.Run(ctx) })

	return g.Wait()
}

// Work serves one shard under its fences until ctx ends. It returns task.ErrFenced if the shard or the
// session is lost, and store.ErrDamaged if the shard has no watermark. If Preload has loaded the shard,
// Work continues with that.
func (e *Engine) Work(ctx context.Context, shard int, f store.Fences) error {
	w := newWorker(e, shard, f)
	if p := e.takePreload(shard); p != nil {
		w = p.handOver(f)
	}

	e.mu.Lock()
	e.workers[shard] = w
	e.mu.Unlock()

	e.metrics.Shards.Inc()
	defer func() {
		e.metrics.Shards.Dec()
		w.releaseShared()
		e.mu.Lock()
		if e.workers[shard] == w { // a later call of Work may have replaced it
			delete(e.workers, shard)
		}
		e.mu.Unlock()
	}()

	return w.serveUntilDone(ctx)
}

// WakeWorkers makes all workers examine their waiting and active runs. Call it when nodes have come, gone or
// changed, and when freezes or the records of namespaces have changed.
func (e *Engine) WakeWorkers() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.workers {
		w.wakeUp()
	}
}

// Unreadable returns how many tasks in the node's shards have no ticks because their entries cannot be
// read.
func (e *Engine) Unreadable() int { return int(e.metrics.Unreadable.Load()) }

// NotEvaluated returns of how many tasks in the node's shards the alerts have not been evaluated for some time.
func (e *Engine) NotEvaluated() int { return e.evaluator.NotEvaluated() }

// knownRules returns the rules of alerts as they are known; nil: they are not known yet, or there are none.
func (e *Engine) knownRules() *alert.Rules {
	if e.cfg.AlertRules == nil {
		return nil
	}
	return e.cfg.AlertRules()
}

// shardsToEvaluate returns the shards that the node serves, for the evaluator.
func (e *Engine) shardsToEvaluate() (list []evaluator.Shard) {
	for _, w := range e.sortedWorkers() {
		if served := w.served.Load(); served != nil {
			list = append(list, evaluator.Shard{ID: w.state.records.Shard, Index: served.index, Fences: w.state.fences, Opened: served.opened})
		}
	}

	return list
}

// Overdue returns an error if a shard has had an undecided tick for longer than age, or has been loading
// for longer than age. The error names one such shard.
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

// errReload means that changes of the shard may have been missed. The worker opens it again.
var errReload = errors.New("changes of the shard may have been missed")

// errStalled is the cause with which Restart ends what a worker does. The worker then opens its shard
// again.
var errStalled = errors.New("the worker made no progress although a tick is due")

// progress is when something last made progress: a shard was opened, a page of it was loaded, or a commit
// succeeded. at is the time since the engine was created in nanoseconds, on the monotonic clock.
type progress struct{ at atomic.Int64 }

// idleTime returns the time since the last progress.
func (e *Engine) idleTime(p *progress) time.Duration {
	return time.Since(e.made) - time.Duration(p.at.Load())
}

// noteProgress records progress of the worker and of the engine.
func (w *worker) noteProgress() {
	now := int64(time.Since(w.e.made))
	w.progress.at.Store(now)
	w.e.progress.at.Store(now)
}

// Stalled returns the shards that have had an undecided tick for longer than age and whose worker has made
// no progress for as long. The caller should restart them. all is not nil if, in addition, no worker of the
// engine has made progress for as long. Stalled does not know whether etcd accepts commits at all; the
// caller must check that.
func (e *Engine) Stalled(now time.Time, age time.Duration) (shards []int, all error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	for id, w := range e.workers {
		since := w.undecided.Load()
		if since == 0 || now.Sub(time.UnixMilli(since)) <= age || e.idleTime(&w.progress) <= age {
			continue
		}

		if w.serving.Load() { // others wait for their turn to load, or for the scan
			shards = append(shards, id)
		}

		if quiet := e.idleTime(&e.progress); quiet > age {
			all = fmt.Errorf("shard %d has an undecided tick of %s, and no shard was committed to for %s", id,
				task.At(time.UnixMilli(since)).Format(time.RFC3339), quiet.Round(time.Second))
		}
	}

	return shards, all
}

// Restart makes the worker of a shard drop what it is doing and open the shard again. It returns at once.
// It does nothing if the node does not own the shard.
func (e *Engine) Restart(shard int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := e.workers[shard]; w != nil {
		if stop := w.stop.Load(); stop != nil {
			(*stop)(errStalled)
		}
	}
}

// Beats returns a counter that grows once a second while the engine is running and its lock is free.
func (e *Engine) Beats() int64 { return e.beats.Load() }

// runHeartbeat increments Beats. It takes the engine's lock each time, so a lock that is never released
// stops the counter.
func (e *Engine) runHeartbeat(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		e.mu.Lock()
		e.beats.Add(1)
		e.mu.Unlock()

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Store is everything that a scheduler needs of the store. Each of its parts has its own interface,
// for the code that needs it.
type Store interface {
	shardFollower
	committer
	attemptReader
	background.ListingStore
	recordReader
	planReader
	background.PastStore
	background.HistoryTrimmer
	background.TriggerStore
	background.TaskExpirer
	evaluator.Store
}

// shardFollower reads a shard and follows its changes. See store.Shards for the methods.
type shardFollower interface {
	Keys() record.Keys
	FollowShard(ctx context.Context, shard int, rev int64, apply func(store.ShardBatch) error) error
	FollowStandbyShard(ctx context.Context, shard int, marks func() bool, apply func(store.ShardBatch) error) error
	Queue(ctx context.Context, shard int) ([]store.ShardEvent, error)
}

// committer writes as the owner of a shard.
type committer interface {
	commitMaker
	Open(ctx context.Context, shard int, f store.Fences) (record.Watermark, int64, error)
	Commit(ctx context.Context, c *store.Commit) (int64, error)
}

// attemptReader reads which attempts are active, and which instances are proved dead.
type attemptReader interface {
	ScanActive(ctx context.Context) ([]store.ActiveKey, int64, error)
	Sightings(ctx context.Context, runs []record.RunKey) ([]store.Sighting, error)
	Cleared(ctx context.Context, instance string) (bool, error)
}

// recordReader reads records of a shard again, to compare them with what a watch has delivered.
type recordReader interface {
	RecordsNow(ctx context.Context, keys []string) ([]store.ShardEvent, error)
}

// served is what queries read of a shard that is open.
type served struct {
	index  *readmodel.Index
	watch  *background.Feed
	opened time.Time
}

// Ask answers a query for the shards that this node owns, apart from those in without. A shard that is being opened is
// left out. It returns *readmodel.Busy if queries take as much of the node's processors as they may.
func (e *Engine) Ask(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
	e.awaitApplied(ctx, q.MinRevisions)

	scan := readmodel.NewScan(q, e.cfg.Node)
	add := func(s readmodel.ShardAnswer, x *readmodel.Index) bool {
		if x.HasApplied(q.MinRevisions[s.Shard]) {
			scan.Add(s, x)
		}
		return true
	}

	var err error
	if q.Filter.MatchesNothing() || q.Runs != nil {
		err = e.eachServed(ctx.Err, without, false, add) // it visits no rows, and costs little more than an answer that the node is busy
	} else {
		err = e.EachIndex(ctx, q.Subject, without, add)
	}

	answer := scan.Answer()
	if answer.Board != nil {
		e.addToBoard(answer.Board, q, without)
	}

	return answer, err
}

// addToBoard adds to a board what no row shows: the shards that make no progress, and the counts of the last minute.
func (e *Engine) addToBoard(b *readmodel.BoardAnswer, q *readmodel.Query, without []int) {
	if q.Filter.Namespace == "" && q.Filter.Within == nil {
		b.Tally = e.recent.Tally(e.cfg.Now())
	}

	now := e.cfg.Now()
	for _, w := range e.sortedWorkers() {
		if slices.Contains(without, w.state.records.Shard) {
			continue
		}

		// A worker that is busy with many late ticks makes progress.
		loading := !w.serving.Load()
		since := state.Instant(w.undecided.Load())
		if since.UnixMilli() > 0 && now.Sub(since) > readmodel.OverdueAfter && (loading || e.idleTime(&w.progress) > readmodel.OverdueAfter) {
			b.Lists.Stuck = append(b.Lists.Stuck, task.BoardShard{ID: w.state.records.Shard, Node: e.cfg.Node, Since: task.At(since), Loading: loading})
		}
	}
}

const (
	// applyTimeout is how long a question waits until shards have applied the revisions that it needs. A watch usually
	// delivers a change within milliseconds, but a worker may be in the middle of a commit.
	applyTimeout = 500 * time.Millisecond
	// applyPause is how long a question waits between two looks.
	applyPause = 5 * time.Millisecond
)

// awaitApplied waits until the shards of this node have applied some revisions, at most for applyTimeout.
func (e *Engine) awaitApplied(ctx context.Context, revisions map[int]int64) {
	deadline := time.Now().Add(applyTimeout)

	for shard, revision := range revisions {
		for e.isBehind(shard, revision) && time.Now().Before(deadline) {
			if !clock.Sleep(ctx, applyPause) {
				return
			}
		}
	}
}

// isBehind reports whether this node answers for a shard that has not applied a revision yet.
func (e *Engine) isBehind(shard int, revision int64) bool {
	e.mu.Lock()
	w := e.workers[shard]
	e.mu.Unlock()

	if w == nil {
		return false
	}

	served := w.served.Load()

	return served != nil && !served.index.HasApplied(revision)
}

// A scan yields the processor after yieldRows rows, at the end of a shard: after about a fifth of a millisecond.
const yieldRows = 4096

// EachIndex calls visit with the index of each shard that this node owns, apart from those in without, in the order of
// the shards. The answer that it passes has no counts. A shard that is being opened is left out. visit scans the index;
// if it returns false, EachIndex ends. subject is who asks.
//
// EachIndex returns *readmodel.Busy if queries take as much of the node's processors as they may.
func (e *Engine) EachIndex(ctx context.Context, subject string, without []int, visit func(readmodel.ShardAnswer, *readmodel.Index) bool) error {
	end, retry, err := e.scanLimit.Begin(ctx, subject)
	if err != nil {
		return err
	}
	if end == nil {
		return &readmodel.Busy{Node: e.cfg.Node, RetryAfter: retry}
	}
	defer end()

	return e.eachServed(ctx.Err, without, true, visit)
}

// eachServed is EachIndex without a limit of what queries take. It ends when isOver returns an error. scans is set if visit scans rows.
func (e *Engine) eachServed(isOver func() error, without []int, scans bool, visit func(readmodel.ShardAnswer, *readmodel.Index) bool) error {
	unyielded := 0 // rows since others were let in between
	for _, w := range e.sortedWorkers() {
		served := w.served.Load()
		if served == nil || slices.Contains(without, w.state.records.Shard) {
			continue
		}

		if err := isOver(); err != nil {
			return err
		}

		// A scan needs no more than a part of a millisecond for a shard, but many of them follow. Let others in between. The
		// scan is bound to its thread, so each yield costs some 10 µs, which are charged to the scan, and on a busy host a wait
		// for a processor. For small shards, that would be as much as the scan itself, so several of them share one.
		size := served.index.Size()
		if unyielded += size.Rows; scans && unyielded >= yieldRows {
			runtime.Gosched()
			unyielded = 0
		}

		answer := readmodel.ShardAnswer{
			Shard: w.state.records.Shard, Owner: w.state.fences.Owner.ModRevision, AgeMS: served.watch.Age().Milliseconds(), Rows: size.Rows, Unread: size.Unread,
		}
		if !visit(answer, served.index) {
			return nil
		}
	}

	return nil
}

// Collected returns for how many tasks of this node it is known how their last run ended, and how many tasks there are.
// It does not count shards that are being opened.
func (e *Engine) Collected() (known, tasks int) {
	for _, w := range e.sortedWorkers() {
		if served := w.served.Load(); served != nil {
			size := served.index.Size()
			known, tasks = known+size.Rows-size.Unread, tasks+size.Rows
		}
	}

	return known, tasks
}

// sortedWorkers returns the workers of this node, ordered by shard.
func (e *Engine) sortedWorkers() []*worker {
	e.mu.Lock()
	defer e.mu.Unlock()

	list := make([]*worker, 0, len(e.workers))
	for _, w := range e.workers {
		list = append(list, w)
	}

	slices.SortFunc(list, func(a, b *worker) int { return a.state.records.Shard - b.state.records.Shard })

	return list
}
