package shard

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// KeeperConfig says which shards to keep.
type KeeperConfig struct {
	Node string
	// Owners is the assignment as it is known here.
	Owners func() []record.Owner
	// Fence is what must hold for an owner to write.
	Fence func(record.Owner) kv.Fence
	// Session is the fence of the node's present session; false while it has none.
	Session func() (kv.Fence, bool)
	// Changed says that one of them may have changed: look again.
	Changed <-chan struct{}
	// Work serves a shard until ctx ends or it cannot go on. It takes over what
	// Preload has loaded.
	Work func(ctx context.Context, shard int, f store.Fences) error
	// Handovers are those in the making as they are known here; nil: there are none, ever.
	Handovers func() []record.Handover
	// Preload loads a shard that is to be ours and follows it, until ctx ends or
	// Work takes it over. It calls loaded, which does not block, when it has loaded it.
	Preload func(ctx context.Context, shard int, loaded func()) error
	// TellReady answers a handover: the shard is loaded.
	TellReady func(ctx context.Context, session kv.Fence, h record.Handover) error
	// Reconcile is how often to look without being told; default 2 s.
	Reconcile time.Duration
	// RestAfterFailure is how long a shard whose worker failed is left alone; default 500 ms.
	RestAfterFailure time.Duration
	Logger           *zap.Logger
}

// Keeper starts and stops the workers of the shards that a node owns, and the
// preloads of those that it is to own. It compares what should run with what
// runs; what it was told does not matter.
type Keeper struct {
	cfg      KeeperConfig
	running  map[int]*worker
	failures map[int]failure // by shard, of those that failed last
	ended    chan *worker
	count    atomic.Int64
	beats    atomic.Int64
	preloads preloads
}

type worker struct {
	shard  int
	fences store.Fences
	stop   context.CancelCauseFunc
	err    error
	began  time.Time
	rested time.Time // an ended worker's shard is left alone until then
	over   bool
}

var errNotOurs = errors.New("the shard is not ours under this fence any more")

// NewKeeper makes a Keeper.
func NewKeeper(cfg KeeperConfig) *Keeper {
	if cfg.Reconcile == 0 {
		cfg.Reconcile = 2 * time.Second
	}

	if cfg.RestAfterFailure == 0 {
		cfg.RestAfterFailure = 500 * time.Millisecond
	}

	return &Keeper{cfg: cfg, running: map[int]*worker{}, failures: map[int]failure{}, ended: make(chan *worker), preloads: newPreloads(cfg)}
}

// Running is the number of workers.
func (k *Keeper) Running() int { return int(k.count.Load()) }

// Beats grows every Reconcile at the latest while the keeper lives.
func (k *Keeper) Beats() int64 { return k.beats.Load() }

// Run keeps the shards until ctx ends, then stops all workers and preloads and
// waits for them.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(k.cfg.Reconcile)
	defer tick.Stop()

	rest := time.NewTimer(time.Hour)
	defer rest.Stop()

	for {
		k.beats.Add(1)

		if again := k.reconcile(ctx, time.Now()); again > 0 {
			rest.Reset(again)
		}

		k.preloads.reconcile(ctx, time.Now())

		select {
		case <-ctx.Done():
			k.preloads.stopAll()
			k.stopAll(context.Cause(ctx))
			return ctx.Err()
		case <-k.preloads.changed:
		case <-k.cfg.Changed:
		case <-tick.C:
		case <-rest.C:
		case w := <-k.ended:
			k.handleWorkerEnd(w)
		}
	}
}

// reconcile stops what should not run, starts what should, and returns when to
// look again for the sake of the first worker that has rested; 0 if none rests.
func (k *Keeper) reconcile(ctx context.Context, now time.Time) (again time.Duration) {
	wanted := k.wantedShards()

	for id, w := range k.running {
		f, ok := wanted[id]
		switch {
		case ok && f == w.fences && !w.over:
		case !w.over:
			w.stop(errNotOurs) // it stays in running until it has ended
		case ok && f == w.fences && now.Before(w.rested):
			if left := w.rested.Sub(now); again == 0 || left < again {
				again = left
			}
		default:
			delete(k.running, id)
		}
	}

	for id, f := range wanted {
		if k.running[id] == nil {
			k.startWorker(ctx, id, f)
		}
	}

	return again
}

func (k *Keeper) wantedShards() map[int]store.Fences {
	session, ok := k.cfg.Session()
	if !ok {
		return nil
	}

	wanted := map[int]store.Fences{}
	for _, o := range k.cfg.Owners() {
		if o.Node == k.cfg.Node {
			wanted[o.Shard] = store.Fences{Owner: k.cfg.Fence(o), Node: session}
		}
	}

	return wanted
}

func (k *Keeper) startWorker(ctx context.Context, id int, f store.Fences) {
	wctx, stop := context.WithCancelCause(ctx)
	w := &worker{shard: id, fences: f, stop: stop, began: time.Now()}
	k.running[id] = w
	k.count.Add(1)
	go func() {
		w.err = k.cfg.Work(wctx, id, f)
		stop(nil)
		k.ended <- w
	}()
}

// longestRest is how long a shard is left alone at most that fails each time.
const longestRest = time.Minute

// failure is how a shard's worker failed last, and how long it rested then.
type failure struct {
	text string
	rest time.Duration
}

// handleWorkerEnd takes a worker that has ended. One that fails as it did before is told
// of once, and rests longer each time: what is damaged stays so.
func (k *Keeper) handleWorkerEnd(w *worker) {
	k.count.Add(-1)
	w.over = true
	rest := k.cfg.RestAfterFailure

	switch {
	case w.err == nil || errors.Is(w.err, context.Canceled) || errors.Is(w.err, task.ErrFenced):
		// Stopped, or fenced before the watch told us: nothing to say.
		delete(k.failures, w.shard)
	default:
		last := k.failures[w.shard]
		if last.text == w.err.Error() && time.Since(w.began) < longestRest {
			rest = min(2*last.rest, longestRest)
		} else {
			k.cfg.Logger.Error("a shard's worker failed, and is started again until it does not", zap.Int("shard", w.shard), zap.Error(w.err))
		}

		k.failures[w.shard] = failure{w.err.Error(), rest}
	}

	w.rested = time.Now().Add(rest)
}

func (k *Keeper) stopAll(cause error) {
	left := 0
	for _, w := range k.running {
		if !w.over {
			w.stop(cause)
			left++
		}
	}

	for range left {
		k.handleWorkerEnd(<-k.ended)
	}
}
