package schedule

import "time"

// AfterCompletion returns the period of a schedule that counts from the end of the run before, such as "@every 1h
// after completion". Such a schedule has one tick for each anchor. When a run has ended, its end becomes the next
// anchor.
func (s *Schedule) AfterCompletion() (period time.Duration, ok bool) {
	return time.Duration(s.plan.after) * time.Millisecond, s.plan.after != 0
}

// completionTick returns the one tick of a schedule that counts from the end of a run, in ms. If the task's start
// is later, that is the tick.
func (s *Schedule) completionTick() int64 {
	return max(s.anchor+s.plan.after, s.plan.first)
}
