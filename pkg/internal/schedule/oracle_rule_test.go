package schedule_test

import (
	"strconv"
	"strings"
	"time"
)

// oracleRule is a cron expression whose fields are lists of values. It is parsed independently, and uses package
// time for the calendar. It shares nothing with the code that it checks.
type oracleRule struct {
	seconds, minutes, hours, months [60]bool
	dayOfMonth, dayOfWeek           []oracleDay // one match of each is enough
	bothDays, realTime              bool
}

// oracleDay reports whether a date matches.
type oracleDay func(date time.Time) bool

func newOracleRule(expr string) *oracleRule {
	words := strings.Fields(expr)
	if len(words) == 5 {
		words = append([]string{"0"}, words...)
	}

	r := &oracleRule{
		bothDays: strings.ContainsAny(words[3][:1]+words[5][:1], "*?"),
		realTime: strings.HasPrefix(words[2], "*"),
	}
	for i, set := range map[int]*[60]bool{0: &r.seconds, 1: &r.minutes, 2: &r.hours, 4: &r.months} {
		for _, item := range strings.Split(words[i], ",") {
			for _, n := range oracleValues(item, []int{0, 0, 0, 1, 1, 0}[i], []int{59, 59, 23, 31, 12, 7}[i]) {
				set[n] = true
			}
		}
	}

	for _, item := range strings.Split(words[3], ",") {
		r.dayOfMonth = append(r.dayOfMonth, oracleDayOfMonth(strings.ToUpper(item)))
	}

	for _, item := range strings.Split(words[5], ",") {
		r.dayOfWeek = append(r.dayOfWeek, oracleDayOfWeek(strings.ToUpper(item)))
	}

	return r
}

// oracleValues returns the values of a plain item.
func oracleValues(item string, low, high int) []int {
	values, stepText, _ := strings.Cut(item, "/")
	step := 1
	if stepText != "" {
		step, _ = strconv.Atoi(stepText)
	}

	if values != "*" && values != "?" {
		from, to, ranged := strings.Cut(values, "-")
		low = oracleValue(from)

		switch {
		case ranged:
			high = oracleValue(to)
		case stepText == "":
			high = low
		case high == 7: // Saturday is the last day of the week
			high = max(low, 6)
		}
	}

	var list []int
	for n := low; n <= high; n += step {
		list = append(list, n)
	}

	return list
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

func oracleDayOfMonth(item string) oracleDay {
	switch {
	case item == "L":
		return func(date time.Time) bool { return date.AddDate(0, 0, 1).Day() == 1 }

	case item == "LW":
		return func(date time.Time) bool {
			for later := date.AddDate(0, 0, 1); later.Month() == date.Month(); later = later.AddDate(0, 0, 1) {
				if works(later) {
					return false
				}
			}

			return works(date)
		}

	case strings.HasSuffix(item, "W"):
		n, _ := strconv.Atoi(strings.TrimSuffix(item, "W"))
		return func(date time.Time) bool { return date.Equal(nearestWorkday(date, n)) }
	}

	days := map[int]bool{}
	for _, n := range oracleValues(item, 1, 31) {
		days[n] = true
	}

	return func(date time.Time) bool { return days[date.Day()] }
}

// nearestWorkday returns the working day nearest to day n of a date's month, in that month; zero if the month has
// no day n.
func nearestWorkday(date time.Time, n int) time.Time {
	meant := time.Date(date.Year(), date.Month(), n, 0, 0, 0, 0, time.UTC)
	if meant.Month() != date.Month() {
		return time.Time{}
	}

	for off := 0; ; off++ {
		for _, day := range []time.Time{meant.AddDate(0, 0, -off), meant.AddDate(0, 0, off)} {
			if works(day) && day.Month() == meant.Month() {
				return day
			}
		}
	}
}

func works(date time.Time) bool {
	return date.Weekday() != time.Saturday && date.Weekday() != time.Sunday
}

func oracleDayOfWeek(item string) oracleDay {
	if day, place, ok := strings.Cut(item, "#"); ok {
		weekday, n := time.Weekday(oracleValue(day)%7), oracleValue(place)
		return func(date time.Time) bool {
			count := 0
			for d := 1; d <= date.Day(); d++ {
				if time.Date(date.Year(), date.Month(), d, 0, 0, 0, 0, time.UTC).Weekday() == weekday {
					count++
				}
			}

			return date.Weekday() == weekday && count == n
		}
	}

	if day, ok := strings.CutSuffix(item, "L"); ok {
		weekday := time.Weekday(oracleValue(day) % 7)
		return func(date time.Time) bool {
			return date.Weekday() == weekday && date.AddDate(0, 0, 7).Month() != date.Month()
		}
	}

	days := map[time.Weekday]bool{}
	for _, n := range oracleValues(item, 0, 7) {
		days[time.Weekday(n%7)] = true
	}

	return func(date time.Time) bool { return days[date.Weekday()] }
}

// on reports whether the rule has a tick on a date, given as midnight in UTC.
func (r *oracleRule) on(date time.Time) bool {
	any := func(days []oracleDay) bool {
		for _, day := range days {
			if day(date) {
				return true
			}
		}

		return false
	}

	dom, dow := any(r.dayOfMonth), any(r.dayOfWeek)
	return r.months[date.Month()] && (dom && dow || !r.bothDays && (dom || dow))
}
