package readmodel

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
