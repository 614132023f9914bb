package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/election"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/auditlog"
	"github.com/carillonhq/carillon/pkg/daemon/boots"
	"github.com/carillonhq/carillon/pkg/daemon/notifier"
	"github.com/carillonhq/carillon/pkg/internal/api/cluster"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
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
	alerts     *notifier.Notifier
	boots      *boots.Watcher

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
		alerts:     n.newNotifier(),
		boots:      n.newBootWatcher(),
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

// newNotifier returns the part of the leader that sends messages about alerts.
func (n *Node) newNotifier() *notifier.Notifier {
	status := &cluster.StatusReader{
		Store: n.store, Cluster: n.cluster, Now: n.env.Now,
		BootstrapToken: func() (task.Token, bool) { return n.access.View().UnneededBootstrapToken(n.env.Now()) },
	}

	return notifier.New(notifier.Config{
		Store: n.store, Task: n.taskRef, Cluster: n.record.currentRecord,
		Freezes: n.freezes.knownFreezes,
		AuditsReads: func(namespace string) bool {
			ns := n.access.View().Namespace(namespace)
			return ns == nil || ns.AuditReads
		},
		Fleet: func() ([]task.Node, []record.Owner) {
			return n.presentNodes(), n.shardOwners()
		},
		Warnings: func(ctx context.Context) ([]task.Warning, bool, error) {
			facts, err := status.ReadFacts(ctx)
			if err != nil {
				return nil, false, err
			}
			return cluster.Warnings(&facts), !facts.Incomplete, nil
		},
		MayWrite: n.mayCommit, Now: n.env.Now, Logger: n.log, Registerer: n.registry,
	})
}

// newBootWatcher returns the part of the leader that creates the runs of tasks when nodes have booted.
func (n *Node) newBootWatcher() *boots.Watcher {
	return boots.New(boots.Config{
		Store: n.store, Task: n.taskRef, Nodes: n.presentNodes,
		Subscribe: func(s wake.Signal) func() { return n.nodes.Subscribe(s) },
		Access: func() (boots.Access, int64) {
			// A leader has the scheduler role, so it keeps a copy of the access records.
			v := n.access.View()
			if v.Fence == 0 || v.Fence < n.presence.access.Load() {
				return nil, 0
			}
			return v, v.Fence
		},
		Freezes: n.freezes.knownFreezes,
		Gap: func() *task.Gap {
			s, _ := n.presence.Session() // without a session there is no term, in which nothing could be written
			return s.Gap
		},
		MayWrite: n.mayCommit, Now: n.env.Now, Logger: n.log,
	})
}

// runTerm assigns shards, maintains the record format, limits ledgers while etcd is filling up, sends messages about alerts, creates
// the runs for boots of nodes, and removes old tombstones, audit records and tokens until ctx ends or the term is over. Writes of shards compare the term's fence, and others the
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
	g.Go(func() error { return l.alerts.Run(ctx, term.Fence) })
	g.Go(func() error { return l.boots.Run(ctx, term.Fence) })

	return g.Wait()
}

// ledgerLimitEvery is the interval at which the leader compares what etcd uses with its quota.
const ledgerLimitEvery = time.Minute

// ledgerLimitHysteresis is by how many percent of the quota the use must fall below the percentage at which a limit
// began before the limit ends.
const ledgerLimitHysteresis = 5

// ledgerLimits are the limits of the time for which ledgers remember ticks, by how much of its quota etcd uses. Ledgers
// are what the cluster can best do without, so they become shorter long before etcd is full and nothing fires.
var ledgerLimits = []struct {
	above int64 // percent of the quota
	limit task.Duration
}{
	{55, task.Duration(7 * 24 * time.Hour)},
	{65, task.Duration(24 * time.Hour)},
	{75, 0},
}

// ledgerLimiter limits the ledgers of all tasks while etcd is filling up, and ends the limit. It works while the node
// leads.
type ledgerLimiter struct {
	node    string
	store   *store.Store
	members memberLister
	env     Environment
	log     *zap.Logger
}

// run compares the use of etcd with its quota every ledgerLimitEvery until ctx ends.
func (l *ledgerLimiter) run(ctx context.Context) error {
	for {
		// A conflict means that somebody has changed the cluster's record at the same time. The next step reads it again.
		if err := l.checkUse(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, task.ErrConflict) {
			l.log.Warn("could not check whether ledgers must be limited", zap.Error(err))
		}

		if !clock.Sleep(ctx, ledgerLimitEvery) {
			return ctx.Err()
		}
	}
}

// checkUse changes the limit once if what etcd uses requires it.
func (l *ledgerLimiter) checkUse(ctx context.Context) error {
	percent, ok := l.usedPercent(ctx)
	if !ok {
		return nil // the limit stays until it is known how full etcd is
	}

	old, err := l.store.Cluster(ctx)
	if err != nil {
		return err
	}

	c, changed := limitLedgers(old.Cluster, percent, task.At(l.env.Now()))
	if !changed {
		return nil
	}

	reason := fmt.Sprintf("etcd uses %d %% of its quota", percent)
	if err := l.store.ChangeCluster(ctx, old, c.MarkChanged(task.NodeActor(l.node), task.At(l.env.Now()), reason)); err != nil {
		return err
	}

	if c.LedgerLimit == nil {
		l.log.Info("ended the limit of ledgers", zap.Int64("percent_of_quota", percent))
	} else {
		l.log.Warn("limited how long ledgers remember ticks, because etcd is filling up", zap.Int64("percent_of_quota", percent), zap.Duration("limit", c.LedgerLimit.Std()))
	}

	return nil
}

// usedPercent returns how much of its quota the fullest member of etcd uses, without the space that is free inside its
// file. ok is false if no member says so.
func (l *ledgerLimiter) usedPercent(ctx context.Context) (percent int64, ok bool) {
	for _, m := range l.members.Members(ctx, etcdTimeout) {
		if m.Quota > 0 && m.InUse > 0 {
			percent, ok = max(percent, m.InUse*100/m.Quota), true
		}
	}

	return percent, ok
}

// limitLedgers returns the cluster's record with the limit for this use of etcd's quota, and whether that is another limit
// than before. A limit begins above its percentage, and ends ledgerLimitHysteresis below, so that it does not change back
// and forth with every compaction of etcd.
func limitLedgers(c task.Cluster, percent int64, now task.Time) (limited task.Cluster, changed bool) {
	before, after := ledgerLimitLevel(c.LedgerLimit), 0
	for i, step := range ledgerLimits {
		// The step is in force now if it is not above the present level.
		stays := i < before && percent > step.above-ledgerLimitHysteresis
		if percent > step.above || stays {
			after = i + 1
		}
	}

	switch {
	case after == before:
		return c, false
	case after == 0:
		c.LedgerLimit, c.LedgerLimitSince = nil, task.Time{}
	default:
		limit := ledgerLimits[after-1].limit
		c.LedgerLimit = &limit
		if before == 0 {
			c.LedgerLimitSince = now
		}
	}

	return c, true
}

// ledgerLimitLevel returns how many of the ledgerLimits are in force with this limit.
func ledgerLimitLevel(limit *task.Duration) (level int) {
	for _, step := range ledgerLimits {
		if limit != nil && *limit <= step.limit {
			level++
		}
	}

	return level
}

const (
	// idempotencyAge is how long the record of a request with an idempotency key is kept. It bounds the space of these records: each
	// takes about 250 bytes, and a caller can create hundreds per second.
	idempotencyAge = time.Hour
	// tombstonesEvery is the interval at which the leader removes older ones. One pass examines up to
	// tombstonesMost of them, and the next one continues from there.
	tombstonesEvery = 10 * time.Minute
	tombstonesMost  = 10_000
	// idempotencyMost is tombstonesMost for records of requests: as many as can be created until the next pass.
	idempotencyMost = 500_000
)

// tombstoneSweeper removes old tombstones, and old records of requests, while the node leads.
type tombstoneSweeper struct {
	store *store.Store
	clock *clockMonitor // ages are computed only while the clock is trusted
	env   Environment
	log   *zap.Logger
}

// run sweeps until ctx ends.
func (t *tombstoneSweeper) run(ctx context.Context) error {
	type sweep struct {
		what  string
		age   time.Duration
		most  int
		do    func(ctx context.Context, before task.Time, after string, most int) (removed int, next string, err error)
		after string
	}
	sweeps := []*sweep{
		{what: "tasks", age: store.TombstoneAge, most: tombstonesMost, do: t.store.SweepTombstones},
		{what: "secrets", age: store.TombstoneAge, most: tombstonesMost, do: t.store.SweepSecrets},
		{what: "requests", age: idempotencyAge, most: idempotencyMost, do: t.store.SweepIdempotency},
	}

	for {
		for _, s := range sweeps {
			if t.clock.checkClock() != nil { // with a wrong clock, ages are wrong, too
				continue
			}

			before := task.At(t.env.Now().Add(-s.age))
			removed, next, err := s.do(ctx, before, s.after, s.most)
			if err != nil && ctx.Err() == nil {
				t.log.Warn("could not remove old records", zap.String("of", s.what), zap.Error(err))
			}

			if s.after = next; removed > 0 {
				t.log.Info("removed old records", zap.Int(s.what, removed))
			}
		}

		if !clock.Sleep(ctx, tombstonesEvery) {
			return ctx.Err()
		}
	}
}
