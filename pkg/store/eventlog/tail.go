package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/events"
	"github.com/carillonhq/carillon/pkg/task"
)

// The delay between attempts to follow etcd starts at minRetryDelay and doubles up to
// maxRetryDelay.
const (
	minRetryDelay = 20 * time.Millisecond
	maxRetryDelay = time.Second
)

// errElsewhere means that etcd has compacted what has to be delivered next.
var errElsewhere = errors.New("the list has a different revision than requested")

// position is how far the events have been read.
type position struct {
	place task.Place // the last place that was delivered
	begun bool       // place is valid, and the events continue after it
}

// baseRevision returns the revision whose state precedes the next event. If the place is within a
// revision, that revision is read again.
func (p position) baseRevision() int64 {
	if p.place.Index == task.Whole || p.place.Revision == 0 {
		return p.place.Revision
	}
	return p.place.Revision - 1
}

// retryAttempts calls attempt until it returns an error that another attempt would not change, and
// returns that. After some errors it pauses, and after others the next attempt begins at once.
func retryAttempts(ctx context.Context, attempt func() error) error {
	var delay time.Duration
	for {
		err := attempt()

		switch {
		case errors.Is(err, errContinue):
			delay = 0
		case (errors.Is(err, errElsewhere) || errors.Is(err, errNoWatch) || errors.Is(err, task.ErrUnavailable)) && ctx.Err() == nil:
			delay = min(max(2*delay, minRetryDelay), maxRetryDelay)
			if !clock.Sleep(ctx, delay) {
				return context.Cause(ctx)
			}
		default:
			return err
		}
	}
}

// errContinue is wrapped by errors after which the next attempt continues where this one ended.
var errContinue = errors.New("continue")

// checkHistory checks that etcd still has the revisions from which to continue. If it has not, it
// returns a gap, and the position behind it: at the oldest revision after a compaction, and at the
// newest if etcd was restored from an older snapshot.
func (l Log) checkHistory(ctx context.Context, p position) (position, *Event, error) {
	if !p.begun {
		return p, nil, nil
	}

	there, err := l.Readable(ctx)
	if err != nil {
		return p, nil, err
	}

	var gap *Event

	switch base := p.baseRevision(); {
	case p.place == task.Place{} && there.Oldest == 1:
		p.place = task.After(1) // nothing was written before revision 2, so nothing is missing
		return p, nil, nil
	case p.place == task.Place{}:
		gap = compactedGap(0, there.Oldest)
	case base < there.Oldest:
		gap = compactedGap(base+1, there.Oldest)
	case base > there.Newest:
		gap = restoredGap(there.Newest)
	default:
		return p, nil, nil
	}

	p.place = gap.Place

	return p, gap, nil
}

// compactedGap returns the gap of revisions that etcd has compacted, up to its oldest one. from is 0 if it is not known
// where the gap begins.
func compactedGap(from, oldest int64) *Event {
	return newGap(task.Event{Action: task.ActionCompacted, From: from, To: oldest, Detail: "etcd no longer has the events up to this revision"})
}

// restoredGap returns the gap of an etcd that was restored from an older snapshot, and is now at revision newest.
func restoredGap(newest int64) *Event {
	return newGap(task.Event{Action: task.ActionRestored, To: newest, Detail: fmt.Sprintf("etcd is only at revision %d, so it has been restored", newest)})
}

func newGap(e task.Event) *Event {
	place := task.After(e.To)
	e.Kind, e.Revision, e.ID = task.EventGap, e.To, place.String()

	return &Event{Event: e, Place: place}
}

// newestRevision returns the present revision of etcd.
func (l Log) newestRevision(ctx context.Context) (int64, error) {
	res, err := l.etcd.Get(ctx, l.keys.Cluster(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("read the present revision: %w: %w", task.ErrUnavailable, err)
	}

	return res.Header.Revision, nil
}

// followRevisions follows the keys from a position on, translates each revision to events, and calls
// deliver with those that are wanted, and with the place that it has reached. The first call has no
// events. wants may be nil.
func (l Log) followRevisions(ctx context.Context, from position, wants func(*task.Event) bool, deliver func([]*Event, task.Place) error) error {
	root, end := kv.Prefix(l.keys.Root())
	var t *events.Translator
	place, base := from.place, from.baseRevision()
	// The list has the keys from leader/ to owners/, which a Translator needs to know who led,
	// owned and was present. The watch has all keys.
	cfg := kv.FollowConfig{
		Key: l.keys.Leader(), End: l.keys.Runs(), WatchKey: root, WatchEnd: end, Name: "events", Background: true, Previous: true,
	}
	if from.begun {
		cfg.Revision = base
	}

	return kv.Follow(ctx, l.etcd, cfg, func(batch kv.Batch) error {
		if batch.Reset {
			if t != nil && batch.Revision != place.Revision || t == nil && from.begun && batch.Revision != base {
				return errElsewhere // the watch could not be resumed, or the base revision is compacted
			}

			if t = events.New(l.keys, batch.KVs); !from.begun {
				place = task.After(batch.Revision)
			}

			return deliver(nil, place)
		}

		var list []*Event
		for i := 0; i < len(batch.Events); {
			rev, changes, err := oneRevision(batch.Events[i:])
			if err != nil {
				return err
			}

			i += len(changes)

			for _, e := range t.Translate(rev, changes) {
				at, _ := task.ParsePlace(e.ID)
				if place.Before(at) && (wants == nil || wants(&e)) {
					list = append(list, &Event{Event: e, Place: at})
				}
			}
		}

		place = task.After(batch.Revision)

		return deliver(list, place)
	})
}

// oneRevision returns the first revision of a list of events and its changes. etcd never splits
// a revision over two responses. It returns errElsewhere if a previous value has been
// compacted.
func oneRevision(watched []*clientv3.Event) (int64, []events.Change, error) {
	rev := watched[0].Kv.ModRevision
	var changes []events.Change
	for _, e := range watched {
		if e.Kv.ModRevision != rev {
			break
		}

		c := events.Change{Key: string(e.Kv.Key), Before: e.PrevKv}
		if e.Type != clientv3.EventTypeDelete {
			c.After = e.Kv
		}

		if c.Before == nil && !e.IsCreate() {
			return 0, nil, errElsewhere
		}

		changes = append(changes, c)
	}

	return rev, changes, nil
}
