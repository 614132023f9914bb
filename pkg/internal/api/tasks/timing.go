package tasks

import (
	"cmp"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// timingOf returns the timing in a request. "@in" counts from the request's from, and H gets the value that the
// named task would get.
func timingOf(ask client.ScheduleRequest) (task.Timing, error) {
	t := task.Timing{
		Schedule: ask.Schedule, Timezone: ask.Timezone, DST: ask.DST,
		Start: ask.Start, End: ask.End, Jitter: ask.Jitter,
	}
	var err error
	if t.Schedule, err = schedule.Resolve(t.Schedule, t.Timezone, ask.From.Time); err != nil || ask.Name == "" {
		return t, err
	}

	namespace := cmp.Or(ask.Namespace, task.Defaults().Namespace)
	if err := task.CheckName("namespace", namespace); err != nil {
		return t, err
	}
	if err := task.CheckName("name", ask.Name); err != nil {
		return t, err
	}

	t.Schedule, err = schedule.Spread(t.Schedule, namespace, ask.Name)

	return t, err
}

// dueBefore returns the latest time at which a tick can be due. It is zero without jitter, and for a task with
// a known uid, which determines the exact due time.
func dueBefore(o schedule.Occurrence) task.Time {
	if o.Due.IsZero() && o.Before.After(o.Time) {
		return task.At(o.Before)
	}
	return task.Time{}
}
