package background

import (
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// everySecond is a folding of a task that ticks every second, whose history has the records of the first ticks.
func everySecond(t testing.TB, begin time.Time, records int) *folding {
	t.Helper()

	s, err := schedule.Parse(task.Timing{Schedule: task.Schedules{"@every 1s"}, Timezone: "UTC"}, begin)
	if err != nil {
		t.Fatal(err)
	}

	f := &folding{job: &Trim{UID: "k3f9aaaaaaaaaaaa", Schedule: *s}}
	for i := range records {
		f.history = append(f.history, store.Past{ID: task.RunID(begin.Add(time.Duration(i+1)*time.Second), f.job.UID)})
	}

	return f
}

func TestNextTick_IsTheFirstTickWithoutARecord(t *testing.T) {
	t.Parallel()

	begin := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	f := everySecond(t, begin, 20)
	f.history = slices.Delete(f.history, 9, 10) // the tick of second 10

	// Runs that took long are folded after those of later ticks, so the times go back and forth.
	for _, tc := range []struct{ after, want int }{
		{0, 10}, {1, 10}, {9, 10}, {10, 21}, {11, 21}, {20, 21}, {21, 22}, {5, 10}, {-1, 10}, {0, 10}, {15, 21}, {3, 10}, {10, 21}, {30, 31},
	} {
		next, ok := f.nextTick(begin.Add(time.Duration(tc.after) * time.Second))
		if want := begin.Add(time.Duration(tc.want) * time.Second); !ok || !next.Equal(want) {
			t.Errorf("after %d: %s, %v; want %s", tc.after, next, ok, want)
		}
	}
}

func TestNextTick_EndsWithTheSchedule(t *testing.T) {
	t.Parallel()

	begin := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	f := everySecond(t, begin, 3)
	s, err := schedule.Parse(task.Timing{Schedule: task.Schedules{"@every 1s"}, Timezone: "UTC", End: task.At(begin.Add(3 * time.Second))}, begin)
	if err != nil {
		t.Fatal(err)
	}
	f.job.Schedule = *s

	for _, after := range []int{0, 1, 2, 3, 0} {
		if next, ok := f.nextTick(begin.Add(time.Duration(after) * time.Second)); ok {
			t.Errorf("after %d: %s", after, next)
		}
	}

	if next, ok := f.nextTick(begin.Add(-time.Second)); ok {
		t.Errorf("before all: %s", next)
	}
}

// BenchmarkNextTick asks for the next tick after each record of a long history, as a fold does for each success.
func BenchmarkNextTick(b *testing.B) {
	begin := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	const records = 10_000
	f := everySecond(b, begin, records)

	for i := 0; b.Loop(); i++ {
		f.nextTick(begin.Add(time.Duration(i%records) * time.Second))
	}
}
