package election

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
)

const (
	defaultTTL    = 10 * time.Second
	resignTimeout = 3 * time.Second
	firstPause    = 100 * time.Millisecond
	longestPause  = 5 * time.Second
)

// ErrLost is the cause with which the context of a leader ends that has lost its leadership.
var ErrLost = errors.New("leadership lost")

// Term is one leadership.
type Term struct {
	// Fence holds while the term lasts; every write of the leader compares it.
	Fence kv.Fence
	Node  string
}

// Config says who campaigns, and where.
type Config struct {
	// Prefix is the cluster's and ends in "/", as in "/carillon/".
	Prefix string
	// Node is the candidate.
	Node string
	// TTL of the lease of the leader key; default 10 s.
	TTL time.Duration
	// Leases, if set, is told of each lease before it is used for a campaign, so that it can be saved and published,
	// and of 0 when that lease is given up. Its error ends the attempt.
	Leases func(clientv3.LeaseID) error
	// Alive, if set, is asked before each renewal of a lease; its error ends the attempt.
	Alive  func() error
	Logger *zap.Logger // may be nil
}

// Election is a candidacy. It is made by New and lives in Run.
type Election struct {
	client *kv.Client
	cfg    Config
	log    *zap.Logger

	mu    sync.Mutex
	ended <-chan struct{} // closed when the current term ends; nil if there is none
}

// New prepares a candidacy; Run campaigns.
func New(c *kv.Client, cfg Config) *Election {
	if cfg.TTL == 0 {
		cfg.TTL = defaultTTL
	}

	log := cfg.Logger
	if log == nil {
		log = zap.NewNop()
	}

	return &Election{client: c, cfg: cfg, log: log.Named("election").With(zap.String("node", cfg.Node))}
}

// Leading says whether this candidate leads, as far as it knows. It authorises nothing.
func (e *Election) Leading() bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.ended == nil {
		return false
	}

	select {
	case <-e.ended:
		return false
	default:
		return true
	}
}

// Run campaigns until ctx ends, and calls lead in each term that it wins. The context of lead ends when ctx does, or
// with ErrLost as part of its cause; lead must then return soon, since Run waits for it before it campaigns again. When
// lead returns, with an error or without, the leadership is given up and sought again after a pause. Run returns the
// error of ctx, after it has resigned, which it tries for three seconds.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context, term Term) error) error {
	pause, failing := firstPause, false
	for {
		began := time.Now()
		elected, err := e.attemptTerm(ctx, lead)

		if ctx.Err() != nil {
			return ctx.Err()
		}

		switch {
		case elected:
			failing = false
		case !failing:
			failing = true
			e.log.Warn("cannot campaign; retrying", zap.Error(err))
		}

		if err == nil || time.Since(began) > longestPause {
			pause = firstPause
		}

		if !sleepAbout(ctx, pause) {
			return ctx.Err()
		}

		pause = min(2*pause, longestPause)
	}
}

// attemptTerm goes once from a new session to the end of a term, and says whether there was one.
func (e *Election) attemptTerm(ctx context.Context, lead func(context.Context, Term) error) (elected bool, err error) {
	s, err := e.openSession(ctx)
	if err != nil {
		return false, err
	}

	var fence kv.Fence
	defer func() { e.resignTerm(ctx, s, fence) }()

	fence, mod, err := e.campaignForTerm(ctx, s)
	if err != nil {
		return false, err
	}

	return true, e.holdTerm(ctx, s, fence, mod, lead)
}

// openSession opens a session that outlives ctx, so that a leader that is asked to stop can still write and then resign; only
// the opening itself ends with ctx.
func (e *Election) openSession(ctx context.Context) (*kv.Session, error) {
	live, cancel := context.WithCancel(context.WithoutCancel(ctx))
	keep := context.AfterFunc(ctx, cancel)
	s, err := kv.OpenSession(live, e.client, kv.SessionConfig{TTL: e.cfg.TTL, Saved: e.cfg.Leases, Alive: e.cfg.Alive, Logger: e.log})
	keep()
	if err != nil {
		cancel()
		return nil, err
	}

	return s, nil
}

// holdTerm runs lead while the term lasts. mod is the leader key's mod revision: any change to the key, by whomever, ends
// the term.
func (e *Election) holdTerm(ctx context.Context, s *kv.Session, fence kv.Fence, mod int64, lead func(context.Context, Term) error) error {
	log := e.log.With(zap.Int64("term", fence.CreateRevision))
	ctx, cancel := context.WithCancelCause(ctx)
	var guards sync.WaitGroup
	defer guards.Wait()
	defer cancel(nil)

	guards.Go(func() {
		select {
		case <-s.Done():
			cancel(fmt.Errorf("%w: %w", ErrLost, s.Err()))
		case <-ctx.Done():
		}
	})

	guards.Go(func() {
		if err := e.watchLeaderKey(ctx, fence.Key, mod); ctx.Err() == nil {
			cancel(err)
		}
	})

	e.beginTerm(ctx.Done())
	log.Info("elected")

	err := lead(ctx, Term{Fence: fence, Node: e.cfg.Node})
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrLost):
		log.Warn("lost the leadership", zap.Error(cause))
	case err != nil && ctx.Err() == nil:
		log.Error("leading failed; resigning", zap.Error(err))
		return err
	default:
		log.Info("resigning")
	}

	return nil
}

// watchLeaderKey follows the leader key until it is not the one that was confirmed.
func (e *Election) watchLeaderKey(ctx context.Context, key string, mod int64) error {
	changed := fmt.Errorf("%w: the leader key was deleted or changed", ErrLost)
	return kv.Follow(ctx, e.client, kv.FollowConfig{Key: key, Logger: e.log, Name: "leader"}, func(b kv.Batch) error {
		held := true
		if b.Reset {
			held = len(b.KVs) == 1 && b.KVs[0].ModRevision == mod
		}

		for _, ev := range b.Events {
			held = held && ev.Type == clientv3.EventTypePut && ev.Kv.ModRevision == mod
		}

		if !held {
			return changed
		}

		return nil
	})
}

func (e *Election) beginTerm(ended <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = ended
}

// resignTerm ends what the attempt began. The key goes with the lease; the delete is for one that somebody has detached.
func (e *Election) resignTerm(ctx context.Context, s *kv.Session, fence kv.Fence) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
	defer cancel()

	var errs []error
	if fence.Key != "" {
		_, err := kv.Direct(e.client).Commit(ctx, kv.Txn{
			If:   []clientv3.Cmp{fence.Compare()},
			Then: []clientv3.Op{clientv3.OpDelete(fence.Key)},
		})
		errs = append(errs, err)
	}

	errs = append(errs, s.Close(ctx))
	if e.cfg.Leases != nil {
		errs = append(errs, e.cfg.Leases(0))
	}

	if err := errors.Join(errs...); err != nil {
		e.log.Warn("could not resign; the lease will expire", zap.Error(err))
	}
}

// sleepAbout waits about d, and reports whether ctx still runs.
func sleepAbout(ctx context.Context, d time.Duration) bool {
	return clock.Sleep(ctx, d/2+rand.N(d+1))
}
