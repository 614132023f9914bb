package scheduler

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// worker serves one shard under one pair of fences. It drives the shard's state machine (shardState): it
// delivers events, requests plans, commits them and reports the results. Only its own goroutine, which
// calls serveUntilDone, accesses the state. Other goroutines use the atomic fields and the channels.
type worker struct {
	state shardState

	e   *Engine
	log *zap.Logger
	// wakeSignal wakes the worker so that it examines all tasks with waiting or active runs. It has one slot.
	wakeSignal wake.Signal

	// undecided is the due time of the first undecided tick in Unix milliseconds, which may be in the
	// future, or 0 if there is none. While the shard is being loaded, it is the time since which no tick
	// has been decided. Overdue and Stalled read it.
	undecided atomic.Int64
	// serving is true from the first round after an opening until the next opening.
	serving atomic.Bool
	// progress is when the worker last opened the shard, loaded a page or committed.
	progress progress
	// stop ends the current call of openAndServe. Restart calls it with errStalled.
	stop atomic.Pointer[context.CancelCauseFunc]

	// preloaded is a watch of a shard that was loaded before this node owned it. The first opening
	// continues with it. It is nil if there is none, and after that opening.
	preloaded *background.Feed
	// stopTellingWatermark is closed when the preloaded watch no longer has to report changes of the
	// watermark.
	stopTellingWatermark chan struct{}

	// batches delivers the events of the shard's watch during the current serving.
	batches <-chan store.ShardBatch
	// reviews holds what was read of the shard, for comparison with the worker's state. It has four slots.
	reviews chan review
	// recordDiffs and runDiffs are differences that the latest comparisons found, of records and of active
	// attempts. They are repaired if they persist (see review).
	recordDiffs state.Differences
	runDiffs    state.Differences
	// lookedAt is when the worker last asked the sender to look at the sources of the shard.
	lookedAt time.Time
	// openings counts the openings that got as far as the scan. The reconciler uses it to detect a new
	// opening.
	openings atomic.Int64
	// served is what queries read. It is nil while the shard is being opened.
	served atomic.Pointer[served]
	// published is this shard's current contribution to the node's gauges.
	published published
}

// newWorker returns a worker for a shard under fences f. It does no I/O. A worker that preloads a shard has
// empty fences until it is handed over.
func newWorker(e *Engine, shard int, f store.Fences) *worker {
	w := &worker{
		e: e, log: e.cfg.Logger.With(zap.Int("shard", shard)),
		wakeSignal: wake.NewSignal(), reviews: make(chan review, 4),
	}
	w.state = shardState{records: state.Records{Shard: shard, Keys: e.cfg.Store.Keys()}, fences: f, reopenedFor: map[string]bool{}, ports: ports{
		node: e.cfg.Node, commits: e.cfg.Store, definitions: e.definitions, plans: e.plans,
		placement: e.cfg.Fleet, tokens: e.pace.NewShare(), trims: e.trims, sends: e.sender, ends: &e.recent,
		nextAttempt: e.cfg.NextAttempt, clearedAfter: e.cfg.ClearedAfter,
		random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	}}
	w.progress.at.Store(int64(time.Since(e.made)))
	w.undecided.Store(e.cfg.Now().UnixMilli())

	return w
}

// wakeUp makes the worker examine all tasks with waiting or active runs. It does not block, and any
// goroutine may call it. Several calls before the worker responds have the effect of one.
func (w *worker) wakeUp() {
	w.wakeSignal.Send()
}

// serveUntilDone serves the shard until ctx ends or the shard cannot be served any more. It opens the shard again
// after a stall, after changes may have been missed, after another writer moved the watermark, and while
// etcd is unavailable. It returns all other errors, such as task.ErrFenced and store.ErrDamaged.
func (w *worker) serveUntilDone(ctx context.Context) error {
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
			// An unknown outcome needs no special treatment here. The next opening writes the watermark, so a
			// delayed copy of the commit fails. If the commit was applied, the load returns its result (G3).
			if !clock.Sleep(ctx, 200*time.Millisecond) {
				return ctx.Err()
			}
		default:
			return err
		}
	}
}

// serveUntilStopped calls openAndServe under a context that Restart can cancel. In that case it returns
// errStalled instead, so that serveUntilDone opens the shard again.
func (w *worker) serveUntilStopped(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	w.stop.Store(&stop)
	err := w.openAndServe(ctx)

	if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
		return cause
	}

	return err
}

// openAndServe opens the shard, loads it and decides its ticks until an error ends that.
//
// The new owner key already rejects commits of a former owner. The opening also rejects commits of an
// earlier worker on this node, which had the same owner key and session. Whatever was applied before the
// opening is in the state that is loaded next, so no tick is decided twice (G3). See "Takeover" in
// docs/internals/scheduler.md.
func (w *worker) openAndServe(ctx context.Context) error {
	if p := w.preloaded; p != nil {
		w.preloaded = nil
		return w.serveLoaded(ctx, p)
	}

	w.discardState()

	// Step 1: write the watermark with a new nonce. From revision rev on, only this worker can commit.
	opened := time.Now()
	mark, rev, err := w.e.cfg.Store.Open(ctx, w.state.records.Shard, w.state.fences)
	if err != nil {
		return err
	}

	w.e.metrics.Opens.Inc()
	w.noteProgress()
	w.state.records.Watermark, w.state.records.WatermarkRev = mark, rev
	w.noteOpening(mark)

	// Step 2: request the scan for active attempts. It begins after the opening, so no earlier owner can
	// dispatch an attempt that the scan misses (G8). One scan serves all shards that are opened at about
	// the same time.
	scan, err := w.e.scans.Ask(ctx)
	if err != nil {
		return err
	}

	// Step 3: load the shard as of rev. Only a few shards are loaded at a time (loadsAtOnce).
	leave, err := w.e.loads.acquireSlot(ctx)
	if err != nil {
		return err
	}

	f := background.StartFeed(ctx, func(ctx context.Context, apply func(store.ShardBatch) error) {
		_ = w.e.cfg.Store.FollowShard(ctx, w.state.records.Shard, rev, apply) // ends with ctx
	})

	defer f.Stop()
	f.LoadedAsOf(opened)

	err = w.loadShard(ctx, f.Batches)
	leave()
	if err != nil {
		return err
	}

	if w.state.applied > rev {
		// etcd has compacted rev, so the shard was loaded at a later revision. The watch does not report
		// the attempts that ended in between, so the scan must begin after that revision. Otherwise it
		// could return an attempt that has ended already.
		if scan, err = w.e.scans.Ask(ctx); err != nil {
			return err
		}
	}

	return w.runLoop(ctx, f, scan)
}

// discardState discards the shard's state before a load. It also gives back what the worker had reserved of shared
// resources, and withdraws its contribution to the gauges.
func (w *worker) discardState() {
	w.releaseShared()
	w.serving.Store(false)

	// Time without decisions counts from the earlier of now and the first undecided tick. A tick in the
	// future must not make the shard look healthy while it is being loaded.
	if now, since := w.e.cfg.Now().UnixMilli(), w.undecided.Load(); since == 0 || since > now {
		w.undecided.Store(now)
	}

	w.state.forgetTasks()
}

// releaseShared gives back what the worker holds of the resources that all workers of the node share: slots
// of nodes, its place in the line for catch-up tokens, and its part of the gauges. Queries leave the shard out
// from now on.
func (w *worker) releaseShared() {
	w.served.Store(nil)
	w.state.releaseAll()
	w.publishGauges()
}

// noteOpening records the watermark that the opening found.
func (w *worker) noteOpening(mark record.Watermark) { w.state.noteOpening(mark, w.e.cfg.Now()) }

// loadShard applies the pages of the shard, until the last one.
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

// applyBatch applies a batch of events. It returns errReload for the first page of a second load. Events
// may have been missed before that load, and a load does not contain the history. So an end of a run could
// be unknown, which only another opening with a scan repairs.
func (w *worker) applyBatch(b store.ShardBatch) error {
	if b.First && w.state.firstPageApplied {
		return errReload
	}

	w.state.firstPageApplied = true
	w.applyToShard(b)

	return nil
}

// applyToShard applies a batch of events, logs what the shard noticed, and requests what is missing for boards.
func (w *worker) applyToShard(b store.ShardBatch) {
	w.state.applyRecords(b, w.e.cfg.Now())
	w.logNotices()

	// The dead runs whose details were known may have been dismissed.
	if w.state.rows.NeedsExplanations() {
		w.requestPast()
	}
}

// applyScan applies the result of the scan, keys, after it has read the queue.
//
// The scan may be newer than the latest event of the watch. If an attempt ended in between and its retry
// waits in the queue, the scan does not contain the attempt, but the run is still active. So the queue is
// read again, at a revision after the scan. Waiting runs of a task that the watch has not reported yet are
// left to the watch: without its task, such a run would be treated as an orphan and deleted.
func (w *worker) applyScan(ctx context.Context, keys []store.ActiveKey) error {
	if err := w.readQueue(ctx); err != nil {
		return err
	}
	w.applyActiveScan(keys)
	return nil
}

// readQueue applies the current records of the queue and of ended parts, for tasks that are known. It
// changes nothing if it returns an error.
func (w *worker) readQueue(ctx context.Context) error {
	queue, err := w.e.cfg.Store.Queue(ctx, w.state.records.Shard)
	if err != nil {
		return err
	}

	for i := range queue {
		// Leave runs of unknown tasks to the watch (see applyScan).
		if t := w.state.records.Tasks.Get(queue[i].Task); t == nil || t.Orphan(queue[i].Run) {
			continue
		}

		if queue[i].Kind == record.KindPart {
			w.state.applyPart(&queue[i])
		} else {
			w.state.applyQueued(&queue[i], w.e.cfg.Now())
		}
	}

	return nil
}

// applyActiveScan applies the result of the scan for active attempts. Differences that were found before
// are discarded, because the load and the scan have replaced the state that they refer to.
func (w *worker) applyActiveScan(keys []store.ActiveKey) {
	w.state.applyActiveRuns(keys)
	w.recordDiffs, w.runDiffs = state.Differences{}, state.Differences{}
	w.openings.Add(1)
}
