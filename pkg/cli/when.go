package cli

import (
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// The values of --time.
const (
	timeRelative = "relative" // the past as "21h ago", the future in the task's zone
	timeLocal    = "local"    // the zone of whoever asks
	timeTask     = "task"     // the task's zone
	timeUTC      = "utc"
)

// span is a duration as a person says it: its two largest units, cut off.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "-" + span(-d)
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return units(d, time.Minute, "m", time.Second, "s")
	case d < day:
		return units(d, time.Hour, "h", time.Minute, "m")
	case d < 100*day:
		return units(d, day, "d", time.Hour, "h")
	}
	return fmt.Sprintf("%dd", d/day)
}

func units(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	if rest := d % large / small; rest > 0 {
		return fmt.Sprintf("%d%s %d%s", d/large, largeName, rest, smallName)
	}
	return fmt.Sprintf("%d%s", d/large, largeName)
}

// left is the time until t, as a list shows it.
func (a *app) left(t task.Time) string {
	if t.IsZero() {
		return a.none()
	}
	d := t.Sub(a.now())
	if d < time.Second {
		return "now"
	}
	return span(d)
}

// leftOrGone is left for a list that may begin in the past.
func (a *app) leftOrGone(t task.Time) string {
	if gone := a.now().Sub(t.Time); gone > time.Minute {
		return span(gone) + " ago"
	}
	return a.left(t)
}

// readersZone stands for the zone of whoever asks, where no task's is at hand.
const readersZone = "local"

// zone is where the times of a task are shown.
func (a *app) zone(timezone string) *time.Location {
	switch {
	case a.timeMode == timeUTC:
		return time.UTC
	case a.timeMode == timeLocal, timezone == readersZone:
		return time.Local
	}
	loc, err := schedule.Location(timezone)
	if err != nil {
		return time.UTC
	}
	return loc
}

// coming is a time ahead: short where the day is plain from the weekday.
func (a *app) coming(t task.Time, timezone string) string {
	if t.IsZero() {
		return a.none()
	}
	local := t.In(a.zone(timezone))
	if a.timeMode != timeRelative {
		return exact(local)
	}
	if d := t.Sub(a.now()); d > -24*time.Hour && d < 6*24*time.Hour {
		return local.Format("Mon ") + clock(local)
	}
	return a.dated(t, timezone)
}

// dated is a time with its date, for a sentence.
func (a *app) dated(t task.Time, timezone string) string {
	local := t.In(a.zone(timezone))
	if a.timeMode != timeRelative {
		return exact(local)
	}
	layout := "Mon 2 Jan "
	if local.Year() != a.now().In(local.Location()).Year() {
		layout = "Mon 2 Jan 2006 "
	}
	return local.Format(layout) + clock(local)
}

// gone is a time that has passed.
func (a *app) gone(t task.Time, timezone string) string {
	if t.IsZero() {
		return a.none()
	}
	if a.timeMode != timeRelative {
		return exact(t.In(a.zone(timezone)))
	}
	d := a.now().Sub(t.Time)
	if d < time.Second {
		return "now"
	}
	return span(d) + " ago"
}

func exact(local time.Time) string {
	if local.Nanosecond() != 0 {
		return local.Format("2006-01-02 15:04:05.000 MST")
	}
	return local.Format("2006-01-02 15:04:05 MST")
}

// clock is the time of day, to the minute if that says it all, and never finer
// than a second: whoever wants more asks for --time.
func clock(local time.Time) string {
	if local.Second() != 0 || local.Nanosecond() != 0 {
		return local.Format("15:04:05 MST")
	}
	return local.Format("15:04 MST")
}

// size is a number of bytes.
func size(n int64) string {
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
