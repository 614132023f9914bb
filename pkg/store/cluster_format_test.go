package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// later adds fields to a record that only a later version knows.
func (w *world) later(key string, also func(doc map[string]any)) {
	w.Helper()
	_, _, value := w.at(key)
	var doc map[string]any
	if err := json.Unmarshal([]byte(value), &doc); err != nil {
		w.Fatalf("%s: %v", key, err)
	}

	doc["later"] = map[string]any{"x": []any{1.5, "ü"}}

	if also != nil {
		also(doc)
	}

	b, _ := json.Marshal(doc)
	_, err := w.etcd.Put(w.Context(), key, string(b), clientv3.WithIgnoreLease())
	if err != nil {
		w.Fatal(err)
	}
}

// keeps requires that these fields still exist.
func (w *world) keeps(what, key string, path ...string) {
	w.Helper()
	_, _, value := w.at(key)
	var doc map[string]any
	if err := json.Unmarshal([]byte(value), &doc); err != nil {
		w.Fatalf("%s: %q: %v", what, value, err)
	}

	if !reflect.DeepEqual(doc["later"], map[string]any{"x": []any{1.5, "ü"}}) {
		w.Errorf("%s has lost what it does not know: %s", what, value)
	}

	var at any = doc
	for _, p := range path {
		m, _ := at.(map[string]any)
		at = m[p]
	}

	if len(path) > 0 && at == nil {
		w.Errorf("%s has lost %v: %s", what, path, value)
	}
}

// A node replaces records of a later version. None of them loses a field.
func TestUnknown_FieldsSurviveEveryWrite(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	st := w.create(ref)
	inside := func(field, name string) func(map[string]any) {
		return func(doc map[string]any) { doc[field].(map[string]any)[name] = "later" }
	}

	w.later(w.keys.Spec(ref), inside("missed", "jitter"))
	w.later(w.keys.Entry(ref), inside("target", "spread"))
	st = w.stored(ref)
	changed := st.Task
	changed.Description, changed.Generation = "changed", 2
	_, err := w.UpdateTask(ctx, st, changed, st.Entry)
	ok(t, err)
	w.keeps("a spec", w.keys.Spec(ref), "missed", "jitter")
	w.keeps("an entry", w.keys.Entry(ref), "target", "spread")

	st = w.stored(ref)
	if st.Task.Description != "changed" {
		t.Errorf("the change is lost: %+v", st.Task)
	}

	next := st
	next.Task.Description = "together"
	_, _, err = w.ChangeTasks(ctx, []store.Change{{Old: &st, New: &next}})
	ok(t, err)
	w.keeps("a spec of many", w.keys.Spec(ref), "missed", "jitter")
	w.keeps("an entry of many", w.keys.Entry(ref), "target", "spread")

	h := w.dispatch(ref, 1, node)
	inbox := w.keys.Run(node, ref, h.ID)
	w.later(inbox, nil)
	h = w.held(record.RunKey{Node: node, Ref: ref, Run: h.ID})
	h.State = task.Running
	_, err = w.Rewrite(ctx, w.fences.Node, h)
	ok(t, err)
	w.keeps("an inbox", inbox)
	h = w.held(record.RunKey{Node: node, Ref: ref, Run: h.ID})
	_, err = w.PauseActive(ctx, h, task.NewActor("ann"))
	ok(t, err)
	w.keeps("an inbox that is to pause", inbox)
	h = w.held(record.RunKey{Node: node, Ref: ref, Run: h.ID})
	_, err = w.CancelActive(ctx, h, task.NewActor("ann"))
	ok(t, err)
	w.keeps("an inbox that is cancelled", inbox)
	h = w.held(record.RunKey{Node: node, Ref: ref, Run: h.ID})
	ok(t, w.Finish(ctx, h, endOf(h, task.Cancelled), nil))
	w.keeps("history", w.keys.Ended(ref, h.ID))

	h = w.dispatch(ref, 2, node)
	w.later(w.keys.Run(node, ref, h.ID), nil)
	h = w.held(record.RunKey{Node: node, Ref: ref, Run: h.ID})
	ok(t, w.HandBack(ctx, h))
	w.keeps("the queue", w.keys.Queued(ref, h.ID))
	_, err = w.CancelQueued(ctx, ref, h.ID, task.NewActor("ann"), noon)
	ok(t, err)
	w.keeps("history of one that waited", w.keys.Ended(ref, h.ID))

	w.later(w.keys.Watermark(ref.Shard), nil)
	w.commit(w.begin())
	w.keeps("the watermark", w.keys.Watermark(ref.Shard))

	w.later(w.keys.Owner(ref.Shard), nil)
	owners, err := w.Owners(ctx)
	ok(t, err)
	ok(t, w.Assign(ctx, w.lead(node), []store.Move{{From: owners[0], To: "n2"}}, task.At(noon)))
	w.keeps("an owner", w.keys.Owner(ref.Shard))

	w.later(w.keys.Cluster(), nil)
	f, err := w.Formats(ctx)
	ok(t, err)
	ok(t, w.SetFormat(ctx, f, 1, 1))
	w.keeps("the cluster", w.keys.Cluster())
}

// An action that this version knows replaces one that it does not know.
func TestUnknown_ActionIsReplacedOrKept(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	http := func(doc map[string]any) {
		doc["action"] = map[string]any{"later": map[string]any{"url": "u"}}
		delete(doc, "later")
	}

	w.later(w.keys.Spec(ref), http)
	w.later(w.keys.Entry(ref), http)
	st := w.stored(ref)
	_, err := w.UpdateTask(t.Context(), st, st.Task, st.Entry)
	ok(t, err)

	if _, _, v := w.at(w.keys.Spec(ref)); !strings.Contains(v, `"action":{"later":{"url":"u"}}`) {
		t.Errorf("the action is lost: %s", v)
	}

	st = w.stored(ref)
	st.Task.Action.Noop, st.Entry.Action.Noop = &task.Noop{}, &task.Noop{}
	_, err = w.UpdateTask(t.Context(), st, st.Task, st.Entry)
	ok(t, err)

	if _, _, v := w.at(w.keys.Entry(ref)); !strings.Contains(v, `"action":{"noop":{}}`) {
		t.Errorf("two actions: %s", v)
	}
}

func (w *world) formats() store.Formats {
	w.Helper()
	f, err := w.Formats(w.Context())
	if err != nil {
		w.Fatal(err)
	}

	return f
}

// nextFormat is the format of an emulated later version.
const nextFormat = store.NewestFormat + 1

// newNext returns a world whose cluster a later version has created, with its format in force. The store of the world
// is of that version.
func newNext(t *testing.T) *world {
	t.Helper()
	w := newEmpty(t)
	w.Store = w.Understanding(nextFormat)
	c, _, err := w.Bootstrap(t.Context(), 8, noon, store.OpenAccess())
	ok(t, err)

	if c.Format != nextFormat {
		t.Fatalf("the cluster has format %d", c.Format)
	}

	return w
}

// join registers a node by the present record of the cluster.
func (w *world) join(s *store.Store, name string) error {
	w.Helper()
	return w.joinBy(s, name, w.clusterRecord())
}

// joinBy registers a node by a record of the cluster that it has read before.
func (w *world) joinBy(s *store.Store, name string, c store.ClusterRecord) error {
	w.Helper()
	lease, err := w.etcd.Grant(w.Context(), 600)
	ok(w.T, err)
	_, _, err = s.Register(w.Context(), task.Node{Name: name, Instance: "of-" + name, State: task.NodeReady}, lease.ID, c)

	return err
}

func (w *world) waitsFor(want string) {
	w.Helper()
	if why := w.formats().WaitsFor(); !strings.Contains(why, want) || (why == "") != (want == "") {
		w.Errorf("it waits for %q, want %q", why, want)
	}
}

// The format in force and the nodes that are present always match, whichever write comes first.
func TestFormat_NobodyJoinsWhoCouldNotRead(t *testing.T) {
	w := newNext(t)
	ctx := t.Context()
	ok(t, w.join(w.Store, node))

	old := w.other()
	if _, _, err := old.Bootstrap(ctx, 8, noon, store.OpenAccess()); !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), fmt.Sprint("downgrade --to-format ", store.NewestFormat)) {
		t.Errorf("an old version starts: %v", err)
	}

	ok(t, w.SetFormat(ctx, w.formats(), store.NewestFormat, store.NewestFormat))
	_, _, err := old.Bootstrap(ctx, 8, noon, store.OpenAccess())
	ok(t, err)

	// The format is raised after the old version has read the record, and before it joins.
	before := w.formats()
	ok(t, w.SetFormat(ctx, before, nextFormat, 0))
	is(t, w.joinBy(old, "old", before.Cluster), task.ErrConflict)
	is(t, w.join(old, "old"), store.ErrFormat)

	// The node joins after the leader has read the nodes, and before the leader raises the format.
	ok(t, w.SetFormat(ctx, w.formats(), store.NewestFormat, 0))
	is(t, w.SetFormat(ctx, before, nextFormat, 0), task.ErrConflict)
	looked := w.formats()
	is(t, w.joinBy(old, "old", before.Cluster), task.ErrConflict)
	ok(t, w.join(old, "old"))
	is(t, w.SetFormat(ctx, looked, nextFormat, 0), task.ErrConflict)

	if f, because := w.formats().Possible(); f != store.NewestFormat || len(because) != 1 || because[0].Name != "old" {
		t.Errorf("possible is %d because of %+v", f, because)
	}
}

// A node writes the format in force, or the older one that is wanted, and announces which. An older version can join
// only when all nodes write the older format.
func TestFormat_DowngradeWaitsForNodesThatWriteTheNewer(t *testing.T) {
	w := newNext(t)
	ctx := t.Context()
	ok(t, w.join(w.Store, node))
	w.waitsFor("")
	before := w.formats()
	ok(t, w.SetFormat(ctx, before, nextFormat, store.NewestFormat))
	w.waitsFor(node)

	if w.Format() != nextFormat {
		t.Errorf("it writes format %d before it has received the record", w.Format())
	}

	c, err := w.Cluster(ctx)
	ok(t, err)
	ok(t, w.Obey(c))

	if w.Format() != store.NewestFormat {
		t.Errorf("it writes format %d", w.Format())
	}

	w.waitsFor(node) // the node has not announced it yet
	w.del(w.keys.Node(node))
	ok(t, w.join(w.Store, node))
	w.waitsFor("")
	is(t, w.other().Obey(c), store.ErrFormat) // the newer format is still in force

	ok(t, w.SetFormat(ctx, w.formats(), store.NewestFormat, store.NewestFormat))
	_, _, err = w.other().Bootstrap(ctx, 8, noon, store.OpenAccess())
	ok(t, err)

	if err := w.Obey(before.Cluster); err != nil || w.Format() != store.NewestFormat { // an older record that arrives late changes nothing
		t.Errorf("a former record has it write format %d, %v", w.Format(), err)
	}
}

// The content of a commit depends on its parameters only, and not on the format in force when it is built.
func TestCommit_IsTheSameInEveryFormat(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	h := w.dispatch(ref, 1, node)
	build := func(s *store.Store) *store.Commit {
		c := s.NewCommit(ref.Shard, w.fences, 7, record.Watermark{Time: task.At(noon), Nonce: "n"})
		claim(c, assigned(ref, 2, node), 5)
		c.Enqueue(ref, waiting(ref, 3))
		c.Record(ref, ended(ref, 4, task.Skipped))
		c.EndLost(h, endOf(h, task.Lost), nil)
		c.PutDeadLetter(h, endOf(h, task.Lost))
		c.AskCancel(h, task.NewActor("ann"), "")

		return c
	}

	if now, next := build(w.Store), build(w.Understanding(nextFormat)); !reflect.DeepEqual(now, next) {
		t.Errorf("in format %d it is\n%+v, in %d\n%+v", store.NewestFormat, now, nextFormat, next)
	}
}
