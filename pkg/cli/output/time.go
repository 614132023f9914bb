package output

import (
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// The values of --time.
const (
	TimeRelative = "relative" // the past as "21h ago", the future in the task's zone
	TimeLocal    = "local"    // the zone of whoever asks
	TimeTask     = "task"     // the task's zone
	TimeUTC      = "utc"
)

// TimeLeft is the time until t, as a list shows it.
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

// TimeLeftOrPast is TimeLeft for a list that may begin in the past.
func (p *Printer) TimeLeftOrPast(t task.Time) string {
	if gone := p.Now().Sub(t.Time); gone > time.Minute {
		return task.Duration(gone).Approximate() + " ago"
	}
	return p.TimeLeft(t)
}

// ReaderZone stands for the zone of whoever asks, where no task's is at hand.
const ReaderZone = "local"

// Zone is where the times of a task are shown.
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

// FutureTime is a time ahead: short where the day is plain from the weekday.
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

// DateTime is a time with its date, for a sentence.
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

// PastTime is a time that has passed.
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

// ExactTime is a time to the millisecond, with its zone.
func ExactTime(local time.Time) string {
	if local.Nanosecond() != 0 {
		return local.Format("2006-01-02 15:04:05.000 MST")
	}
	return local.Format("2006-01-02 15:04:05 MST")
}

// ClockTime is the time of day, to the minute if that says it all, and never finer
// than a second: whoever wants more asks for --time.
func ClockTime(local time.Time) string {
	if local.Second() != 0 || local.Nanosecond() != 0 {
		return local.Format("15:04:05 MST")
	}
	return local.Format("15:04 MST")
}

// Bytes is a number of bytes.
func Bytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}

	v, i := float64(n)/unit, 0
	for v >= unit && i < 4 {
		v /= unit
		i++
	}

	return fmt.Sprintf("%.1f %ciB", v, "KMGTP"[i])
}
