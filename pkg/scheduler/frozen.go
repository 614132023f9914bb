package scheduler

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// isFrozen reports whether nothing in the task's namespace may start (G21).
func (p *plan) isFrozen(t *taskstate.Task) bool {
	if p.freezes == nil || len(p.freezes.Holding) == 0 {
		return false
	}
	namespace, _, _ := strings.Cut(t.FullName(), "/")
	return p.freezes.Of(namespace) != nil
}

// skipFrozen decides all undecided ticks of a frozen task up to upTo (Unix milliseconds). All are skipped,
// however late they are, and the missed policy does not apply. It returns false if the commit has no room.
func (p *plan) skipFrozen(t *taskstate.Task, upTo int64) bool {
	if !p.reserveRoom(t, 3, 2*roomForTask(t)) {
		return false
	}

	s := t.Schedule()
	first, last, count, _ := s.Missed(taskstate.Instant(t.Next-1), taskstate.Instant(t.LastDue(upTo)), 1)
	if count > 0 {
		run := p.newRun(t, first.UnixMilli(), task.RunID(first, t.UID()), task.TriggerSchedule)

		// One record holds the whole range.
		if count > 1 {
			run.Last, run.Count = task.At(last), count
		}

		p.skipRun(t, run, task.ReasonFrozen)
		p.setEntryFrom(t, last.UnixMilli())
	}

	p.examineAfterCommit(t)

	return true
}
