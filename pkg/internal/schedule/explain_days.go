package schedule

import (
	"fmt"
	"time"
)

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
