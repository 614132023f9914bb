package store_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestEntryReader_ReadsWhatDecodeEntryReads compares EntryReader with record.DecodeEntry.
func TestEntryReader_ReadsWhatDecodeEntryReads(t *testing.T) {
	w := newWorld(t)
	values := map[string]string{
		"a": `{"uid":"aaaa","generation":2,"schedule":["5 * * * *"],"timezone":"Europe/Berlin","from":"2026-11-20T00:00:00.000Z","anchor":"2026-11-19T00:00:00.000Z","action":{"noop":{}},"max_runs":3,"overlap":"skip","own":{"runs":2,"pauses":[{"since":"2026-11-20T00:00:00.000Z","by":"ann"}]},"paused":true}`,
		"b": `{"uid":"bbbb","schedule":["5 * * * *"],"timezone":"Europe/Berlin","from":"2026-11-21T00:00:00.000Z","anchor":"2026-11-19T00:00:00.000Z","action":{"noop":{}},"max_runs":3,"overlap":"skip","jitter":"5m","start":"2026-12-01T00:00:00.000Z","new_field":1}`,
		"c": `{"uid":"cccc","schedule":["5 * * * *"],"timezone":"Europe/Berlin","from":"2026-11-21T00:00:00.000Z","anchor":"2026-11-18T00:00:00.000Z","action":{"noop":{}},"max_runs":3,"overlap":"skip"}`,
		"d": `{"uid":`,
		"e": `{"uid":"eeee","schedule":7}`,
	}
	for name, v := range values {
		w.put(w.keys.Entry(record.Ref{Namespace: "default", Name: name, Shard: 3}), v)
	}

	w.put(w.keys.Entry(record.Ref{Namespace: "prod", Name: "a", Shard: 3}), values["a"])
	r := w.NewEntryReader()
	refs, entries, err := r.Shard(t.Context(), 3, "default")
	ok(t, err)

	if len(refs) != 3 {
		t.Fatalf("%v", refs)
	}

	for i, ref := range refs {
		want, err := record.DecodeEntry([]byte(values[ref.Name]))
		ok(t, err)

		want.Action = task.Action{}
		if !reflect.DeepEqual(*entries[i], want) {
			t.Errorf("%s:\n%+v, want\n%+v", ref, *entries[i], want)
		}
	}

	if refs, _, err := r.Shard(t.Context(), 3, ""); err != nil || len(refs) != 4 {
		t.Errorf("of all namespaces: %v, %v", refs, err)
	}
}

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

func TestEachEnded_ReadsPagesInOrder(t *testing.T) {
	w := newWorld(t)
	if kept, oldest, err := w.EachEnded(t.Context(), ref, time.Time{}, func(*task.Run) { t.Error("a run of an empty history") }); err != nil || kept != 0 || !oldest.IsZero() {
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
		kept, oldest, err := w.EachEnded(t.Context(), ref, c.since, func(r *task.Run) { got = append(got, r.ID) })
		if err != nil || kept != len(ids) || !oldest.Equal(first) || !slices.Equal(got, c.want) {
			t.Errorf("since %v: %d of %d records since %v, %v", c.since, len(got), kept, oldest, err)
		}
	}
}
