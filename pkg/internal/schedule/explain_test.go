package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func explain(t testing.TB, timing task.Timing) string {
	t.Helper()
	e, err := schedule.Explain(timing)
	if err != nil {
		t.Fatalf("%q: %v", timing.Schedule, err)
	}

	return e.Text
}

// claims are texts of Explain with what must hold for the ticks. each checks a tick. per is how many ticks a span
// must have, so that none is missing.
var claims = []struct {
	expr, text string
	each       func(time.Time) bool
	span       time.Duration
	per        int // ticks in the span that begins on Monday 2026-06-01; 0: not counted
}{
	{"30 2 * * 1-5", "At 02:30, Monday to Friday, UTC", func(t time.Time) bool {
		return clockSeconds(t) == "02:30:00" && t.Weekday() >= time.Monday && t.Weekday() <= time.Friday
	}, week, 5},
	{"30 2 * * *", "At 02:30 every day, UTC", func(t time.Time) bool { return clockSeconds(t) == "02:30:00" }, week, 7},
	{"15 30 2 * * *", "At 02:30:15 every day, UTC", func(t time.Time) bool { return clockSeconds(t) == "02:30:15" }, week, 7},
	{"@daily", "At 00:00 every day, UTC", func(t time.Time) bool { return clockSeconds(t) == "00:00:00" }, week, 7},
	{"@hourly", "Every hour, on the hour, UTC", func(t time.Time) bool { return t.Minute() == 0 }, oneDay, 24},
	{"@weekly", "At 00:00, on Sundays, UTC", func(t time.Time) bool { return t.Weekday() == time.Sunday }, week, 1},
	{"@monthly", "At 00:00, on the 1st of the month, UTC", func(t time.Time) bool { return t.Day() == 1 }, year, 12},
	{"@yearly", "At 00:00, on 1 January, UTC", func(t time.Time) bool { return t.YearDay() == 1 }, year, 1},
	{"* * * * *", "Every minute, UTC", func(t time.Time) bool { return t.Second() == 0 }, hour, 60},
	{"* * * * * *", "Every second, UTC", nil, hour, 3600},
	{"*/15 * * * * *", "Every 15 seconds, UTC", func(t time.Time) bool { return t.Second()%15 == 0 }, hour, 240},
	{"0/15 * * * *", "Every 15 minutes, UTC", func(t time.Time) bool { return t.Minute()%15 == 0 }, hour, 4},
	{"5/10 * * * *", "Every 10 minutes from :05 on, UTC", func(t time.Time) bool { return t.Minute()%10 == 5 }, hour, 6},
	{"30/20 * * * *", "At :30 and :50 of each hour, UTC", func(t time.Time) bool { return t.Minute() == 30 || t.Minute() == 50 }, hour, 2},
	{"0 0 12 ? * MON", "At 12:00, on Mondays, UTC", func(t time.Time) bool { return t.Weekday() == time.Monday && clockSeconds(t) == "12:00:00" }, week, 1},
	{"0 0 12 15 * ?", "At 12:00, on the 15th of the month, UTC", func(t time.Time) bool { return t.Day() == 15 && clockSeconds(t) == "12:00:00" }, year, 12},
	{"0 12 * * MON/2", "At 12:00, on Mondays, Wednesdays and Fridays, UTC", func(t time.Time) bool { return t.Weekday()%2 == 1 }, week, 3},
	{"*/5 * * * *", "Every 5 minutes, UTC", func(t time.Time) bool { return t.Minute()%5 == 0 }, hour, 12},
	{"3-59/5 * * * *", "Every 5 minutes from :03 on, UTC", func(t time.Time) bool { return t.Minute()%5 == 3 }, hour, 12},
	{"*/7 * * * *", "Every 7 minutes from :00 to :56 of each hour, UTC", func(t time.Time) bool { return t.Minute()%7 == 0 }, hour, 9},
	{"10-20 * * * *", "Every minute from :10 to :20 of each hour, UTC", func(t time.Time) bool { return t.Minute() >= 10 && t.Minute() <= 20 }, hour, 11},
	{"0,20,50 * * * *", "At :00, :20 and :50 of each hour, UTC", nil, hour, 3},
	{"30 * * * *", "Every hour at :30, UTC", func(t time.Time) bool { return t.Minute() == 30 }, oneDay, 24},
	{"*/15 9-17 * * MON-FRI", "Every 15 minutes from 09:00 to 17:45, Monday to Friday, UTC", func(t time.Time) bool {
		return t.Hour() >= 9 && clockSeconds(t) <= "17:45:00" && t.Minute()%15 == 0 && t.Weekday() != time.Saturday && t.Weekday() != time.Sunday
	}, week, 5 * 36},
	{"30 9-17 * * *", "Every hour from 09:30 to 17:30 every day, UTC", func(t time.Time) bool { return t.Minute() == 30 }, oneDay, 9},
	{"0 */2 * * *", "Every 2 hours from 00:00 to 22:00 every day, UTC", func(t time.Time) bool { return t.Hour()%2 == 0 }, oneDay, 12},
	{"0 */5 * * *", "Every 5 hours from 00:00 to 20:00 every day, UTC", func(t time.Time) bool { return t.Hour()%5 == 0 }, oneDay, 5},
	{"30 1,13 * * *", "At 01:30 and 13:30 every day, UTC", nil, oneDay, 2},
	{"*/7 3,5 * * *", "Every 7 minutes from :00 to :56 of each hour, in the hours 03 and 05 every day, UTC", nil, oneDay, 18},
	{"*/10 30 2 * * *", "Every 10 seconds, in the minute of 02:30 every day, UTC", nil, oneDay, 6},
	{"0 0 1,15 * *", "At 00:00, on the 1st and the 15th of the month, UTC", func(t time.Time) bool { return t.Day() == 1 || t.Day() == 15 }, year, 24},
	{"0 0 13 * 5", "At 00:00, on the 13th of the month, and also on Fridays, UTC", func(t time.Time) bool { return t.Day() == 13 || t.Weekday() == time.Friday }, 0, 0},
	{"0 0 */2 * 5", "At 00:00, on Fridays, but only on every 2nd day from the 1st to the 31st of the month, UTC", func(t time.Time) bool {
		return t.Weekday() == time.Friday && t.Day()%2 == 1
	}, 0, 0},
	{"0 0 1-31 * 5", "At 00:00 every day, UTC", nil, week, 7},
	{"0 0 L * *", "At 00:00, on the last day of the month, UTC", func(t time.Time) bool { return t.AddDate(0, 0, 1).Day() == 1 }, year, 12},
	{"0 9 LW */3 *", "At 09:00, on the last working day of the month, in January, April, July and October, UTC", func(t time.Time) bool {
		return (t.Month()-1)%3 == 0 && t.AddDate(0, 0, 3).Month() != t.Month() && t.Weekday() != time.Saturday && t.Weekday() != time.Sunday
	}, year, 4},
	{"0 0 15W * *", "At 00:00, on the working day nearest to the 15th of the month, UTC", func(t time.Time) bool { return t.Day() >= 14 && t.Day() <= 16 }, year, 12},
	{"0 0 * * 1#1", "At 00:00, on the first Monday of the month, UTC", func(t time.Time) bool { return t.Day() <= 7 && t.Weekday() == time.Monday }, year, 12},
	{"0 0 L * 5L", "At 00:00, on the last day of the month, and also on the last Friday of the month, UTC", nil, 0, 0},
	{"0 0 24 12 *", "At 00:00, on 24 December, UTC", func(t time.Time) bool { return t.Day() == 24 && t.Month() == time.December }, year, 1},
	{"0 8 * JUN-AUG MON", "At 08:00, on Mondays, in June to August, UTC", func(t time.Time) bool { return t.Weekday() == time.Monday && t.Month() >= 6 && t.Month() <= 8 }, 0, 0},
	{"0 5 * * 1,3,0", "At 05:00, on Mondays, Wednesdays and Sundays, UTC", nil, week, 3},
	{"@at 2026-12-24T18:00:00Z", "Once, on 24 December 2026 at 18:00, UTC", nil, year, 1},
	{"@every 90s", "Every 1 minute 30 seconds, counted from the task's creation", nil, hour, 40},
}

const (
	hour   = time.Hour
	oneDay = 24 * time.Hour
	week   = 7 * oneDay
	year   = 365 * oneDay
)

func clockSeconds(t time.Time) string { return t.UTC().Format("15:04:05") }

// Verifies: G46
func TestExplain_ClaimsHold(t *testing.T) {
	monday := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

	for _, c := range claims {
		timing := task.Timing{Schedule: []string{c.expr}}
		if got := explain(t, timing); got != c.text {
			t.Errorf("%s:\n got %s\nwant %s", c.expr, got, c.text)
		}

		s, err := schedule.Parse(timing, monday.Add(-90*time.Second))
		if err != nil {
			t.Fatal(err)
		}

		count := 0
		for at := monday.Add(-time.Second); ; count++ {
			next, ok := s.Next(at)
			if !ok || c.span > 0 && !next.Before(monday.Add(c.span)) || c.span == 0 && count == 100 {
				break
			}

			if c.each != nil && !c.each(next) {
				t.Errorf("%s: %s is not %q", c.expr, next, c.text)
				break
			}

			at = next
		}

		if c.per != 0 && count != c.per {
			t.Errorf("%s: %d ticks in %s, not %d", c.expr, count, c.span, c.per)
		}
	}
}

func TestExplain_SaysTheRestOfTheLanguage(t *testing.T) {
	at := func(s string) task.Time { v, _ := time.Parse(time.RFC3339, s); return task.At(v) }
	for _, c := range []struct {
		timing task.Timing
		want   string
	}{
		{task.Timing{Schedule: []string{"@manual"}}, "Only when it is triggered"},
		{task.Timing{Schedule: []string{"@reboot"}}, "Once for each boot of a node that matches the target of the task"},
		{task.Timing{Schedule: []string{"@in 10m"}}, "Once, 10 minutes after the task is written"},
		{task.Timing{Schedule: []string{"@every 1h after completion"}}, "1 hour after each run has ended; the first, 1 hour after the task's creation"},
		{task.Timing{Schedule: []string{"H * * * *"}}, "Every hour, at a minute derived from the task's name, UTC"},
		{task.Timing{Schedule: []string{"H H(2-5) * * *"}}, "At a time from 02:00 to 05:59 derived from the task's name every day, UTC"},
		{task.Timing{Schedule: []string{"H/15 * * * *"}}, "At every 15th minute, starting at one derived from the task's name, every hour, UTC"},
		{task.Timing{Schedule: []string{"H H * * H"}}, "At a time of day derived from the task's name, on a day of the week derived from the task's name, UTC"},
		{task.Timing{Schedule: []string{"H 2 * * *"}, Timezone: "Europe/Berlin"}, "At a minute derived from the task's name, in the hour of 02 every day, Berlin time; " +
			"times that a clock change skips run right after the gap; repeated times run once, the first time"},
		{task.Timing{Schedule: []string{"30 2 * * *"}, Timezone: "Europe/Berlin", DST: task.DST{Gap: task.GapSkip, Fold: task.FoldBoth}},
			"At 02:30 every day, Berlin time; times that a clock change skips do not run; repeated times run twice"},
		{task.Timing{Schedule: []string{"30 2 * * 1-5"}, Timezone: "Europe/Berlin"}, "At 02:30, Monday to Friday, Berlin time"}, // clocks change on Sundays
		{task.Timing{Schedule: []string{"30 * * * *"}, Timezone: "Europe/Berlin"}, "Every hour at :30, Berlin time"},
		{task.Timing{Schedule: []string{"0 9 * * *"}, Timezone: "America/New_York"}, "At 09:00 every day, New York time"},
		{task.Timing{Schedule: []string{"@at 2026-12-24T18:00:00Z"}, Timezone: "Europe/Berlin"}, "Once, on 24 December 2026 at 19:00, Berlin time"},
		{task.Timing{Schedule: []string{"0 12 * * *", "30 2 * * *", "0 12 * * *"}}, "At 02:30 every day; and at 12:00 every day, UTC"},
		{task.Timing{Schedule: []string{"@daily"}, Start: at("2027-01-01T00:00:00Z"), End: at("2027-02-01T12:00:05Z"), Jitter: task.Duration(30 * time.Second)},
			"At 00:00 every day, UTC; from 1 January 2027 at 00:00, UTC, to 1 February 2027 at 12:00:05, UTC; each delayed by up to 30 seconds"},
		{task.Timing{Schedule: []string{"@daily"}, End: at("2027-02-01T12:00:00Z")}, "At 00:00 every day, UTC; until 1 February 2027 at 12:00, UTC"},
	} {
		if got := explain(t, c.timing); got != c.want {
			t.Errorf("%v:\n got %s\nwant %s", c.timing.Schedule, got, c.want)
		}
	}

	if _, err := schedule.Explain(task.Timing{Schedule: []string{"*/75 * * * *"}}); err == nil {
		t.Error("what is no schedule is explained")
	}
}

var item = regexp.MustCompile(`^(\d+)(?:-(\d+)(?:/(\d+))?)?$`)

// spelled writes the items of a field individually and in another order, if they are plain and the first does not
// start with *, which means more than its values.
func spelled(field string) string {
	if field[0] == '*' {
		return field
	}

	var values []string
	for _, text := range strings.Split(field, ",") {
		m := item.FindStringSubmatch(text)
		if m == nil {
			return field
		}

		from, _ := strconv.Atoi(m[1])
		to, by := from, 1
		if m[2] != "" {
			to, _ = strconv.Atoi(m[2])
		}

		if m[3] != "" {
			by, _ = strconv.Atoi(m[3])
		}

		for n := from; n <= to; n += by {
			values = append(values, strconv.Itoa(n))
		}
	}

	rand.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })

	return strings.Join(values, ",")
}

// The text does not depend on how a schedule is written, or on the order of its expressions.
func TestExplain_SameScheduleSameText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone, dst := zoneGen.Draw(t, "zone"), dstGen.Draw(t, "dst")
		exprs := rapid.SliceOfN(rapid.OneOf(cronGen(false), cronGen(true)), 1, 3).Draw(t, "exprs")
		var other []string
		for _, e := range exprs {
			words := strings.Fields(e)
			for i := range words {
				words[i] = spelled(words[i])
			}

			if len(words) == 5 {
				words = append([]string{"0"}, words...)
			}

			text := strings.Join(words, "  ")
			if len(text) > 256 {
				text = e
			}

			other = append(other, text)
		}

		slices.Reverse(other)
		one, err := schedule.Explain(task.Timing{Schedule: exprs, Timezone: zone, DST: dst})
		if err != nil {
			t.Fatal(err)
		}

		two, err := schedule.Explain(task.Timing{Schedule: append(other, other[0]), Timezone: zone, DST: dst})
		if err != nil {
			t.Fatal(err)
		}

		if one.Text != two.Text {
			t.Errorf("%q:\n%s\n%q:\n%s", exprs, one.Text, other, two.Text)
		}
	})
}

var (
	timesOfDay = regexp.MustCompile(`^At (\d\d:\d\d(?::\d\d)?(?:(?:, | and )\d\d:\d\d(?::\d\d)?)*)[, ]`)
	fromTo     = regexp.MustCompile(`^Every .* from (\d\d:\d\d(?::\d\d)?) to (\d\d:\d\d(?::\d\d)?)[, ]`)
)

// If the text lists times of day, the ticks have exactly these times.
//
// Verifies: G46
func TestExplain_TimesAreThoseOfTheTicks(t *testing.T) {
	full := func(s string) string { return s + ":00"[:3*(2-strings.Count(s, ":"))] }
	rapid.Check(t, func(t *rapid.T) {
		expr := rapid.OneOf(cronGen(false), cronGen(true)).Draw(t, "expr")
		timing := task.Timing{Schedule: []string{expr}}

		e, err := schedule.Explain(timing)
		if err != nil {
			t.Fatal(err)
		}

		s, err := schedule.Parse(timing, anchor)
		if err != nil {
			t.Fatal(err)
		}

		first, ok := s.Next(anchor)
		if !ok {
			return
		}

		midnight := first.Truncate(oneDay)
		var seen []string
		for at := midnight.Add(-time.Millisecond); len(seen) < 2000; {
			if at, ok = s.Next(at); !ok || !at.Before(midnight.Add(oneDay)) {
				break
			}
			seen = append(seen, clockSeconds(at))
		}

		if m := timesOfDay.FindStringSubmatch(e.Text); m != nil {
			told := regexp.MustCompile(`, | and `).Split(m[1], -1)
			for i := range told {
				told[i] = full(told[i])
			}

			if fmt.Sprint(told) != fmt.Sprint(seen) {
				t.Errorf("%s: %s; ticks at %v", expr, e.Text, seen)
			}
		}

		if m := fromTo.FindStringSubmatch(e.Text); m != nil && len(seen) < 2000 && (full(m[1])[:5] != seen[0][:5] || full(m[2])[:5] != seen[len(seen)-1][:5]) {
			t.Errorf("%s: %s; ticks from %s to %s", expr, e.Text, seen[0], seen[len(seen)-1])
		}
	})
}

// FuzzExplain checks that every valid schedule can be explained.
func FuzzExplain(f *testing.F) {
	for _, expr := range []string{"30 2 * * 1-5", "H/15 * * * *", "H(0-9)/3,H,H/2 H/23 H/31 H/12 H/7", "@every 90s", "0 0 LW,15W * 5L,1#2", "H H H H H H", "@in 10m", "*/7 3-5 H L-3 * *"} {
		f.Add(expr, "Europe/Berlin")
	}

	f.Fuzz(func(t *testing.T, expr, zone string) {
		timing := task.Timing{Schedule: []string{expr}, Timezone: zone}
		e, err := schedule.Explain(timing)
		switch {
		case (err == nil) != (schedule.Check(timing) == nil):
			t.Fatalf("%q: %v", expr, err)
		case err == nil && (e.Text == "" || len(e.Each) != 1 || len(e.Text) > 2000 || strings.Contains(e.Text, "%!")):
			t.Fatalf("%q: %q", expr, e.Text)
		}
	})
}
