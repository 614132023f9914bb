package scheduler

import (
	"fmt"
	"time"

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

	r.Message = p.s.opening.describeMissed(m.Reason, p, t)
	p.commit.Record(t.Ref(p.s.Shard), r)
	p.counts.missed += m.Count
}

// opening describes how a worker found its shard when it became the owner. It is used for the reasons of
// missed ticks.
type opening struct {
	at   time.Time // by the owner's clock
	mark time.Time // the watermark: ticks up to here had been decided
}

// noteOpening records the time of the opening and the watermark that it found. Later openings by the same
// worker belong to the same ownership and are not recorded.
func (s *shardState) noteOpening(mark record.Watermark, now time.Time) {
	if s.opening.at.IsZero() {
		s.opening = opening{at: now, mark: mark.Time.Time}
	}
}

// describeMissed returns the evidence why ticks were missed, for people.
func (o opening) describeMissed(reason string, p *plan, t *taskstate.Task) string {
	at := func(t time.Time) string { return task.At(t).Format(time.RFC3339Nano) }

	switch reason {
	case task.ReasonNoOwner:
		text := fmt.Sprintf("%s opened shard %d at %s", p.s.node, p.s.Shard, at(o.at))
		if isMark(o.mark) {
			text += "; the ticks of its tasks had been decided up to " + at(o.mark)
		}
		return text
	case task.ReasonWindow:
		return fmt.Sprintf("decided at %s, and missed.window is %s; %s", at(p.now), t.Policy.Missed.Window, o.describeOutage(p))
	case task.ReasonDeadline:
		return fmt.Sprintf("decided at %s, and start_deadline is %s; %s", at(p.now), task.Duration(t.Policy.Deadline), o.describeOutage(p))
	}

	return fmt.Sprintf("decided at %s; %s", at(p.now), o.describeOutage(p))
}

// describeOutage returns since when this node has owned the shard, and up to which time it had decided.
func (o opening) describeOutage(p *plan) string {
	text := fmt.Sprintf("%s has owned shard %d since %s", p.s.node, p.s.Shard, task.At(o.at).Format(time.RFC3339Nano))
	if isMark(p.s.Watermark.Time.Time) {
		text += ", and had decided up to " + p.s.Watermark.Time.Format(time.RFC3339Nano)
	}
	return text
}

// isMark reports whether a watermark was ever moved: that of a new cluster is at time zero.
func isMark(mark time.Time) bool { return mark.UnixMilli() > 0 }
