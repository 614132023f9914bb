package store_test

import (
	"encoding/json"
	"errors"
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

func TestCreateTask_WritesSpecAndEntryTogether(t *testing.T) {
	w := newWorld(t)
	want := spec(ref)
	rev, err := w.CreateTask(t.Context(), ref, want, entry(want))
	ok(t, err)
	st := w.stored(ref)
	want.Revision = rev
	if !reflect.DeepEqual(st.Task, want) || st.EntryMod != rev || !reflect.DeepEqual(st.Entry, entry(want)) || st.Ref != ref {
		t.Errorf("stored %+v", st)
	}

	_, err = w.CreateTask(t.Context(), ref, want, entry(want))
	is(t, err, task.ErrExists)

	_, _, value := w.at(w.keys.Spec(ref))
	if !strings.Contains(value, `"name":"a"`) || strings.Contains(value, `"revision"`) {
		t.Errorf("the spec is %s", value)
	}
}

func TestCreateTaskOnce_ReturnsTheFreezesOfItsRevision(t *testing.T) {
	w := newWorld(t)
	other := ref
	other.Name = "b"

	none, err := w.CreateTaskOnce(t.Context(), store.Stored{Ref: ref, Task: spec(ref), Entry: entry(spec(ref))}, store.Idempotency{})
	ok(t, err)
	if none.Revision != w.stored(ref).Task.Revision || none.Mod != 0 || none.Of("default") != nil {
		t.Errorf("nothing is frozen: %+v", none)
	}

	mod, err := w.SetFreezes(t.Context(), none, task.Freezes{Holding: []task.Freeze{{Namespace: "default", Reason: "maintenance"}}})
	ok(t, err)

	frozen, err := w.CreateTaskOnce(t.Context(), store.Stored{Ref: other, Task: spec(other), Entry: entry(spec(other))}, store.Idempotency{})
	ok(t, err)
	if frozen.Revision != w.stored(other).Task.Revision || frozen.Mod != mod || frozen.Of("default") == nil || frozen.Of("ops") != nil {
		t.Errorf("the namespace is frozen: %+v", frozen)
	}

	_, err = w.CreateTaskOnce(t.Context(), store.Stored{Ref: other, Task: spec(other), Entry: entry(spec(other))}, store.Idempotency{})
	is(t, err, task.ErrExists)
}

func TestCreateTask_NotOverHalfATask(t *testing.T) {
	for _, key := range []func(w *world) string{func(w *world) string { return w.keys.Spec(ref) }, func(w *world) string { return w.keys.Entry(ref) }} {
		w := newWorld(t)
		w.put(key(w), "{}")
		_, err := w.CreateTask(t.Context(), ref, spec(ref), entry(spec(ref)))
		is(t, err, task.ErrExists)

		if n := len(w.below(w.keys.Specs())) + len(w.below(w.keys.Entries(3))); n != 1 {
			t.Errorf("%d keys", n)
		}

		w.etcd.Delete(t.Context(), w.keys.Root(), clientPrefix)
	}
}

func TestTask_SaysWhatIsMissingOrUnreadable(t *testing.T) {
	w := newWorld(t)
	_, err := w.Task(t.Context(), ref)
	is(t, err, task.ErrNotFound)
	_, err = w.Revisions(t.Context(), ref)
	is(t, err, task.ErrNotFound)
	st := w.create(ref)
	w.del(w.keys.Entry(ref))

	half := w.stored(ref)
	if half.EntryMod != 0 || half.Task.Name != "a" {
		t.Errorf("without its entry: %+v", half)
	}

	if _, err = w.UpdateTask(t.Context(), st, st.Task, st.Entry); !errors.Is(err, task.ErrConflict) {
		t.Errorf("an update of what was read before: %v", err)
	}

	_, err = w.UpdateTask(t.Context(), half, half.Task, entry(half.Task)) // an update repairs it
	ok(t, err)
	w.put(w.keys.Entry(ref), "{")
	_, err = w.Task(t.Context(), ref)
	is(t, err, task.ErrInvalid)
	w.put(w.keys.Spec(ref), "[]")
	_, err = w.Task(t.Context(), ref)
	is(t, err, task.ErrInvalid)
	old, err := w.Revisions(t.Context(), ref)
	ok(t, err)
	_, err = w.DeleteTask(t.Context(), old) // a task with unreadable records can be deleted
	ok(t, err)

	if w.exists(w.keys.Spec(ref)) || w.exists(w.keys.Entry(ref)) {
		t.Error("the task still exists")
	}
}

func TestUpdateTask_LosesAgainstWhateverCameBetween(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	changed := st.Task
	changed.Paused, changed.Generation = true, 2
	rev, err := w.UpdateTask(t.Context(), st, changed, entry(changed))
	ok(t, err)

	if now := w.stored(ref); !now.Task.Paused || !now.Entry.Paused || now.Task.Revision != rev || now.EntryMod != rev {
		t.Errorf("stored %+v", now)
	}

	_, err = w.UpdateTask(t.Context(), st, st.Task, st.Entry)
	is(t, err, task.ErrConflict)
	_, err = w.DeleteTask(t.Context(), st)
	is(t, err, task.ErrConflict)

	// The owner has written the entry alone, so an earlier read is stale.
	st = w.stored(ref)
	c := w.begin()
	putEntry(c, ref, st.Entry, st.EntryMod)
	w.commit(c)
	_, err = w.UpdateTask(t.Context(), st, st.Task, st.Entry)
	is(t, err, task.ErrConflict)
	_, err = w.DeleteTask(t.Context(), st)
	is(t, err, task.ErrConflict)
	_, err = w.Enqueue(t.Context(), st, waiting(ref, 1))
	is(t, err, task.ErrConflict)

	if len(w.below(w.keys.Queue(3))) != 0 {
		t.Error("it waits")
	}

	// A task that was deleted and created again is another task of the same name.
	st = w.stored(ref)
	_, err = w.DeleteTask(t.Context(), st)
	ok(t, err)
	_, err = w.UpdateTask(t.Context(), st, st.Task, st.Entry)
	is(t, err, task.ErrConflict)
	w.create(ref)
	_, err = w.UpdateTask(t.Context(), st, st.Task, st.Entry)
	is(t, err, task.ErrConflict)
	_, err = w.DeleteTask(t.Context(), st)
	is(t, err, task.ErrConflict)
}

func TestEnqueue_IsOnceAndForTheTaskThatWasRead(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	want := waiting(ref, 1)
	rev, err := w.Enqueue(t.Context(), st, want)
	ok(t, err)

	if got := w.queued(ref, want.ID); got == nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("waits %+v, want %+v", got, want)
	}

	if mod, create, _ := w.at(w.keys.Queued(ref, want.ID)); mod != rev || create != rev {
		t.Errorf("at %d, %d; want %d", mod, create, rev)
	}

	_, err = w.Enqueue(t.Context(), st, want)
	is(t, err, task.ErrExists)
	_, err = w.DeleteTask(t.Context(), st)
	ok(t, err)
	_, err = w.Enqueue(t.Context(), st, waiting(ref, 2))
	is(t, err, task.ErrConflict)
	st.EntryMod = 0 // as if it was read while its entry was absent
	_, err = w.Enqueue(t.Context(), st, waiting(ref, 3))
	is(t, err, task.ErrNotFound)

	if left := w.below(w.keys.Queue(3)); len(left) != 0 {
		t.Errorf("%v wait for a task that is not there", left)
	}
}

func TestUnknownOutcomesOfTheAPIAreSaidSoAndIssuedOnce(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	fresh := record.Ref{Namespace: "default", Name: "new", Shard: 3}
	for name, write := range map[string]func() error{
		"create":  func() error { _, err := w.CreateTask(t.Context(), fresh, spec(fresh), entry(spec(fresh))); return err },
		"update":  func() error { _, err := w.UpdateTask(t.Context(), st, st.Task, st.Entry); return err },
		"delete":  func() error { _, err := w.DeleteTask(t.Context(), st); return err },
		"enqueue": func() error { _, err := w.Enqueue(t.Context(), st, waiting(ref, 1)); return err },
	} {
		w.writes.next(requestLost)
		err := write()
		is(t, err, task.ErrUnknown)
		if w.writes.count() != 1 || errors.Is(err, task.ErrConflict) {
			t.Errorf("%s: %d writes, %v", name, w.writes.count(), err)
		}

		w.writes.next(refused)
		err = write()
		is(t, err, task.ErrUnavailable)
		if errors.Is(err, task.ErrUnknown) {
			t.Errorf("%s: a refusal is unknown", name)
		}
	}
}

func TestDeleteTask_TakesItsOwnAndNothingElse(t *testing.T) {
	w := newWorld(t)
	neighbours := []record.Ref{
		{Namespace: "default", Name: "a-b", Shard: 3}, {Namespace: "default", Name: "a.b", Shard: 3}, {Namespace: "default", Name: "a0", Shard: 3},
		{Namespace: "default-1", Name: "a", Shard: 3}, {Namespace: "defaul", Name: "a", Shard: 3}, {Namespace: "default", Name: "a", Shard: 4},
	}
	fill := func(r record.Ref) {
		if r.Shard == 3 {
			w.create(r)
		}

		w.put(w.keys.Entry(r), "{}")
		w.put(w.keys.Queued(r, "1"), "{}")
		w.put(w.keys.Ended(r, "1"), "{}")
		w.put(w.keys.Late(r, "1", 7), "{}")
		w.put(w.keys.Run(node, r, "1"), "{}")
	}

	for _, r := range neighbours {
		fill(r)
	}

	want := w.below(w.keys.Root())
	fill(ref)
	w.del(w.keys.Run(node, ref, "1")) // the owner cancels active attempts
	old, err := w.Revisions(t.Context(), ref)
	ok(t, err)
	_, err = w.DeleteTask(t.Context(), old)
	ok(t, err)

	if got := w.below(w.keys.Root()); !slices.Equal(got, want) {
		t.Errorf("left\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The largest task that Validate accepts can be stored, updated, queued and dispatched with the largest environment.
func TestTheLargestTaskFitsIntoEtcdsRequests(t *testing.T) {
	w := newWorld(t)

	for i, text := range []string{"a", "<", "\u2028"} {
		big := record.Ref{Namespace: "default", Name: fmt.Sprint("big", i), Shard: 3}
		s := spec(big)
		s.Action = task.Action{Process: &task.Process{Command: []string{"x", ""}}}
		for _, field := range []*string{&s.Action.Process.Command[0], &s.Action.Process.Command[1]} {
			grow(field, text, func() bool { return s.Validate() == nil })
		}

		env := map[string]string{}
		for _, name := range []string{"A", "B"} {
			var v string
			grow(&v, text, func() bool { env[name] = v; return task.CheckEnv("env", env) == nil })
			env[name] = v
		}

		if size := jsonSize(s.Action); size < task.MaxAction-100 {
			t.Fatalf("an action of %d bytes is no large one", size)
		}

		ok(t, s.Validate())
		_, err := w.CreateTask(t.Context(), big, s, entry(s))
		ok(t, err)
		st := w.stored(big)
		_, err = w.UpdateTask(t.Context(), st, st.Task, st.Entry)
		ok(t, err)
		q := waiting(big, 1)
		q.Env = env
		_, err = w.Enqueue(t.Context(), w.stored(big), q)
		ok(t, err)
		a := assigned(big, 2, node)
		a.Action, a.Env = s.Action, env
		c := w.begin()
		putEntry(c, big, entry(s), w.stored(big).EntryMod)
		dispatch(c, a, w.fences.Node.CreateRevision)
		w.commit(c)
	}
}

// grow appends text to s as often as it remains valid.
func grow(s *string, text string, valid func() bool) {
	for step := task.MaxAction; step > 0; step /= 2 {
		before := *s
		if *s += strings.Repeat(text, step); !valid() {
			*s = before
		}
	}

	valid()
}

func jsonSize(v any) int {
	b, _ := json.Marshal(v)
	return len(b)
}

func TestUpdateTask_LosesToAWatermarkThatIsLater(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	mark, _ := w.mark()
	st.MarkBy = task.At(mark.Time.Add(-time.Millisecond))
	_, err := w.UpdateTask(t.Context(), st, st.Task, st.Entry)
	is(t, err, task.ErrConflict)
	_, _, err = w.ChangeTasks(t.Context(), []store.Change{{Old: &st, New: &st}})
	is(t, err, task.ErrConflict)

	st.MarkBy = mark.Time

	if got, err := w.Mark(t.Context(), ref.Shard); err != nil || !got.Equal(mark.Time.Time) {
		t.Errorf("the watermark is read as %v, %v", got, err)
	}

	_, _, err = w.ChangeTasks(t.Context(), []store.Change{{Old: &st, New: &st}})
	ok(t, err)
	st = w.stored(ref)
	st.MarkBy = mark.Time
	_, err = w.UpdateTask(t.Context(), st, st.Task, st.Entry)
	ok(t, err)
}
