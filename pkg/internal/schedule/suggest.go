package schedule

import (
	"archive/zip"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// maxMeant limits the length of a suggestion, so that messages stay short.
const maxMeant = 64

// suggestMeant returns the end of an error message about an invalid expression: what the user probably meant, or
// "". It suggests only what is itself valid, and only what can mean what was written: the forms of other schedulers
// come first, because their fields have another order.
func suggestMeant(words []string) string {
	if len(words) > 2*maxFields {
		return ""
	}

	for _, guess := range []func([]string) string{eventBridge, calendarEvent, steadyBeat, withoutSign, plainCron, wrongPlace, nextValue} {
		text := guess(words)
		if text == "" || len(text) > maxMeant || text == strings.Join(words, " ") {
			continue
		}
		if _, err := readExpression("schedule", text, true, noGuess); err == nil {
			return fmt.Sprintf("; did you mean %q?", text)
		}
	}

	if m := callPattern.FindStringSubmatch(strings.Join(words, " ")); m != nil && m[1] == "cron" {
		words = strings.Fields(m[2])
	}
	if len(words) > maxFields-1 && yearPattern.MatchString(words[len(words)-1]) {
		return "; for one date use @at, and for certain years the fields start and end"
	}

	return ""
}

// yearPattern matches a year field that names certain years.
var yearPattern = regexp.MustCompile(`^(19|20|21)[0-9]{2}([-,/].*)?$`)

// callPattern matches the forms cron(…), rate(…) and at(…) of EventBridge.
var callPattern = regexp.MustCompile(`^(cron|rate|at)\((.*)\)$`)

// eventBridge suggests the form of an expression of EventBridge. Its cron has the fields minute, hour, day of month,
// month, day of week and year, of which a day field is ?. That tells it from six fields that begin with seconds.
func eventBridge(words []string) string {
	if m := callPattern.FindStringSubmatch(strings.Join(words, " ")); m != nil {
		switch words = strings.Fields(m[2]); {
		case m[1] == "rate":
			if d, ok := task.MeantDuration(m[2]); ok {
				return "@every " + d.String()
			}
			return ""
		case m[1] == "at":
			return "@at " + m[2] + "Z" // without a zone of its own, it is in UTC
		case len(words) != maxFields:
			return ""
		}
	}

	if !isEventBridge(words) || words[5] != "*" {
		return ""
	}

	fields := slices.Clone(words[:maxFields-1])
	for i, word := range fields {
		if word == "?" {
			fields[i] = "*"
		}
	}

	// 1 is Sunday there. A number behind # or / is no weekday.
	fields[4] = weekdayNumber.ReplaceAllStringFunc(fields[4], func(text string) string {
		n := int(text[len(text)-1] - '0')
		if text[0] == '#' || text[0] == '/' || n < 1 || n > 7 {
			return text
		}
		return dayOfWeek.names[n-1]
	})

	return strings.Join(fields, " ")
}

// weekdayNumber matches a number in a day of week, with the # or / before it.
var weekdayNumber = regexp.MustCompile(`[#/]?[0-9]+`)

// isEventBridge reports whether six words have a ? where EventBridge has its day fields, and cron with seconds has hours and
// months.
func isEventBridge(words []string) bool {
	return len(words) == maxFields && (words[2] == "?" || words[4] == "?")
}

// calendarPattern matches the simple forms of a calendar event of systemd: days of the week, any date, a time of day.
var calendarPattern = regexp.MustCompile(`^(?:([A-Za-z]{3}(?:(?:,|\.\.)[A-Za-z]{3})*) )?(?:\*-\*-\* )?([0-9]{1,2}):([0-9]{2})(?::00)?$`)

// calendarEvent suggests the form of a calendar event of systemd.
func calendarEvent(words []string) string {
	m := calendarPattern.FindStringSubmatch(strings.Join(words, " "))
	if m == nil || len(words) == 1 {
		return "" // withoutSign reads a time of day
	}

	hour, _ := strconv.Atoi(m[2])
	minute, _ := strconv.Atoi(m[3])
	days := "*"
	if m[1] != "" {
		days = strings.ToUpper(strings.ReplaceAll(m[1], "..", "-"))
	}

	return fmt.Sprintf("%d %d * * %s", minute, hour, days)
}

// noGuess suggests nothing.
func noGuess([]string) string { return "" }

// steadyBeat suggests @every for a step that is too long for its field, if every larger field is a plain *, and every smaller
// one has a single value. A step of exactly the field's size matches only its first value in cron.
func steadyBeat(words []string) string {
	first := maxFields - len(words)
	if first < 0 || first > 1 {
		return ""
	}

	for i, word := range words {
		f := &cronFields[first+i]
		text, ok := strings.CutPrefix(word, "*/")
		n, isStep := parseDigits(text)
		if !ok || !isStep || n <= f.max || n > 10_000 || f.unit == "" {
			continue
		}
		if n == f.max+1 {
			first := slices.Clone(words)
			first[i] = "0"
			return strings.Join(first, " ")
		}
		if slices.ContainsFunc(words[i+1:], func(w string) bool { return w != "*" }) || slices.ContainsFunc(words[:i], func(w string) bool { return !isNumber(w) }) {
			return "" // @every ticks once each time
		}

		return fmt.Sprintf("@every %d%s", n, f.unit)
	}

	return ""
}

// timeOfDay matches a time such as 02:30.
var timeOfDay = regexp.MustCompile(`^([01]?[0-9]|2[0-3]):([0-5][0-9])$`)

// withoutSign suggests the correct form for phrases without an @: daily, every 5 minutes, 90s, 02:30,
// 2026-12-24T18:00:00Z.
func withoutSign(words []string) string {
	text := strings.ToLower(strings.Join(words, " "))
	if len(words) == 1 && nicknameFields["@"+text] != "" || text == "manual" || text == "reboot" {
		return "@" + text
	}

	if m := timeOfDay.FindStringSubmatch(strings.TrimPrefix(text, "at ")); m != nil {
		hour, _ := strconv.Atoi(m[1])
		minute, _ := strconv.Atoi(m[2])
		return fmt.Sprintf("%d %d * * *", minute, hour)
	}

	if len(words) == 1 && rfc3339.MatchString(words[0]) {
		return "@at " + words[0]
	}

	period, every := strings.CutPrefix(text, "every ")
	if !every && len(words) > 2 {
		return ""
	}

	switch period { // with the phase of cron: @every counts from when the task is written
	case "second":
		return "* * * * * *"
	case "minute":
		return "* * * * *"
	case "hour":
		return "@hourly"
	case "day":
		return "@daily"
	case "week":
		return "@weekly"
	case "month":
		return "@monthly"
	}

	if !every && !strings.ContainsAny(period, "smhd") { // a number alone may mean anything
		return ""
	}
	if d, ok := task.MeantDuration(period); ok {
		return "@every " + d.String()
	}

	return ""
}

// oneDuration returns the end of a message about a duration that was written in several words, or "".
func oneDuration(sign string, words []string) string {
	if d, ok := task.MeantDuration(strings.Join(words, " ")); ok && len(words) > 0 {
		return fmt.Sprintf("; did you mean \"%s %s\"?", sign, d)
	}
	return ""
}

// plainCron suggests an expression without Quartz's year field, and with * for the ? of a month. In a smaller field, "no specific
// value" may as well mean any single one.
func plainCron(words []string) string {
	if isEventBridge(words) {
		return ""
	}

	plain := slices.Clone(words)
	if len(plain) == maxFields+1 && plain[maxFields] == "*" {
		plain = plain[:maxFields]
	}

	first := maxFields - len(plain)

	for i, word := range plain {
		if f := first + i; word == "?" && f >= 0 && f < maxFields && cronFields[f].name == "month" {
			plain[i] = "*"
		}
	}

	return strings.Join(plain, " ")
}

// wrongPlace suggests moving names of days or months to their own field, if that field is *.
func wrongPlace(words []string) string {
	first := maxFields - len(words)
	if first < 0 || first > 1 {
		return ""
	}

	moved := slices.Clone(words)
	for i, word := range moved {
		for j := range moved {
			if f := &cronFields[first+j]; i != j && f.names != nil && f.hasName(word) && moved[j] == "*" {
				moved[i], moved[j] = "*", word
				return strings.Join(moved, " ")
			}
		}
	}

	return ""
}

// hasName reports whether a word contains the name of one of the field's values.
func (f *field) hasName(word string) bool {
	parts := strings.FieldsFunc(strings.ToUpper(word), func(r rune) bool { return r < 'A' || r > 'Z' })
	return slices.ContainsFunc(parts, func(p string) bool { return slices.Contains(f.names, p) })
}

// nextValue suggests 0 for the value after a field's last (minute 60), if all larger fields match any value, and the short form
// of names that are written out.
func nextValue(words []string) string {
	first := maxFields - len(words)
	if first < 0 || first > 1 {
		return ""
	}

	better := slices.Clone(words)
	for i, word := range better {
		f := &cronFields[first+i]
		if n, ok := parseDigits(word); ok && f.unit != "" && n == f.max+1 {
			if slices.ContainsFunc(better[i+1:], func(w string) bool { return w != "*" }) {
				return "" // 24:00 of Monday is on Tuesday
			}
			better[i] = "0"
			continue
		}

		if f.names == nil {
			continue
		}

		better[i] = lettersPattern.ReplaceAllStringFunc(word, func(name string) string {
			for _, known := range f.names {
				if len(name) >= 2 && (strings.HasPrefix(strings.ToUpper(name), known) || strings.HasPrefix(known, strings.ToUpper(name))) {
					return known
				}
			}

			return name
		})
	}

	return strings.Join(better, " ")
}

// lettersPattern matches a word of at least two letters.
var lettersPattern = regexp.MustCompile(`[A-Za-z]{2,}`)

// zoneAbbreviations maps abbreviations that people use as zones to a zone that uses them. An abbreviation is only
// an offset: it does not determine when clocks change, and several countries use the same letters.
var zoneAbbreviations = map[string]string{
	"CEST": "Europe/Berlin", "MEZ": "Europe/Berlin", "MESZ": "Europe/Berlin", "WEST": "Europe/Lisbon", "EEST": "Europe/Athens",
	"BST": "Europe/London", "MSK": "Europe/Moscow", "TRT": "Europe/Istanbul",
	"ET": "America/New_York", "EDT": "America/New_York", "CT": "America/Chicago", "CDT": "America/Chicago", "MDT": "America/Denver",
	"MT": "America/Denver", "PT": "America/Los_Angeles", "PST": "America/Los_Angeles", "PDT": "America/Los_Angeles",
	"AKST": "America/Anchorage", "AKDT": "America/Anchorage", "AST": "America/Halifax", "BRT": "America/Sao_Paulo",
	"IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "KST": "Asia/Seoul", "SGT": "Asia/Singapore", "HKT": "Asia/Hong_Kong", "PKT": "Asia/Karachi",
	"AEST": "Australia/Sydney", "AEDT": "Australia/Sydney", "ACST": "Australia/Adelaide", "AWST": "Australia/Perth",
	"NZST": "Pacific/Auckland", "NZDT": "Pacific/Auckland", "SAST": "Africa/Johannesburg", "CAT": "Africa/Maputo", "EAT": "Africa/Nairobi",
	"Z": "UTC",
}

// zoneAliases maps names that people and other systems use for a zone to its name, in the form of zoneAlias: large cities
// without a zone of their own, and the names of Windows.
var zoneAliases = map[string]string{
	"beijing": "Asia/Shanghai", "shenzhen": "Asia/Shanghai", "guangzhou": "Asia/Shanghai", "osaka": "Asia/Tokyo",
	"mumbai": "Asia/Kolkata", "bombay": "Asia/Kolkata", "delhi": "Asia/Kolkata", "new delhi": "Asia/Kolkata", "bangalore": "Asia/Kolkata",
	"bengaluru": "Asia/Kolkata", "chennai": "Asia/Kolkata", "hyderabad": "Asia/Kolkata", "abu dhabi": "Asia/Dubai", "hanoi": "Asia/Ho_Chi_Minh",
	"islamabad": "Asia/Karachi", "ankara": "Europe/Istanbul", "munich": "Europe/Berlin", "hamburg": "Europe/Berlin", "frankfurt": "Europe/Berlin",
	"cologne": "Europe/Berlin", "geneva": "Europe/Zurich", "bern": "Europe/Zurich", "barcelona": "Europe/Madrid", "milan": "Europe/Rome",
	"manchester": "Europe/London", "edinburgh": "Europe/London", "cape town": "Africa/Johannesburg", "pretoria": "Africa/Johannesburg",
	"san francisco": "America/Los_Angeles", "seattle": "America/Los_Angeles", "portland": "America/Los_Angeles", "las vegas": "America/Los_Angeles",
	"boston": "America/New_York", "washington": "America/New_York", "miami": "America/New_York", "atlanta": "America/New_York",
	"philadelphia": "America/New_York", "houston": "America/Chicago", "dallas": "America/Chicago", "austin": "America/Chicago",
	"ottawa": "America/Toronto", "calgary": "America/Edmonton", "rio de janeiro": "America/Sao_Paulo", "brasilia": "America/Sao_Paulo",
	"eastern time": "America/New_York", "central time": "America/Chicago", "mountain time": "America/Denver", "pacific time": "America/Los_Angeles", "wellington": "Pacific/Auckland", "china standard time": "Asia/Shanghai", "tokyo standard time": "Asia/Tokyo",
	"india standard time": "Asia/Kolkata", "w. europe standard time": "Europe/Berlin", "romance standard time": "Europe/Paris",
	"central europe standard time": "Europe/Budapest", "gmt standard time": "Europe/London", "eastern standard time": "America/New_York",
	"central standard time": "America/Chicago", "mountain standard time": "America/Denver", "pacific standard time": "America/Los_Angeles",
	"aus eastern standard time": "Australia/Sydney", "e. south america standard time": "America/Sao_Paulo",
}

// zoneAlias returns the zone for a name of zoneAliases, with or without a continent, or "".
func zoneAlias(name string) string {
	name = strings.ToLower(strings.ReplaceAll(name, "_", " "))
	return zoneAliases[name[strings.LastIndex(name, "/")+1:]]
}

// offsetPattern matches offsets such as UTC+2, GMT-03:00 and +05:30.
var offsetPattern = regexp.MustCompile(`^(?i:UTC|GMT)?([+-])0?([0-9]{1,2})(?::?([0-9]{2}))?$`)

// unknownZone returns the error for an unknown name, with the most similar valid one.
func unknownZone(name string, files map[string]*zip.File) error {
	refuse := func(format string, args ...any) error {
		return task.Invalid(task.CodeBadTimezone, "timezone", "%s %s", task.Quote(name), fmt.Sprintf(format, args...))
	}

	if strings.EqualFold(name, "local") {
		return refuse("differs from host to host; name a zone, such as \"Europe/Berlin\"")
	}

	for known := range files {
		if strings.EqualFold(known, name) {
			return refuse("is not a time zone; did you mean %q?", known)
		}
	}

	if zone := zoneAbbreviations[strings.ToUpper(name)]; zone != "" {
		return refuse("is not a time zone but an abbreviation, which does not say when clocks change; did you mean %q?", zone)
	}
	if m := offsetPattern.FindStringSubmatch(name); m != nil {
		return refuse("is not a time zone but an offset, which does not say when clocks change; use a name such as \"Europe/Berlin\"%s", fixedZone(m, files))
	}
	if zone := zoneAlias(name); zone != "" {
		return refuse("is not a time zone; did you mean %q?", zone)
	}
	if near := nearestZone(name, files); near != "" {
		return refuse("is not a time zone; did you mean %q?", near)
	}

	return refuse("is not a time zone; use a name of the IANA database, such as \"Europe/Berlin\"")
}

// fixedZone suggests the zone with a fixed offset from UTC, or "". The names of these zones have POSIX's sign,
// which is the opposite of the usual one.
func fixedZone(offset []string, files map[string]*zip.File) string {
	sign := "-"
	if offset[1] == "-" {
		sign = "+"
	}

	name := "Etc/GMT" + sign + offset[2]
	if files[name] == nil || strings.Trim(offset[3], "0") != "" {
		return ""
	}

	return fmt.Sprintf(", or %q", name)
}

// nearestZone returns the zone with a similar name, or with a city of a similar name; "" if there is none.
func nearestZone(name string, files map[string]*zip.File) string {
	if len(name) > 40 {
		return "" // longer than the name of any zone
	}

	known := slices.Sorted(maps.Keys(files))
	text := strings.ReplaceAll(name, " ", "_")
	if near := task.Nearest(text, known); near != "" && strings.Contains(text, "/") {
		return near
	}

	city := text[strings.LastIndex(text, "/")+1:]
	if len(city) < 4 {
		return ""
	}

	cities := make([]string, len(known))
	for i, zone := range known {
		cities[i] = zone[strings.LastIndex(zone, "/")+1:]
	}

	near := task.Nearest(city, cities)
	if near == "" {
		return ""
	}

	return known[slices.Index(cities, near)]
}

// ZoneNames returns the names of all zones that begin with prefix, regardless of case, in order.
func ZoneNames(prefix string) []string {
	files, err := zoneFiles()
	if err != nil {
		return nil
	}

	var names []string
	for name := range files {
		if len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
			names = append(names, name)
		}
	}

	slices.Sort(names)

	return names
}
