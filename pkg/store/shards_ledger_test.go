package store_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ledger returns the chunks of a task as id=value.
func (w *world) ledger(r record.Ref) (all []string) {
	w.Helper()
	chunks, err := w.OldestChunks(w.Context(), r, 1000)
	ok(w.T, err)

	for _, c := range chunks {
		all = append(all, c.ID+"="+string(c.Value))
	}

	return all
}

func TestHistoryToTrim_ListsHistoryAndTheNewestChunk(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	neighbour := record.Ref{Namespace: "default", Name: "a-1", Shard: ref.Shard}
	w.put(w.keys.LedgerChunk(neighbour, "9"), "x")
	w.putEnded(neighbour, 1, task.Failed)

	if list, err := w.HistoryToTrim(t.Context(), ref, store.TrimRead{}); err != nil || len(list.Past) != 0 || list.Newest != nil || list.Chunks != 0 {
		t.Errorf("of a new task: %+v, %v", list, err)
	}
	if id, n, err := w.OldestRun(t.Context(), ref); id != "" || n != 0 || err != nil {
		t.Errorf("%q, %d, %v", id, n, err)
	}

	const records = 2100 // more than a page
	for n := range records {
		w.putEnded(ref, n, []task.State{task.Succeeded, task.Failed}[n%2])
	}
	w.put(w.keys.LedgerChunk(ref, "1"), "one")
	w.put(w.keys.LedgerChunk(ref, "3"), "three")
	mod := w.put(w.keys.LedgerChunk(ref, "2"), "two")
	mod = w.put(w.keys.LedgerChunk(ref, "3"), fmt.Sprint("three, after ", mod))

	for _, states := range []bool{false, true} {
		want, err := w.History(t.Context(), ref, states)
		ok(t, err)
		list, err := w.HistoryToTrim(t.Context(), ref, store.TrimRead{States: states})
		ok(t, err)

		if len(want) != records || !slices.Equal(list.Past, want) {
			t.Errorf("states %t: %d records, want %d", states, len(list.Past), len(want))
		}
		if n := list.Newest; list.Chunks != 3 || n == nil || n.ID != "3" || n.Mod != mod || len(n.Value) == 0 {
			t.Errorf("states %t: %d chunks, the newest is %+v", states, list.Chunks, n)
		}
	}

	// The values are read with the keys, or apart from them, and there may be more records than expected.
	for _, read := range []store.TrimRead{{Values: 3, Records: records}, {Values: 3, Records: 2}, {Values: 1100, Records: records}, {Values: 3, Records: 5, States: true}} {
		list, err := w.HistoryToTrim(t.Context(), ref, read)
		ok(t, err)
		if len(list.Past) != records || len(list.Values) < read.Values || list.Newest == nil || len(list.Newest.Value) == 0 || list.Revision < mod {
			t.Errorf("%+v: %d records, of %d their values, newest chunk %+v, revision %d", read, len(list.Past), len(list.Values), list.Newest, list.Revision)
		}

		for i, p := range list.Past {
			_, _, want := w.at(w.keys.Ended(ref, p.ID))
			if got, known := list.Value(p); known != (i < len(list.Values)) || known && string(got) != want {
				t.Fatalf("%+v: record %d: %q, want %q", read, i, got, want)
			}
			if i > read.Values {
				break
			}
		}
	}

	if id, n, err := w.OldestRun(t.Context(), ref); id != tickRun(ref, 0).ID || n != records || err != nil {
		t.Errorf("%q, %d, %v", id, n, err)
	}
}

func TestReadToFold_OmitsWhatHasChanged(t *testing.T) {
	w := newWorld(t)
	for n := range 4 {
		w.putEnded(ref, n, task.Succeeded)
	}
	past, err := w.History(t.Context(), ref, false)
	ok(t, err)

	w.putEnded(ref, 1, task.Failed)
	w.del(w.keys.Ended(ref, past[2].ID))
	w.put(w.keys.LedgerChunk(ref, "1"), "one")
	w.put(w.keys.LedgerChunk(ref, "2"), "two")

	for since, want := range map[string]string{"": "two", "2": "two", "3": ""} {
		records, newest, err := w.ReadToFold(t.Context(), ref, past, since)
		ok(t, err)
		if len(records) != 2 || records[0].Past != past[0] || records[1].Past != past[3] || len(records[0].Value) == 0 {
			t.Errorf("%+v", records)
		}
		if (newest == nil) != (want == "") || newest != nil && string(newest.Value) != want {
			t.Errorf("since %q: %+v", since, newest)
		}
	}
}

func TestFoldHistory_IsAllOrNothing(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	for n := range 6 {
		w.putEnded(ref, n, task.Succeeded)
	}
	past, err := w.History(t.Context(), ref, false)
	ok(t, err)
	_, created, _ := w.at(w.keys.Entry(ref))

	first := store.HistoryFold{Ref: ref, EntryCreate: created, Gone: past[:2], Put: []store.LedgerChunk{{ID: "1", Value: []byte("one")}}}
	other := first
	other.EntryCreate++
	is(t, w.FoldHistory(t.Context(), w.fences, other), task.ErrConflict)
	former := w.fences
	w.fences.Owner = w.own(ref.Shard, node)
	is(t, w.FoldHistory(t.Context(), former, first), task.ErrFenced)
	_, mark := w.mark()
	ok(t, w.FoldHistory(t.Context(), w.fences, first))
	is(t, w.FoldHistory(t.Context(), w.fences, first), task.ErrConflict)
	if _, after := w.mark(); after != mark {
		t.Error("it moved the watermark")
	}

	newest := func() *store.LedgerChunk {
		list, err := w.HistoryToTrim(t.Context(), ref, store.TrimRead{})
		ok(t, err)
		return list.Newest
	}

	// It replaces the newest chunk, begins another one, and deletes some.
	second := first
	second.Newest, second.Gone = newest(), past[2:4]
	second.Put = []store.LedgerChunk{{ID: "1", Value: []byte("one more")}, {ID: "2", Value: []byte("two")}}
	ok(t, w.FoldHistory(t.Context(), w.fences, second))
	is(t, w.FoldHistory(t.Context(), w.fences, second), task.ErrConflict)
	stale := newest()
	w.put(w.keys.LedgerChunk(ref, "2"), "changed")

	third := first
	third.Newest, third.Gone, third.Compare = stale, past[4:5], past[4:5]
	third.Put, third.Drop = []store.LedgerChunk{{ID: "3", Value: []byte("three")}}, []string{"1"}
	is(t, w.FoldHistory(t.Context(), w.fences, third), task.ErrConflict)
	third.Newest = newest()
	w.putEnded(ref, 4, task.Failed)
	is(t, w.FoldHistory(t.Context(), w.fences, third), task.ErrConflict)
	if got := w.ledger(ref); !slices.Equal(got, []string{"1=one more", "2=changed"}) {
		t.Errorf("after conflicts: %v", got)
	}

	now, err := w.History(t.Context(), ref, false)
	ok(t, err)
	third.Gone, third.Compare = now[:1], now[:1]
	ok(t, w.FoldHistory(t.Context(), w.fences, third))
	is(t, w.FoldHistory(t.Context(), w.fences, third), task.ErrConflict)
	if got := w.ledger(ref); !slices.Equal(got, []string{"2=changed", "3=three"}) {
		t.Errorf("%v", got)
	}
	if now, _ := w.History(t.Context(), ref, false); len(now) != 1 || now[0] != past[5] {
		t.Errorf("the history has %v", now)
	}

	is(t, w.DeleteLedger(t.Context(), w.fences, ref, *stale, nil), task.ErrConflict)
	ok(t, w.DeleteLedger(t.Context(), w.fences, ref, *newest(), nil))
	if got := w.ledger(ref); len(got) != 0 {
		t.Errorf("%v", got)
	}

	// A deleted task leaves no ledger, and its neighbour keeps one.
	neighbour := record.Ref{Namespace: "default", Name: "a-1", Shard: ref.Shard}
	w.put(w.keys.LedgerChunk(ref, "5"), "five")
	w.put(w.keys.LedgerChunk(neighbour, "5"), "five")
	found, err := w.KeysOf(t.Context(), ref)
	ok(t, err)
	if !slices.Contains(found, store.KeyOf{Key: w.keys.LedgerOf(ref), What: "ledger", Present: true}) {
		t.Errorf("%+v", found)
	}
	_, err = w.DeleteTask(t.Context(), st)
	ok(t, err)
	if len(w.ledger(ref)) != 0 || len(w.ledger(neighbour)) != 1 {
		t.Errorf("%v, %v", w.ledger(ref), w.ledger(neighbour))
	}
}

// A fold deletes adjacent records by their range. It must not delete what was added to the range or changed since it was
// listed, nor what stays.
func TestFoldHistory_DeletesAdjacentRecordsTogether(t *testing.T) {
	const stays, lateTick, records = 8, 3, 20

	for name, tc := range map[string]struct {
		meanwhile func(w *world)
		conflict  bool
	}{
		"nothing":                            {func(*world) {}, false},
		"a run of an old tick ends":          {func(w *world) { w.putEnded(ref, lateTick, task.Failed) }, true},
		"a record grows":                     {func(w *world) { w.putEnded(ref, 5, task.Skipped) }, true},
		"a run of a new tick ends":           {func(w *world) { w.putEnded(ref, records, task.Failed) }, false},
		"the record that stays is rewritten": {func(w *world) { w.putEnded(ref, stays, task.Failed) }, false},
	} {
		w := newWorld(t)
		w.create(ref)
		_, created, _ := w.at(w.keys.Entry(ref))
		w.put(w.keys.LedgerChunk(ref, "1"), "one")
		for n := range records {
			if n != lateTick {
				w.putEnded(ref, n, task.Succeeded)
			}
		}

		list, err := w.HistoryToTrim(t.Context(), ref, store.TrimRead{})
		ok(t, err)
		stay := list.Past[stays-1]
		gone := slices.DeleteFunc(slices.Clone(list.Past[:16]), func(p store.Past) bool { return p == stay })

		tc.meanwhile(w)
		before, err := w.History(t.Context(), ref, false)
		ok(t, err)
		err = w.FoldHistory(t.Context(), w.fences, store.HistoryFold{
			Ref: ref, EntryCreate: created, Newest: list.Newest, Gone: gone, Listed: list.Past, Revision: list.Revision,
			Put: []store.LedgerChunk{{ID: "1", Value: []byte("one more")}},
		})

		want := before
		if tc.conflict {
			is(t, err, task.ErrConflict)
		} else {
			ok(t, err)
			want = slices.DeleteFunc(slices.Clone(before), func(p store.Past) bool { return slices.Contains(gone, p) })
		}
		if now, err := w.History(t.Context(), ref, false); err != nil || !slices.Equal(now, want) {
			t.Errorf("%s: %v, %v\nwant %v", name, now, err, want)
		}
	}
}

// A key in a history may look like that of a part, for example if somebody wrote it by hand. Parts have keys elsewhere, so
// the range of a fold would contain the histories of other tasks.
func TestFoldHistory_RangeStaysInTheHistoryOfTheTask(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	_, created, _ := w.at(w.keys.Entry(ref))
	w.put(w.keys.LedgerChunk(ref, "1"), "one")
	neighbour := record.Ref{Namespace: "default", Name: "z", Shard: ref.Shard}
	w.putEnded(neighbour, 1, task.Failed)
	for n := range 8 {
		w.putEnded(ref, n, task.Succeeded)
	}
	w.put(w.keys.HistoryOf(ref)+task.PartID(tickRun(ref, 7).ID, 3), "{}")

	list, err := w.HistoryToTrim(t.Context(), ref, store.TrimRead{})
	ok(t, err)
	ok(t, w.FoldHistory(t.Context(), w.fences, store.HistoryFold{
		Ref: ref, EntryCreate: created, Newest: list.Newest, Gone: list.Past, Listed: list.Past, Revision: list.Revision,
		Put: []store.LedgerChunk{{ID: "1", Value: []byte("one more")}},
	}))

	if left, err := w.History(t.Context(), ref, false); err != nil || len(left) != 0 {
		t.Errorf("the task has %v, %v", left, err)
	}
	if left, err := w.History(t.Context(), neighbour, false); err != nil || len(left) != 1 {
		t.Errorf("the neighbour has %v, %v", left, err)
	}
}

// Such a key is also read, compared and deleted where it is. Otherwise each trim would add it to the ledger again.
func TestFoldHistory_DeletesKeysThatLookLikeThoseOfParts(t *testing.T) {
	for name, remove := range map[string]func(w *world, past []store.Past, created int64) error{
		"fold": func(w *world, past []store.Past, created int64) error {
			records, _, err := w.ReadToFold(w.Context(), ref, past, "")
			if err != nil || len(records) != len(past) {
				t.Errorf("read %v, %v", records, err)
			}

			return w.FoldHistory(w.Context(), w.fences, store.HistoryFold{
				Ref: ref, EntryCreate: created, Gone: past, Put: []store.LedgerChunk{{ID: "1", Value: []byte("one")}},
			})
		},
		"trim": func(w *world, past []store.Past, _ int64) error {
			return w.TrimHistory(w.Context(), w.fences, ref, past)
		},
	} {
		w := newWorld(t)
		w.create(ref)
		_, created, _ := w.at(w.keys.Entry(ref))
		w.put(w.keys.HistoryOf(ref)+task.PartID(tickRun(ref, 7).ID, 3), "{}")

		past, err := w.History(t.Context(), ref, false)
		ok(t, err)
		ok(t, remove(w, past, created))
		if left, err := w.History(t.Context(), ref, false); err != nil || len(left) != 0 {
			t.Errorf("%s: the history has %v, %v", name, left, err)
		}
	}
}

// Somebody writes a chunk by hand while two folds are under way. The one that read the ledger before it rewrites the chunk
// that it knows. The other one begins a chunk behind it. No record may be counted by both, whichever of them is shared.
func TestFoldHistory_BesideAChunkWrittenByHand(t *testing.T) {
	for shared := range 3 {
		w := newWorld(t)
		w.create(ref)
		for n := range 4 {
			w.putEnded(ref, n, task.Succeeded)
		}
		past, err := w.History(t.Context(), ref, false)
		ok(t, err)
		_, created, _ := w.at(w.keys.Entry(ref))

		w.put(w.keys.LedgerChunk(ref, "1"), "one")
		before, err := w.HistoryToTrim(t.Context(), ref, store.TrimRead{})
		ok(t, err)
		w.put(w.keys.LedgerChunk(ref, "2"), "garbage")
		after, err := w.HistoryToTrim(t.Context(), ref, store.TrimRead{})
		ok(t, err)

		ok(t, w.FoldHistory(t.Context(), w.fences, store.HistoryFold{
			Ref: ref, EntryCreate: created, Newest: before.Newest, Gone: past[shared : shared+1], Put: []store.LedgerChunk{{ID: "1", Value: []byte("one more")}},
		}))
		is(t, w.FoldHistory(t.Context(), w.fences, store.HistoryFold{
			Ref: ref, EntryCreate: created, Newest: after.Newest, Gone: past[:3], Put: []store.LedgerChunk{{ID: "3", Value: []byte("three")}},
		}), task.ErrConflict)
	}
}
