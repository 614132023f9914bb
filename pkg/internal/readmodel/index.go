package readmodel

import (
	"sync"
	"sync/atomic"
)

// chunkRows is how many rows a scan reads under one lock. It takes some microseconds, and an owner that changes a row
// waits no longer. A chunk of this size fits into the 8 KiB of the allocator, which needs eight bytes for itself. One
// more row, and each chunk would take 9,472 bytes.
const chunkRows = 127

// Index holds the rows of one shard. Only the owner's goroutine changes it; any goroutine may scan it.
type Index struct {
	mu     sync.RWMutex
	chunks []*[chunkRows]packedRow
	used   int     // slots that were ever used; a row without a name is free
	free   []int32 // slots that can be used again
	unread int     // rows whose last end is not known yet
	rows   int

	applied atomic.Int64

	recent recentRuns

	// pausedUntil holds, by slot, when pauses end that have an end. Nothing is written at that time.
	pausedUntil map[int32]int64

	// changing is the row that Change passes on, outside of calls without content. It saves an allocation for each change.
	changing Row
}

// NoteApplied notes that the rows contain all changes of the shard up to a revision.
func (x *Index) NoteApplied(revision int64) { x.applied.Store(revision) }

// HasApplied reports whether the rows contain the changes of the shard at a revision.
func (x *Index) HasApplied(revision int64) bool { return x.applied.Load() >= revision }

// NoSlot is the slot of a task that has no row yet.
const NoSlot int32 = -1

// Put stores a row and returns its slot. slot is that of the task's former row, or NoSlot. pausedUntil is when a pause
// ends, in Unix milliseconds, or 0 if the task is not paused or the pause has no end.
func (x *Index) Put(slot int32, r Row, pausedUntil int64) int32 {
	x.mu.Lock()
	defer x.mu.Unlock()

	if slot == NoSlot {
		slot = x.newSlot()
		x.rows++
	} else if !x.at(slot).flags().Has(History) {
		x.unread--
	}

	if !r.Flags.Has(History) {
		x.unread++
	}

	*x.at(slot) = packRow(&r)

	if pausedUntil == 0 {
		delete(x.pausedUntil, slot)
		return slot
	}

	if x.pausedUntil == nil {
		x.pausedUntil = map[int32]int64{}
	}
	x.pausedUntil[slot] = pausedUntil

	return slot
}

// Change changes a row in its place. change must not block.
func (x *Index) Change(slot int32, change func(r *Row)) {
	x.mu.Lock()
	defer x.mu.Unlock()

	r, packed := &x.changing, x.at(slot)
	packed.unpackTo(r)

	if !r.Flags.Has(History) {
		x.unread--
	}

	change(r)

	if !r.Flags.Has(History) {
		x.unread++
	}

	*packed = packRow(r)
	*r = Row{} // it must not keep the labels and the name of a task in memory
}

// newSlot returns a slot for a new row.
func (x *Index) newSlot() int32 {
	if n := len(x.free); n > 0 {
		slot := x.free[n-1]
		x.free = x.free[:n-1]

		return slot
	}

	if x.used == len(x.chunks)*chunkRows {
		x.chunks = append(x.chunks, new([chunkRows]packedRow))
	}

	x.used++

	return int32(x.used - 1)
}

// at returns the row in a slot.
func (x *Index) at(slot int32) *packedRow { return &x.chunks[slot/chunkRows][slot%chunkRows] }

// Remove removes the row in a slot. NoSlot is allowed.
func (x *Index) Remove(slot int32) {
	if slot == NoSlot {
		return
	}

	x.mu.Lock()
	defer x.mu.Unlock()

	if !x.at(slot).flags().Has(History) {
		x.unread--
	}

	x.rows--
	*x.at(slot) = packedRow{}
	delete(x.pausedUntil, slot)
	x.free = append(x.free, slot)
}

// Row returns a copy of the row in a slot.
func (x *Index) Row(slot int32) (r Row) {
	x.mu.RLock()
	defer x.mu.RUnlock()

	x.at(slot).unpackTo(&r)

	return r
}

// Collected returns for how many of the rows the last end is known, and how many rows there are.
func (x *Index) Collected() (known, rows int) {
	x.mu.RLock()
	defer x.mu.RUnlock()

	return x.rows - x.unread, x.rows
}

// Scan counts the rows that match a query, and offers their places to first.
func (x *Index) Scan(q *Query, shard int, first *First) (c Counts) {
	x.EachRow(q.Now, func(r *Row) {
		if !q.Filter.matches(r, q.Now) {
			return
		}

		c.add(r, q.Now)
		first.Offer(Place{Key: q.Order.key(r), Name: r.Name, Shard: shard})
	})

	return c
}

// EachRow calls visit with each row. A pause that has ended at now (Unix milliseconds) is not shown. visit must not
// keep or change the row, and must not block.
func (x *Index) EachRow(now int64, visit func(r *Row)) {
	var r Row // for all rows, because visit makes it escape to the heap
	for from := 0; x.eachRowOf(from, now, &r, visit); from += chunkRows {
	}
}

// eachRowOf is EachRow for the chunk that begins at a slot. It unpacks each row to r. It returns false if there is none.
func (x *Index) eachRowOf(from int, now int64, r *Row, visit func(r *Row)) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()

	if from >= x.used {
		return false
	}

	rows := x.chunks[from/chunkRows][:min(x.used-from, chunkRows)]
	for i := range rows {
		if rows[i].name == "" {
			continue
		}

		rows[i].unpackTo(r)

		// Nothing is written when a pause ends, so the flag may be out of date.
		if r.Flags.Has(Paused) && len(x.pausedUntil) > 0 {
			if until := x.pausedUntil[int32(from+i)]; until != 0 && until <= now {
				r.Flags &^= Paused
			}
		}

		visit(r)
	}

	return true
}
