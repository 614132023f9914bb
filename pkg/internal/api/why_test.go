package api_test

import (
	"errors"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestWhy_RefusesQuestionsThatAreNone(t *testing.T) {
	w := newWorld(t)
	s := task.Defaults()
	s.Name, s.Schedule, s.Action.Noop = "job", task.Schedules{"0 0 1 1 *"}, &task.Noop{}
	if _, err := w.Tasks.Create(t.Context(), "default", s); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		q     client.WhyQuestion
		field string
	}{
		{client.WhyQuestion{At: "soon"}, "at"},
		{client.WhyQuestion{At: "2026-03-29T02:30", Timezone: "Europe/Berlyn"}, "timezone"},
		{client.WhyQuestion{At: "2026-03-29T02:30", From: "2026-03-29"}, "at"},
		{client.WhyQuestion{To: "2026-03-29T02:30"}, "from"},
		{client.WhyQuestion{From: "2026-03-29T02:30", To: "2026-03-28T02:30"}, "to"},
		{client.WhyQuestion{From: "2026-03-29T02:61"}, "from"},
	} {
		_, err := w.Tasks.Why(t.Context(), "default", "job", c.q)
		var e *client.Error
		if !errors.As(err, &e) || e.Field != c.field || !errors.Is(err, task.ErrInvalid) {
			t.Errorf("%+v: %v, not an error of %s", c.q, err, c.field)
		}
	}

	if _, err := w.Tasks.Why(t.Context(), "default", "nobody", client.WhyQuestion{}); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("an unknown task: %v", err)
	}
}

// A question without a zone uses the task's zone. Questions about a deleted task are answered from its
// tombstone.
func TestWhy_ReadsWhatIsOnRecord(t *testing.T) {
	w := newWorld(t)
	s := task.Defaults()
	s.Name, s.Schedule, s.Timezone, s.Action.Noop = "job", task.Schedules{"30 2 * * *"}, "Asia/Tokyo", &task.Noop{}

	made, err := w.Tasks.Create(t.Context(), "default", s)
	if err != nil {
		t.Fatal(err)
	}

	a, err := w.Tasks.Why(t.Context(), "default", "job", client.WhyQuestion{At: "2099-03-29 02:30"})
	if err != nil || a.Asked.Timezone != "Asia/Tokyo" || a.Tick == nil || a.Tick.Time.Format(time.RFC3339) != "2099-03-28T17:30:00Z" ||
		a.Verdict != task.VerdictNoNode || a.Revision < made.Revision || !a.Now.Equal(w.clock.now()) {
		t.Errorf("%+v, %v", a, err)
	}

	a, err = w.Tasks.Why(t.Context(), "default", "job", client.WhyQuestion{At: "2099-03-29 02:30", Timezone: "UTC"})
	if err != nil || a.Verdict != task.VerdictNoTick {
		t.Errorf("%+v, %v", a, err)
	}

	ref := ref("default", "gone")
	if _, err := w.etcd.Put(t.Context(), w.store.Keys().Tombstone(ref), `{"uid":"u","generation":3,"deleted_at":"2026-01-01T00:00:00.000Z","deleted_by":{"subject":"ann"},"why":"ttl"}`); err != nil {
		t.Fatal(err)
	}

	a, err = w.Tasks.Why(t.Context(), "default", "gone", client.WhyQuestion{At: "2026-02-01T00:00"})
	if err != nil || a.Verdict != task.VerdictNoTask || a.Deleted == nil || !a.Deleted.By.Is("ann") {
		t.Errorf("%+v, %v", a, err)
	}
}
