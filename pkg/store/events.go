package store

import (
	"context"
	"errors"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/events"
	"github.com/carillonhq/carillon/pkg/task"
)

// Events reads what has happened in the cluster from the revisions of etcd. It stores
// nothing: events last as long as etcd keeps the revisions that they come from.
type Events struct{ *conn }

// maxEventsAhead is how many events wait for a slow reader at most, beside those
// of the one response of etcd that passes it: a thousand revisions.
const maxEventsAhead = 4096

// EventQuery says which events are told, and from where on.
type EventQuery struct {
	After *task.Place // nil: from now on; the zero Place: from the oldest that there is
	Wants func(*task.Event) bool
}

// EventBatch is what is told at once. Events may be empty: then there were none
// that are wanted up to Told.
type EventBatch struct {
	Events []task.Event
	Told   task.Place // the events up to here are told
}

// FollowEvents calls apply with the events of the cluster, in order and each once,
// until ctx ends or apply returns an error, which it returns. They are nowhere
// stored: they are what etcd's revisions did to the keys, and last as long as etcd
// keeps these. Where some that were asked for are gone, an event of the kind gap
// says so, and it goes on with the oldest that there is. The first call of apply
// comes before there are any, and says where it begins.
//
// apply may be slow: what waits for it is bounded, beyond that etcd is asked again.
func (s Events) FollowEvents(ctx context.Context, q EventQuery, apply func(EventBatch) error) error {
	f := &eventFollower{s: s, wants: q.Wants, apply: apply}
	if f.wants == nil {
		f.wants = func(*task.Event) bool { return true }
	}

	if q.After != nil {
		f.told, f.begun = *q.After, true
	}

	var wait again
	for {
		err := f.prepareHistory(ctx)
		if err == nil {
			err = f.followTail(ctx)
		}

		switch {
		case errors.Is(err, errTooSlow):
			wait = again{}
		case (errors.Is(err, errElsewhere) || errors.Is(err, task.ErrUnavailable)) && ctx.Err() == nil:
			if err := wait.waitBackoff(ctx); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

var (
	errTooSlow   = errors.New("the reader is too slow")
	errElsewhere = errors.New("the list is of another revision than was asked for")
)

// eventFollower follows events for one reader.
type eventFollower struct {
	s     Events
	wants func(*task.Event) bool
	apply func(EventBatch) error
	told  task.Place // to the reader
	begun bool       // told says from where to go on
}

// baseRevision is the revision whose state comes before the first event to tell. That of
// told is read again, unless all of it is told.
func (f *eventFollower) baseRevision() int64 {
	if f.told.Index == task.Whole || f.told.Revision == 0 {
		return f.told.Revision
	}
	return f.told.Revision - 1
}

// prepareHistory sees that etcd has what is to be told, and tells of a gap if it has not.
func (f *eventFollower) prepareHistory(ctx context.Context) error {
	if !f.begun {
		return nil
	}

	there, err := Etcd{f.s.conn}.Readable(ctx)
	if err != nil {
		return err
	}

	base := f.baseRevision()
	gap := task.Event{Kind: task.EventGap, From: base + 1}
	if f.told == (task.Place{}) {
		gap.From = 0
	}

	switch {
	case f.told == task.Place{} && there.Oldest == 1:
		f.told = task.After(1) // of an etcd that holds nothing yet
		return nil
	case base < there.Oldest:
		gap.Action, gap.To = task.ActionCompacted, there.Oldest
		gap.Detail = "etcd has forgotten what happened up to this revision"
	case base > there.Newest:
		gap.Action, gap.From, gap.To = task.ActionRestored, 0, there.Newest
		gap.Detail = fmt.Sprintf("etcd is at revision %d only, it must have been restored", there.Newest)
	default:
		return nil
	}

	f.told = task.After(gap.To)
	gap.Revision, gap.ID = gap.To, f.told.String()

	return f.apply(EventBatch{Events: []task.Event{gap}, Told: f.told})
}

// followTail tells what happens after told, until the reader is too slow, or what was
// asked for is not there.
func (f *eventFollower) followTail(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	b := &eventBuffer{more: make(chan struct{}, 1)}
	ended := make(chan error, 1)
	go func() { ended <- f.fillBuffer(ctx, b) }()

	for {
		select {
		case <-b.more:
			if err := f.handEvents(b); err != nil {
				cancel()
				<-ended
				return err
			}
		case err := <-ended:
			if herr := f.handEvents(b); herr != nil {
				return herr
			}
			return err
		}
	}
}

// handEvents gives the reader what waits for it.
func (f *eventFollower) handEvents(b *eventBuffer) error {
	batch, some := b.takeBatch()
	if !some {
		return nil
	}
	if err := f.apply(batch); err != nil {
		return err
	}

	f.told, f.begun = batch.Told, true

	return nil
}

// fillBuffer puts events into the buffer until that is full.
func (f *eventFollower) fillBuffer(ctx context.Context, b *eventBuffer) error {
	keys := f.s.keys
	root, end := kv.Prefix(keys.Root())
	var t *events.Translator
	place, base := f.told, f.baseRevision()
	cfg := kv.FollowConfig{ // from leader/ to owners/: what a translator has to know
		Key: keys.Leader(), End: keys.Runs(), WatchKey: root, WatchEnd: end, Name: "events", Aside: true, Previous: true,
	}
	if f.begun {
		cfg.Revision = base
	}

	return kv.Follow(ctx, f.s.etcd, cfg, func(batch kv.Batch) error {
		if batch.Reset {
			if t != nil && batch.Revision != place.Revision || t == nil && f.begun && batch.Revision != base {
				return errElsewhere // it could not go on where it was
			}

			if t = events.New(keys, batch.KVs); !f.begun {
				place = task.After(batch.Revision)
			}

			return b.addEvents(nil, place)
		}

		var list []task.Event
		for i := 0; i < len(batch.Events); {
			rev, changes, err := oneRevision(batch.Events[i:])
			if err != nil {
				return err
			}

			i += len(changes)

			for _, e := range t.Translate(rev, changes) {
				if at, _ := task.ParsePlace(e.ID); place.Before(at) && f.wants(&e) {
					list = append(list, e)
				}
			}
		}

		place = task.After(batch.Revision)

		return b.addEvents(list, place)
	})
}

// oneRevision is the changes of the first revision of some events; etcd tells of a
// revision as a whole. errElsewhere if what was there before is compacted away by now.
func oneRevision(told []*clientv3.Event) (int64, []events.Change, error) {
	rev := told[0].Kv.ModRevision
	var changes []events.Change
	for _, e := range told {
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

// eventBuffer is what waits for a reader.
type eventBuffer struct {
	more chan struct{} // one slot

	mu     sync.Mutex
	events []task.Event
	told   task.Place
}

// addEvents takes events up to a place; errTooSlow, and nothing is lost, if enough wait
// now.
func (b *eventBuffer) addEvents(events []task.Event, told task.Place) error {
	b.mu.Lock()
	b.events, b.told = append(b.events, events...), told
	full := len(b.events) > maxEventsAhead
	b.mu.Unlock()

	select {
	case b.more <- struct{}{}:
	default:
	}

	if full {
		return errTooSlow
	}

	return nil
}

// takeBatch empties it; false if there is nothing new.
func (b *eventBuffer) takeBatch() (EventBatch, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	batch := EventBatch{Events: b.events, Told: b.told}
	b.events, b.told = nil, task.Place{}

	return batch, batch.Told != task.Place{}
}
