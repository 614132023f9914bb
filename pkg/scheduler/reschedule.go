package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
)

// rescheduleTask computes the task's next undecided tick from its entry and the watermark, and updates the
// heap. It is called when the entry or the watermark has changed.
func (s *shardState) rescheduleTask(t *taskstate.Task) {
	// During a preload, the watermark is the last record to be loaded. Then all tasks are scheduled.
	if !s.watermarkKnown {
		return
	}

	tick := int64(0)
	if t.Fires() {
		tick = s.NextUndecided(t)
	}

	delete(s.uncovered, t)

	if tick == 0 {
		s.rows.Touch(t)
		s.due.Set(t, 0)
		return
	}

	s.scheduleTick(t, tick)

	// The watermark's time has passed this tick although it is undecided. decideUncovered decides it (G4).
	if !s.CoveredByWatermark(t) && t.DueAt() <= s.Watermark.Time.UnixMilli() {
		s.uncovered[t] = struct{}{}
	}
}

// advanceToNextTick moves a task to the tick after the one that was just decided.
func (s *shardState) advanceToNextTick(t *taskstate.Task) {
	if t.Second == 0 {
		s.rows.Touch(t)
		s.due.Set(t, 0)
		return
	}
	s.scheduleTick(t, t.Second)
}

// scheduleTick puts a task into the heap with the given next tick, and computes the one after it.
func (s *shardState) scheduleTick(t *taskstate.Task, tick int64) {
	t.Second = t.After(tick)
	s.due.Set(t, tick)
	s.rows.Touch(t)

	if s.aside.has(t) {
		s.takeOffHeap(t)
		return
	}

	// The task is behind, so the remembered result of anyBehind is no longer true.
	if s.onTime != 0 && t.IsBehind(s.onTime) {
		s.onTime = 0
	}
}
