package scheduler

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/scheduler/board"
	"github.com/carillonhq/carillon/pkg/scheduler/known"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// worker serves one shard under one pair of fences. Its goroutine alone touches
// its state; others poke it.
type worker struct {
	shardState

	e     *Engine
	log   *zap.Logger
	pokes chan struct{}

	// For readiness: since when there is something undecided, in Unix
	// milliseconds; 0 if nothing is. While the shard is loaded, since when.
	undecided atomic.Int64
	serving   atomic.Bool
	progress  progress
	stop      atomic.Pointer[context.CancelCauseFunc] // ends the present serving

	preloaded            *following    // what to go on with at the first opening; nil: nothing
	stopTellingWatermark chan struct{} // closed when what is followed need not tell of the watermark any more

	batches         <-chan store.ShardBatch // what the watch tells
	summaryRequests chan *board.Summary     // what of it is wanted for the board
	reviews         chan review             // what to compare with
	doubts          known.Differences       // what was found otherwise, of records
	runDoubts       known.Differences       // and of active attempts
	openings        atomic.Int64            // how often the shard was opened and scanned
	published       published               // what it has added to gauges
}

func newWorker(e *Engine, shard int, f store.Fences) *worker {
	w := &worker{
		e: e, log: e.cfg.Logger.With(zap.Int("shard", shard)),
		pokes: make(chan struct{}, 1), reviews: make(chan review, 4), summaryRequests: make(chan *board.Summary, 1),
	}
	w.shardState = shardState{Records: known.Records{Shard: shard, Keys: e.cfg.Store.Keys()}, fences: f, stubborn: map[string]bool{}, ports: ports{
		node: e.cfg.Node, commits: e.cfg.Store, definitions: e,
		placement: e.cfg.Fleet, tokens: e.pace.NewShare(), trims: e.trims, ends: &e.recent,
		nextAttempt: e.cfg.NextAttempt, clearedAfter: e.cfg.ClearedAfter,
		random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	}}
	w.progress.at.Store(int64(time.Since(e.made)))
	w.undecided.Store(e.cfg.Now().UnixMilli())

	return w
}

// wakeUp makes the worker look at all that waits.
func (w *worker) wakeUp() {
	select {
	case w.pokes <- struct{}{}:
	default:
	}
}

// run serves the shard, opening it again whenever changes may have been missed.
func (w *worker) run(ctx context.Context) error {
	for {
		err := w.serveUntilStopped(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errStalled):
			w.log.Warn("reopening the shard", zap.Error(err))
		case errors.Is(err, errReload), errors.Is(err, store.ErrMoved):
			w.log.Debug("reopening the shard", zap.Error(err))
		case errors.Is(err, task.ErrUnavailable), errors.Is(err, task.ErrUnknown):
			if !clock.Sleep(ctx, 200*time.Millisecond) {
				return ctx.Err()
			}
		default:
			return err
		}
	}
}

// serveUntilStopped is serve, which ends with errStalled if somebody finds that it
// stands still.
func (w *worker) serveUntilStopped(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	w.stop.Store(&stop)
	err := w.serve(ctx)

	if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
		return cause
	}

	return err
}

func (w *worker) reset() {
	w.releaseShared()
	w.serving.Store(false)

	// What was undecided stays so; a tick that was to come is no excuse.
	if now, since := w.e.cfg.Now().UnixMilli(), w.undecided.Load(); since == 0 || since > now {
		w.undecided.Store(now)
	}

	w.shardState.reset()
}

// releaseShared takes what the worker counted back from what the workers share.
func (w *worker) releaseShared() {
	w.releaseAll()
	w.publishGauges()
}

// serve opens the shard, loads it and serves it until something ends that.
//
// The new owner key has ended the commits of a former owner already. The opening ends those of an
// earlier worker on this node, which had the same owner key and session. What was applied before is
// in what is loaded next. See "Takeover" in docs/scheduler.md.
func (w *worker) serve(ctx context.Context) error {
	if p := w.preloaded; p != nil {
		w.preloaded = nil
		return w.serveLoaded(ctx, p)
	}

	w.reset()
	mark, rev, err := w.e.cfg.Store.Open(ctx, w.Shard, w.fences)
	if err != nil {
		return err
	}

	w.e.metrics.opens.Inc()
	w.noteProgress()
	w.Watermark, w.WatermarkRev = mark, rev
	w.noteOpening(mark)

	// One scan serves all shards that are opened together; asked for now, it has
	// begun after the opening.
	scan, err := w.e.scans.Ask(ctx)
	if err != nil {
		return err
	}

	leave, err := w.e.loads.acquire(ctx)
	if err != nil {
		return err
	}

	f := follow(ctx, func(ctx context.Context, apply func(store.ShardBatch) error) {
		_ = w.e.cfg.Store.FollowShard(ctx, w.Shard, rev, apply) // ends with ctx
	})

	defer f.stop()

	err = w.loadShard(ctx, f.batches)
	leave()
	if err != nil {
		return err
	}

	if w.applied > rev {
		// rev was compacted away, and the shard loaded as it was later: the ends in
		// between are not told, so the scan must have begun after them.
		if scan, err = w.e.scans.Ask(ctx); err != nil {
			return err
		}
	}

	return w.runLoop(ctx, f.batches, scan)
}

// applyToShard takes what has happened in the shard.
func (w *worker) applyToShard(b store.ShardBatch) {
	w.shardState.applyRecords(b, w.e.cfg.Now())
	w.logNotices()
}

// planRound decides what one commit can hold.
func (w *worker) planRound(now time.Time) *plan {
	return w.shardState.buildPlan(now, w.currentSettings())
}

// noteOpening notes what the shard's watermark was when it was opened.
func (w *worker) noteOpening(mark record.Watermark) { w.shardState.noteOpening(mark, w.e.cfg.Now()) }

// applyActiveScan takes the answer to the scan for active attempts. All earlier differences are known by it.
func (w *worker) applyActiveScan(keys []store.ActiveKey) {
	w.shardState.applyActiveRuns(keys)
	w.doubts, w.runDoubts = known.Differences{}, known.Differences{}
	w.openings.Add(1)
}

// loadShard takes the pages of the shard.
func (w *worker) loadShard(ctx context.Context, batches <-chan store.ShardBatch) error {
	for more := true; more; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-batches:
			if err := w.applyBatch(b); err != nil {
				return err
			}
			w.noteProgress()
			more = b.More
		}
	}

	return nil
}

// applyBatch applies a batch. A second load ends it: what it leaves out (history) may
// have told of an end.
func (w *worker) applyBatch(b store.ShardBatch) error {
	if b.First && w.firstPageApplied {
		return errReload
	}

	w.firstPageApplied = true
	w.applyToShard(b)

	return nil
}

// following is a shard that is being followed.
type following struct {
	batches <-chan store.ShardBatch
	cancel  context.CancelFunc
	ended   chan struct{}
}

// follow begins to follow; what happens comes by batches until end is called, or
// ctx ends.
func follow(ctx context.Context, how func(ctx context.Context, apply func(store.ShardBatch) error)) *following {
	ctx, cancel := context.WithCancel(ctx)
	batches := make(chan store.ShardBatch, 16)
	f := &following{batches: batches, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		how(ctx, func(b store.ShardBatch) error {
			select {
			case batches <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()

	return f
}

func (f *following) stop() {
	f.cancel()
	<-f.ended
}

func (w *worker) runLoop(ctx context.Context, batches <-chan store.ShardBatch, scan <-chan map[int][]store.ActiveKey) error {
	w.batches = batches
	timer := time.NewTimer(maxIdleSleep)
	defer timer.Stop()

	scanned := false // the scan for active attempts is in
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-batches:
			if err := w.applyBatch(b); err != nil {
				return err
			}
			if err := w.applyPending(batches); err != nil {
				return err
			}
		case keys := <-scan:
			scan, scanned = nil, true

			if err := w.applyScan(ctx, keys[w.Shard]); err != nil {
				return err
			}

			w.serving.Store(true)
			w.e.failures.Request(w.earlierFailures())
		case r := <-w.reviews:
			if scanned {
				if err := w.runReview(ctx, r); err != nil {
					return err
				}
			}
		case g := <-w.summaryRequests:
			w.addToBoard(g)
			continue
		case <-w.pokes:
			w.lookAtAll()
		case <-timer.C:
		}

		// An attempt that the former owner dispatched may not be known before the scan is in: overlap would
		// be decided without it.
		if !scanned {
			continue
		}
		if err := w.runRound(ctx); err != nil {
			return err
		}

		timer.Reset(w.sleepFor())
	}
}

// applyScan takes the answer to the scan. It may be newer than what the watch has
// told: of an attempt that the scan did not find any more, the retry waits in
// the queue already, and the run is active. So the queue is read after it. What
// waits for a task that the watch has yet to tell of is left to the watch: it
// would be taken for a record that nobody looks after, and purged.
func (w *worker) applyScan(ctx context.Context, keys []store.ActiveKey) error {
	if err := w.readQueue(ctx); err != nil {
		return err
	}
	w.applyActiveScan(keys)
	return nil
}

// readQueue takes what waits now, and the parts that have ended, of tasks that are
// known.
func (w *worker) readQueue(ctx context.Context) error {
	queue, err := w.e.cfg.Store.Queue(ctx, w.Shard)
	if err != nil {
		return err
	}

	for i := range queue {
		if t := w.Tasks[queue[i].Task]; t == nil || t.Orphan(queue[i].Run) {
			continue
		}

		if queue[i].Kind == record.KindPart {
			w.applyPart(&queue[i])
		} else {
			w.applyQueued(&queue[i], w.e.cfg.Now())
		}
	}

	return nil
}

// applyPending applies what else has come, so that a round sees all of it.
func (w *worker) applyPending(batches <-chan store.ShardBatch) error {
	for {
		select {
		case b := <-batches:
			if err := w.applyBatch(b); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// sleepFor is how long nothing is due, and publishes since when something is.
func (w *worker) sleepFor() time.Duration {
	now := w.e.cfg.Now()
	sleep := maxIdleSleep
	w.undecided.Store(0)

	if len(w.due) > 0 {
		due := w.due[0].DueAt()
		w.undecided.Store(due)
		sleep = min(sleep, taskstate.Instant(due).Sub(now))
	}

	if !w.wakes.IsZero() {
		sleep = min(sleep, w.wakes.Sub(now))
	}

	if w.restUntil != 0 {
		sleep = min(sleep, taskstate.Instant(w.restUntil).Sub(now))
	}

	if len(w.line.tasks) > 0 {
		sleep = min(sleep, w.line.turn.Sub(now))
	}

	return max(sleep, 0)
}
