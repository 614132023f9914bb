package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

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
	if err := l.store.ChangeCluster(ctx, old, c.MarkChanged(l.node, task.At(l.env.Now()), reason)); err != nil {
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
