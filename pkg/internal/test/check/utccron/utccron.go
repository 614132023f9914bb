// Package utccron computes the ticks of cron expressions in UTC, for package oracle.
//
// It is pure, and shares no code with package schedule. It steps through days and seconds one by one, which is slow, but
// too simple to contain the same error. It supports five and six fields, names, nicknames, L, LW, 15W, 5L and 5#3.
package utccron

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Expression is a cron expression in UTC. Each field is a bit set of its allowed values.
type Expression struct {
	second, minute, hour, dom, month, dow uint64
	bothDays                              bool      // one of the day fields is "*": a day must match both, else one is enough
	monthDayRules, weekdayRules           []dayRule // L, LW, 15W and 5L, 5#3: days by rule, in addition to dom and dow
}

const (
	secondMS = 1000
	dayMS    = 24 * 3600 * secondMS
	// maxDaysAhead limits how many days Next looks ahead. The rarest expression is 29 February on a given weekday, which
	// comes after 40 years at most, around the year 2100.
	maxDaysAhead = 41 * 366
)

// Next returns the first tick after an instant, or false if there is none. Both are in ms since 1970.
//
// It walks day by day. Within a day that matches, it walks by hours, minutes and seconds.
func (e Expression) Next(after int64) (int64, bool) {
	// A new shard's watermark is at time zero, so after may be before the first second.
	at := (max(after, 0)/secondMS + 1) * secondMS
	for range maxDaysAhead {
		if e.dayMatches(time.UnixMilli(at).UTC()) {
			for end := at - at%dayMS + dayMS; at < end; {
				s := at / secondMS
				switch {
				case !hasBit(e.hour, s/3600%24):
					at = (s/3600 + 1) * 3600 * secondMS
				case !hasBit(e.minute, s/60%60):
					at = (s/60 + 1) * 60 * secondMS
				case !hasBit(e.second, s%60):
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
func (e Expression) dayMatches(t time.Time) bool {
	is := func(f dayRule) bool { return f(t) }
	dom := hasBit(e.dom, int64(t.Day())) || slices.ContainsFunc(e.monthDayRules, is)
	dow := hasBit(e.dow, int64(t.Weekday())) || slices.ContainsFunc(e.weekdayRules, is)

	if !hasBit(e.month, int64(t.Month())) {
		return false
	}
	if e.bothDays {
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

// Parse parses an expression. ok is false if its form is not supported.
func Parse(expr string) (c Expression, ok bool) {
	words := strings.Fields(expr)

	if full, known := nicknameExpressions[expr]; known {
		words = strings.Fields(full)
	}

	// Five fields have no seconds: the tick is at second 0.
	if len(words) == 5 {
		words = slices.Insert(words, 0, "0")
	}

	if len(words) != 6 {
		return c, false
	}

	// As in Vixie's cron, the first character of a day field decides: both must match if one of them starts with *.
	c.bothDays = words[3][0] == '*' || words[5][0] == '*'
	ranges := []struct {
		set       *uint64
		low, high int
	}{{&c.second, 0, 59}, {&c.minute, 0, 59}, {&c.hour, 0, 23}, {&c.dom, 1, 31}, {&c.month, 1, 12}, {&c.dow, 0, 7}}
	words[3], c.monthDayRules = splitDayRules(strings.ToUpper(words[3]), parseMonthDayRule)
	words[4] = namesToNumbers(words[4], monthNames, 1)
	words[5], c.weekdayRules = splitDayRules(namesToNumbers(words[5], dayNames, 0), parseWeekdayRule)

	for i, r := range ranges {
		if words[i] == "" {
			continue // the field has only rules, such as L
		}
		if *r.set, ok = parseField(words[i], r.low, r.high); !ok {
			return c, false
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

// The names that fields of a cron expression may use instead of numbers.
var (
	monthNames = strings.Fields("jan feb mar apr may jun jul aug sep oct nov dec")
	dayNames   = strings.Fields("sun mon tue wed thu fri sat")
)

// namesToNumbers replaces the names of months or weekdays by numbers, regardless of case. first is the number of
// the first name.
func namesToNumbers(text string, names []string, first int) string {
	text = strings.ToLower(text)
	for i, name := range names {
		text = strings.ReplaceAll(text, name, strconv.Itoa(first+i))
	}
	return strings.ToUpper(text)
}

// dayRule reports whether a day, in UTC, belongs to a set that an expression gives by a rule instead of numbers: L,
// LW or 15W of a month, 5L or 5#3 of weekdays.
type dayRule func(day time.Time) bool

// parseMonthDayRule parses L (the last day), LW (the last weekday from Monday to Friday) and 15W (the one nearest
// to the 15th, in the same month).
func parseMonthDayRule(item string) (dayRule, bool) {
	switch item {
	case "L":
		return func(d time.Time) bool { return d.AddDate(0, 0, 1).Day() == 1 }, true

	case "LW":
		return func(d time.Time) bool {
			if !isWeekday(d) {
				return false
			}

			for next := d.AddDate(0, 0, 1); next.Month() == d.Month(); next = next.AddDate(0, 0, 1) {
				if isWeekday(next) {
					return false
				}
			}

			return true
		}, true
	}

	text, ok := strings.CutSuffix(item, "W")
	of, err := strconv.Atoi(text)
	if !ok || err != nil || of < 1 || of > 31 {
		return nil, false
	}

	return func(d time.Time) bool {
		day := time.Date(d.Year(), d.Month(), of, 0, 0, 0, 0, time.UTC)
		if day.Month() != d.Month() {
			return false // the month is shorter
		}

		// The nearest weekday is at most two days away: on the other side if the near side is in another month.
		for _, by := range []int{0, -1, 1, -2, 2} {
			if near := day.AddDate(0, 0, by); near.Month() == d.Month() && isWeekday(near) {
				return near.Day() == d.Day()
			}
		}

		return false
	}, true
}

// parseWeekdayRule parses 5L (the last Friday of a month) and 5#3 (the third Friday).
func parseWeekdayRule(item string) (dayRule, bool) {
	if text, ok := strings.CutSuffix(item, "L"); ok {
		of, err := strconv.Atoi(text)
		return func(d time.Time) bool {
			return int(d.Weekday()) == of%7 && d.AddDate(0, 0, 7).Month() != d.Month()
		}, err == nil && of >= 0 && of <= 7
	}

	text, nth, ok := strings.Cut(item, "#")
	of, err := strconv.Atoi(text)
	n, err2 := strconv.Atoi(nth)

	return func(d time.Time) bool { return int(d.Weekday()) == of%7 && (d.Day()-1)/7 == n-1 },
		ok && err == nil && err2 == nil && of >= 0 && of <= 7 && n >= 1 && n <= 5
}

func isWeekday(d time.Time) bool { return d.Weekday() != time.Saturday && d.Weekday() != time.Sunday }

// splitDayRules removes the rules from a list. rest keeps the numbers.
func splitDayRules(text string, read func(string) (dayRule, bool)) (rest string, all []dayRule) {
	var numbers []string
	for item := range strings.SplitSeq(text, ",") {
		if f, ok := read(item); ok {
			all = append(all, f)
		} else {
			numbers = append(numbers, item)
		}
	}

	return strings.Join(numbers, ","), all
}
