package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// decideShadowTick records a tick that would have run, had its task not been a shadow. Each
// has a record of its own: who compares them with what another scheduler did needs
// their times, and a record of several has but the first and the last.
//
// Overlap has no say: it is about runs, and a shadow's ticks make none.
func (p *plan) decideShadowTick(t *taskstate.Task, tick int64, id, trigger string) {
	p.s.endSpan(t)
	r := p.newRun(t, tick, id, trigger)
	r.State, r.Reason, r.Attempt, r.EndedAt = task.Skipped, task.ReasonShadow, 0, task.At(p.now)
	p.commit.Record(t.Ref(p.s.Shard), r)
	p.counts.skipped++
}
