package schedule_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// The oracle knows what a schedule means and nothing of how Next works: it looks
// at every second of a window, one after the other, asks package time what the
// local clock shows, and matches that against the text.

// An oracleRule is a six-field expression, spelt out.
type oracleRule struct {
	has                [6]map[int]bool
	bothDays, realTime bool
}

func newOracleRule(expr string) oracleRule {
	words := strings.Fields(expr)
	if len(words) == 5 {
		words = append([]string{"0"}, words...)
	}
	r := oracleRule{
		bothDays: strings.HasPrefix(words[3], "*") || strings.HasPrefix(words[5], "*"),
		realTime: strings.HasPrefix(words[2], "*"),
	}
	for i, word := range words {
		r.has[i] = map[int]bool{}
		for _, item := range strings.Split(word, ",") {
			values, stepText, _ := strings.Cut(item, "/")
			step := 1
			if stepText != "" {
				step, _ = strconv.Atoi(stepText)
			}
			low, high := []int{0, 0, 0, 1, 1, 0}[i], []int{59, 59, 23, 31, 12, 7}[i]
			if values != "*" {
				from, to, ranged := strings.Cut(values, "-")
				low = oracleValue(from)
				high = low
				if ranged {
					high = oracleValue(to)
				}
			}
			for n := low; n <= high; n += step {
				r.has[i][n] = true
			}
		}
	}
	if r.has[5][7] {
		r.has[5][0] = true
	}
	return r
}

// match reports whether a local clock matches.
func (r oracleRule) match(local time.Time) bool {
	if h, m, s := local.Clock(); !r.has[0][s] || !r.has[1][m] || !r.has[2][h] {
		return false
	}
	_, month, n := local.Date()
	dom, dow := r.has[3][n], r.has[5][int(local.Weekday())]
	return r.has[4][int(month)] && (dom && dow || !r.bothDays && (dom || dow))
}

func oracleValue(text string) int {
	for i, name := range strings.Fields("sun mon tue wed thu fri sat jan feb mar apr may jun jul aug sep oct nov dec") {
		if strings.EqualFold(name, text) && i < 7 {
			return i
		} else if strings.EqualFold(name, text) {
			return i - 6
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// A window is what the local clock shows from one instant to another, and for
// four hours before, so that the readings before a fold are known (the longest is
// of three hours).
type window struct {
	after, upTo time.Time
	step        time.Duration // a minute, or a second where seconds matter
	instants    []time.Time
	readings    []time.Time // of the clock at each instant, as if it were UTC
	again       []bool      // the same was shown before
}

func newWindow(location *time.Location, after, upTo time.Time, step time.Duration) *window {
	w := &window{after: after, upTo: upTo, step: step}
	seen := map[time.Time]bool{}
	for instant := after.Add(-4 * time.Hour).Truncate(step); !instant.After(upTo); instant = instant.Add(step) {
		l := instant.In(location)
		reading := time.Date(l.Year(), l.Month(), l.Day(), l.Hour(), l.Minute(), l.Second(), 0, time.UTC)
		w.instants = append(w.instants, instant)
		w.readings = append(w.readings, reading)
		w.again = append(w.again, seen[reading])
		seen[reading] = true
	}
	return w
}

// ticks lists the ticks of cron expressions in the window.
func (w *window) ticks(exprs []string, dst task.DST) []time.Time {
	var rules []oracleRule
	for _, expr := range exprs {
		rules = append(rules, newOracleRule(expr))
	}
	var list []time.Time
	for i := 1; i < len(w.instants); i++ {
		if !w.instants[i].After(w.after) {
			continue
		}
		if slices.ContainsFunc(rules, func(r oracleRule) bool { return w.tick(i, r, dst) }) {
			list = append(list, w.instants[i].UTC())
		}
	}
	return list
}

func (w *window) tick(i int, r oracleRule, dst task.DST) bool {
	if r.match(w.readings[i]) && (r.realTime || dst.Fold == task.FoldBoth || !w.again[i]) {
		return true
	}
	if r.realTime || dst.Gap == task.GapSkip {
		return false
	}
	for lost := w.readings[i-1].Add(w.step); lost.Before(w.readings[i]); lost = lost.Add(w.step) {
		if r.match(lost) {
			return true
		}
	}
	return false
}

// A fataler is a *testing.T or a *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// walk lists the ticks in (after, upTo] by Next.
func walk(t fataler, s *schedule.Schedule, after, upTo time.Time) []time.Time {
	t.Helper()
	var list []time.Time
	for now := after; ; {
		next, ok := s.Next(now)
		if !ok || next.After(upTo) {
			return list
		}
		if !next.After(now) {
			t.Fatalf("Next(%v) = %v, not later", now, next)
		}
		list = append(list, next)
		now = next
	}
}

// The changes of the clock at which Next is held against the oracle.
var changes = []struct {
	zone, at, what string
	still          bool // nothing changes
}{
	{"Europe/Berlin", "2026-03-29T01:00:00Z", "02:00 to 03:00", false},
	{"Europe/Berlin", "2026-10-25T01:00:00Z", "03:00 to 02:00", false},
	{"America/New_York", "2026-03-08T07:00:00Z", "02:00 to 03:00", false},
	{"America/New_York", "2026-11-01T06:00:00Z", "02:00 to 01:00", false},
	{"Australia/Lord_Howe", "2026-10-03T15:30:00Z", "half an hour forward", false},
	{"Australia/Lord_Howe", "2026-04-04T15:00:00Z", "half an hour back", false},
	{"Europe/Dublin", "2026-03-29T01:00:00Z", "negative DST ends", false},
	{"Europe/Dublin", "2026-10-25T01:00:00Z", "negative DST begins", false},
	{"America/Sao_Paulo", "2018-11-04T03:00:00Z", "a day without midnight", false},
	{"America/Sao_Paulo", "2018-02-18T02:00:00Z", "midnight to 23:00 of the day before", false},
	{"Asia/Beirut", "2026-03-28T22:00:00Z", "a day without midnight", false},
	{"Asia/Beirut", "2026-10-24T21:00:00Z", "midnight to 23:00 of the day before", false},
	{"Antarctica/Troll", "2026-03-29T01:00:00Z", "two hours forward", false},
	{"Antarctica/Troll", "2026-10-25T01:00:00Z", "two hours back", false},
	{"Antarctica/Casey", "2010-03-04T15:00:00Z", "three hours back", false},
	{"Pacific/Apia", "2011-12-30T10:00:00Z", "a day that does not exist", false},
	{"Asia/Pyongyang", "2018-05-04T15:00:00Z", "half an hour forward, for good", false},
	{"America/Caracas", "2007-12-09T07:00:00Z", "half an hour back, for good", false},
	{"Africa/Casablanca", "2026-02-15T02:00:00Z", "back for Ramadan", false},
	{"Asia/Gaza", "2040-10-26T23:00:00Z", "two changes in a week", false},
	{"Pacific/Chatham", "2026-09-26T14:00:00Z", "02:45 to 03:45", false},
	{"Europe/Berlin", "2096-03-25T01:00:00Z", "seventy years ahead", false},
	{"Europe/Berlin", "2096-12-31T12:00:00Z", "the last day of a leap year", true},
	{"UTC", "2028-02-29T12:00:00Z", "nothing", true},
}

var policies = []task.DST{
	{},
	{Gap: task.GapSkip},
	{Fold: task.FoldBoth},
	{Gap: task.GapSkip, Fold: task.FoldBoth},
}

func TestNext_AgreesWithOracleWhereClocksChange(t *testing.T) {
	lists := [][]string{
		{"30 2 * * *"}, {"0 2 * * *"}, {"0 3 * * *"}, {"0 0 * * *"}, {"30 0 * * *"}, {"15 1 * * *"}, {"45 23 * * *"},
		{"* * * * *"}, {"*/20 * * * *"}, {"*/15 0-4 * * *"}, {"0 */2 * * *"}, {"0 0-23 * * *"}, {"5,35 1,2,3 * * *"},
		{"30 2 * * sun"}, {"0 0 */2 * 0,6"}, {"10 2 29,30 * 7"}, {"59 1 * mar-NOV *"}, {"0 12 1-7 * mon"},
		{"30 2 * * *", "0 3 * * *"}, {"*/30 * * * *", "45 2 * * *", "0 3 * * 0"}, {"15 */1 * * *", "15 2 * * *"},
	}
	for _, c := range changes {
		location, err := schedule.Location(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if _, end := at.Add(-time.Minute).In(location).ZoneBounds(); !end.Equal(at) && !c.still {
			t.Errorf("%s: no change at %s", c.zone, c.at)
		}
		from, upTo := at.Add(-26*time.Hour), at.Add(26*time.Hour)
		w := newWindow(location, from, upTo, time.Minute)
		for i, exprs := range lists {
			dst := policies[i%len(policies)]
			for _, dst := range []task.DST{dst, policies[(i/len(policies)+i+1)%len(policies)]} {
				same(t, c.zone+": "+c.what, exprs, c.zone, dst, from, upTo, w.ticks(exprs, dst))
			}
		}
	}
}

func TestNext_AgreesWithOracleToTheSecond(t *testing.T) {
	for _, c := range []struct{ zone, at, expr string }{
		{"Europe/Berlin", "2026-03-29T01:00:00Z", "*/7 30-59/9 1-3 * * *"},
		{"Europe/Berlin", "2026-10-25T01:00:00Z", "1,59 */30 2 * * *"},
		{"Europe/Berlin", "2026-10-25T01:00:00Z", "58-59 59 */1 * * *"},
		{"Australia/Lord_Howe", "2026-04-04T15:00:00Z", "30 29-31 1,2 * * *"},
	} {
		location, _ := schedule.Location(c.zone)
		at, _ := time.Parse(time.RFC3339, c.at)
		from, upTo := at.Add(-2*time.Hour), at.Add(2*time.Hour)
		dst := task.DST{Fold: task.FoldBoth}
		same(t, c.zone, []string{c.expr}, c.zone, dst, from, upTo, newWindow(location, from, upTo, time.Second).ticks([]string{c.expr}, dst))
	}
}

// same compares Next, Missed and Upcoming with a list.
func same(t *testing.T, name string, exprs []string, zone string, dst task.DST, from, upTo time.Time, want []time.Time) {
	t.Helper()
	s, err := schedule.Parse(task.Timing{Schedule: exprs, Timezone: zone, DST: dst}, anchor)
	if err != nil {
		t.Fatal(err)
	}
	got := walk(t, s, from, upTo)
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("%s, %q %+v, from %v\n got %v\nwant %v", name, exprs, dst, from, got, want)
		return
	}
	sameMissed(t, s, from, upTo, want)
}

// sameMissed compares Missed with a list, as a whole and for parts of the time.
func sameMissed(t fataler, s *schedule.Schedule, from, upTo time.Time, want []time.Time) {
	t.Helper()
	cuts := []time.Time{from, upTo}
	if n := len(want); n > 0 {
		cuts = append(cuts, want[0], want[n/2], want[n-1], want[n/3].Add(-time.Millisecond), want[2*n/3].Add(time.Millisecond))
	}
	for _, a := range cuts {
		for _, b := range cuts {
			var part []time.Time
			for _, tick := range want {
				if tick.After(a) && !tick.After(b) {
					part = append(part, tick)
				}
			}
			first, last, count, newest := s.Missed(a, b, 3)
			if count != int64(len(part)) {
				t.Fatalf("Missed(%v, %v) counts %d, want %d: %v", a, b, count, len(part), part)
			}
			if count == 0 {
				if !first.IsZero() || !last.IsZero() || len(newest) != 0 {
					t.Fatalf("Missed(%v, %v) has times without ticks", a, b)
				}
				continue
			}
			if !first.Equal(part[0]) || !last.Equal(part[len(part)-1]) || !slices.EqualFunc(newest, part[max(0, len(part)-3):], time.Time.Equal) {
				t.Fatalf("Missed(%v, %v) = %v, %v, %v; want %v", a, b, first, last, newest, part)
			}
		}
	}
}
