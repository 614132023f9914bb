package readmodel

import (
	"sync"
	"sync/atomic"
)

// chunkRows is how many rows a scan reads under one lock. It takes some microseconds, and an owner that changes a row
// waits no longer. A chunk of this size fits into the 8 KiB of the allocator, which needs eight bytes for itself. One
// more row, and each chunk would take 9,472 bytes.
const chunkRows = 113

// chunk is a part of the rows of an Index.
type chunk struct {
	rows     [chunkRows]Row
	detailed [(chunkRows + 63) / 64]uint64 // by row, one bit: it has Details
}

// isDetailed reports whether a row has Details.
func (c *chunk) isDetailed(i int) bool { return c.detailed[i/64]&(1<<(i%64)) != 0 }

// Index holds the rows of one shard. Only the owner's goroutine changes it; any goroutine may scan it.
type Index struct {
	mu     sync.RWMutex
	chunks []*chunk
	used   int     // slots that were ever used; a row without a name is free
	free   []int32 // slots that can be used again
	size   Size

	// details holds, by slot, the Details of the rows that have any.
	details map[int32]Details

	applied atomic.Int64

	recent recentRuns
}

// Size is how many rows an Index has. Rows with the flag Gone do not count.
type Size struct {
	Rows       int // all rows
	Unread     int // those whose last end is not known yet
	Unreadable int // those of tasks whose entries cannot be read
	Failing    int // those of failing tasks
}

// NoteApplied notes that the rows contain all changes of the shard up to a revision.
func (x *Index) NoteApplied(revision int64) { x.applied.Store(revision) }

// HasApplied reports whether the rows contain the changes of the shard at a revision.
func (x *Index) HasApplied(revision int64) bool { return x.applied.Load() >= revision }

// NoSlot is the slot of a task that has no row yet.
const NoSlot int32 = -1

// Put stores a row and its details, and returns its slot. slot is that of the task's former row, or NoSlot.
func (x *Index) Put(slot int32, r Row, d Details) int32 {
	x.mu.Lock()
	defer x.mu.Unlock()

	if slot == NoSlot {
		slot = x.newSlot()
	}

	row := x.at(slot)
	x.size.add(row, -1)
	x.size.add(&r, 1)
	*row = r
	x.setDetails(slot, d)

	return slot
}

// setDetails sets or clears the details of a row. Most rows have none, before and after; then it costs nothing.
func (x *Index) setDetails(slot int32, d Details) {
	c, i := x.chunks[slot/chunkRows], int(slot%chunkRows)

	switch {
	case d != Details{}:
		if x.details == nil {
			x.details = map[int32]Details{}
		}
		x.details[slot] = d
		c.detailed[i/64] |= 1 << (i % 64)
	case c.isDetailed(i):
		delete(x.details, slot)
		c.detailed[i/64] &^= 1 << (i % 64)
	}
}

// add counts a row n times. A free slot does not count.
func (s *Size) add(r *Row, n int) {
	if r.Name == "" || r.Flags.Has(Gone) {
		return
	}

	s.Rows += n
	if !r.Flags.Has(History) {
		s.Unread += n
	}
	if r.Flags.Has(Unreadable) {
		s.Unreadable += n
	}
	if r.Flags.Has(Failing) {
		s.Failing += n
	}
}

// Change changes a row in its place. change must not block, and must not keep the row.
func (x *Index) Change(slot int32, change func(r *Row)) {
	x.mu.Lock()
	defer x.mu.Unlock()

	row := x.at(slot)
	x.size.add(row, -1)
	change(row)
	x.size.add(row, 1)
}

// newSlot returns a slot for a new row.
func (x *Index) newSlot() int32 {
	if n := len(x.free); n > 0 {
		slot := x.free[n-1]
		x.free = x.free[:n-1]

		return slot
	}

	if x.used == len(x.chunks)*chunkRows {
		x.chunks = append(x.chunks, new(chunk))
	}

	x.used++

	return int32(x.used - 1)
}

// at returns the row in a slot.
func (x *Index) at(slot int32) *Row { return &x.chunks[slot/chunkRows].rows[slot%chunkRows] }

// Remove removes the row in a slot. NoSlot is allowed.
func (x *Index) Remove(slot int32) {
	if slot == NoSlot {
		return
	}

	x.mu.Lock()
	defer x.mu.Unlock()

	row := x.at(slot)
	x.size.add(row, -1)
	*row = Row{}
	x.setDetails(slot, Details{})
	x.free = append(x.free, slot)
}

// Row returns a copy of the row in a slot.
func (x *Index) Row(slot int32) Row {
	x.mu.RLock()
	defer x.mu.RUnlock()

	return *x.at(slot)
}

// Size returns how many rows there are.
func (x *Index) Size() Size {
	x.mu.RLock()
	defer x.mu.RUnlock()

	return x.size
}

// Scan counts the rows that match a query, and offers their places to first.
func (x *Index) Scan(q *Query, shard int, first *First) (c Counts) {
	x.each(q.Now, false, func(r *Row, _ *Details) {
		if !q.Filter.matches(r, q.Now) {
			return
		}

		c.add(r, q.Now)
		first.Offer(Place{Key: q.Order.key(r), Name: r.Name, Shard: shard, Failing: r.Flags.Has(Failing)})
	})

	return c
}

// EachRow calls visit with each row, except for those with the flag Gone. A pause that has ended at now (Unix
// milliseconds) is not shown. visit must not keep or change the row, and must not block.
func (x *Index) EachRow(now int64, visit func(r *Row)) {
	x.each(now, false, func(r *Row, _ *Details) { visit(r) })
}

// each is EachRow, and with full it also visits the rows with the flag Gone, and passes on the details of all rows. d is
// nil if a row has none.
func (x *Index) each(now int64, full bool, visit func(r *Row, d *Details)) {
	s := indexScan{now: now, full: full, visit: visit}
	for from := 0; s.scanChunk(x, from); from += chunkRows {
	}
}

// indexScan is one pass over an Index. See each.
type indexScan struct {
	now   int64
	full  bool
	visit func(r *Row, d *Details)

	// These fields hold the arguments of visit that are not in the Index. They are valid until the next call.
	row     Row
	details Details
}

// scanChunk visits the rows of the chunk that begins at a slot. It returns false if there is none.
func (s *indexScan) scanChunk(x *Index, from int) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()

	if from >= x.used {
		return false
	}

	c := x.chunks[from/chunkRows]
	for i := range min(x.used-from, chunkRows) {
		r := &c.rows[i]
		if r.Name == "" || r.Flags.Has(Gone) && !s.full {
			continue
		}

		// It takes some time to find details, and few scans need them.
		if !c.isDetailed(i) || !s.full && !r.Flags.Has(Paused) {
			s.visit(r, nil)
			continue
		}

		s.details = x.details[int32(from+i)]

		// Nothing is written when a pause ends, so the flag may be out of date.
		if until := s.details.PausedUntil; r.Flags.Has(Paused) && until != 0 && until <= s.now {
			s.row = *r
			r = &s.row
			r.Flags &^= Paused
		}

		s.visit(r, &s.details)
	}

	return true
}

// splits returns the names of one in q.Splits tasks that match a query. A shard contains tasks from all parts of the
// order by name. So the names of all shards together divide the tasks into parts of similar sizes, and it does not
// matter if some shards are missing. It reads only these rows.
func (x *Index) splits(q *Query, shard int) (names []string) {
	var r Row
	for slot := firstSplit(shard, q.Splits); x.readSlot(slot, &r); slot += q.Splits {
		if r.Name != "" && !r.Flags.Has(Gone) && q.Filter.matches(&r, q.Now) {
			names = append(names, r.Name)
		}
	}

	return names
}

// firstSplit returns the first slot whose name a shard contributes. It differs between shards: many shards have fewer
// rows than every, and the first slot of a shard contains the first of its names.
func firstSplit(shard, every int) int {
	const golden = 2_654_435_769 // 2^32 divided by the golden ratio spreads consecutive numbers evenly
	return int(uint64(uint32(shard)*golden) * uint64(every) >> 32)
}

// readSlot copies the row in a slot to r; a free slot has no name. It returns false if there is no such slot.
func (x *Index) readSlot(slot int, r *Row) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()

	if slot >= x.used {
		return false
	}

	*r = *x.at(int32(slot))

	return true
}
