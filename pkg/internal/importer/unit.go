package importer

import (
	"slices"
	"strings"
)

// Unit is a file of systemd: its settings, in their order.
type Unit struct {
	File     string
	settings []setting
}

type setting struct {
	section, key, value string
	line                int
}

// ReadUnit reads a unit file. Lines that are none of a unit are passed by, as systemd
// does.
func ReadUnit(file, text string) Unit {
	u := Unit{File: file}
	section, pending, begun, n := "", "", 0, 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\r\n")

		trimmed := strings.TrimSpace(line)
		if trimmed == "" && pending == "" || trimmed != "" && (trimmed[0] == '#' || trimmed[0] == ';') {
			continue // a comment may stand within a setting
		}

		if pending == "" {
			begun = n
		}

		if more, goesOn := strings.CutSuffix(line, `\`); goesOn {
			pending += more + " "
			continue
		}

		whole := strings.TrimSpace(pending + line)
		pending = ""

		if strings.HasPrefix(whole, "[") {
			section = strings.Trim(whole, "[]")
			continue
		}

		key, value, ok := strings.Cut(whole, "=")
		if !ok {
			continue
		}

		u.settings = append(u.settings, setting{section, strings.TrimSpace(key), strings.TrimSpace(value), begun})
	}

	return u
}

// allValues are the values of a setting that adds up; an empty one takes back those before.
func (u Unit) allValues(section, key string) (list []setting) {
	for _, s := range u.settings {
		if s.section == section && s.key == key {
			if s.value == "" {
				list = nil
				continue
			}
			list = append(list, s)
		}
	}

	return list
}

// lastValue is the value in force of a setting that does not add up.
func (u Unit) lastValue(section, key string) string {
	for _, s := range slices.Backward(u.settings) {
		if s.section == section && s.key == key {
			return s.value
		}
	}

	return ""
}

// boolValue reads a truth value.
func (u Unit) boolValue(section, key string) bool {
	return slices.Contains([]string{"1", "yes", "y", "true", "t", "on"}, strings.ToLower(u.lastValue(section, key)))
}

// unknownSettings are the names of the settings of a section besides the known ones.
func (u Unit) unknownSettings(section string, known ...string) (names []string) {
	for _, s := range u.settings {
		if s.section == section && s.value != "" && !slices.Contains(known, s.key) && !slices.Contains(names, s.key) {
			names = append(names, s.key)
		}
	}

	slices.Sort(names)

	return names
}
