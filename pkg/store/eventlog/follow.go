package eventlog

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// Query selects events, and the place from which they are delivered.
type Query struct {
	After *task.Place            // nil: only new events; the zero Place: from the oldest that exists
	Wants func(*task.Event) bool // reports whether to deliver an event; nil: all

	// Only a Hub uses the following fields.

	// Brief means that the reader reads past events and soon ends. The hub does not open for it.
	Brief bool
	// OwnWatch, if set, allows the reader to open a watch of its own, or refuses it. The reader calls release when the
	// watch has ended.
	OwnWatch func() (release func(), err error)
}

// Event is an event that several readers may share. They must not modify it.
type Event struct {
	task.Event
	Place task.Place // the place of the event, which is also its ID

	encode sync.Once
	text   []byte
	err    error
}

// JSON returns the event as JSON. It is encoded only once, for all readers.
func (e *Event) JSON() ([]byte, error) {
	e.encode.Do(func() { e.text, e.err = json.Marshal(&e.Event) })
	return e.text, e.err
}

// Batch is a step of what is delivered. Events may be empty. Then there are no wanted events up to Told.
type Batch struct {
	Events []*Event
	Told   task.Place // all events up to this place have been delivered
}

// Log reads the events of one cluster. It is safe for concurrent use.
type Log struct {
	etcd   *kv.Client
	keys   record.Keys
	oldest *atomic.Int64 // the oldest revision that Readable has found last; 0: none
}

// New returns the Log of the cluster with these keys.
func New(etcd *kv.Client, keys record.Keys) Log {
	return Log{etcd: etcd, keys: keys, oldest: new(atomic.Int64)}
}

// maxEventsAhead is how many events may wait for a slow reader. One response of etcd, which may
// contain a thousand revisions, can exceed it.
const maxEventsAhead = 4096

// FollowEvents calls apply with the events of the cluster, each once and in order, until ctx
// ends or apply returns an error, which it returns. If there are no events yet, the first call of
// apply has none, and contains the place where they begin.
//
// The events are not stored anywhere: they are derived from the changes of etcd's revisions,
// and exist as long as etcd keeps these. If some of the requested events do not exist any more,
// FollowEvents delivers an event of the kind gap instead, and continues with the oldest that
// exists.
//
// apply may be slow. The number of events that wait for it is limited. Beyond that, the watch
// ends, and a new one begins after apply has processed them.
//
// Each call has a watch of its own. Readers of one process should share a Hub.
func (l Log) FollowEvents(ctx context.Context, q Query, apply func(Batch) error) error {
	f := &follower{log: l, wants: q.Wants, apply: apply}
	if q.After != nil {
		f.position = position{*q.After, true}
	}

	return retryAttempts(ctx, func() error {
		next, gap, err := l.checkHistory(ctx, f.position)
		if err != nil {
			return err
		}

		f.position = next

		if gap != nil {
			if err := apply(Batch{Events: []*Event{gap}, Told: gap.Place}); err != nil {
				return err
			}
		}

		return f.followTail(ctx)
	})
}

// errTooSlow means that maxEventsAhead events wait for the reader.
var errTooSlow = fmt.Errorf("the reader is too slow: %w", errContinue)

// follower is the state of one call of FollowEvents.
type follower struct {
	position
	log   Log
	wants func(*task.Event) bool
	apply func(Batch) error
}

// followTail delivers the events after the position until the reader is too slow or the next events do
// not exist any more. A second goroutine fills a buffer from the watch, so that a slow reader
// does not delay the watch of etcd.
func (f *follower) followTail(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	b := &buffer{more: wake.NewSignal()}
	ended, from := make(chan error, 1), f.position
	callgroup.Start(func() { ended <- f.log.followRevisions(ctx, from, f.wants, b.addEvents) }, func(p *callgroup.Panic) { ended <- p })

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

	f.position = position{batch.Told, true}

	return nil
}

// buffer contains the events that wait for a reader.
type buffer struct {
	more wake.Signal // one slot; receives a value when something was added

	mu     sync.Mutex
	events []*Event
	upTo   task.Place // all wanted events up to this place are in events or were taken
}

// addEvents adds events up to a place and wakes the reader. It returns errTooSlow if too many
// events wait now. Even then the events have been added, so nothing is lost.
func (b *buffer) addEvents(events []*Event, upTo task.Place) error {
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
