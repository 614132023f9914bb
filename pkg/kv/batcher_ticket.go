package kv

// ticket is a transaction in a Batcher. The fields below the line are protected by Batcher.mu. The others belong to
// the goroutine of the caller until the ticket has entered, and to the sender afterwards. The caller may read the
// answer after it has received a value from answered.
type ticket struct {
	footprint
	txn      Txn
	result   Result
	err      error
	answered chan struct{} // has room for one value; receives one when result or err has been set
	// ---
	state      ticketState
	seq        uint64    // the order of entry
	before     int       // how many locks and ranges of earlier transactions it waits for
	after      []*ticket // the tickets that wait for a range of this one
	prev, next *ticket   // neighbors in the list of ready tickets
}

// ticketState is the state of a ticket; see the diagram below.
type ticketState int

// queued ──▶ sent ──▶ settled
//
//	 │        │  ▲ └──▶ abandoned: its caller gave up while it was in flight
//	 │        ▼  │
//	 │      refused: etcd was overloaded, or refused the request because of any transaction in it
//	 ▼        ▼
//	withdrawn: its caller gave up, and etcd has not applied it
const (
	ticketQueued ticketState = iota
	sent
	refused
	settled
	withdrawn
	abandoned
)

// newTicket returns an empty ticket for the pool.
func newTicket() any { return &ticket{answered: make(chan struct{}, 1)} }

// awaitResult returns the answer of a settled ticket, and puts the ticket into the pool, because nothing refers to it
// any more. A ticket that was withdrawn or abandoned is not reused: a sender, or the list of an earlier ticket, may
// still refer to it.
func (b *Batcher) awaitResult(t *ticket) (Result, error) {
	result, err := t.result, t.err
	t.footprint.reset()
	*t = ticket{footprint: t.footprint, answered: t.answered, after: t.after}
	b.tickets.Put(t)

	return result, err
}

// readyList is a linked list of the ready tickets in the order of entry.
type readyList struct {
	first, last *ticket
	weight      int // the sum of the depths of the tickets
}

// insertTicket adds t at its place in the order of entry. A new ticket goes to the end. A ticket that had to wait usually
// belongs near the beginning, so the search starts there.
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

// removeTicket removes t, which must be in the list.
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
