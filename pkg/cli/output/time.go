package output

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// All times that commands print for people are formatted here. Those of one command are in one time zone: that of the task
// if the command is about one task, otherwise that of the user. Each of them names the zone, so that the reader need not
// know this rule. Only with --time task is each time in the zone of its own task.

// The values of --time.
const (
	TimeRelative = "relative" // past times as "21h ago", future times as a date or a weekday
	TimeLocal    = "local"    // exact times in the user's time zone
	TimeTask     = "task"     // exact times, each in the zone of its task
	TimeUTC      = "utc"      // exact times in UTC
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

// ReaderZone means the zone of the output, where a time belongs to no task.
const ReaderZone = "local"

// AboutTask says that the command is about only one task. Then all its times are in the time zone of that task.
func (p *Printer) AboutTask(timezone string) { p.taskZone = locationOf(timezone) }

// Zone returns the time zone in which a time is printed. timezone is that of the time's task.
func (p *Printer) Zone(timezone string) *time.Location {
	switch {
	case p.TimeMode == TimeUTC:
		return time.UTC
	case p.TimeMode == TimeTask && timezone != ReaderZone:
		return locationOf(timezone)
	case p.TimeMode != TimeLocal && p.taskZone != nil:
		return p.taskZone
	case p.Local != nil:
		return p.Local
	}

	return time.Local
}

// locationOf returns a time zone, or UTC if this program does not know it.
func locationOf(timezone string) *time.Location {
	loc, err := schedule.Location(timezone)
	if err != nil {
		return time.UTC
	}

	return loc
}

// LocalZone returns the user's time zone: that of TZ, or that of the host.
func LocalZone(env func(string) string) *time.Location {
	if name := strings.TrimPrefix(env("TZ"), ":"); name != "" {
		if loc, err := schedule.Location(name); err == nil {
			return loc
		}
	}

	return time.Local
}

// LocalZoneName returns the name of the user's time zone, or "" if it is not known.
func (p *Printer) LocalZoneName() string {
	local := p.Local
	if local == nil {
		local = time.Local
	}

	name := local.String()
	if local == time.Local {
		var err error
		if name, err = ZoneName(p.Env("TZ"), EtcDir("/etc")); err != nil {
			return ""
		}
	}

	// The files of a host can contradict each other.
	now := p.Now()
	_, offset := now.In(local).Zone()
	if _, named := now.In(locationOf(name)).Zone(); named != offset {
		return ""
	}

	return name
}

// EtcFiles reads files in a directory such as /etc. An os.Root is one.
type EtcFiles interface {
	ReadFile(name string) ([]byte, error)
	Readlink(name string) (string, error)
}

// EtcDir are the files of this host in a directory.
type EtcDir string

// ReadFile implements EtcFiles.
func (d EtcDir) ReadFile(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(d), name))
}

// Readlink implements EtcFiles.
func (d EtcDir) Readlink(name string) (string, error) {
	return os.Readlink(filepath.Join(string(d), name))
}

// ZoneName returns the name of the time zone of a host, in which its cron interprets crontabs: from its TZ, or from its files timezone or
// localtime in /etc.
func ZoneName(tz string, etc EtcFiles) (string, error) {
	candidates := []string{strings.TrimPrefix(tz, ":")}
	if b, err := etc.ReadFile("timezone"); err == nil {
		candidates = append(candidates, strings.TrimSpace(string(b)))
	}

	if target, err := etc.Readlink("localtime"); err == nil {
		if _, name, ok := strings.Cut(target, "zoneinfo/"); ok {
			candidates = append(candidates, name)
		}
	} else if os.IsNotExist(err) && len(candidates) == 1 {
		candidates = append(candidates, "UTC") // the default of the C library
	}

	for _, name := range candidates {
		if name == "" {
			continue
		}
		if name == "Etc/UTC" || name == "Etc/UCT" || name == "Universal" || name == "Zulu" {
			return "UTC", nil
		}
		if _, err := schedule.Location(name); err == nil {
			return name, nil
		}
	}

	return "", failure.Usage("cannot determine the name of the host's time zone").WithHint("name it, for example: --timezone Europe/Berlin")
}

// FutureTime formats a future time. Within the next days, the weekday is sufficient as its date.
func (p *Printer) FutureTime(t task.Time, timezone string) string {
	if d := t.Sub(p.Now()); !t.IsZero() && p.TimeMode == TimeRelative && d > -24*time.Hour && d < 6*24*time.Hour {
		return p.WeekdayTime(t, timezone)
	}

	return p.DateTime(t, timezone)
}

// RecentTime formats a time in the past. Of the last days, the weekday is sufficient as its date.
func (p *Printer) RecentTime(t task.Time, timezone string) string {
	if d := p.Now().Sub(t.Time); !t.IsZero() && p.TimeMode == TimeRelative && d >= 0 && d < 6*24*time.Hour {
		return p.WeekdayTime(t, timezone)
	}

	return p.FutureTime(t, timezone)
}

// WeekdayTime formats a time with its weekday instead of its date.
func (p *Printer) WeekdayTime(t task.Time, timezone string) string {
	return t.In(p.Zone(timezone)).Format("Mon ") + p.ClockTime(t, timezone)
}

// SoonTime formats a future time without its day if that is today.
func (p *Printer) SoonTime(t task.Time, timezone string) string {
	zone := p.Zone(timezone)
	if p.TimeMode == TimeRelative && t.In(zone).Format(time.DateOnly) == p.Now().In(zone).Format(time.DateOnly) {
		return p.ClockTime(t, timezone)
	}

	return p.FutureTime(t, timezone)
}

// DateTime formats a time with its date.
func (p *Printer) DateTime(t task.Time, timezone string) string {
	if t.IsZero() {
		return p.NoValue()
	}
	if p.TimeMode != TimeRelative {
		return p.ExactTime(t, timezone)
	}

	local := t.In(p.Zone(timezone))
	layout := "Mon 2 Jan "
	if local.Year() != p.Now().In(local.Location()).Year() {
		layout = "Mon 2 Jan 2006 "
	}

	return local.Format(layout) + p.ClockTime(t, timezone)
}

// WeekdayDate formats an exact time with its weekday.
func (p *Printer) WeekdayDate(t task.Time, timezone string) string {
	return t.In(p.Zone(timezone)).Format("Mon ") + p.ExactTime(t, timezone)
}

// PastTime formats a time in the past.
func (p *Printer) PastTime(t task.Time, timezone string) string {
	if t.IsZero() {
		return p.NoValue()
	}
	if p.TimeMode != TimeRelative {
		return p.ExactTime(t, timezone)
	}

	d := p.Now().Sub(t.Time)
	if d < time.Second {
		return "now"
	}

	return task.Duration(d).Approximate() + " ago"
}

// ExactTime formats a time in milliseconds.
func (p *Printer) ExactTime(t task.Time, timezone string) string {
	layout := "2006-01-02 15:04:05 MST"
	if t.Nanosecond() != 0 {
		layout = "2006-01-02 15:04:05.000 MST"
	}

	return t.In(p.Zone(timezone)).Format(layout)
}

// ClockTime formats a time of day, with seconds only if they are not zero. For milliseconds, users set --time.
func (p *Printer) ClockTime(t task.Time, timezone string) string {
	layout := "15:04 MST"
	if t.Second() != 0 || t.Nanosecond() != 0 {
		layout = "15:04:05 MST"
	}

	return t.In(p.Zone(timezone)).Format(layout)
}

// ClockMillis formats a time of day in milliseconds.
func (p *Printer) ClockMillis(t task.Time, timezone string) string {
	return t.In(p.Zone(timezone)).Format("15:04:05.000 MST")
}
