package schedule

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// field describes one of the six fields of a cron expression.
type field struct {
	name     string
	min, max int      // the smallest and the largest value
	names    []string // names of the values, from min on; nil: none
	unit     string   // the unit of @every that a step of this field resembles; "": none
}

// cronFields lists the fields in the order in which they are written. 7 is Sunday, like 0.
var cronFields = [...]field{
	{name: "second", max: 59, unit: "s"},
	{name: "minute", max: 59, unit: "m"},
	{name: "hour", max: 23, unit: "h"},
	{name: "day of month", min: 1, max: 31},
	{name: "month", min: 1, max: 12, names: []string{
		"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}},
	{name: "day of week", max: 7, names: []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}},
}

var dayOfMonth, dayOfWeek = &cronFields[3], &cronFields[5]

// checkSyntax rejects everything that is not part of the language. It rewrites the rest so that no parser can
// misread it: only numbers, ranges and steps, and 0 for Sunday.
func (f *field) checkSyntax(text string) (string, error) {
	if f.isAnyDay(text) {
		return f.plainRange(f.min, f.maxValue(), 1), nil
	}

	items := strings.Split(text, ",")
	for i, item := range items {
		plain, err := f.checkItem(item)
		if err != nil {
			return "", err
		}
		items[i] = plain
	}

	return strings.Join(items, ","), nil
}

// checkItem checks and rewrites one item of a list: a value, a range, or either with a step.
func (f *field) checkItem(item string) (string, error) {
	if err := f.unsupportedError(item); err != nil {
		return "", err
	}

	values, step, stepped := strings.Cut(item, "/")
	low, high, ranged := strings.Cut(values, "-")
	if low == "*" && ranged {
		return "", fmt.Errorf("%s %s: * is every value, it cannot begin a range", f.name, shorten(item))
	}

	from, to := f.min, f.max
	if low != "*" {
		var err error
		if from, err = f.parseValue(item, low); err != nil {
			return "", err
		}

		to = from
		if ranged {
			if to, err = f.parseValue(item, high); err != nil {
				return "", err
			}
		}

		if stepped && !ranged {
			// As in robfig/cron, Quartz and Spring, 5/10 begins at 5 and continues to the field's maximum. Sunday
			// as 7 is beyond the last weekday, so it is then the only value.
			to = max(from, f.maxValue())
		}
	}

	if from > to {
		return "", f.backwardsError(item, from, to)
	}

	by := 1
	if stepped {
		var err error
		if by, err = f.parseStep(item, step); err != nil {
			return "", err
		}
	}

	return f.plainRange(from, to, by), nil
}

// plainRange formats a range. If it includes 7, it lists the days instead, with 0 for Sunday.
func (f *field) plainRange(from, to, by int) string {
	if to <= f.maxValue() {
		return fmt.Sprintf("%d-%d/%d", from, to, by)
	}

	var days []string
	for n := from; n <= to; n += by {
		days = append(days, strconv.Itoa(n%7))
	}

	return strings.Join(days, ",")
}

// isAnyDay reports whether text is "?", Quartz's "no specific day". It means *, also for the rule of the two day
// fields.
func (f *field) isAnyDay(text string) bool {
	return text == "?" && (f == dayOfMonth || f == dayOfWeek)
}

// maxValue returns the field's greatest value that has no other name: 6 is Saturday, and 7 is Sunday again.
func (f *field) maxValue() int {
	if f.max == 7 {
		return 6
	}
	return f.max
}

// parseValue parses a number or a name. item is the whole item, for messages.
func (f *field) parseValue(item, text string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(name, text) {
			return f.min + i, nil
		}
	}

	n, ok := parseDigits(text)
	switch {
	case text == "":
		return 0, fmt.Errorf("%s %s: a range requires two values", f.name, shorten(item))
	case !ok && f.names != nil:
		last := f.names[len(f.names)-1]
		return 0, fmt.Errorf("%s %s: %s is neither a number nor a name from %s to %s", f.name, shorten(item), task.Quote(text), f.names[0], last)
	case !ok:
		return 0, fmt.Errorf("%s %s: %s is not a number", f.name, shorten(item), task.Quote(text))
	case n > f.max:
		return 0, fmt.Errorf("%s %s is greater than %d", f.name, shorten(text), f.max)
	case n < f.min:
		return 0, fmt.Errorf("%s %s is less than %d", f.name, shorten(text), f.min)
	}

	return n, nil
}

// parseStep parses the step of an item.
func (f *field) parseStep(item, text string) (int, error) {
	n, ok := parseDigits(text)
	switch {
	case !ok:
		return 0, fmt.Errorf("%s %s: the step %s is not a number", f.name, shorten(item), task.Quote(text))
	case n == 0:
		return 0, fmt.Errorf("%s step 0 is less than 1", f.name)
	case n > f.max:
		return 0, fmt.Errorf("%s step %s is greater than %d", f.name, shorten(text), f.max)
	}

	return n, nil
}

// backwardsError returns the error for a range whose end is before its start, with a correct way to write it.
func (f *field) backwardsError(item string, from, to int) error {
	if f.names != nil && f.min == 0 && to == 0 {
		return fmt.Errorf("%s %s has its bounds in the wrong order; did you mean %d-7?", f.name, shorten(item), from)
	}
	return fmt.Errorf("%s %s has its bounds in the wrong order; to wrap around, write %s,%s", f.name, shorten(item),
		formatRange(from, f.maxValue()), formatRange(f.min, to))
}

// formatRange formats a range, or a single value.
func formatRange(from, to int) string {
	if from == to {
		return strconv.Itoa(from)
	}
	return fmt.Sprintf("%d-%d", from, to)
}

// unsupportedError returns an error for extensions of other schedulers, and for special items in the wrong field.
// Such items are rejected and never guessed, because they mean different things to different programs.
func (f *field) unsupportedError(item string) error {
	text := strings.ToUpper(item)
	switch {
	case strings.Contains(text, "?") && (f == dayOfMonth || f == dayOfWeek):
		return fmt.Errorf("%s %s: ? must be the whole field; use * in a list or with a step", f.name, shorten(item))
	case strings.Contains(text, "?"):
		return fmt.Errorf("%s %s: ? is valid only for the day of month and the day of week; write a number, or * for all values", f.name, shorten(item))
	case strings.Contains(text, "#"):
		return fmt.Errorf("%s %s: # is valid only for the day of week: 5#3 is the third Friday", f.name, shorten(item))
	case text == "W" || text == "LW" || isNumber(strings.TrimSuffix(text, "W")) && strings.HasSuffix(text, "W"):
		return fmt.Errorf("%s %s: W (working day) is valid only for the day of month, such as 15W or LW", f.name, shorten(item))
	case text == "L" || strings.HasPrefix(text, "L-") || isNumber(strings.TrimSuffix(text, "L")) && strings.HasSuffix(text, "L"):
		return fmt.Errorf("%s %s: L (last) is valid only for days: L in the day of month, 5L in the day of week", f.name, shorten(item))
	}

	return nil
}

// shorten limits user input that a message repeats.
func shorten(s string) string {
	if len(s) > 20 {
		return s[:20] + "…"
	}
	return s
}

// isNumber reports whether s consists of digits.
func isNumber(s string) bool { _, ok := parseDigits(s); return ok }

// parseDigits parses decimal digits and nothing else. It limits large numbers to 1,000,000, which is too large for
// every field, so that they cannot overflow.
func parseDigits(s string) (int, bool) {
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int(c-'0'), 1_000_000)
	}

	return n, s != ""
}
