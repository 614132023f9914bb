package placement

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// start is the time of all tests.
var start = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func node(name string, slots int, change ...func(*task.Node)) task.Node {
	n := task.Node{Name: name, State: task.NodeReady, Roles: []string{task.RoleExecutor}, Slots: slots, Revision: 10,
		Labels: map[string]string{"node": name}}

	for _, f := range change {
		f(&n)
	}

	return n
}

func draining(n *task.Node)  { n.State = task.NodeDraining }
func scheduler(n *task.Node) { n.Roles = []string{task.RoleScheduler} }

// picks counts, by node, where n runs go.
func picks(f *Fleet, n int, selector string) map[string]int {
	sel, err := task.ParseSelector(selector)
	if err != nil {
		panic(err)
	}

	to := map[string]int{}
	for range n {
		if n, ok := f.Reserve(Want{Selector: sel}, start); ok {
			to[n.Name]++
		}
	}

	return to
}

func TestFleet_PrefersItsOwnNodeWhileItHasSlots(t *testing.T) {
	t.Parallel()
	free := 3
	f := NewFleet("me", func() int { return free })
	f.Set([]task.Node{node("me", 5), node("other", 100)})

	if to := picks(f, 5, ""); to["me"] != 5 {
		t.Fatalf("with free slots: %v", to)
	}

	if to := picks(f, 10, ""); to["other"] != 10 {
		t.Errorf("when all slots are given away: %v", to)
	}

	for range 5 {
		f.Release("me", ProcessSlots)
	}

	if to := picks(f, 1, ""); to["me"] != 1 {
		t.Errorf("when they are back: %v", to)
	}

	free = 0

	if to := picks(f, 5, ""); to["me"] > 0 && to["other"] == 0 {
		t.Errorf("when its executor says that none is free: %v", to)
	}
}

func TestFleet_WithoutAnExecutorOfItsOwnGivesAllAway(t *testing.T) {
	t.Parallel()
	f := NewFleet("me", nil)
	f.Set([]task.Node{node("me", 5, scheduler), node("other", 100)})

	if to := picks(f, 10, ""); to["other"] != 10 {
		t.Errorf("%v", to)
	}
}

func TestFleet_PicksOnlyWhoTakesRunsAndMatches(t *testing.T) {
	t.Parallel()
	f := NewFleet("me", nil)
	db := func(n *task.Node) { n.Labels["role"] = "db" }
	f.Set([]task.Node{node("a", 5, db), node("b", 5), node("c", 5, db, draining), node("d", 5, db, scheduler)})

	if to := picks(f, 20, "role = db"); to["a"] != 20 {
		t.Errorf("%v", to)
	}

	if to := picks(f, 20, "role = web"); len(to) != 0 {
		t.Errorf("no node matches: %v", to)
	}

	f.Set(nil)

	if to := picks(f, 20, ""); len(to) != 0 {
		t.Errorf("no node is present: %v", to)
	}
}

func TestFleet_SpreadsRunsByLoad(t *testing.T) {
	t.Parallel()
	f := NewFleet("me", nil)
	f.Set([]task.Node{node("a", 100), node("b", 100), node("c", 100), node("d", 200)})
	to := picks(f, 500, "")

	for name, want := range map[string]int{"a": 100, "b": 100, "c": 100, "d": 200} {
		if to[name] < want-25 || to[name] > want+25 {
			t.Errorf("node %s has %d of 500 runs, want about %d: %v", name, to[name], want, to)
		}
	}

	// What a node reports about itself counts if it is more than what this scheduler has assigned to it.
	f = NewFleet("me", nil)
	f.Set([]task.Node{node("a", 100, func(n *task.Node) { n.Running = 90 }), node("b", 100)})

	if to := picks(f, 50, ""); to["b"] != 50 {
		t.Errorf("beside a node with 90 of 100 slots taken: %v", to)
	}
}

// Two of three matching nodes are next to each other among many that do not match.
func TestFleet_SpreadsRunsWhereverTheMatchingNodesStand(t *testing.T) {
	t.Parallel()
	f := NewFleet("me", nil)
	gpu := func(n *task.Node) { n.Labels["gpu"] = "yes" }

	nodes := []task.Node{node("a", 1_000_000, gpu)}
	for i := range 50 {
		nodes = append(nodes, node(fmt.Sprintf("m%02d", i), 10))
	}

	nodes = append(nodes, node("y", 1_000_000, gpu), node("z", 1_000_000, gpu))
	f.Set(nodes)
	to := picks(f, 3000, "gpu")

	for _, name := range []string{"a", "y", "z"} {
		if to[name] < 800 {
			t.Errorf("node %s has %d of 3000 runs: %v", name, to[name], to)
		}
	}
}

func TestFleet_LeavesOutSuspectsUntilTheirTimeOrNextSession(t *testing.T) {
	t.Parallel()
	f := NewFleet("me", nil)
	f.Set([]task.Node{node("a", 5), node("b", 5)})
	// A commit that used an older session proves nothing about the current one.
	f.Suspect("a", 10, start)

	if to := picks(f, 20, ""); to["b"] != 20 {
		t.Errorf("while a is suspect: %v", to)
	}

	if n, ok := f.Reserve(Want{}, start.Add(Suspicion)); !ok || n.Name != "a" {
		t.Errorf("afterwards %s is picked", n.Name)
	}

	f.Suspect("a", 10, start)
	f.Set([]task.Node{node("a", 5, func(n *task.Node) { n.Revision = 20 })})

	if to := picks(f, 1, ""); to["a"] != 1 {
		t.Errorf("in its next session: %v", to)
	}

	// A commit that knew an older session says nothing of the one that is there.
	f.Suspect("a", 10, start)

	if to := picks(f, 1, ""); to["a"] != 1 {
		t.Errorf("suspected for a session that it no longer has: %v", to)
	}
}

func TestFleet_ForgetsWhatEnded(t *testing.T) {
	t.Parallel()
	f := NewFleet("me", nil)
	f.Set([]task.Node{node("a", 5), node("b", 5)})
	picks(f, 10, "")
	f.Occupy("a", ProcessSlots)
	f.Release("a", ProcessSlots)
	f.Occupy("b", HTTPSlots)

	for range 10 {
		f.Release("a", ProcessSlots)
		f.Release("b", ProcessSlots)
		f.Release("b", HTTPSlots)
	}

	f.Suspect("b", 10, start)
	f.Set(nil)

	if len(f.Given(ProcessSlots))+len(f.Given(HTTPSlots)) != 0 || len(f.suspect) != 0 {
		t.Errorf("given %v, suspect %v", f.given, f.suspect)
	}
}

// HTTP attempts and processes do not take slots from each other.
func TestFleet_CountsHTTPAttemptsApart(t *testing.T) {
	t.Parallel()
	f := NewFleet("me", func() int { return 0 })
	f.Set([]task.Node{node("me", 1), node("other", 1)})
	reserve := func(w Want) string {
		n, ok := f.Reserve(w, start)
		if !ok {
			t.Fatal("no node")
		}
		return n.Name
	}

	// No process slot is free anywhere.
	f.Occupy("me", ProcessSlots)
	f.Occupy("other", ProcessSlots)

	for range task.HTTPSlots {
		if to := reserve(Want{Pool: HTTPSlots}); to != "me" {
			t.Fatalf("a request goes to %s", to)
		}
	}

	for range 5 {
		if to := reserve(Want{Pool: HTTPSlots}); to != "other" {
			t.Errorf("when the own node has all its HTTP slots in use, a request goes to %s", to)
		}
	}

	if http, processes := f.Given(HTTPSlots), f.Given(ProcessSlots); http["me"] != task.HTTPSlots || http["other"] != 5 || processes["me"] != 1 || processes["other"] != 1 {
		t.Errorf("counted are %v HTTP attempts, %v processes", http, processes)
	}

	// A retry avoids the node that could not reach its target, although no process slot is free elsewhere.
	for range 5 {
		if to := reserve(Want{Pool: HTTPSlots, Avoid: "other", Strategy: task.StrategyLeastLoaded}); to == "other" && f.Given(HTTPSlots)["me"] < task.HTTPSlots {
			t.Errorf("a retry goes to the same node")
		}
		f.Release("me", HTTPSlots)
	}

	// The secret's key still restricts the nodes.
	if n, ok := f.ReserveNamed("me", Want{Pool: HTTPSlots, Secret: true}, start); ok {
		t.Errorf("a request with a secret goes to %s, which has no key", n.Name)
	}
}
