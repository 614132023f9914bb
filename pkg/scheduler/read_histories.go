package scheduler

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// readHistories reads some of the histories that decisions wait for. Between two plans it reads at most
// store.HistoriesAtOnce of them, so that ticks of other tasks do not wait for long. If they cannot be read,
// their tasks are examined again in a second. now is in Unix milliseconds.
func (w *worker) readHistories(ctx context.Context, now int64) {
	if len(w.unread) == 0 {
		return
	}

	// Sort the tasks, so that the order does not depend on the map.
	some := slices.SortedFunc(maps.Keys(w.unread), taskstate.ByName)
	some = some[:min(len(some), store.HistoriesAtOnce)]
	refs := make([]record.Ref, len(some))
	for i, t := range some {
		delete(w.unread, t)
		refs[i] = t.Ref(w.Shard)
	}

	list, err := w.readRecords(ctx, some, refs)
	if err != nil {
		w.log.Debug("could not read histories", zap.Error(err))
		for _, t := range some {
			w.lookAgainAt(t, now+1000)
		}
		return
	}

	for _, s := range list {
		s.Conclude(now)
		w.addLook(s.Task())
	}
}

// readRecords reads the histories of the tasks in of, whose references are refs. It lists the keys first,
// and then reads records, the newest first, until each reader has enough. All reads are at the revision of
// the list.
func (w *worker) readRecords(ctx context.Context, of []*taskstate.Task, refs []record.Ref) ([]*taskstate.HistoryReader, error) {
	keys, rev, err := w.e.cfg.Store.HistoriesOf(ctx, refs)
	if err != nil {
		return nil, err
	}

	list := make([]*taskstate.HistoryReader, len(of))
	for i, t := range of {
		own := slices.DeleteFunc(keys[i], func(ev store.ShardEvent) bool { return t.Orphan(ev.Run) })

		// The mod revision gives the order in which runs ended; the key begins with the time of the tick.
		slices.SortFunc(own, func(a, b store.ShardEvent) int { return cmp.Or(cmp.Compare(b.Mod, a.Mod), cmp.Compare(b.Key, a.Key)) })
		list[i] = taskstate.NewHistoryReader(t, rev, own)
	}

	// Most tasks need only their newest record, so the pages start small and grow.
	for want := 1; ; want *= 4 {
		var page []string
		var of []*taskstate.HistoryReader
		for _, s := range list {
			for _, ev := range s.Wants(want) {
				page, of = append(page, ev.Key), append(of, s)
			}
		}

		if len(page) == 0 {
			return list, nil
		}

		// Read at the revision of the list. Retention trims in parallel: a record that was deleted since
		// then would be missing, and an older end would pass for the last one.
		events, err := w.e.cfg.Store.RecordsAt(ctx, page, rev)
		if err != nil {
			return nil, err
		}

		for i, ev := range events {
			of[i].Take(ev)
		}
	}
}

// needHistory requests t's history before the next plan, because the watch has not delivered everything
// that matters.
func (s *shardState) needHistory(t *taskstate.Task) { s.unread[t] = struct{}{} }
