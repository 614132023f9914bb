package retention

import (
	"cmp"
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Trim is a request to cut a task's history, or its list of dead runs, to its length.
type Trim struct {
	Fences  store.Fences // the delete compares them, so that only the owner trims
	Ref     record.Ref
	UID     string       // records of other tasks of that name do not count
	History task.History // how many records to keep, and which
	Before  int64        // only records with a lower mod revision are deleted; 0: any
	Dead    bool         // trim the dead runs, not the history
}

// TrimAfter returns after how many new records a task is trimmed that keeps the given number. A history is
// therefore up to a quarter longer than it should be.
func TrimAfter(keep int) int { return max(keep/4, 1) }

// surplusRecords returns the records that a history must lose, in the order in which they were written. The
// records that were written last stay, not those with the highest keys. Keys begin with the time of the
// tick, and the run that ends last often belongs to an older tick: it took long, was retried or was lost.
// The ttl, a schedule after completion and the count of consecutive failures depend on the last end.
//
// The newest record always stays. Late results do not count: they are deleted together with their run.
func surplusRecords(past []store.Past, h task.History) (gone []store.Past) {
	byMod := slices.Clone(past)
	slices.SortFunc(byMod, func(a, b store.Past) int { return cmp.Or(cmp.Compare(a.Mod, b.Mod), cmp.Compare(a.ID, b.ID)) })

	stay := map[string]bool{}
	newest := true
	for _, p := range slices.Backward(byMod) {
		if p.Late {
			continue
		}

		if len(stay) < h.Keep && (newest || !p.Succeeded || h.Record != task.RecordFailures) {
			stay[p.ID] = true
		}

		newest = false
	}

	return slices.DeleteFunc(byMod, func(p store.Past) bool { return stay[p.Run()] })
}
