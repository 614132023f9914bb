package kv

import (
	"bytes"
	"slices"
	"sort"
)

// lockTable orders conflicting transactions. Two transactions conflict if one of them writes what the other writes,
// reads or compares. A transaction is ready when all earlier transactions that conflict with it have left. So ready
// transactions never conflict with each other, and may be sent in any order and in one request.
//
// It is a table of locks, shared for reads and exclusive for writes. A transaction requests all its locks at once
// when it enters, and each lock is granted in the order of entry. So the transactions wait only for earlier ones, and
// a deadlock is impossible. A single key costs one map operation. A range visits the locks of its directory and acquires those of
// the keys in the range. If it is larger than a directory, it visits all locks. Keys and ranges that enter later search the
// ranges of their directory and those that are larger than a directory.
//
// The caller holds Batcher.mu.
type lockTable struct {
	locks map[uint64]*lock // by the hash of their key
	spare []*lock          // released locks, for reuse
	dirs  [dirCount]dir    // the locks and ranges of each directory
	mixed *lock            // the first lock that belongs to several keys
	spans keyRanges        // the ranges that are larger than a directory
	seq   uint64           // the number of the last transaction that entered
	ready readyList        // the transactions that wait for no other and that no sender has taken yet
}

// dir contains the locks and ranges of the directories that share a number.
type dir struct {
	locks *lock // the first of them
	spans []span
}

// lock is the lock of one key that transactions in the table use.
type lock struct {
	key     []byte
	hash    uint64
	list    **lock // the list that contains the lock: of its directory, of mixed locks, or nil
	prev    *lock
	next    *lock
	mixed   bool    // several keys with this hash share the lock, so it may belong to any key
	writer  bool    // a transaction holds the lock for writing
	readers int     // how many transactions hold it for reading
	last    uint64  // the number of the transaction that requested it last
	waiting []claim // the requests that have not been granted, in the order of entry
}

// claim is the request of a transaction for a lock.
type claim struct {
	of     *ticket
	writes bool
}

// isFree reports whether the lock can be granted for writing or for reading.
func (l *lock) isFree(writes bool) bool { return !l.writer && (!writes || l.readers == 0) }

// grantClaim records another holder of the lock.
func (l *lock) grantClaim(writes bool) {
	if writes {
		l.writer = true
	} else {
		l.readers++
	}
}

// acquireAll enters t into the table. t then waits for all earlier transactions that it conflicts with. If there are
// none, it is ready.
func (lt *lockTable) acquireAll(t *ticket) {
	lt.seq++
	t.seq, t.before = lt.seq, 0

	// Lock writes first, so that a key that t both writes and reads is locked only once, for writing.
	for _, writes := range [...]bool{true, false} {
		for i := range t.keys {
			if k := &t.keys[i]; k.writes == writes && k.lock == nil {
				lt.lockKey(t, k)
			}
		}

		for _, s := range t.spans {
			if s.writes == writes {
				lt.lockSpan(t, s)
			}
		}
	}

	// The own ranges become visible last, so that t does not wait for itself.
	for i := range t.spans {
		t.spans[i].of = t
		lt.insertRange(t.spans[i])
	}

	if t.before == 0 {
		lt.ready.insertTicket(t)
	}
}

// lockKey requests the lock of a key, and makes t wait for earlier transactions with a range that contains the key.
// If t has already requested this lock, it does nothing more: writes come first, so the first request is the
// strongest.
func (lt *lockTable) lockKey(t *ticket, k *lockedKey) {
	if len(lt.spans.list) > 0 {
		lt.spans.eachContaining(k.key, func(s span) { t.waitFor(s, k.writes) })
	}

	if k.dir != noDir {
		for _, s := range lt.dirs[k.dir].spans {
			if s.contains(k.key) {
				t.waitFor(s, k.writes)
			}
		}
	}

	l := lt.locks[k.hash]
	switch {
	case l == nil:
		l = lt.newLock(k)
	case l.last == t.seq:
		return
	// Another key has the same hash. The two keys share the lock, which may delay a transaction but is never wrong.
	case !l.mixed && !bytes.Equal(l.key, k.key):
		l.mixed = true
		l.moveTo(&lt.mixed)
	}

	k.lock = l
	l.acquireFor(t, k.writes)
}

// lockSpan makes t wait for earlier transactions with a range that overlaps s, and requests the lock of each key in
// the table that s may contain. The keys of later transactions find s among the ranges.
func (lt *lockTable) lockSpan(t *ticket, s span) {
	lt.eachSpanNear(s, func(o span) {
		if o.overlapsWith(s) {
			t.waitFor(o, s.writes)
		}
	})

	lt.eachLockNear(s, func(l *lock) {
		if l.last != t.seq && (l.mixed || s.contains(l.key)) {
			t.keys = append(t.keys, lockedKey{writes: s.writes, lock: l})
			l.acquireFor(t, s.writes)
		}
	})
}

// eachSpanNear calls f with all ranges in the table that may overlap s, and others.
func (lt *lockTable) eachSpanNear(s span, f func(span)) {
	for _, o := range lt.spans.list {
		f(o)
	}

	dirs := lt.dirs[:]
	if s.dir != noDir {
		dirs = lt.dirs[s.dir : s.dir+1]
	}

	for i := range dirs {
		for _, o := range dirs[i].spans {
			f(o)
		}
	}
}

// eachLockNear calls f with all locks in the table that s may contain, and others.
func (lt *lockTable) eachLockNear(s span, f func(*lock)) {
	if s.dir == noDir {
		for _, l := range lt.locks {
			f(l)
		}
		return
	}

	for l := lt.dirs[s.dir].locks; l != nil; l = l.next {
		f(l)
	}

	for l := lt.mixed; l != nil; l = l.next {
		f(l)
	}
}

// insertRange adds the range of a transaction to the table.
func (lt *lockTable) insertRange(s span) {
	if s.dir == noDir {
		lt.spans.insertRange(s)
		return
	}

	d := &lt.dirs[s.dir]
	d.spans = append(d.spans, s)
}

// removeRange removes a range of t from the table.
func (lt *lockTable) removeRange(t *ticket, s span) {
	if s.dir == noDir {
		lt.spans.removeTicket(t)
		return
	}

	d := &lt.dirs[s.dir]
	if i := slices.IndexFunc(d.spans, func(o span) bool { return o.of == t }); i >= 0 {
		last := len(d.spans) - 1
		d.spans[i], d.spans[last] = d.spans[last], span{}
		d.spans = d.spans[:last]
	}
}

// moveTo moves the lock from its list to another one. A nil list is none.
func (l *lock) moveTo(list **lock) {
	if l.list != nil {
		if l.next != nil {
			l.next.prev = l.prev
		}

		if l.prev != nil {
			l.prev.next = l.next
		} else {
			*l.list = l.next
		}
	}

	l.list, l.prev, l.next = list, nil, nil

	if list != nil {
		if l.next = *list; l.next != nil {
			l.next.prev = l
		}
		*list = l
	}
}

// acquireFor grants the lock to t, or makes t wait. A request that could be granted waits behind earlier ones, so
// that readers do not delay a writer without limit.
func (l *lock) acquireFor(t *ticket, writes bool) {
	l.last = t.seq
	if len(l.waiting) == 0 && l.isFree(writes) {
		l.grantClaim(writes)
		return
	}

	l.waiting = append(l.waiting, claim{t, writes})
	t.before++
}

// waitFor makes t wait for the transaction of the range s if one of them writes.
func (t *ticket) waitFor(s span, writes bool) {
	if s.of != nil && (s.writes || writes) {
		s.of.after = append(s.of.after, t)
		t.before++
	}
}

// releaseAll removes t from the table, whether it is ready, in flight or still waiting, and allows the transactions
// that waited for it to proceed.
func (lt *lockTable) releaseAll(t *ticket) {
	for i := range t.keys {
		k := &t.keys[i]
		if k.lock == nil {
			continue
		}

		k.lock.releaseFor(t, k.writes)
		lt.passLock(k.lock)
		k.lock = nil
	}

	// Wake the transactions that waited for a range of t. Those that waited for a lock were woken above.
	for i := range t.spans {
		lt.removeRange(t, t.spans[i])
		t.spans[i].of = nil
	}

	for _, w := range t.after {
		lt.unblock(w)
	}

	clear(t.after)
	t.after = t.after[:0]
}

// releaseFor removes t from the lock, whether t holds it or waits for it.
func (l *lock) releaseFor(t *ticket, writes bool) {
	// A transaction that waits for nothing holds all its locks. Otherwise it may wait for this one.
	if t.before > 0 {
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

// passLock grants the lock to the transactions that waited longest: to one writer, or to all readers up to the next
// writer. It removes the lock from the table if no transaction uses it any more.
func (lt *lockTable) passLock(l *lock) {
	for len(l.waiting) > 0 && l.isFree(l.waiting[0].writes) {
		c := l.waiting[0]
		l.waiting[0] = claim{}
		l.waiting = l.waiting[1:]
		l.grantClaim(c.writes)
		lt.unblock(c.of)
	}

	if len(l.waiting) == 0 && l.isFree(true) {
		delete(lt.locks, l.hash)
		l.moveTo(nil)
		lt.spareLock(l)
	}
}

// unblock records that t waits for one transaction less. t becomes ready when it waits for none. A transaction that
// was withdrawn meanwhile does not become ready.
func (lt *lockTable) unblock(t *ticket) {
	if t.before--; t.before == 0 && t.state == ticketQueued {
		lt.ready.insertTicket(t)
	}
}

// newLock adds a lock for the key k to the table.
func (lt *lockTable) newLock(k *lockedKey) *lock {
	var l *lock
	if n := len(lt.spare); n > 0 {
		l, lt.spare = lt.spare[n-1], lt.spare[:n-1]
	} else {
		l = new(lock)
	}

	l.key, l.hash = k.key, k.hash
	lt.locks[k.hash] = l

	if k.dir != noDir {
		l.moveTo(&lt.dirs[k.dir].locks)
	}

	return l
}

// spareLock keeps a lock for reuse. The number of spare locks is limited, so that a burst does not occupy memory for
// ever.
func (lt *lockTable) spareLock(l *lock) {
	const most = 1 << 14
	if len(lt.spare) < most {
		*l = lock{}
		lt.spare = append(lt.spare, l)
	}
}

// keyRanges contains the ranges of transactions in the table that are larger than a directory.
type keyRanges struct {
	list []span   // in the order of their starts
	ends [][]byte // ends[i] is the highest end in list[:i+1]; nil if one of these ranges has no end
}

// insertRange adds a range.
func (k *keyRanges) insertRange(n span) {
	i := sort.Search(len(k.list), func(i int) bool { return bytes.Compare(k.list[i].start, n.start) > 0 })
	k.list = slices.Insert(k.list, i, n)
	k.buildIndex()
}

// removeTicket removes one of the ranges of t. The caller calls it once for each of them.
func (k *keyRanges) removeTicket(t *ticket) {
	if i := slices.IndexFunc(k.list, func(o span) bool { return o.of == t }); i >= 0 {
		k.list = slices.Delete(k.list, i, i+1)
		k.buildIndex()
	}
}

// buildIndex computes ends from list.
func (k *keyRanges) buildIndex() {
	k.ends = k.ends[:0]
	// ends[i] lets a search stop as soon as no earlier range can contain the key.
	for i, o := range k.list {
		if i > 0 && o.end != nil {
			if last := k.ends[i-1]; last == nil || bytes.Compare(last, o.end) > 0 {
				o.end = last
			}
		}

		k.ends = append(k.ends, o.end)
	}
}

// eachContaining calls f with each range that contains the key. It searches backward from the last range that starts
// at or before the key, and stops when no earlier range reaches the key.
func (k *keyRanges) eachContaining(key []byte, f func(span)) {
	i := sort.Search(len(k.list), func(i int) bool { return bytes.Compare(k.list[i].start, key) > 0 })
	for i--; i >= 0 && (k.ends[i] == nil || bytes.Compare(k.ends[i], key) > 0); i-- {
		if k.list[i].contains(key) {
			f(k.list[i])
		}
	}
}
