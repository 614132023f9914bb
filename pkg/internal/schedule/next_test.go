package schedule_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func parse(t testing.TB, zone string, dst task.DST, exprs ...string) *schedule.Schedule {
	t.Helper()
	s, err := schedule.Parse(task.Timing{Schedule: exprs, Timezone: zone, DST: dst}, anchor)
	if err != nil {
		t.Fatal(err)
	}

	return s
}

// instantOf parses "2026-03-29 02:30" in UTC, or RFC 3339.
func instantOf(t testing.TB, text string) time.Time {
	t.Helper()

	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999", "2006-01-02 15:04", "2006-01-02"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at
		}
	}

	t.Fatalf("bad time %q", text)

	return time.Time{}
}

func TestNext_KnowsTheLanguage(t *testing.T) {
	for _, c := range []struct{ expr, after, want string }{
		{"* * * * *", "2026-01-01 00:00", "2026-01-01 00:01"},
		{"* * * * * *", "2026-01-01 00:00", "2026-01-01 00:00:01"},
		{"30 2 * * *", "2026-01-01 02:30", "2026-01-02 02:30"},
		{"15 30 2 * * *", "2026-01-01 02:30", "2026-01-01 02:30:15"},
		{"05 09 * * *", "2026-01-01", "2026-01-01 09:05"},
		{"  0   2 *  * *  ", "2026-01-01", "2026-01-01 02:00"},
		{"*/15 * * * *", "2026-01-01 00:45", "2026-01-01 01:00"},
		{"5-59/15 * * * *", "2026-01-01 00:05", "2026-01-01 00:20"},
		{"1-10/20 * * * *", "2026-01-01 00:01", "2026-01-01 01:01"},
		{"0,30,59 * * * *", "2026-01-01 00:30", "2026-01-01 00:59"},
		{"59 59 23 31 12 *", "2026-01-01", "2026-12-31 23:59:59"},
		{"0 0 1 JAN *", "2026-01-01", "2027-01-01"},
		{"0 0 1 jun-aug *", "2026-01-01", "2026-06-01"},
		{"0 0 1 Feb,oct *", "2026-03-01", "2026-10-01"},
		// 2026-01-01 is a Thursday.
		{"0 0 * * 0", "2026-01-01", "2026-01-04"},
		{"0 0 * * 7", "2026-01-01", "2026-01-04"},
		{"0 0 * * SUN", "2026-01-01", "2026-01-04"},
		{"0 0 * * mon-FRI", "2026-01-02", "2026-01-05"},
		{"0 0 * * 5-7", "2026-01-02", "2026-01-03"},
		{"0 0 * * 5-7", "2026-01-03", "2026-01-04"},
		{"0 0 * * 5-7", "2026-01-04", "2026-01-09"},
		{"0 0 * * 1-7/2", "2026-01-02", "2026-01-04"},
		{"0 0 * * sat,7", "2026-01-03", "2026-01-04"},
		{"0 0 * * */7", "2026-01-01", "2026-01-04"},
		// One matching day field is enough, unless one of them starts with *.
		{"0 0 13 * 5", "2026-01-02", "2026-01-09"},
		{"0 0 13 * 5", "2026-01-09", "2026-01-13"},
		{"0 0 */2 * 5", "2026-01-02", "2026-01-09"},
		{"0 0 */2 * 5", "2026-01-09", "2026-01-23"},
		{"0 0 1-31/2 * 5", "2026-01-01", "2026-01-02"},
		{"0 0 13 * */2", "2026-01-01", "2026-01-13"},
		{"0 0 13 * */6", "2026-01-01", "2026-06-13"},
		{"0 0 *,5 * 5", "2026-01-02", "2026-01-09"},
		{"0 0 1-31 * 5", "2026-01-02", "2026-01-03"},
		{"0 0 1 * *", "2026-01-01", "2026-02-01"},
		{"0 0 31 * *", "2026-01-31", "2026-03-31"},
		{"0 0 29 2 *", "2026-01-01", "2028-02-29"},
		{"0 0 29 2 */7", "2026-01-01", "2032-02-29"}, // a Sunday
		{"0 0 29 2 1", "2026-01-01", "2026-02-02"},   // a Monday in February, or the 29th
		// Days by their place in a month. In 2026 August 1 and October 31 are Saturdays, February 1, March 1 and
		// May 31 Sundays.
		{"0 0 L * *", "2026-01-01", "2026-01-31"},
		{"0 0 L * *", "2026-01-31", "2026-02-28"},
		{"0 0 L 2 *", "2026-03-01", "2027-02-28"},
		{"0 0 l 2 *", "2027-03-01", "2028-02-29"},
		{"0 0 1,L * *", "2026-01-31", "2026-02-01"},
		{"0 0 1,L * *", "2026-02-01", "2026-02-28"},
		{"0 0 LW * *", "2026-01-01", "2026-01-30"},
		{"0 0 LW 5 *", "2026-01-01", "2026-05-29"},
		{"0 0 lw 3 *", "2026-01-01", "2026-03-31"},
		{"0 0 15W * *", "2026-01-01", "2026-01-15"},
		{"0 0 15W * *", "2026-02-01", "2026-02-16"}, // the 15th is a Sunday
		{"0 0 15W 8 *", "2026-02-01", "2026-08-14"}, // the 15th is a Saturday
		{"0 0 1W 8 *", "2026-01-01", "2026-08-03"},
		{"0 0 1w 2 *", "2026-01-01", "2026-02-02"},
		{"0 0 31W 5 *", "2026-01-01", "2026-05-29"},
		{"0 0 31W 10 *", "2026-01-01", "2026-10-30"},
		{"0 0 31W * *", "2026-01-31", "2026-03-31"}, // not in February
		{"0 0 30W 2,4 *", "2026-01-01", "2026-04-30"},
		{"0 0 * * 5#1", "2026-01-01", "2026-01-02"},
		{"0 0 * * 5#3", "2026-01-01", "2026-01-16"},
		{"0 0 * * fri#5", "2026-01-01", "2026-01-30"},
		{"0 0 * * FRI#5", "2026-01-30", "2026-05-29"},
		{"0 0 * * 7#1", "2026-01-04", "2026-02-01"},
		{"0 0 * * 0#1,1#2", "2026-01-04", "2026-01-12"},
		{"0 0 * * 4#1", "2025-12-31", "2026-01-01"},
		{"0 0 * * 3#1", "2025-12-31", "2026-01-07"},
		{"0 0 * * 5L", "2026-01-01", "2026-01-30"},
		{"0 0 * * satL", "2026-01-01", "2026-01-31"},
		{"0 0 * 2 0L", "2026-01-01", "2026-02-22"},
		{"0 0 * 2 7l", "2026-01-01", "2026-02-22"},
		{"0 0 13 * 5L", "2026-01-01", "2026-01-13"}, // one match is enough
		{"0 0 13 * 5L", "2026-01-13", "2026-01-30"},
		{"0 0 L * 5#1", "2026-01-02", "2026-01-31"},
		{"0 0 */2 * 5#3", "2026-01-01", "2026-04-17"}, // both must match
		{"@yearly", "2026-01-01", "2027-01-01"},
		{"@annually", "2026-01-01", "2027-01-01"},
		{"@monthly", "2026-01-01", "2026-02-01"},
		{"@weekly", "2026-01-01", "2026-01-04"},
		{"@daily", "2026-01-01", "2026-01-02"},
		{"@midnight", "2026-01-01", "2026-01-02"},
		{"@hourly", "2026-01-01", "2026-01-01 01:00"},
		{"@at 2026-12-24T18:00:00Z", "2026-01-01", "2026-12-24 18:00"},
		{"@at 2026-12-24T18:00:00.25+01:00", "2026-01-01", "2026-12-24 17:00:00.25"},
		{"@every 90s", "2026-01-01", "2026-01-01 00:01:30"},
		{"@every 100ms", "2026-01-01", "2026-01-01 00:00:00.1"},
		{"@every 1.5s", "2026-01-01 00:00:01.5", "2026-01-01 00:00:03"},
		{"@every 87600h", "2026-01-01", "2035-12-30"},
	} {
		got, ok := parse(t, "", noDST, c.expr).Next(instantOf(t, c.after))
		if want := instantOf(t, c.want); !ok || !got.Equal(want) || got.Location() != time.UTC {
			t.Errorf("%q after %s: %v, %v; want %v", c.expr, c.after, got, ok, want)
		}
	}
}

func TestNext_LooksUpToACenturyAhead(t *testing.T) {
	// A Sunday February 29th comes every 28 years.
	s := parse(t, "", noDST, "0 0 29 2 */7")
	want := []string{"2004-02-29", "2032-02-29", "2060-02-29", "2088-02-29"}
	now := instantOf(t, "2000-01-01")
	for _, w := range want {
		next, ok := s.Next(now)
		if !ok || !next.Equal(instantOf(t, w)) {
			t.Fatalf("after %v: %v, want %s", now, next, w)
		}
		now = next
	}

	if next, ok := s.Next(now); ok {
		t.Errorf("after %v: %v, want no more", now, next)
	}
}

func TestNext_KeepsToTheYears1970To2100(t *testing.T) {
	for _, exprs := range [][]string{{"* * * * * *"}, {"@every 1s"}, {"0 0 0 2 1 *", "@at 2100-12-31T23:59:59Z"}} {
		s, err := schedule.Parse(task.Timing{Schedule: exprs, Timezone: "", DST: noDST}, instantOf(t, "1970-01-01 23:59:59"))
		if err != nil {
			t.Fatal(err)
		}

		for _, early := range []time.Time{{}, instantOf(t, "1969-01-01"), instantOf(t, "1970-01-01 23:59:59.999"), time.Unix(-1<<62, 0)} {
			if next, ok := s.Next(early); !ok || !next.Equal(instantOf(t, "1970-01-02")) {
				t.Errorf("%q: the first tick after %v is %v, %v", exprs, early, next, ok)
			}
		}

		last := instantOf(t, "2100-12-31 23:59:59")
		if next, ok := s.Next(last.Add(-time.Millisecond)); !ok || !next.Equal(last) {
			t.Errorf("%q: the last tick is %v, %v", exprs, next, ok)
		}

		for _, late := range []time.Time{last, last.Add(time.Second - 1), last.Add(time.Hour), time.Unix(1<<61, 0)} {
			if next, ok := s.Next(late); ok {
				t.Errorf("%q: a tick after %v: %v", exprs, late, next)
			}
		}

		if first, last, count, _ := s.Missed(time.Time{}, time.Unix(1<<61, 0), 0); count == 0 || first.Year() != 1970 || last.Year() != 2100 {
			t.Errorf("%q: all ticks: %v, %v, %d", exprs, first, last, count)
		}
	}
}

func TestNext_IsLaterByLessThanAMillisecond(t *testing.T) {
	s := parse(t, "", noDST, "* * * * * *", "@every 100ms")
	tick := instantOf(t, "2026-01-01 00:00:05")

	for _, c := range []struct{ before, want time.Duration }{
		{0, 100 * time.Millisecond}, {1, 0}, {time.Millisecond, 0}, {-1, 100 * time.Millisecond},
		{100*time.Millisecond - 1, 0}, {100*time.Millisecond + 1, -100 * time.Millisecond},
	} {
		if got, _ := s.Next(tick.Add(-c.before)); !got.Equal(tick.Add(c.want)) {
			t.Errorf("Next(tick − %v) = %v", c.before, got)
		}
	}
}

func TestNext_TakesTwoTicksOnOneInstantForOne(t *testing.T) {
	s := parse(t, "Europe/Berlin", noDST, "0 2 * * *", "0 1 * * *", "0 2 * * *", "@every 24h", "@at 2026-01-02T00:00:00Z", "@at 2026-01-02T01:00:00Z", "@every 48h")
	got := walk(t, s, anchor.Add(2*time.Hour), anchor.Add(26*time.Hour))
	if len(got) != 2 || !got[0].Equal(instantOf(t, "2026-01-02 00:00")) || !got[1].Equal(instantOf(t, "2026-01-02 01:00")) {
		t.Errorf("got %v", got)
	}

	sameMissed(t, s, anchor.Add(2*time.Hour), anchor.Add(26*time.Hour), got)
}

func TestNext_EveryKeepsItsPhase(t *testing.T) {
	created := instantOf(t, "2026-03-01 10:00:00.123").Add(456 * time.Microsecond)
	s, err := schedule.Parse(task.Timing{Schedule: []string{"@every 7s"}, Timezone: "Europe/Berlin", DST: noDST}, created)
	if err != nil {
		t.Fatal(err)
	}

	start := created.Truncate(time.Millisecond)
	for _, after := range []time.Time{{}, created.Add(-time.Hour), created, start.Add(7*time.Second - 1)} {
		if next, ok := s.Next(after); !ok || !next.Equal(start.Add(7*time.Second)) {
			t.Errorf("after %v: %v", after, next)
		}
	}

	const k = 100_000_000
	if next, _ := s.Next(start.Add(k*7*time.Second + 3*time.Second)); !next.Equal(start.Add((k + 1) * 7 * time.Second)) {
		t.Errorf("after %d ticks: %v", k, next)
	}
}

func TestNext_AtTicksOnce(t *testing.T) {
	s := parse(t, "Asia/Tokyo", noDST, "@at 2026-12-24T18:00:00+01:00")
	at := instantOf(t, "2026-12-24 17:00")
	if next, ok := s.Next(anchor); !ok || !next.Equal(at) {
		t.Errorf("first %v, %v", next, ok)
	}

	if next, ok := s.Next(at); ok {
		t.Errorf("and then %v", next)
	}
}

func TestManual_NeverTicks(t *testing.T) {
	s := parse(t, "", noDST, "@reboot")
	if next, ok := s.Next(anchor); ok || !s.Manual() {
		t.Errorf("@reboot: next %v, manual %v", next, s.Manual())
	}

	s = parse(t, "", noDST, "@manual")
	if next, ok := s.Next(anchor); ok || !s.Manual() {
		t.Errorf("next %v, manual %v", next, s.Manual())
	}

	if _, _, count, ticks := s.Missed(time.Time{}, anchor.AddDate(50, 0, 0), 5); count != 0 || ticks != nil {
		t.Errorf("missed %d", count)
	}

	if parse(t, "", noDST, "@at 2000-01-01T00:00:00Z").Manual() {
		t.Error("@at in the past passes for manual")
	}
}

func TestNext_RunsOnceAfterGap(t *testing.T) {
	for _, c := range []struct{ zone, expr, after, want string }{
		{"Europe/Berlin", "30 2 * * *", "2026-03-29T00:00:00+01:00", "2026-03-29T03:00:00+02:00"},
		{"Europe/Berlin", "* 2 * * *", "2026-03-29T00:00:00+01:00", "2026-03-29T03:00:00+02:00"},
		{"Europe/Berlin", "* 2 * * *", "2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"},
		{"Europe/Berlin", "0 3 * * *", "2026-03-29T00:00:00+01:00", "2026-03-29T03:00:00+02:00"},
		{"Europe/Berlin", "30 2 29 3 *", "2026-01-01T00:00:00Z", "2026-03-29T03:00:00+02:00"},
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-04T00:00:00+10:30", "2026-10-04T02:30:00+11:00"},
		{"America/Sao_Paulo", "@daily", "2018-11-03T12:00:00-03:00", "2018-11-04T01:00:00-02:00"},
		{"America/Sao_Paulo", "0 0 4 11 *", "2018-11-03T12:00:00-03:00", "2018-11-04T01:00:00-02:00"},
		{"Asia/Beirut", "@midnight", "2026-03-28T12:00:00+02:00", "2026-03-29T01:00:00+03:00"},
		{"Pacific/Apia", "0 12 30 12 *", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"Pacific/Apia", "0 12 * * *", "2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"Pacific/Apia", "@daily", "2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"Pacific/Apia", "0 0 1 1 *", "2011-12-29T12:00:00-10:00", "2012-01-01T00:00:00+14:00"},
		{"Europe/Dublin", "30 1 * * *", "2026-03-29T00:00:00Z", "2026-03-29T02:00:00+01:00"},
		{"Antarctica/Troll", "0 2 * * *", "2026-03-29T00:00:00Z", "2026-03-29T03:00:00+02:00"},
	} {
		got, ok := parse(t, c.zone, noDST, c.expr).Next(instantOf(t, c.after))
		if !ok || !got.Equal(instantOf(t, c.want)) {
			t.Errorf("%s %q after %s: %v, want %s", c.zone, c.expr, c.after, got, c.want)
		}
	}
}

func TestSchedule_IsSafeForConcurrentUse(t *testing.T) {
	var wg sync.WaitGroup

	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				s, err := schedule.Parse(task.Timing{Schedule: []string{"*/5 * * * *", "@every 7s"}, Timezone: []string{"Asia/Kolkata", "Asia/Tokyo"}[(i+j)%2], DST: noDST}, anchor)
				if err != nil {
					t.Error(err)
					return
				}

				s.Next(anchor)
				s.Missed(anchor, anchor.Add(time.Hour), 3)
			}
		})
	}

	wg.Wait()
}

func TestNext_AllocatesNothing(t *testing.T) {
	s := parse(t, "Europe/Berlin", noDST, "30 2 29 2 */7", "* * * * * *", "@every 7s", "@at 2026-12-24T18:00:00Z")
	now := anchor
	if n := testing.AllocsPerRun(100, func() { now, _ = s.Next(now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMissed_CountsYearsOfSeconds(t *testing.T) {
	year := [2]string{"2026-01-01T00:00:00+01:00", "2027-01-01T00:00:00+01:00"}

	for _, c := range []struct {
		exprs string
		dst   task.DST
		count int64
	}{
		{"* * * * * *", noDST, 365 * 86400},
		{"* * 0-23 * * *", noDST, 365*86400 - 3600}, // the hour that comes twice counts once
		{"* * 0-23 * * *", task.DST{Fold: task.FoldBoth}, 365 * 86400},
		{"0-58 * 0-23 * * *", noDST, 365*24*60*59 - 60*59},
		{"* * * * * *;*/2 * * * * *;@every 1s", noDST, 365 * 86400},
		{"@every 100ms", noDST, 365 * 86400 * 10},
		{"@every 200ms;@every 300ms", noDST, 365 * 86400 * 10 * 2 / 3},
		{"*/10 * * * * *;@every 2s", noDST, 365 * 43200},
		{"*/10 * * * * *;@every 4s", noDST, 365 * (8640 + 21600 - 4320)},
		{"0 0 * * *;0 1 * * *;0 0 1 * *", noDST, 2 * 365},
		{"* * * * * 1;* * * * * 2", noDST, 2 * 52 * 86400},
		{"@daily;@at 2026-06-01T00:00:00+02:00;@at 2026-06-01T00:00:01+02:00", noDST, 366},
	} {
		s, err := schedule.Parse(task.Timing{Schedule: strings.Split(c.exprs, ";"), Timezone: "Europe/Berlin", DST: c.dst}, instantOf(t, "2025-01-01"))
		if err != nil {
			t.Fatal(err)
		}

		if _, _, count, _ := s.Missed(instantOf(t, year[0]), instantOf(t, year[1]), 0); count != c.count {
			t.Errorf("%q: %d, want %d", c.exprs, count, c.count)
		}
	}
}

// The tick that stands for a gap can also be a tick of another expression.
func TestMissed_CountsTheTickAfterAGapOnce(t *testing.T) {
	from, upTo := instantOf(t, "2026-03-28 12:00"), instantOf(t, "2026-03-29 12:00")

	for _, c := range []struct {
		exprs string
		count int64
	}{
		{"30 2 * * *", 1},
		{"30 2 * * *;45 2 * * *", 1},
		{"30 2 * * *;0 3 * * *", 1},
		{"30 2 * * *;0 */3 * * *", 8}, // 15:00 to 12:00; both have 03:00
		{"30 2 * * *;@every 1h", 24},
		{"30 2 * * *;@every 7h", 5},
		{"30 2 * * *;@at 2026-03-29T03:00:00+02:00", 1},
		{"30 2 * * *;@at 2026-03-29T03:00:01+02:00", 2},
	} {
		s := parse(t, "Europe/Berlin", noDST, strings.Split(c.exprs, ";")...)
		ticks := walk(t, s, from, upTo)
		if int64(len(ticks)) != c.count {
			t.Errorf("%q: %d ticks, want %d: %v", c.exprs, len(ticks), c.count, ticks)
		}

		sameMissed(t, s, from, upTo, ticks)
	}
}

func TestMissed_ListsTheNewestInOrder(t *testing.T) {
	s := parse(t, "", noDST, "0 * * * *")
	first, last, count, newest := s.Missed(instantOf(t, "2026-01-01 00:00"), instantOf(t, "2026-01-01 05:00"), 2)
	if count != 5 || !first.Equal(instantOf(t, "2026-01-01 01:00")) || !last.Equal(instantOf(t, "2026-01-01 05:00")) {
		t.Errorf("first %v, last %v, count %d", first, last, count)
	}

	if len(newest) != 2 || !newest[0].Equal(instantOf(t, "2026-01-01 04:00")) || !newest[1].Equal(last) {
		t.Errorf("newest %v", newest)
	}

	if _, _, count, ticks := s.Missed(last, first, 2); count != 0 || ticks != nil {
		t.Errorf("backwards: %d", count)
	}

	if _, _, count, ticks := s.Missed(first, last, -1); count != 4 || ticks != nil {
		t.Errorf("newest −1: %d, %v", count, ticks)
	}
}

func TestUpcoming_NotesGapsAndFolds(t *testing.T) {
	both := task.DST{Fold: task.FoldBoth}
	for _, c := range []struct {
		expr, after string
		dst         task.DST
		want        string
	}{
		{"30 2 * * *", "2026-03-28 12:00", noDST, "29 03:00 +02:00 gap, 30 02:30 +02:00"},
		{"30 2 * * *", "2026-03-28 12:00", task.DST{Gap: task.GapSkip}, "30 02:30 +02:00"},
		{"0 3 * * *", "2026-03-28 12:00", noDST, "29 03:00 +02:00"},
		{"30 1-3 * * *", "2026-03-28 12:00", noDST, "29 01:30 +01:00, 29 03:00 +02:00 gap, 29 03:30 +02:00"},
		{"30 2 * * *", "2026-10-24 12:00", noDST, "25 02:30 +02:00 fold, 26 02:30 +01:00"},
		{"30 2 * * *", "2026-10-24 12:00", both, "25 02:30 +02:00 fold, 25 02:30 +01:00 fold, 26 02:30 +01:00"},
		{"0 * * * *", "2026-10-24 23:30", noDST, "25 02:00 +02:00 fold, 25 02:00 +01:00 fold, 25 03:00 +01:00"},
		{"@every 24h", "2026-10-24 12:00", noDST, "25 02:00 +02:00"},
	} {
		exprs := []string{c.expr}
		n := strings.Count(c.want, ",") + 1

		list, err := schedule.Upcoming(task.Timing{Schedule: exprs, Timezone: "Europe/Berlin", DST: c.dst}, anchor, instantOf(t, c.after), n)
		if err != nil {
			t.Fatal(err)
		}

		var got []string
		for _, o := range list {
			if !o.Time.Equal(o.Local) || o.Time.Location() != time.UTC || o.Local.Location().String() != "Europe/Berlin" {
				t.Errorf("%q: %v is not %v", c.expr, o.Time, o.Local)
			}
			got = append(got, strings.TrimSpace(o.Local.Format("02 15:04 -07:00 ")+o.Note))
		}

		if strings.Join(got, ", ") != c.want {
			t.Errorf("%q:\n got %s\nwant %s", c.expr, strings.Join(got, ", "), c.want)
		}
	}
}

func TestUpcoming_EndsWithTheSchedule(t *testing.T) {
	list, err := schedule.Upcoming(task.Timing{Schedule: []string{"@at 2026-12-24T18:00:00Z"}, Timezone: "", DST: noDST}, anchor, anchor, 5)
	if err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}

	list, err = schedule.Upcoming(task.Timing{Schedule: []string{"@manual"}, Timezone: "", DST: noDST}, anchor, anchor, 5)
	if err != nil || list == nil || len(list) != 0 {
		t.Errorf("%#v, %v; want an empty list", list, err)
	}
}
