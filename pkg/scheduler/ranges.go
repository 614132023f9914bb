package scheduler

import (
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// skippedSpan is a worker's last record of skipped ticks of a task: the next tick that is
// skipped for the same reason extends it. Nothing else has become of one of the
// task's ticks since.
type skippedSpan struct {
	first, last, created int64
	count, mod           int64
	generation           int32
	reason               string
	trigger, message     string
	due                  task.Time // of the first, if jitter put it off
}

// skipRun records that a tick does not run, or as many as run says. The record of
// those before it is extended, if they were skipped for the same reason by the
// same version of the task.
func (p *plan) skipRun(t *taskstate.Task, run task.Run, reason string) {
	now := skippedSpan{
		first: run.ScheduledTime.UnixMilli(), last: run.ScheduledTime.UnixMilli(), created: p.now.UnixMilli(), count: max(run.Count, 1),
		generation: t.Generation, reason: reason, trigger: run.Trigger, message: run.Message, due: run.DueAt,
	}
	if !run.Last.IsZero() {
		now.last = run.Last.UnixMilli()
	}

	before := p.s.skippedSpans[t]
	extends := before != nil && before.reason == reason && before.generation == t.Generation && before.last < now.first
	if extends {
		now.first, now.created, now.trigger, now.message, now.due = before.first, before.created, before.trigger, before.message, before.due
		now.count += before.count
	}

	record := p.newRun(t, now.first, task.RunID(taskstate.Instant(now.first), t.UID()), now.trigger)
	record.DueAt = now.due // as it was: a schedule that counts from the last end knows that tick no more
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

// endSpan notes that something else becomes of a tick of t.
func (s *shardState) endSpan(t *taskstate.Task) {
	if len(s.skippedSpans) > 0 {
		delete(s.skippedSpans, t)
	}
}

// missTicks records ticks that will not run, as one range.
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

// opening is how a worker found its shard when it became the owner.
type opening struct {
	at   time.Time // by the owner's clock
	mark time.Time // up to which ticks had been decided
}

// noteOpening notes what the shard's watermark was, if this is the first opening: those
// after it belong to the same time of ownership.
func (s *shardState) noteOpening(mark record.Watermark, now time.Time) {
	if s.opening.at.IsZero() {
		s.opening = opening{at: now, mark: mark.Time.Time}
	}
}

// describeMissed says in words why ticks were missed.
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

func (o opening) describeOutage(p *plan) string {
	text := fmt.Sprintf("%s has owned shard %d since %s", p.s.node, p.s.Shard, task.At(o.at).Format(time.RFC3339Nano))
	if isMark(p.s.Watermark.Time.Time) {
		text += ", and had decided up to " + p.s.Watermark.Time.Format(time.RFC3339Nano)
	}
	return text
}

// isMark reports whether a watermark is one: that of a new cluster is time zero.
func isMark(mark time.Time) bool { return mark.UnixMilli() > 0 }
