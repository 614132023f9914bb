package schedule

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// setBounds sets the times between which ticks lie, and the jitter. It rejects what task.Spec.Validate also
// rejects, because a timing is not always part of a validated task.
func (p *plan) setBounds(t task.Timing) error {
	p.first, p.last = firstSecond*1000, endSecond*1000-1
	for _, b := range []struct {
		field string
		at    task.Time
		to    *int64
	}{{"start", t.Start, &p.first}, {"end", t.End, &p.last}} {
		switch {
		case b.at.IsZero():
			continue
		case b.at.Unix() < firstWritten || b.at.Unix() >= endSecond:
			return task.Invalid(task.CodeBadTime, b.field, "%s is not in the years 2000 to 2100", b.at.UTC().Format(time.RFC3339))
		}

		*b.to = b.at.UnixMilli()
	}

	if p.last < p.first {
		return task.Invalid(task.CodeBadTime, "end", "%s is before start, %s", formatTime(t.End), formatTime(t.Start))
	}
	if t.Jitter < 0 || t.Jitter > task.MaxJitter {
		return task.Invalid(task.CodeOutOfRange, "jitter", "%s is not between 0s and %s", t.Jitter, task.MaxJitter)
	}

	p.jitter = t.Jitter.Std().Milliseconds()

	return nil
}

// checkFires rejects a plan that has no tick between start and end. It accepts every plan that counts from an
// anchor, which it does not know.
func (p *plan) checkFires(t task.Timing) error {
	if p.isManual() || len(p.every) > 0 || p.after != 0 {
		return nil
	}

	s := Schedule{plan: p}
	if s.nextAfter(p.first-1) != noInstant {
		return nil
	}

	const never = "never fires "

	switch {
	case t.End.IsZero():
		return task.Invalid(task.CodeNeverFires, "schedule", never+"after start, %s", formatTime(t.Start))
	case t.Start.IsZero():
		return task.Invalid(task.CodeNeverFires, "schedule", never+"before end, %s", formatTime(t.End))
	}

	return task.Invalid(task.CodeNeverFires, "schedule", never+"between start, %s, and end, %s", formatTime(t.Start), formatTime(t.End))
}

// formatTime formats a time for messages.
func formatTime(t task.Time) string { return t.UTC().Format(time.RFC3339) }
