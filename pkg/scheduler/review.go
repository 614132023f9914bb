package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/scheduler/failures"
	"github.com/carillonhq/carillon/pkg/scheduler/known"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// review is a listing of etcd that a worker compares with its own state, or a request to settle
// differences. Exactly one of shard, active, history and failed applies.
type review struct {
	rev int64 // the revision of the listing

	shard bool               // keys are all keys of the shard, without its history
	keys  []store.ShardEvent // without values

	active bool // runs are all active attempts of the shard
	runs   []store.ActiveKey

	// history is one page of the keys of the shard's history.
	history []store.ShardEvent

	// settle means that differences (of the shard or of active attempts) have persisted for long enough to
	// be repaired.
	settle bool

	// failed are tasks that were failing before the shard was opened.
	failed  *failures.Found
	opening int64 // the value of worker.openings when failed was requested
}

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

// earlierFailures returns a request for the tasks that were failing before this opening of the shard.
func (w *worker) earlierFailures() failures.Request {
	opening := w.openings.Load()

	return failures.Request{Shard: w.Shard, Deliver: func(found *failures.Found) bool {
		return w.offerReview(review{failed: found, opening: opening})
	}}
}

// runReview compares a listing with the worker's state. A difference may be an event that is still on its
// way. So it is checked again a while later, and repaired only if it is still the same: then the watch has
// lost the event. It returns an error only if the shard must be opened again.
func (w *worker) runReview(ctx context.Context, r review) error {
	switch {
	case r.failed != nil:
		// If the shard was opened again since, that opening has made a request of its own.
		if r.opening == w.openings.Load() {
			w.failures.Restore(r.failed, w.Tasks)
		}
	case r.settle:
		return w.repairDoubts(ctx, r)
	case r.shard:
		// Earlier differences must be settled first.
		if w.doubts.NotEmpty() {
			return w.overdueDoubts(ctx, w.doubts, r)
		}
		w.doubts = known.Differences{Records: w.DifferingRecords(r.keys, r.rev)}
		w.scheduleReview(&w.doubts, review{settle: true, shard: true})
	case r.active:
		if w.runDoubts.NotEmpty() {
			return w.overdueDoubts(ctx, w.runDoubts, r)
		}
		w.runDoubts = w.DifferingRuns(r.runs, r.rev)
		w.scheduleReview(&w.runDoubts, review{settle: true, active: true})
	default:
		return w.reviewHistory(ctx, r.history)
	}

	return nil
}

// scheduleReview schedules the repair of differences for when they have persisted for long enough.
func (w *worker) scheduleReview(d *known.Differences, then review) {
	if d.NotEmpty() {
		d.Since = time.Now()
		time.AfterFunc(w.e.reconciler.patience, func() { w.offerReview(then) })
	}
}

// overdueDoubts repairs differences whose time has come but whose scheduled review was dropped because the
// worker was busy.
func (w *worker) overdueDoubts(ctx context.Context, d known.Differences, r review) error {
	if time.Since(d.Since) < w.e.reconciler.patience {
		return nil
	}
	return w.repairDoubts(ctx, r)
}

// repairDoubts repairs the differences of records or of active attempts, depending on r.
func (w *worker) repairDoubts(ctx context.Context, r review) error {
	if r.shard {
		d := w.doubts
		w.doubts = known.Differences{}
		return w.repairRecords(ctx, d)
	}

	d := w.runDoubts
	w.runDoubts = known.Differences{}
	return w.repairRuns(ctx, d)
}

// repairRecords repairs the records that still differ, with what etcd holds now. It returns errReload if
// the watermark belongs to another writer.
//
// A repaired entry gets no ticks that the watermark has passed meanwhile. The watermark covers the entry,
// so these ticks count as decided, and deciding them could decide a tick twice (G3).
//
// A queue record is applied only if the task is known in its current version. Otherwise the run would look
// like one of a task that no longer exists, and would be deleted.
func (w *worker) repairRecords(ctx context.Context, d known.Differences) error {
	var keys []string

	// beside holds the keys of the entries of waiting runs that differ.
	beside := map[string]bool{}
	for key, mod := range d.Records {
		sk, ok := w.Keys.ParseShard(key)
		if !ok {
			continue
		}

		ev := store.ShardEvent{ShardKey: sk, Key: key, Task: sk.Ref.String(), Mod: mod}

		// The watch may have delivered the event since the comparison.
		if mod > 0 && w.LacksRecord(&ev) || mod == 0 && w.HasRecord(&ev) {
			keys = append(keys, key)
			if sk.Kind == record.KindQueued {
				beside[w.Keys.Entry(sk.Ref)] = true
			}
		}
	}

	if len(keys) == 0 {
		return nil
	}

	keys = slices.AppendSeq(keys, maps.Keys(beside))
	slices.Sort(keys)
	keys = slices.Compact(keys)

	// In reverse order, entries ("tasks/") come before queue records ("queue/").
	slices.Reverse(keys)

	events, err := w.e.cfg.Store.RecordsNow(ctx, keys)
	if err != nil {
		return w.ignoreRetryable(err)
	}

	entries := map[string]int64{} // by task: the mod revision, if it is there
	for _, ev := range events {
		mod, doubted := d.Records[ev.Key]

		if ev.Kind == record.KindEntry && !ev.Deleted {
			entries[ev.Task] = ev.Mod
		}

		t := w.Tasks[ev.Task]
		switch {
		case !doubted: // an entry that was read only because of a waiting run
		case ev.Kind == record.KindQueued && !ev.Deleted && entries[ev.Task] > 0 && (t == nil || t.Mod < entries[ev.Task]):
			// The task is unknown or older than its entry in etcd. The watch or the next comparison brings the
			// entry.
		case ev.Kind == record.KindWatermark:
			// A watermark that this worker did not write means that another worker has opened the shard.
			if w.WatermarkRev < ev.Mod {
				w.countRepair("the watermark", ev.Key)
				return fmt.Errorf("%w: the watermark is another's", errReload)
			}
		case ev.Deleted && mod == 0 && w.HasRecord(&ev), !ev.Deleted && ev.Mod == mod && w.LacksRecord(&ev):
			// Still the same difference: etcd has changed no further, and the watch has delivered nothing.
			w.countRepair("a record", ev.Key)
			w.applyToShard(store.ShardBatch{Events: []store.ShardEvent{ev}})
		}
	}

	return nil
}

// repairRuns repairs the active attempts that still differ.
func (w *worker) repairRuns(ctx context.Context, d known.Differences) error {
	var keys []record.RunKey
	ended := map[int]int{} // index in keys to index in d.Gone
	for i, a := range d.Gone {
		if slices.Contains(d.GoneOf[i].Active(), a) {
			ended[len(keys)] = i
			keys = append(keys, w.RunKey(d.GoneOf[i], a))
		}
	}

	for _, k := range d.Unknown {
		if w.AttemptOf(k) == nil {
			keys = append(keys, k.RunKey)
		}
	}

	if len(keys) == 0 {
		return nil
	}

	found, err := w.e.cfg.Store.Sightings(ctx, keys)
	if err != nil {
		return w.ignoreRetryable(err)
	}

	// An attempt that ended with a retry leaves the run active. So the queue is read before the end is
	// applied (G8).
	if len(ended) > 0 {
		if err := w.readQueue(ctx); err != nil {
			return w.ignoreRetryable(err)
		}
	}

	for at, v := range found {
		k := keys[at]

		if i, ok := ended[at]; ok {
			// The record is gone, or belongs to a later attempt. The end happened at or before the revision
			// of the reading.
			if a := d.Gone[i]; v.Gone || a.Create != 0 && v.Create != a.Create {
				w.countRepair("an end", k.Run)
				w.applyAttemptEnd(d.GoneOf[i], a.Run, v.Revision+1)
			}
			continue
		}

		// The attempt is still active, and still unknown.
		if i := slices.IndexFunc(d.Unknown, func(o store.ActiveKey) bool { return o.RunKey == k }); !v.Gone && d.Unknown[i].Create == v.Create && w.AttemptOf(d.Unknown[i]) == nil {
			w.countRepair("an attempt", k.Run)
			t := w.TaskNamed(k.Ref.String())
			w.addActiveAttempt(t, &taskstate.Attempt{Run: k.Run, Node: k.Node, Create: v.Create})
			w.placement.Occupy(k.Node)
			w.addLook(t)
		}
	}

	return nil
}

// reviewHistory finds history records of tasks that no longer exist, and has them deleted. It judges only
// records that the watch should have reported already. It reads the entries again before that, because a
// deleted record cannot be restored.
func (w *worker) reviewHistory(ctx context.Context, page []store.ShardEvent) error {
	var entries []string

	// orphans holds the records by the key of the entry of their task's name.
	orphans := map[string][]store.ShardEvent{}
	for _, ev := range page {
		if t := w.Tasks[ev.Task]; ev.Mod > w.applied || t != nil && !t.Orphan(ev.Run) {
			continue
		}

		key := w.Keys.Entry(ev.Ref)
		if orphans[key] == nil {
			entries = append(entries, key)
		}

		orphans[key] = append(orphans[key], ev)
	}

	if len(entries) == 0 {
		return nil
	}

	found, err := w.e.cfg.Store.RecordsNow(ctx, entries)
	if err != nil {
		return w.ignoreRetryable(err)
	}

	n := 0
	for _, e := range found {
		// If the entry cannot be read, it is unknown to which task the records belong. Leave them.
		if !e.Deleted && w.parts.Split(e.Value) != nil {
			continue
		}

		for _, ev := range orphans[e.Key] {
			if e.Deleted || !task.RunBelongs(ev.Run, string(w.parts.UID)) {
				w.purges[ev.Key] = ev.Mod
				n++
			}
		}
	}

	if n > 0 {
		w.log.Info("deleting the history of deleted tasks", zap.Int("records", n))
	}

	return nil
}

// countRepair counts and logs a difference that the watch should have reported.
func (w *worker) countRepair(what, key string) {
	w.e.reconciler.repairs.Inc()
	w.log.Warn("repaired changes that a watch had missed", zap.String("what", what), zap.String("key", key), zap.Int64("rev", w.applied))
}

// ignoreRetryable logs an error and drops it: the next comparison finds the differences again.
func (w *worker) ignoreRetryable(err error) error {
	w.log.Debug("could not reconcile", zap.Error(err))
	return nil
}
