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

// Assignments is what the Rebalancer needs of the store. Lineup reads nodes, owners and handovers at one
// revision. The other methods write. Each write compares the term and the records as they were read; it
// returns task.ErrFenced if the term is over.
type Assignments interface {
	Lineup(ctx context.Context) (store.Lineup, error)
	Assign(ctx context.Context, term kv.Fence, moves []store.Move, now task.Time) error
	Prepare(ctx context.Context, term kv.Fence, list []record.Handover, now task.Time) error
	Withdraw(ctx context.Context, term kv.Fence, list []record.Handover) error
}

// RebalancerConfig is the configuration of a Rebalancer. Zero durations mean the defaults.
type RebalancerConfig struct {
	Store  Assignments
	Shards int
	// Changed signals that nodes/ or owners/ may have changed.
	Changed <-chan struct{}
	// Ready signals that moves/ may have changed.
	Ready <-chan struct{}
	// Quiet is how long nothing must have changed before a plan is made, so that shards move once when
	// several nodes start together. The default is 100 ms. A plan is made after ten times as long in any
	// case. After Ready, a fifth of it is enough.
	Quiet time.Duration
	// Reconcile is how often a plan is made without a signal. The default is 30 s.
	Reconcile time.Duration
	// Limit is how long a shard waits at most until its next owner has loaded it, while its present owner
	// decides its ticks. The default is 30 s.
	Limit time.Duration
	// Grace is how long shards stay where they are when most nodes have disappeared together: the time for
	// a node to notice and to join again. The default is 5 s.
	Grace      time.Duration
	Now        func() time.Time
	Logger     *zap.Logger
	Registerer prometheus.Registerer // may be nil
}

// Rebalancer assigns shards to nodes while its node leads.
type Rebalancer struct {
	cfg   RebalancerConfig
	moved *prometheus.CounterVec // shards that were moved, by how
	held  prometheus.Counter     // mass losses that were detected
}

// NewRebalancer returns a Rebalancer, which can serve any number of terms.
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

// Lead keeps the assignment up to date until ctx ends, or until the term is over: then it returns
// task.ErrFenced. Other errors are retried. It acts on what it reads, never on the content of a signal.
func (r *Rebalancer) Lead(ctx context.Context, term kv.Fence) error {
	l := &leadership{Rebalancer: r, term: term, memory: newMemory(r.cfg.Grace, r.cfg.Limit)}

	for failures := 0; ; {
		again, err := l.rebalanceShards(ctx)
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
		default:
			// A key has changed since it was read, or etcd is unavailable. Read again, with a growing delay
			// of at most a second.
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
	term   kv.Fence // compared by every write
	memory *memory
	held   bool // moves were held the last time, because of a mass loss
}

// rebalanceShards reads the state, plans, and writes the difference. It returns after which time to do so again
// without a signal. After an error, any part of the changes may have been written; the next call reads
// again and continues.
func (l *leadership) rebalanceShards(ctx context.Context) (again time.Duration, err error) {
	lineup, err := l.cfg.Store.Lineup(ctx)
	if err != nil {
		return 0, err
	}

	notes, again := l.memory.recordLineup(time.Now(), lineup)
	if again = min(cmp.Or(again, l.cfg.Reconcile), l.cfg.Reconcile); notes.Hold && !l.held {
		l.Rebalancer.held.Inc()
		l.cfg.Logger.Warn("most nodes disappeared at the same time; leaving their shards in place for a while", zap.Duration("for", l.cfg.Grace), zap.Int("present", len(lineup.Nodes)))
	}

	l.held = notes.Hold
	c := Moves(l.cfg.Shards, lineup, notes)
	now := task.At(l.cfg.Now())

	// Shards without a working owner come first.
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
		// The time limit of a handover starts when this leader reads its record. Read it soon.
		again = min(again, time.Second)
	}

	if len(c.Prepare)+len(c.Withdraw) > 0 {
		l.cfg.Logger.Info("handing shards over", zap.Int("prepared", len(c.Prepare)), zap.Int("withdrawn", len(c.Withdraw)), zap.Int("nodes", len(lineup.Nodes)), zap.Int64("term", l.term.CreateRevision))
	}

	return again, nil
}

// writeMoves rewrites the owner keys of shards, and counts the moves. mode is their label in the metric
// carillon_shard_moves_total.
func (l *leadership) writeMoves(ctx context.Context, mode string, moves []store.Move, now task.Time) error {
	if len(moves) == 0 {
		return nil
	}
	if err := l.cfg.Store.Assign(ctx, l.term, moves, now); err != nil {
		return err
	}

	l.moved.WithLabelValues(mode).Add(float64(len(moves)))
	l.cfg.Logger.Info("assigned shards", zap.Int("moved", len(moves)), zap.String("how", mode), zap.Int64("term", l.term.CreateRevision))

	return nil
}

// waitForChange returns after a change that was followed by a quiet period, or after the time most. It
// returns an error only if ctx ends.
func (r *Rebalancer) waitForChange(ctx context.Context, most time.Duration) error {
	slow := time.NewTimer(most)
	defer slow.Stop()

	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-slow.C:
		return nil
	case <-r.cfg.Ready:
		// An answered handover does not change the plan, so a short pause is enough to collect further answers.
		if !clock.Sleep(ctx, r.cfg.Quiet/5) {
			return ctx.Err()
		}
		return nil
	case <-r.cfg.Changed:
	}

	// Nodes that keep changing must not delay the plan forever.
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
