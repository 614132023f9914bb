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

	// This is a binary search for the last revision whose clock is before the instant. The
	// clock at high is not before it. The clock at low is before it, or not known. Clocks
	// increase with the revisions, so the condition changes only once.
	for low, high := there.Oldest, there.Newest+1; high-low > 1; {
		middle := low + (high-low)/2
		rev, c, err := l.clockBefore(ctx, middle, low)
		switch {
		case err != nil:
			return task.Place{}, err
		case c.at == 0:
			low = middle // nothing was announced in between, so known remains valid
		case c.clock.Before(instant):
			low, known = middle, c
		default:
			high = rev
		}
	}

	if known.at < there.Oldest && there.Oldest > 1 {
		return task.Place{}, nil
	}

	return task.After(max(known.at, 1)), nil
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
// about thirty reads of one key.
func (l Log) Readable(ctx context.Context) (Readable, error) {
	read := func(rev int64) (int64, error) {
		res, err := l.etcd.Get(ctx, l.keys.Cluster(), clientv3.WithRev(rev), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		return res.Header.Revision, nil
	}

	// high is a revision that can be read; everything below low cannot.
	newest, err := read(0)
	low, high := int64(1), newest
	for err == nil && low < high {
		middle := low + (high-low)/2
		switch _, err = read(middle); {
		case err == nil:
			high = middle
		case errors.Is(err, rpctypes.ErrCompacted):
			low, err = middle+1, nil
		}
	}

	if err != nil {
		return Readable{}, fmt.Errorf("find the oldest revision: %w: %w", task.ErrUnavailable, err)
	}

	return Readable{Oldest: high, Newest: newest}, nil
}
