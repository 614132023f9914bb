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

// historyStore lists histories, and reads records of them at one revision.
type historyStore interface {
	HistoriesOf(ctx context.Context, refs []record.Ref) (keys [][]store.ShardEvent, rev int64, err error)
	RecordsAt(ctx context.Context, keys []string, rev int64) ([]store.ShardEvent, error)
}

// readHistories reads some of the histories that decisions wait for. Between two plans it reads at most
// store.HistoriesAtOnce of them, so that ticks of other tasks do not wait for long. If they cannot be read,
// their tasks are examined again in a second. now is in Unix milliseconds.
func (w *worker) readHistories(ctx context.Context, now int64) {
	if len(w.state.unread) == 0 {
		return
	}

	// Sort the tasks, so that the order does not depend on the map.
	some := slices.SortedFunc(maps.Keys(w.state.unread), taskstate.ByName)
	some = some[:min(len(some), store.HistoriesAtOnce)]
	for _, t := range some {
		delete(w.state.unread, t)
	}

	list, err := readHistoriesOf(ctx, w.e.cfg.Store, w.state.Shard, some)
	if err != nil {
		w.log.Debug("could not read histories", zap.Error(err))
		for _, t := range some {
			w.state.examineAgainAt(t, taskstate.Instant(now+1000))
		}
		return
	}

	for _, s := range list {
		s.Conclude(now)
		w.state.examineNext(s.Task())
	}
}

// readHistoriesOf reads the histories of tasks of a shard, at most store.HistoriesAtOnce. It lists the keys first, and then
// reads records, the newest first, until each reader has enough. All reads are at the revision of the list.
func readHistoriesOf(ctx context.Context, s historyStore, shard int, tasks []*taskstate.Task) ([]*taskstate.HistoryReader, error) {
	refs := make([]record.Ref, len(tasks))
	for i, t := range tasks {
		refs[i] = t.Ref(shard)
	}

	keys, rev, err := s.HistoriesOf(ctx, refs)
	if err != nil {
		return nil, err
	}

	list := make([]*taskstate.HistoryReader, len(tasks))
	for i, t := range tasks {
		own := slices.DeleteFunc(keys[i], func(ev store.ShardEvent) bool { return t.Orphan(ev.Run) })

		// The mod revision gives the order in which runs ended; the key begins with the time of the tick.
		slices.SortFunc(own, func(a, b store.ShardEvent) int { return cmp.Or(cmp.Compare(b.Mod, a.Mod), cmp.Compare(b.Key, a.Key)) })
		list[i] = taskstate.NewHistoryReader(t, rev, own)
	}

	// Most tasks need only their newest record, so the pages start small and grow.
	for want := 1; ; want *= 4 {
		var page []string
		var of []*taskstate.HistoryReader
		for _, h := range list {
			for _, ev := range h.Wants(want) {
				page, of = append(page, ev.Key), append(of, h)
			}
		}

		if len(page) == 0 {
			return list, nil
		}

		// Read at the revision of the list. Retention trims in parallel: a record that was deleted since
		// then would be missing, and an older end would pass for the last one.
		events, err := s.RecordsAt(ctx, page, rev)
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
