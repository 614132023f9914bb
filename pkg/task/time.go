package task

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// timeLayout is the format of all times.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// Time is an instant in Carillon's format: RFC 3339, UTC, milliseconds. At truncates it to that precision, so
// that a value that is written and read again is equal to the value in memory.
type Time struct{ time.Time }

// At converts t to a Time: in UTC, truncated to the millisecond.
func At(t time.Time) Time {
	if t.IsZero() {
		return Time{}
	}
	return Time{time.UnixMilli(t.UnixMilli()).UTC()}
}

// AppendText appends the formatted time, always in UTC. It avoids time.Format, because records contain many times.
func (t Time) AppendText(b []byte) ([]byte, error) {
	u := t.UTC()
	year, month, day := u.Date()
	if year < 0 || year > 9999 {
		return u.AppendFormat(b, timeLayout), nil
	}

	hour, minute, second := u.Clock()
	b = append(twoDigits(twoDigits(b, year/100), year%100), '-')
	b = append(twoDigits(b, int(month)), '-')
	b = append(twoDigits(b, day), 'T')
	b = append(twoDigits(b, hour), ':')
	b = append(twoDigits(b, minute), ':')
	b = append(twoDigits(b, second), '.')
	ms := u.Nanosecond() / 1e6

	return append(twoDigits(b, ms/10), byte('0'+ms%10), 'Z'), nil
}

// twoDigits appends a number from 0 to 99.
func twoDigits(b []byte, n int) []byte { return append(b, byte('0'+n/10), byte('0'+n%10)) }

// MarshalText encodes the time. It makes Time a string in JSON and YAML.
func (t Time) MarshalText() ([]byte, error) {
	return t.AppendText(make([]byte, 0, len(timeLayout)))
}

// MarshalJSON replaces the method of the embedded time.Time, which would write nanoseconds.
func (t Time) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, len(timeLayout)+2)
	b, err := t.AppendText(append(b, '"'))
	return append(b, '"'), err
}

// UnmarshalJSON decodes any RFC 3339 time. null changes nothing.
func (t *Time) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if len(b) < 2 || b[0] != '"' {
		return Invalid(CodeBadTime, "", "%s is not a time in RFC 3339", Quote(string(b)))
	}

	return t.UnmarshalText(b[1 : len(b)-1])
}

// UnmarshalText parses an RFC 3339 time.
func (t *Time) UnmarshalText(b []byte) error {
	if v, ok := parseOwn(b); ok {
		*t = v
		return nil
	}

	v, err := time.Parse(time.RFC3339Nano, string(b))
	// Package time also accepts "T8:00:00" and "00,5".
	if err != nil || b[len("2006-01-02T15")] != ':' || bytes.ContainsRune(b, ',') {
		return Invalid(CodeBadTime, "", "%s is not a time in RFC 3339, such as 2026-12-24T18:00:00Z", Quote(string(b)))
	}

	*t = At(v)

	return nil
}

// parseOwn parses the format of AppendText, and returns false for any other. Nearly all times come from
// Carillon's own records, so this fast path matters.
func parseOwn(b []byte) (Time, bool) {
	const layout = "0000-00-00T00:00:00.000Z"
	if len(b) != len(layout) {
		return Time{}, false
	}

	for i := range b {
		if digit := b[i]-'0' <= 9; digit != (layout[i] == '0') || !digit && b[i] != layout[i] {
			return Time{}, false
		}
	}

	two := func(i int) int { return int(b[i]-'0')*10 + int(b[i+1]-'0') }
	year, month, day := two(0)*100+two(2), two(5), two(8)
	hour, minute, second := two(11), two(14), two(17)
	if month < 1 || month > 12 || day < 1 || hour > 23 || minute > 59 || second > 59 {
		return Time{}, false
	}

	v := time.Date(year, time.Month(month), day, hour, minute, second, (two(20)*10+int(b[22]-'0'))*1e6, time.UTC)

	return Time{v}, v.Day() == day // rejects dates such as 30 February, which time.Date normalizes
}

// Duration is a time.Duration whose text form is Go's: "1m30s".
type Duration time.Duration

// MarshalText encodes the duration without units that are zero.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses a duration as ParseDuration does.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := ParseDuration("", string(b))
	if err == nil {
		*d = v
	}
	return err
}

// ParseDuration parses a Go duration such as 1h30m, which can begin with weeks and days of 24 hours: 2w, 7d, 1d12h. Units can
// be separated by a space, as Approximate writes them: "2d 4h". An error is an *Error for the field. It suggests what was
// probably meant, if that is clear: "90s" for "90 secs".
func ParseDuration(field, text string) (Duration, error) {
	v, err := time.ParseDuration(text)
	if err == nil {
		return Duration(v), nil
	}
	if spacedUnits.MatchString(text) {
		return ParseDuration(field, strings.ReplaceAll(text, " ", ""))
	}
	if v, ok := parseDays(text); ok {
		return v, nil
	}
	if meant, ok := MeantDuration(text); ok {
		return 0, Invalid(CodeBadDuration, field, "%s is not a duration; did you mean %q?", Quote(text), meant)
	}

	return 0, Invalid(CodeBadDuration, field, "%s is not a duration, such as 90s, 10m, 1h30m or 2d", Quote(text))
}

// spacedUnits matches amounts with units that are separated by single spaces.
var spacedUnits = regexp.MustCompile(`^[0-9.]{1,20}[a-zµμ]{1,2}(?: [0-9.]{1,20}[a-zµμ]{1,2}){1,6}$`)

// daysPattern matches a duration that begins with weeks or days.
var daysPattern = regexp.MustCompile(`^(?:([0-9]{1,6})w)?(?:([0-9]{1,6})d)?([0-9.].*)?$`)

// parseDays parses a duration that begins with weeks or days.
func parseDays(text string) (Duration, bool) {
	const day = 24 * time.Hour

	m := daysPattern.FindStringSubmatch(text)
	if m == nil || m[1] == "" && m[2] == "" {
		return 0, false
	}

	weeks, _ := strconv.Atoi("0" + m[1])
	days, _ := strconv.Atoi("0" + m[2])
	if days += 7 * weeks; days > int(math.MaxInt64/day) {
		return 0, false
	}

	whole, rest := time.Duration(days)*day, time.Duration(0)
	if m[3] != "" {
		var err error
		if rest, err = time.ParseDuration(m[3]); err != nil || rest > math.MaxInt64-whole {
			return 0, false
		}
	}

	return Duration(whole + rest), true
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

// MeantDuration parses a duration in a form that ParseDuration does not accept, for a suggestion: "10 secs", "5min",
// "PT5M", "90". ok is false if it is not clear or not positive.
func MeantDuration(text string) (Duration, bool) {
	rest := strings.ToLower(strings.TrimSpace(text))
	if len(rest) > 40 {
		return 0, false
	}

	// An ISO 8601 duration begins with P, and has a T before hours.
	rest = strings.Replace(strings.TrimPrefix(rest, "p"), "t", "", strings.Count(rest[:min(2, len(rest))], "pt"))
	var sum time.Duration
	missing := "" // the unit that follows the last one: what a number without a unit means
	for rest != "" {
		m := amountPattern.FindStringSubmatch(rest)
		if m == nil {
			return 0, false
		}

		n, err := strconv.ParseFloat(m[1], 64)
		unit, known := unitOf(cmp.Or(m[2], missing))
		missing = smallerUnit[unit]
		if err != nil || !known || n*float64(unit) > float64(maxTTL) {
			return 0, false
		}

		sum += time.Duration(n * float64(unit))
		rest = rest[len(m[0]):]
	}

	return Duration(sum.Round(time.Millisecond)), sum > 0 && sum < maxTTL.Std()
}

// smallerUnit names the unit that people leave out after another one: 1h30 is one hour and 30 minutes.
var smallerUnit = map[time.Duration]string{7 * 24 * time.Hour: "d", 24 * time.Hour: "h", time.Hour: "m", time.Minute: "s"}

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

// DST defines how a wall-clock schedule behaves when the clocks change.
type DST struct {
	Gap  string `json:"gap,omitempty" doc:"A local time that does not exist: run-after ticks once, right after the gap; skip does not." enum:"run-after,skip"`
	Fold string `json:"fold,omitempty" doc:"A local time that exists twice: first ticks the first time, both ticks twice." enum:"first,both"`
}

// The values of DST.
const (
	GapRunAfter = "run-after"
	GapSkip     = "skip"
	FoldFirst   = "first"
	FoldBoth    = "both"
)
