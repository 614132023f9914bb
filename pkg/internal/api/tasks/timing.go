package tasks

import (
	"cmp"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// timingOf is what a request asks about: @in counts from its from, H is that of
// the task it names.
func timingOf(ask client.ScheduleRequest) (task.Timing, error) {
	t := task.Timing{
		Schedule: ask.Schedule, Timezone: ask.Timezone, DST: ask.DST,
		Start: ask.Start, End: ask.End, Jitter: ask.Jitter,
	}
	var err error
	if t.Schedule, err = schedule.ResolveIn(t.Schedule, ask.From.Time); err != nil || ask.Name == "" {
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

// dueBefore is by when a tick is due at the latest, where there is jitter and the
// task is not known whose uid would tell when.
func dueBefore(o schedule.Occurrence) task.Time {
	if o.Due.IsZero() && o.Before.After(o.Time) {
		return task.At(o.Before)
	}
	return task.Time{}
}
