package why

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

const oneDay = 24 * time.Hour

// Moment is a time as a user wrote it: an instant with an offset, or a local time, which may exist twice or not
// at all.
type Moment struct {
	schedule.Moment

	end time.Time // for a date: the first instant of the next day
}

// ReadMoment parses a time with schedule.ReadMoment. A date means its first instant. An error is a *task.Error without a
// field.
func ReadMoment(text string, base schedule.TimeBase) (Moment, error) {
	var m Moment
	var err error
	if m.Moment, err = schedule.ReadMoment(text, base); err != nil {
		return m, err
	}

	if m.Grain == oneDay {
		if next, err := schedule.ReadMoment(nextDay(m.Local), base); err == nil {
			m.end = next.Instants[0]
		} else { // the last day that can be parsed has no next day
			m.end = m.Instants[0].Add(oneDay)
		}
	}

	return m, nil
}

// nextDay returns the date after that of a local time.
func nextDay(local string) string {
	t, err := time.Parse(time.DateOnly, local[:len(time.DateOnly)])
	if err != nil {
		return local // the text was parsed as a time before
	}

	return t.AddDate(0, 0, 1).Format(time.DateOnly)
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
	return &Moment{Moment: schedule.Moment{Text: at.UTC().Format(time.RFC3339), Grain: tickPrecision, Instants: []time.Time{task.At(at).Time}}}
}
