package output

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// Plural returns a number with its noun: "1 run", "2 runs".
func Plural(n int64, noun string) string { return wording.Plural(n, noun) }

// Sanitize replaces control characters, which could move the cursor or execute terminal commands. Texts come
// from servers, files and other users' programs. Newlines and tabs stay.
func Sanitize(s string) string { return wording.Sanitize(s) }

// SanitizeJSON escapes control characters in JSON for a terminal, without changing its meaning. JSON already
// escapes the characters below a space.
func SanitizeJSON(b []byte) []byte {
	var out []byte
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r < utf8.RuneSelf && r != 0x7f || unicode.IsPrint(r) && !(r == utf8.RuneError && n == 1) {
			if out != nil {
				out = append(out, b[i:i+n]...)
			}
		} else {
			if out == nil {
				out = append(make([]byte, 0, len(b)+16), b[:i]...)
			}

			for _, u := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, `\u%04x`, u)
			}
		}

		i += n
	}

	if out == nil {
		return b
	}

	return out
}

// OneLine returns a sanitized text on one line, for a cell of a table.
func OneLine(s string) string { return wording.OneLine(s) }

// Truncate limits the length of a text in characters.
func Truncate(s string, most int) string {
	if list := []rune(s); len(list) > most {
		return string(list[:most]) + "…"
	}
	return s
}

// Labels returns labels on one line, sorted by key.
func Labels(labels map[string]string) string { return wording.Labels(labels) }

// The values of --time.
const (
	TimeRelative = "relative" // past times as "21h ago", future times in the task's time zone
	TimeLocal    = "local"    // the user's time zone
	TimeTask     = "task"     // the task's time zone
	TimeUTC      = "utc"
)

// TimeLeft returns the time until t for a list.
func (p *Printer) TimeLeft(t task.Time) string {
	if t.IsZero() {
		return p.NoValue()
	}

	d := t.Sub(p.Now())
	if d < time.Second {
		return "now"
	}

	return task.Duration(d).Approximate()
}

// TimeLeftOrPast is like TimeLeft, for lists that may begin in the past.
func (p *Printer) TimeLeftOrPast(t task.Time) string {
	if gone := p.Now().Sub(t.Time); gone > time.Minute {
		return task.Duration(gone).Approximate() + " ago"
	}
	return p.TimeLeft(t)
}

// ReaderZone means the user's time zone, where no task's time zone applies.
const ReaderZone = "local"

// Zone returns the time zone in which times of a task are printed.
func (p *Printer) Zone(timezone string) *time.Location {
	switch {
	case p.TimeMode == TimeUTC:
		return time.UTC
	case p.TimeMode == TimeLocal, timezone == ReaderZone:
		return time.Local
	}

	loc, err := schedule.Location(timezone)
	if err != nil {
		return time.UTC
	}

	return loc
}

// FutureTime formats a future time. Within the next days, the weekday is sufficient as its date.
func (p *Printer) FutureTime(t task.Time, timezone string) string {
	if t.IsZero() {
		return p.NoValue()
	}

	local := t.In(p.Zone(timezone))

	if p.TimeMode != TimeRelative {
		return ExactTime(local)
	}
	if d := t.Sub(p.Now()); d > -24*time.Hour && d < 6*24*time.Hour {
		return local.Format("Mon ") + ClockTime(local)
	}

	return p.DateTime(t, timezone)
}

// DateTime formats a time with its date.
func (p *Printer) DateTime(t task.Time, timezone string) string {
	local := t.In(p.Zone(timezone))

	if p.TimeMode != TimeRelative {
		return ExactTime(local)
	}

	layout := "Mon 2 Jan "
	if local.Year() != p.Now().In(local.Location()).Year() {
		layout = "Mon 2 Jan 2006 "
	}

	return local.Format(layout) + ClockTime(local)
}

// PastTime formats a time in the past.
func (p *Printer) PastTime(t task.Time, timezone string) string {
	if t.IsZero() {
		return p.NoValue()
	}
	if p.TimeMode != TimeRelative {
		return ExactTime(t.In(p.Zone(timezone)))
	}

	d := p.Now().Sub(t.Time)
	if d < time.Second {
		return "now"
	}

	return task.Duration(d).Approximate() + " ago"
}

// ExactTime formats a time in milliseconds with its zone.
func ExactTime(local time.Time) string {
	if local.Nanosecond() != 0 {
		return local.Format("2006-01-02 15:04:05.000 MST")
	}
	return local.Format("2006-01-02 15:04:05 MST")
}

// ClockTime formats a time of day, with seconds only if they are not zero. For milliseconds, users set --time.
func ClockTime(local time.Time) string {
	if local.Second() != 0 || local.Nanosecond() != 0 {
		return local.Format("15:04:05 MST")
	}
	return local.Format("15:04 MST")
}

// Bytes formats a number of bytes.
func Bytes(n int64) string { return wording.Bytes(n) }
