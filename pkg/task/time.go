package task

import (
	"bytes"
	"fmt"
	"time"
)

const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// Time is an instant as Carillon writes it: RFC 3339, UTC, milliseconds. What
// is finer is cut off when it is made by At, so that what is written and read
// back is equal to what was in memory.
type Time struct{ time.Time }

// At makes a Time of t: in UTC, cut to the millisecond.
func At(t time.Time) Time {
	if t.IsZero() {
		return Time{}
	}
	return Time{time.UnixMilli(t.UnixMilli()).UTC()}
}

// MarshalText writes the time; it makes Time a string in JSON and YAML.
func (t Time) MarshalText() ([]byte, error) {
	return t.UTC().AppendFormat(make([]byte, 0, len(timeLayout)), timeLayout), nil
}

// MarshalJSON hides the method of the embedded time.Time, which would write
// as many digits as the clock has.
func (t Time) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, len(timeLayout)+2)
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, timeLayout)
	return append(b, '"'), nil
}

// UnmarshalJSON reads what MarshalJSON wrote, and any RFC 3339 time; null
// changes nothing.
func (t *Time) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if len(b) < 2 || b[0] != '"' {
		return Invalid(CodeBadTime, "", "%s is not a time in RFC 3339", Quote(string(b)))
	}
	return t.UnmarshalText(b[1 : len(b)-1])
}

// UnmarshalText reads an RFC 3339 time.
func (t *Time) UnmarshalText(b []byte) error {
	v, err := time.Parse(time.RFC3339Nano, string(b))
	// Package time also takes "T8:00:00" and "00,5".
	if err != nil || b[len("2006-01-02T15")] != ':' || bytes.ContainsRune(b, ',') {
		return Invalid(CodeBadTime, "", "%s is not a time in RFC 3339, such as 2026-12-24T18:00:00Z", Quote(string(b)))
	}
	*t = At(v)
	return nil
}

// Duration is a time.Duration that reads and writes itself as Go spells it: "1m30s".
type Duration time.Duration

// MarshalText writes the duration without needless zero units.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a Go duration.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return Invalid(CodeBadDuration, "", "%s is not a duration, such as 90s, 10m or 1h30m", Quote(string(b)))
	}
	*d = Duration(v)
	return nil
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

// Std is the duration as package time knows it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

var _ fmt.Stringer = Duration(0)
