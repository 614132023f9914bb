package shard

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// preloadLinger is how long a preload continues after the node has stopped wanting it. The deletion of the
// handover may be known before the new owner key, and a lost session is usually replaced soon.
const preloadLinger = 2 * time.Second

// preloads are the shards that a node loads before it owns them. The Keeper's goroutine owns the fields,
// except for the atomic ones.
type preloads struct {
	cfg     KeeperConfig
	running map[int]*preload // by shard; includes those that have ended and not been removed yet
	changed wake.Signal      // signals that a shard was loaded, or that a preload has ended; one slot
	sending *atomic.Bool     // answers are being sent; only one list at a time
	all     *sync.WaitGroup  // all goroutines that were started
}

// preload is a call of Preload for one shard.
type preload struct {
	stop   context.CancelFunc
	loaded atomic.Bool // the shard is loaded
	ended  atomic.Bool // Preload has returned
	resend atomic.Bool // the last answer failed and must be sent again

	wanted     time.Time // when it was last wanted
	began      time.Time
	sentAnswer answer // the last answer that was sent
}

// answer identifies the revision of a handover and the session (create revision) under which it was
// answered.
type answer struct{ handover, session int64 }

// newPreloads returns an empty set of preloads.
func newPreloads(cfg KeeperConfig) preloads {
	return preloads{cfg: cfg, running: map[int]*preload{}, changed: wake.NewSignal(), sending: &atomic.Bool{}, all: &sync.WaitGroup{}}
}

// notifyChanged makes the Keeper reconcile. It does not block.
func (p *preloads) notifyChanged() {
	p.changed.Send()
}

// reconcile stops the preloads that are not wanted, starts those that are, and answers the handovers of
// shards that are loaded.
func (p *preloads) reconcile(ctx context.Context, now time.Time) {
	if p.cfg.Handovers == nil || ctx.Err() != nil {
		return
	}

	session, present := p.cfg.Session()
	wanted := map[int]record.Handover{}
	if present {
		for _, h := range p.cfg.Handovers() {
			if h.To == p.cfg.Node {
				wanted[h.Shard] = h
			}
		}

		for _, o := range p.cfg.Owners() {
			if o.Node == p.cfg.Node {
				delete(wanted, o.Shard) // this node owns the shard by now; its worker takes the preload over
			}
		}
	}

	for id, l := range p.running {
		if _, ok := wanted[id]; ok {
			l.wanted = now
		}

		switch {
		case l.ended.Load() && now.Sub(l.began) < p.cfg.RestAfterFailure: // wait before a restart
		case l.ended.Load():
			delete(p.running, id)
		case now.Sub(l.wanted) > preloadLinger:
			l.stop()
		}
	}

	for id := range wanted {
		if p.running[id] == nil {
			p.startPreload(ctx, id, now)
		}
	}

	if present && p.sending.CompareAndSwap(false, true) {
		p.answerHandovers(ctx, session.Fence, wanted)
	}
}

// answerHandovers answers each handover of a loaded shard once. It sends the answers in a goroutine. The
// caller has set telling, which is cleared when all have been sent.
func (p *preloads) answerHandovers(ctx context.Context, session kv.Fence, wanted map[int]record.Handover) {
	answers := map[*preload]record.Handover{}
	for id, h := range wanted {
		l := p.running[id]
		if l.resend.Swap(false) {
			l.sentAnswer = answer{}
		}

		// A new revision of the handover, or a new session of this node, needs a new answer.
		this := answer{h.Revision, session.CreateRevision}
		if l.loaded.Load() && !l.ended.Load() && h.Ready != session.CreateRevision && l.sentAnswer != this {
			l.sentAnswer, answers[l] = this, h
		}
	}

	if len(answers) == 0 {
		p.sending.Store(false)
		return
	}

	p.all.Add(1)
	go func() {
		defer p.all.Done()

		p.sendAnswers(ctx, session, answers)
		p.sending.Store(false)

		// Other shards may have been loaded while the answers were being sent.
		p.notifyChanged()
	}()
}

// startPreload starts a preload. Its goroutine records when the shard is loaded and when Preload has
// returned.
func (p *preloads) startPreload(ctx context.Context, id int, now time.Time) {
	ctx, stop := context.WithCancel(ctx)
	l := &preload{stop: stop, began: now, wanted: now}
	p.running[id] = l
	p.all.Add(1)
	go func() {
		defer p.all.Done()

		// Preload returns nil if the worker has taken the shard over.
		err := p.cfg.Preload(ctx, id, func() {
			l.loaded.Store(true)
			p.notifyChanged()
		})

		stop()

		if err != nil && !errors.Is(err, context.Canceled) {
			p.cfg.Logger.Warn("could not preload a shard", zap.Int("shard", id), zap.Error(err))
		}

		l.ended.Store(true)
		p.notifyChanged()
	}()
}

// sendAnswers sends answers. One that fails is sent again after RestAfterFailure, if it is still wanted
// then.
func (p *preloads) sendAnswers(ctx context.Context, session kv.Fence, answers map[*preload]record.Handover) {
	for l, h := range answers {
		err := p.cfg.TellReady(ctx, session, h)
		if err == nil || errors.Is(err, task.ErrConflict) || ctx.Err() != nil {
			// After a conflict, the handover is another one by now. That one gets its own answer.
			continue
		}

		p.cfg.Logger.Debug("could not report that a shard is loaded", zap.Int("shard", h.Shard), zap.Error(err))
		time.AfterFunc(p.cfg.RestAfterFailure, func() {
			l.resend.Store(true)
			p.notifyChanged()
		})
	}
}

// stopAll stops all preloads and waits for their goroutines.
func (p *preloads) stopAll() {
	for _, l := range p.running {
		l.stop()
	}
	p.all.Wait()
}
