package taskstate

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
)

// MissedSchedule is a task's schedule as the missed policy sees it.
type MissedSchedule struct {
	*schedule.Schedule
	t *Task
}

// NewMissedSchedule returns the schedule of a task whose entry can be read.
func NewMissedSchedule(t *Task) MissedSchedule {
	s := t.Schedule()
	return MissedSchedule{&s, t}
}

// DueBy returns an instant up to which are all ticks that are due at another, and no others.
func (s MissedSchedule) DueBy(at time.Time) time.Time { return Instant(s.t.LastDue(at.UnixMilli())) }
