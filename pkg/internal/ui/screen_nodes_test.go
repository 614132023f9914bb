package ui

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// online writes the record of a node.
func (w *world) online(name string, edits ...func(*task.Node)) {
	w.t.Helper()
	n := task.Node{
		Name: name, Instance: "i-" + name, State: task.NodeReady, Format: store.NewestFormat, Version: "1.2.3", Slots: 4, Weight: 1,
		Roles: []string{task.RoleScheduler, task.RoleExecutor}, Labels: map[string]string{"node": name, "zone": "a"},
	}
	for _, edit := range edits {
		edit(&n)
	}
	w.put(w.Store.Keys().Node(name), n)
}

// put writes a record.
func (w *world) put(key string, value any) {
	w.t.Helper()
	b, err := json.Marshal(value)
	must(w.t, err)
	_, err = w.Etcd.Put(w.t.Context(), key, string(b))
	must(w.t, err)
}

// owns writes the owner of shards.
func (w *world) owns(node, before string, shards ...int) {
	w.t.Helper()
	for _, id := range shards {
		o := record.Owner{Node: node, Since: task.At(w.Clock.Now().Add(-time.Minute))}
		if before != "" {
			o.Previous = []task.Assignment{{Node: before}}
		}
		w.put(w.Store.Keys().Owner(id), o)
	}
}

// A node is drained and resumed by those who may, after a look at what would move.
func TestNode_IsDrainedAfterALook(t *testing.T) {
	w := newWorld(t)
	w.online("node-a")
	w.online("node-b", func(n *task.Node) { n.Running = 1 })
	w.owns("node-a", "", 0, 1, 2, 3, 4, 5)
	w.owns("node-b", "", 6, 7)
	w.Bind("user:bob", "viewer")
	w.api = w.apiWith(func(c *api.Config) {
		c.SetState = func(_ context.Context, state string, by *task.Actor) error {
			w.online("node-a", func(n *task.Node) { n.State, n.StateBy = state, by })
			return nil
		}
	})
	ann, bob := w.as("user:ann"), w.as("user:bob")

	want(t, ann.page("/ui/nodes"), `href="/ui/nodes/node-a"`, "zone=a")
	want(t, ann.page("/ui/nodes/node-a?do=drain"), "6 shards and the runs that have not started move", "The numbers are estimates", `<th scope="row" class="break">node-b</th><td class="num">2</td><td class="num">8</td>`, "3 free slots", "carillon node drain node-a")
	want(t, ann.page("/ui/nodes/node-a?do=cordon"), "keeps its shards (6)")
	if page := bob.page("/ui/nodes/node-a?do=drain"); strings.Contains(page, "Drain") {
		t.Errorf("a viewer is offered to drain:\n%s", page)
	}

	form := url.Values{"at": {"/ui/nodes/node-a?do=drain"}}
	if a := bob.do(http.MethodPost, "/ui/nodes/node-a/drain", form); a.StatusCode != http.StatusForbidden {
		t.Errorf("a viewer's drain: %d, want 403", a.StatusCode)
	}
	if a := ann.do(http.MethodPost, "/ui/nodes/node-a/drain", form); a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui/nodes/node-a" {
		t.Fatalf("drain: %d %s", a.StatusCode, a.body)
	}
	want(t, ann.page("/ui/nodes/node-a"), "It drains: 6 shards and 0 runs are left", "End the drain", "user:ann")

	if a := ann.do(http.MethodPost, "/ui/nodes/node-a/resume", form); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("resume: %d %s", a.StatusCode, a.body)
	}
	want(t, ann.page("/ui/nodes/node-a"), "Drain…", "It runs nothing now")
}

// The last node that can own shards keeps them, and the page says so before and after.
func TestNode_SaysThatNothingTakesItsShards(t *testing.T) {
	w := newWorld(t)
	w.online("node-a")
	w.owns("node-a", "", 0)
	ann := w.as("user:ann")

	want(t, ann.page("/ui/nodes/node-a?do=drain"), "No other node can own shards now")
	w.online("node-a", func(n *task.Node) { n.State = task.NodeDraining })
	want(t, ann.page("/ui/nodes/node-a"), "no other node can own shards now")
	if a := ann.get("/ui/nodes/none"); a.StatusCode != http.StatusNotFound {
		t.Errorf("a node that does not exist: %d", a.StatusCode)
	}
}

func TestMovesOf_MovesOnlyTheShardsOfTheNode(t *testing.T) {
	node := func(name string, shards, weight int) task.Node {
		return task.Node{Name: name, State: task.NodeReady, Roles: []string{task.RoleScheduler}, Shards: shards, Weight: weight}
	}
	nodes := []task.Node{node("a", 100, 1), node("b", 78, 1), node("c", 78, 2)}
	nodes = append(nodes, task.Node{Name: "executor", State: task.NodeReady, Roles: []string{task.RoleExecutor}})

	moves := movesOf(nodes[0], nodes)
	if len(moves) != 2 || moves[0] != (shardMove{"b", 78, 85}) || moves[1] != (shardMove{"c", 78, 171}) {
		t.Errorf("%+v", moves)
	}
}

// Shards that nobody owns, or whose owner is not online, stand out, by shape as well.
func TestShards_ShowOwnersAndMoves(t *testing.T) {
	w := newWorld(t)
	w.online("node-a")
	w.owns("node-a", "node-b", 0, 1, 2)
	w.owns("node-gone", "", 3)
	page := w.as("user:ann").page("/ui/shards")

	want(t, page, "3 of 8 owned", "Nobody owns 4 shards", "Owners of 1 shard are not online", "3 <span class=\"sub\">0, 1, 2</span>", "shard 3: node-gone, which is not online", "carillon shard list -o wide")
	if n := strings.Count(page, `<li class="cell none"`); n != 5 {
		t.Errorf("%d cells without an owner, want 5", n)
	}
	if n := strings.Count(page, `<li class="cell c0"`); n != 3 {
		t.Errorf("%d cells of node-a, want 3", n)
	}

	w.Bind("user:bob", "viewer", "prod")
	if a := w.as("user:bob").get("/ui/shards"); a.StatusCode != http.StatusForbidden {
		t.Errorf("a viewer of a namespace: %d, want 403", a.StatusCode)
	}
}

func TestOwnerLetter(t *testing.T) {
	for i, want := range map[int]string{0: "A", 25: "Z", 26: "AA", 51: "AZ", 52: "BA", 701: "ZZ", 702: "AAA"} {
		if got := ownerLetter(i); got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
	}
}

// The page explains a time, and leads from tick to tick.
func TestWhy_ExplainsTicks(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web", func(s *task.Spec) { s.Timezone = "Europe/Berlin" })
	w.online("node-a")
	ann := w.as("user:ann")
	page := func(at string) string {
		return ann.page("/ui/why/prod/web?" + url.Values{"at": {at}}.Encode())
	}

	want(t, page("2026-11-21T09:00:00Z"), "will run", "What the timetable says", "@hourly in Europe/Berlin", "at=2026-11-21T08%3A00%3A00Z", "at=2026-11-21T10%3A00%3A00Z", "carillon why web -n prod --at 2026-11-21T09:00:00Z")
	want(t, page("23:30"), "no tick", "Sat 21 Nov 2026 00:00:00 CET", "Later tick") // today, in the zone of the task
	want(t, ann.page("/ui/why/prod/web"), "Later tick", "carillon why web -n prod</code>")
	want(t, ann.page("/ui/why/prod/web?from=2026-11-21&to=2026-11-22"), "In order")

	a := ann.get("/ui/why/prod/web?at=never")
	if a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("a time that cannot be read: %d", a.StatusCode)
	}
	want(t, a.body, `value="never"`, `aria-invalid="true"`, "never")

	if a := ann.get("/ui/why/prod/none"); a.StatusCode != http.StatusNotFound {
		t.Errorf("a task that does not exist: %d", a.StatusCode)
	}
	w.Bind("user:bob", "viewer", "test")
	if a := w.as("user:bob").get("/ui/why/prod/web"); a.StatusCode < 400 || strings.Contains(a.body, "@hourly") {
		t.Errorf("a viewer of another namespace: %d", a.StatusCode)
	}
}
