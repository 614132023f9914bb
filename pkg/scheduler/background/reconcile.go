package background

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

const (
	// DefaultReconcilePeriod is the time for one pass over all shards, unless they have more keys than KeyRate allows.
	DefaultReconcilePeriod = time.Minute
	// KeyRate is how many keys are listed in a second, at most, on average over a pass. To list and compare a key takes about
	// two microseconds of CPU, so this is one percent of a core.
	KeyRate = 5000
	// splitTasks is how many tasks lie between two splits of a history (see store.Shards.HistoryKeys).
	splitTasks = 16
	// historyPause is the pause between pages of a history, so that reading it does not compete with ticks.
	historyPause = 50 * time.Millisecond
)

// ListingStore lists keys without their values.
type ListingStore interface {
	ShardKeys(ctx context.Context, shard int) ([]store.ShardEvent, int64, error)
	ScanActive(ctx context.Context) ([]store.ActiveKey, int64, error)
	HistoryKeys(ctx context.Context, shard int, after string, splits []string) (events []store.ShardEvent, next string, err error)
}

// OpenShard is a shard that is open, and its owner.
type OpenShard struct {
	ID    int
	Owner ShardOwner
}

// ShardOwner compares listings with what it knows. The methods that pass a listing do not block, and return false if the
// owner is busy. A ShardOwner can be the key of a map.
type ShardOwner interface {
	// Openings returns how often the shard has been opened. After another opening, its history is listed again.
	Openings() int64
	// CompareRecords passes the keys of all records of the shard, without its history, as of revision rev.
	CompareRecords(keys []store.ShardEvent, rev int64) bool
	// CompareRuns passes all active attempts of the shard as of revision rev.
	CompareRuns(runs []store.ActiveKey, rev int64) bool
	// CompareHistory passes one page of the keys of the shard's history.
	CompareHistory(page []store.ShardEvent) bool
}

// Reconciler makes the owners of shards compare their state with what etcd holds, because a watch could lose
// events silently. Once in each period, it lists the keys of every shard, one shard after another, and then those of
// all active runs, and passes each listing to the owner. Only keys and revisions are read, which etcd has in its
// index.
//
// The period is a minute for up to 300,000 keys. With more, it is as long as listing them takes at KeyRate, so that a
// node with many tasks does not spend more of its time on listings: 200 s for a million.
//
// After a shard was opened, its history is listed once, so that the owner finds records of tasks that no longer exist:
// no watch reports an end that was recorded between two owners.
//
// It decides nothing and repairs nothing. If etcd cannot be read, or an owner is busy, the next period tries
// again.
type Reconciler struct {
	Period time.Duration // DefaultReconcilePeriod; set it before Run

	store    ListingStore
	shards   func() []OpenShard // the shards that are open, in a fixed order
	log      *zap.Logger
	searched map[ShardOwner]int64 // the opening after which the history of the owner's shard was listed
}

// NewReconciler returns a Reconciler. It does nothing until Run is called. shards returns the shards that are open, in a fixed
// order.
func NewReconciler(s ListingStore, shards func() []OpenShard, log *zap.Logger) *Reconciler {
	return &Reconciler{Period: DefaultReconcilePeriod, store: s, shards: shards, log: log, searched: map[ShardOwner]int64{}}
}

// Run lists one shard after another until ctx ends, and returns its error. The pauses spread the listings over the
// period. A pause is longer if KeyRate requires it after the listing before.
func (r *Reconciler) Run(ctx context.Context) error {
	listed := 0 // how many keys the latest listing had
	for {
		shards := r.shards()
		r.forgetOthers(shards)
		pause := r.Period / time.Duration(len(shards)+1)

		for _, s := range shards {
			if !sleepAfter(ctx, listed, pause) {
				return ctx.Err()
			}
			listed = r.listShard(ctx, s)
		}

		if !sleepAfter(ctx, listed, pause) {
			return ctx.Err()
		}

		listed = r.listRuns(ctx, r.shards())
	}
}

// sleepAfter waits after a listing of that many keys, for about the pause or for as long as KeyRate requires. It returns
// false if ctx has ended.
func sleepAfter(ctx context.Context, keys int, pause time.Duration) bool {
	pause = max(pause, time.Duration(keys)*time.Second/KeyRate)
	return clock.Sleep(ctx, pause/2+clock.Jitter(pause/2))
}

// forgetOthers forgets which histories were listed, except for those of the given shards.
func (r *Reconciler) forgetOthers(shards []OpenShard) {
	open := make(map[ShardOwner]bool, len(shards))
	for _, s := range shards {
		open[s.Owner] = true
	}

	for owner := range r.searched {
		if !open[owner] {
			delete(r.searched, owner)
		}
	}
}

// listShard passes a listing of a shard to its owner, and after an opening also its history. It returns how many keys
// the listing had.
func (r *Reconciler) listShard(ctx context.Context, s OpenShard) int {
	keys, rev, err := r.store.ShardKeys(ctx, s.ID)
	if err != nil {
		r.log.Debug("could not reconcile a shard", zap.Int("shard", s.ID), zap.Error(err))
		return 0
	}

	s.Owner.CompareRecords(keys, rev)

	if opening := s.Owner.Openings(); r.searched[s.Owner] != opening {
		if r.listHistory(ctx, s, splitsOf(keys)) {
			r.searched[s.Owner] = opening
		}
	}

	return len(keys)
}

// splitsOf returns every splitTasks-th task of a listing.
func splitsOf(keys []store.ShardEvent) (splits []string) {
	n := 0
	for i := range keys {
		if keys[i].Kind != record.KindEntry {
			continue
		}
		if n++; n%splitTasks == 0 {
			splits = append(splits, keys[i].Task)
		}
	}

	return splits
}

// listRuns passes the active attempts of each shard to its owner. It returns how many attempts were listed.
func (r *Reconciler) listRuns(ctx context.Context, shards []OpenShard) int {
	if len(shards) == 0 {
		return 0
	}

	all, rev, err := r.store.ScanActive(ctx)
	if err != nil {
		r.log.Debug("could not reconcile the active runs", zap.Error(err))
		return 0
	}

	byShard := map[int][]store.ActiveKey{}
	for _, k := range all {
		byShard[k.Ref.Shard] = append(byShard[k.Ref.Shard], k)
	}

	for _, s := range shards {
		s.Owner.CompareRuns(byShard[s.ID], rev)
	}

	return len(all)
}

// listHistory passes the keys of a shard's history to its owner, page by page. It returns false if etcd could not be
// read or the owner was busy; the next period then starts over. splits are some of the shard's tasks.
func (r *Reconciler) listHistory(ctx context.Context, s OpenShard, splits []string) bool {
	for after := ""; ; {
		page, next, err := r.store.HistoryKeys(ctx, s.ID, after, splits)
		if err != nil || !s.Owner.CompareHistory(page) {
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
