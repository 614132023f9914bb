package utccron

import (
	"strconv"
	"strings"
	"time"
)

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

	text, is := strings.CutSuffix(item, "W")
	of, err := strconv.Atoi(text)
	if !is || err != nil || of < 1 || of > 31 {
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
	if text, is := strings.CutSuffix(item, "L"); is {
		of, err := strconv.Atoi(text)
		return func(d time.Time) bool {
			return int(d.Weekday()) == of%7 && d.AddDate(0, 0, 7).Month() != d.Month()
		}, err == nil && of >= 0 && of <= 7
	}

	text, nth, is := strings.Cut(item, "#")
	of, err := strconv.Atoi(text)
	n, err2 := strconv.Atoi(nth)

	return func(d time.Time) bool { return int(d.Weekday()) == of%7 && (d.Day()-1)/7 == n-1 },
		is && err == nil && err2 == nil && of >= 0 && of <= 7 && n >= 1 && n <= 5
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
