package schedule

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// maxMeant limits the length of a suggestion, so that messages stay short.
const maxMeant = 64

// suggestMeant returns the end of an error message about an invalid expression: what the user probably meant, or
// "". It suggests only what is itself valid.
func suggestMeant(words []string) string {
	if len(words) > 2*maxFields {
		return ""
	}

	for _, guess := range []func([]string) string{steadyBeat, withoutSign, plainCron, wrongPlace, nextValue} {
		text := guess(words)
		if text == "" || len(text) > maxMeant || text == strings.Join(words, " ") {
			continue
		}
		if _, err := readExpression("schedule", text, true, noGuess); err == nil {
			return fmt.Sprintf("; did you mean %q?", text)
		}
	}

	return ""
}

// noGuess suggests nothing.
func noGuess([]string) string { return "" }

// steadyBeat suggests @every for a step that is too long for its field, if every larger field is a plain *.
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
		if slices.ContainsFunc(words[i+1:], func(w string) bool { return w != "*" }) {
			return ""
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
	if len(words) == 1 && nicknameFields["@"+text] != "" || text == "manual" {
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

	switch period {
	case "second", "minute", "hour":
		period = "1 " + period
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

// plainCron suggests an expression without Quartz's year field, and with * for a ? outside of the day fields.
func plainCron(words []string) string {
	plain := slices.Clone(words)
	if len(plain) == maxFields+1 && plain[maxFields] == "*" {
		plain = plain[:maxFields]
	}

	first := maxFields - len(plain)

	for i, word := range plain {
		if f := first + i; word == "?" && (f < 0 || f >= maxFields || !cronFields[f].isAnyDay(word)) {
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

// nextValue suggests 0 for the value after a field's last (minute 60), and the short form of names that are written
// out.
func nextValue(words []string) string {
	first := maxFields - len(words)
	if first < 0 || first > 1 {
		return ""
	}

	better := slices.Clone(words)
	for i, word := range better {
		f := &cronFields[first+i]
		if n, ok := parseDigits(word); ok && f.unit != "" && n == f.max+1 {
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
