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

// KeeperConfig is the configuration of a Keeper. The functions Owners, Fence, Session and Handovers return
// what is known on this node, and may be out of date.
type KeeperConfig struct {
	Node string // name of this node
	// Owners returns the known assignment.
	Owners func() []record.Owner
	// Fence returns the condition under which an owner may write: that its owner key is unchanged.
	Fence func(record.Owner) kv.Fence
	// Session returns the node's current session. It returns false while the node has none.
	Session func() (store.Session, bool)
	// Changed signals that one of these may have changed.
	Changed <-chan struct{}
	// Work serves a shard until ctx ends or it cannot continue. It continues with what Preload has loaded.
	Work func(ctx context.Context, shard int, f store.Fences) error
	// Handovers returns the known handovers. If it is nil, the Keeper preloads nothing.
	Handovers func() []record.Handover
	// Preload loads a shard that this node is about to own, and follows it until ctx ends or Work takes it
	// over. It calls loaded, which does not block, when the shard is loaded.
	Preload func(ctx context.Context, shard int, loaded func()) error
	// TellReady answers a handover: the shard is loaded. It returns task.ErrConflict if the handover is
	// another one by now.
	TellReady func(ctx context.Context, session kv.Fence, h record.Handover) error
	// Reconcile is how often the Keeper compares without a signal. The default is 2 s.
	Reconcile time.Duration
	// RestAfterFailure is how long the Keeper waits before it restarts a worker that failed. The default is
	// 500 ms.
	RestAfterFailure time.Duration
	Logger           *zap.Logger
}

// Keeper starts and stops the workers of the shards that a node owns, and the preloads of those that it is
// about to own. It acts on the difference between what should run and what runs, never on the content of a
// signal. Only the goroutine of Run uses its fields, except for the atomic ones.
type Keeper struct {
	cfg      KeeperConfig
	running  map[int]*worker       // by shard; includes workers that are ending, and ended ones whose shard rests
	failures map[int]workerFailure // by shard, the last failure, if its worker failed the last time
	ended    chan *worker          // workers that have returned; unbuffered, so that none is lost
	count    atomic.Int64          // workers that have not returned
	beats    atomic.Int64          // see Beats
	preloads preloads
}

// worker is a call of Work for one shard.
type worker struct {
	shard  int
	fences store.Fences // the fences under which it was started
	stop   context.CancelCauseFunc
	err    error // the result of Work; set before the worker is sent to ended
	began  time.Time
	rested time.Time // until when the shard is left alone after its worker has ended
	over   bool      // Work has returned
}

// errNotOurs is the cause with which the Keeper stops a worker that must not run any more.
var errNotOurs = errors.New("this node no longer owns the shard under this fence")

// NewKeeper returns a Keeper. It does nothing until Run is called.
func NewKeeper(cfg KeeperConfig) *Keeper {
	if cfg.Reconcile == 0 {
		cfg.Reconcile = 2 * time.Second
	}

	if cfg.RestAfterFailure == 0 {
		cfg.RestAfterFailure = 500 * time.Millisecond
	}

	return &Keeper{cfg: cfg, running: map[int]*worker{}, failures: map[int]workerFailure{}, ended: make(chan *worker), preloads: newPreloads(cfg)}
}

// Running returns the number of workers. Any goroutine may call it.
func (k *Keeper) Running() int { return int(k.count.Load()) }

// Beats returns a counter that grows at least once in each Reconcile while the Keeper works.
func (k *Keeper) Beats() int64 { return k.beats.Load() }

// Run keeps the workers and preloads as they should be, until ctx ends. Then it stops them all and waits
// for them.
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

		// Any of these leads to a comparison of the whole state.
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

// reconcile stops the workers that should not run, and starts those that should. It returns after which
// time to do so again because of a shard that rests, or 0 if none does.
//
// A shard has at most one worker at a time. When the fences change, a new worker starts only after the old
// one has ended. Otherwise both could decide the same ticks, and their commits would compete (G1).
func (k *Keeper) reconcile(ctx context.Context, now time.Time) (again time.Duration) {
	wanted := k.wantedShards()

	for id, w := range k.running {
		f, ok := wanted[id]
		switch {
		case ok && f == w.fences && !w.over: // it runs as it should
		case !w.over:
			w.stop(errNotOurs) // it stays in running until it has returned
		case ok && f == w.fences && now.Before(w.rested):
			// It has ended by itself, and its shard rests. If the fences have changed, the shard does not have
			// to rest.
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

// wantedShards returns the fences of the shards that this node owns. Without a session it owns none,
// because no commit would succeed (G2).
func (k *Keeper) wantedShards() map[int]store.Fences {
	session, ok := k.cfg.Session()
	if !ok {
		return nil
	}

	wanted := map[int]store.Fences{}
	for _, o := range k.cfg.Owners() {
		if o.Node == k.cfg.Node {
			wanted[o.Shard] = store.Fences{Owner: k.cfg.Fence(o), Node: session.Fence, Gap: session.Gap}
		}
	}

	return wanted
}

// startWorker starts a worker. Its goroutine sends the worker to ended when Work has returned.
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

// maxFailurePause is the longest time that a shard rests whose worker fails every time.
const maxFailurePause = time.Minute

// workerFailure is the last failure of a shard's worker.
type workerFailure struct {
	text  string        // of the error
	pause time.Duration // how long the shard rested after it
}

// handleWorkerEnd handles a worker whose Work has returned. If it failed in the same way as the time
// before, the failure is not logged again, and the shard rests twice as long: a damaged shard stays
// damaged.
func (k *Keeper) handleWorkerEnd(w *worker) {
	k.count.Add(-1)
	w.over = true
	rest := k.cfg.RestAfterFailure

	switch {
	case w.err == nil || errors.Is(w.err, context.Canceled) || errors.Is(w.err, task.ErrFenced):
		// It was stopped, or it was fenced before the watch delivered the new owner key. Neither is a
		// failure.
		delete(k.failures, w.shard)
	default:
		last := k.failures[w.shard]
		if last.text == w.err.Error() && time.Since(w.began) < maxFailurePause {
			rest = min(2*last.pause, maxFailurePause)
		} else {
			k.cfg.Logger.Error("the worker of a shard failed; restarting it", zap.Int("shard", w.shard), zap.Error(w.err))
		}

		k.failures[w.shard] = workerFailure{w.err.Error(), rest}
	}

	w.rested = time.Now().Add(rest)
}

// stopAll stops all workers and waits for them.
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
