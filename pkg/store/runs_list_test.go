package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestRunPlaces_AreOfTheTimeAskedFor(t *testing.T) {
	w := newWorld(t)
	w.putEnded(ref, 1, task.Succeeded)
	second := w.putEnded(ref, 2, task.Failed)
	w.put(w.keys.Late(ref, second, 7), `{}`)
	w.putEnded(ref, 3, task.Failed)

	at, _ := task.TimeOfRunID(second)
	for _, c := range []struct {
		since, until time.Time
		want         int
	}{{want: 3}, {since: at, want: 2}, {until: at, want: 1}, {since: at, until: at.Add(time.Millisecond), want: 1}, {since: at.Add(time.Hour), want: 0}} {
		places, err := w.RunPlaces(t.Context(), []int{ref.Shard}, "", c.since, c.until)
		ok(t, err)
		if len(places) != c.want {
			t.Errorf("%v to %v: %v", c.since, c.until, places)
		}
	}

	runs, err := w.RunsAt(t.Context(), []store.RunPlace{{Ref: ref, Run: second}, {Ref: ref, Run: "gone"}})
	ok(t, err)

	if runs[0] == nil || runs[0].State != task.Failed || runs[1] != nil {
		t.Errorf("%+v", runs)
	}
}

// RunPlaces reads the beginning of many ranges in one request, and then the rest of the long ones.
func TestRunPlaces_ReadsLongHistoriesToTheEnd(t *testing.T) {
	w := newWorld(t)
	other := record.Ref{Namespace: "default", Name: "b", Shard: 5}
	want := map[string]bool{w.putEnded(other, 1, task.Failed): true}
	for i := range 1203 {
		want[w.putEnded(ref, i, task.Succeeded)] = true
	}

	places, err := w.RunPlaces(t.Context(), []int{other.Shard, ref.Shard}, "default", time.Time{}, time.Time{})
	ok(t, err)
	if len(places) != 1204 {
		t.Errorf("%d places", len(places))
	}
	for _, p := range places {
		if !want[p.Run] {
			t.Errorf("%v", p)
		}
	}

	places, err = w.RunPlaces(t.Context(), []int{other.Shard, ref.Shard}, "none", time.Time{}, time.Time{})
	ok(t, err)
	if len(places) != 0 {
		t.Errorf("in another namespace: %v", places)
	}
}

func TestQueuedPlaces_AreThoseOfTheQueue(t *testing.T) {
	w := newWorld(t)
	ended := w.putEnded(ref, 1, task.Succeeded)
	other := record.Ref{Namespace: "other", Name: "x", Shard: 5}
	w.put(w.keys.Queued(ref, "20261120T200200.000Z-aaaa"), `{}`)
	w.put(w.keys.Queued(other, "20261120T200300.000Z-bbbb"), `{}`)

	for namespace, want := range map[string]int{"": 2, ref.Namespace: 1, "other": 1, "none": 0} {
		places, err := w.QueuedPlaces(t.Context(), []int{ref.Shard, other.Shard}, namespace)
		ok(t, err)
		if len(places) != want || slices.ContainsFunc(places, func(p store.RunPlace) bool { return p.Run == ended }) {
			t.Errorf("in %q: %v", namespace, places)
		}
	}
}

func TestEachEnded_ReadsPagesInOrder(t *testing.T) {
	w := newWorld(t)
	if kept, oldest, err := w.EachEnded(t.Context(), ref, 0, time.Time{}, func(*task.Run) { t.Error("a run of an empty history") }); err != nil || kept != 0 || !oldest.IsZero() {
		t.Errorf("%d records since %v, %v", kept, oldest, err)
	}

	var ids []string
	for i := range 1203 { // three pages
		ids = append(ids, w.putEnded(ref, i, task.Succeeded))
	}

	first, _ := task.TimeOfRunID(ids[0])
	since, _ := task.TimeOfRunID(ids[200])
	for _, c := range []struct {
		since time.Time
		want  []string
	}{{time.Time{}, ids}, {since, ids[200:]}, {since.Add(time.Hour * 24 * 365), nil}} {
		var got []string
		kept, oldest, err := w.EachEnded(t.Context(), ref, 0, c.since, func(r *task.Run) { got = append(got, r.ID) })
		if err != nil || kept != len(ids) || !oldest.Equal(first) || !slices.Equal(got, c.want) {
			t.Errorf("since %v: %d of %d records since %v, %v", c.since, len(got), kept, oldest, err)
		}
	}
}
