package scheduler

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// A commit that moves the watermark's time compares the shard's revised key. It fails if an edit may have given
// a task new ticks and the watch has not delivered the edit yet. Otherwise the watermark could pass a new tick
// that its writer has not seen, and the tick would be lost (G4). After such a failure, the owner waits for the
// watch or reads the entries, and decides again.
//
// Edits may arrive faster than an owner can commit. After some failures in a row, it decides due ticks without
// moving the watermark: the from of each entry records that its tick is decided. Such a commit compares the
// entries that it writes, and not the revised key. So edits can slow a shard down but never stop it.

const (
	// revisedPatience is how long the watch may take to deliver an edit before the entries are read. It
	// limits how late ticks are.
	revisedPatience = 100 * time.Millisecond
	// maxOvertaken is how many commits in a row may fail because of edits before ticks are decided without
	// moving the watermark.
	maxOvertaken = 3
)

// learnRevised waits until the worker knows the edit that made a commit fail. mod is the current mod
// revision of the revised key. It returns as soon as the watch has delivered the edit, or after it has read
// the entries itself. If it can do neither, it returns nil, and the next commit fails as well. An error
// means that ctx has ended or that the shard must be opened again.
func (w *worker) learnRevised(ctx context.Context, mod int64) error {
	w.state.overtaken++

	// The edit is known if the watch has delivered this version of the key or a later one. A mod of 0 means
	// that the key is gone.
	told := func() bool { return w.state.revised == mod || mod != 0 && w.state.revised > mod }

	// The event may be in the channel already.
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
			// The watch is late. Read the entries instead.
			if err := w.readRevised(ctx); err != nil {
				w.log.Debug("could not read the edited entries", zap.Error(err))
			}
			return ctx.Err()
		}
	}

	return nil
}

// readRevised reads the entries that have changed, and then records the value of the revised key as of the
// listing of the keys. Entries of tasks that were created after what the watch has delivered are left to
// the watch: the watermark does not cover them before the watch has delivered everything up to the listing
// (see readAhead). Nothing changes if it returns an error.
func (w *worker) readRevised(ctx context.Context) error {
	keys, rev, err := w.e.cfg.Store.ShardKeys(ctx, w.state.Shard)
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
		case ev.Kind == record.KindEntry && ev.Create <= w.state.applied && w.state.LacksRecord(ev):
			changed = append(changed, ev.Key)
		}
	}

	// An entry may be edited again before it is read. Then the revised key has changed as well, and the
	// next commit fails.
	entries, err := w.e.cfg.Store.RecordsNow(ctx, changed)
	if err != nil {
		return err
	}

	for i := range entries {
		if ev := &entries[i]; !ev.Deleted {
			w.state.applyEntry(ev)
		}
	}

	w.state.setRevised(revised, rev)
	w.state.readAhead = readAhead{applied: w.state.applied, at: rev}

	return nil
}
