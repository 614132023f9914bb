package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// clockMargin is by how much the clocks of nodes may differ, and how long an announcement may
// take to reach etcd, before PlaceOf could return a place that is too late.
const clockMargin = 2 * time.Second

// announcedClock is the latest clock that a node had announced as of some revision.
type announcedClock struct {
	clock time.Time
	at    int64 // the mod revision of the announcement; 0: no node was present
}

// PlaceOf returns a place in the events before everything that was written at or after a time,
// according to the clocks that the nodes have announced. It is usually a few seconds earlier,
// and never later. It returns the zero Place if that place may be before everything that etcd
// still has.
func (l Log) PlaceOf(ctx context.Context, instant time.Time) (task.Place, error) {
	there, err := l.Readable(ctx)
	if err != nil {
		return task.Place{}, err
	}

	instant = instant.Add(-clockMargin)
	known, err := l.clockAt(ctx, there.Oldest)
	if err != nil {
		return task.Place{}, err
	}
	if there.Oldest > 1 && (known.at == 0 || !known.clock.Before(instant)) {
		return task.Place{}, nil
	}

	// This is a search for the last revision whose clock is before the instant. The clock at high
	// is not before it. The clock at low is before it, or not known. Clocks increase with the
	// revisions, so the condition changes only once. The search ends early at a clock that is
	// close enough.
	search := placeSearch{low: there.Oldest, high: there.Newest + 1, known: known, target: instant.Add(-closeEnough / 2)}
	for search.high-search.low > 1 && instant.Sub(search.known.clock) > closeEnough {
		middle := search.nextRevision()
		rev, c, err := l.clockBefore(ctx, middle, search.low)
		switch {
		case err != nil:
			return task.Place{}, err
		case c.at == 0:
			search.low = middle // nothing was announced in between, so known remains valid
		case c.clock.Before(instant):
			search.low, search.known = middle, c
		default:
			search.high, search.highClock = rev, c.clock
		}
	}

	known = search.known
	if known.at < there.Oldest && there.Oldest > 1 {
		return task.Place{}, nil
	}

	return task.After(max(known.at, 1)), nil
}

// closeEnough is how much earlier than the instant a place may be. The search for a closer one would cost further reads.
const closeEnough = 3 * time.Second

// placeSearch is the state of the search in PlaceOf.
type placeSearch struct {
	low, high int64
	known     announcedClock // the latest clock as of low; zero if not known
	highClock time.Time      // the clock at high; zero if not known
	target    time.Time
	steps     int
}

// nextRevision returns the revision between low and high to read next. The first is the newest one, because most instants
// are recent. Then it alternates between where the target would be if revisions were written at an even rate, which for
// most clusters needs few steps, and the middle, which limits their number if they were not.
func (s *placeSearch) nextRevision() int64 {
	s.steps++
	if s.steps == 1 {
		return s.high - 1
	}

	middle := s.low + (s.high-s.low)/2
	if s.steps%3 == 0 || s.known.at == 0 || !s.highClock.After(s.known.clock) {
		return middle
	}

	share := float64(s.target.Sub(s.known.clock)) / float64(s.highClock.Sub(s.known.clock))
	at := s.low + int64(share*float64(s.high-s.low))

	return min(max(at, s.low+1), s.high-1)
}

// clockBefore returns the latest clock at revision from or, if no node was present then, at an
// earlier revision above low, and that revision. It doubles its steps backward. It returns zero
// values if it finds none.
func (l Log) clockBefore(ctx context.Context, from, low int64) (rev int64, c announcedClock, err error) {
	for step := int64(0); from-step > low; step = max(1, 2*step) {
		rev = from - step
		if c, err = l.clockAt(ctx, rev); c.at != 0 || err != nil {
			return rev, c, err
		}
	}

	return 0, announcedClock{}, nil
}

// clockAt returns the latest clock that a node had announced as of a revision.
func (l Log) clockAt(ctx context.Context, rev int64) (latest announcedClock, err error) {
	nodes, end := kv.Prefix(l.keys.Nodes())
	all, _, err := kv.List(ctx, l.etcd, nodes, end, rev)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return announcedClock{}, nil // compacted since the caller read the oldest revision
	}
	if err != nil {
		return announcedClock{}, fmt.Errorf("read the nodes' clocks at revision %d: %w: %w", rev, task.ErrUnavailable, err)
	}

	for _, e := range all {
		if n, err := record.DecodeNode(l.keys, e); err == nil && n.Clock.After(latest.clock) {
			latest = announcedClock{n.Clock.Time, e.ModRevision}
		}
	}

	return latest, nil
}

// Readable are the oldest and the newest revision that etcd can read.
type Readable struct{ Oldest, Newest int64 }

// Readable finds the revisions that can be read. Older ones have been compacted. etcd does not
// report where it was compacted, except by refusing a read, so this is a binary search with
// about thirty reads of one key. Later calls need three until etcd is compacted again.
func (l Log) Readable(ctx context.Context) (Readable, error) {
	res, err := l.etcd.Get(ctx, l.keys.Cluster(), clientv3.WithCountOnly())
	if err != nil {
		return Readable{}, fmt.Errorf("find the newest revision: %w: %w", task.ErrUnavailable, err)
	}

	// high is a revision that can be read; everything below low cannot. The last result limits
	// the search from below, unless etcd was restored from an older snapshot since.
	newest := res.Header.Revision
	low, high := int64(1), newest
	middle := low + (high-low)/2
	switch last := l.oldest.Load(); {
	case last == 1:
		middle = 1
	case last > 1 && last <= newest:
		compacted, err := l.isCompacted(ctx, last-1)
		if err != nil {
			return Readable{}, err
		}
		if compacted {
			low, middle = last, last
		}
	}

	for low < high {
		compacted, err := l.isCompacted(ctx, middle)
		switch {
		case err != nil:
			return Readable{}, err
		case compacted:
			low = middle + 1
		default:
			high = middle
		}
		middle = low + (high-low)/2
	}

	l.oldest.Store(high)

	return Readable{Oldest: high, Newest: newest}, nil
}

// isCompacted reports whether etcd can no longer read a revision.
func (l Log) isCompacted(ctx context.Context, rev int64) (bool, error) {
	_, err := l.etcd.Get(ctx, l.keys.Cluster(), clientv3.WithRev(rev), clientv3.WithCountOnly())
	if errors.Is(err, rpctypes.ErrCompacted) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("find the oldest revision: %w: %w", task.ErrUnavailable, err)
	}

	return false, nil
}
