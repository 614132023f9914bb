package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/election"
	"github.com/carillonhq/carillon/pkg/daemon/auditlog"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/wake"
	"github.com/carillonhq/carillon/shard"
)

// leader is the work of this node while it leads.
type leader struct {
	node       string
	rebalancer *shard.Rebalancer
	formats    *formatKeeper
	tombstones *tombstoneSweeper
	audit      *auditlog.Sweeper
	ledgers    *ledgerLimiter

	nodes, owners, moves *kv.Mirror

	changed wake.Signal // nodes or owners have changed
	ready   wake.Signal // a node may have loaded a shard
	log     *zap.Logger
}

// newLeader creates the leader's components.
func (n *Node) newLeader() *leader {
	l := &leader{
		node: n.cfg.Name, nodes: n.nodes, owners: n.owners, moves: n.moves,
		changed: wake.NewSignal(), ready: wake.NewSignal(), log: n.log,

		formats:    &formatKeeper{node: n.cfg.Name, store: n.store, env: n.env, log: n.log},
		tombstones: &tombstoneSweeper{store: n.store, clock: n.clock, env: n.env, log: n.log},
		audit:      auditlog.NewSweeper(n.cfg.Name, n.store, n.clock.checkClock, n.env.Now, n.log),
		ledgers:    &ledgerLimiter{node: n.cfg.Name, store: n.store, members: n.store, env: n.env, log: n.log},
	}
	l.rebalancer = shard.NewRebalancer(shard.RebalancerConfig{
		Store: n.store, Shards: n.cluster.Shards, Changed: l.changed, Ready: l.ready, Now: n.env.Now,
		// The time that nodes need to come back when many sessions are lost at once. A node learns that its lease
		// is gone when it renews it, every third of its TTL. Then it joins again, after up to firstRejoinDelay.
		Grace:  n.cfg.LeaseTTL.Std()/3 + 2*time.Second,
		Logger: n.log.Named("leader"), Registerer: n.registry,
	})
	return l
}

// runTerm assigns shards, maintains the record format, limits ledgers while etcd is filling up, and removes old tombstones,
// audit records and tokens until ctx ends or the term is over. Writes of shards compare the term's fence, and others the
// records that they change.
func (l *leader) runTerm(ctx context.Context, term election.Term) error {
	l.log.Info("leading", zap.String("node", l.node), zap.Int64("term", term.Fence.CreateRevision))

	defer l.nodes.Subscribe(l.changed)()
	defer l.owners.Subscribe(l.changed)()
	defer l.moves.Subscribe(l.ready)()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.rebalancer.Lead(ctx, term.Fence) })
	g.Go(func() error { return l.formats.run(ctx) })
	g.Go(func() error { return l.tombstones.run(ctx) })
	g.Go(func() error { return l.audit.Run(ctx) })
	g.Go(func() error { return l.ledgers.run(ctx) })

	return g.Wait()
}
