package schedule

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// The notes of an Occurrence.
const (
	NoteGap  = "gap"  // it stands for ticks whose local time does not exist
	NoteFold = "fold" // its local time exists twice
)

// Occurrence is a tick with the times that a user wants to see.
type Occurrence struct {
	Time  time.Time // in UTC
	Local time.Time // the same instant in the schedule's zone
	Due   time.Time // when it is due for its task's uid; zero if that is not known
	// Before is the first instant by which it is certainly due, whatever the uid; equal to Time without jitter.
	Before time.Time
	Note   string // NoteGap, NoteFold or ""; always "" for @every and @at, which have no local time
}

// MaxUpcoming is how many occurrences the function Upcoming returns at most.
const MaxUpcoming = 10_000

// Upcoming returns the next ticks later than from, up to count of them (1 to MaxUpcoming), or fewer if no more
// exist. The other arguments and the errors are those of Parse. A wrong count is an error of the field "count".
func Upcoming(t task.Timing, anchor, from time.Time, count int) ([]Occurrence, error) {
	if count < 1 || count > MaxUpcoming {
		return nil, task.Invalid(task.CodeOutOfRange, "count", "%d is not between 1 and %d", count, MaxUpcoming)
	}

	s, err := Parse(t, anchor)
	if err != nil {
		return nil, err
	}

	return s.Upcoming(from, count, ""), nil
}

// Upcoming returns the next ticks later than from, up to count of them. uid is the uid of the task, or "" if there
// is not a task. Then Due is zero.
func (s *Schedule) Upcoming(from time.Time, count int, uid string) []Occurrence {
	list := []Occurrence{}
	for len(list) < count {
		tick, ok := s.Next(from)
		if !ok {
			break
		}

		o := Occurrence{Time: tick, Local: tick.In(s.Location()), Before: s.DueBefore(tick), Note: s.tickNote(tick)}
		if uid != "" {
			o.Due = s.Due(tick, uid)
		}

		list = append(list, o)
		from = tick
	}

	return list
}

// tickNote returns the note of a tick.
func (s *Schedule) tickNote(tick time.Time) string {
	p, instant := s.plan, tick.Unix()
	i := p.zone.periodAt(instant)
	st := &p.zone.periods[i]

	if tick.Nanosecond() != 0 {
		return ""
	}
	if instant == st.start && slices.ContainsFunc(p.rules, func(r rule) bool { return r.runsAfterGap(st, p.policy) }) {
		return NoteGap
	}
	if (p.zone.isRepeated(i, instant) || p.zone.occursTwice(i, instant)) && slices.ContainsFunc(p.rules, func(r rule) bool { return r.nextTick(p.zone, p.policy, instant) == instant }) {
		return NoteFold
	}

	return ""
}

const minuteMS = 60_000

// Text returns the expressions as they were written, separated by commas. A schedule of only @at, which a task
// rarely shares with another, has the text "@at".
func (s *Schedule) Text() string {
	if s.OnlyAt() {
		return "@at"
	}
	return s.plan.text
}

// OnlyAt reports whether the schedule has only @at.
func (s *Schedule) OnlyAt() bool { return s.plan.text == "" }

// Jitter returns within which time after a tick it is due, at most.
func (s *Schedule) Jitter() time.Duration { return time.Duration(s.plan.jitter) * time.Millisecond }

// textOf returns the text of a plan. Plans of only @at have none, because they are not shared.
func textOf(exprs []string) string {
	for _, text := range exprs {
		if !strings.HasPrefix(strings.TrimSpace(text), "@at") {
			return strings.Join(exprs, ", ")
		}
	}

	return ""
}

// hasOnePeriod reports whether all ticks are those of one @every.
func (p *plan) hasOnePeriod() bool { return len(p.every) == 1 && len(p.rules) == 0 && len(p.at) == 0 }

// SamePerMinute returns a tick for one that is the next one of a task, so that PerMinute returns the same for both, up
// to until. It lets tasks be counted together: of those with the same @every, there are at most as many different ones
// as minutes in a period if that is a number of minutes. All times are Unix milliseconds, and until is a whole minute.
func (s *Schedule) SamePerMinute(next, until int64) int64 {
	switch p := s.plan; {
	case len(p.every) == 0 || p.last < until:
		return next
	case p.hasOnePeriod():
		// All ticks are a number of grains after next, and minutes begin at whole grains.
		return next - next%greatestDivisor(p.every[0], minuteMS)
	}

	return next - next%minuteMS
}

// PerMinute calls visit with the ticks from next on that are before until, at most one call for each minute. In such a
// call, ticks is the number of ticks in the minute of at, the first of them. With a width, they are due evenly within
// that much time from at on: with jitter, and if the times are not known. All times are Unix milliseconds.
//
// next must be a tick. Everything else follows from it, and nothing from the anchor, which is not known where tasks are
// counted. A single @every has its ticks in steps of its period from next. If an @every is combined with anything else,
// its ticks cannot be derived; they are taken to be spread evenly, and exact is false.
//
// With jitter, several ticks in one minute are due within that minute. A schedule that counts from the end of a run has
// one tick.
func (s *Schedule) PerMinute(next, until int64, visit func(at int64, ticks int64, width int64)) (exact bool) {
	p := s.plan
	if next >= until {
		return true
	}

	if p.after != 0 {
		visit(next, 1, 0)
		return true
	}

	if len(p.every) == 0 || p.hasOnePeriod() {
		known := Schedule{plan: p}
		if len(p.every) > 0 {
			known.anchor = next - p.every[0]
		}

		known.visitMinutes(next, until, visit)

		return true
	}

	fixed := *p
	fixed.every = nil
	known := Schedule{plan: &fixed}
	known.visitMinutes(next, until, visit)

	if end := min(until, p.last+1); end > next {
		// Without an anchor, the number of ticks in this time is known, except for one tick of each period.
		visit(next, countMultiples(end-next, p.every), end-next)
	}

	return false
}

// Within calls visit with the ticks of a task that may fall due in [from, until), one by one; next is its next tick. A tick
// with a width is due evenly within that much time from at on. Only a part of that time may lie in [from, until).
//
// As with PerMinute, the ticks of an @every that is combined with anything else are not known: then visit is called once
// with all of them, and exact is false. Such a call begins at next and is longer than a day.
func (s *Schedule) Within(next, from, until int64, visit func(at, ticks, width int64)) (exact bool) {
	p := s.plan
	if next >= until {
		return true
	}

	if p.after != 0 {
		if next >= from {
			visit(next, 1, 0)
		}
		return true
	}

	if len(p.every) == 0 || p.hasOnePeriod() {
		known := Schedule{plan: p}
		if len(p.every) > 0 {
			known.anchor = next - p.every[0]
		}
		known.visitTicks(next, from, until, visit)

		return true
	}

	fixed := *p
	fixed.every = nil
	known := Schedule{plan: &fixed}
	known.visitTicks(next, from, until, visit)

	// next is a tick, so it is not after the last one.
	const day = 24 * 60 * minuteMS
	if end := min(until+day, p.last+1); end > from {
		visit(next, countMultiples(end-next, p.every), end-next)
	}

	return false
}

// visitTicks is Within for a schedule whose ticks are known.
func (s *Schedule) visitTicks(next, from, until int64, visit func(at, ticks, width int64)) {
	first := max(next, from)
	if s.plan.jitter > 0 && next < from {
		// The last tick before from may fall due after it.
		if last := s.previousTo(from - 1); last != noInstant {
			first = max(next, last)
		}
	}

	for tick := s.nextAfter(first - 1); tick != noInstant && tick < until; {
		after := s.nextAfter(tick)

		width := s.plan.jitter
		if after != noInstant {
			width = min(width, after-tick)
		}
		if tick >= from || tick+width > from {
			visit(tick, 1, width)
		}

		tick = after
	}
}

// MayFallDue reports whether a task has a tick that may fall due in [from, until); next is its next tick. known is false if
// that depends on the ticks of an @every that are not known.
func (s *Schedule) MayFallDue(next, from, until int64) (due, known bool) {
	switch {
	case next >= until:
		return false, true
	case next >= from:
		return true, true
	case len(s.plan.every) > 0 && s.plan.every[0] <= until-from && until <= s.plan.last:
		return true, true // a period is not longer than the time
	}

	ticks := 0
	exact := s.Within(next, from, until, func(_, _, _ int64) { ticks++ })
	if !exact && from <= s.plan.last {
		ticks-- // the last call was for the ticks that are not known
	}

	return ticks > 0, ticks > 0 || exact
}

// IsCounted reports whether ticks follow from the one before, as with @every, so that two tasks with equal expressions have
// different ticks.
func (s *Schedule) IsCounted() bool { return len(s.plan.every) > 0 || s.plan.after != 0 }

// visitMinutes is PerMinute for a schedule whose ticks are known.
func (s *Schedule) visitMinutes(next, until int64, visit func(at int64, ticks int64, width int64)) {
	several := s.plan.hasSeveralAMinute()

	for tick := s.nextAfter(next - 1); tick != noInstant && tick < until; {
		end := min(tick-tick%minuteMS+minuteMS, until)

		ticks := int64(1)
		if several {
			ticks = s.countTicks(tick, min(end-1, s.plan.last))
		}

		after := s.nextAfter(end - 1)

		var width int64
		switch {
		case s.plan.jitter == 0:
		case ticks > 1:
			width = end - tick
		case after == noInstant:
			width = s.plan.jitter
		default:
			width = min(s.plan.jitter, after-tick)
		}

		visit(tick, ticks, width)
		tick = after
	}
}

// hasSeveralAMinute reports whether more than one tick may be in the same minute. A cron expression without seconds has
// one at most, also where it has a tick that stands for those of a gap.
func (p *plan) hasSeveralAMinute() bool {
	const secondZero = 1

	return len(p.at) > 0 ||
		slices.ContainsFunc(p.every, func(period int64) bool { return period < minuteMS }) ||
		slices.ContainsFunc(p.rules, func(r rule) bool { return r.seconds != secondZero })
}
