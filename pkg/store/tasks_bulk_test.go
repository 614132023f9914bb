package store_test

import (
	"fmt"
	"testing"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// newTasks returns as many new tasks as one transaction can create, in several shards.
func newTasks() (changes []store.Change, refs []record.Ref) {
	for i := range store.MaxTogether {
		r := record.Ref{Namespace: "default", Name: fmt.Sprint("t", i), Shard: i % 5}
		t := spec(r)
		changes = append(changes, store.Change{New: &store.Stored{Ref: r, Task: t, Entry: entry(t)}})
		refs = append(refs, r)
	}

	return changes, refs
}

func TestChangeTasks_AllOrNone(t *testing.T) {
	w := newWorld(t)
	changes, refs := newTasks()
	rev, found, err := w.ChangeTasks(t.Context(), changes)
	ok(t, err)

	for _, r := range refs {
		if st := w.stored(r); st.Task.Revision != rev || st.EntryMod != rev || len(found) > 0 {
			t.Fatalf("%s is at revisions %d and %d, want %d", r, st.Task.Revision, st.EntryMod, rev)
		}
	}

	for i := range changes {
		old := w.stored(refs[i])
		changes[i].Old, changes[i].New.Task.Generation = &old, 7
	}

	n := store.Fitting(changes)
	changes, refs = changes[:n], refs[:n]
	w.del(w.keys.Spec(refs[1]))
	w.put(w.keys.Entry(refs[2]), "{")
	w.put(w.keys.Spec(refs[3]), "[]")
	w.put(w.keys.Entry(refs[n-1]), w.entryText(refs[n-1])) // a write of its owner
	_, found, err = w.ChangeTasks(t.Context(), changes)
	is(t, err, task.ErrConflict)

	if len(found) != len(refs) || found[0].Task.Generation == 7 || found[0].EntryMod != rev || found[n-1].EntryMod <= rev || found[n-1].Ref != refs[n-1] {
		t.Errorf("found %+v … %+v", found[0].Stored, found[len(found)-1].Stored)
	}

	is(t, found[1].Err, task.ErrNotFound)
	is(t, found[2].Err, task.ErrInvalid)
	is(t, found[3].Err, task.ErrInvalid)

	if found[2].EntryMod == 0 || found[3].EntryMod != 0 {
		t.Errorf("the results do not say which record is unreadable: %+v, %+v", found[2], found[3])
	}

	for _, i := range []int{0, n - 2} {
		if st := w.stored(refs[i]); st.Task.Revision != rev || st.Task.Generation == 7 {
			t.Errorf("%s was changed beside a conflict", refs[i])
		}
	}

	again, err := w.FindTasks(t.Context(), refs)
	ok(t, err)

	for i := range again {
		if again[i].Task.Revision != found[i].Task.Revision || again[i].EntryMod != found[i].EntryMod || (again[i].Err == nil) != (found[i].Err == nil) {
			t.Errorf("read %+v, found %+v", again[i], found[i])
		}
	}
}

func (w *world) entryText(r record.Ref) string {
	_, _, value := w.at(w.keys.Entry(r))
	return value
}
