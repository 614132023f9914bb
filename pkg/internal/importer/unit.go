package importer

import (
	"slices"
	"strings"
)

// Unit is a unit file of systemd: its settings in order.
type Unit struct {
	File     string
	settings []setting
}

// setting is one setting with its section. line is where it begins.
type setting struct {
	section, key, value string
	line                int
}

// ReadUnit parses a unit file. Like systemd, it skips lines that are not valid.
func ReadUnit(file, text string) Unit {
	u := Unit{File: file}
	section, pending, begun, n := "", "", 0, 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\r\n")

		trimmed := strings.TrimSpace(line)
		if trimmed == "" && pending == "" || trimmed != "" && (trimmed[0] == '#' || trimmed[0] == ';') {
			continue // a comment may be inside of a setting that continues
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

// allValues returns the values of a setting that accumulates. An empty value discards those before it.
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

// lastValue returns the value in force of a setting that does not accumulate.
func (u Unit) lastValue(section, key string) string {
	for _, s := range slices.Backward(u.settings) {
		if s.section == section && s.key == key {
			return s.value
		}
	}

	return ""
}

// boolValue returns the value of a boolean setting.
func (u Unit) boolValue(section, key string) bool {
	return slices.Contains([]string{"1", "yes", "y", "true", "t", "on"}, strings.ToLower(u.lastValue(section, key)))
}

// unknownSettings returns the names of the settings of a section that are not in known.
func (u Unit) unknownSettings(section string, known ...string) (names []string) {
	for _, s := range u.settings {
		if s.section == section && s.value != "" && !slices.Contains(known, s.key) && !slices.Contains(names, s.key) {
			names = append(names, s.key)
		}
	}

	slices.Sort(names)

	return names
}
