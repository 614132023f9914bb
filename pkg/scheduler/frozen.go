package scheduler

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// isFrozen reports whether nothing of a task's namespace may start.
func (p *plan) isFrozen(t *taskState) bool {
	if p.freezes == nil || len(p.freezes.Holding) == 0 {
		return false
	}
	namespace, _, _ := strings.Cut(t.fullName(), "/")
	return p.freezes.Of(namespace) != nil
}

// skipFrozen decides all of a task's undecided ticks up to an instant: none runs,
// however late it is, and whatever the missed policy says of those.
func (p *plan) skipFrozen(t *taskState, upTo int64) bool {
	if !p.fits(t, 3, 2*t.bytes()) {
		return false
	}
	s := t.schedule()
	first, last, count, _ := s.Missed(instant(t.next-1), instant(t.lastDue(upTo)), 1)
	if count > 0 {
		run := p.newRun(t, first.UnixMilli(), task.RunID(first, t.uidText()), task.TriggerSchedule)
		if count > 1 {
			run.Last, run.Count = task.At(last), count
		}
		p.skip(t, run, task.ReasonFrozen)
		p.move(t, last.UnixMilli())
	}
	p.lookAfterCommit(t)
	return true
}
