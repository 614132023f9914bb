package schedule_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

const minuteMS = int64(60_000)

// ticksPerMinute counts ticks by the beginnings of their minutes, by visiting each tick.
func ticksPerMinute(s *schedule.Schedule, first, until int64) map[int64]int64 {
	counts := map[int64]int64{}
	for tick, ok := s.Next(time.UnixMilli(first - 1)); ok && tick.UnixMilli() < until; tick, ok = s.Next(tick) {
		at := tick.UnixMilli()
		counts[at-at%minuteMS]++
	}

	return counts
}

// perMinute is the same by PerMinute of a schedule without an anchor.
func perMinute(s *schedule.Schedule, next, until int64) (counts map[int64]int64, exact bool) {
	counts = map[int64]int64{}
	exact = s.PerMinute(next, until, func(at, ticks, _ int64) { counts[at-at%minuteMS] += ticks })

	return counts, exact
}

// firstDifference describes the first minute in which two counts differ.
func firstDifference(got, want map[int64]int64) string {
	for _, counts := range []map[int64]int64{want, got} {
		for _, at := range slices.Sorted(maps.Keys(counts)) {
			if got[at] != want[at] {
				return fmt.Sprintf("%d ticks at %s, want %d", got[at], time.UnixMilli(at).UTC(), want[at])
			}
		}
	}

	return "no difference"
}

func TestSchedule_PerMinuteAgreesWithEachTick(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		timing := task.Timing{Timezone: zoneGen.Draw(t, "zone"), DST: dstGen.Draw(t, "dst")}
		kind := rapid.SampledFrom([]string{"cron", "every", "at"}).Draw(t, "kind")
		from := nearChangeSince(t, timing.Timezone, 2000)

		for range rapid.IntRange(1, 3).Draw(t, "expressions") {
			switch kind {
			case "cron":
				timing.Schedule = append(timing.Schedule, cronGen(rapid.Bool().Draw(t, "seconds")).Draw(t, "cron"))
			case "every":
				period := time.Duration(rapid.IntRange(1, 10_000_000).Draw(t, "period")) * rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute}).Draw(t, "unit")
				timing.Schedule = task.Schedules{"@every " + min(max(period, time.Second), 300*time.Hour).String()}
			default:
				at := from.Add(time.Duration(rapid.IntRange(0, 3_000_000).Draw(t, "at")) * time.Millisecond)
				timing.Schedule = append(timing.Schedule, "@at "+at.UTC().Format("2006-01-02T15:04:05.000Z"))
			}
		}
		if rapid.Bool().Draw(t, "ends") {
			timing.End = task.At(from.Add(time.Duration(rapid.IntRange(1, 100_000_000).Draw(t, "end")) * time.Millisecond).UTC())
		}

		anchor := from.Add(-time.Duration(rapid.IntRange(0, 1_000_000_000).Draw(t, "anchor")) * time.Millisecond)
		s, err := schedule.Parse(timing, anchor)
		if err != nil {
			t.Skip(err)
		}

		first, ok := s.Next(from)
		if !ok {
			t.Skip("no tick")
		}

		shared := s.Anchored(time.Time{})
		next, until := first.UnixMilli(), from.Add(24*time.Hour).Truncate(time.Minute).UnixMilli()
		want := ticksPerMinute(s, next, until)

		got, exact := perMinute(&shared, next, until)
		if !exact || !maps.Equal(got, want) {
			t.Fatalf("PerMinute of %v from %s, exact %t: %s", timing, first, exact, firstDifference(got, want))
		}

		same := shared.SamePerMinute(next, until)
		if got, _ = perMinute(&shared, same, until); !maps.Equal(got, want) {
			t.Fatalf("PerMinute of %v from %d instead of %d: %s", timing, same, next, firstDifference(got, want))
		}
	})
}

// within counts ticks by the beginnings of their seconds, by Within of a schedule without an anchor.
func within(s *schedule.Schedule, next, from, until int64) (counts map[int64]int64, exact bool) {
	counts = map[int64]int64{}
	exact = s.Within(next, from, until, func(at, ticks, _ int64) { counts[at-at%1000] += ticks })

	return counts, exact
}

// Within and MayFallDue agree with each tick of a minute.
func TestSchedule_WithinAgreesWithEachTick(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		timing := task.Timing{Timezone: zoneGen.Draw(t, "zone"), DST: dstGen.Draw(t, "dst")}
		from := nearChangeSince(t, timing.Timezone, 2000)
		if rapid.Bool().Draw(t, "cron") {
			timing.Schedule = task.Schedules{cronGen(rapid.Bool().Draw(t, "seconds")).Draw(t, "cron")}
		} else {
			timing.Schedule = task.Schedules{"@every " + (time.Duration(rapid.IntRange(1000, 10_000_000).Draw(t, "period")) * time.Millisecond).String()}
		}

		s, err := schedule.Parse(timing, from.Add(-time.Hour))
		if err != nil {
			t.Skip(err)
		}
		first, ok := s.Next(from)
		if !ok {
			t.Skip("no tick")
		}

		shared := s.Anchored(time.Time{})
		next := first.UnixMilli()
		begin := next - next%minuteMS + rapid.Int64Range(-2, 3000).Draw(t, "minute")*minuteMS
		want := map[int64]int64{}
		for tick, ok := s.Next(time.UnixMilli(max(next, begin) - 1)); ok && tick.UnixMilli() < begin+minuteMS; tick, ok = s.Next(tick) {
			want[tick.UnixMilli()-tick.UnixMilli()%1000]++
		}

		got, exact := within(&shared, next, begin, begin+minuteMS)
		if !exact || !maps.Equal(got, want) {
			t.Fatalf("Within of %v: %v, exact %t, want %v", timing, got, exact, want)
		}
		if due, known := shared.MayFallDue(next, begin, begin+minuteMS); !known || due != (len(want) > 0) {
			t.Fatalf("MayFallDue of %v: %t, %t, want %v", timing, due, known, want)
		}
	})
}

// A tick with jitter may fall due after it, but before the next one. What follows from an unknown anchor is not known.
func TestSchedule_MayFallDue(t *testing.T) {
	t.Parallel()

	spread, err := schedule.Parse(task.Timing{Schedule: task.Schedules{"0 * * * *"}, Jitter: task.Duration(20 * time.Minute)}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	next := instantOf(t, "2026-03-01T10:00:00Z").UnixMilli()

	for _, c := range []struct {
		s          *schedule.Schedule
		minute     int64 // after next
		due, known bool
	}{
		{spread, -1, false, true}, {spread, 0, true, true}, {spread, 19, true, true}, {spread, 20, false, true}, {spread, 79, true, true}, {spread, 80, false, true},
		{parse(t, "UTC", noDST, "0 * * * *", "@every 7m"), 0, true, true},
		{parse(t, "UTC", noDST, "0 * * * *", "@every 7m"), 60, true, true},
		{parse(t, "UTC", noDST, "0 * * * *", "@every 7m"), 30, false, false},
		{parse(t, "UTC", noDST, "0 * * * *", "@every 40s"), 30, true, true},
		{parse(t, "UTC", noDST, "@every 1h after completion"), 0, true, true},
		{parse(t, "UTC", noDST, "@every 1h after completion"), 60, false, true},
	} {
		from := next + c.minute*minuteMS
		if due, known := c.s.MayFallDue(next, from, from+minuteMS); due != c.due || known != c.known {
			t.Errorf("%s in minute %d: %t, %t, want %t, %t", c.s.Text(), c.minute, due, known, c.due, c.known)
		}
	}
}

func TestSchedule_PerMinuteSpreadsWhatDependsOnTheAnchor(t *testing.T) {
	t.Parallel()

	s := parse(t, "UTC", noDST, "0 * * * *", "@every 7m")
	next := instantOf(t, "2026-03-01T10:00:00Z").UnixMilli()

	var fixed, spread int64
	exact := s.PerMinute(next, next+24*60*minuteMS, func(_, ticks, width int64) {
		if width == 0 {
			fixed += ticks
		} else {
			spread += ticks
		}
	})

	if exact || fixed != 24 || spread != 24*60/7 {
		t.Errorf("exact %t, %d ticks at known times, %d others, want false, 24 and %d", exact, fixed, spread, 24*60/7)
	}
}

func TestSchedule_PerMinuteHasTheWidthOfJitter(t *testing.T) {
	t.Parallel()

	next := instantOf(t, "2026-03-01T10:00:00Z").UnixMilli()
	for _, c := range []struct {
		expr   string
		jitter time.Duration
		want   string
	}{
		{"0 * * * *", 10 * time.Minute, "[1 10m0s] [1 10m0s]"},
		{"0 * * * *", 2 * time.Hour, "[1 1h0m0s] [1 1h0m0s]"},
		{"*/30 0 10 * * *", time.Hour, "[2 1m0s]"}, // two in one minute
		{"@every 1h", 5 * time.Minute, "[1 5m0s] [1 5m0s]"},
	} {
		timing := task.Timing{Schedule: task.Schedules{c.expr}, Jitter: task.Duration(c.jitter)}
		s := mustParse(t, timing, time.Time{})
		got := ""
		s.PerMinute(next, next+2*60*minuteMS, func(_, ticks, width int64) {
			got += fmt.Sprint([]any{ticks, time.Duration(width) * time.Millisecond}) + " "
		})

		if got != c.want+" " {
			t.Errorf("%s with jitter %s: %s, want %s", c.expr, c.jitter, got, c.want)
		}
	}
}

func TestSchedule_Text(t *testing.T) {
	t.Parallel()

	for want, exprs := range map[string][]string{
		"0 3 * * *":                  {"0 3 * * *"},
		"@daily, @every 90s":         {"@daily", "@every 90s"},
		"@at":                        {"@at 2030-01-01T00:00:00Z", "@at 2031-01-01T00:00:00Z"},
		"@every 1h after completion": {"@every 1h after completion"},
	} {
		if got := parse(t, "UTC", noDST, exprs...).Text(); got != want {
			t.Errorf("Text() = %q, want %q", got, want)
		}
	}
}

func BenchmarkPerMinute(b *testing.B) {
	for _, expr := range []string{"0 3 * * *", "* * * * *", "7 * * * * *", "* * * * * *", "@every 1h", "@every 1s"} {
		b.Run(expr, func(b *testing.B) {
			s := parse(b, "Europe/Berlin", noDST, expr)
			next, _ := s.Next(anchor)
			for b.Loop() {
				s.PerMinute(next.UnixMilli(), next.Add(24*time.Hour).UnixMilli(), func(int64, int64, int64) {})
			}
		})
	}
}
