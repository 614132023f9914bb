package why

import (
	"errors"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

const oneDay = 24 * time.Hour

// Moment is a time as a user wrote it: an instant with an offset, or a local time, which may exist twice or not
// at all.
type Moment struct {
	schedule.Moment
	Text  string
	Grain time.Duration // the precision of Text: a day, a minute, a second or a millisecond

	end time.Time // for a date: the first instant of the next day
}

// ReadMoment parses a time in the formats of schedule.ReadLocal. A date means its first instant. An error is a
// *task.Error without a field.
func ReadMoment(text, zone string) (Moment, error) {
	m := Moment{Text: text, Grain: precisionOf(text)}
	var err error
	if m.Moment, err = schedule.ReadLocal(strings.TrimSpace(text), zone); err != nil {
		var e *task.Error
		if errors.As(err, &e) {
			return m, task.Invalid(e.Code, "", "%s", e.Message)
		}
		return m, err
	}

	if m.Grain == oneDay {
		m.Instants = []time.Time{m.rangeStart()} // if midnight does not exist on that day, the day begins after the gap
		if next, err := schedule.ReadLocal(nextDay(m.Local), zone); err == nil {
			m.end = Moment{Moment: next}.rangeStart()
		} else { // the last day that can be parsed has no next day
			m.end = m.Instants[0].Add(oneDay)
		}
	}

	return m, nil
}

// nextDay returns the date after that of a local time.
func nextDay(local string) string {
	const date = "2006-01-02"
	t, err := time.Parse(date, local[:len(date)])
	if err != nil {
		return local // the text was parsed as a time before
	}

	return t.AddDate(0, 0, 1).Format(date)
}

// precisionOf returns the precision of a time from the way it is written.
func precisionOf(text string) time.Duration {
	_, clock, timed := strings.Cut(strings.Replace(strings.TrimSpace(text), "T", " ", 1), " ")
	clock, _, _ = strings.Cut(strings.ReplaceAll(strings.ReplaceAll(clock, "+", "Z"), "-", "Z"), "Z")
	switch {
	case !timed:
		return oneDay
	case strings.Contains(clock, "."):
		return tickPrecision
	case strings.Count(clock, ":") > 1:
		return time.Second
	}

	return time.Minute
}

// rangeStart returns the beginning of a range that starts with this time.
func (m Moment) rangeStart() time.Time {
	if len(m.Instants) == 0 {
		return m.Change.At
	}
	return m.Instants[0]
}

// rangeEnd returns the end of a range that ends with this time. A date includes its whole day.
func (m Moment) rangeEnd() time.Time {
	switch {
	case !m.end.IsZero():
		return m.end.Add(-tickPrecision)
	case len(m.Instants) == 0:
		return m.Change.At.Add(-tickPrecision)
	}

	return m.Instants[len(m.Instants)-1]
}

// Instant returns the Moment of an instant, with the precision of ticks.
func Instant(at time.Time) *Moment {
	m := Moment{Text: at.UTC().Format(time.RFC3339), Grain: tickPrecision}
	m.Instants = []time.Time{task.At(at).Time}
	return &m
}
