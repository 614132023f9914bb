package retention

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Trim is a request to cut a task's history, or its list of dead runs, to its length.
type Trim struct {
	Fences store.Fences // every write compares them, so that only the owner trims
	Ref    record.Ref
	Dead   bool // trim the dead runs, not the history; the other fields do not apply

	UID      string            // records of other tasks of that name do not count
	Created  int64             // create revision of the task's entry
	History  task.History      // how many records to keep, and which
	Schedule schedule.Schedule // the task's schedule, with its anchor
	Added    int               // about how many records were added since the last trim
	Before   int64             // only records with a lower mod revision are deleted; 0: any
}

// TrimAfter returns after how many new records a task is trimmed that keeps the given number. A history is therefore up
// to a quarter longer than it should be, or by the ticks of ten minutes, which must not be more than 60.
//
// Every trim that folds records into the ledger writes a chunk. So one fold should take several records of a task that
// ticks often.
func TrimAfter(keep, ticks int) int { return max(keep/4, ticks, 1) }

// recordsOf returns the records of the task with a uid, in the same order. The others are left from a task that was deleted.
func recordsOf(uid string, past []store.Past) []store.Past {
	isOther := func(p store.Past) bool { return !task.RunBelongs(p.Run(), uid) }
	if !slices.ContainsFunc(past, isOther) {
		return past
	}

	return slices.DeleteFunc(slices.Clone(past), isOther)
}

// surplusRecords returns the records that a history must lose, in the order in which they were written. The
// records that were written last stay, not those with the highest keys. Keys begin with the time of the
// tick, and the run that ends last often belongs to an older tick: it took long, was retried or was lost.
// The ttl, a schedule after completion and the count of consecutive failures depend on the last end.
//
// Beyond the number that a task keeps, records stay whose ticks are younger than keep_for, up to task.MaxHistory.
//
// The newest record always stays. So does the last success while a dead run from before it is kept: without it, the task
// would seem to be failing. oldestDead is the create revision of the oldest dead run; 0: there is none. Late results do not
// count: they are deleted together with their run.
func surplusRecords(past []store.Past, h task.History, now time.Time, oldestDead int64) (gone []store.Past) {
	byMod := slices.Clone(past)
	slices.SortFunc(byMod, func(a, b store.Past) int { return cmp.Or(cmp.Compare(a.Mod, b.Mod), cmp.Compare(a.ID, b.ID)) })

	stay := map[string]bool{}
	newest, lastSuccess := true, ""
	for _, p := range slices.Backward(byMod) {
		if p.Late {
			continue
		}

		wanted := newest || !p.Succeeded || h.Record != task.RecordFailures
		if wanted && (len(stay) < h.Keep || len(stay) < task.MaxHistory && isYounger(p.ID, h.KeepFor, now)) {
			stay[p.ID] = true
		}

		if p.Succeeded && lastSuccess == "" && oldestDead != 0 && oldestDead <= p.Mod {
			lastSuccess = p.ID
		}

		newest = false
	}

	return slices.DeleteFunc(byMod, func(p store.Past) bool { return stay[p.Run()] || p.Run() == lastSuccess })
}

// isYounger reports whether the tick of a run is less than an age ago. It returns false if its time is not known.
func isYounger(run string, age task.Duration, now time.Time) bool {
	if age == 0 {
		return false
	}

	tick, ok := task.TimeOfRunID(run)

	return ok && now.Sub(tick) < age.Std()
}

// mayHaveSurplus reports whether a history that keeps records for a time may have records to delete, from its oldest key
// and the number of its keys. Such a history may be long, and is not listed for few records: it may exceed the time, and
// the number of records, by a quarter.
func mayHaveSurplus(oldest string, count int64, h task.History, now time.Time) bool {
	// Successes are deleted however young they are.
	if h.KeepFor == 0 || h.Record == task.RecordFailures {
		return true
	}

	run, _, _ := strings.Cut(oldest, record.LateMark)

	return count > max(int64(h.Keep), task.MaxHistory)*5/4 || !isYounger(run, h.KeepFor*5/4, now)
}
