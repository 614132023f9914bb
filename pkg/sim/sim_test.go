package sim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/carillonhq/carillon/pkg/sim"
)

func TestCalm(t *testing.T) {
	live(t, 1, sim.Options{Only: []string{"calm"}})
}

// live runs one simulation, and fails on any violation.
func live(t *testing.T, seed uint64, o sim.Options) sim.Report {
	t.Helper()
	r := sim.Run(t, seed, o)
	if !r.OK() {
		path := filepath.Join(os.TempDir(), fmt.Sprintf("carillon-sim-%d.log", seed))
		if err := os.WriteFile(path, []byte(r.Story), 0o600); err != nil {
			t.Error(err)
		}
		t.Errorf("seed %d: %s\nthe story is in %s", seed, r.String(), path)
	}
	return r
}

func TestSeeds(t *testing.T) {
	first, n := uint64(1), 10
	fmt.Sscan(os.Getenv("SEED"), &first)
	fmt.Sscan(os.Getenv("SEEDS"), &n)
	for seed := first; seed < first+uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			live(t, seed, sim.Options{})
		})
	}
}
