package output

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

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
