package election

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
)

const (
	defaultTTL    = 10 * time.Second       // of the lease
	resignTimeout = 3 * time.Second        // after that, the lease expires by itself
	firstPause    = 100 * time.Millisecond // before the next attempt; doubles after each failure
	maxPause      = 5 * time.Second
)

// ErrLost is part of the cause with which the context of a leader ends when the leadership is lost.
var ErrLost = errors.New("leadership lost")

// Term is one period of leadership.
type Term struct {
	// Fence holds as long as the term lasts. Every write of the leader must compare it.
	Fence kv.Fence
	Node  string // name of the leader
}

// Config is the configuration of an Election.
type Config struct {
	// Prefix is the prefix of the cluster's keys. It ends in "/", as in "/carillon/".
	Prefix string
	// Node is the name of the candidate.
	Node string
	// TTL is the time to live of the leader key's lease. The default is 10 s.
	TTL time.Duration
	// Leases is called with each lease before it is used, so that it can be saved and published, and with 0
	// when it is given up. If it returns an error, the attempt ends. May be nil.
	Leases func(clientv3.LeaseID) error
	// Alive is called before each renewal of the lease. If it returns an error, the attempt ends. May be
	// nil.
	Alive  func() error
	Logger *zap.Logger // may be nil
}

// Election is one candidate. New creates it, and Run campaigns.
type Election struct {
	client *kv.Client
	cfg    Config
	log    *zap.Logger
}

// New returns an Election. It does no I/O.
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

// Run campaigns until ctx ends, and calls lead in each term that it wins. The context of lead ends when ctx
// ends, or with a cause that includes ErrLost. lead must then return soon, because Run waits for it before
// it campaigns again. When lead returns, with or without an error, Run resigns, and campaigns again after a
// pause. Run returns the error of ctx, after it has tried to resign for at most resignTimeout.
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
			// Log only the first of consecutive failures.
			failing = true
			e.log.Warn("cannot campaign; retrying", zap.Error(err))
		}

		// After a term, or an attempt that lasted for some time, the next pause is short again.
		if err == nil || time.Since(began) > maxPause {
			pause = firstPause
		}

		if !sleepAbout(ctx, pause) {
			return ctx.Err()
		}

		pause = min(2*pause, maxPause)
	}
}

// attemptTerm goes once from a new session to the end of a term, and resigns in any case. elected reports
// whether there was a term.
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

// openSession opens a session that outlives ctx. So a leader that must stop can still write, and resign
// after that. Only the opening itself ends with ctx.
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

// holdTerm runs lead until it returns, and ends its context when the term is over. mod is the leader key's
// mod revision. Any change of the key by anyone ends the term.
func (e *Election) holdTerm(ctx context.Context, s *kv.Session, fence kv.Fence, mod int64, lead func(context.Context, Term) error) error {
	log := e.log.With(zap.Int64("term", fence.CreateRevision))
	ctx, cancel := context.WithCancelCause(ctx)
	var guards sync.WaitGroup
	defer guards.Wait()
	defer cancel(nil)

	// Two goroutines detect the end of the term: when the session ends, and when the leader key changes.
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

	log.Info("elected")

	err := lead(ctx, Term{Fence: fence, Node: e.cfg.Node})
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrLost):
		// The leadership ended first, so the error of lead is a consequence and is not reported.
		log.Warn("lost the leadership", zap.Error(cause))
	case err != nil && ctx.Err() == nil:
		log.Error("leading failed; resigning", zap.Error(err))
		return err
	default:
		log.Info("resigning")
	}

	return nil
}

// watchLeaderKey follows the leader key until it differs from the key that was confirmed. It then returns
// an error that wraps ErrLost. Each load and each event is checked, so a change that happens while a watch
// is down is found as well.
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

// resignTerm ends what an attempt has begun, whether or not it led to a term. Revoking the lease deletes
// the key. The explicit delete is for a key that somebody has detached from the lease.
func (e *Election) resignTerm(ctx context.Context, s *kv.Session, fence kv.Fence) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
	defer cancel()

	// There is a fence if the campaign got as far as confirming its key. The delete compares it, so that it
	// deletes no other key.
	var errs []error
	if fence.Key != "" {
		_, err := kv.Direct(e.client).Commit(ctx, kv.Txn{
			If:   []clientv3.Cmp{fence.Compare()},
			Then: []clientv3.Op{clientv3.OpDelete(fence.Key)},
		})
		errs = append(errs, err)
	}

	// Revoking the lease lets the next candidate lead at once. If it fails, the lease expires after its
	// TTL.
	errs = append(errs, s.Close(ctx))
	if e.cfg.Leases != nil {
		errs = append(errs, e.cfg.Leases(0))
	}

	if err := errors.Join(errs...); err != nil {
		e.log.Warn("could not resign; the lease will expire", zap.Error(err))
	}
}

// sleepAbout waits for a random time between d/2 and 3d/2. It returns false if ctx ends.
func sleepAbout(ctx context.Context, d time.Duration) bool {
	return clock.Sleep(ctx, clock.Jitter(d))
}
