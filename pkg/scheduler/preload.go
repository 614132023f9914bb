package scheduler

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
)

// preload is a shard that this node loads, and follows, before it owns it. It
// decides nothing, counts nowhere, and becomes a worker when the shard is ours:
//
//	load ──► follow ◄─┐            owners/<shard> names us
//	             │    │ events          │
//	             └────┘                 ▼
//	             └── handed over ──► open ──► caught up ──► scan ──► rounds
//
// What it knows when it opens the shard at revision R is what a load at R would
// have told, once it has applied everything up to R: the opening writes the
// watermark, which lies in the range that is followed, so it hears its own write.
// Ends of runs up to R do not matter to the scan, which begins after R.
type preload struct {
	w              *worker
	watermarkMuted chan struct{}   // closed: changes of the watermark are not told any more
	wanted         chan struct{}   // closed: hand over
	handed         chan *following // what is handed over; closed without: nothing
	leave          func()          // its place among those that load; nil once it is given back
}

// Preload loads a shard and follows it, until ctx ends or Work takes it over; then
// it returns nil. It calls loaded each time that the shard is loaded as a whole.
func (e *Engine) Preload(ctx context.Context, shard int, loaded func()) error {
	p := &preload{
		w: newWorker(e, shard, store.Fences{}), watermarkMuted: make(chan struct{}), wanted: make(chan struct{}), handed: make(chan *following, 1),
	}
	e.mu.Lock()
	if e.preloads[shard] != nil {
		e.mu.Unlock()
		return fmt.Errorf("shard %d is being loaded already", shard)
	}

	e.preloads[shard] = p
	e.mu.Unlock()

	defer func() {
		e.mu.Lock()
		if e.preloads[shard] == p {
			delete(e.preloads, shard)
		}
		e.mu.Unlock()

		close(p.handed)
	}()

	return p.followShard(ctx, loaded)
}

func (p *preload) followShard(ctx context.Context, loaded func()) error {
	w := p.w
	select {
	case w.e.ahead <- struct{}{}:
		p.leave = func() { <-w.e.ahead; p.leave = func() {} }

	case <-ctx.Done():
		return ctx.Err()
	case <-p.wanted:
		return nil
	}

	w.becomeStandby()
	// It goes on when this call has ended, if the shard is handed over.
	f := startFollowing(context.WithoutCancel(ctx), func(ctx context.Context, apply func(store.ShardBatch) error) {
		_ = w.e.cfg.Store.FollowStandbyShard(ctx, w.Shard, p.tellsWatermark, apply) // ends with ctx
	})

	for {
		select {
		case <-ctx.Done():
			p.leave()
			f.stop()
			w.e.metrics.ahead.WithLabelValues("dropped").Inc()

			return ctx.Err()
		case <-p.wanted:
			p.leave()

			if !w.firstPageApplied { // nothing is gained yet, and a load at the opening's revision is simpler
				f.stop()
				return nil
			}

			p.handed <- f

			return nil
		case b := <-f.batches:
			if b.First && w.firstPageApplied {
				w.becomeStandby() // it may have missed something: from the beginning
			}

			if w.applyBatch(b) == nil && b.Reset && !b.More {
				p.leave()
				w.loadWatermark(b)
				loaded()
			}
		}
	}
}

// tellsWatermark reports whether changes of the watermark are to be told.
func (p *preload) tellsWatermark() bool {
	select {
	case <-p.watermarkMuted:
		return false
	default:
		return true
	}
}

// takePreload ends the preload of a shard for its worker to go on with; nil if there is
// none, or nothing is loaded yet.
func (e *Engine) takePreload(shard int) *preload {
	e.mu.Lock()
	p := e.preloads[shard]
	delete(e.preloads, shard)
	e.mu.Unlock()

	if p == nil {
		return nil
	}

	close(p.wanted)
	f := <-p.handed
	if f == nil {
		return nil
	}

	p.w.preloaded, p.w.stopTellingWatermark = f, p.watermarkMuted

	return p
}

// handOver makes the preload a worker under fences.
func (p *preload) handOver(f store.Fences) *worker {
	p.w.fences = f
	p.w.undecided.Store(p.w.e.cfg.Now().UnixMilli())
	return p.w
}

// becomeStandby makes the worker know nothing, and count nowhere.
func (w *worker) becomeStandby() {
	w.owner = false
	w.discardState()
	w.endedSince = nil // no scan is under way that could have missed them
	w.owner, w.watermarkKnown = false, false
}

// catchUpTimeout is how long the worker waits for its own opening to come by the watch.
const catchUpTimeout = 2 * time.Second

// serveLoaded opens a shard that is loaded already, or nearly, and serves it.
func (w *worker) serveLoaded(ctx context.Context, f *following) error {
	defer f.stop()

	scan, err := w.openLoaded(ctx, f.batches)
	if err != nil {
		return err
	}

	w.e.metrics.ahead.WithLabelValues("used").Inc()

	return w.runLoop(ctx, f.batches, scan)
}

// openLoaded opens the shard and applies what led up to that. The scan that it
// returns is asked for after the opening.
func (w *worker) openLoaded(ctx context.Context, batches <-chan store.ShardBatch) (scan <-chan map[int][]store.ActiveKey, err error) {
	mark, rev, err := w.e.cfg.Store.Open(ctx, w.Shard, w.fences)
	if err != nil {
		return nil, err
	}

	w.e.metrics.opens.Inc()
	w.noteOpening(mark)
	w.noteProgress()

	if scan, err = w.e.scans.Ask(ctx); err != nil {
		return nil, err
	}

	w.becomeOwner()

	if err := w.followUntil(ctx, batches, rev); err != nil {
		return nil, err
	}

	close(w.stopTellingWatermark)

	// The next ticks were found by an older watermark, the one that was loaded. (serve sets it before it loads.)
	w.setWatermark(mark)
	w.WatermarkRev = rev

	return scan, nil
}

// becomeOwner makes what the worker knows count.
func (w *worker) becomeOwner() {
	w.owner = true
	w.endedSince = map[string]int64{}
	w.publishGauges()
}

// followUntil applies what has happened up to rev, the end of a load included. If
// the watch does not tell in time, the shard is opened anew, which needs no watch.
func (w *worker) followUntil(ctx context.Context, batches <-chan store.ShardBatch, rev int64) error {
	quiet := time.NewTimer(catchUpTimeout)
	defer quiet.Stop()

	for !w.watermarkKnown || w.applied < rev {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-quiet.C:
			w.log.Info("the watch of a preloaded shard did not report its opening; reloading it", zap.Int64("rev", rev), zap.Int64("applied", w.applied))
			return errReload
		case b := <-batches:
			if err := w.applyBatch(b); err != nil {
				return err
			}

			w.noteProgress()

			if b.Reset && !b.More {
				w.loadWatermark(b)
			}

			quiet.Reset(catchUpTimeout)
		}
	}

	return nil
}
