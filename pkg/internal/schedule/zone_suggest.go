package schedule

import (
	"archive/zip"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

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
