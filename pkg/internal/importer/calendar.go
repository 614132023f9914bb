package importer

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
)

// calendarWords maps the names of calendar events to their full form.
var calendarWords = map[string]string{
	"minutely": "*-*-* *:*:00", "hourly": "*-*-* *:00:00", "daily": "*-*-* 00:00:00", "monthly": "*-*-01 00:00:00", "weekly": "Mon *-*-* 00:00:00",
	"yearly": "*-01-01 00:00:00", "annually": "*-01-01 00:00:00", "quarterly": "*-01,04,07,10-01 00:00:00", "semiannually": "*-01,07-01 00:00:00",
}

// Calendar converts a calendar event of systemd, as in OnCalendar=, to a cron expression and a time zone, which is
// "" if the event has none. A single time becomes @at; it is in the zone local unless the event has one. Some events
// cannot be converted: other years, fractions of a second, days counted from a month's end except the last, and a
// weekday combined with days of the month, where systemd requires both and cron only one.
func Calendar(text, local string) (expr, zone string, err error) {
	if seconds, ok := strings.CutPrefix(text, "@"); ok {
		n, err := strconv.ParseInt(seconds, 10, 64)
		if err != nil {
			return "", "", fmt.Errorf("%s is not a number of seconds since 1970", quoteShort(text))
		}
		return formatOnce(time.Unix(n, 0)), "", nil
	}

	// The last word may be a time zone.
	words := strings.Fields(text)
	if n := len(words); n > 1 {
		if _, err := schedule.Location(words[n-1]); err == nil && !strings.ContainsAny(words[n-1], ":*") {
			zone, words = words[n-1], words[:n-1]
		}
	}

	if len(words) == 1 {
		if full, ok := calendarWords[strings.ToLower(words[0])]; ok {
			words = strings.Fields(full)
		}
	}

	// Each other word is weekdays, a date or a time. What is missing means every day, at midnight.
	e := calendarEvent{weekdays: "*", month: "*", day: "*", clock: [3]string{"0", "0", "0"}}
	for i, word := range words {
		switch {
		case strings.Contains(word, ":"):
			err = e.parseTime(word)
		case strings.ContainsAny(word, "-~") && !weekdaysPattern.MatchString(word):
			err = e.parseDate(word)
		case i == 0 && weekdaysPattern.MatchString(word):
			e.weekdays, err = parseWeekdays(word)
		default:
			err = fmt.Errorf("%s is neither weekdays nor a date nor a time", quoteShort(word))
		}

		if err != nil {
			return "", "", err
		}
	}

	if len(words) == 0 {
		return "", "", fmt.Errorf("is empty")
	}

	if e.year != "" {
		if zone != "" {
			local = zone
		}
		expr, err = e.toOnce(local)
		return expr, "", err
	}

	expr, err = e.toCron()

	return expr, zone, err
}

// formatOnce returns the schedule with one tick.
func formatOnce(at time.Time) string { return "@at " + at.UTC().Format(time.RFC3339) }

// isOnce reports whether an expression has a single tick.
func isOnce(expr string) bool { return strings.HasPrefix(expr, "@at ") }

// calendarEvent is a calendar event as fields of a cron expression. Weekdays are numbers.
type calendarEvent struct {
	weekdays, month, day string
	clock                [3]string // hour, minute, second
	year                 string    // "": every year
}

// toOnce returns the expression for an event with a year, which must be a single time.
func (e calendarEvent) toOnce(zone string) (string, error) {
	numbers := make([]int, 6)
	for i, text := range []string{e.year, e.month, e.day, e.clock[0], e.clock[1], e.clock[2]} {
		n, err := strconv.Atoi(text)
		if err != nil {
			return "", fmt.Errorf("the year %s is only supported in a single time, such as 2030-12-24 18:00: for a period, use start and end of the task", quoteShort(e.year))
		}
		numbers[i] = n
	}

	location, err := schedule.Location(zone)
	if err != nil {
		return "", err
	}

	at := time.Date(numbers[0], time.Month(numbers[1]), numbers[2], numbers[3], numbers[4], numbers[5], 0, location)
	weekday := strconv.Itoa(int(at.Weekday()))
	if at.Day() != numbers[2] || e.weekdays != "*" && !slices.Contains(strings.Split(e.weekdays, ","), weekday) {
		return "", fmt.Errorf("never elapses: %s-%s-%s is not such a day", e.year, e.month, e.day)
	}

	return formatOnce(at), nil
}

var (
	weekdaysPattern = regexp.MustCompile(`(?i)^(mon|tue|wed|thu|fri|sat|sun)[a-z]*((,|\.\.|-)(mon|tue|wed|thu|fri|sat|sun)[a-z]*)*,?$`)
	dayName         = regexp.MustCompile(`(?i)(mon|tue|wed|thu|fri|sat|sun)[a-z]*`)
	dayNames        = strings.Fields("sun mon tue wed thu fri sat")
)

// parseWeekdays returns weekdays as a list of numbers. Weeks begin on Monday, and a range must not extend beyond
// their end.
func parseWeekdays(word string) (string, error) {
	numbered := dayName.ReplaceAllStringFunc(word, func(name string) string {
		return strconv.Itoa(slices.Index(dayNames, strings.ToLower(name[:3])))
	})

	var days []int
	for item := range strings.SplitSeq(strings.Trim(numbered, ","), ",") {
		from, to, ranged := strings.Cut(strings.ReplaceAll(item, "..", "-"), "-")
		a, err1 := strconv.Atoi(from)

		b, err2 := a, error(nil)
		if ranged {
			b, err2 = strconv.Atoi(to)
		}

		if err1 != nil || err2 != nil || max(a, b) >= len(dayNames) || min(a, b) < 0 { // "ſun" folds to "sun", but is not a day
			return "", fmt.Errorf("cannot parse weekdays %s", quoteShort(word))
		}
		if ranged && (a+6)%7 >= (b+6)%7 {
			return "", fmt.Errorf("weekdays %s: a range goes forward, in a week from Monday to Sunday", quoteShort(word))
		}

		for d := a; ; d = (d + 1) % 7 {
			days = append(days, d)
			if d == b {
				break
			}
		}
	}

	slices.Sort(days)
	days = slices.Compact(days)
	if len(days) == 7 {
		return "*", nil
	}

	texts := make([]string, len(days))
	for i, d := range days {
		texts[i] = strconv.Itoa(d)
	}

	return strings.Join(texts, ","), nil
}

// parseDate parses a date: year-month-day or month-day, where ~ counts days from the month's end.
func (e *calendarEvent) parseDate(word string) (err error) {
	if month, day, fromEnd := strings.Cut(word, "~"); fromEnd {
		if n, err := strconv.Atoi(day); err != nil || n != 1 {
			return fmt.Errorf("%s: of the days that count from the end of the month, only the last is supported", quoteShort(word))
		}
		word, e.day = month, "L"
	} else {
		at := strings.LastIndex(word, "-")
		if e.day, err = calendarField(word[at+1:], 1, 31, "day"); err != nil {
			return err
		}
		word = word[:at]
	}

	year, month, full := strings.Cut(word, "-")
	if !full {
		year, month = "*", word
	}

	if year != "*" {
		e.year = year
		if n, err := strconv.Atoi(year); err == nil && len(year) == 2 {
			e.year = strconv.Itoa(1900 + (n+30)%100 + 70) // 70 to 99 are of the last century
		}
	}

	e.month, err = calendarField(month, 1, 12, "month")

	return err
}

// parseTime parses hour:minute or hour:minute:second.
func (e *calendarEvent) parseTime(word string) (err error) {
	parts := strings.Split(word, ":")
	if len(parts) > 3 {
		return fmt.Errorf("%s is not a time", quoteShort(word))
	}

	for i, part := range parts {
		if e.clock[i], err = calendarField(part, 0, []int{23, 59, 59}[i], []string{"hour", "minute", "second"}[i]); err != nil {
			return err
		}
	}

	return nil
}

// calendarField converts a component to a field of a cron expression: *, lists, a..b, and n/step. systemd has
// neither */step nor a * in a list.
func calendarField(text string, low, high int, name string) (string, error) {
	if text == "" {
		return "", fmt.Errorf("the %s is missing", name)
	}
	if text == "*" {
		return text, nil
	}
	if strings.Contains(text, ".") && !strings.Contains(text, "..") {
		return "", fmt.Errorf("%s %s: fractions of a second are not supported", name, quoteShort(text))
	}

	var out []string
	for item := range strings.SplitSeq(text, ",") {
		values, step, stepped := strings.Cut(item, "/")
		from, to, ranged := strings.Cut(values, "..")
		field := ""

		a, b, err := parseRange(from, to, ranged)
		switch {
		case err != nil || a < low || b > high || a > b:
			return "", fmt.Errorf("%s %s is not between %d and %d", name, quoteShort(item), low, high)
		case ranged:
			field = fmt.Sprintf("%d-%d", a, b)
		case stepped:
			field = fmt.Sprintf("%d-%d", a, high)
		default:
			field = strconv.Itoa(a)
		}

		if stepped {
			n, err := strconv.Atoi(step)
			if err != nil || n < 1 || n > high-a {
				return "", fmt.Errorf("%s %s: a period is a number, and the first repetition at most %d", name, quoteShort(item), high)
			}
			field += "/" + strconv.Itoa(n)
		}

		out = append(out, field)
	}

	return strings.Join(out, ","), nil
}

// parseRange parses both ends of a range, or a single value.
func parseRange(from, to string, ranged bool) (a, b int, err error) {
	if a, err = strconv.Atoi(from); err != nil || !ranged {
		return a, a, err
	}
	b, err = strconv.Atoi(to)
	return a, b, err
}

// weekOfDays maps ranges of days that are whole weeks to their number in the month. A weekday combined with such a
// range is the n-th weekday of the month.
var weekOfDays = map[string]int{"1-7": 1, "8-14": 2, "15-21": 3, "22-28": 4}

// toCron returns the cron expression.
func (e calendarEvent) toCron() (string, error) {
	if e.weekdays != "*" && !strings.HasPrefix(e.day, "*") { // if a day field starts with *, cron requires both, too
		nth, ok := weekOfDays[e.day]
		if !ok {
			return "", fmt.Errorf("weekdays combined with days of the month are not supported, except for whole weeks such as days 1-7 or 8-14")
		}

		var days []string
		for d := range strings.SplitSeq(e.weekdays, ",") {
			days = append(days, fmt.Sprintf("%s#%d", d, nth))
		}

		e.weekdays, e.day = strings.Join(days, ","), "*"
	}

	fields := []string{e.clock[1], e.clock[0], e.day, e.month, e.weekdays}
	if e.clock[2] != "0" {
		fields = slices.Insert(fields, 0, e.clock[2])
	}

	return strings.Join(fields, " "), nil
}

// spanUnits maps the units of systemd to durations.
var spanUnits = map[string]time.Duration{
	"": time.Second, "s": time.Second, "sec": time.Second, "second": time.Second, "seconds": time.Second,
	"ms": time.Millisecond, "msec": time.Millisecond, "us": time.Microsecond, "usec": time.Microsecond,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hour": time.Hour, "hours": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour, "days": 24 * time.Hour,
	"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour, "weeks": 7 * 24 * time.Hour,
	"M": 730*time.Hour + 30*time.Minute, "month": 730*time.Hour + 30*time.Minute, "months": 730*time.Hour + 30*time.Minute, // 30.44 days
	"y": 8766 * time.Hour, "year": 8766 * time.Hour, "years": 8766 * time.Hour, // 365.25 days
}

// parseTimespan parses a time span of systemd: 1h 30min, 90, 2d. "infinity" is 0.
func parseTimespan(text string) (time.Duration, error) {
	if text == "infinity" {
		return 0, nil
	}

	var total float64
	rest := strings.TrimSpace(text)
	if rest == "" {
		return 0, fmt.Errorf("is empty")
	}

	for rest != "" {
		end := strings.IndexFunc(rest, func(r rune) bool { return !unicode.IsDigit(r) && r != '.' })
		if end < 0 {
			end = len(rest)
		}

		n, err := strconv.ParseFloat(rest[:end], 64)
		if err != nil {
			return 0, fmt.Errorf("%s is not a span of time", quoteShort(text))
		}

		rest = strings.TrimLeft(rest[end:], " \t")
		end = strings.IndexFunc(rest, func(r rune) bool { return !unicode.IsLetter(r) })
		if end < 0 {
			end = len(rest)
		}

		unit, ok := spanUnits[rest[:end]]
		if !ok {
			return 0, fmt.Errorf("%s: %s is not a unit of time", quoteShort(text), quoteShort(rest[:end]))
		}

		total += n * float64(unit)
		rest = strings.TrimLeft(rest[end:], " \t")
	}

	if total > float64(100*8766*time.Hour) {
		return 0, fmt.Errorf("%s is longer than a hundred years", quoteShort(text))
	}

	return time.Duration(total), nil
}
