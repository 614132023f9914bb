package schedule

import (
	"math/bits"
	"slices"
	"time"
)

// Missed tells the ticks in (after, upTo]: the first, the last, how many, and
// the newest of them in ascending order, as many as asked for. With no tick
// count is 0 and the times are zero.
//
// The count is exact and does not walk over ticks: a second-by-second schedule
// takes as long as one that ticks daily, some 20 µs for each year between after
// and upTo, and sixteen expressions some 150 µs (each day is looked at, the
// seconds of a day are counted once).
//
// The one slower case is cron expressions in a union with @every, since the
// instants that both have must be found by going through the @every ticks of a
// day, once for each phase in which @every meets a day. There is one phase if
// the period divides a day, and few for any one period; with several periods
// that have nothing in common every day may be looked at: 40 ms for each year
// with three such periods of seconds, half a second with fifteen.
//
// newest costs one step per tick returned.
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

// countTicks counts the ticks from lo to hi, both included, in ms.
func (s *Schedule) countTicks(lo, hi int64) int64 {
	p := s.plan
	if p.after != 0 {
		return 1 // there is no other
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

// isRepeated reports whether an instant in ms is a tick of a cron expression or of
// an @every.
func (s *Schedule) isRepeated(tick int64) bool {
	if tick > s.anchor && isMultiple(tick-s.anchor, s.plan.every) {
		return true
	}

	return tick%1000 == 0 && slices.ContainsFunc(s.plan.rules, func(r rule) bool {
		return r.nextTick(s.plan.zone, s.plan.policy, tick/1000) == tick/1000
	})
}

// A ruleSet is a set of a plan's rules, as bits.
type ruleSet uint32

// A counter counts the ticks of the cron expressions of a schedule. Days are
// alike: how many ticks one has depends on the rules that match it alone.
type counter struct {
	plan   *plan
	all    ruleSet
	perDay map[ruleSet]int64 // ticks of a whole day on which exactly these rules match

	every []progression
	cycle int64             // days whose starts are a multiple of this apart look alike to every; 0: none do
	alike map[meeting]int64 // ticks of a whole day that are ticks of every too

	ticks  int64 // counted so far
	shared int64 // those of them that are ticks of every too
}

type meeting struct {
	rules ruleSet
	phase int64 // of the day's start in the cycle
}

func newCounter(s *Schedule) *counter {
	c := &counter{plan: s.plan, all: 1<<uint(len(s.plan.rules)) - 1, perDay: make(map[ruleSet]int64), cycle: 1}
	const longest = 1 << 40 // seconds; far more than ticks have

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

	if len(c.every) > 0 {
		c.alike = make(map[meeting]int64)
	}

	return c
}

// countPieces counts the instants in [from, end), a stretch or a part of one at a
// time.
func (c *counter) countPieces(from, end int64) {
	z, p := c.plan.zone, c.plan.policy
	from, end = max(from, firstSecond), min(end, endSecond)
	if from >= end {
		return
	}

	for i := z.stretchAt(from); i < len(z.stretches) && z.stretches[i].start < end; i++ {
		st := &z.stretches[i]
		start, stop := max(from, st.start), min(end, st.end)

		var again ruleSet // rules that tick in the second pass of a fold
		for n := range c.plan.rules {
			if c.plan.rules[n].localStart(st, p) == st.start+st.offset {
				again |= 1 << uint(n)
			}
		}

		if again != c.all {
			unfolded := st.start + st.before - st.offset
			c.countPiece(start, min(stop, unfolded), st.offset, again)
			start = max(start, unfolded)
		}

		c.countPiece(start, stop, st.offset, c.all)

		if start == st.start {
			c.afterGap(st)
		}
	}
}

// afterGap counts the tick that stands for those of a gap, unless the instant is
// a tick anyway.
func (c *counter) afterGap(st *stretch) {
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

// countPiece counts the ticks of some rules in [start, end), instants of one offset.
func (c *counter) countPiece(start, end, offset int64, rules ruleSet) {
	if start >= end || rules == 0 {
		return
	}

	from, to := start+offset, end+offset
	var match [MaxExpressions]uint32 // by rule: the days of the month
	m, n := monthOf(from / daySeconds)
	for d := from / daySeconds; d*daySeconds < to; d, n = d+1, n+1 {
		if d == from/daySeconds || n > int(calendarMonths[m].length) {
			m, n = monthOf(d)
			for set := rules; set != 0; set &= set - 1 {
				i := bits.TrailingZeros32(uint32(set))
				match[i] = c.plan.rules[i].daysOf(&calendarMonths[m])
			}
		}

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

// countDay counts the ticks of a day that starts at an instant and is matched by some
// rules, between two seconds of it.
func (c *counter) countDay(rules ruleSet, start, from, to int64) {
	if from > 0 || to < daySeconds {
		c.ticks += c.countUnion(rules, from, to)
		c.shared += c.countIntersection(rules, start, from, to)
		return
	}

	ticks, ok := c.perDay[rules]
	if !ok {
		ticks = c.countUnion(rules, 0, daySeconds)
		c.perDay[rules] = ticks
	}

	c.ticks += ticks
	if len(c.every) == 0 {
		return
	}

	if c.cycle == 0 || slices.ContainsFunc(c.every, func(e progression) bool { return e.first > start }) {
		c.shared += c.countIntersection(rules, start, 0, daySeconds)
		return
	}

	phase := meeting{rules, start % c.cycle}
	shared, ok := c.alike[phase]
	if !ok {
		shared = c.countIntersection(rules, start, 0, daySeconds)
		c.alike[phase] = shared
	}

	c.shared += shared
}

// countUnion counts the seconds of a day, from one to another, that match any of the
// rules.
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

// countIntersection counts the seconds of a day, from one to another, that match any of the
// rules and are ticks of an @every too.
func (c *counter) countIntersection(rules ruleSet, start, from, to int64) int64 {
	var count int64
	for i, e := range c.every {
	ticks:
		for tick := e.firstFrom(start + from); tick < start+to; tick += e.period {
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
