package scheduler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/scheduler/known"
	"github.com/carillonhq/carillon/pkg/scheduler/reconcile"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
)

// A review is what another goroutine of the node has read of a shard, or a request to repair what differed from it.
//
// A difference between a listing and the worker's state may be an event that is still on its way. So it is checked
// again a while later, and repaired only if it is still the same: then the watch has lost the event.
type review interface {
	// reviewBy compares the review with the worker's state, on the worker's goroutine. It returns an error only if
	// the shard must be opened again.
	reviewBy(ctx context.Context, w *worker) error
}

// differencePatience is how long a difference between etcd and a worker may be an event on its way.
const differencePatience = 10 * time.Second

// offerReview passes a review to the worker. It does not block, and returns false if the worker is busy
// with others.
func (w *worker) offerReview(r review) bool {
	select {
	case w.reviews <- r:
		return true
	default:
		return false
	}
}

// openShards returns the shards whose workers serve them, ordered by shard, for the reconciler.
func (e *Engine) openShards() []reconcile.Shard {
	e.mu.Lock()
	defer e.mu.Unlock()

	var list []reconcile.Shard
	for _, w := range e.workers {
		if w.serving.Load() {
			list = append(list, reconcile.Shard{ID: w.state.Shard, Owner: w})
		}
	}

	slices.SortFunc(list, func(a, b reconcile.Shard) int { return a.ID - b.ID })

	return list
}

// Openings, CompareRecords, CompareRuns and CompareHistory implement reconcile.Owner.
func (w *worker) Openings() int64 { return w.openings.Load() }

func (w *worker) CompareRecords(keys []store.ShardEvent, rev int64) bool {
	return w.offerReview(recordListing{keys, rev})
}

func (w *worker) CompareRuns(runs []store.ActiveKey, rev int64) bool {
	return w.offerReview(runListing{runs, rev})
}

func (w *worker) CompareHistory(page []store.ShardEvent) bool {
	return w.offerReview(historyPage(page))
}

// recordListing is a listing of all keys of the shard, without its history.
type recordListing struct {
	keys []store.ShardEvent // without values
	rev  int64              // the revision of the listing
}

func (r recordListing) reviewBy(ctx context.Context, w *worker) error {
	// Earlier differences must be settled first.
	if w.recordDiffs.NotEmpty() {
		return w.repairOverdue(ctx, w.recordDiffs, overdueRecords{})
	}

	w.recordDiffs = known.Differences{Records: w.state.DifferingRecords(r.keys, r.rev)}
	w.scheduleRepair(&w.recordDiffs, overdueRecords{})

	return nil
}

// runListing is a listing of all active attempts of the shard.
type runListing struct {
	runs []store.ActiveKey
	rev  int64 // the revision of the listing
}

func (r runListing) reviewBy(ctx context.Context, w *worker) error {
	// Earlier differences must be settled first.
	if w.runDiffs.NotEmpty() {
		return w.repairOverdue(ctx, w.runDiffs, overdueRuns{})
	}

	w.runDiffs = w.state.DifferingRuns(r.runs, r.rev)
	w.scheduleRepair(&w.runDiffs, overdueRuns{})

	return nil
}

// scheduleRepair schedules the repair of differences for when they have persisted for long enough.
func (w *worker) scheduleRepair(d *known.Differences, repair review) {
	if d.NotEmpty() {
		d.Since = time.Now()
		time.AfterFunc(w.e.patience, func() { w.offerReview(repair) })
	}
}

// repairOverdue repairs differences whose time has come but whose scheduled repair was dropped because the
// worker was busy.
func (w *worker) repairOverdue(ctx context.Context, d known.Differences, repair review) error {
	if time.Since(d.Since) < w.e.patience {
		return nil
	}
	return repair.reviewBy(ctx, w)
}

// overdueRecords requests the repair of records that have differed for long enough.
type overdueRecords struct{}

// reviewBy applies the records that still differ, as etcd holds them now. It returns errReload if the
// watermark belongs to another writer.
func (overdueRecords) reviewBy(ctx context.Context, w *worker) error {
	repair := w.state.RepairRecords(w.recordDiffs)
	w.recordDiffs = known.Differences{}

	keys := repair.Keys()
	if len(keys) == 0 {
		return nil
	}

	events, err := w.e.cfg.Store.RecordsNow(ctx, keys)
	if err != nil {
		return w.ignoreRetryable(err)
	}

	for _, ev := range events {
		switch repair.Judge(&ev) {
		case known.ForeignWatermark:
			// A watermark that this worker did not write means that another worker has opened the shard.
			w.countRepair("the watermark", ev.Key)
			return fmt.Errorf("%w: the watermark is another's", errReload)
		case known.ApplyRecord:
			w.countRepair("a record", ev.Key)
			w.applyToShard(store.ShardBatch{Events: []store.ShardEvent{ev}})
		}
	}

	w.requestMissingPast()

	return nil
}

// overdueRuns requests the repair of active attempts that have differed for long enough.
type overdueRuns struct{}

// reviewBy ends the attempts that are no longer active in etcd, and adds those that are active only there.
func (overdueRuns) reviewBy(ctx context.Context, w *worker) error {
	repair := w.state.RepairRuns(w.runDiffs)
	w.runDiffs = known.Differences{}

	if len(repair.Keys) == 0 {
		return nil
	}

	found, err := w.e.cfg.Store.Sightings(ctx, repair.Keys)
	if err != nil {
		return w.ignoreRetryable(err)
	}

	// An attempt that ended with a retry leaves the run active. So the queue is read before the end is
	// applied (G8).
	if repair.MayEnd() {
		if err := w.readQueue(ctx); err != nil {
			return w.ignoreRetryable(err)
		}
	}

	for i, v := range found {
		k := repair.Keys[i]

		if t, a := repair.Ended(i, v); a != nil {
			w.countRepair("an end", k.Run)
			w.state.applyAttemptEnd(t, a.Run, v.Revision+1)
			w.state.retrySetAside(t)
			w.state.rows.DoubtPast(t, w.e.cfg.Now())
		}

		if repair.Added(i, v) {
			w.countRepair("an attempt", k.Run)
			t := w.state.TaskNamed(k.Ref.String())
			w.state.addFoundAttempt(t, taskstate.Attempt{Run: k.Run, Node: k.Node, Create: v.Create})
			w.state.examineNext(t)
			w.state.retrySetAside(t)
		}
	}

	w.requestMissingPast()

	return nil
}

// historyPage is one page of the keys of the shard's history.
type historyPage []store.ShardEvent

// reviewBy has the records of tasks that no longer exist deleted.
func (r historyPage) reviewBy(ctx context.Context, w *worker) error {
	orphans := w.state.FindOrphans(r, w.state.applied)
	if len(orphans.Entries) == 0 {
		return nil
	}

	entries, err := w.e.cfg.Store.RecordsNow(ctx, orphans.Entries)
	if err != nil {
		return w.ignoreRetryable(err)
	}

	n := 0
	for i := range entries {
		for _, ev := range orphans.Of(&entries[i]) {
			w.state.purges[ev.Key] = ev.Mod
			n++
		}
	}

	if n > 0 {
		w.log.Info("deleting the history of deleted tasks", zap.Int("records", n))
	}

	return nil
}

// countRepair counts and logs a difference that the watch should have reported.
func (w *worker) countRepair(what, key string) {
	w.e.metrics.Repairs.Inc()
	w.log.Warn("repaired changes that a watch had missed", zap.String("what", what), zap.String("key", key), zap.Int64("rev", w.state.applied))
}

// ignoreRetryable logs an error and drops it: the next comparison finds the differences again.
func (w *worker) ignoreRetryable(err error) error {
	w.log.Debug("could not reconcile", zap.Error(err))
	return nil
}
