package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/events"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// Log reads the events of one cluster. It is safe for concurrent use.
type Log struct {
	etcd *kv.Client
	keys record.Keys
}

// New returns the Log of the cluster with these keys.
func New(etcd *kv.Client, keys record.Keys) Log { return Log{etcd: etcd, keys: keys} }

// maxEventsAhead is how many events may wait for a slow reader. One response of etcd, which may
// contain a thousand revisions, can exceed it.
const maxEventsAhead = 4096

// The delay between attempts to follow etcd starts at minRetryDelay and doubles up to
// maxRetryDelay.
const (
	minRetryDelay = 20 * time.Millisecond
	maxRetryDelay = time.Second
)

// Query selects events, and the place from which they are delivered.
type Query struct {
	After *task.Place            // nil: only new events; the zero Place: from the oldest that exists
	Wants func(*task.Event) bool // reports whether to deliver an event; nil: all
}

// Batch is a step of what FollowEvents delivers. Events may be empty. Then there are no
// wanted events up to Told.
type Batch struct {
	Events []task.Event
	Told   task.Place // all events up to this place have been delivered
}

// FollowEvents calls apply with the events of the cluster, each once and in order, until ctx
// ends or apply returns an error, which it returns. The first call of apply has no events and
// contains the place where the events begin.
//
// The events are not stored anywhere: they are derived from the changes of etcd's revisions,
// and exist as long as etcd keeps these. If some of the requested events do not exist any more,
// FollowEvents delivers an event of the kind gap instead, and continues with the oldest that
// exists.
//
// apply may be slow. The number of events that wait for it is limited. Beyond that, the watch
// ends, and a new one begins after apply has processed them.
func (l Log) FollowEvents(ctx context.Context, q Query, apply func(Batch) error) error {
	f := &follower{log: l, wants: q.Wants, apply: apply}
	if f.wants == nil {
		f.wants = func(*task.Event) bool { return true }
	}

	if q.After != nil {
		f.delivered, f.begun = *q.After, true
	}

	var delay time.Duration // between attempts
	for {
		err := f.prepareHistory(ctx)
		if err == nil {
			err = f.followTail(ctx)
		}

		switch {
		case errors.Is(err, errTooSlow):
			delay = 0
		case (errors.Is(err, errElsewhere) || errors.Is(err, task.ErrUnavailable)) && ctx.Err() == nil:
			delay = min(max(2*delay, minRetryDelay), maxRetryDelay)
			if !clock.Sleep(ctx, delay) {
				return context.Cause(ctx)
			}
		default:
			return err
		}
	}
}

var (
	// errTooSlow means that maxEventsAhead events wait for the reader.
	errTooSlow = errors.New("the reader is too slow")
	// errElsewhere means that etcd has compacted what has to be delivered next.
	errElsewhere = errors.New("the list has a different revision than requested")
)

// follower is the state of one call of FollowEvents.
type follower struct {
	log       Log
	wants     func(*task.Event) bool
	apply     func(Batch) error
	delivered task.Place // the last place that was delivered to apply
	begun     bool       // delivered is valid, and the events continue after it
}

// baseRevision returns the revision whose state precedes the next event to deliver. If delivered
// is within a revision, that revision is read again.
func (f *follower) baseRevision() int64 {
	if f.delivered.Index == task.Whole || f.delivered.Revision == 0 {
		return f.delivered.Revision
	}
	return f.delivered.Revision - 1
}

// prepareHistory checks that etcd still has the revisions from which to continue. If it has
// not, prepareHistory delivers a gap and continues behind it: at the oldest revision after a
// compaction, and at the newest if etcd was restored from an older snapshot.
func (f *follower) prepareHistory(ctx context.Context) error {
	if !f.begun {
		return nil
	}

	there, err := f.log.Readable(ctx)
	if err != nil {
		return err
	}

	base := f.baseRevision()
	gap := task.Event{Kind: task.EventGap, From: base + 1}
	if f.delivered == (task.Place{}) {
		gap.From = 0
	}

	switch {
	case f.delivered == task.Place{} && there.Oldest == 1:
		f.delivered = task.After(1) // nothing was written before revision 2, so nothing is missing
		return nil
	case base < there.Oldest:
		gap.Action, gap.To = task.ActionCompacted, there.Oldest
		gap.Detail = "etcd no longer has the events up to this revision"
	case base > there.Newest:
		gap.Action, gap.From, gap.To = task.ActionRestored, 0, there.Newest
		gap.Detail = fmt.Sprintf("etcd is only at revision %d, so it has been restored", there.Newest)
	default:
		return nil
	}

	f.delivered = task.After(gap.To)
	gap.Revision, gap.ID = gap.To, f.delivered.String()

	return f.apply(Batch{Events: []task.Event{gap}, Told: f.delivered})
}

// followTail delivers the events after delivered until the reader is too slow or the next events do
// not exist any more. A second goroutine fills a buffer from the watch, so that a slow reader
// does not delay the watch of etcd.
func (f *follower) followTail(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	b := &buffer{more: wake.NewSignal()}
	ended := make(chan error, 1)
	go func() { ended <- f.fillBuffer(ctx, b) }()

	for {
		select {
		case <-b.more:
			if err := f.handEvents(b); err != nil {
				// The error of the reader ends everything. Wait for the other goroutine.
				cancel()
				<-ended
				return err
			}
		case err := <-ended:
			// Deliver what is in the buffer, so that the next attempt continues after it.
			if herr := f.handEvents(b); herr != nil {
				return herr
			}
			return err
		}
	}
}

// handEvents passes the content of the buffer to apply.
func (f *follower) handEvents(b *buffer) error {
	batch, some := b.takeBatch()
	if !some {
		return nil
	}
	if err := f.apply(batch); err != nil {
		return err
	}

	f.delivered, f.begun = batch.Told, true

	return nil
}

// fillBuffer follows the keys from the place delivered, translates each revision to events, and adds
// them to the buffer until that is full.
func (f *follower) fillBuffer(ctx context.Context, b *buffer) error {
	keys := f.log.keys
	root, end := kv.Prefix(keys.Root())
	var t *events.Translator
	place, base := f.delivered, f.baseRevision()
	// The list has the keys from leader/ to owners/, which a Translator needs to know who led,
	// owned and was present. The watch has all keys.
	cfg := kv.FollowConfig{
		Key: keys.Leader(), End: keys.Runs(), WatchKey: root, WatchEnd: end, Name: "events", Background: true, Previous: true,
	}
	if f.begun {
		cfg.Revision = base
	}

	return kv.Follow(ctx, f.log.etcd, cfg, func(batch kv.Batch) error {
		if batch.Reset {
			if t != nil && batch.Revision != place.Revision || t == nil && f.begun && batch.Revision != base {
				return errElsewhere // the watch could not be resumed, or the base revision is compacted
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

// buffer contains the events that wait for a reader.
type buffer struct {
	more wake.Signal // one slot; receives a value when something was added

	mu     sync.Mutex
	events []task.Event
	upTo   task.Place // all wanted events up to this place are in events or were taken
}

// addEvents adds events up to a place and wakes the reader. It returns errTooSlow if too many
// events wait now. Even then the events have been added, so nothing is lost.
func (b *buffer) addEvents(events []task.Event, upTo task.Place) error {
	b.mu.Lock()
	b.events, b.upTo = append(b.events, events...), upTo
	full := len(b.events) > maxEventsAhead
	b.mu.Unlock()

	b.more.Send()

	if full {
		return errTooSlow
	}

	return nil
}

// takeBatch empties the buffer and returns its content. It returns false if nothing was added
// since the last call.
func (b *buffer) takeBatch() (Batch, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	batch := Batch{Events: b.events, Told: b.upTo}
	b.events, b.upTo = nil, task.Place{}

	return batch, batch.Told != task.Place{}
}
