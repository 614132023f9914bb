package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// nextUndecided is the first tick that neither the entry's from nor the
// watermark decides; 0 if there is none.
func (s *shardState) nextUndecided(t *taskstate.Task) int64 {
	after, mark := t.From, s.Watermark.Time.UnixMilli()
	if t.Paused {
		until, _ := t.Silence()
		after = max(after, until)
	}

	covered := s.CoveredByWatermark(t)
	if covered && mark > after {
		// The watermark's own instant may be decided for some tasks only.
		after = max(after, t.LastDue(mark-1))
	}

	tick := t.After(after)
	if covered && tick != 0 && s.Watermark.Decided(task.At(taskstate.Instant(t.Due(tick))), t.FullName()) {
		return t.After(tick)
	}

	return tick
}

// rescheduleTask finds the task's next undecided tick and puts it into the heap.
func (s *shardState) rescheduleTask(t *taskstate.Task) {
	if !s.watermarkKnown {
		return // when the watermark is known, all are
	}

	tick := int64(0)
	if t.Fires() {
		tick = s.nextUndecided(t)
	}

	delete(s.uncovered, t)

	if tick == 0 {
		s.due.Set(t, 0)
		return
	}

	s.scheduleTick(t, tick)

	if !s.CoveredByWatermark(t) && t.DueAt() <= s.Watermark.Time.UnixMilli() {
		s.uncovered[t] = struct{}{}
	}
}

// advanceToNextTick moves the task on to the tick after the one just decided.
func (s *shardState) advanceToNextTick(t *taskstate.Task) {
	if t.Second == 0 {
		s.due.Set(t, 0)
		return
	}
	s.scheduleTick(t, t.Second)
}

func (s *shardState) scheduleTick(t *taskstate.Task, tick int64) {
	t.Second = t.After(tick)
	s.due.Set(t, tick)
	if s.onTime != 0 && t.IsBehind(s.onTime) {
		s.onTime = 0
	}
}
