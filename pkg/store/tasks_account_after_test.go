package store_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// An account of sources has the triggers in their order, and the newest runs of each source, as they were at a revision.
func TestAccountOfSources_ReadsTriggersAndEnds(t *testing.T) {
	w := newWorld(t)
	etl, gone := record.Ref{Namespace: "default", Name: "etl", Shard: 5}, record.Ref{Namespace: "default", Name: "gone", Shard: 6}
	start := time.Date(2026, 3, 1, 2, 0, 0, 0, time.UTC)
	w.put(w.keys.Spec(etl), "{}")
	for i := range 20 {
		tick := start.Add(time.Duration(i) * time.Minute)
		w.put(w.keys.Ended(etl, task.RunID(tick, "uuuu")), `{"uid":"uuuu","scheduled_time":"`+tick.Format("2006-01-02T15:04:05.000Z")+`","state":"succeeded"}`)
	}

	const trigger = `{"uid":"vvvv","generation":2,"at":"2026-03-01T02:00:00Z","cause":{"state":"succeeded"}}`
	w.put(w.keys.Trigger(ref, "z-first", "r1"), trigger)
	w.put(w.keys.Trigger(ref, "etl", "r2"), trigger)
	w.put(w.keys.Trigger(ref, "etl", "broken"), "{")

	res, err := w.etcd.Get(t.Context(), w.keys.Spec(etl))
	ok(t, err)
	w.put(w.keys.Trigger(ref, "etl", "later"), trigger)

	a, err := w.AccountOfSources(t.Context(), ref, []record.Ref{etl, gone}, start.Add(9*time.Minute), res.Header.Revision)
	ok(t, err)

	if len(a.Triggers) != 2 || a.Triggers[0].Source != "z-first" || a.Triggers[1].Cause.Run != "r2" {
		t.Errorf("%+v", a.Triggers)
	}
	if len(a.Sources) != 2 || a.Sources[0].Gone || !a.Sources[1].Gone || a.Sources[0].Task != "etl" {
		t.Fatalf("%+v", a.Sources)
	}
	if runs := a.Sources[0].Runs; len(runs) != 8 || !runs[0].ScheduledTime.Equal(start.Add(9*time.Minute)) {
		t.Errorf("%d runs, the newest is %s", len(runs), runs[0].ScheduledTime)
	}
}
