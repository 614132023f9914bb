package scheduler

import (
	"cmp"
	"context"
	"slices"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// recaller finds out, after a shard was opened, which of its tasks are failing: those
// with a dead run after which no run of the task succeeded. It reads beside the
// workers, so that no tick waits for it: one listing of keys for a shard in which
// nothing is dead.
type recaller struct {
	store outcomeReader
	line  chan *worker
	log   *zap.Logger
}

// recollection is what was found, or a part of it.
type recollection struct {
	opening int64 // of the worker, after which it was asked for
	failing map[string]*failure
	more    bool // another part follows
}

func newRecaller(s outcomeReader, log *zap.Logger) *recaller {
	return &recaller{store: s, line: make(chan *worker, 4096), log: log}
}

// request has a worker told of what failed before. Without a place in the line it is not:
// then it knows what fails from now on.
func (r *recaller) request(w *worker) {
	select {
	case r.line <- w:
	default:
	}
}

func (r *recaller) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case w := <-r.line:
			if err := r.recallShard(ctx, w); err != nil && ctx.Err() == nil {
				r.log.Debug("could not read earlier failures", zap.Int("shard", w.shard), zap.Error(err))
			}
		}
	}
}

// recallShard reads page by page what a worker is to know.
func (r *recaller) recallShard(ctx context.Context, w *worker) error {
	opening := w.openings.Load()

	for after := ""; ; {
		page, next, _, err := r.store.DeadKeys(ctx, w.shard, after)
		if err != nil {
			return err
		}

		found := recollection{opening: opening, failing: map[string]*failure{}, more: next != ""}

		for some := range slices.Chunk(newestOfEach(page), store.HistoriesAtOnce) {
			if err := r.readRecords(ctx, some, found.failing); err != nil {
				return err
			}
		}

		if !r.deliver(ctx, w, &found) || next == "" {
			return ctx.Err()
		}
		if after = next; !clock.Sleep(ctx, historyPause) {
			return ctx.Err()
		}
	}
}

// deliver hands a worker what was found; false if it stays busy.
func (r *recaller) deliver(ctx context.Context, w *worker, found *recollection) bool {
	for range 20 {
		if w.offerReview(review{recalled: found}) {
			return true
		}
		if !clock.Sleep(ctx, historyPause) {
			return false
		}
	}

	return false
}

// newestOfEach are the dead runs that ended last, one of each task.
func newestOfEach(page []store.ShardEvent) (list []store.ShardEvent) {
	for _, ev := range page {
		if n := len(list); n == 0 || list[n-1].Task != ev.Task {
			list = append(list, ev)
		} else if ev.Mod > list[n-1].Mod {
			list[n-1] = ev
		}
	}

	return list
}

// maxLaterRecords is how many records after a dead run are read to see whether the task
// has recovered: more of them did not run, or are of a task whose history is long.
const maxLaterRecords = 100

// readRecords finds the tasks, among those with a dead run, whose last run to end failed.
func (r *recaller) readRecords(ctx context.Context, dead []store.ShardEvent, into map[string]*failure) error {
	refs, keys := make([]record.Ref, len(dead)), make([]string, len(dead))
	for i, ev := range dead {
		refs[i], keys[i] = ev.Ref, ev.Key
	}

	histories, rev, err := r.store.HistoriesOf(ctx, refs)
	if err != nil {
		return err
	}

	for i := range dead {
		later := slices.DeleteFunc(histories[i], func(ev store.ShardEvent) bool { return ev.Mod <= dead[i].Mod })
		slices.SortFunc(later, func(a, b store.ShardEvent) int { return cmp.Compare(b.Mod, a.Mod) })
		for _, ev := range later[:min(len(later), maxLaterRecords)] {
			keys = append(keys, ev.Key)
		}
	}

	// At the revision of the lists: records of which a trim deletes some meanwhile
	// would tell of another last end.
	now, err := r.store.RecordsAt(ctx, keys, rev) // of a task's, the newest first, and its dead run before all of them
	if err != nil {
		return err
	}

	settled := map[string]bool{}
	for _, ev := range now[len(dead):] {
		e := taskstate.End{Mod: ev.Mod, State: record.StateOf(ev.Value)}
		if ev.Deleted || settled[ev.Task] || !e.Ran() {
			continue
		}

		settled[ev.Task] = true
		if run, err := record.DecodeEnded(ev.ShardKey, ev.Value); err == nil && e.Failed() {
			into[ev.Task] = failureOf(ev.Mod, run, 2)
		}
	}

	for _, ev := range now[:len(dead)] {
		if ev.Deleted || settled[ev.Task] {
			continue
		}

		if w, err := record.DecodeWaiting(ev.ShardKey, ev.Value); err == nil {
			into[ev.Task] = failureOf(ev.Mod, w.Run, 1)
		}
	}

	return nil
}
