package task

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration that reads and writes itself as Go spells it: "1m30s".
type Duration time.Duration

// MarshalText writes the duration without needless zero units.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a Go duration.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := ParseDuration("", string(b))
	if err == nil {
		*d = v
	}
	return err
}

// ParseDuration reads a Go duration, such as 1h30m. The error is an *Error of the
// field, and says what was probably meant, if a person can tell: "24h" by "1d".
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

// String spells the duration as a person would: 1m0s is 1m, 1h0m0s is 1h.
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

// Approximate returns d for a person to read: its two largest units from days down to
// seconds, the rest cut off, such as "2d 4h" or "90d"; less than a second in
// milliseconds.
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
		return twoUnits(v, time.Minute, "m", time.Second, "s")
	case v < day:
		return twoUnits(v, time.Hour, "h", time.Minute, "m")
	case v < 100*day:
		return twoUnits(v, day, "d", time.Hour, "h")
	}

	return fmt.Sprintf("%dd", v/day)
}

func twoUnits(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	if rest := d % large / small; rest > 0 {
		return fmt.Sprintf("%d%s %d%s", d/large, largeName, rest, smallName)
	}

	return fmt.Sprintf("%d%s", d/large, largeName)
}

// Std is the duration as package time knows it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// durationUnits are the words that people write behind numbers.
var durationUnits = map[string]time.Duration{
	"ms": time.Millisecond, "msec": time.Millisecond, "millis": time.Millisecond, "millisecond": time.Millisecond,
	"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hour": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour,
	"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

var unitNames = []string{"second", "minute", "hour", "day", "week", "millisecond"}

var amountPattern = regexp.MustCompile(`^\s*([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([a-z]*)[\s,]*(?:and\s)?`)

// MeantDuration reads what a person would understand, for a suggestion: "10 secs",
// "5min", "1d", "PT5M", "90". It is more than 0.
func MeantDuration(text string) (Duration, bool) {
	rest := strings.ToLower(strings.TrimSpace(text))
	if len(rest) > 40 {
		return 0, false
	}

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
