package auditlog

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxAge is how long audit records are kept in etcd.
	maxAge = 30 * 24 * time.Hour
	// quotaShare is the maximum share of etcd's quota that they may take, in percent. planRemoval decides which ones are removed
	// first.
	quotaShare = 5
	// sweepEvery is the interval at which the leader removes records. A busy cluster writes many in an hour.
	sweepEvery = time.Minute
	// sweepPage is how many records one request reads, and removes at most. The leader removes at most sweepMost in a row.
	sweepPage = 1000
	sweepMost = 200_000
	// measureEvery is the minimum time until all records are read again if the last reading found nothing to remove.
	measureEvery = 10 * time.Minute
	// maxGaps is the maximum number of records of gaps. Further subjects share one.
	maxGaps = 1000
	// gapsAtOnce is how many gaps older than maxAge one sweep merges.
	gapsAtOnce = 20
	// tokenAge is how long a token is kept after it has expired, so that lists and audit records still explain it.
	tokenAge = 30 * 24 * time.Hour
	// sessionAge is tokenAge for sessions and login links, because there are many of them. It is longer than the clocks of two
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
	AuditSize(ctx context.Context) (size, records int64, err error)
	AuditBefore(ctx context.Context, before time.Time, limit int) (store.AuditPage, error)
	AuditEntries(ctx context.Context, after string, limit int) (store.AuditPage, error)
	AuditGaps(ctx context.Context) ([]store.AuditGap, error)
	RemoveAudit(ctx context.Context, gap store.AuditGap, ranges []store.AuditRange, contained ...store.AuditGap) (int64, error)
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

	measured time.Time // when all records were last read and none had to be removed
}

// NewSweeper returns the sweeper of a node, which judges ages by now. It does so only while checkClock returns nil,
// because a wrong clock would remove records that are not old.
func NewSweeper(node string, store Store, checkClock func() error, now func() time.Time, log *zap.Logger) *Sweeper {
	return &Sweeper{node: node, store: store, clock: checkClock, now: now, log: log}
}

// Run sweeps until ctx ends.
func (s *Sweeper) Run(ctx context.Context) error {
	var tokensDue time.Time // by the monotonic clock

	for {
		if !time.Now().Before(tokensDue) {
			tokensDue = time.Now().Add(tokensEvery)

			removed, err := s.sweepTokens(ctx)
			if err != nil && ctx.Err() == nil {
				s.log.Warn("could not remove expired tokens", zap.Error(err))
			}
			if removed > 0 {
				s.log.Info("removed expired tokens", zap.Int("tokens", removed))
			}
		}

		removed, err := s.sweepRecords(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("could not remove old audit records", zap.Error(err))
		}
		if removed > 0 {
			s.log.Info("removed old audit records", zap.Int("records", removed))
		}

		// Records must not arrive faster than they are removed.
		if removed >= sweepMost && ctx.Err() == nil {
			continue
		}

		if !clock.Sleep(ctx, sweepEvery) {
			return ctx.Err()
		}
	}
}

// sweepTokens removes the tokens that expired long ago, at most tokensMost of them.
func (s *Sweeper) sweepTokens(ctx context.Context) (removed int, err error) {
	for after := ""; removed < tokensMost; {
		if s.clock() != nil {
			return removed, nil // ages cannot be computed
		}

		now := s.now()
		expired, next, err := s.store.ExpiredTokens(ctx, now.Add(-tokenAge), now.Add(-sessionAge), after, tokensPage)
		if err != nil {
			return removed, err
		}

		n, err := s.store.DeleteExpiredTokens(ctx, s.node, expired, now)
		if removed += n; err != nil {
			return removed, err
		}

		if after = next; after == "" || !clock.Sleep(ctx, tokensPause) {
			return removed, nil
		}
	}

	return removed, nil
}

// sweepRecords removes the records that are too old, and then some of those that take too much space. Each removal also writes a record of the gap.
func (s *Sweeper) sweepRecords(ctx context.Context) (removed int, err error) {
	gaps, err := s.readGaps(ctx)
	if err != nil {
		return 0, err
	}

	if s.clock() == nil {
		if removed, err = s.removeOld(ctx, gaps); err != nil {
			return removed, err
		}
	}

	size, records, err := s.store.AuditSize(ctx)
	if err != nil || records == 0 {
		return removed, err
	}

	limit := s.sizeLimit(ctx)
	if limit == 0 || size <= limit || !s.measured.IsZero() && time.Since(s.measured) < measureEvery {
		return removed, nil
	}

	more, err := s.removeExcess(ctx, gaps, limit)
	if more > 0 {
		s.log.Warn("the audit records took more than their share of etcd's quota; removed the oldest records of the largest subjects",
			zap.Int("records", more), zap.Int64("bytes", size), zap.Int64("limit", limit))
	}

	return removed + more, err
}

// gapSet contains the gap records in etcd by their reason, class and subject.
type gapSet map[gapKey]store.AuditGap

type gapKey struct {
	why     string
	access  bool
	subject string
}

func keyOfGap(g *task.AuditGap) gapKey { return gapKey{g.Why, g.Access, g.Subject} }

func (s *Sweeper) readGaps(ctx context.Context) (gapSet, error) {
	list, err := s.store.AuditGaps(ctx)
	if err != nil {
		return nil, err
	}

	gaps := gapSet{}
	for _, g := range list {
		gaps[keyOfGap(&g.AuditGap)] = g
	}

	return gaps, nil
}

// gapOf returns the gap of the records of an owner. If there are too many gaps, further owners share one.
func (s gapSet) gapOf(o owner) store.AuditGap {
	key := gapKey{task.GapSize, o.access, o.subject}
	if g, ok := s[key]; ok {
		return g
	}
	if len(s) >= maxGaps {
		key.subject = ""
	}
	if g, ok := s[key]; ok {
		return g
	}

	return store.AuditGap{AuditGap: task.AuditGap{Why: key.why, Access: key.access, Subject: key.subject}}
}

// extendGap returns a gap that also covers the records that are removed now.
func extendGap(g task.AuditGap, removed []store.AuditEntry) task.AuditGap {
	g.Removed = int64(len(removed))
	g.Records += g.Removed
	for _, e := range removed {
		at, err := record.ParseAuditTime(e.ID)
		if err == nil && (g.From.IsZero() || at.Before(g.From.Time)) {
			g.From = task.At(at)
		}
		if err == nil && at.After(g.To.Time) {
			g.To = task.At(at)
		}

		if g.FirstRevision == 0 || e.Revision < g.FirstRevision {
			g.FirstRevision = e.Revision
		}
		g.LastRevision = max(g.LastRevision, e.Revision)
	}

	return g
}

// removeEntries removes records and extends their gap.
func (s *Sweeper) removeEntries(ctx context.Context, gaps gapSet, g store.AuditGap, removed []store.AuditEntry, ranges []store.AuditRange) error {
	g.AuditGap = extendGap(g.AuditGap, removed)
	mod, err := s.store.RemoveAudit(ctx, g, ranges)
	if err != nil {
		return err
	}

	g.Mod = mod
	gaps[keyOfGap(&g.AuditGap)] = g

	return nil
}

// removeOld removes the records that are older than maxAge. It also merges gaps that are older into one: no records of their
// time are left.
func (s *Sweeper) removeOld(ctx context.Context, gaps gapSet) (removed int, err error) {
	before := s.now().Add(-maxAge)
	byAge := gaps[gapKey{why: task.GapAge}]
	byAge.Why = task.GapAge

	for removed < sweepMost {
		page, err := s.store.AuditBefore(ctx, before, sweepPage)
		if err != nil {
			return removed, err
		}
		if len(page.Entries) == 0 {
			break
		}

		all := store.AuditRange{First: page.Entries[0].ID, Last: page.Entries[len(page.Entries)-1].ID, Revision: page.Revision}
		if err := s.removeEntries(ctx, gaps, byAge, page.Entries, []store.AuditRange{all}); err != nil {
			return removed, err
		}

		removed += len(page.Entries)
		byAge = gaps[gapKey{why: task.GapAge}]
		if page.Next == "" {
			break
		}
	}

	return removed, s.mergeOldGaps(ctx, gaps, byAge, before)
}

// mergeOldGaps merges gaps whose newest record would be too old now into byAge.
func (s *Sweeper) mergeOldGaps(ctx context.Context, gaps gapSet, byAge store.AuditGap, before time.Time) error {
	var old []store.AuditGap
	merged := byAge
	for _, g := range gaps {
		if g.Why == task.GapAge || !g.To.Before(before) || len(old) == gapsAtOnce {
			continue
		}

		old = append(old, g)
		merged.Records += g.Records
		merged.LastRevision = max(merged.LastRevision, g.LastRevision)
		if merged.From.IsZero() || g.From.Before(merged.From.Time) {
			merged.From = g.From
		}
		if g.To.After(merged.To.Time) {
			merged.To = g.To
		}
	}

	if len(old) == 0 {
		return nil
	}

	merged.Removed = 0
	mod, err := s.store.RemoveAudit(ctx, merged, nil, old...)
	if err != nil {
		return err
	}

	merged.Mod = mod
	gaps[keyOfGap(&merged.AuditGap)] = merged
	for _, g := range old {
		delete(gaps, keyOfGap(&g.AuditGap))
	}

	return nil
}

// removeExcess removes records until the rest fits into the limit. It reads all records at most twice: to measure them, and to
// remove some.
func (s *Sweeper) removeExcess(ctx context.Context, gaps gapSet, limit int64) (removed int, err error) {
	sizes := map[owner]int64{}
	err = s.eachPage(ctx, func(page store.AuditPage) (bool, error) {
		for _, e := range page.Entries {
			sizes[ownerOf(e)] += e.Bytes
		}
		return true, nil
	})
	if err != nil {
		return 0, err
	}

	excess := planRemoval(sizes, limit)
	if len(excess) == 0 {
		s.measured = time.Now()
		return 0, nil
	}
	s.measured = time.Time{}

	err = s.eachPage(ctx, func(page store.AuditPage) (bool, error) {
		for _, r := range chooseRemovals(page, excess) {
			if err := s.removeEntries(ctx, gaps, gaps.gapOf(r.owner), r.entries, r.ranges); err != nil {
				return false, err
			}
			removed += len(r.entries)
		}

		return len(excess) > 0 && removed < sweepMost, nil
	})

	return removed, err
}

// eachPage calls f with all records, the oldest first, until it returns false or an error.
func (s *Sweeper) eachPage(ctx context.Context, f func(store.AuditPage) (more bool, err error)) error {
	for after := ""; ; {
		page, err := s.store.AuditEntries(ctx, after, sweepPage)
		if err != nil {
			return err
		}

		more, err := f(page)
		if after = page.Next; err != nil || !more || after == "" {
			return err
		}
	}
}

// sizeLimit returns how many bytes the records may take, by the smallest quota of a member, or 0 if none is known.
func (s *Sweeper) sizeLimit(ctx context.Context) (limit int64) {
	for _, m := range s.store.Members(ctx, membersTimeout) {
		if share := m.Quota / 100 * quotaShare; share > 0 && (limit == 0 || share < limit) {
			limit = share
		}
	}

	return limit
}

// owner identifies records that compete for space: a subject's records of access changes, or its other records.
type owner struct {
	access  bool
	subject string
}

func ownerOf(e store.AuditEntry) owner { return owner{e.Access, e.Subject} }

// planRemoval returns how many bytes each owner must lose if all records together exceed the limit. The largest owners lose
// records, so that nobody can push out the records of others by writing many. Records of access changes are removed only if
// they alone exceed half of the limit.
//
// It frees a tenth of the limit, because the leader reads all records before a removal and should not do so each minute.
func planRemoval(sizes map[owner]int64, limit int64) map[owner]int64 {
	var accessSize, otherSize int64
	for o, size := range sizes {
		if o.access {
			accessSize += size
		} else {
			otherSize += size
		}
	}
	if accessSize+otherSize <= limit {
		return nil
	}

	keep := limit - limit/10
	keepAccess := accessSize
	if accessSize > limit/2 {
		keepAccess = keep / 2
	}

	excess := map[owner]int64{}
	lowerTo(excess, sizes, true, keepAccess)
	lowerTo(excess, sizes, false, keep-keepAccess)

	return excess
}

// lowerTo adds to excess what the largest owners of one class must lose, so that the class has keep bytes in total. Owners that
// lose records have the same size afterwards, as if the largest owner lost one record at a time.
func lowerTo(excess, sizes map[owner]int64, access bool, keep int64) {
	var owners []owner
	var total int64
	for o, size := range sizes {
		if o.access == access {
			owners = append(owners, o)
			total += size
		}
	}
	if total <= keep {
		return
	}

	slices.SortFunc(owners, func(a, b owner) int { return cmp.Compare(sizes[a], sizes[b]) })

	// Each owner may use an equal part of the space that is left for it and all larger owners. Larger owners share what a
	// small owner does not need.
	for i, o := range owners {
		level := keep / int64(len(owners)-i)
		if size := sizes[o]; size > level {
			excess[o] = size - level
			keep -= level
			continue
		}
		keep -= sizes[o]
	}
}

// removal is records of one owner that one transaction removes.
type removal struct {
	owner   owner
	entries []store.AuditEntry
	ranges  []store.AuditRange
}

// chooseRemovals selects the records of a page to remove, up to the excess of each owner, and reduces excess by their size.
func chooseRemovals(page store.AuditPage, excess map[owner]int64) []removal {
	var list []removal
	current := map[owner]int{} // the index in list
	last := -1                 // the index of the removed record before, and in which removal it is
	lastIn := -1

	for i, e := range page.Entries {
		o := ownerOf(e)
		if excess[o] <= 0 {
			continue
		}

		at, ok := current[o]
		continues := ok && last == i-1 && lastIn == at
		if !ok || !continues && len(list[at].ranges) == store.MaxAuditRanges {
			at = len(list)
			list = append(list, removal{owner: o})
			current[o] = at
			continues = false
		}

		r := &list[at]
		if continues {
			r.ranges[len(r.ranges)-1].Last = e.ID
		} else {
			r.ranges = append(r.ranges, store.AuditRange{First: e.ID, Last: e.ID, Revision: page.Revision})
		}
		r.entries = append(r.entries, e)
		last, lastIn = i, at

		if excess[o] -= e.Bytes; excess[o] <= 0 {
			delete(excess, o)
		}
	}

	return list
}
