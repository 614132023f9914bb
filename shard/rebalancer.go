package shard

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Assignments is what the Rebalancer needs of the store.
type Assignments interface {
	Lineup(ctx context.Context) (store.Lineup, error)
	Assign(ctx context.Context, term kv.Fence, moves []store.Move, now task.Time) error
	Prepare(ctx context.Context, term kv.Fence, list []record.Handover, now task.Time) error
	Withdraw(ctx context.Context, term kv.Fence, list []record.Handover) error
}

// RebalancerConfig says what to rebalance.
type RebalancerConfig struct {
	Store  Assignments
	Shards int
	// Changed says that nodes/ or owners/ may have changed: look again.
	Changed <-chan struct{}
	// Ready says that moves/ may have: look again soon.
	Ready <-chan struct{}
	// Quiet is how long nothing must have changed before a plan is made, so
	// that nodes that start together move shards once; default 100 ms. It is
	// waited for ten times as long at the most; after Ready a fifth of it.
	Quiet time.Duration
	// Reconcile is how often to look without being told; default 30 s.
	Reconcile time.Duration
	// Limit is how long a shard waits for its next owner to load it, at most,
	// while its present one fires; default 30 s.
	Limit time.Duration
	// Grace is how long shards stay where they are when most nodes have vanished
	// together: enough for a node to notice and to join again; default 5 s.
	Grace      time.Duration
	Now        func() time.Time
	Logger     *zap.Logger
	Registerer prometheus.Registerer // may be nil
}

// Rebalancer writes owners while its node leads.
type Rebalancer struct {
	cfg   RebalancerConfig
	moved *prometheus.CounterVec
	held  prometheus.Counter
}

// NewRebalancer makes a Rebalancer, for as many terms as come.
func NewRebalancer(cfg RebalancerConfig) *Rebalancer {
	cfg.Quiet = cmp.Or(cfg.Quiet, 100*time.Millisecond)
	cfg.Reconcile = cmp.Or(cfg.Reconcile, 30*time.Second)
	cfg.Limit = cmp.Or(cfg.Limit, 30*time.Second)
	cfg.Grace = cmp.Or(cfg.Grace, 5*time.Second)
	r := &Rebalancer{
		cfg: cfg,
		moved: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_shard_moves_total",
			Help: "Shards that this node moved as the leader: loaded (the next owner had preloaded it), forced (it had not preloaded it in time), at_once (the shard had no working owner)."}, []string{"how"}),
		held: prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_mass_losses_total",
			Help: "Times that this node, as the leader, saw most nodes disappear at once and left their shards in place for a while."}),
	}

	for _, how := range []string{"loaded", "forced", "at_once"} {
		r.moved.WithLabelValues(how)
	}

	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(r.moved, r.held)
	}

	return r
}

// Lead keeps the assignment in shape until ctx ends or the term is over
// (task.ErrFenced). What it reads decides, never what it was told.
func (r *Rebalancer) Lead(ctx context.Context, term kv.Fence) error {
	l := &leadership{Rebalancer: r, term: term, memory: newMemory(r.cfg.Grace, r.cfg.Limit)}

	for failures := 0; ; {
		again, err := l.rebalance(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, task.ErrFenced):
			return err
		case err == nil:
			failures = 0
			if err := r.waitForChange(ctx, again); err != nil {
				return err
			}
		default: // a key moved under us, or etcd is away: read again
			if failures++; failures == 1 {
				r.cfg.Logger.Warn("could not assign shards, trying again", zap.Error(err))
			}

			if err := r.waitForChange(ctx, min(time.Second, time.Duration(failures)*50*time.Millisecond)); err != nil {
				return err
			}
		}
	}
}

// leadership is one term of a Rebalancer.
type leadership struct {
	*Rebalancer
	term   kv.Fence
	memory *memory
	held   bool
}

// rebalance reads, plans and writes. It returns when to do so again without being
// told.
func (l *leadership) rebalance(ctx context.Context) (again time.Duration, err error) {
	lineup, err := l.cfg.Store.Lineup(ctx)
	if err != nil {
		return 0, err
	}

	notes, again := l.memory.update(time.Now(), lineup)
	if again = min(cmp.Or(again, l.cfg.Reconcile), l.cfg.Reconcile); notes.Hold && !l.held {
		l.Rebalancer.held.Inc()
		l.cfg.Logger.Warn("most nodes have vanished together: their shards stay for a while", zap.Duration("for", l.cfg.Grace), zap.Int("present", len(lineup.Nodes)))
	}

	l.held = notes.Hold
	c := Moves(l.cfg.Shards, lineup, notes)
	now := task.At(l.cfg.Now())

	for _, moves := range []struct {
		how  string
		list []store.Move
	}{{"at_once", c.AtOnce}, {"loaded", c.Loaded}, {"forced", c.Forced}} {
		if err := l.writeMoves(ctx, moves.how, moves.list, now); err != nil {
			return 0, err
		}
	}

	if err := l.cfg.Store.Withdraw(ctx, l.term, c.Withdraw); err != nil {
		return 0, err
	}
	if err := l.cfg.Store.Prepare(ctx, l.term, c.Prepare, now); err != nil {
		return 0, err
	}

	if len(c.Prepare) > 0 {
		again = min(again, time.Second) // their time runs from when they are seen
	}

	if len(c.Prepare)+len(c.Withdraw) > 0 {
		l.cfg.Logger.Info("handing shards over", zap.Int("prepared", len(c.Prepare)), zap.Int("withdrawn", len(c.Withdraw)), zap.Int("nodes", len(lineup.Nodes)), zap.Int64("term", l.term.CreateRevision))
	}

	return again, nil
}

func (l *leadership) writeMoves(ctx context.Context, how string, moves []store.Move, now task.Time) error {
	if len(moves) == 0 {
		return nil
	}
	if err := l.cfg.Store.Assign(ctx, l.term, moves, now); err != nil {
		return err
	}

	l.moved.WithLabelValues(how).Add(float64(len(moves)))
	l.cfg.Logger.Info("assigned shards", zap.Int("moved", len(moves)), zap.String("how", how), zap.Int64("term", l.term.CreateRevision))

	return nil
}

// waitForChange returns when something has changed and then been quiet, or after a while.
func (r *Rebalancer) waitForChange(ctx context.Context, most time.Duration) error {
	slow := time.NewTimer(most)
	defer slow.Stop()

	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-slow.C:
		return nil
	case <-r.cfg.Ready:
		if !clock.Sleep(ctx, r.cfg.Quiet/5) {
			return ctx.Err()
		}
		return nil
	case <-r.cfg.Changed:
	}

	limit := time.NewTimer(10 * r.cfg.Quiet)
	defer limit.Stop()

	quiet := time.NewTimer(r.cfg.Quiet)
	defer quiet.Stop()

	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return nil
		case <-quiet.C:
			return nil
		case <-r.cfg.Changed:
			quiet.Reset(r.cfg.Quiet)
		}
	}
}
