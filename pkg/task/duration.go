package task

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration whose text form is Go's: "1m30s".
type Duration time.Duration

// MarshalText encodes the duration without units that are zero.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses a Go duration.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := ParseDuration("", string(b))
	if err == nil {
		*d = v
	}
	return err
}

// ParseDuration parses a Go duration such as 1h30m. An error is an *Error for the field. It suggests what was
// probably meant, if that is clear: "24h" for "1d".
func ParseDuration(field, text string) (Duration, error) {
	v, err := time.ParseDuration(text)
	if err == nil {
		return Duration(v), nil
	}
	if meant, ok := MeantDuration(text); ok {
		return 0, Invalid(CodeBadDuration, field, "%s is not a duration; did you mean %q?", Quote(text), meant)
	}

	return 0, Invalid(CodeBadDuration, field, "%s is not a duration, such as 90s, 10m or 1h30m", Quote(text))
}

// String formats the duration without trailing zero units: 1m0s becomes 1m, 1h0m0s becomes 1h.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if n := len(s); n > 2 && s[n-2:] == "0s" && s[n-3] == 'm' {
		s = s[:n-2]
	}

	if n := len(s); n > 2 && s[n-2:] == "0m" && s[n-3] == 'h' {
		s = s[:n-2]
	}

	return s
}

// Approximate formats d for people. It uses the two largest units from days to seconds and truncates the rest,
// such as "2d 4h" or "90d". Less than a second is shown in milliseconds.
func (d Duration) Approximate() string {
	const day = 24 * time.Hour

	v := time.Duration(d)
	switch {
	case v < 0:
		return "-" + (-d).Approximate()
	case v < time.Second:
		return fmt.Sprintf("%dms", v.Milliseconds())
	case v < time.Minute:
		return fmt.Sprintf("%ds", v/time.Second)
	case v < time.Hour:
		return formatTwoUnits(v, time.Minute, "m", time.Second, "s")
	case v < day:
		return formatTwoUnits(v, time.Hour, "h", time.Minute, "m")
	case v < 100*day:
		return formatTwoUnits(v, day, "d", time.Hour, "h")
	}

	return fmt.Sprintf("%dd", v/day)
}

// formatTwoUnits formats a duration in two units.
func formatTwoUnits(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	if rest := d % large / small; rest > 0 {
		return fmt.Sprintf("%d%s %d%s", d/large, largeName, rest, smallName)
	}

	return fmt.Sprintf("%d%s", d/large, largeName)
}

// Std converts d to a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// durationUnits are the names of units that users write after numbers.
var durationUnits = map[string]time.Duration{
	"ms": time.Millisecond, "msec": time.Millisecond, "millis": time.Millisecond, "millisecond": time.Millisecond,
	"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hour": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour,
	"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

// unitNames are the names with which a misspelled unit is compared.
var unitNames = []string{"second", "minute", "hour", "day", "week", "millisecond"}

// amountPattern matches a number, its unit, and a separator.
var amountPattern = regexp.MustCompile(`^\s*([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([a-z]*)[\s,]*(?:and\s)?`)

// MeantDuration parses a duration in a form that Go does not accept, for a suggestion: "10 secs", "5min", "1d",
// "PT5M", "90". ok is false if it is not clear or not positive.
func MeantDuration(text string) (Duration, bool) {
	rest := strings.ToLower(strings.TrimSpace(text))
	if len(rest) > 40 {
		return 0, false
	}

	// An ISO 8601 duration begins with P, and has a T before hours.
	rest = strings.Replace(strings.TrimPrefix(rest, "p"), "t", "", strings.Count(rest[:min(2, len(rest))], "pt"))
	var sum time.Duration
	for rest != "" {
		m := amountPattern.FindStringSubmatch(rest)
		if m == nil {
			return 0, false
		}

		n, err := strconv.ParseFloat(m[1], 64)
		unit, known := unitOf(m[2])
		if err != nil || !known || n*float64(unit) > float64(maxTTL) {
			return 0, false
		}

		sum += time.Duration(n * float64(unit))
		rest = rest[len(m[0]):]
	}

	return Duration(sum.Round(time.Millisecond)), sum > 0 && sum < maxTTL.Std()
}

// unitOf returns the duration of a unit. No unit means seconds.
func unitOf(word string) (time.Duration, bool) {
	if word == "" {
		return time.Second, true
	}
	if d, ok := durationUnits[word]; ok {
		return d, true
	}
	if d, ok := durationUnits[strings.TrimSuffix(word, "s")]; ok {
		return d, true
	}

	d, ok := durationUnits[Nearest(strings.TrimSuffix(word, "s"), unitNames)]

	return d, ok
}
