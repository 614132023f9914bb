package taskstate

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
)

// MissedSchedule is a task's schedule for the missed policy. It implements tickpolicy.Ticks.
type MissedSchedule struct {
	*schedule.Schedule
	t *Task
}

// NewMissedSchedule returns the schedule of a task whose entry can be read.
func NewMissedSchedule(t *Task) MissedSchedule {
	s := t.Schedule()
	return MissedSchedule{&s, t}
}

// DueBy returns an instant with this property: the ticks up to it are exactly those that are due at the
// instant at.
func (s MissedSchedule) DueBy(at time.Time) time.Time { return Instant(s.t.LastDue(at.UnixMilli())) }
