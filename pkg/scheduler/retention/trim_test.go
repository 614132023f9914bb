package retention

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestSurplus_KeepsWhatWasWrittenLastAndLeavesNothingElse(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		// Runs with the order in which they ended. Some also have a late result.
		n := rapid.IntRange(0, 40).Draw(rt, "records")
		order := rapid.Permutation(slices.Collect(func(yield func(int64) bool) {
			for i := range n {
				if !yield(int64(10 * (i + 1))) {
					return
				}
			}
		})).Draw(rt, "order")

		var past, runs []store.Past
		for i, mod := range order {
			run := store.Past{ID: fmt.Sprintf("%02d", i), Succeeded: rapid.Bool().Draw(rt, "succeeded"), Mod: mod}
			past, runs = append(past, run), append(runs, run)
			if rapid.IntRange(0, 3).Draw(rt, "late") == 0 {
				past = append(past, store.Past{ID: run.ID + "~late~7", Late: true, Mod: mod + rapid.Int64Range(1, 100).Draw(rt, "later")})
			}
		}

		h := task.History{Keep: rapid.IntRange(1, 12).Draw(rt, "keep"), Record: rapid.SampledFrom([]string{task.RecordAll, task.RecordFailures}).Draw(rt, "record")}

		slices.SortFunc(runs, func(a, b store.Past) int { return cmp.Compare(b.Mod, a.Mod) })

		stays := map[string]bool{}
		for i, p := range runs {
			if len(stays) < h.Keep && (h.Record == task.RecordAll || i == 0 || !p.Succeeded) {
				stays[p.ID] = true
			}
		}

		gone := surplusRecords(past, h, time.Time{})

		for _, p := range past { // a late result stays together with its run
			if slices.Contains(gone, p) == stays[p.Run()] {
				rt.Fatalf("of %v, keeping %d, goes %v: not %v", past, h.Keep, gone, p)
			}
		}
	})
}
