package schedule

import (
	"fmt"
	"strings"
)

// byName describes a value that H stands for.
const byName = "derived from the task's name"

// spreadRule describes a rule whose expression contains H. In r, an arbitrary value stands in the place of each H.
// So those fields are described from the text instead.
func spreadRule(r *rule, fields []string) string {
	if len(fields) == maxFields-1 {
		fields = append([]string{"0"}, fields...)
	}

	words := []string{r.spreadClock(fields)}
	rest := *r
	if hasH(fields[3]) {
		words = append(words, "on "+spreadField(fields[3], "day of the month", "days of the month"))
		rest.days, rest.special.lastDay, rest.special.lastWorkday, rest.special.nearest = everyDay, false, false, 0
	}

	if hasH(fields[5]) {
		words = append(words, "on "+spreadField(fields[5], "day of the week", "days of the week"))
		rest.weekdays, rest.special.nth, rest.special.last = everyWeekday, [5]uint8{}, 0
	}

	if hasH(fields[4]) {
		words = append(words, "in "+spreadField(fields[4], "month", "months"))
		rest.months = everyMonth
	}

	rest.hasSpecial = rest.special != special{}
	switch day := rest.dayWords(); {
	case day != "":
		words = append(words, day)
	case len(words) == 1 && (hasH(fields[2]) || r.hours != 1<<24-1):
		words[0] += " every day"
	}

	return strings.Join(words, ", ")
}

// spreadClock describes the times of day.
func (r *rule) spreadClock(fields []string) string {
	seconds, minutes, hours := fields[0], fields[1], fields[2]
	if !hasH(seconds) && !hasH(minutes) && !hasH(hours) {
		return r.clockWords()
	}

	if !hasH(seconds) && r.seconds == 1 {
		hour, within := hours[1:], strings.HasPrefix(hours[1:], "(") && strings.HasSuffix(hours, ")")
		switch {
		case strings.EqualFold(minutes, "H") && strings.EqualFold(hours, "H"):
			return "at a time of day " + byName
		case strings.EqualFold(minutes, "H") && within && !strings.Contains(hour, ","):
			from, to, _ := strings.Cut(strings.Trim(hour, "()"), "-")
			return fmt.Sprintf("at a time from %02s:00 to %02s:59 %s", from, to, byName)
		case strings.EqualFold(minutes, "H") && r.hours == 1<<24-1:
			return "every hour, at a minute " + byName
		}
	}

	var words []string
	for i, f := range []struct {
		unit string
		set  uint64
		all  uint64
	}{{"second", r.seconds, 1<<60 - 1}, {"minute", r.minutes, 1<<60 - 1}, {"hour", uint64(r.hours), 1<<24 - 1}} {
		switch {
		case hasH(fields[i]):
			words = append(words, "at "+spreadField(fields[i], f.unit, f.unit+"s"))
		case i == 0 && f.set == 1:
		case f.set == f.all:
			words = append(words, "every "+f.unit)
		case i == 2:
			words = append(words, hourWords(setMembers(f.set)))
		default:
			words = append(words, "at "+f.unit+" "+enumerateValues(setMembers(f.set), twoDigits))
		}
	}

	return strings.Join(words, ", ")
}

// spreadField describes the values of a field with H.
func spreadField(text, unit, several string) string {
	if strings.Contains(text, ",") {
		return several + ", some of them derived from the task's name"
	}

	within, step, stepped := strings.Cut(text[1:], "/")
	from, to, ranged := strings.Cut(strings.Trim(within, "()"), "-")
	span := ""
	if ranged {
		span = fmt.Sprintf(" from %s to %s", strings.ToUpper(from), strings.ToUpper(to))
	}

	if stepped {
		return fmt.Sprintf("every %s %s%s, starting at one %s", stepOrdinal(step), unit, span, byName)
	}
	if unit == "hour" {
		return "an hour" + span + " " + byName
	}

	return "a " + unit + span + " " + byName
}

// stepOrdinal formats the step of a field, as in "every 3rd hour".
func stepOrdinal(text string) string {
	n, _ := parseDigits(text) // checked when the expression was parsed
	if n == 1 {
		return "single"
	}
	return formatOrdinal(n)
}
