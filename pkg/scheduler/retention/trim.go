package retention

import (
	"cmp"
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Trim is a history, or a list of dead runs, that is to be cut to its length.
type Trim struct {
	Fences  store.Fences
	Ref     record.Ref
	UID     string // records of other tasks of that name are purged, and do not count
	History task.History
	Before  int64 // only records that were written before this revision go; 0: all may
	Dead    bool  // not its history, but its dead runs
}

// TrimAfter is how many records are added before a task that keeps so many is trimmed.
func TrimAfter(keep int) int { return max(keep/4, 1) }

// surplusRecords is what a history has too much, in the order in which it was written. The
// records that were written last stay. Not those with the highest keys, which begin
// with the time of the tick: the run that ends last is often an older one that took
// long, was retried or was lost, and the ttl, a schedule after completion and the
// failures in a row go by the last end.
//
// The newest record always stays. Late results do not count: they go with their run.
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
