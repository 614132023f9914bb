package schedule

import (
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Change is an instant at which a zone's clock is put forward or back. If it is put forward (From is less than To), the
// local times from From to To do not exist. Otherwise the local times from To to From exist twice.
type Change struct {
	At       time.Time // the first instant of the new offset, in UTC
	From, To string    // what the clock would have shown at that instant, and what it shows, as 2006-01-02 15:04:05
}

// Moment is a local time of a zone, and the instants at which a clock shows it.
type Moment struct {
	Local    string      // as 2006-01-02 15:04:05, with milliseconds if it has any
	Instants []time.Time // in UTC, ascending: one, or none in a gap, or two in a fold
	Change   *Change     // the gap or the fold that it lies in, or nil

	seconds int64 // of the local clock, as if it showed UTC
	whole   bool  // it has no milliseconds
}

const clockLayout = "2006-01-02 15:04:05"

var localLayouts = []string{"2006-01-02", "2006-01-02 15:04", clockLayout, "2006-01-02 15:04:05.000"}

// ReadLocal parses a local time of a zone: a date with or without a time of day (2026-03-29 02:30, with a space or
// a T), or an RFC 3339 time with an offset, which is one instant even in a fold. The time must be in the years 2000
// to 2100.
//
// The error is a *task.Error of the field "at" or "timezone".
func ReadLocal(text, timezone string) (Moment, error) {
	z, err := findZone(timezone)
	if err != nil {
		return Moment{}, err
	}

	// With an offset, the instant is given. Its local time determines whether it lies in a gap or a fold.
	var local time.Time
	instants, isInstant := []time.Time(nil), rfc3339.MatchString(text)
	if isInstant {
		var at time.Time
		if at, err = time.Parse(time.RFC3339, text); err == nil {
			at = at.UTC().Truncate(time.Millisecond)
			instants = []time.Time{at}
			_, offset := at.In(z.location).Zone()
			local = at.Add(time.Duration(offset) * time.Second)
		}
	} else {
		local, err = parseLocal(text)
	}

	if err != nil {
		return Moment{}, task.Invalid(task.CodeBadTime, "at", "%s is not a time, such as 2026-03-29 02:30 or 2026-03-29T00:30:00Z", task.Quote(text))
	}
	if s := local.Unix(); s < firstWritten || s >= endSecond {
		return Moment{}, task.Invalid(task.CodeBadTime, "at", "%s is not in the years 2000 to 2100", task.Quote(text))
	}

	m := z.localTime(local)
	if isInstant {
		m.Instants = instants
	}

	return m, nil
}

// parseLocal parses a date with or without a time of day, as if it were in UTC.
func parseLocal(text string) (time.Time, error) {
	text = strings.Replace(text, "T", " ", 1)

	for _, layout := range localLayouts {
		if at, err := time.Parse(layout, text); err == nil && len(text) == len(layout) {
			return at, nil
		}
	}

	return time.Time{}, task.Invalid(task.CodeBadTime, "at", "is not a time")
}

// localTime returns the instants at which the zone's clock shows a local time, which is given as if it were in UTC.
func (z *zone) localTime(local time.Time) Moment {
	m := Moment{Local: local.Format(clockLayout), seconds: local.Unix(), whole: local.Nanosecond() == 0}
	if !m.whole {
		m.Local = local.Format(localLayouts[3])
	}

	const apart = 2 * daySeconds // no clock differs from UTC by more than this
	for i := z.periodAt(m.seconds - apart); i < len(z.periods) && z.periods[i].start < m.seconds+apart; i++ {
		st := &z.periods[i]
		if at := m.seconds - st.offset; st.start <= at && at < st.end {
			m.Instants = append(m.Instants, local.Add(time.Duration(-st.offset)*time.Second))
		}

		if from, to := st.start+st.before, st.start+st.offset; min(from, to) <= m.seconds && m.seconds < max(from, to) {
			m.Change = st.clockChange()
		}
	}

	return m
}

// clockChange returns the change of the clock at the start of a period.
func (s *offsetPeriod) clockChange() *Change {
	show := func(local int64) string { return time.Unix(local, 0).UTC().Format(clockLayout) }
	return &Change{At: time.Unix(s.start, 0).UTC(), From: show(s.start + s.before), To: show(s.start + s.offset)}
}

// Reading describes an instant in relation to a schedule.
type Reading struct {
	Tick     bool      // the instant is a tick
	Previous time.Time // the last tick before it, in UTC; zero if there is none
	Next     time.Time // the first tick after it; zero if there is none
	Note     string    // of a tick: NoteGap, NoteFold or ""
	Change   *Change   // the gap that ends at the instant, or the fold in which it lies; nil if neither
}

// At describes an instant, truncated to milliseconds, in relation to the schedule. It concerns the times of ticks.
// Due returns when a tick is due.
func (s *Schedule) At(at time.Time) Reading {
	ms := clampToMS(at)
	last := s.previousTo(ms)
	r := Reading{Tick: last != noInstant && last == ms}
	if r.Tick {
		last = s.previousTo(ms - 1)
	}

	if last != noInstant {
		r.Previous = instantOf(last)
	}

	if next := s.nextAfter(ms); next != noInstant {
		r.Next = instantOf(next)
	}

	if r.Tick {
		r.Note = s.tickNote(instantOf(ms))
	}

	if second := ms / 1000; second >= firstSecond && second < endSecond {
		r.Change = s.plan.zone.changeOf(second, ms%1000 == 0)
	}

	return r
}

// changeOf returns the gap that ends at an instant, or the fold in which it lies, or nil.
func (z *zone) changeOf(at int64, whole bool) *Change {
	i := z.periodAt(at)
	st := &z.periods[i]
	if st.startsWithGap() && st.start == at && whole || z.isRepeated(i, at) {
		return st.clockChange()
	}
	if z.occursTwice(i, at) {
		return z.periods[i+1].clockChange()
	}

	return nil
}

// isRepeated reports whether the local time of an instant, in period i, has existed before.
func (z *zone) isRepeated(i int, at int64) bool {
	st := &z.periods[i]
	return st.startsWithFold() && at+st.offset < st.start+st.before
}

// occursTwice reports whether the local time of an instant, in period i, will exist again.
func (z *zone) occursTwice(i int, at int64) bool {
	if i+1 == len(z.periods) {
		return false
	}
	after := &z.periods[i+1]
	return after.startsWithFold() && at+z.periods[i].offset >= after.start+after.offset
}
