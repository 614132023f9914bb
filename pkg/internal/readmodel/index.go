package readmodel

import (
	"sync"
	"sync/atomic"

	"github.com/carillonhq/carillon/pkg/task"
)

// chunkRows is how many rows a scan reads under one lock. It takes some microseconds, and an owner that changes a row
// waits no longer. A chunk of this size fits into the 8 KiB of the allocator, which needs eight bytes for itself. One
// more row, and each chunk would take 9,472 bytes.
const chunkRows = 113

// chunk is a part of the rows of an Index.
type chunk struct {
	rows     [chunkRows]Row
	detailed [(chunkRows + 63) / 64]uint64 // by row, one bit: it has Details

	watched *[chunkRows]watchMark // nil: none of the tasks has expectations
	judgeAt *[chunkRows]uint32    // see WatchedRow.JudgeAt; nil: all are 0
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

	applied   atomic.Int64
	committed atomic.Int64

	watches watches

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
func (in *Index) NoteApplied(revision int64) { in.applied.Store(revision) }

// HasApplied reports whether the rows contain the changes of the shard at a revision.
func (in *Index) HasApplied(revision int64) bool { return in.applied.Load() >= revision }

// Applied returns the revision up to which the rows contain all changes of the shard.
func (in *Index) Applied() int64 { return in.applied.Load() }

// NoteCommitted notes that the rows contain all commits of the owner up to the one that wrote the shard's watermark in a
// revision.
func (in *Index) NoteCommitted(revision int64) { in.committed.Store(revision) }

// HasCommitted reports whether the rows contain the owner's commits up to that revision of the watermark.
func (in *Index) HasCommitted(revision int64) bool { return in.committed.Load() >= revision }

// NoSlot is the slot of a task that has no row yet.
const NoSlot int32 = -1

// Put stores a row and its details, and returns its slot. slot is that of the task's former row, or NoSlot. alerts is what is
// expected of the task; nil: what a rule expects. The flags in AlertFlags stay as they are while something is expected.
func (in *Index) Put(slot int32, r Row, d Details, alerts *task.Alerts) int32 {
	in.mu.Lock()
	defer in.mu.Unlock()

	if slot == NoSlot {
		slot = in.newSlot()
	}

	byRule := alerts == nil
	if byRule {
		alerts = in.watches.ofRule(&r)
	}

	row := in.at(slot)
	r.Flags &^= AlertFlags
	if alerts != nil {
		r.Flags |= row.Flags & AlertFlags
	}
	in.setWatch(slot, &r, alerts, byRule)

	in.size.add(row, -1)
	in.size.add(&r, 1)
	*row = r
	in.setDetails(slot, d)

	return slot
}

// setDetails sets or clears the details of a row. Most rows have none, before and after; then it costs nothing.
func (in *Index) setDetails(slot int32, d Details) {
	c, i := in.chunks[slot/chunkRows], int(slot%chunkRows)

	switch {
	case d != Details{}:
		if in.details == nil {
			in.details = map[int32]Details{}
		}
		in.details[slot] = d
		c.detailed[i/64] |= 1 << (i % 64)
	case c.isDetailed(i):
		delete(in.details, slot)
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
func (in *Index) Change(slot int32, change func(r *Row)) {
	in.mu.Lock()
	defer in.mu.Unlock()

	row := in.at(slot)
	in.size.add(row, -1)
	change(row)
	in.size.add(row, 1)
}

// newSlot returns a slot for a new row.
func (in *Index) newSlot() int32 {
	if n := len(in.free); n > 0 {
		slot := in.free[n-1]
		in.free = in.free[:n-1]

		return slot
	}

	if in.used == len(in.chunks)*chunkRows {
		in.chunks = append(in.chunks, new(chunk))
	}

	in.used++

	return int32(in.used - 1)
}

// at returns the row in a slot.
func (in *Index) at(slot int32) *Row { return &in.chunks[slot/chunkRows].rows[slot%chunkRows] }

// Remove removes the row in a slot. NoSlot is allowed.
func (in *Index) Remove(slot int32) {
	if slot == NoSlot {
		return
	}

	in.mu.Lock()
	defer in.mu.Unlock()

	row := in.at(slot)
	in.setWatch(slot, &Row{}, nil, false)
	in.size.add(row, -1)
	*row = Row{}
	in.setDetails(slot, Details{})
	in.free = append(in.free, slot)
}

// Row returns a copy of the row in a slot.
func (in *Index) Row(slot int32) Row {
	in.mu.RLock()
	defer in.mu.RUnlock()

	return *in.at(slot)
}

// Size returns how many rows there are.
func (in *Index) Size() Size {
	in.mu.RLock()
	defer in.mu.RUnlock()

	return in.size
}

// Scan counts the rows that match a query, and offers their places to first.
func (in *Index) Scan(q *Query, shard int, first *First) (c Counts) {
	in.each(q.Now, false, func(r *Row, _ *Details, a *task.Alerts) {
		if !q.Filter.matches(r, a, q.Now) {
			return
		}

		c.add(r, q.Now)
		first.Offer(Place{Key: q.Order.key(r), Name: r.Name, Shard: shard, Failing: r.Flags.Has(Failing)})
	})

	return c
}

// EachRow calls visit with each row, except for those with the flag Gone. A pause that has ended at now (Unix
// milliseconds) is not shown. visit must not keep or change the row, and must not block.
func (in *Index) EachRow(now int64, visit func(r *Row)) {
	in.each(now, false, func(r *Row, _ *Details, _ *task.Alerts) { visit(r) })
}

// each is EachRow, and with full it also visits the rows with the flag Gone, and passes on the details of all rows. d is
// nil if a row has none, and a if nothing is expected of the task.
func (in *Index) each(now int64, full bool, visit func(r *Row, d *Details, a *task.Alerts)) {
	in.scan(&indexScan{now: now, full: full, detailed: Paused, visit: visit})
}

// scan visits all chunks.
func (in *Index) scan(s *indexScan) {
	for from := 0; s.scanChunk(in, from); from += chunkRows {
	}
}

// indexScan is one pass over an Index. See each.
type indexScan struct {
	now      int64
	full     bool
	detailed Flags // without full, details are passed on only of rows with one of these flags
	visit    func(r *Row, d *Details, a *task.Alerts)

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

		var a *task.Alerts
		if c.watched != nil {
			a = x.watches.alertsOf(c.watched[i])
		}

		// It takes some time to find details, and few scans need them.
		if !c.isDetailed(i) || !s.full && r.Flags&s.detailed == 0 {
			s.visit(r, nil, a)
			continue
		}

		s.details = x.details[int32(from+i)]

		// Nothing is written when a pause ends, so the flag may be out of date.
		if until := s.details.PausedUntil; r.Flags.Has(Paused) && until != 0 && until <= s.now {
			s.row = *r
			r = &s.row
			r.Flags &^= Paused
		}

		s.visit(r, &s.details, a)
	}

	return true
}

// splits returns the names of one in q.Splits tasks that match a query. A shard contains tasks from all parts of the
// order by name. So the names of all shards together divide the tasks into parts of similar sizes, and it does not
// matter if some shards are missing. It reads only these rows.
func (in *Index) splits(q *Query, shard int) (names []string) {
	var r Row
	for slot := firstSplit(shard, q.Splits); ; slot += q.Splits {
		a, ok := in.readSlot(slot, &r)
		if !ok {
			return names
		}
		if r.Name != "" && !r.Flags.Has(Gone) && q.Filter.matches(&r, a, q.Now) {
			names = append(names, r.Name)
		}
	}
}

// firstSplit returns the first slot whose name a shard contributes. It differs between shards: many shards have fewer
// rows than every, and the first slot of a shard contains the first of its names.
func firstSplit(shard, every int) int {
	const golden = 2_654_435_769 // 2^32 divided by the golden ratio spreads consecutive numbers evenly
	return int(uint64(uint32(shard)*golden) * uint64(every) >> 32)
}

// readSlot copies the row in a slot to r; a free slot has no name. It also returns what is expected of the task, and false if
// there is no such slot.
func (in *Index) readSlot(slot int, r *Row) (a *task.Alerts, ok bool) {
	in.mu.RLock()
	defer in.mu.RUnlock()

	if slot >= in.used {
		return nil, false
	}

	*r = *in.at(int32(slot))
	if c := in.chunks[slot/chunkRows]; c.watched != nil {
		a = in.watches.alertsOf(c.watched[slot%chunkRows])
	}

	return a, true
}
