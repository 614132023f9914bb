package task

import (
	"bytes"
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
