package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
)

// ticking is a task's schedule as the missed policy sees it.
type ticking struct {
	*schedule.Schedule
	t *taskState
}

func (s ticking) DueBy(at time.Time) time.Time { return instant(s.t.lastDue(at.UnixMilli())) }
