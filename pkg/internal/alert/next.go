package alert

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// NextTick returns the next tick of a task or, if it has none, why.
func NextTick(e *task.Entry, now time.Time) (next task.Time, none string) {
	from := now
	if until, ends := e.Silence(); ends && until.After(now) {
		from = until.Time
	}

	ran := int64(0)
	if e.Own != nil {
		ran = e.Own.Runs
	}

	s, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	switch {
	case err != nil:
		return task.Time{}, ""
	case !e.Ticks():
		return task.Time{}, pausedWords(e.Pause())
	case e.Shadow:
		return task.Time{}, "the task is a shadow"
	case e.Schedule.AtBoot():
		return task.Time{}, "it runs at the next boot of a matching node"
	case !e.Schedule.HasTicks():
		return task.Time{}, "it runs only when it is triggered"
	case e.MaxRuns > 0 && ran >= e.MaxRuns:
		return task.Time{}, "the schedule has ended"
	}

	tick, ok := s.Next(from)
	if !ok {
		return task.Time{}, "the schedule has ended"
	}

	return task.At(tick), ""
}

// pausedWords says who has paused a task, or what.
func pausedWords(p *task.Pause) string {
	switch by := wording.PausedBy(p); {
	case by == "":
		return "paused"
	case p.By.Is(task.PausedByFailures):
		return "paused " + by
	default:
		return "paused by " + by
	}
}
