package background

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
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
			run := store.Past{ID: fmt.Sprintf("%02d", i), Succeeded: rapid.Bool().Draw(rt, "succeeded"), Create: mod, Mod: mod + rapid.SampledFrom([]int64{0, 1000}).Draw(rt, "written again")}
			past, runs = append(past, run), append(runs, run)
			if rapid.IntRange(0, 3).Draw(rt, "late") == 0 {
				past = append(past, store.Past{ID: run.ID + "~late~7", Late: true, Create: mod + rapid.Int64Range(1, 100).Draw(rt, "later")})
			}
		}

		h := task.History{Keep: rapid.IntRange(1, 12).Draw(rt, "keep"), Record: rapid.SampledFrom([]string{task.RecordAll, task.RecordFailures}).Draw(rt, "record")}

		slices.SortFunc(runs, func(a, b store.Past) int { return cmp.Compare(b.Create, a.Create) })

		stays := map[string]bool{}
		for i, p := range runs {
			if len(stays) < h.Keep && (h.Record == task.RecordAll || i == 0 || !p.Succeeded) {
				stays[p.ID] = true
			}
		}

		// The last success stays, if there is a dead run from before it.
		oldestDead := rapid.Int64Range(0, int64(10*n)).Draw(rt, "oldest dead run")
		if i := slices.IndexFunc(runs, func(p store.Past) bool { return p.Succeeded }); i >= 0 && oldestDead != 0 && oldestDead <= runs[i].Create {
			stays[runs[i].ID] = true
		}

		gone := surplusRecords(past, h, time.Time{}, oldestDead)

		for _, p := range past { // a late result stays together with its run
			if slices.Contains(gone, p) == stays[p.Run()] {
				rt.Fatalf("of %v, keeping %d, goes %v: not %v", past, h.Keep, gone, p)
			}
		}
	})
}

func TestSurplus_KeepsWhatIsYoung(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

	var past []store.Past
	for i := range 12_000 {
		past = append(past, store.Past{ID: task.RunID(now.Add(time.Duration(i-12_000)*time.Second), "k3f9"), Create: int64(i + 1), Succeeded: i%3 > 0})
	}

	for name, tt := range map[string]struct {
		history task.History
		want    int // how many records stay
	}{
		"the number only":    {task.History{Keep: 20}, 20},
		"more are young":     {task.History{Keep: 20, KeepFor: task.Duration(time.Minute)}, 60 - 1}, // the tick of a minute ago is not younger
		"fewer are young":    {task.History{Keep: 200, KeepFor: task.Duration(time.Minute)}, 200},
		"too many are young": {task.History{Keep: 20, KeepFor: task.Duration(24 * time.Hour)}, task.MaxHistory},
		"failures":           {task.History{Keep: 3, KeepFor: task.Duration(time.Minute), Record: task.RecordFailures}, 20},
	} {
		gone := surplusRecords(past, tt.history, now.Add(-time.Second), 0)
		if got := len(past) - len(gone); got < tt.want || got > tt.want+1 {
			t.Errorf("%s: %d records stay, want about %d", name, got, tt.want)
		}
	}

	// The time of a tick that cannot be read is not known.
	odd := []store.Past{{ID: "odd", Create: 1}, {ID: past[11_999].ID, Create: 2}}
	if gone := surplusRecords(odd, task.History{Keep: 1, KeepFor: task.Duration(time.Hour)}, now, 0); len(gone) != 1 || gone[0].ID != "odd" {
		t.Errorf("%v", gone)
	}
}

func TestMayHaveSurplus_WaitsForAQuarterMore(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	history := task.History{Keep: 20, KeepFor: task.Duration(4 * time.Hour)}
	failures := history
	failures.Record = task.RecordFailures
	run := func(age time.Duration) string { return task.RunID(now.Add(-age), "k3f9") }

	for name, tt := range map[string]struct {
		oldest  string
		count   int64
		history task.History
		want    bool
	}{
		"young":             {run(4*time.Hour + 59*time.Minute), 300, history, false},
		"old":               {run(5 * time.Hour), 300, history, true},
		"too many":          {run(time.Hour), 12_501, history, true},
		"not too many":      {run(time.Hour), 12_500, history, false},
		"a late result":     {run(time.Hour) + "~late~7", 300, history, false},
		"odd":               {"odd", 300, history, true},
		"successes go":      {run(time.Hour), 300, failures, true},
		"only a number":     {run(time.Hour), 300, task.History{Keep: 20}, true},
		"an empty history":  {"", 0, history, true},
		"in the future yet": {run(-time.Hour), 5, history, false},
	} {
		if got := mayHaveSurplus(tt.oldest, tt.count, tt.history, now); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestTrimAfter_FoldsSeveralRecordsOfATaskThatTicksOften(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct{ keep, ticks, want int }{{20, 0, 5}, {20, 1, 5}, {20, 10, 10}, {20, 60, 60}, {1000, 60, 250}, {1, 0, 1}} {
		if got := TrimAfter(tt.keep, tt.ticks); got != tt.want {
			t.Errorf("keep %d, %d ticks in ten minutes: %d, want %d", tt.keep, tt.ticks, got, tt.want)
		}
	}
}

// brokenStore fails to trim dead runs.
type brokenStore struct {
	HistoryTrimmer
	err error
}

func (s *brokenStore) TrimDead(context.Context, store.Fences, record.Ref, int) error { return s.err }
func (s *brokenStore) SweepRunData(context.Context, store.Fences, record.Ref) error  { return s.err }

// A trim that keeps failing would let a history grow without anybody noticing it.
func TestTrimmer_WarnsOnceAnHour(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		s := &brokenStore{err: errors.New("broken")}
		trimmer := NewTrimmer(s, func() task.Cluster { return task.Cluster{} }, time.Now, zap.New(core))
		go trimmer.Run(t.Context()) //nolint:errcheck // it ends with the test

		fail := func(name string, wantWarnings int) {
			t.Helper()
			trimmer.Ask(Trim{Ref: record.Ref{Namespace: "default", Name: name}, Dead: true})
			synctest.Wait()
			if n := len(logs.TakeAll()); n != wantWarnings {
				t.Errorf("%d warnings of %s after %s, want %d", n, name, time.Now(), wantWarnings)
			}
		}

		fail("a", 1)
		fail("a", 0)
		fail("b", 1)
		time.Sleep(59 * time.Minute)
		fail("a", 0)
		time.Sleep(time.Minute)
		fail("a", 1)

		// A new owner trims. That is no failure.
		s.err = task.ErrFenced
		fail("c", 0)
	})
}

func TestWarnings_AreBounded(t *testing.T) {
	t.Parallel()

	var w warnings
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	for i := range 2 * maxWarned {
		if got, want := w.noteFailure(fmt.Sprint(i), now), i < maxWarned; got != want {
			t.Fatalf("task %d: %t, want %t", i, got, want)
		}
	}

	if !w.noteFailure("later", now.Add(warnEvery)) || len(w.last) != 1 {
		t.Errorf("after an hour, %d tasks are remembered", len(w.last))
	}
}
