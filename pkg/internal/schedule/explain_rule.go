package schedule

import (
	"fmt"
	"strings"
	"time"
)

// maxTimes is how many times of day are listed individually.
const maxTimes = 6

// describeRule describes when a rule has ticks.
func (r *rule) describeRule() string {
	day := r.dayWords()
	switch {
	case day != "":
		return r.clockWords() + ", " + day
	case r.hours != 1<<24-1:
		return r.clockWords() + " every day"
	}

	return r.clockWords()
}

// clockWords describes at which times of a day a rule has ticks. It chooses the shortest form that is exact: times
// of day, a beat ("every 10 minutes from 08:00 to 17:50"), or minutes and hours separately.
func (r *rule) clockWords() string {
	seconds, minutes, hours := setMembers(r.seconds), setMembers(r.minutes), setMembers(uint64(r.hours))
	if len(seconds) > 1 {
		return secondWords(seconds, minutes, hours)
	}

	at := ""
	if seconds[0] != 0 {
		at = fmt.Sprintf(", at second %d", seconds[0])
	}

	hourly, isBeat := beatOf(hours)
	of := func(hour, minute int) string {
		if seconds[0] != 0 {
			return fmt.Sprintf("%02d:%02d:%02d", hour, minute, seconds[0])
		}
		return fmt.Sprintf("%02d:%02d", hour, minute)
	}

	switch {
	case len(hours) == 24:
		return minuteWords(minutes) + at
	case len(hours)*len(minutes) <= maxTimes && !(len(minutes) == 1 && isBeat), len(minutes) == 1 && !isBeat:
		return "at " + timesOfDay(hours, minutes, of)
	case len(minutes) == 1 && hourly.by == 1:
		return fmt.Sprintf("every hour from %s to %s", of(hourly.from, minutes[0]), of(hourly.to, minutes[0]))
	case len(minutes) == 1:
		return fmt.Sprintf("every %d hours from %s to %s", hourly.by, of(hourly.from, minutes[0]), of(hourly.to, minutes[0]))
	}

	if b, ok := beatOf(minutes); ok && b.isSteady(60) && isContiguous(hours) {
		return fmt.Sprintf("every %s from %s to %s", countUnit(b.by, "minute"), of(hours[0], b.from), of(hours[len(hours)-1], b.to))
	}

	return minuteWords(minutes) + at + ", " + hourWords(hours)
}

// timesOfDay lists all combinations of hours and minutes.
func timesOfDay(hours, minutes []int, of func(hour, minute int) string) string {
	var times []string
	for _, h := range hours {
		for _, m := range minutes {
			times = append(times, of(h, m))
		}
	}

	return joinWithAnd(times)
}

// countUnit returns "minute" for 1, and "5 minutes" for 5: what follows "every".
func countUnit(n int, unit string) string {
	if n == 1 {
		return unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

// minuteWords describes the minutes of every hour.
func minuteWords(minutes []int) string {
	past := func(m int) string { return ":" + twoDigits(m) }
	b, isBeat := beatOf(minutes)
	switch {
	case len(minutes) == 1 && minutes[0] == 0:
		return "every hour, on the hour"
	case len(minutes) == 1:
		return "every hour at " + past(minutes[0])
	case isBeat && b.isSteady(60) && b.from == 0:
		return "every " + countUnit(b.by, "minute")
	case isBeat && b.isSteady(60):
		return fmt.Sprintf("every %s from %s on", countUnit(b.by, "minute"), past(b.from))
	case isBeat:
		return fmt.Sprintf("every %s from %s to %s of each hour", countUnit(b.by, "minute"), past(b.from), past(b.to))
	}

	return "at " + enumerateValues(minutes, past) + " of each hour"
}

// hourWords describes the hours of a day.
func hourWords(hours []int) string {
	b, isBeat := beatOf(hours)
	switch {
	case len(hours) == 1:
		return "in the hour of " + twoDigits(hours[0])
	case isBeat && b.by > 1:
		return fmt.Sprintf("in every %s hour from %02d to %02d", formatOrdinal(b.by), b.from, b.to)
	case isBeat:
		return fmt.Sprintf("in the hours from %02d to %02d", b.from, b.to)
	}

	return "in the hours " + enumerateValues(hours, twoDigits)
}

// secondWords describes a rule with several seconds in a minute.
func secondWords(seconds, minutes, hours []int) string {
	words := "at the seconds " + enumerateValues(seconds, twoDigits) + " of each minute"
	if b, ok := beatOf(seconds); ok {
		words = fmt.Sprintf("every %s from second %d to %d of each minute", countUnit(b.by, "second"), b.from, b.to)
		if b.isSteady(60) {
			words = "every " + countUnit(b.by, "second")
			if b.from > 0 {
				words += fmt.Sprintf(" from second %d on", b.from)
			}
		}
	}

	clock := func(h, m int) string { return twoDigits(h) + ":" + twoDigits(m) }
	b, isBeat := beatOf(minutes)

	switch {
	case len(hours) == 24 && len(minutes) == 60:
		return words
	case len(minutes) == 60 && isContiguous(hours):
		return fmt.Sprintf("%s, from %s to %s", words, clock(hours[0], 0), clock(hours[len(hours)-1], 59))
	case len(minutes) == 60:
		return words + ", " + hourWords(hours)
	case len(minutes)*len(hours) <= maxTimes:
		return words + ", in the " + pluralNoun(len(minutes)*len(hours), "minute") + " of " + timesOfDay(hours, minutes, clock)
	}

	which := "in the " + pluralNoun(len(minutes), "minute") + " " + enumerateValues(minutes, func(m int) string { return ":" + twoDigits(m) })
	if isBeat && b.by > 1 {
		which = fmt.Sprintf("in every %s minute from :%02d to :%02d", formatOrdinal(b.by), b.from, b.to)
	}

	if len(hours) == 24 {
		return words + ", " + which + " of each hour"
	}

	return words + ", " + which + ", " + strings.TrimSpace(hourWords(hours))
}

// Bit sets with all values of their field.
const (
	everyDay     = 1<<32 - 2 // bits 1 to 31
	everyWeekday = 1<<7 - 1
	everyMonth   = 1<<13 - 2 // bits 1 to 12
)

// dayWords describes on which days a rule has ticks; "" if on all.
func (r *rule) dayWords() string {
	byDay, byWeekday := r.days != everyDay, r.weekdays != everyWeekday
	if !r.bothDays && (!byDay || !byWeekday) {
		byDay, byWeekday = false, false // one match is enough, and one field always matches
	}

	months := r.monthWords()

	// A few dates are clearer than days and months.
	if dates := r.describeDates(); dates != "" && byDay && !byWeekday {
		return dates
	}

	var words string

	switch {
	case byDay && byWeekday && r.bothDays:
		words = r.weekdayWords() + ", but only on " + r.monthdayWords() + " of the month"
	case byDay && byWeekday:
		words = "on " + r.monthdayWords() + " of the month, and also " + r.weekdayWords()
	case byDay:
		words = "on " + r.monthdayWords() + " of the month"
	case byWeekday:
		words = r.weekdayWords()
	case months != "":
		return "every day " + months
	}

	if months != "" {
		words += ", " + months
	}

	return words
}

// describeDates lists up to three dates of a year, such as "24 December"; "" if there are more.
func (r *rule) describeDates() string {
	days, months := setMembers(uint64(r.days)), setMembers(uint64(r.months))
	if r.hasSpecial || len(months) == 12 || len(days)*len(months) > 3 {
		return ""
	}

	var dates []string
	for _, m := range months {
		for _, d := range days {
			dates = append(dates, fmt.Sprintf("%d %s", d, time.Month(m)))
		}
	}

	return "on " + joinWithAnd(dates)
}

// monthWords describes the months; "" if all match.
func (r *rule) monthWords() string {
	if r.months == everyMonth {
		return ""
	}
	return "in " + enumerateValues(setMembers(uint64(r.months)), func(m int) string { return time.Month(m).String() })
}

// monthdayWords describes the days of the month, such as "the 1st, the 15th and the last day".
func (r *rule) monthdayWords() string {
	var items []string
	days := setMembers(uint64(r.days))
	if b, ok := beatOf(days); ok && b.by > 1 && len(days) > 3 {
		items = append(items, fmt.Sprintf("every %s day from the %s to the %s", formatOrdinal(b.by), formatOrdinal(b.from), formatOrdinal(b.to)))
	} else if len(days) > 0 {
		items = append(items, enumerateValues(days, func(d int) string { return "the " + formatOrdinal(d) }))
	}

	for _, d := range setMembers(uint64(r.special.nearest)) {
		items = append(items, "the working day nearest to the "+formatOrdinal(d))
	}

	if r.special.lastWorkday {
		items = append(items, "the last working day")
	}

	if r.special.lastDay {
		items = append(items, "the last day")
	}

	return joinWithAnd(items)
}

// weekdayWords describes the days of the week: "Monday to Friday", "on Sundays", "on the last Friday of the month".
func (r *rule) weekdayWords() string {
	var days []int // from Monday, 1, to Sunday, 7
	for _, d := range setMembers(uint64(r.weekdays)>>1 | uint64(r.weekdays)&1<<6) {
		days = append(days, d+1)
	}

	name := func(d int) string { return time.Weekday(d % 7).String() }
	var places []string
	for i, word := range [...]string{"first", "second", "third", "fourth", "fifth"} {
		for _, d := range setMembers(uint64(r.special.nth[i])) {
			places = append(places, "the "+word+" "+name(d))
		}
	}

	for _, d := range setMembers(uint64(r.special.last)) {
		places = append(places, "the last "+name(d))
	}

	if len(places) > 0 {
		words := "on " + joinWithAnd(places) + " of the month"
		if len(days) > 0 {
			words += ", and " + plainWeekdays(days, name)
		}
		return words
	}

	return plainWeekdays(days, name)
}

// plainWeekdays lists weekdays without a place in the month.
func plainWeekdays(days []int, name func(int) string) string {
	if len(days) > 2 && isContiguous(days) {
		return enumerateValues(days, name)
	}
	return "on " + enumerateValues(days, func(d int) string { return name(d) + "s" })
}

// setMembers returns the members of a bit set in ascending order.
func setMembers(set uint64) []int {
	var list []int
	for n := range 64 {
		if set>>n&1 != 0 {
			list = append(list, n)
		}
	}

	return list
}

// beat is a list of values at equal distances: from, from+by, … to.
type beat struct{ from, to, by int }

// beatOf returns the beat that a list of at least three values forms, or false if it forms none.
func beatOf(list []int) (beat, bool) {
	if len(list) < 3 {
		return beat{}, false
	}

	b := beat{list[0], list[len(list)-1], list[1] - list[0]}

	for i := range list[1:] {
		if list[i+1]-list[i] != b.by {
			return beat{}, false
		}
	}

	return b, true
}

// isSteady reports whether the beat continues evenly over the end of a round, such as the 60 minutes of an hour.
func (b beat) isSteady(round int) bool {
	return round%b.by == 0 && b.from < b.by && b.to+b.by >= round
}

// isContiguous reports whether values follow each other without a gap. A single value does.
func isContiguous(list []int) bool { return list[len(list)-1]-list[0] == len(list)-1 }

// enumerateValues lists values by name. It shortens three or more consecutive values to their first and last.
func enumerateValues(list []int, name func(int) string) string {
	var items []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}

		if j-i >= 2 {
			items = append(items, name(list[i])+" to "+name(list[j]))
		} else {
			for k := i; k <= j; k++ {
				items = append(items, name(list[k]))
			}
		}

		i = j + 1
	}

	return joinWithAnd(items)
}

// joinWithAnd joins items as "a, b and c".
func joinWithAnd(items []string) string {
	if len(items) < 2 {
		return strings.Join(items, "")
	}
	return strings.Join(items[:len(items)-1], ", ") + " and " + items[len(items)-1]
}

// formatOrdinal formats a number as 1st, 2nd, 3rd, 4th.
func formatOrdinal(n int) string {
	suffix := "th"
	if n/10%10 != 1 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}

	return fmt.Sprintf("%d%s", n, suffix)
}

// twoDigits formats a number with two digits.
func twoDigits(n int) string { return fmt.Sprintf("%02d", n) }
