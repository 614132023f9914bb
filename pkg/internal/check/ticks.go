package check

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// tickSource lists the ticks of a schedule, in ms since 1970.
//
// newTickSource implements it by an oracle that shares no code with package schedule for the forms that tests use
// most: @every, also after completion, @at, @manual, nicknames, and cron expressions in UTC, with names, L, LW,
// 15W, 5L and 5#3. The oracle steps through days and seconds one by one. This is slow, but too simple to contain
// the same error as package schedule. That package computes all zones except UTC. Starts, ends and jitter are the
// oracle's own in all zones (timing.go).
type tickSource interface {
	// nextTick returns the first tick after an instant, or false if there is none.
	nextTick(after int64) (int64, bool)
}

// newTickSource returns the ticks of an entry's schedule. own reports whether the oracle computes them. If it
// supports one expression of several only through package schedule, that package computes all of them.
func newTickSource(e task.Entry) (t tickSource, own bool, err error) {
	if period, is := completionPeriod(e); is {
		return onceAt(max(unixMS(e.Anchor)+period.Milliseconds(), unixMS(e.Start))), true, nil
	}

	var all tickUnion
	for _, expr := range e.Schedule {
		t, ok := parseExpression(expr, e.Timezone, e.Anchor.UnixMilli())
		if !ok {
			s, err := schedule.Parse(e.Timing(), e.Anchor.Time)
			return productSchedule{s}, false, err
		}

		all = append(all, t)
	}

	return all, true, nil
}

// listTicks calls f with every tick in (after, upTo], until f returns false.
func listTicks(t tickSource, after, upTo int64, f func(ms int64) bool) {
	for at, ok := t.nextTick(after); ok && at <= upTo; at, ok = t.nextTick(at) {
		if !f(at) {
			return
		}
	}
}

// hasTick reports whether an instant is a tick.
func hasTick(t tickSource, ms int64) bool {
	at, ok := t.nextTick(ms - 1)
	return ok && at == ms
}

// tickUnion has the ticks of several schedules. A tick that several of them have counts once.
type tickUnion []tickSource

// nextTick returns the first tick of any of the schedules.
func (u tickUnion) nextTick(after int64) (int64, bool) {
	var first int64
	var found bool
	for _, t := range u {
		if at, ok := t.nextTick(after); ok && (!found || at < first) {
			first, found = at, true
		}
	}

	return first, found
}

// productSchedule has the ticks that package schedule computes.
type productSchedule struct{ *schedule.Schedule }

func (b productSchedule) nextTick(after int64) (int64, bool) {
	at, ok := b.Next(timeOfMS(after))
	return at.UnixMilli(), ok
}

// neverTicks has no ticks: @manual.
type neverTicks struct{}

func (neverTicks) nextTick(int64) (int64, bool) { return 0, false }

// onceAt has one tick: @at, or a schedule that counts from the end of a run.
type onceAt int64

func (o onceAt) nextTick(after int64) (int64, bool) { return int64(o), after < int64(o) }

// fixedPeriod has the ticks of @every: anchor + k·period for k ≥ 1, in ms.
type fixedPeriod struct{ anchor, period int64 }

func (e fixedPeriod) nextTick(after int64) (int64, bool) {
	k := int64(1)
	if after > e.anchor {
		k = (after-e.anchor)/e.period + 1
	}
	return e.anchor + k*e.period, true
}

// cronUTC has the ticks of a cron expression in UTC. Each field is a bit set of its allowed values.
type cronUTC struct {
	second, minute, hour, dom, month, dow uint64
	bothDays                              bool      // one of the day fields is "*": a day must match both, else one is enough
	monthDayRules, weekdayRules           []dayRule // L, LW, 15W and 5L, 5#3: days by rule, in addition to dom and dow
}

const (
	secondMS = 1000
	dayMS    = 24 * 3600 * secondMS
	// maxDaysAhead limits how many days next looks ahead. The rarest expression is 29 February on a given weekday, which
	// comes after 40 years at most, around the year 2100.
	maxDaysAhead = 41 * 366
)

// nextTick walks day by day. Within a day that matches, it walks by hours, minutes and seconds.
func (c cronUTC) nextTick(after int64) (int64, bool) {
	// A new shard's watermark is at time zero, so after may be before the first second.
	at := (max(after, 0)/secondMS + 1) * secondMS
	for range maxDaysAhead {
		if c.dayMatches(timeOfMS(at)) {
			for end := at - at%dayMS + dayMS; at < end; {
				s := at / secondMS
				switch {
				case !hasBit(c.hour, s/3600%24):
					at = (s/3600 + 1) * 3600 * secondMS
				case !hasBit(c.minute, s/60%60):
					at = (s/60 + 1) * 60 * secondMS
				case !hasBit(c.second, s%60):
					at += secondMS
				default:
					return at, true
				}
			}

			continue
		}

		at = at - at%dayMS + dayMS
	}

	return 0, false
}

// dayMatches reports whether a day matches. cron's rule for two restricted day fields is that one match is enough.
func (c cronUTC) dayMatches(t time.Time) bool {
	is := func(f dayRule) bool { return f(t) }
	dom := hasBit(c.dom, int64(t.Day())) || slices.ContainsFunc(c.monthDayRules, is)
	dow := hasBit(c.dow, int64(t.Weekday())) || slices.ContainsFunc(c.weekdayRules, is)

	if !hasBit(c.month, int64(t.Month())) {
		return false
	}
	if c.bothDays {
		return dom && dow
	}

	return dom || dow
}

// hasBit reports whether a bit set contains a value.
func hasBit(set uint64, value int64) bool { return set&(1<<value) != 0 }

// nicknameExpressions are the expressions that the nicknames of cron stand for.
var nicknameExpressions = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// parseExpression returns the ticks of one expression, or false if the oracle does not support its form or its
// zone. anchor is in ms.
func parseExpression(expr, timezone string, anchor int64) (tickSource, bool) {
	words := strings.Fields(expr)
	if len(words) == 0 {
		return nil, false
	}

	switch words[0] {
	case "@manual":
		return neverTicks{}, len(words) == 1
	case "@every":
		d, err := time.ParseDuration(words[len(words)-1])
		return fixedPeriod{anchor, d.Milliseconds()}, err == nil && d >= time.Millisecond && len(words) == 2
	case "@at":
		at, err := time.Parse(time.RFC3339Nano, words[len(words)-1])
		return onceAt(at.UnixMilli()), err == nil && len(words) == 2
	}

	if timezone != "" && timezone != "UTC" {
		return nil, false
	}

	if full, ok := nicknameExpressions[expr]; ok {
		words = strings.Fields(full)
	}

	// Five fields have no seconds: the tick is at second 0.
	if len(words) == 5 {
		words = slices.Insert(words, 0, "0")
	}

	if len(words) != 6 {
		return nil, false
	}

	// As in Vixie's cron, the first character of a day field decides: both must match if one of them starts with *.
	c := cronUTC{bothDays: words[3][0] == '*' || words[5][0] == '*'}
	ranges := []struct {
		set       *uint64
		low, high int
	}{{&c.second, 0, 59}, {&c.minute, 0, 59}, {&c.hour, 0, 23}, {&c.dom, 1, 31}, {&c.month, 1, 12}, {&c.dow, 0, 7}}
	words[3], c.monthDayRules = splitDayRules(strings.ToUpper(words[3]), parseMonthDayRule)
	words[4] = namesToNumbers(words[4], monthNames, 1)
	words[5], c.weekdayRules = splitDayRules(namesToNumbers(words[5], dayNames, 0), parseWeekdayRule)

	for i, r := range ranges {
		var ok bool

		if words[i] == "" {
			continue // the field has only rules, such as L
		}
		if *r.set, ok = parseField(words[i], r.low, r.high); !ok {
			return nil, false
		}
	}

	// 7 means Sunday, like 0.
	if hasBit(c.dow, 7) {
		c.dow |= 1
	}

	return c, true
}

// parseField parses a list of *, n, a-b, */n and a-b/n into a bit set.
func parseField(text string, low, high int) (set uint64, ok bool) {
	for item := range strings.SplitSeq(text, ",") {
		values, stepText, stepped := strings.Cut(item, "/")
		from, to, step := low, high, 1
		if stepped {
			var err error
			if step, err = strconv.Atoi(stepText); err != nil || step < 1 {
				return 0, false
			}
		}

		// * means the days 0 to 6.
		if values == "*" && high == 7 {
			to = 6 // 7 is Sunday again, and must not count as an eighth day
		}

		if values != "*" {
			a, b, ranged := strings.Cut(values, "-")
			var err error
			if from, err = strconv.Atoi(a); err != nil {
				return 0, false
			}

			to = from
			if ranged {
				if to, err = strconv.Atoi(b); err != nil {
					return 0, false
				}
			}
		}

		if from < low || to > high || from > to {
			return 0, false
		}

		for n := from; n <= to; n += step {
			set |= 1 << n
		}
	}

	return set, bits.OnesCount64(set) > 0
}
