package scheduler

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
)

const (
	defaultReconcile = time.Minute
	// doubtFor is how long a difference between etcd and what a worker knows may
	// be an event on its way.
	doubtFor = 10 * time.Second
	// historyPause is how long to rest between pages of a history.
	historyPause = 50 * time.Millisecond
)

// reconciler has the workers compare what they know with what etcd holds: a
// watch is a hint. Once in a period each shard's keys are listed, one shard
// after another, and those of all active runs. Only keys and revisions are read,
// which etcd has in its index.
//
// After a shard was opened its history is looked through once, for records of
// tasks that are no more: an end that fell between two owners was told to nobody.
type reconciler struct {
	e        *Engine
	period   time.Duration
	patience time.Duration
	repairs  prometheus.Counter
	log      *zap.Logger
	searched map[*worker]int64 // the opening after which the history was looked through
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

// reconcileUntilDone goes round the shards until ctx ends.
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

func addJitter(d time.Duration) time.Duration {
	return d*3/4 + time.Duration(rand.Int64N(int64(d/2)+1))
}

// servingWorkers are those whose shards are open, in the order of the shards.
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

// reconcileShard has a worker compare its shard. What cannot be read now is read in the
// next period.
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

// reconcileRuns has the workers compare the active attempts of their shards.
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

// reconcileHistory hands a shard's history to its worker, page by page; false if it could not.
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
