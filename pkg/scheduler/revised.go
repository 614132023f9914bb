package scheduler

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// A commit that moves the watermark's time compares the shard's key revised (see
// store.Revised). It fails if somebody has edited a task so that it may have new
// ticks and the watch has not told of that yet. Then the owner learns of the edit, by
// the watch or by reading the entries, and decides again.
//
// Edits may come faster than an owner can commit. After some losses in a row it
// decides what is due without moving the watermark: each entry says by its from that
// the tick is decided. Such a commit compares the entries that it writes, and not
// revised, so edits can slow a shard down but never stop it.

const (
	// revisedPatience is how long the watch may take to tell of an edit before the
	// entries are read. It bounds how late ticks are.
	revisedPatience = 100 * time.Millisecond
	// maxOvertaken is how many commits in a row may be lost to edits before ticks are
	// decided without the watermark.
	maxOvertaken = 3
)

// learnRevised returns when the worker knows of the edit that it lost a commit to: as
// soon as the watch has told, else when it has read the entries. If it can do
// neither, the next commit fails, too.
func (w *worker) learnRevised(ctx context.Context, mod int64) error {
	w.overtaken++
	told := func() bool { return w.revised == mod || mod != 0 && w.revised > mod }

	if err := w.applyPending(w.batches); err != nil {
		return err
	}

	patience := time.NewTimer(revisedPatience)
	defer patience.Stop()

	for !told() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-w.batches:
			if err := w.applyBatch(b); err != nil {
				return err
			}
		case <-patience.C:
			if err := w.readRevised(ctx); err != nil {
				w.log.Debug("could not read the edited entries", zap.Error(err))
			}
			return ctx.Err()
		}
	}

	return nil
}

// readRevised takes the entries that have changed, and then what revised was when
// their keys were listed. Entries of tasks that were created later than what the watch
// has told are left to it: the watermark does not speak for them before the watch has
// told of everything up to here (see readAhead).
func (w *worker) readRevised(ctx context.Context) error {
	keys, rev, err := w.e.cfg.Store.ShardKeys(ctx, w.Shard)
	if err != nil {
		return err
	}

	var changed []string
	var revised int64
	for i := range keys {
		ev := &keys[i]
		switch {
		case ev.Kind == record.KindRevised:
			revised = ev.Mod
		case ev.Kind == record.KindEntry && ev.Create <= w.applied && w.LacksRecord(ev):
			changed = append(changed, ev.Key)
		}
	}

	// They may be edited again before they are read: then revised has changed, too,
	// and the next commit fails.
	entries, err := w.e.cfg.Store.RecordsNow(ctx, changed)
	if err != nil {
		return err
	}

	for i := range entries {
		if ev := &entries[i]; !ev.Deleted {
			w.applyEntry(ev)
		}
	}

	w.setRevised(revised, rev)
	w.readAhead = readAhead{applied: w.applied, at: rev}

	return nil
}
