package schedule

import (
	"math/bits"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	daySeconds = 24 * 60 * 60 // seconds
	noInstant  = int64(-1)    // no such day, second or instant; valid ones are in 1970 to 2100
)

// rule is one cron expression as bit sets. It operates on local times and calendar days. nextTick and previousTick
// apply it to a zone.
type rule struct {
	seconds, minutes uint64 // bit n: second or minute n
	hours, days      uint32 // bit n: hour n, day n of the month (1–31)
	months           uint16 // bit n: month n (1–12)
	weekdays         uint8  // bit n: weekday n, Sunday is 0
	hasSpecial       bool   // special is not empty
	bothDays         bool   // day of month and day of week must both match; otherwise one is enough
	realTime         bool   // the hour field starts with *: the DST policy does not apply
	special          special
}

// daysOf returns the matching days of a month as bits 1–31.
func (r *rule) daysOf(m *month) uint32 {
	if r.months>>m.number&1 == 0 {
		return 0
	}

	byDay, byWeekday := r.days, inMonth(r.weekdays, m.weekday)
	if r.hasSpecial {
		byDay |= r.special.monthDays(m.weekday, m.length)
		byWeekday |= r.special.weekDays(m.weekday, m.length)
	}

	match := byDay & byWeekday
	if !r.bothDays {
		match = byDay | byWeekday
	}

	// Weekdays and special days can set bits beyond the last day of the month.
	return match & ((uint32(1)<<m.length - 1) << 1)
}

// nextDay returns the first matching day from d to last, or noInstant. Days are numbers; day 0 is 1970-01-01.
func (r *rule) nextDay(d, last int64) int64 {
	i, n := monthOf(d)
	for ; i < len(calendarMonths) && calendarMonths[i].first <= last; i, n = i+1, 1 {
		if match := r.daysOf(&calendarMonths[i]) >> uint(n); match != 0 {
			if found := calendarMonths[i].first + int64(n-1+bits.TrailingZeros32(match)); found <= last {
				return found
			}
			return noInstant
		}
	}

	return noInstant
}

// previousDay returns the last matching day from first to d, or noInstant.
func (r *rule) previousDay(d, first int64) int64 {
	i, n := monthOf(d)
	for ; i >= 0; i, n = i-1, 31 {
		m := &calendarMonths[i]
		if match := r.daysOf(m) & (1<<uint(n+1) - 1); match != 0 {
			if found := m.first + int64(bits.Len32(match)-2); found >= first {
				return found
			}
			return noInstant
		}

		if m.first <= first {
			return noInstant
		}
	}

	return noInstant
}

// matchesSecond reports whether a second of the day matches.
func (r *rule) matchesSecond(second int64) bool {
	h, m, s := uint(second/3600), uint(second/60%60), uint(second%60)
	return r.hours>>h&1 != 0 && r.minutes>>m&1 != 0 && r.seconds>>s&1 != 0
}

// nextSecond returns the first matching second of the day not before from, or noInstant.
func (r *rule) nextSecond(from int64) int64 {
	h, m, s := uint(from/3600), uint(from/60%60), uint(from%60)
	if r.hours>>h&1 != 0 {
		if r.minutes>>m&1 != 0 {
			if later := r.seconds >> s; later != 0 {
				return from + int64(bits.TrailingZeros64(later))
			}
		}

		if later := r.minutes >> (m + 1); later != 0 {
			m += 1 + uint(bits.TrailingZeros64(later))
			return clockSeconds(h, m, uint(bits.TrailingZeros64(r.seconds)))
		}
	}

	if later := r.hours >> (h + 1); later != 0 {
		h += 1 + uint(bits.TrailingZeros32(later))
		return clockSeconds(h, uint(bits.TrailingZeros64(r.minutes)), uint(bits.TrailingZeros64(r.seconds)))
	}

	return noInstant
}

// previousSecond returns the last matching second of the day not after to, or noInstant.
func (r *rule) previousSecond(to int64) int64 {
	h, m, s := uint(to/3600), uint(to/60%60), uint(to%60)
	if r.hours>>h&1 != 0 {
		if r.minutes>>m&1 != 0 {
			if earlier := r.seconds & (1<<(s+1) - 1); earlier != 0 {
				return clockSeconds(h, m, highestBit(earlier))
			}
		}

		if earlier := r.minutes & (1<<m - 1); earlier != 0 {
			return clockSeconds(h, highestBit(earlier), highestBit(r.seconds))
		}
	}

	if earlier := r.hours & (1<<h - 1); earlier != 0 {
		return clockSeconds(highestBit(uint64(earlier)), highestBit(r.minutes), highestBit(r.seconds))
	}

	return noInstant
}

// clockSeconds returns a time of day as seconds since midnight.
func clockSeconds(h, m, s uint) int64 { return int64(h*3600 + m*60 + s) }

// highestBit returns the greatest member of a set that is not empty.
func highestBit(set uint64) uint { return uint(bits.Len64(set)) - 1 }

// nextLocal returns the first matching local time in [from, end), in seconds, or noInstant.
func (r *rule) nextLocal(from, end int64) int64 {
	if from >= end {
		return noInstant
	}

	d, last := from/daySeconds, (end-1)/daySeconds
	second := from % daySeconds

	// Two rounds are enough: if the first day has no matching second left, the first matching second of the next
	// matching day is the result.
	for range 2 { // at most: this day is already over, then the first second of another
		on := r.nextDay(d, last)
		if on == noInstant {
			return noInstant
		}

		if on > d {
			second = 0
		}

		if s := r.nextSecond(second); s != noInstant {
			if local := on*daySeconds + s; local < end {
				return local
			}
			return noInstant
		}

		d, second = on+1, 0
		if d > last {
			return noInstant
		}
	}

	return noInstant
}

// previousLocal returns the last matching local time in [start, to], in seconds, or noInstant.
func (r *rule) previousLocal(to, start int64) int64 {
	if to < start {
		return noInstant
	}

	d, first := to/daySeconds, start/daySeconds
	second := to % daySeconds
	for range 2 {
		on := r.previousDay(d, first)
		if on == noInstant {
			return noInstant
		}

		if on < d {
			second = daySeconds - 1
		}

		if s := r.previousSecond(second); s != noInstant {
			if local := on*daySeconds + s; local >= start {
				return local
			}
			return noInstant
		}

		d, second = on-1, daySeconds-1
		if d < first {
			return noInstant
		}
	}

	return noInstant
}

// policy determines what cron expressions do where the clock changes.
type policy struct {
	skipGap  bool // the ticks of a gap do not exist; otherwise one tick at its end stands for them
	foldBoth bool // ticks exist in both passes of a fold; otherwise only in the first
}

// newPolicy returns the policy of a task, or an error for unknown values. Empty values stand for the defaults.
func newPolicy(dst task.DST) (policy, error) {
	var p policy

	switch dst.Gap {
	case "", task.GapRunAfter:
	case task.GapSkip:
		p.skipGap = true
	default:
		return p, task.NoneOf(task.CodeBadValue, "dst.gap", dst.Gap, task.GapRunAfter, task.GapSkip)
	}

	switch dst.Fold {
	case "", task.FoldFirst:
	case task.FoldBoth:
		p.foldBoth = true
	default:
		return p, task.NoneOf(task.CodeBadValue, "dst.fold", dst.Fold, task.FoldFirst, task.FoldBoth)
	}

	return p, nil
}

// runsAfterGap reports whether the rule has a tick at the start of a period that stands for ticks in the gap
// before it.
func (r *rule) runsAfterGap(st *offsetPeriod, p policy) bool {
	return st.startsWithGap() && !r.realTime && !p.skipGap &&
		r.nextLocal(st.start+st.before, st.start+st.offset) != noInstant
}

// localStart returns the local time from which the rule's ticks in a period count. After a fold, local times that
// the period before has already shown are left out, unless the policy includes both passes.
func (r *rule) localStart(st *offsetPeriod, p policy) int64 {
	if st.startsWithFold() && !r.realTime && !p.foldBoth {
		return st.start + st.before
	}
	return st.start + st.offset
}

// nextTick returns the rule's first tick not before from, an instant of 1970 to 2100 in seconds, or noInstant.
func (r *rule) nextTick(z *zone, p policy, from int64) int64 {
	for i := z.periodAt(from); i < len(z.periods); i++ {
		st := &z.periods[i]

		// The tick that stands for a gap is at the very start of the period, so it comes before all others there.
		if from <= st.start && r.runsAfterGap(st, p) {
			return st.start
		}

		start := max(from+st.offset, r.localStart(st, p))
		if local := r.nextLocal(start, st.end+st.offset); local != noInstant {
			return local - st.offset
		}
	}

	return noInstant
}

// previousTick returns the rule's last tick not after to, an instant of 1970 to 2100 in seconds, or noInstant.
func (r *rule) previousTick(z *zone, p policy, to int64) int64 {
	for i := z.periodAt(to); i >= 0; i-- {
		st := &z.periods[i]
		end := min(to, st.end-1) + st.offset
		if local := r.previousLocal(end, r.localStart(st, p)); local != noInstant {
			return local - st.offset
		}
		if r.runsAfterGap(st, p) {
			return st.start
		}
	}

	return noInstant
}
