package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	// hubLinger is how long a hub stays open after its last reader has left. A client that reconnects then finds its
	// place in the ring.
	hubLinger = 30 * time.Second
	// hubPast is how many revisions before the present one the ring of a hub begins. So readers that reconnect after
	// their node was restarted, at this node or at another, need no watches of their own. etcd sends up to 1,000
	// revisions in one response.
	hubPast = 1000
	// openTimeout is how long Open waits for a hub that has just opened.
	openTimeout = time.Second
)

// Hub gives all readers of a process their events from one watch of etcd. It keeps the last events in a ring. A reader
// that needs older ones has a watch of its own until it has caught up.
//
//	           first reader               etcd is read
//	closed ────────────────▶ opening ────────────────▶ open
//	   ▲                                                │
//	   └────────────────────────────────────────────────┘
//	             hubLinger after the last reader
//
// Each reader gets exactly the events that a watch of its own would have given, in the same order and with the same
// IDs. An event in the ring stays available even if etcd compacts its revision. A slow reader does not delay others: when
// its place is no longer in the ring, it opens a watch of its own.
//
// While etcd cannot be reached, readers wait. If etcd compacts revisions before the hub has read them, all readers
// get an event of the kind gap.
//
// Unless Run is running, each reader has a watch of its own. A Hub is safe for concurrent use.
type Hub struct {
	log    Log
	logger *zap.Logger
	wanted wake.Signal  // wakes Run: there is a ring to fill
	behind atomic.Int64 // how often the ring has lost the place of a reader

	ringSize int // how many events a ring keeps

	mu      sync.Mutex
	running bool
	readers int
	ring    *ring              // nil while the hub is closed
	stop    context.CancelFunc // ends the watch that fills ring; nil: Run has not noticed the ring yet
	idle    *time.Timer        // closes the hub; nil while there are readers
}

// NewHub returns a closed Hub. logger receives faults of the hub itself; if it is nil, they are not logged.
func NewHub(l Log, logger *zap.Logger) *Hub {
	if logger == nil {
		logger = zap.NewNop()
	}

	return &Hub{log: l, logger: logger.Named("events"), wanted: wake.NewSignal(), ringSize: ringSize}
}

// Run opens the hub when there are readers, and closes it when they have left, until ctx ends.
//
// If the conversion of a change in etcd panics, the hub closes permanently. Each reader then continues with a watch of its own, and
// panics when it reaches this change. The node keeps running.
func (h *Hub) Run(ctx context.Context) error {
	h.startRunning()
	defer h.stopRunning()

	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.wanted:
		}

		if p := callgroup.Catch(func() { h.serveReaders(ctx) }); p != nil {
			h.logger.Error("panic while reading events: each stream has a watch of its own from now on", zap.Any("panic", p.Value), zap.ByteString("stack", p.Stack))
			h.stopRunning()
			<-ctx.Done()

			return ctx.Err()
		}

		// The pause limits how often a hub opens whose watch fails at once.
		if !clock.Sleep(ctx, minRetryDelay) {
			return ctx.Err()
		}
	}
}

func (h *Hub) startRunning() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = true
	h.openIfNeeded()
}

func (h *Hub) stopRunning() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = false
	h.closeRing()
}

// serveReaders fills the ring until the hub closes or the watch fails.
func (h *Hub) serveReaders(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	h.mu.Lock()
	ring := h.ring
	if ring != nil {
		h.stop = cancel
	}
	h.mu.Unlock()

	if ring == nil {
		return // it was closed before Run noticed it
	}

	_ = h.log.fillRing(ctx, ring) // it fails if ctx ends, or if etcd was restored from an older snapshot

	h.mu.Lock()
	defer h.mu.Unlock()
	h.replaceRing(ring)
}

// errRestored means that etcd was restored from a snapshot that is older than the events in the ring.
var errRestored = errors.New("etcd was restored from an older snapshot")

// fillRing adds the events of the cluster to a ring until ctx ends. It begins a little before the present revision.
func (l Log) fillRing(ctx context.Context, r *ring) error {
	var p position

	return retryAttempts(ctx, func() error {
		if !p.begun {
			newest, err := l.newestRevision(ctx)
			if err != nil {
				return err
			}

			p = position{task.After(max(1, newest-hubPast)), true}
		}

		next, gap, err := l.checkHistory(ctx, p)
		if err != nil {
			return err
		}

		// Before the ring has begun, nobody has read from it, so nobody misses anything. After a restore, the ring has
		// events of revisions that will exist again with other content. A new ring replaces it.
		if gap != nil && r.currentState().begun {
			if gap.Action == task.ActionRestored {
				return errRestored
			}
			r.addEvents([]*Event{gap}, gap.Place)
		}

		p = next

		return l.followRevisions(ctx, p, nil, func(events []*Event, upTo task.Place) error {
			r.addEvents(events, upTo)
			p.place = upTo

			return nil
		})
	})
}

// addReader counts a reader, and opens the hub for the first one.
func (h *Hub) addReader() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.readers++
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}

	h.openIfNeeded()
}

// removeReader ends the count of a reader. After the last one, the hub closes unless another one comes soon.
func (h *Hub) removeReader() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.readers--
	if ring := h.ring; h.readers == 0 && ring != nil {
		h.idle = time.AfterFunc(hubLinger, func() { h.closeIdle(ring) })
	}
}

// closeIdle closes the hub if it still has no readers.
func (h *Hub) closeIdle(ring *ring) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.readers == 0 && h.ring == ring {
		h.closeRing()
	}
}

// openIfNeeded opens the hub if it has readers and is closed. The caller holds mu.
func (h *Hub) openIfNeeded() {
	if h.running && h.readers > 0 && h.ring == nil {
		h.ring = newRing(h.ringSize)
		h.wanted.Send()
	}
}

// replaceRing closes a ring, and opens a new one if there are readers. It does nothing if the ring was replaced before. The
// caller holds mu.
func (h *Hub) replaceRing(ring *ring) {
	if h.ring == ring {
		h.closeRing()
		h.openIfNeeded()
	}
}

// discardRing replaces a ring with events that etcd no longer has.
func (h *Hub) discardRing(ring *ring) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.replaceRing(ring)
}

// closeRing closes the hub, if it is open. Its readers continue with a new ring or with watches of their own. The caller
// holds mu.
func (h *Hub) closeRing() {
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}

	if h.ring == nil {
		return
	}

	h.ring.endRing()
	h.ring = nil

	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
}

// currentRing returns the ring, or nil if the hub is closed.
func (h *Hub) currentRing() *ring {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ring
}

// HubStats are figures of a hub.
type HubStats struct {
	RingEvents int   // the events in the ring
	Behind     int64 // how often a reader was so slow that the ring lost its place
}

// Stats returns the present figures.
func (h *Hub) Stats() HubStats {
	s := HubStats{Behind: h.behind.Load()}
	if r := h.currentRing(); r != nil {
		s.RingEvents = r.size()
	}

	return s
}

// errNoWatch means that a reader needs a watch of its own but may not open one at present.
var errNoWatch = errors.New("no watch is free")

// These errors end a phase of a reader, which continues with the next one.
var (
	errBehind    = fmt.Errorf("the place is no longer in the ring: %w", errContinue)
	errRingEnded = fmt.Errorf("the hub has closed: %w", errContinue)
	errRejoin    = fmt.Errorf("the reader has caught up with the ring: %w", errContinue)
	errMoved     = fmt.Errorf("the place has changed: %w", errContinue)
	errCaughtUp  = errors.New("caught up") // ends FollowEvents, which would continue after errRejoin
)

// ringSize is how many events the ring of a hub keeps, besides those that were added last. So a reader
// that has all events but the last ones finds these in the ring, even if one response of etcd has more
// than ringSize. An event takes about 1 KB.
const ringSize = 4096

// ring holds the last events of the cluster. One goroutine adds events, and any number of readers
// take them. No reader delays the others or the goroutine that adds events: a reader that is too slow
// finds that the ring no longer has its place.
type ring struct {
	limit int // how many events it keeps when more are added

	mu      sync.Mutex
	events  []*Event      // all events after floor up to told, in order
	floor   task.Place    // a reader that has everything up to here, or a later place, misses nothing
	told    task.Place    // the ring has had all events up to here
	begun   bool          // floor and told are valid
	ended   bool          // nothing will be added any more
	changed chan struct{} // closed at the next change
}

// newRing returns a ring that has not begun.
func newRing(limit int) *ring { return &ring{limit: limit, changed: make(chan struct{})} }

// addEvents adds all events between the last place and upTo, and wakes the readers. The first call
// determines where the ring begins.
func (r *ring) addEvents(events []*Event, upTo task.Place) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if !r.begun {
		r.begun, r.floor = true, upTo
	}

	if excess := len(r.events) - r.limit; excess > 0 && len(events) > 0 {
		r.floor = r.events[excess-1].Place
		clear(r.events[:excess]) // so that the array does not keep them
		r.events = r.events[excess:]
	}

	r.events, r.told = append(r.events, events...), upTo
	r.notifyReaders()
}

// endRing notifies the readers that nothing will be added any more.
func (r *ring) endRing() {
	r.mu.Lock()
	defer r.mu.Unlock()

	if !r.ended {
		r.ended = true
		r.notifyReaders()
	}
}

// notifyReaders wakes all readers. The caller holds mu.
func (r *ring) notifyReaders() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// ringState is what a reader finds in a ring.
type ringState struct {
	begun, ended bool
	floor, told  task.Place
	changed      <-chan struct{} // closed when the state changes
}

// currentState returns the state of the ring.
func (r *ring) currentState() ringState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state()
}

// state returns the state. The caller holds mu.
func (r *ring) state() ringState {
	return ringState{begun: r.begun, ended: r.ended, floor: r.floor, told: r.told, changed: r.changed}
}

// holds reports whether a reader that continues after a place misses nothing. The place may be after
// everything that was added.
func (s ringState) holds(place task.Place) bool {
	return s.begun && !s.ended && !place.Before(s.floor)
}

// isNear reports whether the ring holds a place, and is not about to lose the events after it: at most
// half of the events that it keeps come after it.
func (r *ring) isNear(place task.Place) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state().holds(place) && len(r.events)-r.indexAfter(place) <= r.limit/2
}

// takeAfter appends the events after a place to list and returns the state that belongs to them. The
// events are only complete if the state's floor is not after the place.
func (r *ring) takeAfter(place task.Place, list []*Event) ([]*Event, ringState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(list, r.events[r.indexAfter(place):]...), r.state()
}

// indexAfter returns the index of the first event after a place. The caller holds mu.
func (r *ring) indexAfter(place task.Place) int {
	return sort.Search(len(r.events), func(i int) bool { return place.Before(r.events[i].Place) })
}

// size returns how many events the ring holds.
func (r *ring) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.events)
}
