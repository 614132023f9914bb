package sim_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/sim"
)

// listPaths is what simulations of lists must reach, or they test too little.
var listPaths = []string{
	"complete list", "list with missing shards", "list while the past is read", "list with a superseded shard",
	"complete list of failing tasks", "list of several pages", "list through the API", "dead run dismissed",
}

// TestLists_AreNeverWrongAndComplete reads lists without pause while one of three nodes is killed and another one drains
// (G30). With CARILLON_SIM, as in make sim, it reads 1,000 lists for each seed, and random faults follow.
//
// Verifies: G30
func TestLists_AreNeverWrongAndComplete(t *testing.T) {
	t.Parallel()
	o, lists := sim.ListOptions{Askers: 6, Readers: 1}, 500

	if racetest.Short() {
		r := sim.RunLists(t, 1, o)
		requireNoViolation(t, &r)
		return
	}

	var first, number uint64
	if n, _ := fmt.Sscan(os.Getenv("CARILLON_SIM"), &first, &number); n == 2 {
		o, lists = sim.ListOptions{Askers: 12, Readers: 2}, 1000*int(number)
		o.Duration = time.Minute
	}

	// Continue until enough is reached, but not for ever.
	const maxSeeds = 60
	total := map[string]int{}
	unreached := func() []string {
		return slices.DeleteFunc(slices.Clone(listPaths), func(path string) bool { return total[path] > 0 })
	}

	for seed := first + 1; seed <= first+maxSeeds && (total["list"] < lists || len(unreached()) > 0); seed++ {
		r := sim.RunLists(t, seed, o)
		requireNoViolation(t, &r)

		for what, n := range r.Counts {
			total[what] += n
		}
	}

	for _, what := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%8d %s", total[what], what)
	}
	for _, path := range unreached() {
		t.Errorf("never reached: %s", path)
	}
}

// requireNoViolation fails if a list contradicts the history, and stores the story of the simulation.
func requireNoViolation(t *testing.T, r *sim.ListReport) {
	t.Helper()

	t.Logf("seed %d: %d lists, %d complete", r.Seed, r.Counts["list"], r.Counts["complete list"])
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
