package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// offerReview hands a review to the worker; false if it is busy with another.
func (w *worker) offerReview(r review) bool {
	select {
	case w.reviews <- r:
		return true
	default:
		return false
	}
}

// runReview compares. What differs is looked at again a while
// later: only what differs still, in the same way, was lost by the watch.
func (w *worker) runReview(ctx context.Context, r review) error {
	switch {
	case r.recalled != nil:
		if r.recalled.opening == w.openings.Load() { // else the shard was opened anew: that is asked for again
			w.restore(r.recalled, w.tasks)
		}
	case r.settle:
		return w.repairDoubts(ctx, r)
	case r.shard:
		if w.doubts.notEmpty() { // one thing after another
			return w.overdueDoubts(ctx, w.doubts, r)
		}
		w.doubts = differences{records: w.revisionsThatDiffer(r)}
		w.scheduleReview(&w.doubts, review{settle: true, shard: true})
	case r.active:
		if w.runDoubts.notEmpty() {
			return w.overdueDoubts(ctx, w.runDoubts, r)
		}
		w.runDoubts = w.differingRuns(r)
		w.scheduleReview(&w.runDoubts, review{settle: true, active: true})
	default:
		return w.reviewHistory(ctx, r.history)
	}

	return nil
}

// scheduleReview has differences repaired when they have lasted for long enough.
func (w *worker) scheduleReview(d *differences, then review) {
	if d.notEmpty() {
		d.since = time.Now()
		time.AfterFunc(w.e.reconciler.patience, func() { w.offerReview(then) })
	}
}

// overdueDoubts settles those whose time is over, though nobody has said so.
func (w *worker) overdueDoubts(ctx context.Context, d differences, r review) error {
	if time.Since(d.since) < w.e.reconciler.patience {
		return nil
	}
	return w.repairDoubts(ctx, r)
}

func (w *worker) repairDoubts(ctx context.Context, r review) error {
	if r.shard {
		d := w.doubts
		w.doubts = differences{}
		return w.repairRecords(ctx, d)
	}

	d := w.runDoubts
	w.runDoubts = differences{}
	return w.repairRuns(ctx, d)
}

// repairRecords repairs what still differs, by what etcd holds now. Ticks that
// the watermark has passed meanwhile are decided by it, as of every task that it
// covers: to decide them would be to decide them again.
//
// What waits is taken if its task is known as etcd has it: else it would pass for a
// run of a task that is no more, and be deleted.
func (w *worker) repairRecords(ctx context.Context, d differences) error {
	var keys []string
	beside := map[string]bool{} // entries of what waits
	for key, mod := range d.records {
		sk, ok := w.keys.ParseShard(key)
		if !ok {
			continue
		}

		ev := store.ShardEvent{ShardKey: sk, Key: key, Task: sk.Ref.String(), Mod: mod}
		if mod > 0 && w.lacksRecord(&ev) || mod == 0 && w.hasRecord(&ev) {
			keys = append(keys, key)
			if sk.Kind == record.KindQueued {
				beside[w.keys.Entry(sk.Ref)] = true
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
		mod, doubted := d.records[ev.Key]

		if ev.Kind == record.KindEntry && !ev.Deleted {
			entries[ev.Task] = ev.Mod
		}

		t := w.tasks[ev.Task]
		switch {
		case !doubted:
		case ev.Kind == record.KindQueued && !ev.Deleted && entries[ev.Task] > 0 && (t == nil || t.Mod < entries[ev.Task]):
			// The watch, or the next period, brings the entry.
		case ev.Kind == record.KindWatermark:
			if w.known < ev.Mod {
				w.countRepair("the watermark", ev.Key)
				return fmt.Errorf("%w: the watermark is another's", errReload)
			}
		case ev.Deleted && mod == 0 && w.hasRecord(&ev), !ev.Deleted && ev.Mod == mod && w.lacksRecord(&ev):
			w.countRepair("a record", ev.Key)
			w.applyToShard(store.ShardBatch{Events: []store.ShardEvent{ev}})
		}
	}

	return nil
}

// repairRuns repairs what still differs of the active attempts.
func (w *worker) repairRuns(ctx context.Context, d differences) error {
	var keys []record.RunKey
	ended := map[int]int{} // by place in keys: in d.gone
	for i, a := range d.gone {
		if slices.Contains(d.of[i].Active(), a) {
			ended[len(keys)] = i
			keys = append(keys, w.runKey(d.of[i], a))
		}
	}

	for _, k := range d.there {
		if w.attemptOf(k) == nil {
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
			if a := d.gone[i]; v.Gone || a.Create != 0 && v.Create != a.Create {
				w.countRepair("an end", k.Run)
				w.applyAttemptEnd(d.of[i], a.Run, v.Revision+1)
			}
			continue
		}

		if i := slices.IndexFunc(d.there, func(o store.ActiveKey) bool { return o.RunKey == k }); !v.Gone && d.there[i].Create == v.Create && w.attemptOf(d.there[i]) == nil {
			w.countRepair("an attempt", k.Run)
			t := w.taskNamed(k.Ref.String())
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
		if t := w.tasks[ev.Task]; ev.Mod > w.applied || t != nil && !t.Orphan(ev.Run) {
			continue
		}

		key := w.keys.Entry(ev.Ref)
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
