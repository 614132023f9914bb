package scheduler

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
)

const (
	defaultReconcile = time.Minute
	// doubtFor is how long a difference between etcd and a worker may be an event on its way.
	doubtFor = 10 * time.Second
	// historyPause is the pause between pages of a history, so that reading it does not compete with ticks.
	historyPause = 50 * time.Millisecond
)

// reconciler makes the workers compare their state with what etcd holds, because a watch could lose events
// silently. Once in each period, the keys of every shard are listed, one shard after another, and then
// those of all active runs. Only keys and revisions are read, which etcd has in its index. So a lost event
// is repaired within about a period and doubtFor.
//
// After a shard was opened, its history is searched once for records of tasks that no longer exist: no
// watch reports an end that was recorded between two owners.
type reconciler struct {
	e        *Engine
	period   time.Duration // time for one pass over all shards
	patience time.Duration // doubtFor; shorter in tests
	repairs  prometheus.Counter
	log      *zap.Logger
	searched map[*worker]int64 // by worker, the opening after which its history was searched
}

func newReconciler(e *Engine) *reconciler {
	r := &reconciler{
		e: e, period: e.cfg.Reconcile, patience: doubtFor, repairs: store.NewRepairs("worker"), log: e.cfg.Logger,
		searched: map[*worker]int64{},
	}
	if r.period == 0 {
		r.period = defaultReconcile
	}

	if e.cfg.Registerer != nil {
		e.cfg.Registerer.MustRegister(r.repairs)
	}

	return r
}

// reconcileUntilDone compares one shard after another, until ctx ends. The pauses spread the shards over
// the period.
func (r *reconciler) reconcileUntilDone(ctx context.Context) error {
	for {
		workers := r.servingWorkers()
		pause := r.period / time.Duration(len(workers)+1)

		for _, w := range workers {
			if !clock.Sleep(ctx, addJitter(pause)) {
				return ctx.Err()
			}
			r.reconcileShard(ctx, w)
		}

		if !clock.Sleep(ctx, addJitter(pause)) {
			return ctx.Err()
		}

		r.reconcileRuns(ctx, r.servingWorkers())
	}
}

// addJitter returns a random duration between 3/4 and 5/4 of d.
func addJitter(d time.Duration) time.Duration {
	return d/2 + clock.Jitter(d/2)
}

// servingWorkers returns the workers whose shards are open, ordered by shard. It also forgets searched
// workers that are gone.
func (r *reconciler) servingWorkers() []*worker {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()

	var list []*worker
	for _, w := range r.e.workers {
		if w.serving.Load() {
			list = append(list, w)
		}
	}

	slices.SortFunc(list, func(a, b *worker) int { return a.Shard - b.Shard })

	for w := range r.searched {
		if r.e.workers[w.Shard] != w {
			delete(r.searched, w)
		}
	}

	return list
}

// reconcileShard passes a listing of a shard to its worker. If etcd cannot be read, the next period tries
// again.
func (r *reconciler) reconcileShard(ctx context.Context, w *worker) {
	keys, rev, err := r.e.cfg.Store.ShardKeys(ctx, w.Shard)
	if err != nil {
		r.log.Debug("could not reconcile a shard", zap.Int("shard", w.Shard), zap.Error(err))
		return
	}

	w.offerReview(review{keys: keys, shard: true, rev: rev})

	if opening := w.openings.Load(); r.searched[w] != opening {
		if r.reconcileHistory(ctx, w) {
			r.searched[w] = opening
		}
	}
}

// reconcileRuns passes the active attempts of each shard to its worker.
func (r *reconciler) reconcileRuns(ctx context.Context, workers []*worker) {
	if len(workers) == 0 {
		return
	}

	all, rev, err := r.e.cfg.Store.ScanActive(ctx)
	if err != nil {
		r.log.Debug("could not reconcile the active runs", zap.Error(err))
		return
	}

	byShard := map[int][]store.ActiveKey{}
	for _, k := range all {
		byShard[k.Ref.Shard] = append(byShard[k.Ref.Shard], k)
	}

	for _, w := range workers {
		w.offerReview(review{runs: byShard[w.Shard], active: true, rev: rev})
	}
}

// reconcileHistory passes the keys of a shard's history to its worker, page by page. It returns false if
// etcd could not be read or the worker was busy; the next period then starts over.
func (r *reconciler) reconcileHistory(ctx context.Context, w *worker) bool {
	for after := ""; ; {
		page, next, err := r.e.cfg.Store.HistoryKeys(ctx, w.Shard, after)
		if err != nil || !w.offerReview(review{history: page}) {
			return false
		}
		if next == "" {
			return true
		}
		if after = next; !clock.Sleep(ctx, historyPause) {
			return false
		}
	}
}
