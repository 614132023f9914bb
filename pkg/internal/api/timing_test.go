package api_test

import (
	"errors"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store/record"
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
		list, err := w.Ticks.ListBySchedule(ctx, c.ask)
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
		_, err := w.Ticks.ListBySchedule(ctx, ask)
		var e *client.Error
		if !errors.As(err, &e) || e.Field != field {
			t.Errorf("%+v: %v; want an error of %s", ask, err, field)
		}
	}
}

// When a schedule with jitter replaces another one, a tick of the old schedule may already be decided, and
// would fall due again with the jitter. So ticks that are already decided do not belong to the new schedule,
// whatever the API's clock shows.
func TestUpdate_ToJitterBeginsBehindTheWatermark(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "*/10 * * * * *")
	w.create("b", "*/10 * * * * *")
	refOf := func(name string) record.Ref {
		return ref("default", name)
	}

	late := w.clock.now().Truncate(10 * time.Second).Add(14 * time.Second) // the owner's clock is ahead
	w.mark("a", late)
	_, err := w.Tasks.Patch(ctx, "default", "a", []byte(`{"jitter": "5s"}`), 0)
	must(t, err)

	if from := w.entry(refOf("a")).From; from.Before(late) {
		t.Errorf("from is %v; decided is all up to %v", from, late)
	}

	_, err = w.Tasks.Patch(ctx, "default", "a", []byte(`{"timeout": "5s"}`), 0) // the same ticks: from stays
	must(t, err)
	w.mark("b", late)
	w.batch("", `{"name": "b", "schedule": "*/10 * * * * *", "jitter": "5s", "action": {"noop": {}}}`)

	if from := w.entry(refOf("b")).From; from.Before(late) {
		t.Errorf("in a batch from is %v; decided is all up to %v", from, late)
	}

	// A tick that jitter had delayed, and that has no jitter any more, is before the watermark. The new schedule
	// does not have it.
	later := late.Add(10 * time.Second)
	w.mark("b", later)
	_, err = w.Tasks.Patch(ctx, "default", "b", []byte(`{"jitter": null}`), 0)
	must(t, err)

	if from := w.entry(refOf("b")).From; from.Before(later) {
		t.Errorf("without jitter from is %v; decided is all up to %v", from, later)
	}
}

// mark writes the watermark of a task's shard, as its owner does when it has decided all ticks up to a time.
func (w *world) mark(name string, at time.Time) {
	w.put(w.store.Keys().Watermark(ref("default", name).Shard), record.Watermark{Time: task.At(at), Nonce: "n"})
}

// When a schedule with jitter replaces another one, the old one applies up to now, and the new one from then on. The
// write loses against an owner that has decided a tick of either after now, or passed it.
//
// Verifies: G4
func TestUpdate_OfJitterSkipsNoTickOfTheNearFuture(t *testing.T) {
	for name, c := range map[string]struct {
		old, patch string
		tick       time.Duration // of the old or the new schedule, after now
	}{
		"jitter is added":             {`"schedule": "*/10 * * * * *"`, `{"jitter": "5s"}`, 40 * time.Millisecond},
		"jitter is taken away":        {`"schedule": "*/10 * * * * *", "jitter": "5s"`, `{"jitter": null}`, 40 * time.Millisecond},
		"only the new one has a tick": {`"schedule": "@yearly"`, `{"schedule": "*/10 * * * * *", "jitter": "5s"}`, 40 * time.Millisecond},
		"only the old one has a tick": {`"schedule": "*/10 * * * * *"`, `{"schedule": "@yearly", "jitter": "5s"}`, 40 * time.Millisecond},
		"a tick 1 ms away":            {`"schedule": "*/10 * * * * *"`, `{"jitter": "5s"}`, time.Millisecond},
		"a tick 9 s away":             {`"schedule": "*/10 * * * * *"`, `{"jitter": "5s"}`, 9 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w, ctx := newWorld(t), t.Context()
			w.batch("", `{"name": "a", `+c.old+`, "action": {"noop": {}}}`)
			tick := w.clock.now().Truncate(10 * time.Second).Add(20 * time.Second)
			w.clock.advance(tick.Add(-c.tick).Sub(w.clock.now()))
			now := w.clock.now()

			w.mark("a", tick.Add(-time.Millisecond)) // up to the tick, the watermark does not matter
			_, err := w.Tasks.Patch(ctx, "default", "a", []byte(c.patch), 0)
			must(t, err)

			if from := w.entry(ref("default", "a")).From.Sub(now); from != 0 {
				t.Errorf("from is %v after the edit", from)
			}
		})
	}
}
