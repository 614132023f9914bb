// Package evaluator opens and closes the alerts of the tasks whose shards a node owns. Package alert decides; this package finds
// the tasks whose alerts may have to change, reads their records, and writes.
//
//	rows of a shard (readmodel.Index)     etcd
//	   │ every 5 s: does a row differ        ▲        │
//	   │ from what the alerts say?           │        │ all records of the task at one revision R
//	   ▼                                     │        ▼
//	tasks to read, at most 1,000 a second ───┘     alert.Evaluate, alert.Decide
//	                                                  │
//	   alerts/… ◄─────────────────────────────────────┘ unless something is newer than R
//
// # Guarantees
//
// A record says what was so at the revision of its transaction (G57): it compares the fences of the shard, the freezes, the entry,
// everything in the history and among the dead runs of the task, and its own former version. A row alone never opens or closes an alert.
//
// An expectation that is not met has an alert, or is counted, within a minute and the time for the tasks that are read before it
// (G58), if its shard has an owner that knows how runs have ended. A shard has at most 50 open alerts of a namespace for a receiver.
// Further ones are counted in one record for each receiver ("~more"), until there is room again.
//
// # Keys
//
// The package writes alerts/<shard>/…, through store.Alerts.
//
// # Failures
//
// Records are states, so a takeover, a lost write or an unknown outcome needs no repair: the next visit finds the difference.
// While etcd is full, nothing opens or closes. While the clock cannot be trusted, nothing is judged. Whoever runs an Evaluator
// announces NotEvaluated, so that somebody is told about tasks that are not evaluated.
package evaluator

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// visitEvery is how often the rows of a shard are compared with its alerts if they have changed.
	visitEvery = 5 * time.Second
	// visitIdleEvery is how often they are compared if only time has passed.
	visitIdleEvery = 15 * time.Second
	// tasksPerSecond is how many tasks are read in a second, at most.
	tasksPerSecond = 1000
	// tasksPerVisit is how many tasks are read before rows are compared again.
	tasksPerVisit = int(visitEvery/time.Second) * tasksPerSecond
	// writesAtOnce is how many records are written in parallel, so that they share requests to etcd.
	writesAtOnce = 16

	// unread is for how many minutes a task may have no verdict before it counts as not evaluated.
	maxUnreadMinutes = 5
	// maxUnknownMinutes is the same for tasks whose records were read and did not tell.
	maxUnknownMinutes = 15
)

// Store reads what is evaluated, and writes alerts. See store.Alerts for the methods.
type Store interface {
	AlertsOfShards(ctx context.Context, shards []int) (map[int][]task.Alert, error)
	ReadToEvaluate(ctx context.Context, refs []record.Ref, readsDead bool) (store.AlertReading, error)
	RecordsAt(ctx context.Context, keys []string, rev int64) ([]store.ShardEvent, error)
	ActiveRunsAt(ctx context.Context, ref record.Ref, rev int64, inboxes []store.InboxRun) ([]store.ActiveRecord, bool, error)
	AlertFactsAt(ctx context.Context, ref record.Ref, rev int64, facts *store.AlertFacts) error
	PutAlert(ctx context.Context, f store.Fences, w *store.AlertWrite) (int64, error)
	PutMoreAlerts(ctx context.Context, f store.Fences, shard int, a task.Alert) (int64, error)
	DeleteAlerts(ctx context.Context, f store.Fences, shard int, alerts []task.Alert) error
}

// Shard is a shard that the node serves.
type Shard struct {
	ID     int
	Index  *readmodel.Index // another one after each opening
	Fences store.Fences
	Opened time.Time
}

// Config is the configuration of an Evaluator. All fields but Rules are required.
type Config struct {
	Store  Store
	Shards func() []Shard      // the shards that the node serves
	Rules  func() *alert.Rules // what is expected of tasks without alerts of their own, as far as it is known. It may return nil while it is not known, and be nil if there are none
	Now    func() time.Time    // the time by which ticks are decided
	// MayWrite returns an error while the node must not decide anything, because its clock cannot be trusted.
	MayWrite func() error
	Logger   *zap.Logger
}

// Evaluator evaluates the tasks of a node. Only Run uses its fields, except for the atomic ones.
type Evaluator struct {
	cfg    Config
	shards map[int]*shardAlerts

	rules *alert.Rules // those of this visit

	made         time.Time
	visited      atomic.Int64 // when the last visit ended, in nanoseconds since made on the monotonic clock
	notEvaluated atomic.Int64 // of the last visit
}

// New returns an Evaluator. It does nothing until Run is called.
func New(cfg Config) *Evaluator {
	return &Evaluator{cfg: cfg, shards: map[int]*shardAlerts{}, made: time.Now()}
}

// Run evaluates until ctx ends, and returns its error.
func (e *Evaluator) Run(ctx context.Context) error {
	for {
		began := time.Now()
		if err := e.cfg.MayWrite(); err == nil {
			e.visitShards(ctx)
		}

		if !clock.Sleep(ctx, visitEvery-time.Since(began)) {
			return ctx.Err()
		}
	}
}

// NotEvaluated returns of how many tasks something is expected without a verdict for five minutes, or for fifteen although their
// records were read. If no visit has ended for five minutes, these are all. Any goroutine may call it.
func (e *Evaluator) NotEvaluated() int {
	idle := time.Since(e.made) - time.Duration(e.visited.Load())
	if idle <= maxUnreadMinutes*time.Minute {
		return int(e.notEvaluated.Load())
	}

	n := 0
	for _, s := range e.cfg.Shards() {
		n += s.Index.Watched()
	}

	return n
}

// visitShards compares the rows of all shards with their alerts, and evaluates the tasks that differ.
func (e *Evaluator) visitShards(ctx context.Context) {
	e.updateShards()
	if !e.loadAlerts(ctx) {
		return
	}

	e.applyRules()

	now := e.cfg.Now()
	var line queue
	for _, s := range e.shards {
		s.visit(now, &line)
	}

	e.evaluateTasks(ctx, line.inTurn(tasksPerVisit))

	notEvaluated := 0
	for _, s := range e.shards {
		e.writeMore(ctx, s)
		e.deleteClosed(ctx, s)
		notEvaluated += s.notEvaluated
	}

	if ctx.Err() == nil {
		e.notEvaluated.Store(int64(notEvaluated))
		e.visited.Store(int64(time.Since(e.made)))
	}
}

// applyRules applies the rules to the rows of the shards if they have changed. Nothing is done while there have never been any.
func (e *Evaluator) applyRules() {
	if e.cfg.Rules == nil { // in tests
		return
	}
	if e.rules = e.cfg.Rules(); e.rules == nil {
		return
	}

	for _, s := range e.shards {
		if !e.rules.IsSame(s.rules) && (s.rules != nil || !e.rules.AreNone()) {
			s.Index.SetRules(e.rules)
			s.rules = e.rules
		}
	}
}

// updateShards forgets shards that the node does not serve any more, and begins with those that were opened since.
func (e *Evaluator) updateShards() {
	served := e.cfg.Shards()

	isServed := make(map[int]bool, len(served))
	for _, s := range served {
		isServed[s.ID] = true
		if known := e.shards[s.ID]; known == nil || known.Index != s.Index {
			e.shards[s.ID] = newShardAlerts(s)
		}
	}

	for id := range e.shards {
		if !isServed[id] {
			delete(e.shards, id)
		}
	}
}

// loadAlerts reads the alerts of the shards that were opened since the last visit, and of those whose alerts may be others than is
// known. It returns false if it cannot read them.
func (e *Evaluator) loadAlerts(ctx context.Context) bool {
	now := e.cfg.Now()
	var wanted []int
	for id, s := range e.shards {
		if !s.isLoaded || now.Sub(s.loadedAt) >= refreshEvery {
			wanted = append(wanted, id)
		}
	}
	if len(wanted) == 0 {
		return true
	}

	found, err := e.cfg.Store.AlertsOfShards(ctx, wanted)
	if err != nil {
		e.cfg.Logger.Debug("could not read alerts", zap.Error(err))
		return false
	}

	for id, alerts := range found {
		e.shards[id].load(alerts, now)
	}

	return true
}
