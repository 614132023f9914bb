package schedule_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func at(t testing.TB, text string) task.Time {
	if text == "" {
		return task.Time{}
	}
	return task.At(instantOf(t, text))
}

func TestBounds_AreTicksThemselves(t *testing.T) {
	for _, c := range []struct{ expr, start, end, first, last string }{
		{"0 * * * *", "2026-03-01 10:00", "2026-03-01 12:00", "2026-03-01 10:00", "2026-03-01 12:00"},
		{"0 * * * *", "2026-03-01 10:00:00.001", "2026-03-01 11:59:59.999", "2026-03-01 11:00", "2026-03-01 11:00"},
		{"@every 7m", "2026-01-01 00:07", "2026-01-01 00:21", "2026-01-01 00:07", "2026-01-01 00:21"},
		{"@every 7m", "2026-01-01 00:08", "2026-01-01 00:20:59.999", "2026-01-01 00:14", "2026-01-01 00:14"},
		{"@at 2026-05-01T00:00:00Z", "2026-05-01", "2026-05-01", "2026-05-01", "2026-05-01"},
		{"@every 1h after completion", "", "2026-01-01 01:00", "2026-01-01 01:00", "2026-01-01 01:00"},
		{"@every 1h after completion", "2026-01-03", "", "2026-01-03", "2026-01-03"},
		{"0 0 1 1 *", "", "2026-01-01", "1971-01-01", "2026-01-01"},
		{"0 0 1 1 *", "2026-01-01", "", "2026-01-01", "2100-01-01"},
	} {
		s, err := schedule.Parse(task.Timing{Schedule: []string{c.expr}, Start: at(t, c.start), End: at(t, c.end)}, anchor)
		if err != nil {
			t.Fatal(err)
		}

		first, last := instantOf(t, c.first), instantOf(t, c.last)
		if got, ok := s.Next(time.Time{}); !ok || !got.Equal(first) {
			t.Errorf("%+v: the first is %v, %v", c, got, ok)
		}

		if got, ok := s.LastDue(time.Unix(1<<40, 0), "uid"); !ok || !got.Equal(last) {
			t.Errorf("%+v: the last is %v, %v", c, got, ok)
		}

		if got, ok := s.Next(last); ok {
			t.Errorf("%+v: a tick behind the end: %v", c, got)
		}

		if got, ok := s.LastDue(first.Add(-1), "uid"); ok {
			t.Errorf("%+v: a tick before the start: %v", c, got)
		}
	}
}

func TestBounds_CutWhatIsCountedAndListed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := zoneGen.Draw(t, "zone")
		timing, created := task.Timing{Schedule: anyGen().Draw(t, "exprs"), Timezone: zone, DST: dstGen.Draw(t, "dst")}, nearChange(t, zone)
		free := mustParse(t, timing, created)
		after := nearChangeSince(t, zone, 2000)

		ticks := []time.Time{after}
		for len(ticks) < 40 {
			next, ok := free.Next(ticks[len(ticks)-1])
			if !ok {
				break
			}
			ticks = append(ticks, next)
		}

		upTo := ticks[len(ticks)-1]
		near := func(name string) time.Time {
			return rapid.SampledFrom(ticks).Draw(t, name).Add(time.Duration(rapid.IntRange(-2, 2).Draw(t, name+" off")) * time.Millisecond)
		}

		start, end := near("start"), near("end")
		if end.Before(start) {
			start, end = end, start
		}

		timing.Start, timing.End = task.At(start), task.At(end)
		bound, err := schedule.Parse(timing, created)
		want := slices.DeleteFunc(ticks[1:], func(tick time.Time) bool {
			return tick.Before(timing.Start.Time) || tick.After(timing.End.Time)
		})

		if err != nil {
			if e, ok := err.(*task.Error); ok && e.Code == task.CodeNeverFires && len(want) == 0 {
				return
			}
			t.Fatal(err)
		}

		if got := walk(t, bound, after, upTo); !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Fatalf("got %v\nwant %v", got, want)
		}

		sameMissed(t, bound, after, upTo, want)
	})
}

func mustParse(t fataler, timing task.Timing, anchor time.Time) *schedule.Schedule {
	t.Helper()
	s, err := schedule.Parse(timing, anchor)
	if err != nil {
		t.Fatalf("%v", err)
	}

	return s
}

func TestBounds_RefuseWhatNeverFiresBetweenThem(t *testing.T) {
	for _, c := range []struct{ expr, start, end, code, field, says string }{
		{"0 0 1 1 *", "2026-01-02", "2026-12-31", task.CodeNeverFires, "schedule", "never fires between start, 2026-01-02T00:00:00Z, and end, 2026-12-31T00:00:00Z"},
		{"@at 2026-01-01T00:00:00Z", "2026-01-02", "", task.CodeNeverFires, "schedule", "never fires after start, 2026-01-02T00:00:00Z"},
		{"@at 2026-01-01T00:00:00Z", "", "2025-01-02", task.CodeNeverFires, "schedule", "never fires before end, 2025-01-02T00:00:00Z"},
		{"@hourly", "2026-01-02 00:01", "2026-01-02 00:59", task.CodeNeverFires, "schedule", "never fires"},
		{"@hourly", "2026-01-02", "2026-01-01", task.CodeBadTime, "end", "2026-01-01T00:00:00Z is before start, 2026-01-02T00:00:00Z"},
		{"@hourly", "1999-12-31", "", task.CodeBadTime, "start", "is not in the years 2000 to 2100"},
		{"@hourly", "", "2101-01-01", task.CodeBadTime, "end", "is not in the years 2000 to 2100"},
		{"@manual", "1999-12-31", "", task.CodeBadTime, "start", "is not in the years 2000 to 2100"},
	} {
		timing := task.Timing{Schedule: []string{c.expr}, Start: at(t, c.start), End: at(t, c.end)}
		wantError(t, c.expr, schedule.Check(timing), c.code, c.field, c.says)
		_, err := schedule.Parse(timing, anchor)
		wantError(t, c.expr, err, c.code, c.field, c.says)
	}

	for _, jitter := range []task.Duration{-1, task.MaxJitter + 1} {
		wantError(t, "jitter", schedule.Check(task.Timing{Schedule: []string{"@daily"}, Jitter: jitter}), task.CodeOutOfRange, "jitter", "is not between 0s and 24h")
	}
}
