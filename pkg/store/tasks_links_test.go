package store_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// refOf returns the reference of a task in a cluster of newWorld.
func refOf(name string) record.Ref {
	return record.Ref{Namespace: "default", Name: name, Shard: record.ShardOf("default", name, 8)}
}

func ofDefault(_, name string) record.Ref { return refOf(name) }

// graphMod returns the mod revision of the key of the graph.
func (w *world) graphMod() int64 {
	mod, _, _ := w.at(w.keys.Graph("default"))
	return mod
}

// link makes a task a dependent of others, in addition to its sources.
func (w *world) link(name string, sources ...string) {
	w.Helper()
	old, t, e := w.linked(name, sources...)
	_, err := w.UpdateTask(w.Context(), old, t, e)
	ok(w.T, err)
}

// linked returns the write that link does.
func (w *world) linked(name string, sources ...string) (old store.Stored, t task.Task, e task.Entry) {
	w.Helper()
	old = w.stored(refOf(name))
	t = old.Task
	t.Generation++
	t.After = slices.Clone(old.Task.After)
	for _, s := range sources {
		t.After = append(t.After, task.Source{Task: s, When: task.WhenEnded, Results: []string{"rows"}})
		old.Links.Added = append(old.Links.Added, refOf(s))
	}
	e = entry(t)
	e.Links = task.LinksOf(t, old.Task.After, old.Entry.Links)
	old.Links.GraphMod = w.graphMod()

	return old, t, e
}

func TestLinks_AreWrittenWithTheTask(t *testing.T) {
	w := newWorld(t)
	a, b := refOf("a"), refOf("b")
	w.create(a)
	w.create(b)
	w.link("b", "a")

	st := w.stored(b)
	mod, _, value := w.at(w.keys.Subscriber(a, "b"))
	s, err := record.Decode[record.Subscriber]([]byte(value))
	ok(t, err)
	if want := (record.Subscriber{UID: st.Task.UID, Generation: 2, When: task.WhenEnded, Results: []string{"rows"}}); !reflect.DeepEqual(s, want) {
		t.Errorf("%+v, want %+v", s, want)
	}
	if mod != st.Task.Revision || mod != w.graphMod() {
		t.Errorf("written at %d, the task at %d, the graph at %d", mod, st.Task.Revision, w.graphMod())
	}

	// A write that adds nothing touches neither.
	w.link("b")
	if again, _, _ := w.at(w.keys.Subscriber(a, "b")); again != mod || w.graphMod() != mod {
		t.Error("a link that has not changed was written again")
	}

	// A write that removes the link deletes its record.
	old, next, e := w.linked("b")
	next.After, e.Links, old.Links.Removed = nil, nil, []record.Ref{a}
	_, err = w.UpdateTask(t.Context(), old, next, e)
	ok(t, err)
	if w.exists(w.keys.Subscriber(a, "b")) || w.graphMod() != mod {
		t.Error("the record of the removed link is still there, or the graph was written")
	}
}

// Of two writers that have read the same links, one has to look again.
func TestLinks_OnlyOneOfTwoWritersAddsSome(t *testing.T) {
	w := newWorld(t)
	w.create(refOf("a"))
	w.create(refOf("b"))

	oldA, nextA, entryA := w.linked("a", "b")
	oldB, nextB, entryB := w.linked("b", "a")
	_, err := w.UpdateTask(t.Context(), oldA, nextA, entryA)
	ok(t, err)
	_, err = w.UpdateTask(t.Context(), oldB, nextB, entryB)
	is(t, err, task.ErrConflict)
	if w.exists(w.keys.Subscriber(refOf("a"), "b")) {
		t.Error("the failed write has left a link")
	}
}

func TestLinks_NeedTheirSource(t *testing.T) {
	w := newWorld(t)
	a, b := refOf("a"), refOf("b")
	w.create(a)
	w.create(b)
	old, next, e := w.linked("b", "a")
	_, err := w.DeleteTask(t.Context(), w.stored(a))
	ok(t, err)

	_, err = w.UpdateTask(t.Context(), old, next, e)
	is(t, err, task.ErrConflict)

	// A new task with a source that is gone is a conflict, and one that exists is not.
	c := spec(refOf("c"))
	c.After = task.Sources{{Task: "a"}}
	st := store.Stored{Ref: refOf("c"), Task: c, Entry: entry(c), Links: store.LinkChange{Added: []record.Ref{a}}}
	_, err = w.CreateTaskOnce(t.Context(), st, store.Idempotency{})
	is(t, err, task.ErrConflict)
	_, _, err = w.ChangeTasks(t.Context(), []store.Change{{New: &st}})
	is(t, err, task.ErrConflict)

	st.Ref, st.Task.Name = b, "b"
	_, err = w.CreateTaskOnce(t.Context(), st, store.Idempotency{})
	is(t, err, task.ErrExists)
}

// A source stays while tasks run after it, also if the first of them comes at the last moment.
func TestDeleteTask_KeepsASource(t *testing.T) {
	w := newWorld(t)
	a, b := refOf("a"), refOf("b")
	w.create(a)
	w.create(b)
	read, err := w.Revisions(t.Context(), a)
	ok(t, err)
	w.link("b", "a")

	_, err = w.DeleteTaskLeavingTombstone(t.Context(), read, record.Tombstone{})
	is(t, err, store.ErrDependents)

	// With force, the link remains, for a new task of the name.
	read.Force = true
	w.put(w.keys.Sent(a), `{"create":5}`)
	_, err = w.DeleteTaskLeavingTombstone(t.Context(), read, record.Tombstone{})
	ok(t, err)
	if !w.exists(w.keys.Subscriber(a, "b")) || w.exists(w.keys.Sent(a)) || w.exists(w.keys.Entry(a)) {
		t.Error("the deletion by force has left too much or too little")
	}
}

// With a dependent go its records at its sources, and what waits for it.
func TestDeleteTask_RemovesTheLinksOfADependent(t *testing.T) {
	w := newWorld(t)
	a, b, c := refOf("a"), refOf("b"), refOf("c")
	for _, r := range []record.Ref{a, b, c} {
		w.create(r)
	}
	w.link("c", "a", "b")
	w.put(w.keys.Trigger(c, "a", "1"), "{}")
	w.put(w.keys.Trigger(b, "a", "1"), "{}")

	st, err := w.Revisions(t.Context(), c)
	ok(t, err)
	_, err = w.DeleteTaskLeavingTombstone(t.Context(), st, record.Tombstone{})
	ok(t, err)

	if w.exists(w.keys.Subscriber(a, "c")) || w.exists(w.keys.Subscriber(b, "c")) || w.exists(w.keys.Trigger(c, "a", "1")) {
		t.Error("records of the dependent are left")
	}
	if !w.exists(w.keys.Trigger(b, "a", "1")) {
		t.Error("a trigger of another task is gone")
	}

	// If the spec cannot be read, the entry names the sources.
	w.link("b", "a")
	w.put(w.keys.Spec(b), "{")
	st, err = w.Revisions(t.Context(), b)
	ok(t, err)
	_, err = w.DeleteTaskLeavingTombstone(t.Context(), st, record.Tombstone{})
	ok(t, err)
	if w.exists(w.keys.Subscriber(a, "b")) {
		t.Error("the record of a damaged dependent is left")
	}
}

// The end of its life does not delete a task after which others run.
func TestExpireTask_SparesASource(t *testing.T) {
	w := newWorld(t)
	a, b := refOf("a"), refOf("b")
	w.create(a)
	w.create(b)
	w.link("b", "a")
	w.put(w.keys.Watermark(a.Shard), "{}")
	fences := store.Fences{Node: w.fences.Node, Owner: w.own(a.Shard, node)}

	st := w.stored(a)
	is(t, w.ExpireTask(t.Context(), fences, a, st.EntryMod, record.Tombstone{}), store.ErrDependents)

	// A dependent expires like any other task, and then so can its source.
	w.put(w.keys.Watermark(b.Shard), "{}")
	ok(t, w.ExpireTask(t.Context(), store.Fences{Node: w.fences.Node, Owner: w.own(b.Shard, node)}, b, w.stored(b).EntryMod, record.Tombstone{}))
	if w.exists(w.keys.Subscriber(a, "b")) {
		t.Error("the link of an expired dependent is left")
	}

	fences.Owner = w.own(a.Shard, node)
	ok(t, w.ExpireTask(t.Context(), fences, a, st.EntryMod, record.Tombstone{}))
}

func TestLinksAround_ReadsUpAndDown(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c", "d", "e", "x"} {
		w.create(refOf(name))
	}
	for _, l := range [][2]string{{"b", "a"}, {"c", "b"}, {"d", "c"}, {"e", "d"}, {"x", "a"}} {
		w.link(l[0], l[1])
	}
	w.put(w.keys.Subscriber(refOf("e"), "damaged"), "{") // a link, although it cannot be read

	names := func(q store.LinkQuery) string {
		q.Namespace = "default"
		l, err := w.LinksAround(t.Context(), q, ofDefault)
		ok(t, err)
		if l.GraphMod != w.graphMod() || l.Revision < l.GraphMod {
			t.Errorf("the graph at %d, read at %d", l.GraphMod, l.Revision)
		}

		var list []string
		for _, one := range l.List {
			list = append(list, one.Source+">"+one.Dependent)
		}
		slices.Sort(list)

		return fmt.Sprint(slices.Compact(list), l.Absent)
	}

	for _, tt := range []struct {
		q    store.LinkQuery
		want string
	}{
		{store.LinkQuery{Down: []string{"c"}}, "[c>d d>e e>damaged] map[]"},
		{store.LinkQuery{Up: []string{"c"}}, "[a>b b>c c>d] map[c:false]"}, // with the dependents of c itself
		{store.LinkQuery{Up: []string{"c"}, Down: []string{"c"}, Levels: 1}, "[b>c c>d] map[c:false]"},
		{store.LinkQuery{Up: []string{"none"}, Down: []string{"none"}}, "[] map[none:true]"},
	} {
		if got := names(tt.q); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.q, got, tt.want)
		}
	}

	all, err := w.AllLinks(t.Context(), "default", 8, 100)
	ok(t, err)
	if len(all.List) != 6 || all.GraphMod != w.graphMod() {
		t.Errorf("%+v", all)
	}

	// What is too much is not read to its end.
	for _, q := range []store.LinkQuery{{Down: []string{"a"}}, {Up: []string{"e"}}} {
		q.Namespace, q.MaxTasks = "default", 1
		some, err := w.LinksAround(t.Context(), q, ofDefault)
		ok(t, err)
		if len(some.List) == 0 || len(some.List) > 2 {
			t.Errorf("%+v: %d links", q, len(some.List))
		}
	}
	for i := range 40 {
		w.put(w.keys.Subscriber(refOf("a"), fmt.Sprint("more", i)), "{")
	}
	all, err = w.AllLinks(t.Context(), "default", 8, 1)
	ok(t, err)
	if n := len(all.List); n < task.MaxSources+1 || n > task.MaxSources+1+6 {
		t.Errorf("%d links were read", n)
	}
}

func TestWaitingTriggers_CountsBySource(t *testing.T) {
	w := newWorld(t)
	c := refOf("c")
	send := func(source, run, at string) {
		w.put(w.keys.Trigger(c, source, run), `{"uid":"u","generation":1,"cause":{"task":"a","run":"1","state":"succeeded"},"at":"`+at+`"}`)
	}
	send("a", "2", "2026-11-20T12:00:01Z")
	send("a", "1", "2026-11-20T12:00:02Z")
	send("b", "1", "2026-11-20T12:00:03Z")
	w.put(w.keys.Trigger(c, "b", "2"), "{")

	got, err := w.WaitingTriggers(t.Context(), []record.Ref{refOf("none"), c})
	ok(t, err)
	if len(got) != 2 || got[0] != nil || len(got[1]) != 2 {
		t.Fatalf("%+v", got)
	}
	if a, b := got[1][0], got[1][1]; a.Source != "a" || a.Count != 2 || a.Oldest.Second() != 1 || b.Source != "b" || b.Count != 2 || b.Oldest.Second() != 3 {
		t.Errorf("%+v", got[1])
	}
}

// A transaction has room for the links, too.
func TestFitting_CountsLinks(t *testing.T) {
	w := newWorld(t)
	var sources []record.Ref
	for i := range task.MaxSources {
		sources = append(sources, w.create(refOf(fmt.Sprint("s", i))).Ref)
	}

	var changes []store.Change
	for i := range store.MaxTogether {
		r := refOf(fmt.Sprint("t", i))
		t := spec(r)
		for _, s := range sources {
			t.After = append(t.After, task.Source{Task: s.Name})
		}
		e := entry(t)
		e.Links = task.LinksOf(t, nil, nil)
		changes = append(changes, store.Change{New: &store.Stored{Ref: r, Task: t, Entry: e, Links: store.LinkChange{Added: sources}}})
	}

	n := store.Fitting(changes)
	if n != 6 {
		t.Errorf("%d tasks with %d sources fit, want 6", n, len(sources))
	}
	_, _, err := w.ChangeTasks(t.Context(), changes[:n])
	ok(t, err)
	if got := len(w.below(w.keys.Subscribers(sources[0]))); got != n {
		t.Errorf("%d dependents", got)
	}
}
