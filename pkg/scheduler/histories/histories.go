// Package histories reads how the runs of tasks ended, as far as decisions need it.
package histories

import (
	"cmp"
	"context"
	"slices"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// Store lists histories, and reads records of them at one revision.
type Store interface {
	HistoriesOf(ctx context.Context, refs []record.Ref) (keys [][]store.ShardEvent, rev int64, err error)
	RecordsAt(ctx context.Context, keys []string, rev int64) ([]store.ShardEvent, error)
}

// Read reads the histories of tasks of a shard, at most store.HistoriesAtOnce. It lists the keys first, and then reads
// records, the newest first, until each reader has enough. All reads are at the revision of the list.
func Read(ctx context.Context, s Store, shard int, tasks []*taskstate.Task) ([]*taskstate.HistoryReader, error) {
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
