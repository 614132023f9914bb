package auditlog

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
)

const (
	// maxAge is how long audit records are kept in etcd.
	maxAge = 30 * 24 * time.Hour
	// quotaShare is the most that they may take of etcd's quota, in percent. Beyond that the oldest ones go first.
	quotaShare = 5
	// sweepEvery is the interval at which the leader removes records. A busy cluster writes many in an hour.
	sweepEvery = time.Minute
	// sweepPage is how many records one request removes. The leader makes sweepPages of them in a row.
	sweepPage  = 1000
	sweepPages = 200
	// tokenAge is how long a token is kept after it has expired, so that lists and audit records still explain it.
	tokenAge = 30 * 24 * time.Hour
	// sessionAge is tokenAge for sessions and login links, of which there are many. It is longer than the clocks of two
	// nodes can differ.
	sessionAge = time.Hour
	// tokensEvery is the interval at which the leader removes expired tokens. It removes at most tokensMost of them at a
	// time, with tokensPause after each page: every node compiles its copy of the access records again after each.
	tokensEvery = time.Hour
	tokensMost  = 2000
	tokensPage  = 500
	tokensPause = 200 * time.Millisecond
	// membersTimeout is the time limit for reading the quotas of the members of etcd.
	membersTimeout = 5 * time.Second
)

// Store is what a Sweeper needs of the store.
type Store interface {
	SweepAudit(ctx context.Context, before time.Time, most int) (int, error)
	AuditSize(ctx context.Context) (size, records int64, err error)
	Members(ctx context.Context, timeout time.Duration) []etcdadmin.Member
	ExpiredTokens(ctx context.Context, tokensBefore, sessionsBefore time.Time, after string, limit int) (list []store.ExpiredToken, next string, err error)
	DeleteExpiredTokens(ctx context.Context, node string, tokens []store.ExpiredToken, now time.Time) (int, error)
}

// Sweeper removes old audit records and tokens that expired long ago while the node leads.
type Sweeper struct {
	node  string // in the audit records of the removed tokens
	store Store
	clock func() error // ages are computed only while it returns nil
	now   func() time.Time
	log   *zap.Logger
}

// NewSweeper returns the sweeper of a node, which judges ages by now. It does so only while checkClock returns nil,
// because a wrong clock would remove records that are not old.
func NewSweeper(node string, store Store, checkClock func() error, now func() time.Time, log *zap.Logger) *Sweeper {
	return &Sweeper{node: node, store: store, clock: checkClock, now: now, log: log}
}

// Run sweeps until ctx ends.
func (a *Sweeper) Run(ctx context.Context) error {
	var tokensDue time.Time // by the monotonic clock

	for {
		if !time.Now().Before(tokensDue) {
			tokensDue = time.Now().Add(tokensEvery)

			removed, err := a.sweepTokens(ctx)
			if err != nil && ctx.Err() == nil {
				a.log.Warn("could not remove expired tokens", zap.Error(err))
			}
			if removed > 0 {
				a.log.Info("removed expired tokens", zap.Int("tokens", removed))
			}
		}

		removed, err := a.sweepRecords(ctx)
		if err != nil && ctx.Err() == nil {
			a.log.Warn("could not remove old audit records", zap.Error(err))
		}
		if removed > 0 {
			a.log.Info("removed old audit records", zap.Int("records", removed))
		}

		if !clock.Sleep(ctx, sweepEvery) {
			return ctx.Err()
		}
	}
}

// sweepTokens removes the tokens that expired long ago, at most tokensMost of them.
func (a *Sweeper) sweepTokens(ctx context.Context) (removed int, err error) {
	for after := ""; removed < tokensMost; {
		if a.clock() != nil {
			return removed, nil // ages cannot be computed
		}

		now := a.now()
		expired, next, err := a.store.ExpiredTokens(ctx, now.Add(-tokenAge), now.Add(-sessionAge), after, tokensPage)
		if err != nil {
			return removed, err
		}

		n, err := a.store.DeleteExpiredTokens(ctx, a.node, expired, now)
		if removed += n; err != nil {
			return removed, err
		}

		if after = next; after == "" || !clock.Sleep(ctx, tokensPause) {
			return removed, nil
		}
	}

	return removed, nil
}

// sweepRecords removes the records that are too old, and then the oldest of those that take too much space.
func (a *Sweeper) sweepRecords(ctx context.Context) (removed int, err error) {
	if a.clock() == nil {
		if removed, err = a.removeOldest(ctx, a.now().Add(-maxAge), sweepPage*sweepPages); err != nil {
			return removed, err
		}
	}

	size, records, err := a.store.AuditSize(ctx)
	if err != nil || records == 0 {
		return removed, err
	}

	limit := a.sizeLimit(ctx)
	if limit == 0 || size <= limit {
		return removed, nil
	}

	excess := min((size-limit)*records/size+1, sweepPage*sweepPages)
	more, err := a.removeOldest(ctx, distantFuture, int(excess))

	a.log.Warn("the audit records took more than their share of etcd's quota; removed the oldest",
		zap.Int("records", more), zap.Int64("bytes", size), zap.Int64("limit", limit))

	return removed + more, err
}

// distantFuture is after the time of any record.
var distantFuture = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// removeOldest removes the oldest records from before an instant, at most most of them.
func (a *Sweeper) removeOldest(ctx context.Context, before time.Time, most int) (removed int, err error) {
	for removed < most {
		page := min(sweepPage, most-removed)

		n, err := a.store.SweepAudit(ctx, before, page)
		if removed += n; err != nil || n < page {
			return removed, err
		}
	}

	return removed, nil
}

// sizeLimit returns how many bytes the records may take, by the smallest quota of a member, or 0 if none is known.
func (a *Sweeper) sizeLimit(ctx context.Context) (limit int64) {
	for _, m := range a.store.Members(ctx, membersTimeout) {
		if share := m.Quota / 100 * quotaShare; share > 0 && (limit == 0 || share < limit) {
			limit = share
		}
	}

	return limit
}
