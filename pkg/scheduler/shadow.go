package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// decideShadowTick records a tick of a shadow task as skipped. Each tick has its own record (G24),
// because users compare them with what another scheduler did, and a range record contains only the first
// and the last time.
//
// The overlap policy does not apply: it concerns runs, and a shadow task has none.
func (p *plan) decideShadowTick(t *taskstate.Task, tick int64, id, trigger string) {
	p.s.endSpan(t)
	r := p.newRun(t, tick, id, trigger)
	r.State, r.Reason, r.Attempt, r.EndedAt = task.Skipped, task.ReasonShadow, 0, task.At(p.now)
	p.commit.Record(t.Ref(p.s.Shard), r)
	p.counts.skipped++
}
