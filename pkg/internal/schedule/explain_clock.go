package schedule

import (
	"fmt"
	"strings"
)

// mostTimes is how many times of day are listed individually.
const mostTimes = 6

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
	case len(hours)*len(minutes) <= mostTimes && !(len(minutes) == 1 && isBeat), len(minutes) == 1 && !isBeat:
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
	case len(minutes)*len(hours) <= mostTimes:
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
