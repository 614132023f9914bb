package auditlog

import (
	"cmp"
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
)

// owner identifies records that compete for space: a subject's records of access changes, or its other records.
type owner struct {
	access  bool
	subject string
}

func ownerOf(e store.AuditEntry) owner { return owner{e.Access, e.Subject} }

// planRemoval returns how many bytes each owner must lose if all records together exceed the limit. The largest owners lose
// records, so that nobody can push out the records of others by writing many. Records of access changes are removed only if
// they alone exceed half of the limit.
//
// It frees a tenth of the limit, because the leader reads all records before a removal and should not do so each minute.
func planRemoval(sizes map[owner]int64, limit int64) map[owner]int64 {
	var accessSize, otherSize int64
	for o, size := range sizes {
		if o.access {
			accessSize += size
		} else {
			otherSize += size
		}
	}
	if accessSize+otherSize <= limit {
		return nil
	}

	keep := limit - limit/10
	keepAccess := accessSize
	if accessSize > limit/2 {
		keepAccess = keep / 2
	}

	excess := map[owner]int64{}
	lowerTo(excess, sizes, true, keepAccess)
	lowerTo(excess, sizes, false, keep-keepAccess)

	return excess
}

// lowerTo adds to excess what the largest owners of one class must lose, so that the class has keep bytes in total. Owners that
// lose records have the same size afterwards, as if the largest owner lost one record at a time.
func lowerTo(excess, sizes map[owner]int64, access bool, keep int64) {
	var owners []owner
	var total int64
	for o, size := range sizes {
		if o.access == access {
			owners = append(owners, o)
			total += size
		}
	}
	if total <= keep {
		return
	}

	slices.SortFunc(owners, func(a, b owner) int { return cmp.Compare(sizes[a], sizes[b]) })

	// Each owner may use an equal part of the space that is left for it and all larger owners. Larger owners share what a
	// small owner does not need.
	for i, o := range owners {
		level := keep / int64(len(owners)-i)
		if size := sizes[o]; size > level {
			excess[o] = size - level
			keep -= level
			continue
		}
		keep -= sizes[o]
	}
}

// removal is records of one owner that one transaction removes.
type removal struct {
	owner   owner
	entries []store.AuditEntry
	ranges  []store.AuditRange
}

// chooseRemovals selects the records of a page to remove, up to the excess of each owner, and reduces excess by their size.
func chooseRemovals(page store.AuditPage, excess map[owner]int64) []removal {
	var list []removal
	current := map[owner]int{} // the index in list
	last := -1                 // the index of the removed record before, and in which removal it is
	lastIn := -1

	for i, e := range page.Entries {
		o := ownerOf(e)
		if excess[o] <= 0 {
			continue
		}

		at, ok := current[o]
		continues := ok && last == i-1 && lastIn == at
		if !ok || !continues && len(list[at].ranges) == store.MaxAuditRanges {
			at = len(list)
			list = append(list, removal{owner: o})
			current[o] = at
			continues = false
		}

		r := &list[at]
		if continues {
			r.ranges[len(r.ranges)-1].Last = e.ID
		} else {
			r.ranges = append(r.ranges, store.AuditRange{First: e.ID, Last: e.ID, Revision: page.Revision})
		}
		r.entries = append(r.entries, e)
		last, lastIn = i, at

		if excess[o] -= e.Bytes; excess[o] <= 0 {
			delete(excess, o)
		}
	}

	return list
}
