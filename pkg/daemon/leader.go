package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/election"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/shard"
)

// leader is what this node does while it leads.
type leader struct {
	node           *Node
	rebalancer     *shard.Rebalancer
	changed, ready chan struct{}
}

func (n *Node) newLeader() *leader {
	l := &leader{node: n, changed: make(chan struct{}, 1), ready: make(chan struct{}, 1)}
	l.rebalancer = shard.NewRebalancer(shard.RebalancerConfig{
		Store: n.store, Shards: n.cluster.Shards, Changed: l.changed, Ready: l.ready, Now: n.outside.Now,
		// A node learns that its lease is gone when it renews it, at a third of
		// its time; then it joins again, after a jitter.
		Grace:  n.cfg.LeaseTTL.Std()/3 + 2*time.Second,
		Logger: n.log.Named("leader"), Registerer: n.registry,
	})
	return l
}

// lead writes the assignment, and looks after the format of records and what is
// remembered of deleted tasks, until ctx ends or the term is over.
func (l *leader) lead(ctx context.Context, term election.Term) error {
	l.node.log.Info("leading", zap.String("node", l.node.cfg.Name), zap.Int64("term", term.Fence.CreateRevision))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return pass(ctx, l.node.nodes, l.changed) })
	g.Go(func() error { return pass(ctx, l.node.owners, l.changed) })
	g.Go(func() error { return pass(ctx, l.node.moves, l.ready) })
	g.Go(func() error { return l.rebalancer.Lead(ctx, term.Fence) })
	g.Go(func() error { return l.node.keepFormat(ctx) })
	g.Go(func() error { return l.node.sweepTombstones(ctx) })
	return g.Wait()
}

// pass passes on that a mirror has changed, until ctx ends.
func pass(ctx context.Context, m *kv.Mirror, to chan<- struct{}) error {
	changed, stop := m.Subscribe()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
		select {
		case to <- struct{}{}:
		default:
		}
	}
}
