package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/known"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// skippedSpan is a worker's last record of skipped ticks of a task. The next tick that is skipped for the
// same reason extends it. It is dropped (endSpan) as soon as one of the task's ticks has any other outcome,
// so that a range never includes a tick that ran.
type skippedSpan struct {
	first, last, created int64 // Unix milliseconds
	count, mod           int64 // number of ticks; mod revision of the record
	generation           int32
	reason               string
	trigger, message     string
	due                  task.Time // of the first, if jitter put it off
}

// skipRun records that a tick does not run, or run.Count ticks up to run.Last. If the ticks before it were
// skipped for the same reason by the same version of the task, their record is extended. The extended
// record keeps its key, which begins with the time of its first tick. The caller has made room.
func (p *plan) skipRun(t *taskstate.Task, run task.Run, reason string) {
	now := skippedSpan{
		first: run.ScheduledTime.UnixMilli(), last: run.ScheduledTime.UnixMilli(), created: p.now.UnixMilli(), count: max(run.Count, 1),
		generation: t.Generation, reason: reason, trigger: run.Trigger, message: run.Message, due: run.DueAt,
	}
	if !run.Last.IsZero() {
		now.last = run.Last.UnixMilli()
	}

	// The write of an extended record compares its mod revision. If the record was trimmed or changed, the
	// commit fails and the next plan begins a new record.
	before := p.s.skippedSpans[t]
	extends := before != nil && before.reason == reason && before.generation == t.Generation && before.last < now.first
	if extends {
		now.first, now.created, now.trigger, now.message, now.due = before.first, before.created, before.trigger, before.message, before.due
		now.count += before.count
	}

	record := p.newRun(t, now.first, task.RunID(taskstate.Instant(now.first), t.UID()), now.trigger)

	// Keep the due time of the first tick. It cannot be computed any more if the task's anchor has moved.
	record.DueAt = now.due
	record.State, record.Reason, record.Message, record.Attempt = task.Skipped, reason, now.message, 0
	record.CreatedAt, record.EndedAt = task.At(taskstate.Instant(now.created)), task.At(p.now)
	if now.count > 1 {
		record.Last, record.Count = task.At(taskstate.Instant(now.last)), now.count
	}

	effect := ticksSkipped{task: t, record: &record, span: &now}
	if extends {
		effect.extends = before.mod
	}

	p.addEffect(effect)
	p.counts.skipped += max(run.Count, 1)
}

// endSpan ends the current range of skipped ticks of t, because one of its ticks has another outcome.
func (s *shardState) endSpan(t *taskstate.Task) {
	if len(s.skippedSpans) > 0 {
		delete(s.skippedSpans, t)
	}
}

// missTicks records ticks that will not run, as one range. The caller has made room.
func (p *plan) missTicks(t *taskstate.Task, m tickpolicy.MissedTicks) {
	p.s.endSpan(t)
	r := p.newRun(t, m.First.UnixMilli(), task.RunID(m.First, t.UID()), task.TriggerSchedule)
	r.State, r.Reason, r.Attempt, r.EndedAt = task.Missed, m.Reason, 0, task.At(p.now)
	if m.Count > 1 {
		r.Last, r.Count = task.At(m.Last), m.Count
	}

	r.Message = p.s.opening.DescribeMissed(m.Reason, p.s.node, &p.s.Records, t, p.now)
	p.commit.Record(t.Ref(p.s.Shard), r)
	p.counts.missed += m.Count
}

// noteOpening records the time of the opening and the watermark that it found. Later openings by the same
// worker belong to the same ownership and are not recorded.
func (s *shardState) noteOpening(mark record.Watermark, now time.Time) {
	if s.opening.At.IsZero() {
		s.opening = known.Opening{At: now, Mark: mark.Time.Time}
	}
}
