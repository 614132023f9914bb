package eventlog

import (
	"sort"
	"sync"

	"github.com/carillonhq/carillon/pkg/task"
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

// endRing tells the readers that nothing will be added any more.
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

// isNear reports whether the ring holds a place of which it is not about to lose the events: at most
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
