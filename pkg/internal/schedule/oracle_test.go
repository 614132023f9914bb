package schedule_test

import (
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// The oracle computes the ticks of a schedule by brute force, independently of Next. It visits every minute (or
// second) of a window, uses package time for what the local clock shows, and compares that with the text.
//
// reading is what a local clock shows. It is small, because millions of them are compared.
type reading struct{ date, h, m, s uint8 } // date is an index of the window's dates

// window is what the local clock shows from one instant to another. It begins four hours earlier, so that the
// readings before a fold are known (the longest fold has three hours).
type window struct {
	after, upTo time.Time
	instants    []time.Time
	shows       []reading   // at each instant
	again       []bool      // the same was shown before
	twice       []bool      // the same will be shown again
	lost        [][]reading // what the clock skipped since the previous instant
	first       int         // the first instant later than after
	dates       []time.Time // midnights, as if in UTC
}

func newWindow(location *time.Location, after, upTo time.Time, step time.Duration) *window {
	w := &window{after: after, upTo: upTo}
	seen := map[int64]int{}
	var before time.Time // what was shown last, as if in UTC
	for instant := after.Add(-4 * time.Hour).Truncate(step); !instant.After(upTo); instant = instant.Add(step) {
		i := len(w.instants)
		l := instant.In(location)
		shown := time.Date(l.Year(), l.Month(), l.Day(), l.Hour(), l.Minute(), l.Second(), 0, time.UTC)

		first, again := seen[shown.Unix()]
		if again {
			w.twice[first] = true
		}

		seen[shown.Unix()] = i
		w.lost = append(w.lost, nil)
		if !before.IsZero() {
			for lost := before.Add(step); lost.Before(shown); lost = lost.Add(step) {
				w.lost[i] = append(w.lost[i], w.reading(lost))
			}
		}

		if !instant.After(after) {
			w.first = i + 1
		}

		w.instants, w.shows = append(w.instants, instant.UTC()), append(w.shows, w.reading(shown))
		w.again, w.twice = append(w.again, again), append(w.twice, false)
		before = shown
	}

	return w
}

func (w *window) reading(shown time.Time) reading {
	date := shown.Truncate(24 * time.Hour)
	i := slices.IndexFunc(w.dates, date.Equal)
	if i < 0 {
		i = len(w.dates)
		w.dates = append(w.dates, date)
	}

	h, m, s := shown.Clock()

	return reading{uint8(i), uint8(h), uint8(m), uint8(s)}
}

// noted is a tick with its note from Upcoming.
type noted struct {
	time.Time
	note string
}

// ticks returns the ticks of cron expressions in the window.
func (w *window) ticks(exprs []string, dst task.DST) []time.Time {
	var rules []*oracleRule
	for _, expr := range exprs {
		rules = append(rules, newOracleRule(expr))
	}

	var list []time.Time
	for _, tick := range w.noted(rules, dst) {
		list = append(list, tick.Time)
	}

	return list
}

func (w *window) noted(rules []*oracleRule, dst task.DST) []noted {
	days := make([][]bool, len(rules)) // by rule and date
	for i, r := range rules {
		for _, date := range w.dates {
			days[i] = append(days[i], r.on(date))
		}
	}

	var list []noted
	for i := w.first; i < len(w.instants); i++ {
		ticks, note := false, ""
		for n, r := range rules {
			if r.match(w.shows[i], days[n]) && (r.realTime || dst.Fold == task.FoldBoth || !w.again[i]) {
				ticks = true
				if note == "" && (w.again[i] || w.twice[i]) {
					note = schedule.NoteFold
				}
			}
		}

		if w.lost[i] != nil && dst.Gap != task.GapSkip && w.stands(rules, days, w.lost[i]) {
			ticks, note = true, schedule.NoteGap
		}

		if ticks {
			list = append(list, noted{w.instants[i], note})
		}
	}

	return list
}

// stands reports whether a rule matches one of the readings that the clock skipped.
func (w *window) stands(rules []*oracleRule, days [][]bool, lost []reading) bool {
	for _, shows := range lost {
		for n, r := range rules {
			if !r.realTime && r.match(shows, days[n]) {
				return true
			}
		}
	}

	return false
}

// match reports whether the rule matches what a clock shows. days contains on which of the window's dates it has
// ticks.
func (r *oracleRule) match(shows reading, days []bool) bool {
	return r.minutes[shows.m] && r.hours[shows.h] && r.seconds[shows.s] && days[shows.date]
}

// fataler is a *testing.T or a *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// walk returns the ticks in (after, upTo], computed by Next.
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

// same compares Next, Missed and Upcoming with a list of ticks.
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

// sameMissed compares Missed with a list of ticks, for the whole period and for parts of it.
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
