package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// clockMargin is how long an announcement may be on its way to etcd, and how much
// clocks may differ, without PlaceOf leaving anything out.
const clockMargin = 2 * time.Second

// told is when the latest word of the time had come, as of a revision.
type told struct {
	clock time.Time
	at    int64 // the revision of that word; 0: no node was present
}

// PlaceOf is a place before all that was written at or after an instant, by the
// clocks that the nodes have told: some seconds earlier. It is the zero Place if
// that may be before all that etcd still has.
func (s Events) PlaceOf(ctx context.Context, instant time.Time) (task.Place, error) {
	there, err := Etcd(s).Readable(ctx)
	if err != nil {
		return task.Place{}, err
	}

	instant = instant.Add(-clockMargin)
	known, err := s.clockAt(ctx, there.Oldest)
	if err != nil {
		return task.Place{}, err
	}
	if there.Oldest > 1 && (known.at == 0 || !known.clock.Before(instant)) {
		return task.Place{}, nil
	}

	// The clock at high is not before the instant; that at low is, or nobody knows.
	// Clocks go on with revisions: one that is before it is so for all before that.
	for low, high := there.Oldest, there.Newest+1; high-low > 1; {
		middle := low + (high-low)/2
		rev, c, err := s.clockBefore(ctx, middle, low)
		switch {
		case err != nil:
			return task.Place{}, err
		case c.at == 0:
			low = middle // what was told before stands
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

// clockBefore is what the clocks showed at a revision, or at one before it that is
// later than low: when no node was present, nobody told.
func (s Events) clockBefore(ctx context.Context, from, low int64) (rev int64, c told, err error) {
	for step := int64(0); from-step > low; step = max(1, 2*step) {
		rev = from - step
		if c, err = s.clockAt(ctx, rev); c.at != 0 || err != nil {
			return rev, c, err
		}
	}

	return 0, told{}, nil
}

// clockAt is the latest time that a node had told at a revision.
func (s Events) clockAt(ctx context.Context, rev int64) (latest told, err error) {
	all, _, err := s.getAllAt(ctx, s.keys.Nodes(), rev)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return told{}, nil // meanwhile
	}
	if err != nil {
		return told{}, fmt.Errorf("read the nodes' clocks at revision %d: %w", rev, err)
	}

	for _, e := range all {
		if n, err := record.DecodeNode(s.keys, e); err == nil && n.Clock.After(latest.clock) {
			latest = told{n.Clock.Time, e.ModRevision}
		}
	}

	return latest, nil
}
