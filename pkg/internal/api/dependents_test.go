package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/depgraph"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// after returns a task that runs after others, as a line of a batch. A source is written NAME or NAME:WHEN.
func after(name string, sources ...string) string {
	s := map[string]any{"name": name, "action": map[string]any{"noop": map[string]any{}}}
	var list task.Sources
	for _, text := range sources {
		list = append(list, task.ParseSource(text))
	}

	if len(list) == 0 {
		s["schedule"] = "@daily"
	} else {
		s["after"] = list
	}
	if len(list) > 1 {
		s["join"] = task.JoinAny
	}

	b, _ := json.Marshal(s)

	return string(b)
}

// applyAfter applies a task that runs after others.
func (w *world) applyAfter(name string, sources ...string) response {
	w.t.Helper()
	return w.do(request{method: "PUT", path: "/v1/namespaces/default/tasks/" + name, body: after(name, sources...)})
}

// chain creates tasks of which each runs after the one before.
func (w *world) chain(names ...string) {
	w.t.Helper()
	for i, name := range names {
		if r := w.applyAfter(name, names[max(i-1, 0):i]...); r.status != 200 {
			w.t.Fatalf("%s: %d %s", name, r.status, r.body)
		}
	}
}

// links returns the records of all subscribers, as "source>dependent generation".
func (w *world) links() string {
	w.t.Helper()
	keys := w.store.Keys()
	var list []string
	for key, value := range w.dump() {
		if k, ok := keys.ParseShard(key); ok && k.Kind == record.KindSubscriber {
			_, value, _ = strings.Cut(value, " ")
			s, err := record.Decode[record.Subscriber]([]byte(value))
			must(w.t, err)
			list = append(list, fmt.Sprintf("%s>%s %d", k.Ref.Name, k.Peer, s.Generation))
		}
	}
	slices.Sort(list)

	return strings.Join(list, ", ")
}

func (w *world) wantLinks(what, want string) {
	w.t.Helper()
	if got := w.links(); got != want {
		w.t.Errorf("%s: links %s, want %s", what, got, want)
	}
}

// Only links that are new or changed get the generation of the write.
func TestAfter_WritesLinks(t *testing.T) {
	w := newWorld(t)
	patch := func(body string) {
		t.Helper()
		r := w.do(request{method: "PATCH", path: "/v1/namespaces/default/tasks/c", body: body, header: map[string]string{"Content-Type": mergePatch}})
		if r.status != 200 {
			t.Fatalf("%s: %d %s", body, r.status, r.body)
		}
	}

	w.create("a", "@daily")
	w.create("b", "@daily")
	wantStatus(t, "the dependent", w.applyAfter("c", "a", "b:failed"), 200, "")
	w.wantLinks("a new task", "a>c 1, b>c 1")
	if e := w.entry(ref("default", "c")); fmt.Sprintf("%v %s", e.Links, e.Join) != "[{a 1} {b 1}] any" {
		t.Errorf("the entry has %v, %s", e.Links, e.Join)
	}

	patch(`{"description": "x"}`)
	w.wantLinks("another field", "a>c 1, b>c 1")
	patch(`{"after": ["a", {"task": "b", "when": "ended"}]}`)
	w.wantLinks("another end of b", "a>c 1, b>c 3")
	patch(`{"after": {"task": "b", "when": "ended"}, "join": null}`)
	w.wantLinks("one source less", "b>c 3")
	if e := w.entry(ref("default", "c")); fmt.Sprintf("%v %s", e.Links, e.Join) != "[{b 3}] " {
		t.Errorf("the entry has %v, %s", e.Links, e.Join)
	}

	was, err := w.Tasks.Get(t.Context(), "default", "c")
	must(t, err)
	r := w.do(request{method: "PATCH", path: "/v1/namespaces/default/tasks/c", body: `{"after": null, "schedule": "@daily"}`,
		header: map[string]string{"Content-Type": mergePatch, "If-Match": fmt.Sprintf(`"%d"`, was.Revision-1)}})
	wantStatus(t, "an old revision", r, 412, client.CodeStale)
	w.wantLinks("a refused write", "b>c 3")

	patch(`{"after": null, "schedule": "@daily"}`)
	w.wantLinks("no source", "")

	_, err = w.Tasks.Rollback(t.Context(), "default", "c", client.RollbackRequest{To: 3}, 0)
	must(t, err)
	w.wantLinks("a rollback", "a>c 6, b>c 6")

	_, err = w.Tasks.Pause(t.Context(), "default", "c", 0)
	must(t, err)
	w.wantLinks("a pause", "a>c 6, b>c 6")
}

func TestAfter_Refuses(t *testing.T) {
	w := newWorld(t)
	w.chain("a", "b", "c")
	w.create("x", "@daily")

	for _, tt := range []struct {
		name    string
		sources []string
		status  int
		code    string
		field   string
		detail  string
	}{
		{"d", []string{"a", "none"}, 422, task.CodeBadValue, "after[1]", `"none" is not a task of namespace default`},
		{"a", []string{"c"}, 409, client.CodeCycle, "after[0]", "a -> b -> c -> a"},
		{"a", []string{"x", "c:failed"}, 409, client.CodeCycle, "after[1]", "a -> b -> c -> a"},
		{"b", []string{"a", "c"}, 409, client.CodeCycle, "after[1]", "b -> c -> b"},
	} {
		w.unchanged(fmt.Sprint(tt.name, " after ", tt.sources), func() {
			for _, query := range []string{"", "?dry_run=true"} {
				r := w.do(request{method: "PUT", path: "/v1/namespaces/default/tasks/" + tt.name + query, body: after(tt.name, tt.sources...)})
				if r.status != tt.status || r.Code != tt.code || r.Field != tt.field || !strings.Contains(r.Detail, tt.detail) {
					t.Errorf("%s after %v: %d %s", tt.name, tt.sources, r.status, r.body)
				}
			}
		})
	}

	// What a write removes does not count.
	wantStatus(t, "c without sources", w.applyAfter("c"), 200, "")
	wantStatus(t, "b after c", w.applyAfter("b", "c"), 200, "")
	wantStatus(t, "a after b", w.applyAfter("a", "b"), 200, "")
	w.wantLinks("the chain is turned around", "b>a 2, c>b 2")
}

// With the entry of a source missing, a link to it would never be used.
func TestAfter_RefusesADamagedSource(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	_, err := w.etcd.Delete(t.Context(), w.store.Keys().Entry(ref("default", "a")))
	must(t, err)

	wantStatus(t, "b after a", w.applyAfter("b", "a"), 422, task.CodeBadValue)
}

// Two writers close a cycle at the same time, from two nodes: one of them is told which.
func TestAfter_TwoWritersCloseACycle(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.create(name, "@daily")
	}
	nodes := []*client.Client{w.Client, w.client(w.serve("node-b")), w.client(w.serve("node-c"))}
	patches := []string{`{"after": "c", "overlap": "queue"}`, `{"after": "a", "overlap": "queue"}`, `{"after": "b", "overlap": "queue"}`}

	// Each has read the links before any of them writes.
	var arrived sync.WaitGroup
	arrived.Add(len(nodes))
	var mu sync.Mutex
	first := map[string]bool{}
	w.writes.set(func(txn kv.Txn) {
		key := ""
		for _, op := range txn.Then {
			if ns, name, ok := w.store.Keys().ParseSpec(string(op.KeyBytes())); ok && op.IsPut() {
				key = ns + "/" + name
			}
		}
		mu.Lock()
		again := key == "" || first[key]
		first[key] = true
		mu.Unlock()

		if !again {
			arrived.Done()
			arrived.Wait()
		}
	}, nil)

	errs := make([]error, len(nodes))
	var done sync.WaitGroup
	for i, name := range []string{"a", "b", "c"} {
		done.Go(func() { _, errs[i] = nodes[i].Tasks.Patch(t.Context(), "default", name, []byte(patches[i]), 0) })
	}
	done.Wait()
	w.writes.set(nil, nil)

	refused := 0
	for _, err := range errs {
		var e *client.Error
		switch {
		case err == nil:
		case errors.As(err, &e) && e.Status == 409 && e.Code == client.CodeCycle && strings.Count(e.Message, "->") == 3:
			refused++
		default:
			t.Errorf("got %v", err)
		}
	}
	if refused != 1 {
		t.Errorf("%d of three writers were refused: %v", refused, errs)
	}
}

func TestAfter_LimitsDependentsAndDepth(t *testing.T) {
	w := newWorld(t)
	w.create("s", "@daily")
	var lines []string
	for i := range task.MaxDependents - 1 {
		lines = append(lines, after(fmt.Sprintf("d%03d", i), "s"))
	}
	for _, r := range w.batch("", lines...) {
		if r.Result != client.Created {
			t.Fatalf("%+v", r.Error)
		}
	}

	// The last two are in one transaction.
	wantSaid(t, w.batch("", after("y", "s"), after("z", "s")), "1 default/y created", "2 default/z failed too_many")
	if r := w.applyAfter("z", "s"); r.status != 422 || r.Code != task.CodeTooMany || r.Field != "after[0]" || !strings.Contains(r.Detail, "100 dependents") {
		t.Errorf("the 101st dependent: %d %s", r.status, r.body)
	}
	wantStatus(t, "a change of the 100th", w.applyAfter("y", "s:ended"), 200, "")

	lines = []string{after("c000")}
	for i := range task.MaxChain - 1 {
		lines = append(lines, after(fmt.Sprintf("c%03d", i+1), fmt.Sprintf("c%03d", i)))
	}
	for _, r := range w.batch("", lines...) {
		if r.Result != client.Created {
			t.Fatalf("%s: %+v", r.Name, r.Error)
		}
	}
	if r := w.applyAfter("end", "c099"); r.status != 422 || r.Code != task.CodeTooMany || r.Field != "after" || !strings.Contains(r.Detail, "101 tasks") {
		t.Errorf("at the end of the longest chain: %d %s", r.status, r.body)
	}
	wantStatus(t, "before it", w.applyAfter("c000", "s"), 422, task.CodeTooMany)
	wantStatus(t, "beside its end", w.applyAfter("end", "c098"), 200, "")
}

// The order of the lines of a file does not matter within a part of it, and a file may have several parts.
func TestBatch_WritesSourcesFirst(t *testing.T) {
	w := newWorld(t)
	var lines []string
	for i := range 10 {
		var sources []string
		if i > 0 {
			sources = []string{fmt.Sprint("t", i-1)}
		}
		lines = append(lines, after(fmt.Sprint("t", i), sources...))
	}
	slices.Reverse(lines)

	dry := w.batch("?dry_run=true", lines...)
	for _, r := range append(dry, w.batch("", lines...)...) {
		if r.Result != client.Created {
			t.Errorf("%s: %s %+v", r.Name, r.Result, r.Error)
		}
	}
	w.wantLinks("a chain of ten", "t0>t1 1, t1>t2 1, t2>t3 1, t3>t4 1, t4>t5 1, t5>t6 1, t6>t7 1, t7>t8 1, t8>t9 1")
	for _, r := range w.batch("", lines...) {
		if r.Result != client.Unchanged {
			t.Errorf("%s: %s %+v", r.Name, r.Result, r.Error)
		}
	}

	// Sources that are many lines before their dependents, in parts of the file that are written at the same time.
	lines = nil
	for i := range 400 {
		if i < 300 {
			lines = append(lines, after(fmt.Sprint("u", i)))
		} else {
			lines = append(lines, after(fmt.Sprint("u", i), fmt.Sprint("u", i-300), fmt.Sprint("u", i-1)))
		}
	}
	failed := 0
	for _, r := range w.batch("", lines...) {
		if r.Result != client.Created && r.Error.Code != task.CodeTooMany {
			t.Errorf("%s: %s %+v", r.Name, r.Result, r.Error)
		}
		if r.Result == client.Failed {
			failed++
		}
	}
	if failed != 1 { // 101 tasks from u299 on
		t.Errorf("%d lines failed", failed)
	}
}

func TestBatch_RefusesCycles(t *testing.T) {
	w := newWorld(t)
	results := w.batch("", after("a", "c"), after("b", "a"), after("c", "b"), after("d", "none"), after("e"), after("f", "c"))
	wantSaid(t, results, "1 default/a failed cycle", "2 default/b failed cycle", "3 default/c failed cycle", "4 default/d failed bad_value",
		"5 default/e created", "6 default/f failed bad_value")
	if d := results[0].Error.Detail; !strings.Contains(d, "a -> b -> c -> a") {
		t.Errorf("got %s", d)
	}

	// One cycle with a task that exists.
	w.chain("x", "y")
	wantSaid(t, w.batch("", after("x", "y")), "1 default/x failed cycle")
}

// The lines of a batch are checked together, and written in several transactions. One may add a link that closes no cycle because an
// earlier one removes another link. Until that is written, the link is not added.
func TestBatch_AddsNoLinkBeforeTheRemovalOfAnother(t *testing.T) {
	for name, x := range map[string]string{"removes its source": after("x"), "gets another source": after("x", "z")} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.chain("y", "x", "m")
			w.create("z", "@daily")
			lines := []string{x}
			for i := range store.MaxTogether - 2 {
				name := fmt.Sprint("other", i)
				w.create(name, "@hourly")
				lines = append(lines, after(name))
			}
			lines = append(lines, after("y", "m"))

			// Another writer changes x before each write of it together with others.
			x := w.store.Keys().Entry(ref("default", "x"))
			w.writes.set(func(txn kv.Txn) {
				if links := w.links(); strings.Contains(links, "m>y") && strings.Contains(links, "y>x") {
					t.Errorf("a cycle: %s", links)
				}
				if len(txn.Then) > 20 && slices.ContainsFunc(txn.Then, func(op clientv3.Op) bool { return string(op.KeyBytes()) == x }) {
					w.put(x, w.entry(ref("default", "x")))
				}
			}, nil)
			results := w.batch("", lines...)
			w.writes.set(nil, nil)

			for _, i := range []int{0, len(results) - 1} {
				if r := results[i]; r.Result != client.Configured {
					t.Errorf("%s: %s %+v", r.Name, r.Result, r.Error)
				}
			}
		})
	}
}

// Who may not read the runs of a source must not learn of them through a task of their own.
func TestAfter_NeedsReadOnTheSource(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	for name, rules := range map[string]string{
		"writer": `{"rules":[{"verbs":["create","update"],"objects":["tasks"]},{"verbs":["read"],"objects":["tasks"]}]}`,
		"blind":  `{"rules":[{"verbs":["create"],"objects":["tasks"]}]}`,
	} {
		wantStatus(t, "the role "+name, w.do(request{method: "PUT", path: "/v1/roles/" + name, body: rules}), 200, "")
	}
	for subject, role := range map[string]string{"wim": "writer", "bo": "blind"} {
		binding := fmt.Sprintf(`{"role":%q,"subjects":["user:%s"],"namespaces":["default"]}`, role, subject)
		wantStatus(t, "the binding of "+subject, w.do(request{method: "PUT", path: "/v1/bindings/" + subject, body: binding}), 200, "")
	}

	const path = "/v1/namespaces/default/tasks"
	wim, bo := w.token("user:wim"), w.token("user:bo")
	w.unchanged("a refused write", func() {
		wantStatus(t, "without read on runs", w.as(wim, "POST", path, after("b", "a")), 403, client.CodeForbidden)
		wantStatus(t, "without read on tasks", w.as(bo, "POST", path, after("b", "a")), 404, client.CodeNotFound)
	})
	wantStatus(t, "without a source", w.as(wim, "POST", path, after("b")), 201, "")
}

func TestDelete_KeepsASource(t *testing.T) {
	w := newWorld(t)
	w.chain("a", "b")
	w.applyAfter("c", "a")

	for _, query := range []string{"", "?dry_run=true", "?purge=true"} {
		w.unchanged("a refused deletion", func() {
			r := w.do(request{method: "DELETE", path: "/v1/namespaces/default/tasks/a" + query})
			if r.status != 409 || r.Code != client.CodeInUse || !strings.Contains(r.Detail, "2 tasks run after it: b, c") {
				t.Errorf("%s: %d %s", query, r.status, r.body)
			}
		})
	}

	if _, err := w.Tasks.DryRunDeleteWith(t.Context(), "default", "a", client.DeleteOptions{Force: true}); err != nil {
		t.Errorf("a dry run with force: %v", err)
	}
	must(t, w.Tasks.DeleteWith(t.Context(), "default", "a", client.DeleteOptions{Force: true}))
	w.wantLinks("after the source", "a>b 1, a>c 1")

	// A new task of the name has the dependents, which can be changed meanwhile.
	wantStatus(t, "a dependent without its source", w.do(request{method: "PATCH", path: "/v1/namespaces/default/tasks/b", body: `{"description":"x"}`,
		header: map[string]string{"Content-Type": mergePatch}}), 200, "")
	if got, err := w.Tasks.Undelete(t.Context(), "default", "a"); err != nil || got.Name != "a" {
		t.Errorf("%+v, %v", got, err)
	}

	must(t, w.Tasks.Delete(t.Context(), "default", "b", 0))
	must(t, w.Tasks.Delete(t.Context(), "default", "c", 0))
	w.wantLinks("after the dependents", "")
	must(t, w.Tasks.Delete(t.Context(), "default", "a", 0))

	// An empty namespace keeps nothing of its graph.
	wantStatus(t, "the deletion of the namespace", w.do(request{method: "DELETE", path: "/v1/namespaces/default"}), 204, "")
	for key := range w.dump() {
		if strings.Contains(key, "/default") && !strings.Contains(key, "audit") && !strings.Contains(key, "idempotency") {
			t.Errorf("%s is left", key)
		}
	}
}

// A dependent that is added while its source is being deleted wins, or the deletion does, but never both.
func TestDelete_AgainstANewDependent(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")

	// The dependent comes after the deletion has found none.
	var once sync.Once
	w.writes.set(func(txn kv.Txn) {
		if op := txn.Then[0]; op.IsDelete() && string(op.KeyBytes()) == w.store.Keys().Spec(ref("default", "a")) {
			once.Do(func() { wantStatus(t, "the dependent", w.applyAfter("b", "a"), 200, "") })
		}
	}, nil)
	wantStatus(t, "the deletion", w.do(request{method: "DELETE", path: "/v1/namespaces/default/tasks/a"}), 409, client.CodeInUse)

	// The deletion comes after the dependent has found the source.
	w.create("x", "@daily")
	once = sync.Once{}
	w.writes.set(func(txn kv.Txn) {
		created := slices.ContainsFunc(txn.Then, func(op clientv3.Op) bool {
			return op.IsPut() && string(op.KeyBytes()) == w.store.Keys().Spec(ref("default", "y"))
		})
		if created {
			once.Do(func() { must(t, w.Tasks.Delete(t.Context(), "default", "x", 0)) })
		}
	}, nil)
	r := w.do(request{method: "POST", path: "/v1/namespaces/default/tasks", body: after("y", "x")})
	wantStatus(t, "the dependent of a deleted task", r, 422, task.CodeBadValue)
	w.writes.set(nil, nil)
	w.wantLinks("in the end", "a>b 1")
}

func TestUndelete_RestoresLinks(t *testing.T) {
	w := newWorld(t)
	w.chain("a", "b")
	must(t, w.Tasks.Delete(t.Context(), "default", "b", 0))
	w.wantLinks("without the dependent", "")

	_, err := w.Tasks.Undelete(t.Context(), "default", "b")
	must(t, err)
	w.wantLinks("undeleted", "a>b 1")

	must(t, w.Tasks.Delete(t.Context(), "default", "b", 0))
	must(t, w.Tasks.Delete(t.Context(), "default", "a", 0))
	r := w.do(request{method: "POST", path: "/v1/namespaces/default/tasks/b/undelete"})
	if r.status != 422 || r.Field != "after[0]" || !strings.Contains(r.Detail, `"a" is not a task`) {
		t.Errorf("without its source: %d %s", r.status, r.body)
	}

	// Another task has taken its place in the meantime.
	w.chain("a", "c")
	w.applyAfter("b")
	must(t, w.Tasks.Delete(t.Context(), "default", "b", 0))
	_, err = w.Tasks.Undelete(t.Context(), "default", "b")
	must(t, err)
}

// A dry run shows the changed links as a changed field.
func TestAfter_DryRunShowsTheLinks(t *testing.T) {
	w := newWorld(t)
	w.chain("a", "b")
	r := w.do(request{method: "PUT", path: "/v1/namespaces/default/tasks/b?dry_run=true", body: after("b", "a:failed")})
	var got client.Task
	must(t, json.Unmarshal([]byte(r.body), &got))
	if got.DryRun == nil || fmt.Sprint(got.DryRun.Fields) != "[after.a: succeeded → failed]" {
		t.Errorf("%v: %s", got.DryRun, r.body)
	}
	w.wantLinks("a dry run", "a>b 1")
}

func TestGraph(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.chain("etl", "load", "report")
	w.applyAfter("alarm", "load:failed")
	w.create("alone", "@daily")
	_, err := w.Tasks.Pause(ctx, "default", "report", 0)
	must(t, err)
	_, err = w.Tasks.Trigger(ctx, "default", "load", nil)
	must(t, err)
	w.put(w.store.Keys().Trigger(ref("default", "report"), "load", "1"), task.Trigger{UID: "u", Generation: 1, At: task.At(w.clock.now())})

	text := func(g client.Graph) string {
		var list []string
		for _, v := range g.Tasks {
			words := v.Name + " " + v.State
			if v.Missing {
				words += "missing"
			}
			for _, wt := range v.WaitingTriggers {
				words += fmt.Sprintf(" %s:%d", wt.Source, wt.Count)
			}
			list = append(list, words)
		}
		for _, l := range g.Links {
			list = append(list, fmt.Sprintf("%s>%s %s", l.Source, l.Dependent, l.When))
		}
		return strings.Join(list, ", ")
	}
	want := func(what, want string, o client.GraphOptions) {
		t.Helper()
		g, err := w.Tasks.Graph(ctx, "default", o)
		if got := text(g); err != nil || got != want || g.Namespace != "default" || g.Revision == 0 {
			t.Errorf("%s: %s, %v; want %s", what, got, err, want)
		}
	}

	want("the namespace", "alarm ok, etl ok, load waiting, report paused load:1, etl>load succeeded, load>alarm failed, load>report succeeded", client.GraphOptions{})
	want("around the end", "etl ok, load waiting, report paused load:1, etl>load succeeded, load>report succeeded", client.GraphOptions{Task: "report"})
	want("near the end", "load waiting, report paused load:1, load>report succeeded", client.GraphOptions{Task: "report", Levels: 1})
	want("a task without links", "alone ok", client.GraphOptions{Task: "alone"})

	must(t, w.Tasks.DeleteWith(ctx, "default", "etl", client.DeleteOptions{Force: true}))
	want("with a source that was deleted by force", "alarm ok, etl missing, load waiting, report paused load:1, etl>load succeeded, load>alarm failed, load>report succeeded",
		client.GraphOptions{Task: "load"})
}

func TestGraph_Refuses(t *testing.T) {
	w := newWorld(t)
	const path = "/v1/namespaces/default/graph"
	wantStatus(t, "a task that does not exist", w.do(request{method: "GET", path: path + "?task=none"}), 404, client.CodeNotFound)
	wantStatus(t, "levels without a task", w.do(request{method: "GET", path: path + "?levels=2"}), 422, task.CodeBadValue)
	wantStatus(t, "no namespace", w.do(request{method: "GET", path: "/v1/namespaces/none/graph"}), 404, client.CodeNotFound)

	w.bind("user:vera", "viewer", "other")
	wantStatus(t, "a viewer of another namespace", w.as(w.token("user:vera"), "GET", path, ""), 404, client.CodeNotFound)

	r := w.do(request{method: "GET", path: path})
	if r.status != 200 || !strings.Contains(r.body, `"tasks":[],"links":[]`) {
		t.Errorf("an empty graph: %d %s", r.status, r.body)
	}
}

// A task shows what runs after it, and what waits to start it.
func TestGetTask_ShowsDependentsAndTriggers(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.chain("a", "b", "c")
	w.applyAfter("d", "b:ended")
	at := task.At(w.clock.now())
	for i, run := range []string{"2", "1"} { // the order of their creation counts, not that of their keys
		w.put(w.store.Keys().Trigger(ref("default", "b"), "a", run), task.Trigger{UID: "u", Generation: 1, At: task.At(at.Add(time.Duration(i) * time.Hour))})
	}

	got, err := w.Tasks.Get(ctx, "default", "b")
	must(t, err)
	if want := []client.Dependent{{Task: "c", When: task.WhenSucceeded}, {Task: "d", When: task.WhenEnded}}; !slices.Equal(got.Dependents, want) {
		t.Errorf("dependents %v, want %v", got.Dependents, want)
	}
	if len(got.WaitingTriggers) != 1 || got.WaitingTriggers[0].Source != "a" || got.WaitingTriggers[0].Count != 2 || !got.WaitingTriggers[0].Oldest.Equal(at.Time) {
		t.Errorf("waiting %+v", got.WaitingTriggers)
	}
}

func TestTrigger_ForAPeriodOrAlone(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.chain("a", "b")
	period := task.At(w.clock.now().Add(-24 * time.Hour))

	run, err := w.Tasks.TriggerWith(ctx, "default", "a", client.TriggerRequest{Period: period}, 0)
	if err != nil || !run.Period.Equal(period.Time) || run.Alone || len(run.Dependents) != 1 || run.Dependents[0].Task != "b" {
		t.Errorf("%+v, %v", run, err)
	}
	run, err = w.Tasks.TriggerWith(ctx, "default", "a", client.TriggerRequest{Alone: true}, 0)
	if err != nil || !run.Period.IsZero() || !run.Alone || run.Dependents != nil {
		t.Errorf("%+v, %v", run, err)
	}
	if got, err := w.Runs.Get(ctx, "default", "a", run.ID); err != nil || !got.Alone {
		t.Errorf("the stored run: %+v, %v", got, err)
	}

	r := w.do(request{method: "POST", path: "/v1/namespaces/default/tasks/a/trigger", body: fmt.Sprintf(`{"period":%q}`, w.clock.now().Add(time.Second).Format(time.RFC3339))})
	if r.status != 422 || r.Code != task.CodeBadTime || r.Field != "period" || !strings.Contains(r.Detail, "later than now") {
		t.Errorf("a period in the future: %d %s", r.status, r.body)
	}
	wantStatus(t, "a period before the year 2000", w.do(request{method: "POST", path: "/v1/namespaces/default/tasks/a/trigger", body: `{"period":"1999-12-31T00:00:00Z"}`}), 422, task.CodeBadTime)
	wantStatus(t, "a period that is no time", w.do(request{method: "POST", path: "/v1/namespaces/default/tasks/a/trigger", body: `{"period":"yesterday"}`}), 422, task.CodeBadTime)
}

// What a run was started for stays with it when it is started again.
func TestRetryAndRerun_KeepCausesPeriodAndAlone(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	a, err := w.store.Task(ctx, ref("default", "a"))
	must(t, err)
	tick := task.At(w.clock.now().Add(-time.Hour))
	cause := task.Cause{Task: "etl", Run: "r1", State: task.Succeeded, Results: map[string]string{"rows": "3"}}

	for i, tt := range []struct {
		run    task.Run
		period task.Time
	}{
		{task.Run{Trigger: task.TriggerAfter, Causation: task.Causation{Causes: []task.Cause{cause}, Period: tick}}, tick},
		{task.Run{Trigger: task.TriggerManual, Requests: task.Requests{Alone: true}}, task.Time{}},
		{task.Run{Trigger: task.TriggerSchedule}, tick},
	} {
		run := tt.run
		run.ID, run.UID, run.ScheduledTime, run.State, run.Attempt = task.RunID(tick.Add(time.Duration(i)*time.Second), a.Task.UID), a.Task.UID, tick, task.Failed, 1
		w.put(w.store.Keys().Ended(a.Ref, run.ID), string(record.EncodeEnded(run)))
		w.put(w.store.Keys().DeadRun(a.Ref, run.ID), string(record.EncodeWaiting(task.Waiting{Run: run})))

		again, err := w.Runs.Rerun(ctx, "default", "a", run.ID, client.RerunRequest{})
		must(t, err)
		retried, err := w.Runs.Retry(ctx, "default", "a", run.ID)
		must(t, err)
		for what, got := range map[string]task.Run{"rerun": again.Run, "retry": retried.Run} {
			if !reflect.DeepEqual(got.Causes, run.Causes) || !got.Period.Equal(tt.period.Time) || got.Alone != run.Alone || got.Trigger != task.TriggerManual {
				t.Errorf("%s of %s: %+v", what, run.Trigger, got)
			}
		}
	}
}

// Who resumes a dependent learns what its pause has dropped.
func TestResume_CountsDroppedTriggers(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.chain("a", "b")
	b, err := w.store.Task(ctx, ref("default", "b"))
	must(t, err)
	end := func(after time.Duration, change func(*task.Run)) {
		at := task.At(w.clock.now().Add(after))
		r := task.Run{ID: task.TriggeredRunID(at.Time, b.Task.UID, task.Cause{Task: "a"}), UID: b.Task.UID, ScheduledTime: at, State: task.Skipped, Reason: task.ReasonPaused, Trigger: task.TriggerAfter}
		change(&r)
		w.put(w.store.Keys().Ended(b.Ref, r.ID), string(record.EncodeEnded(r)))
	}

	end(-time.Minute, func(*task.Run) {}) // of an earlier pause
	_, err = w.Tasks.Pause(ctx, "default", "b", 0)
	must(t, err)
	end(time.Second, func(r *task.Run) { r.Count, r.Last = 3, task.At(r.ScheduledTime.Add(2*time.Millisecond)) })
	end(2*time.Second, func(*task.Run) {})
	end(3*time.Second, func(r *task.Run) { r.Reason = task.ReasonOverlap })
	end(4*time.Second, func(r *task.Run) { r.State, r.Reason = task.Succeeded, "" })
	w.clock.advance(time.Minute)

	if got, err := w.Tasks.Resume(ctx, "default", "b", 0); err != nil || got.DroppedTriggers != 4 || got.Paused {
		t.Errorf("%d dropped, %v", got.DroppedTriggers, err)
	}
	if got, err := w.Tasks.Resume(ctx, "default", "b", 0); err != nil || got.DroppedTriggers != 0 {
		t.Errorf("again: %d dropped, %v", got.DroppedTriggers, err)
	}
}

// However many writers change links, delete tasks and bring them back at the same time, there is never a cycle, and the records of
// subscribers are those that the specs and the entries name.
func TestAfter_StaysConsistentUnderConcurrentWrites(t *testing.T) {
	w := newWorld(t)
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names {
		w.create(name, "@daily")
	}

	var done sync.WaitGroup
	for n := range 4 {
		c := w.client(w.serve(fmt.Sprint("node-", n)))
		random := rand.New(rand.NewPCG(uint64(n), 41))

		done.Go(func() {
			for range 40 {
				name := names[random.IntN(len(names))]
				var err error
				switch random.IntN(6) {
				case 0:
					err = c.Tasks.Delete(t.Context(), "default", name, 0)
				case 1:
					_, err = c.Tasks.Undelete(t.Context(), "default", name)
				default:
					s := spec(name, "@daily")
					s.Overlap = task.OverlapQueue
					for _, i := range random.Perm(len(names))[:random.IntN(3)] {
						if names[i] != name {
							s.After, s.Join = append(s.After, task.Source{Task: names[i]}), task.JoinAny
						}
					}
					_, err = c.Tasks.Apply(t.Context(), s, client.ApplyOptions{})
				}

				// Many are refused: cycles, sources that do not exist, and deletions of sources.
				var e *client.Error
				if err != nil && (!errors.As(err, &e) || e.Status >= 500) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	done.Wait()

	keys, graph := w.store.Keys(), depgraph.New()
	var want []string
	for key, value := range w.dump() {
		ns, name, ok := keys.ParseSpec(key)
		if !ok {
			continue
		}

		_, value, _ = strings.Cut(value, " ")
		stored, err := record.DecodeTask([]byte(value), 1)
		must(t, err)
		entry := w.entry(ref(ns, name))
		if len(entry.Links) != len(stored.After) {
			t.Errorf("%s: the spec has %v, the entry %v", name, stored.After, entry.Links)
		}
		for _, source := range stored.After.Names() {
			want = append(want, fmt.Sprintf("%s>%s %d", source, name, entry.Link(source).Generation))
		}
		for _, l := range depgraph.LinksOf(name, stored.After) {
			graph.Add(l)
		}
	}
	slices.Sort(want)
	w.wantLinks("in the end", strings.Join(want, ", "))
	if cycles := graph.Cycles(); cycles != nil {
		t.Errorf("cycles %v", cycles)
	}
	for _, name := range graph.Tasks() {
		if _, ok := w.dump()[keys.Spec(ref("default", name))]; !ok {
			t.Errorf("%s is a source and does not exist", name)
		}
	}
}
