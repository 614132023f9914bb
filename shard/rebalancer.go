package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Assignments is what the Rebalancer needs of the store.
type Assignments interface {
	Fleet(ctx context.Context) ([]task.Node, []store.Owner, error)
	Assign(ctx context.Context, term kv.Fence, moves []store.Move, now task.Time) error
}

// RebalancerConfig says what to rebalance.
type RebalancerConfig struct {
	Store  Assignments
	Shards int
	// Changed says that nodes/ or owners/ may have changed: look again.
	Changed <-chan struct{}
	// Quiet is how long nothing must have changed before a plan is made, so
	// that nodes that start together move shards once; default 100 ms. It is
	// waited for ten times as long at the most.
	Quiet time.Duration
	// Reconcile is how often to look without being told; default 30 s.
	Reconcile time.Duration
	Now       func() time.Time
	Logger    *zap.Logger
}

// Rebalancer writes owners while its node leads.
type Rebalancer struct{ cfg RebalancerConfig }

// NewRebalancer makes a Rebalancer.
func NewRebalancer(cfg RebalancerConfig) *Rebalancer {
	if cfg.Quiet == 0 {
		cfg.Quiet = 100 * time.Millisecond
	}
	if cfg.Reconcile == 0 {
		cfg.Reconcile = 30 * time.Second
	}
	return &Rebalancer{cfg}
}

// Lead keeps the assignment in shape until ctx ends or the term is over
// (task.ErrFenced). What it reads decides, never what it was told.
func (r *Rebalancer) Lead(ctx context.Context, term kv.Fence) error {
	for failures := 0; ; {
		err := r.rebalance(ctx, term)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, task.ErrFenced):
			return err
		case err == nil:
			failures = 0
			if err := r.wait(ctx, r.cfg.Reconcile); err != nil {
				return err
			}
		default: // an owner key moved under us, or etcd is away: read again
			if failures++; failures == 1 {
				r.cfg.Logger.Warn("could not assign shards, trying again", zap.Error(err))
			}
			if err := r.wait(ctx, min(time.Second, time.Duration(failures)*50*time.Millisecond)); err != nil {
				return err
			}
		}
	}
}

func (r *Rebalancer) rebalance(ctx context.Context, term kv.Fence) error {
	nodes, owners, err := r.cfg.Store.Fleet(ctx)
	if err != nil {
		return err
	}
	moves := Moves(r.cfg.Shards, nodes, owners)
	if len(moves) == 0 {
		return nil
	}
	if err := r.cfg.Store.Assign(ctx, term, moves, task.At(r.cfg.Now())); err != nil {
		return fmt.Errorf("assign: %w", err)
	}
	r.cfg.Logger.Info("assigned shards", zap.Int("moved", len(moves)), zap.Int("nodes", len(nodes)), zap.Int64("term", term.CreateRevision))
	return nil
}

// maxWeight bounds what a node's record may say: the ring grows with it.
const maxWeight = 1000

// Moves are the owner keys that have to change so that the assignment is that
// of the Plan.
func Moves(shards int, nodes []task.Node, owners []store.Owner) []store.Move {
	var members []Member
	for _, n := range nodes {
		if n.Owns() {
			members = append(members, Member{n.Name, min(n.Weight, maxWeight)})
		}
	}
	known := make([]store.Owner, shards)
	current := map[int]string{}
	for id := range known {
		known[id].Shard = id
	}
	for _, o := range owners {
		if 0 <= o.Shard && o.Shard < shards { // others are not ours to mend
			known[o.Shard] = o
			current[o.Shard] = o.Node
		}
	}
	var moves []store.Move
	plan := Plan(shards, current, members)
	for id := range shards {
		if to, ok := plan[id]; ok && to != known[id].Node {
			moves = append(moves, store.Move{From: known[id], To: to})
		}
	}
	return moves
}

// wait returns when something has changed and then been quiet, or after a while.
func (r *Rebalancer) wait(ctx context.Context, most time.Duration) error {
	slow := time.NewTimer(most)
	defer slow.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-slow.C:
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
