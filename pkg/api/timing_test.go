package api_test

import (
	"errors"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestScheduleNext_KnowsTheWholeTiming(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	from := time.Date(2027, 3, 27, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		ask         client.ScheduleRequest
		first, last string
		count       int
	}{
		{client.ScheduleRequest{Schedule: task.Schedules{"H H(2-5) * * *"}, Name: "nightly-backup"}, "2027-03-28T05:06:00Z", "2027-04-01T05:06:00Z", 5},
		{client.ScheduleRequest{Schedule: task.Schedules{"@hourly"}, Start: task.At(from.Add(3 * time.Hour)), End: task.At(from.Add(4 * time.Hour))}, "2027-03-27T15:00:00Z", "2027-03-27T16:00:00Z", 2},
		{client.ScheduleRequest{Schedule: task.Schedules{"@in 10m"}}, "2027-03-27T12:10:00Z", "2027-03-27T12:10:00Z", 1},
	} {
		c.ask.From, c.ask.Jitter = task.At(from), task.Duration(time.Minute)
		list, err := w.ScheduleNext(ctx, c.ask)
		must(t, err)
		if len(list) != c.count || list[0].Time.Format(time.RFC3339) != c.first || list[c.count-1].Time.Format(time.RFC3339) != c.last {
			t.Errorf("%+v: %+v", c.ask, list)
			continue
		}
		if due := list[0].DueBefore.Sub(list[0].Time.Time); due != time.Minute {
			t.Errorf("%+v: due within %v", c.ask, due)
		}
	}
	for field, ask := range map[string]client.ScheduleRequest{
		"schedule":  {Schedule: task.Schedules{"H * * * *"}},
		"name":      {Schedule: task.Schedules{"H * * * *"}, Name: "Nightly"},
		"namespace": {Schedule: task.Schedules{"H * * * *"}, Name: "nightly", Namespace: "A"},
		"end":       {Schedule: task.Schedules{"@daily"}, End: task.At(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC))},
		"jitter":    {Schedule: task.Schedules{"@daily"}, Jitter: -1},
	} {
		_, err := w.ScheduleNext(ctx, ask)
		var e *client.Error
		if !errors.As(err, &e) || e.Field != field {
			t.Errorf("%+v: %v; want an error of %s", ask, err, field)
		}
	}
}
