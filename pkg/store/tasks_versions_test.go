package store_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// edit changes a task like the API.
func (w *world) edit(r record.Ref, description string) {
	w.Helper()
	st := w.stored(r)
	next := st.Task
	next.Description, next.Generation = description, st.Task.Generation+1
	if _, err := w.UpdateTask(w.Context(), st, next, entry(next)); err != nil {
		w.Fatal(err)
	}
}

func TestVersions_TheLastTenStay(t *testing.T) {
	w := newWorld(t)
	w.create(ref)

	if list, _, err := w.Versions(t.Context(), ref); err != nil || len(list) != 1 || len(w.below(w.keys.Versions(ref))) != 0 {
		t.Fatalf("of a new task: %v, %v", list, err)
	}

	for n := 2; n <= 14; n++ {
		w.edit(ref, fmt.Sprint(n))
		list, gone, err := w.Versions(t.Context(), ref)
		if err != nil || gone != nil || len(list) != min(n, store.KeepVersions+1) {
			t.Fatalf("after %d changes: %d versions, %v", n, len(list), err)
		}

		for i, v := range list {
			if v.Generation != int64(n-i) || v.Generation > 1 && v.Description != fmt.Sprint(n-i) || (v.Revision != 0) != (i == 0) {
				t.Errorf("after %d changes: version %d is %d, %q", n, i, v.Generation, v.Description)
			}
		}
	}

	w.put(w.keys.Version(ref, 9), "{")

	if list, _, err := w.Versions(t.Context(), ref); err != nil || list[5].Generation != 9 || list[5].Name != "" {
		t.Errorf("one that cannot be read: %v, %v", list, err)
	}
}

// A version is the former spec byte for byte, including fields that only a newer version knows.
func TestVersions_KeepWhatTheyDoNotKnow(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	_, _, value := w.at(w.keys.Spec(ref))
	strange := strings.Replace(value, `{`, `{"later":1,`, 1)
	w.put(w.keys.Spec(ref), strange)
	w.edit(ref, "x")

	if _, _, kept := w.at(w.keys.Version(ref, st.Task.Generation)); kept != strange {
		t.Errorf("kept %s", kept)
	}
}

func TestDeleteTaskLeavingTombstone_LeavesATombstoneAndNothingElse(t *testing.T) {
	w := newWorld(t)
	neighbour := record.Ref{Namespace: "default", Name: ref.Name + "-1", Shard: ref.Shard}
	for _, r := range []record.Ref{ref, neighbour} {
		w.create(r)
		w.edit(r, "x")
		w.put(w.keys.DeadRun(r, "20261120T120000.000Z-k3f9"), "{}")
		w.put(w.keys.Ended(r, "20261120T120000.000Z-k3f9"), "{}")
	}

	st, err := w.Revisions(t.Context(), ref)
	ok(t, err)
	want := record.Tombstone{UID: st.Task.UID, Generation: 2, DeletedAt: task.At(noon), DeletedBy: task.NewActor("ann")}
	_, err = w.DeleteTaskLeavingTombstone(t.Context(), st, want)
	ok(t, err)
	_, gone, err := w.Versions(t.Context(), ref)
	is(t, err, task.ErrNotFound)

	if gone == nil || !reflect.DeepEqual(*gone, want) {
		t.Errorf("remembered: %+v", gone)
	}

	for _, prefix := range []string{w.keys.Versions(ref), w.keys.Dead(ref), w.keys.HistoryOf(ref)} {
		if left := w.below(prefix); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	}

	for _, prefix := range []string{w.keys.Versions(neighbour), w.keys.Dead(neighbour), w.keys.HistoryOf(neighbour)} {
		if left := w.below(prefix); len(left) != 1 {
			t.Errorf("of the neighbour %v is left below %s", left, prefix)
		}
	}

	w.create(ref)

	if w.exists(w.keys.Tombstone(ref)) {
		t.Error("created again, and yet there is a tombstone")
	}
}

func TestSweepTombstones_RemovesTheOldOnes(t *testing.T) {
	w := newWorld(t)

	for i := range 250 {
		at, _ := task.At(noon.Add(time.Duration(i) * time.Minute)).MarshalText()
		w.put(w.keys.Tombstone(record.Ref{Namespace: "n", Name: fmt.Sprintf("t%03d", i)}), `{"deleted_at":"`+string(at)+`"}`)
	}

	w.put(w.keys.Tombstone(record.Ref{Namespace: "z", Name: "z"}), "unreadable")
	before, after, removed := task.At(noon.Add(150*time.Minute)), "", 0
	for calls := 1; ; calls++ {
		n, next, err := w.SweepTombstones(t.Context(), before, after, 100)
		ok(t, err)

		if removed += n; next == "" {
			break
		}

		if after = next; calls > 5 {
			t.Fatal("it never ends")
		}
	}

	left := w.below(w.keys.Tombstones())
	if removed != 151 || len(left) != 100 || slices.ContainsFunc(left, func(key string) bool { return strings.HasSuffix(key, "t149") }) {
		t.Errorf("removed %d, %d are left", removed, len(left))
	}
}

func TestFitting_BoundsOperationsAndBytes(t *testing.T) {
	w := newWorld(t)
	var creates, updates, large []store.Change
	for i := range store.MaxTogether {
		r := record.Ref{Namespace: "default", Name: fmt.Sprintf("t%d", i), Shard: 3}
		n := spec(r)
		creates = append(creates, store.Change{New: &store.Stored{Ref: r, Task: n, Entry: entry(n)}})
	}

	if n := store.Fitting(creates); n != store.MaxTogether {
		t.Errorf("%d new tasks fit", n)
	}

	_, _, err := w.ChangeTasks(t.Context(), creates)
	ok(t, err)

	for generation := int64(2); generation < 14; generation++ { // from generation 12 on, each write deletes a version
		updates = nil
		for _, c := range creates {
			old := w.stored(c.New.Ref)
			next := old
			next.Task.Generation = generation
			updates = append(updates, store.Change{Old: &old, New: &next})
		}

		for left := updates; len(left) > 0; {
			n := store.Fitting(left)
			if n != 30 {
				t.Fatalf("%d tasks that are there fit", n)
			}

			_, _, err := w.ChangeTasks(t.Context(), left[:n])
			ok(t, err)
			left = left[n:]
		}
	}

	if n := len(w.below(w.keys.Versions(updates[0].Old.Ref))); n != store.KeepVersions {
		t.Errorf("%d versions", n)
	}

	for i := range 5 {
		old := w.stored(creates[i].New.Ref)
		next := old
		next.Task.Description = strings.Repeat("x", 100<<10)
		_, err := w.UpdateTask(t.Context(), old, next.Task, next.Entry)
		ok(t, err)
		big := w.stored(old.Ref)
		large = append(large, store.Change{Old: &big, New: &big})
	}

	if n := store.Fitting(large); n != 2 {
		t.Errorf("%d large tasks fit", n)
	}

	if n := store.Fitting(large[:1]); n != 1 {
		t.Errorf("%d of one fit", n)
	}
}
