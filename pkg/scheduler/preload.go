package scheduler

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/store"
)

// preload is a shard that this node loads and follows before it owns it. It decides nothing and appears in
// no metric. When the node becomes the owner, it turns into a worker:
//
//	load ──► follow ◄─┐            owners/<shard> names this node
//	             │    │ events          │
//	             └────┘                 ▼
//	             └── handed over ──► open ──► caught up ──► scan ──► rounds
//
// The worker opens the shard at some revision R. Once it has applied all events up to R, it has the same
// state as after a load at R. It learns that it has done so from the watch itself: the opening writes the
// watermark, which is in the range that is followed, so the watch reports that write. Ends of runs up to R
// do not matter to the scan, which begins after R.
type preload struct {
	w *worker
	// watermarkMuted is closed when the watch no longer has to report changes of the watermark.
	watermarkMuted chan struct{}
	// wanted is closed to request the handover.
	wanted chan struct{}
	// handed delivers the watch that is handed over. It is closed without a value if there is none.
	handed chan *background.Feed
	// leave gives back the place among the shards that are being preloaded. Further calls do nothing.
	leave func()
}

// Preload loads a shard and follows it, until ctx ends or Work takes it over; in the second case it returns
// nil. It calls loaded, which must not block, each time that the whole shard has been loaded. It returns an
// error if the shard is being preloaded already.
func (e *Engine) Preload(ctx context.Context, shard int, loaded func()) error {
	p := &preload{
		w: newWorker(e, shard, store.Fences{}), watermarkMuted: make(chan struct{}), wanted: make(chan struct{}), handed: make(chan *background.Feed, 1),
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

// followShard loads the shard and applies its events. It runs in the goroutine of Preload, which owns the
// worker's state until the handover.
func (p *preload) followShard(ctx context.Context, loaded func()) error {
	w := p.w
	select {
	case w.e.preloadSlots <- struct{}{}:
		p.leave = func() { <-w.e.preloadSlots; p.leave = func() {} }

	case <-ctx.Done():
		return ctx.Err()
	case <-p.wanted:
		return nil
	}

	w.becomeStandby()

	// The watch must outlive this call if the shard is handed over, so it does not end with ctx.
	f := background.StartFeed(context.WithoutCancel(ctx), func(ctx context.Context, apply func(store.ShardBatch) error) {
		_ = w.e.cfg.Store.FollowStandbyShard(ctx, w.state.records.Shard, p.tellsWatermark, apply) // ends with ctx
	})

	for {
		select {
		case <-ctx.Done():
			p.leave()
			f.Stop()
			w.e.metrics.Preloads.WithLabelValues("dropped").Inc()

			return ctx.Err()
		case <-p.wanted:
			p.leave()

			if !w.state.firstPageApplied {
				// Nothing has been loaded yet. A load at the opening's revision is simpler.
				f.Stop()
				return nil
			}

			p.handed <- f

			return nil
		case b := <-f.Batches:
			if b.First && w.state.firstPageApplied {
				// The watch has started a new load because it may have missed events. Start over.
				w.becomeStandby()
			}

			// The last page of a load contains the watermark, from which the next ticks follow.
			if w.applyBatch(b) == nil && b.Reset && !b.More {
				p.leave()
				w.state.loadWatermark(b)
				loaded()
			}
		}
	}
}

// tellsWatermark reports whether the watch must report changes of the watermark.
func (p *preload) tellsWatermark() bool {
	select {
	case <-p.watermarkMuted:
		return false
	default:
		return true
	}
}

// takePreload ends the preload of a shard so that its worker can continue with it. It returns nil if there
// is no preload, or it has not loaded anything yet.
func (e *Engine) takePreload(shard int) *preload {
	e.mu.Lock()
	p := e.preloads[shard]
	delete(e.preloads, shard)
	e.mu.Unlock()

	if p == nil {
		return nil
	}

	// The preload's goroutine answers with the watch, or closes the channel if it has loaded nothing. After
	// that it no longer touches the worker's state.
	close(p.wanted)
	f := <-p.handed
	if f == nil {
		return nil
	}

	p.w.preloaded, p.w.stopTellingWatermark = f, p.watermarkMuted

	return p
}

// handOver returns the worker of the preload, with the fences of the new owner.
func (p *preload) handOver(f store.Fences) *worker {
	p.w.state.fences = f
	p.w.undecided.Store(p.w.e.cfg.Now().UnixMilli())
	return p.w
}

// becomeStandby discards what the worker knows, and makes it appear in no metric.
func (w *worker) becomeStandby() {
	w.state.owner = false
	w.discardState()
	w.state.endedSince = nil // a preload has no scan that could contain ended attempts
	w.state.owner, w.state.watermarkKnown = false, false
}

// catchUpTimeout is how long the worker waits for an event of the watch before its own opening is reported.
const catchUpTimeout = 2 * time.Second

// serveLoaded opens a shard whose load has been started or completed by a preload, and decides its ticks.
// It always stops the watch f.
func (w *worker) serveLoaded(ctx context.Context, f *background.Feed) error {
	defer f.Stop()

	scan, err := w.openLoaded(ctx, f.Batches)
	if err != nil {
		return err
	}

	w.e.metrics.Preloads.WithLabelValues("used").Inc()

	return w.runLoop(ctx, f, scan)
}

// openLoaded opens the shard and applies all events up to the opening. The scan that it returns was
// requested after the opening, as in openAndServe.
func (w *worker) openLoaded(ctx context.Context, batches <-chan store.ShardBatch) (scan <-chan map[int][]store.ActiveKey, err error) {
	mark, rev, err := w.e.cfg.Store.Open(ctx, w.state.records.Shard, w.state.fences)
	if err != nil {
		return nil, err
	}

	w.e.metrics.Opens.Inc()
	w.noteOpening(mark)
	w.noteProgress()

	if scan, err = w.e.scans.Ask(ctx); err != nil {
		return nil, err
	}

	w.becomeOwner()

	if err := w.followUntil(ctx, batches, rev); err != nil {
		return nil, err
	}

	// From now on, this worker is the only writer of the watermark.
	close(w.stopTellingWatermark)

	// The next ticks were computed from an older watermark, the one of the load. Apply the one that the
	// opening found.
	w.state.setWatermark(mark)
	w.state.records.WatermarkRev = rev

	return scan, nil
}

// becomeOwner makes the worker the owner: its state appears in metrics, and ends of runs are noted for the
// scan.
func (w *worker) becomeOwner() {
	w.state.owner = true
	w.state.endedSince = map[string]int64{}
	w.publishGauges()
}

// followUntil applies events until the load is complete and everything up to rev is applied. If the watch
// delivers nothing for catchUpTimeout, it returns errReload: another opening loads the shard without
// depending on a watch.
func (w *worker) followUntil(ctx context.Context, batches <-chan store.ShardBatch, rev int64) error {
	quiet := time.NewTimer(catchUpTimeout)
	defer quiet.Stop()

	// The watermark is the last record of a load, so the load is complete when it is known.
	for !w.state.watermarkKnown || w.state.applied < rev {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-quiet.C:
			w.log.Info("the watch of a preloaded shard did not report its opening; reloading it", zap.Int64("rev", rev), zap.Int64("applied", w.state.applied))
			return errReload
		case b := <-batches:
			if err := w.applyBatch(b); err != nil {
				return err
			}

			w.noteProgress()

			if b.Reset && !b.More {
				w.state.loadWatermark(b)
			}

			quiet.Reset(catchUpTimeout)
		}
	}

	return nil
}
