package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// NewestAudit lists each record once, the newest first, no matter how far apart they were written.
func TestNewestAudit_IsTheWholeListBackwards(t *testing.T) {
	w := newWorld(t)
	begun := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	// Many at one instant, a burst, a gap of a month, and single ones.
	var want []string
	put := func(at time.Time) {
		r := task.AuditRecord{ID: record.NewAuditID(at), Time: task.At(at), Operation: "test"}
		if err := w.Store.RecordAudit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		want = append(want, r.ID)
	}

	for range 1200 {
		put(begun)
	}
	for i := range 1500 {
		put(begun.Add(time.Duration(i) * 10 * time.Millisecond))
	}
	put(begun.Add(30 * 24 * time.Hour))
	put(begun.Add(31 * 24 * time.Hour))

	slices.Sort(want)
	slices.Reverse(want)

	for _, since := range []time.Time{{}, begun.Add(time.Second), begun.Add(30 * 24 * time.Hour), begun.Add(time.Hour * 24 * 365)} {
		expected := slices.DeleteFunc(slices.Clone(want), func(id string) bool { return !since.IsZero() && id < record.AuditTime(since) })

		var got []string
		calls := 0
		for below := record.AuditTime(begun.Add(40 * 24 * time.Hour)); below != ""; {
			list, next, err := w.Store.NewestAudit(t.Context(), since, below)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range list {
				got = append(got, r.ID)
			}

			below = next
			if calls++; calls > 100 {
				t.Fatal("it does not end")
			}
		}

		if !slices.Equal(got, expected) {
			t.Errorf("since %s: %d records, want %d", since, len(got), len(expected))
		}
	}

	if _, _, err := w.Store.NewestAudit(t.Context(), time.Time{}, "x"); err == nil {
		t.Error("a place that is no time")
	}
}
