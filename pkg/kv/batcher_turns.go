package kv

import (
	"bytes"
	"slices"
	"sort"
)

// lockTable orders conflicting transactions. Two transactions conflict if one writes what the other writes, reads or
// compares. A transaction is ready when all earlier transactions that conflict with it have left. So ready transactions
// never conflict with each other, and may be sent in any order and in one request.
//
// It is a table of locks, shared for reads and exclusive for writes. A transaction requests all its locks at once when
// it enters, and each lock is granted in the order of entry, so a deadlock is impossible. A single key costs one map
// operation. A range visits every lock in the table and takes those within it; keys and ranges that enter later search
// the live ranges for it.
type lockTable struct {
	locks map[uint64]*lock
	spare []*lock
	spans keyRanges
	seq   uint64
	ready readyList // those whose turn it is and which nobody has taken up yet
}

// lock is the state of one key that entered transactions use.
type lock struct {
	key     []byte
	hash    uint64
	mixed   bool // several keys of one hash share it
	writer  bool
	readers int
	last    uint64 // who took it last
	waiting []claim
}

type claim struct {
	of     *ticket
	writes bool
}

func (l *lock) isFree(writes bool) bool { return !l.writer && (!writes || l.readers == 0) }

func (l *lock) grantClaim(writes bool) {
	if writes {
		l.writer = true
	} else {
		l.readers++
	}
}

// acquireAll makes t wait for all earlier transactions that it conflicts with, or ready if there are none.
func (u *lockTable) acquireAll(t *ticket) {
	u.seq++
	t.seq, t.before = u.seq, 0

	// Lock writes first, so that a key that t both writes and reads is locked only once, for writing.
	for _, writes := range [...]bool{true, false} {
		for i := range t.keys {
			if k := &t.keys[i]; k.writes == writes && k.lock == nil {
				u.lockKey(t, k)
			}
		}

		for _, s := range t.spans {
			if s.writes == writes {
				u.lockSpan(t, s)
			}
		}
	}

	for i := range t.spans {
		t.spans[i].of = t
		u.spans.insertRange(t.spans[i])
	}

	if t.before == 0 {
		u.ready.insertTicket(t)
	}
}

func (u *lockTable) lockKey(t *ticket, k *touched) {
	if len(u.spans.list) > 0 {
		u.spans.eachContaining(k.key, func(s span) { t.waitFor(s, k.writes) })
	}

	l := u.locks[k.hash]
	switch {
	case l == nil:
		l = u.newLock(k)
	case l.last == t.seq:
		return
	case !l.mixed && !bytes.Equal(l.key, k.key):
		l.mixed = true
	}

	k.lock = l
	l.acquireFor(t, k.writes)
}

func (u *lockTable) lockSpan(t *ticket, s span) {
	u.spans.eachOverlapping(s, func(o span) { t.waitFor(o, s.writes) })

	for _, l := range u.locks {
		if l.last != t.seq && (l.mixed || s.contains(l.key)) {
			t.keys = append(t.keys, touched{writes: s.writes, lock: l})
			l.acquireFor(t, s.writes)
		}
	}
}

func (l *lock) acquireFor(t *ticket, writes bool) {
	l.last = t.seq
	if len(l.waiting) == 0 && l.isFree(writes) {
		l.grantClaim(writes)
		return
	}

	l.waiting = append(l.waiting, claim{t, writes})
	t.before++
}

// waitFor makes t wait for the transaction of the range s if they conflict.
func (t *ticket) waitFor(s span, writes bool) {
	if s.of != nil && (s.writes || writes) {
		s.of.after = append(s.of.after, t)
		t.before++
	}
}

// releaseAll removes t, whether it is ready or still waits, and lets the transactions that waited for it proceed.
func (u *lockTable) releaseAll(t *ticket) {
	for i := range t.keys {
		k := &t.keys[i]
		if k.lock == nil {
			continue
		}

		k.lock.releaseFor(t, k.writes)
		u.handOn(k.lock)
		k.lock = nil
	}

	for i := range t.spans {
		u.spans.removeTicket(t)
		t.spans[i].of = nil
	}

	for _, w := range t.after {
		u.oneLess(w)
	}

	clear(t.after)
	t.after = t.after[:0]
}

func (l *lock) releaseFor(t *ticket, writes bool) {
	if t.before > 0 { // it may still wait here
		if i := slices.IndexFunc(l.waiting, func(c claim) bool { return c.of == t }); i >= 0 {
			l.waiting = slices.Delete(l.waiting, i, i+1)
			return
		}
	}

	if writes {
		l.writer = false
	} else {
		l.readers--
	}
}

func (u *lockTable) handOn(l *lock) {
	for len(l.waiting) > 0 && l.isFree(l.waiting[0].writes) {
		c := l.waiting[0]
		l.waiting[0] = claim{}
		l.waiting = l.waiting[1:]
		l.grantClaim(c.writes)
		u.oneLess(c.of)
	}

	if len(l.waiting) == 0 && l.isFree(true) {
		delete(u.locks, l.hash)
		u.spareLock(l)
	}
}

func (u *lockTable) oneLess(t *ticket) {
	if t.before--; t.before == 0 && t.state == ticketQueued {
		u.ready.insertTicket(t)
	}
}

func (u *lockTable) newLock(k *touched) *lock {
	var l *lock
	if n := len(u.spare); n > 0 {
		l, u.spare = u.spare[n-1], u.spare[:n-1]
	} else {
		l = new(lock)
	}

	l.key, l.hash = k.key, k.hash
	u.locks[k.hash] = l

	return l
}

func (u *lockTable) spareLock(l *lock) {
	const most = 1 << 14
	if len(u.spare) < most {
		*l = lock{}
		u.spare = append(u.spare, l)
	}
}

// keyRanges contains the ranges of all transactions that have entered and not left.
type keyRanges struct {
	list []span   // by start
	ends [][]byte // ends[i] is the last end of list[:i+1]; nil for none
}

func (s *keyRanges) insertRange(n span) {
	i := sort.Search(len(s.list), func(i int) bool { return bytes.Compare(s.list[i].start, n.start) > 0 })
	s.list = slices.Insert(s.list, i, n)
	s.buildIndex()
}

// removeTicket takes one range of t out.
func (s *keyRanges) removeTicket(t *ticket) {
	if i := slices.IndexFunc(s.list, func(o span) bool { return o.of == t }); i >= 0 {
		s.list = slices.Delete(s.list, i, i+1)
		s.buildIndex()
	}
}

func (s *keyRanges) buildIndex() {
	s.ends = s.ends[:0]
	for i, o := range s.list {
		if i > 0 && o.end != nil {
			if last := s.ends[i-1]; last == nil || bytes.Compare(last, o.end) > 0 {
				o.end = last
			}
		}

		s.ends = append(s.ends, o.end)
	}
}

// eachContaining calls f with each range that has the key in it.
func (s *keyRanges) eachContaining(key []byte, f func(span)) {
	i := sort.Search(len(s.list), func(i int) bool { return bytes.Compare(s.list[i].start, key) > 0 })
	for i--; i >= 0 && (s.ends[i] == nil || bytes.Compare(s.ends[i], key) > 0); i-- {
		if s.list[i].contains(key) {
			f(s.list[i])
		}
	}
}

// eachOverlapping calls f with each range that overlaps r.
func (s *keyRanges) eachOverlapping(r span, f func(span)) {
	for _, o := range s.list {
		if o.overlapsWith(r) {
			f(o)
		}
	}
}
