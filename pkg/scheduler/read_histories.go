package scheduler

import (
	"context"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/scheduler/histories"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
)

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

	list, err := histories.Read(ctx, w.e.cfg.Store, w.state.Shard, some)
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

// needHistory requests t's history before the next plan, because the watch has not delivered everything
// that matters.
func (s *shardState) needHistory(t *taskstate.Task) { s.unread[t] = struct{}{} }
