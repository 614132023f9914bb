package schedule

import (
	"math/bits"
	"slices"
	"time"
)

// Missed returns the ticks in (after, upTo]: the first, the last, how many there are, and the newest of them in
// ascending order. newest limits the length of that list. Without a tick, count is 0 and the times are zero.
//
// The count is exact and does not visit each tick. A schedule with a tick every second takes as long as one with a
// tick a day: about 20 µs for each year between after and upTo, or 150 µs for sixteen expressions. Each day is
// visited, but the seconds of a day are counted only once for each set of rules that match the day.
//
// Only a union of cron expressions with @every is slower. The instants that both have are found by visiting the
// @every ticks of a day, once for each phase in which @every meets a day. There is one phase if the period divides
// a day, and there are few for any single period. With several periods that have no common divisor, every day may
// have to be visited: 40 ms for each year with three such periods of seconds, half a second with fifteen.
//
// The list of the newest costs one step per tick.
func (s *Schedule) Missed(after, upTo time.Time, newest int) (first, last time.Time, count int64, ticks []time.Time) {
	from, to := clampToMS(after), clampToMS(upTo)
	lo := s.nextAfter(from)
	if lo == noInstant || lo > to {
		return first, last, 0, nil
	}

	hi := s.previousTo(to)
	count = s.countTicks(lo, hi)

	for tick := hi; tick >= lo && len(ticks) < newest; tick = s.previousTo(tick - 1) {
		ticks = append(ticks, time.UnixMilli(tick).UTC())
	}

	slices.Reverse(ticks)

	return time.UnixMilli(lo).UTC(), time.UnixMilli(hi).UTC(), count, ticks
}

// countTicks counts the ticks from lo to hi, both inclusive, in ms. It adds the ticks of @every, of the cron
// expressions and of @at, and subtracts those that are counted twice.
func (s *Schedule) countTicks(lo, hi int64) int64 {
	p := s.plan
	if p.after != 0 {
		return 1 // such a schedule has one tick
	}

	n := countMultiples(hi-s.anchor, p.every) - countMultiples(lo-1-s.anchor, p.every)
	if len(p.rules) > 0 {
		c := newCounter(s)
		c.countPieces((lo+999)/1000, hi/1000+1)
		n += c.ticks - c.shared
	}

	for _, at := range p.at {
		if lo <= at && at <= hi && !s.isRepeated(at) {
			n++
		}
	}

	return n
}

// isRepeated reports whether an instant in ms is also a tick of a cron expression or of an @every.
func (s *Schedule) isRepeated(tick int64) bool {
	if tick > s.anchor && isMultiple(tick-s.anchor, s.plan.every) {
		return true
	}

	return tick%1000 == 0 && slices.ContainsFunc(s.plan.rules, func(r rule) bool {
		return r.nextTick(s.plan.zone, s.plan.policy, tick/1000) == tick/1000
	})
}

// ruleSet is a set of a plan's rules, as bits.
type ruleSet uint32

// counter counts the ticks of a schedule's cron expressions. It counts a whole day only once for each set of rules
// that match it, because the number of ticks of a day depends on nothing else.
type counter struct {
	plan   *plan
	all    ruleSet           // all rules
	perDay map[ruleSet]int64 // ticks of a whole day that exactly these rules match

	every []progression     // the ticks of @every that are whole seconds
	cycle int64             // days whose starts differ by a multiple of this, in seconds, meet the same ticks of every; 0: no such number
	alike map[meeting]int64 // ticks of a whole day that are also ticks of every

	ticks  int64 // counted so far
	shared int64 // those of them that are also ticks of every
}

// meeting identifies days on which the same rules meet the same ticks of @every.
type meeting struct {
	rules ruleSet
	phase int64 // the start of the day within the cycle
}

// newCounter returns a counter without ticks.
func newCounter(s *Schedule) counter {
	c := counter{plan: s.plan, all: 1<<uint(len(s.plan.rules)) - 1, cycle: 1}
	const longest = 1 << 40 // in seconds; far beyond the last tick

	for _, period := range s.plan.every {
		if whole, ok := wholeSeconds(s.anchor, period); ok {
			c.every = append(c.every, whole)
			if c.cycle != 0 {
				if c.cycle = leastMultiple(c.cycle, whole.period, longest); c.cycle > longest {
					c.cycle = 0
				}
			}
		}
	}

	return c
}

// countPieces counts the instants in [from, end), in pieces of one period each. Within a period it counts the
// second pass of a fold separately, because only some of the rules have ticks there.
func (c *counter) countPieces(from, end int64) {
	z, p := c.plan.zone, c.plan.policy
	from, end = max(from, firstSecond), min(end, endSecond)
	if from >= end {
		return
	}

	for i := z.periodAt(from); i < len(z.periods) && z.periods[i].start < end; i++ {
		st := &z.periods[i]
		start, stop := max(from, st.start), min(end, st.end)

		var again ruleSet // rules that have ticks in the second pass of a fold
		for n := range c.plan.rules {
			if c.plan.rules[n].localStart(st, p) == st.start+st.offset {
				again |= 1 << uint(n)
			}
		}

		// From the start of the period to unfolded, the local clock shows times that the period before has
		// already shown.
		if again != c.all {
			unfolded := st.start + st.before - st.offset
			c.countPiece(start, min(stop, unfolded), st.offset, again)
			start = max(start, unfolded)
		}

		c.countPiece(start, stop, st.offset, c.all)

		// The tick that stands for a gap is at the very start of the period.
		if start == st.start {
			c.afterGap(st)
		}
	}
}

// afterGap counts the tick that stands for those of a gap, unless the instant is a tick anyway.
func (c *counter) afterGap(st *offsetPeriod) {
	ran := false
	for i := range c.plan.rules {
		r := &c.plan.rules[i]
		local := st.start + st.offset
		if r.nextLocal(local, local+1) == local {
			return
		}

		ran = ran || r.runsAfterGap(st, c.plan.policy)
	}

	if !ran {
		return
	}

	c.ticks++
	for _, e := range c.every {
		if e.containsInstant(st.start) {
			c.shared++
			return
		}
	}
}

// countPiece counts the ticks of some rules in [start, end), a period in which the zone has one offset. It walks
// day by day.
func (c *counter) countPiece(start, end, offset int64, rules ruleSet) {
	if start >= end || rules == 0 {
		return
	}

	from, to := start+offset, end+offset
	var match [MaxExpressions]uint32 // by rule: its days of the current month, as bits
	m, n := monthOf(from / daySeconds)
	for d := from / daySeconds; d*daySeconds < to; d, n = d+1, n+1 {
		// At the first day, and at each new month, compute which days of the month each rule matches.
		if d == from/daySeconds || n > int(calendarMonths[m].length) {
			m, n = monthOf(d)
			for set := rules; set != 0; set &= set - 1 {
				i := bits.TrailingZeros32(uint32(set))
				match[i] = c.plan.rules[i].daysOf(&calendarMonths[m])
			}
		}

		// Which of the rules match this day.
		var today ruleSet
		for set := rules; set != 0; set &= set - 1 {
			i := bits.TrailingZeros32(uint32(set))
			today |= ruleSet(match[i]>>uint(n)&1) << uint(i)
		}

		if today != 0 {
			c.countDay(today, d*daySeconds-offset, max(from-d*daySeconds, 0), min(to-d*daySeconds, daySeconds))
		}
	}
}

// countDay counts the ticks of a day that some rules match, between two seconds of it. start is the instant at
// which the day starts. Results of whole days are cached.
func (c *counter) countDay(rules ruleSet, start, from, to int64) {
	if from > 0 || to < daySeconds {
		c.ticks += c.countUnion(rules, from, to)
		c.shared += c.countIntersection(rules, start, from, to)
		return
	}

	ticks, ok := c.perDay[rules]
	if !ok {
		ticks = c.countUnion(rules, 0, daySeconds)
		if c.perDay == nil { // a counter of part of a day, such as a minute, needs none
			c.perDay = map[ruleSet]int64{}
		}
		c.perDay[rules] = ticks
	}

	c.ticks += ticks
	if len(c.every) == 0 {
		return
	}

	// Without a cycle, or before the first tick of an @every, the day is like no other.
	if c.cycle == 0 || slices.ContainsFunc(c.every, func(e progression) bool { return e.first > start }) {
		c.shared += c.countIntersection(rules, start, 0, daySeconds)
		return
	}

	phase := meeting{rules, start % c.cycle}
	shared, ok := c.alike[phase]
	if !ok {
		shared = c.countIntersection(rules, start, 0, daySeconds)
		if c.alike == nil {
			c.alike = map[meeting]int64{}
		}
		c.alike[phase] = shared
	}

	c.shared += shared
}

// countUnion counts the seconds of a day, in [from, to), that match any of the rules.
func (c *counter) countUnion(rules ruleSet, from, to int64) int64 {
	count := 0
	for minute := from / 60; minute*60 < to; minute++ {
		var seconds uint64
		for set := rules; set != 0; set &= set - 1 {
			r := &c.plan.rules[bits.TrailingZeros32(uint32(set))]
			if r.hours>>uint(minute/60)&1 != 0 && r.minutes>>uint(minute%60)&1 != 0 {
				seconds |= r.seconds
			}
		}

		// Cut off the seconds before from and after to in the first and the last minute.
		if cut := from - minute*60; cut > 0 {
			seconds &^= 1<<uint(cut) - 1
		}

		if cut := to - minute*60; cut < 60 {
			seconds &= 1<<uint(cut) - 1
		}

		count += bits.OnesCount64(seconds)
	}

	return int64(count)
}

// countIntersection counts the seconds of a day, in [from, to), that match any of the rules and are also ticks of
// an @every.
func (c *counter) countIntersection(rules ruleSet, start, from, to int64) int64 {
	var count int64
	for i, e := range c.every {
	ticks:
		for tick := e.firstFrom(start + from); tick < start+to; tick += e.period {
			// A tick that several periods have counts with the first of them.
			for _, earlier := range c.every[:i] {
				if earlier.containsInstant(tick) {
					continue ticks
				}
			}

			for set := rules; set != 0; set &= set - 1 {
				if c.plan.rules[bits.TrailingZeros32(uint32(set))].matchesSecond(tick - start) {
					count++
					break
				}
			}
		}
	}

	return count
}

// withoutMultiples removes, from ascending periods, those whose ticks another period includes.
//
// The ticks of @every are anchor + k·period, k ≥ 1. All periods of a task share its anchor, so the union of their
// ticks is the set of multiples of any of the periods, counted from the anchor.
func withoutMultiples(periods []int64) []int64 {
	var kept []int64
	for _, period := range periods {
		if !isMultiple(period, kept) {
			kept = append(kept, period)
		}
	}

	return kept
}

// isMultiple reports whether n is a multiple of any of the periods.
func isMultiple(n int64, periods []int64) bool {
	for _, period := range periods {
		if n%period == 0 {
			return true
		}
	}

	return false
}

// countMultiples counts the numbers from 1 to limit that are multiples of any of the periods, by inclusion and
// exclusion. A branch ends when the least common multiple exceeds the limit, so that few of the 2^n subsets are
// visited.
func countMultiples(limit int64, periods []int64) int64 {
	if limit <= 0 {
		return 0
	}

	// visit counts the multiples of multiple that are also multiples of any of the periods from i on.
	var visit func(i int, multiple int64) int64
	visit = func(i int, multiple int64) int64 {
		var count int64
		for ; i < len(periods); i++ {
			if with := leastMultiple(multiple, periods[i], limit); with <= limit {
				count += limit/with - visit(i+1, with)
			}
		}

		return count
	}

	return visit(0, 1)
}

// leastMultiple returns the least common multiple of a and b, or limit + 1 if it exceeds limit. It cannot overflow.
func leastMultiple(a, b, limit int64) int64 {
	a /= greatestDivisor(a, b)
	if a > limit/b {
		return limit + 1
	}
	return a * b
}

// greatestDivisor returns the greatest common divisor of a and b.
func greatestDivisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// progression is the set of those ticks of an @every that are whole seconds: first + k·period, k ≥ 0, in seconds.
type progression struct{ first, period int64 }

// containsInstant reports whether an instant in seconds belongs to the progression.
func (p progression) containsInstant(instant int64) bool {
	return instant >= p.first && (instant-p.first)%p.period == 0
}

// firstFrom returns the first instant of the progression that is not before start.
func (p progression) firstFrom(start int64) int64 {
	if start <= p.first {
		return p.first
	}
	return p.first + (start-p.first+p.period-1)/p.period*p.period
}

// wholeSeconds returns those ticks of an @every that are whole seconds, or false if none is.
func wholeSeconds(anchor, period int64) (progression, bool) {
	step := 1000 / greatestDivisor(period, 1000) // every step-th tick has the same milliseconds
	for k := int64(1); k <= step; k++ {
		if tick := anchor + k*period; tick%1000 == 0 {
			return progression{first: tick / 1000, period: step * period / 1000}, true
		}
	}

	return progression{}, false
}
