package scheduler

import (
	"context"
	"slices"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

// Ask answers a query for the shards that this node owns, apart from those in without. A shard that is being opened is
// left out. It returns *readmodel.Busy if queries take as much of the node's processors as they may.
func (e *Engine) Ask(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
	first := readmodel.NewFirst(q)
	a := readmodel.NodeAnswer{Node: e.cfg.Node}

	err := e.EachIndex(ctx, q.Subject, without, func(s readmodel.ShardAnswer, x *readmodel.Index) bool {
		s.Counts = x.Scan(q, s.Shard, first)
		a.Shards = append(a.Shards, s)

		return true
	})

	a.Places, a.More = first.Sorted(), first.More

	return a, err
}

// EachIndex calls visit with the index of each shard that this node owns, apart from those in without, in the order of
// the shards. The answer that it passes has no counts. A shard that is being opened is left out. visit scans the index;
// if it returns false, EachIndex ends. subject is who asks.
//
// EachIndex returns *readmodel.Busy if queries take as much of the node's processors as they may.
func (e *Engine) EachIndex(ctx context.Context, _ string, without []int, visit func(readmodel.ShardAnswer, *readmodel.Index) bool) error {
	for _, w := range e.sortedWorkers() {
		x := w.index.Load()
		if x == nil || slices.Contains(without, w.Shard) {
			continue
		}

		if err := ctx.Err(); err != nil {
			return err
		}

		known, rows := x.Collected()
		if !visit(readmodel.ShardAnswer{Shard: w.Shard, Owner: w.fences.Owner.ModRevision, Unread: rows - known}, x) {
			return nil
		}
	}

	return nil
}

// sortedWorkers returns the workers of this node, ordered by shard.
func (e *Engine) sortedWorkers() []*worker {
	e.mu.Lock()
	defer e.mu.Unlock()

	list := make([]*worker, 0, len(e.workers))
	for _, w := range e.workers {
		list = append(list, w)
	}

	slices.SortFunc(list, func(a, b *worker) int { return a.Shard - b.Shard })

	return list
}
