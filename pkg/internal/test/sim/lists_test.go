package sim_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/listcheck"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/sim"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// listPaths is what simulations of lists must reach, or they test too little.
var listPaths = []string{
	"complete list", "list with missing shards", "list while the past is read", "list with a superseded shard",
	"complete list of failing tasks", "list of several pages", "list through the API", "dead run dismissed",
}

// TestLists_AreNeverWrongAndComplete reads lists without pause while one of three nodes is killed and another one drains
// (G30). The same simulation must catch the mutants of lists. With CARILLON_SIM, as in make sim, it reads 1,000 lists for
// each seed, and random faults follow.
//
// Verifies: G30
func TestLists_AreNeverWrongAndComplete(t *testing.T) {
	t.Parallel()
	o, lists, chance := sim.ListOptions{Askers: 6, Readers: 1}, 500, 0.8

	if racetest.Short() {
		r := sim.RunLists(t, 1, o)
		requireNoViolation(t, &r)
		return
	}

	var first, number uint64
	if n, _ := fmt.Sscan(os.Getenv("CARILLON_SIM"), &first, &number); n == 2 {
		o, lists, chance = sim.ListOptions{Askers: 12, Readers: 2}, 1000*int(number), 0.2
		o.Duration = time.Minute
	}

	mutants := slices.DeleteFunc(slices.Clone(mutant.Lists), func(m mutant.ListMutant) bool { return m.Chance < chance })

	// Continue until enough is reached, but not for ever.
	const mostSeeds = 60
	total, caught := map[string]int{}, map[string]check.Violation{}
	unreached := func() []string {
		return slices.DeleteFunc(slices.Clone(listPaths), func(path string) bool { return total[path] > 0 })
	}
	uncaught := func() []mutant.ListMutant {
		return slices.DeleteFunc(slices.Clone(mutants), func(m mutant.ListMutant) bool { _, ok := caught[m.Name]; return ok })
	}

	for seed := first + 1; seed <= first+mostSeeds && (total["list"] < lists || len(unreached()) > 0 || len(uncaught()) > 0); seed++ {
		r := sim.RunLists(t, seed, o)
		requireNoViolation(t, &r)

		for what, n := range r.Counts {
			total[what] += n
		}
		maps.Copy(caught, r.Caught)
	}

	for _, what := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%8d %s", total[what], what)
	}
	for _, name := range slices.Sorted(maps.Keys(caught)) {
		t.Logf("%s is caught: %s", name, caught[name])
	}
	for _, path := range unreached() {
		t.Errorf("never reached: %s", path)
	}
	for _, m := range uncaught() {
		t.Errorf("not caught: %s", m.Name)
	}
}

// In the simulation, it rarely matters that a node is not asked again: the tasks of the superseded shard must be gone
// meanwhile. Here, its places on the page are those of a node that has others to offer.
func TestListMutants_NotAskedAgainIsCaught(t *testing.T) {
	t.Parallel()
	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}

	// The tasks a and b of shard 0 are deleted, and the shard has moved to n2. n1 does not know either.
	now := time.Now()
	events := []check.Event{{Revision: 1, Key: keys.Entry(record.Ref{Namespace: "ns", Name: "c", Shard: 1}), Value: []byte(record.Encode(task.Entry{UID: "c"}))}}
	history := listcheck.NewHistory(keys, events, func(int64) time.Time { return now.Add(-time.Hour) }, nil)

	place := func(name string, shard int) readmodel.Place { return readmodel.Place{Name: "ns/" + name, Shard: shard} }
	owned := func(shard int, owner int64, tasks int) readmodel.ShardAnswer {
		return readmodel.ShardAnswer{Shard: shard, Owner: owner, Counts: readmodel.Counts{Tasks: tasks}}
	}

	n2 := readmodel.NodeAnswer{Node: "n2", Shards: []readmodel.ShardAnswer{owned(0, 9, 0)}}
	asked := mutant.Asked{
		Query: &readmodel.Query{Order: readmodel.ByName, Limit: 2}, Shards: 2,
		First: []readmodel.NodeAnswer{
			{Node: "n1", Shards: []readmodel.ShardAnswer{owned(0, 5, 2), owned(1, 5, 1)}, Places: []readmodel.Place{place("a", 0), place("b", 0)}, More: true}, n2,
		},
		Final: []readmodel.NodeAnswer{{Node: "n1", Shards: []readmodel.ShardAnswer{owned(1, 5, 1)}, Places: []readmodel.Place{place("c", 1)}}, n2},
	}

	judge := func(p readmodel.Page) []check.Violation {
		l := listcheck.List{Filter: listcheck.All, ByName: true, Asked: now, AsOf: now, Shown: now, Count: p.Counts.Tasks, Missing: p.Missing}
		for _, place := range p.Places {
			l.Names = append(l.Names, place.Name)
		}

		return history.CheckList(&l)
	}

	if v := judge(asked.Merge()); len(v) > 0 {
		t.Errorf("without a mutant: %v", v)
	}

	i := slices.IndexFunc(mutant.Lists, func(m mutant.ListMutant) bool { return m.Name == "not-asked-again" })
	if v := judge(mutant.Lists[i].Merge(&asked)); len(v) == 0 {
		t.Error("not caught")
	}
}

// requireNoViolation fails if a list contradicts the history, and stores the story of the simulation.
func requireNoViolation(t *testing.T, r *sim.ListReport) {
	t.Helper()

	t.Logf("seed %d: %d lists, %d complete, mutants caught: %v", r.Seed, r.Counts["list"], r.Counts["complete list"], slices.Sorted(maps.Keys(r.Caught)))
	if len(r.Violations) == 0 {
		return
	}

	for _, v := range r.Violations[:min(len(r.Violations), 20)] {
		t.Errorf("seed %d: %s", r.Seed, v)
	}

	path := fmt.Sprintf("../../../../build/lists-%d.log", r.Seed)
	if err := os.MkdirAll("../../../../build", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(r.Story), 0o600); err != nil {
		t.Fatal(err)
	}

	t.Fatalf("seed %d: %d violations; the story is in %s", r.Seed, len(r.Violations), path)
}
