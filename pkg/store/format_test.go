package store_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
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

// keeps demands that they are still there.
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

// A node writes records over those of a later version: none loses a field.
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
	h = w.held(store.RunKey{Node: node, Ref: ref, Run: h.ID})
	h.State = task.Running
	_, err = w.Rewrite(ctx, w.fences.Node, h)
	ok(t, err)
	w.keeps("an inbox", inbox)
	h = w.held(store.RunKey{Node: node, Ref: ref, Run: h.ID})
	_, err = w.PauseActive(ctx, h, "ann")
	ok(t, err)
	w.keeps("an inbox that is to pause", inbox)
	h = w.held(store.RunKey{Node: node, Ref: ref, Run: h.ID})
	_, err = w.CancelActive(ctx, h, "ann")
	ok(t, err)
	w.keeps("an inbox that is cancelled", inbox)
	h = w.held(store.RunKey{Node: node, Ref: ref, Run: h.ID})
	ok(t, w.Finish(ctx, h, endOf(h, task.Cancelled), nil))
	w.keeps("history", w.keys.Ended(ref, h.ID))

	h = w.dispatch(ref, 2, node)
	w.later(w.keys.Run(node, ref, h.ID), nil)
	h = w.held(store.RunKey{Node: node, Ref: ref, Run: h.ID})
	ok(t, w.HandBack(ctx, h))
	w.keeps("the queue", w.keys.Queued(ref, h.ID))
	_, err = w.CancelQueued(ctx, ref, h.ID, "ann", noon)
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

// What this version knows takes the place of an action that it does not know.
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

// obey does what a node does that hears of the cluster's record.
func (w *world) obey() {
	w.Helper()
	c, err := w.Cluster(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	ok(w.T, w.Obey(c))
}

// A store of format 1 reads what is written in format 1, as readers did that fill
// nothing in, and refuses what it would misread.
func TestFormat_WhatIsWrittenIsWhatAnOldReaderUnderstands(t *testing.T) {
	w := newWorld(t)
	old := store.New(w.etcd, kv.Direct(w.etcd), w.keys).Understanding(store.FormatExplicit)
	dispatched := func(n int) (store.RunKey, store.Held) {
		a := assigned(ref, n, node)
		a.KillGrace, a.DispatchedAt, a.Retry = task.Defaults().KillGrace, a.CreatedAt, task.Defaults().Retry
		c := w.begin()
		claim(c, a, w.session(node))
		w.commit(c)
		k := store.RunKey{Node: node, Ref: ref, Run: a.ID}
		return k, w.held(k)
	}
	k, first := dispatched(1)
	if _, _, err := old.Attempt(t.Context(), k); !errors.Is(err, store.ErrFormat) || !errors.Is(err, task.ErrInvalid) {
		t.Errorf("an old version reads a compact record: %v", err)
	}
	ok(t, w.SetFormat(t.Context(), w.formats(), store.FormatCompact, store.FormatExplicit))
	waits := func(what string) {
		if why, err := w.WaitsFor(t.Context(), w.formats()); err != nil || !strings.Contains(why, what) || (why == "") != (what == "") {
			t.Errorf("it waits for %q, %v; want %q", why, err, what)
		}
	}
	waits(node)
	w.obey()
	k, want := dispatched(2)
	got, _, err := old.Attempt(t.Context(), k)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("an old version reads %+v, %v", got, err)
	}
	_, _, value := w.at(w.keys.Run(node, ref, k.Run))
	var plain task.Assigned
	ok(t, json.Unmarshal([]byte(value), &plain))
	plain.Run.ID, plain.Namespace, plain.Task, plain.Shard, plain.Node, plain.Token = want.ID, want.Namespace, want.Task, want.Shard, want.Node, want.Token
	if !reflect.DeepEqual(plain, want.Assigned) {
		t.Errorf("a reader that fills nothing in reads\n%+v, want\n%+v", plain, want.Assigned)
	}
	w.del(w.keys.Node(node)) // it has heard, and says so
	lease, err := w.etcd.Grant(t.Context(), 600)
	ok(t, err)
	_, _, err = w.Register(t.Context(), task.Node{Name: node, Instance: instance, State: task.NodeReady}, lease.ID)
	ok(t, err)
	waits("1 runs, waiting or active")
	ok(t, w.Finish(t.Context(), first, endOf(first, task.Succeeded), nil))
	waits("")
}

// The format in force and the nodes that are there never disagree, whoever is first.
func TestFormat_NobodyJoinsWhoCouldNotRead(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	old := store.New(w.etcd, kv.Direct(w.etcd), w.keys).Understanding(store.FormatExplicit)
	if _, _, err := old.Bootstrap(ctx, 8, noon); !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), "downgrade --to-format 1") {
		t.Errorf("an old version starts: %v", err)
	}
	ok(t, w.SetFormat(ctx, w.formats(), 1, 1))
	_, _, err := old.Bootstrap(ctx, 8, noon)
	ok(t, err)
	// The format is raised after the old one has looked, and before it joins.
	before := w.formats()
	ok(t, w.SetFormat(ctx, before, 2, 0))
	lease, err := w.etcd.Grant(ctx, 600)
	ok(t, err)
	n := task.Node{Name: "old", Instance: "i2", State: task.NodeReady}
	if _, _, err := old.Register(ctx, n, lease.ID); !errors.Is(err, store.ErrFormat) {
		t.Errorf("an old version joins: %v", err)
	}
	// It has joined after the leader has looked, and before it raises.
	ok(t, w.SetFormat(ctx, w.formats(), 1, 0))
	is(t, w.SetFormat(ctx, before, 2, 0), task.ErrConflict)
	looked := w.formats()
	if _, _, err := old.Register(ctx, n, lease.ID); err == nil {
		t.Error("it joins by a record of the cluster that is no more")
	}
	_, _, err = old.Bootstrap(ctx, 8, noon)
	ok(t, err)
	_, _, err = old.Register(ctx, n, lease.ID)
	ok(t, err)
	is(t, w.SetFormat(ctx, looked, 2, 0), task.ErrConflict)
	if f, because := w.formats().Possible(); f != 1 || len(because) != 1 || because[0].Name != "old" {
		t.Errorf("possible is %d because of %+v", f, because)
	}
	if names := w.formats().StillWrite(1); len(names) != 1 || names[0] != node {
		t.Errorf("%v still write what is new", names)
	}
}

func TestFormatOf_KnowsTheLanguageOfSchedules(t *testing.T) {
	for expr, isNew := range map[string]bool{
		"0 0 L * *": true, "0 0 LW * *": true, "0 0 15W * *": true, "0 0 1,15w * *": true, "0 0 * * 5L": true, "0 0 * * friL": true, "0 0 * * 5#3": true,
		"0 0 * * FRI#2": true, "h * * * *": true, "0,H(3-9)/2 * * * *": true, "@every 1h  after completion": true,
		"0 0 * JUL *": false, "0 0 * 1-jul *": false, "0 0 * * WED,THU": false, "0 0 1 MAR-JUL SUN": false, "@hourly": false, "@at 2026-12-24T18:00:00Z": false, "*/5 * * * *": false,
	} {
		s := spec(ref).Spec
		s.Schedule = task.Schedules{"@daily", expr}
		if takes, field := store.FormatOf(&s); (takes == store.FormatPolicies) != isNew || (field == "schedule") != isNew {
			t.Errorf("%s takes format %d for %q", expr, takes, field)
		}
	}
}

func TestFormatOf_KnowsWhatIsKeptOfOutput(t *testing.T) {
	s := spec(ref).Spec
	s.Output.Limit = 1 << 20
	if takes, because := store.FormatOf(&s); takes != store.FormatProcesses || because != "output" {
		t.Errorf("it takes format %d for %q", takes, because)
	}
}

func TestFormatOf_KnowsWhatConfinesAProcess(t *testing.T) {
	for field, p := range map[string]task.Process{
		"":                            {User: "nobody", Enforce: task.EnforceReport},
		"action.process.env_from":     {EnvFrom: []task.EnvFrom{{Secret: "db"}}},
		"action.process.group":        {Group: "adm"},
		"action.process.groups":       {Groups: []string{}},
		"action.process.umask":        {Umask: "0"},
		"action.process.nice":         {Nice: 1},
		"action.process.ionice":       {IONice: "idle"},
		"action.process.no_new_privs": {NoNewPrivs: true},
		"action.process.private_tmp":  {PrivateTmp: true},
		"action.process.scratch":      {Scratch: true},
		"action.process.limits":       {Limits: task.Limits{Core: new(task.Size)}},
	} {
		s := spec(ref).Spec
		s.Action = task.Action{Process: &p}
		takes, because := store.FormatOf(&s)
		if because != field || (takes == store.FormatProcesses) != (field != "") {
			t.Errorf("%+v takes format %d for %q", p, takes, because)
		}
	}
}

// A cluster does not go back to a version that would fire a task otherwise.
func TestDowngrade_WaitsForTasksThatTakeThePolicies(t *testing.T) {
	w := newWorld(t)
	waits := func(wanted int, what string) {
		t.Helper()
		ok(t, w.SetFormat(t.Context(), w.formats(), store.NewestFormat, wanted))
		if why, err := w.WaitsFor(t.Context(), w.formats()); err != nil || !strings.Contains(why, what) || (why == "") != (what == "") {
			t.Errorf("to format %d it waits for %q, %v", wanted, why, err)
		}
	}
	w.del(w.keys.Node(node)) // it would write what is newer
	w.create(ref)
	w.put(w.keys.Spec(store.Ref{Namespace: "default", Name: "unreadable"}), "[]")
	waits(store.FormatCompact, "")
	st := w.stored(ref)
	next := st.Task
	next.Jitter = task.Duration(time.Minute)
	_, err := w.UpdateTask(t.Context(), st, next, st.Entry)
	ok(t, err)
	waits(store.FormatCompact, "such as "+ref.String())
	waits(store.FormatExplicit, "such as "+ref.String())
	waits(store.FormatPolicies, "")
	st = w.stored(ref)
	next = st.Task
	next.Shadow = true
	_, err = w.UpdateTask(t.Context(), st, next, st.Entry)
	ok(t, err)
	waits(store.FormatPolicies, "format 4, such as "+ref.String())
}
