package kv

// ticket is a transaction on its way through a Batcher. Its fields below the line belong to Batcher.mu, the others to
// the caller until it has entered and to the sender from then on.
type ticket struct {
	footprint
	txn      Txn
	result   Result
	err      error
	answered chan struct{} // gets one value when result and err are there
	// ---
	state      ticketState
	seq        uint64
	before     int       // how many it waits for
	after      []*ticket // those who wait for a range of this one
	prev, next *ticket   // in the list of those that are ready
}

type ticketState int

// queued ──▶ sent ──▶ settled
//
//	 │        │  ▲ └──▶ abandoned, by its caller
//	 │        ▼  │
//	 │      refused: etcd was too busy, or refused a neighbour
//	 ▼        ▼
//	withdrawn, by its caller
const (
	ticketQueued ticketState = iota
	sent
	refused
	settled
	withdrawn
	abandoned
)

func newTicket() any { return &ticket{answered: make(chan struct{}, 1)} }

// awaitResult returns the answer and gives the ticket back: nobody else knows it any more. (A ticket that was withdrawn or
// abandoned is not given back, since a sender, or one that it waited for, still does.)
func (b *Batcher) awaitResult(t *ticket) (Result, error) {
	result, err := t.result, t.err
	t.footprint.reset()
	*t = ticket{footprint: t.footprint, answered: t.answered, after: t.after}
	b.tickets.Put(t)

	return result, err
}

// readyList is in the order of entry.
type readyList struct {
	first, last *ticket
	weight      int // operations or comparisons, whichever is more, of all
}

// insertTicket puts t in its place. That is the end for a new one, and near the beginning for one that had to wait.
func (r *readyList) insertTicket(t *ticket) {
	r.weight += t.depth
	next := (*ticket)(nil)
	if r.last != nil && r.last.seq > t.seq {
		for next = r.first; next.seq < t.seq; {
			next = next.next
		}
	}

	t.next = next
	if next == nil {
		t.prev, r.last = r.last, t
	} else {
		t.prev, next.prev = next.prev, t
	}

	if t.prev == nil {
		r.first = t
	} else {
		t.prev.next = t
	}
}

func (r *readyList) removeTicket(t *ticket) {
	r.weight -= t.depth
	if t.prev == nil {
		r.first = t.next
	} else {
		t.prev.next = t.next
	}

	if t.next == nil {
		r.last = t.prev
	} else {
		t.next.prev = t.prev
	}

	t.prev, t.next = nil, nil
}
