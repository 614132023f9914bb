package importer

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// entry is a line of a crontab that is a job.
type entry struct {
	schedule, user, command string
	wild                    bool // the minute or the hour starts with *: at clock changes cron runs it by the clock alone
	notes                   []string
}

// cronNicknames are the nicknames that have the same meaning in Carillon.
var cronNicknames = strings.Fields("@yearly @annually @monthly @weekly @daily @midnight @hourly")

// readEntry parses a job, whose line begins with its first field. A system crontab has a column with the user.
func readEntry(line string, system bool) (e entry, err error) {
	if strings.HasPrefix(line, "@") {
		word, rest := cutField(line)
		switch {
		case word == "@reboot":
			return e, errors.New("@reboot is not supported: tasks run at times, not at boot; use a systemd unit")
		case word == "@every_minute":
			e.schedule = "* * * * *"
		case slices.Contains(cronNicknames, word):
			e.schedule = word
		default:
			return e, fmt.Errorf("%s is not one of %s", quoteShort(word), strings.Join(cronNicknames, ", "))
		}

		line = rest
	} else {
		if strings.HasPrefix(line, "-") {
			line = line[1:]
			e.notes = append(e.notes, "the - before the minute, which disables the log of cron, is not supported")
		}

		fields := make([]string, 5)

		// The schedule: check each field and convert what cron and Carillon interpret differently.
		for i := range fields {
			if fields[i], line = cutField(line); !looksLikeField(fields[i]) {
				return e, fmt.Errorf("neither a job nor a setting: found %s instead of %s", quoteShort(fields[i]), fieldNames[i])
			}
		}

		e.wild = fields[0][0] == '*' || fields[1][0] == '*'

		for i := range fields {
			if fields[i], err = replaceRandomRange(i, fields[i]); err != nil {
				return e, err
			}
			if fields[i], err = cronSteps(i, fields[i]); err != nil {
				return e, err
			}
		}

		e.schedule = strings.Join(fields, " ")
	}

	if strings.Contains(e.schedule, "H(") {
		e.notes = append(e.notes, "cron chooses the value of ~ each time it starts; H is a fixed value derived from the task's name")
	}

	// The rest of the line: a user in a system crontab, and the command.
	if system {
		if e.user, line = cutField(line); e.user == "" {
			return e, errors.New("no user before the command, as a system crontab requires; if it is the crontab of a user, use --user")
		}
	}

	if strings.HasPrefix(line, "*") || e.user == "*" {
		return e, errors.New("a * follows the five fields: cron has no sixth field and rejects the line")
	}

	e.command = strings.TrimRight(line, " \t")
	if e.command == "" {
		return e, errors.New("no command")
	}

	return e, nil
}

// cutField cuts the first word off a line.
func cutField(line string) (word, rest string) {
	at := strings.IndexAny(line, " \t")
	if at < 0 {
		return line, ""
	}
	return line[:at], strings.TrimLeft(line[at:], " \t")
}

var (
	fieldNames = []string{"the minute", "the hour", "the day of the month", "the month", "the day of the week"}
	oneField   = regexp.MustCompile(`^([*~]|\d+|(?i:sun|mon|tue|wed|thu|fri|sat|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\b)[A-Za-z0-9*,/~-]*$`)
)

// looksLikeField reports whether a word can be a field of a schedule.
func looksLikeField(word string) bool { return oneField.MatchString(word) }

var fieldBounds = [5][2]int{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 6}}

// replaceRandomRange replaces the ranges of cronie from which it draws a value, such as 0~30, by H.
func replaceRandomRange(i int, text string) (string, error) {
	if !strings.Contains(text, "~") {
		return text, nil
	}

	items := strings.Split(text, ",")
	for n, item := range items {
		values, step, stepped := strings.Cut(item, "/")
		low, high, drawn := strings.Cut(values, "~")
		if !drawn {
			continue
		}

		from, to := fieldBounds[i][0], fieldBounds[i][1]
		var err1, err2 error
		if low != "" {
			from, err1 = strconv.Atoi(low)
		}

		if high != "" {
			to, err2 = strconv.Atoi(high)
		}

		if err1 != nil || err2 != nil {
			return "", fmt.Errorf("%s: a random range requires numbers on both sides of ~, or on neither", quoteShort(item))
		}

		if items[n] = fmt.Sprintf("H(%d-%d)", from, to); stepped {
			items[n] += "/" + step
		}
	}

	return strings.Join(items, ","), nil
}

// cronSteps checks and rewrites steps that cron and Carillon interpret differently. Cron accepts a step beyond the
// field's maximum, which leaves only the first value: */60 in the minutes is 0. Debian's cron rejects a step
// without a range, and others ignore it.
func cronSteps(i int, text string) (string, error) {
	highest := fieldBounds[i][1]
	if i == 4 {
		highest = 7
	}

	items := strings.Split(text, ",")
	for n, item := range items {
		values, step, stepped := strings.Cut(item, "/")
		if !stepped || strings.HasPrefix(item, "H") {
			continue
		}

		low, _, ranged := strings.Cut(values, "-")
		if !ranged && values != "*" {
			return "", fmt.Errorf("%s: cron rejects or ignores a step without a range: use %s, or %s-%d/%s", quoteShort(item), low, low, fieldBounds[i][1], step)
		}

		period, err := strconv.Atoi(step)
		if err != nil || period <= highest {
			continue // package schedule rejects what is not a number
		}

		switch {
		case values != "*":
			items[n] = low
		case i == 2 || i == 4:
			items[n] = fmt.Sprintf("*/%d", highest) // keep the *, which affects the rule of the two day fields; the first day is the only one
		default:
			items[n] = strconv.Itoa(fieldBounds[i][0])
		}
	}

	return strings.Join(items, ","), nil
}

// quoteShort quotes and shortens user text for messages.
func quoteShort(s string) string {
	const most = 40
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}
