package executor

import (
	"cmp"
	"container/heap"
	"container/list"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// openAfter is the number of consecutive unsent ends after which a target counts as down.
	openAfter = 3
	// 1/reservedPart of the slots is reserved for targets that hold none.
	reservedPart = 8
	// maxIdleTargets is how many targets that are down are remembered while no attempt needs them.
	maxIdleTargets = 10_000
)

// targetQueue holds the HTTP attempts that are ready, and decides which of them start. It is a pure data structure:
// without clock and goroutines.
//
// Slots. All attempts share a number of slots. An eighth of them is reserved for targets that hold none. A target, which
// is a scheme, host and port, takes another slot only while it holds fewer slots than the limit of the attempt, and fewer
// than are free without the reserve. So k targets that do not answer leave slots/(k+1) free once the attempts that
// they had before have ended, and a part of the reserve at once. An attempt that waits for its target holds no slot and
// does not delay other targets. Of the attempts that may start, the oldest starts first.
//
// Circuit. After openAfter consecutive attempts that sent nothing, a target is open, that is, it counts as down:
//
//	          openAfter unsent ends               an attempt starts
//	closed ───────────────────────────▶ open ◀──────────────────────▶ half-open
//	  ▲                                          it ended unsent          │
//	  └───────────────────────────────────────────────────────────────────┘
//	                        something was sent
//
// In the state half-open, one attempt, the probe, is in progress. The others wait for it. If it ends unsent,
// they end with it and need not try. No state ends because of a timer: the backoff of the attempts decides when the next
// one tries.
//
// Each operation takes O(log n) for n attempts and targets, plus a pass over at most half of the slots.
type targetQueue struct {
	slots, used int
	targets     map[string]*target
	// ready contains, for each number of slots that a target can hold, the targets that hold that many and have an attempt
	// that may start as soon as enough slots are free.
	ready  []targetHeap
	idle   list.List // targets that are down and that no attempt needs, the longest unused first
	states [targetStates]int
}

// targetState is the state of a target's circuit.
type targetState int

const (
	targetClosed   targetState = iota // attempts start
	targetOpen                        // the target counts as down; the next attempt is the probe
	targetHalfOpen                    // the probe is in progress
	targetStates
)

// String returns the name of the state, which is the label in metrics.
func (s targetState) String() string { return [...]string{"closed", "open", "half_open"}[s] }

// target is a scheme, host and port, with the attempts that wait for it. A target that no attempt needs is forgotten,
// unless some of its latest attempts were unsent.
type target struct {
	name    string
	held    int          // slots that its attempts hold
	waiting []*limitHeap // the attempts that wait, by their limit; none of them is empty
	unsent  int          // consecutive attempts that sent nothing
	probe   *targetEntry // the attempt on which the others wait; nil unless the target is half-open
	counted targetState  // the state with which it is in targetQueue.states

	next  *targetEntry  // the oldest attempt that its limit and the circuit allow; nil: none, and it is in no heap of targetQueue.ready
	level int           // the index of that heap
	place int           // its index in that heap
	idle  *list.Element // its place in targetQueue.idle; nil: it is not there
}

// targetEntry is an HTTP attempt in a targetQueue.
type targetEntry struct {
	attempt *attempt
	target  string    // scheme, host and port
	limit   int       // how many attempts may be in progress to the target when this one starts, with this one
	due     time.Time // the oldest attempt starts first; token decides between those of the same time
	token   int64

	to    *target    // set while it waits or holds a slot
	among *limitHeap // where it waits; nil: it does not
	place int        // its index there
}

// isBefore orders attempts by age.
func (e *targetEntry) isBefore(o *targetEntry) bool {
	return cmp.Or(e.due.Compare(o.due), cmp.Compare(e.token, o.token)) < 0
}

// targetOutcome is what the end of an attempt says about its target.
type targetOutcome int

const (
	targetUnknown targetOutcome = iota // nothing: the attempt ended for another reason before it sent anything
	targetUnsent                       // nothing could be sent
	targetSent                         // something was sent
)

func newTargetQueue(slots int) targetQueue {
	return targetQueue{slots: slots, targets: map[string]*target{}}
}

// Add adds an attempt that is ready. It does nothing if the attempt waits already. The attempt must not hold a slot.
func (q *targetQueue) Add(e *targetEntry) {
	if e.among != nil {
		return
	}

	t := q.targets[e.target]
	if t == nil {
		t = &target{name: e.target}
		q.targets[e.target] = t
		q.states[t.counted]++
	}

	e.limit = min(max(e.limit, 1), q.slots) // so that a target has few different limits
	at := slices.IndexFunc(t.waiting, func(h *limitHeap) bool { return h.limit == e.limit })
	if at < 0 {
		at = len(t.waiting)
		t.waiting = append(t.waiting, &limitHeap{limit: e.limit})
	}

	e.to, e.among = t, t.waiting[at]
	heap.Push(e.among, e)
	q.update(t)
}

// Remove removes an attempt that does not wait any more. It does nothing if the attempt does not wait.
func (q *targetQueue) Remove(e *targetEntry) {
	if e.among == nil {
		return
	}

	t := e.to
	t.removeWaiting(e)
	e.to = nil
	q.update(t)
}

// Next removes the oldest attempt that may start and gives it a slot. It returns nil if there is none. The caller must
// call End.
func (q *targetQueue) Next() *targetEntry {
	free := q.slots - q.used
	levels := free - q.slots/reservedPart // that many slots and more are too many for a target
	if free > 0 {
		levels = max(levels, 1)
	}

	var best *target
	for level := range max(min(levels, len(q.ready)), 0) {
		if h := q.ready[level]; len(h) > 0 && (best == nil || h[0].next.isBefore(best.next)) {
			best = h[0]
		}
	}
	if best == nil {
		return nil
	}

	e := best.next
	best.removeWaiting(e)
	best.held++
	q.used++

	if best.isOpen() {
		best.probe = e
	}

	q.update(best)

	return e
}

// Sent notes that an attempt that holds a slot is sending. This proves that its target is not down.
func (q *targetQueue) Sent(e *targetEntry) {
	if t := e.to; t != nil && t.unsent > 0 {
		t.close()
		q.update(t)
	}
}

// End frees the slot of an attempt. It returns the attempts that end with it, oldest first, because it was the probe
// of their target and was not sent. They do not wait any more.
func (q *targetQueue) End(e *targetEntry, outcome targetOutcome) (down []*targetEntry) {
	t := e.to
	e.to = nil
	t.held--
	q.used--

	wasProbe := t.probe == e
	if wasProbe {
		t.probe = nil
	}

	switch outcome {
	case targetSent:
		t.close()
	case targetUnsent:
		t.unsent++
		if wasProbe {
			down = t.takeWaiting()
		}
	}

	q.update(t)

	return down
}

// update restores what depends on a target that has changed: its place among the targets that are ready, its state in
// the counts, and whether it is remembered.
func (q *targetQueue) update(t *target) {
	next := t.nextEntry()

	if t.next != nil && (next == nil || t.level != t.held) {
		heap.Remove(&q.ready[t.level], t.place)
		t.next = nil
	}

	switch t.level = t.held; {
	case next == nil:
	case t.next != nil: // it stays in its heap, perhaps at another place
		t.next = next
		heap.Fix(&q.ready[t.level], t.place)
	default:
		for len(q.ready) <= t.level {
			q.ready = append(q.ready, nil)
		}

		t.next = next
		heap.Push(&q.ready[t.level], t)
	}

	q.states[t.counted]--
	t.counted = t.state()
	q.states[t.counted]++

	q.forgetIdle(t)
}

// forgetIdle forgets a target that no attempt needs. Of the targets whose attempts were unsent, the latest are remembered.
func (q *targetQueue) forgetIdle(t *target) {
	if t.held > 0 || len(t.waiting) > 0 {
		if t.idle != nil {
			q.idle.Remove(t.idle)
			t.idle = nil
		}
		return
	}

	if t.unsent == 0 {
		q.forget(t)
		return
	}

	if t.idle == nil {
		t.idle = q.idle.PushBack(t)
	}

	if q.idle.Len() > maxIdleTargets {
		q.forget(q.idle.Front().Value.(*target))
	}
}

// forget forgets a target.
func (q *targetQueue) forget(t *target) {
	if t.idle != nil {
		q.idle.Remove(t.idle)
	}

	q.states[t.counted]--
	delete(q.targets, t.name)
}

// isOpen reports whether the target counts as down.
func (t *target) isOpen() bool { return t.unsent >= openAfter }

// close notes that something was sent to the target.
func (t *target) close() { t.unsent, t.probe = 0, nil }

// state returns the state of the target's circuit.
func (t *target) state() targetState {
	switch {
	case t.probe != nil:
		return targetHalfOpen
	case t.isOpen():
		return targetOpen
	}

	return targetClosed
}

// nextEntry returns the oldest attempt that its limit and the circuit allow to start, and nil if there is none.
func (t *target) nextEntry() (next *targetEntry) {
	if t.probe != nil {
		return nil
	}

	for _, h := range t.waiting {
		if t.held < h.limit && (next == nil || h.entries[0].isBefore(next)) {
			next = h.entries[0]
		}
	}

	return next
}

// removeWaiting removes an attempt from those that wait.
func (t *target) removeWaiting(e *targetEntry) {
	h := e.among
	heap.Remove(h, e.place)
	e.among = nil

	if len(h.entries) == 0 {
		t.waiting = slices.DeleteFunc(t.waiting, func(o *limitHeap) bool { return o == h })
	}
}

// takeWaiting removes and returns all attempts that wait, oldest first.
func (t *target) takeWaiting() (all []*targetEntry) {
	for _, h := range t.waiting {
		all = append(all, h.entries...)
	}

	t.waiting = nil
	for _, e := range all {
		e.to, e.among = nil, nil
	}

	slices.SortFunc(all, func(a, b *targetEntry) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.token, b.token))
	})

	return all
}

// limitHeap is a heap of the attempts with the same limit that wait for a target, the oldest first.
type limitHeap struct {
	limit   int
	entries []*targetEntry
}

func (h *limitHeap) Len() int           { return len(h.entries) }
func (h *limitHeap) Less(i, j int) bool { return h.entries[i].isBefore(h.entries[j]) }
func (h *limitHeap) Swap(i, j int) {
	h.entries[i], h.entries[j] = h.entries[j], h.entries[i]
	h.entries[i].place, h.entries[j].place = i, j
}
func (h *limitHeap) Push(x any) {
	e := x.(*targetEntry)
	e.place = len(h.entries)
	h.entries = append(h.entries, e)
}
func (h *limitHeap) Pop() any {
	last := len(h.entries) - 1
	e := h.entries[last]
	h.entries[last] = nil
	h.entries = h.entries[:last]

	return e
}

// targetHeap is a heap of targets, the one with the oldest attempt first.
type targetHeap []*target

func (h targetHeap) Len() int           { return len(h) }
func (h targetHeap) Less(i, j int) bool { return h[i].next.isBefore(h[j].next) }
func (h targetHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}
func (h *targetHeap) Push(x any) {
	t := x.(*target)
	t.place = len(*h)
	*h = append(*h, t)
}
func (h *targetHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]

	return t
}

// targetOf returns the target of a request: scheme, host and port of its URL. Templates can only follow these. If all of
// the URL is in a secret, the name of the secret stands for its value, which may differ between namespaces.
func targetOf(namespace string, h *task.HTTP) string {
	text, _, _ := strings.Cut(h.URL, "${")
	if strings.HasPrefix(text, task.SecretRefPrefix) {
		return namespace + "/" + text
	}

	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return text
	}

	port := u.Port()
	switch {
	case port != "":
	case strings.EqualFold(u.Scheme, "https"):
		port = "443"
	default:
		port = "80"
	}

	return strings.ToLower(u.Scheme + "://" + net.JoinHostPort(u.Hostname(), port))
}

// newTargetEntry returns the entry of an HTTP attempt in the targetQueue.
func newTargetEntry(a *attempt) *targetEntry {
	h := a.Action.HTTP

	return &targetEntry{
		attempt: a, target: targetOf(a.Namespace, h), limit: cmp.Or(h.Limit.PerTarget, task.DefaultPerTarget),
		due: a.ScheduledTime.Time, token: a.Create,
	}
}
