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
)

// preloadLinger is how long a preload goes on that nothing asks for any more: the
// handover may be known here to be gone before the owner key is known to be ours,
// and a session that is lost is found again soon.
const preloadLinger = 2 * time.Second

// preloads are the shards that a node loads before it owns them. One goroutine
// owns them: the Keeper's.
type preloads struct {
	cfg     KeeperConfig
	running map[int]*preload
	changed chan struct{} // one was loaded, or has ended
	telling *atomic.Bool  // answers are on their way: one list of them at a time
	all     *sync.WaitGroup
}

type preload struct {
	stop   context.CancelFunc
	loaded atomic.Bool
	over   atomic.Bool
	retell atomic.Bool // the last answer did not arrive

	wanted time.Time // when something asked for it last
	began  time.Time
	told   answer
}

// answer is which handover was answered, and under which session.
type answer struct{ handover, session int64 }

func newPreloads(cfg KeeperConfig) preloads {
	return preloads{cfg: cfg, running: map[int]*preload{}, changed: make(chan struct{}, 1), telling: &atomic.Bool{}, all: &sync.WaitGroup{}}
}

func (p *preloads) notifyChanged() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// reconcile stops what nobody wants, starts what is wanted, and answers the
// handovers of what is loaded.
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
				delete(wanted, o.Shard) // its worker takes it over
			}
		}
	}

	for id, l := range p.running {
		if _, ok := wanted[id]; ok {
			l.wanted = now
		}

		switch {
		case l.over.Load() && now.Sub(l.began) < p.cfg.RestAfterFailure: // not in a hurry
		case l.over.Load():
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

	if present && p.telling.CompareAndSwap(false, true) {
		p.answerHandovers(ctx, session, wanted)
	}
}

// answerHandovers answers the handovers of what is loaded, each once.
func (p *preloads) answerHandovers(ctx context.Context, session kv.Fence, wanted map[int]record.Handover) {
	answers := map[*preload]record.Handover{}
	for id, h := range wanted {
		l := p.running[id]
		if l.retell.Swap(false) {
			l.told = answer{}
		}

		this := answer{h.Revision, session.CreateRevision}
		if l.loaded.Load() && !l.over.Load() && h.Ready != session.CreateRevision && l.told != this {
			l.told, answers[l] = this, h
		}
	}

	if len(answers) == 0 {
		p.telling.Store(false)
		return
	}

	p.all.Add(1)
	go func() {
		defer p.all.Done()

		p.sendAnswers(ctx, session, answers)
		p.telling.Store(false)
		p.notifyChanged() // others may have been loaded meanwhile
	}()
}

func (p *preloads) startPreload(ctx context.Context, id int, now time.Time) {
	ctx, stop := context.WithCancel(ctx)
	l := &preload{stop: stop, began: now, wanted: now}
	p.running[id] = l
	p.all.Add(1)
	go func() {
		defer p.all.Done()

		err := p.cfg.Preload(ctx, id, func() {
			l.loaded.Store(true)
			p.notifyChanged()
		})

		stop()

		if err != nil && !errors.Is(err, context.Canceled) {
			p.cfg.Logger.Warn("could not load a shard before it is ours", zap.Int("shard", id), zap.Error(err))
		}

		l.over.Store(true)
		p.notifyChanged()
	}()
}

// sendAnswers sends answers. One that does not arrive is sent again at a later look, if
// there is still something to answer.
func (p *preloads) sendAnswers(ctx context.Context, session kv.Fence, answers map[*preload]record.Handover) {
	for l, h := range answers {
		err := p.cfg.TellReady(ctx, session, h)
		if err == nil || errors.Is(err, task.ErrConflict) || ctx.Err() != nil {
			continue // if it is another handover by now, that one will be answered
		}

		p.cfg.Logger.Debug("could not tell that a shard is loaded", zap.Int("shard", h.Shard), zap.Error(err))
		time.AfterFunc(p.cfg.RestAfterFailure, func() {
			l.retell.Store(true)
			p.notifyChanged()
		})
	}
}

func (p *preloads) stopAll() {
	for _, l := range p.running {
		l.stop()
	}
	p.all.Wait()
}
