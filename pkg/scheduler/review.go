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

// review is something for a worker to compare with what it knows.
type review struct {
	rev int64 // at which it was read

	shard bool               // keys are all of the shard, but its history
	keys  []store.ShardEvent // without values

	active bool // runs are all active attempts of the shard
	runs   []store.ActiveKey

	history []store.ShardEvent // keys of history

	settle bool // differences, of the shard or the active attempts, have lasted for long enough

	failed  *failures.Found // tasks that were failing before the shard was opened
	opening int64           // the opening after which failed was asked for
}

// offerReview hands a review to the worker; false if it is busy with another.
func (w *worker) offerReview(r review) bool {
	select {
	case w.reviews <- r:
		return true
	default:
		return false
	}
}

// earlierFailures asks which tasks were failing before this opening of the shard.
func (w *worker) earlierFailures() failures.Request {
	opening := w.openings.Load()

	return failures.Request{Shard: w.Shard, Deliver: func(found *failures.Found) bool {
		return w.offerReview(review{failed: found, opening: opening})
	}}
}

// runReview compares. What differs is looked at again a while
// later: only what differs still, in the same way, was lost by the watch.
func (w *worker) runReview(ctx context.Context, r review) error {
	switch {
	case r.failed != nil:
		if r.opening == w.openings.Load() { // else the shard was opened again, which has made another request
			w.failures.Restore(r.failed, w.Tasks)
		}
	case r.settle:
		return w.repairDoubts(ctx, r)
	case r.shard:
		if w.doubts.NotEmpty() { // one thing after another
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

// scheduleReview has differences repaired when they have lasted for long enough.
func (w *worker) scheduleReview(d *known.Differences, then review) {
	if d.NotEmpty() {
		d.Since = time.Now()
		time.AfterFunc(w.e.reconciler.patience, func() { w.offerReview(then) })
	}
}

// overdueDoubts settles those whose time is over, though nobody has said so.
func (w *worker) overdueDoubts(ctx context.Context, d known.Differences, r review) error {
	if time.Since(d.Since) < w.e.reconciler.patience {
		return nil
	}
	return w.repairDoubts(ctx, r)
}

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

// repairRecords repairs what still differs, by what etcd holds now. Ticks that
// the watermark has passed meanwhile are decided by it, as of every task that it
// covers: to decide them would be to decide them again.
//
// What waits is taken if its task is known as etcd has it: else it would pass for a
// run of a task that is no more, and be deleted.
func (w *worker) repairRecords(ctx context.Context, d known.Differences) error {
	var keys []string
	beside := map[string]bool{} // entries of what waits
	for key, mod := range d.Records {
		sk, ok := w.Keys.ParseShard(key)
		if !ok {
			continue
		}

		ev := store.ShardEvent{ShardKey: sk, Key: key, Task: sk.Ref.String(), Mod: mod}
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
	slices.Reverse(keys) // entries before what waits

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
		case !doubted:
		case ev.Kind == record.KindQueued && !ev.Deleted && entries[ev.Task] > 0 && (t == nil || t.Mod < entries[ev.Task]):
			// The watch, or the next period, brings the entry.
		case ev.Kind == record.KindWatermark:
			if w.WatermarkRev < ev.Mod {
				w.countRepair("the watermark", ev.Key)
				return fmt.Errorf("%w: the watermark is another's", errReload)
			}
		case ev.Deleted && mod == 0 && w.HasRecord(&ev), !ev.Deleted && ev.Mod == mod && w.LacksRecord(&ev):
			w.countRepair("a record", ev.Key)
			w.applyToShard(store.ShardBatch{Events: []store.ShardEvent{ev}})
		}
	}

	return nil
}

// repairRuns repairs what still differs of the active attempts.
func (w *worker) repairRuns(ctx context.Context, d known.Differences) error {
	var keys []record.RunKey
	ended := map[int]int{} // by place in keys: in d.gone
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

	if len(ended) > 0 { // an attempt that ended with a retry leaves the run active
		if err := w.readQueue(ctx); err != nil {
			return w.ignoreRetryable(err)
		}
	}

	for at, v := range found {
		k := keys[at]

		if i, ok := ended[at]; ok {
			if a := d.Gone[i]; v.Gone || a.Create != 0 && v.Create != a.Create {
				w.countRepair("an end", k.Run)
				w.applyAttemptEnd(d.GoneOf[i], a.Run, v.Revision+1)
			}
			continue
		}

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

// reviewHistory finds records of tasks that are no more, and has them deleted.
// Only such as the watch would have told of are judged; and not by what is known
// here alone, since what is deleted is gone.
func (w *worker) reviewHistory(ctx context.Context, page []store.ShardEvent) error {
	var entries []string
	orphans := map[string][]store.ShardEvent{} // by the key of the entry
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
		if !e.Deleted && w.parts.Split(e.Value) != nil {
			continue // of an entry that cannot be read nobody knows
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

// countRepair counts a difference that the watch should have told of.
func (w *worker) countRepair(what, key string) {
	w.e.reconciler.repairs.Inc()
	w.log.Warn("repaired changes that a watch had missed", zap.String("what", what), zap.String("key", key), zap.Int64("rev", w.applied))
}

// ignoreRetryable passes over what the next period will find again.
func (w *worker) ignoreRetryable(err error) error {
	w.log.Debug("could not reconcile", zap.Error(err))
	return nil
}
