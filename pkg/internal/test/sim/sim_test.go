package sim_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/recorder"
	"github.com/carillonhq/carillon/pkg/internal/test/sim"
)

func TestCalm(t *testing.T) {
	racetest.SkipIfShort(t)

	r := runInBubble(t, 1, sim.Options{Only: []string{"calm"}, Duration: 20 * time.Second})
	if r.Summary.Runs == 0 {
		t.Errorf("nothing ran:\n%s", r.String())
	}
}

// failedSeeds reads the list of seeds that have broken a guarantee.
func failedSeeds(t *testing.T) (seeds []uint64) {
	t.Helper()
	list, err := os.ReadFile("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}

	for line := range strings.Lines(string(list)) {
		if strings.HasPrefix(line, "#") {
			continue
		}

		number, what, _ := strings.Cut(line, " ")
		seed, err := strconv.ParseUint(number, 10, 64)
		if err != nil || strings.TrimSpace(what) == "" || slices.Contains(seeds, seed) {
			t.Fatalf("testdata/seeds.txt: want a seed that is not listed yet, and what it showed: %q", line)
		}

		seeds = append(seeds, seed)
	}

	return seeds
}

// TestSeeds simulates the seeds that have failed, and others, until all hard paths and all faults are reached.
// CARILLON_SIM="first number duration" continues with other seeds. With -short it simulates a few quick seeds that
// reach many paths, and then the others only until everything is reached. The race detector runs the first three of them.
//
// Verifies: G1-G13, G16, G17, G21-G25, G27-G31, G57-G59, G63, G64
func TestSeeds(t *testing.T) {
	t.Parallel()
	paths := slices.Concat(sim.Hard, sim.Faults())
	seeds, others := failedSeeds(t), []uint64{3, 4, 5, 7, 8, 11, 12}

	var first, number uint64
	var duration string
	if n, _ := fmt.Sscan(os.Getenv("CARILLON_SIM"), &first, &number, &duration); n >= 2 {
		paths, others = nil, nil // a few seeds do not have to reach everything
		for i := range number {
			others = append(others, first+i)
		}
	}

	trouble, _ := time.ParseDuration(duration) // 0: the default

	for _, seed := range others {
		if !slices.Contains(seeds, seed) {
			seeds = append(seeds, seed)
		}
	}

	var spare []uint64
	if testing.Short() {
		seeds, spare = []uint64{2, 9, 16, 28}, seeds
	}

	if racetest.Short() {
		seeds, spare, paths = seeds[:3], nil, nil
	}

	requireAllReached(t, paths, seeds, spare, sim.Options{Duration: trouble})
}

// requireAllReached simulates seeds, and fails if they do not reach all paths. The order of goroutines does not depend on
// the seed, so seeds can miss a path that few of them reach. In that case it continues with the spare seeds, and
// then with fifty more.
func requireAllReached(t *testing.T, paths []string, seeds, spare []uint64, o sim.Options) {
	t.Helper()
	total := map[string]int{}
	unreached := func() []string {
		return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return total[path] > 0 })
	}

	for seed := range uint64(50) {
		spare = append(spare, 100+seed)
	}

	for i, seed := range slices.Concat(seeds, spare) {
		if i >= len(seeds) && len(unreached()) == 0 {
			break
		}

		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			for what, n := range runInBubble(t, seed, o).Counts {
				total[what] += n
			}
		})
	}

	for _, what := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%8d %s", total[what], what)
	}

	for _, path := range unreached() {
		t.Errorf("never reached: %s", path)
	}
}

// runInBubble runs one simulation, and fails on any violation.
func runInBubble(t *testing.T, seed uint64, o sim.Options) sim.Report {
	t.Helper()
	r := sim.Run(t, seed, o)
	if !r.OK() {
		path, err := filepath.Abs(fmt.Sprintf("../../../../build/sim-%d", seed)) // not TMPDIR, which make test deletes
		var history bytes.Buffer
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), recorder.Save(&history, r.Events), os.WriteFile(path+".log", []byte(r.Story+"\n\n"+r.String()), 0o600),
			os.WriteFile(path+".jsonl", history.Bytes(), 0o600)); err != nil {
			t.Error(err)
		}

		t.Errorf("seed %d: %s\nthe story is in %[3]s.log, the history in %[3]s.jsonl", seed, r.String(), path)
	}

	return r
}
