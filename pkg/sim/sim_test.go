package sim_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/check"
	"github.com/carillonhq/carillon/pkg/sim"
)

func TestCalm(t *testing.T) {
	r := live(t, 1, sim.Options{Only: []string{"calm"}, Duration: 20 * time.Second})
	if r.Summary.Runs == 0 {
		t.Errorf("nothing ran:\n%s", r.String())
	}
}

// found are the seeds that found something, and what.
var found = map[uint64]string{
	1:    "a worker that was to wake between two milliseconds went round without a pause until then",
	9:    "what only creates, and is written twice, is made anew when it is over (not done any more, see the package comment)",
	2036: "an attempt that ended while its owner wanted to declare it lost: its next attempt vanished from the queue",
	2086: "an owner whose watch stalls decides on, and passes over ticks that only a new version of the schedule has",
	2095: "an owner that has just opened a shard may miss a retry that was queued while it scanned",
}

// TestSeeds lives through the seeds that found something; CARILLON_SIM="first number duration" has it take others.
func TestSeeds(t *testing.T) {
	t.Parallel()
	// With four more, so that all hard paths are reached.
	seeds := slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(found)), 3, 4, 5, 7)))
	var first, number uint64
	var duration string
	if n, _ := fmt.Sscan(os.Getenv("CARILLON_SIM"), &first, &number, &duration); n >= 2 {
		seeds = nil
		for i := range number {
			seeds = append(seeds, first+i)
		}
	}
	trouble, _ := time.ParseDuration(duration) // none: the default
	total := map[string]int{}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			for what, n := range live(t, seed, sim.Options{Duration: trouble}).Counts {
				total[what] += n
			}
		})
	}
	for _, what := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%8d %s", total[what], what)
	}
	for _, what := range sim.Hard {
		if total[what] == 0 {
			t.Errorf("never reached: %s", what)
		}
	}
}

// live runs one simulation, and fails on any violation.
func live(t *testing.T, seed uint64, o sim.Options) sim.Report {
	t.Helper()
	r := sim.Run(t, seed, o)
	if !r.OK() {
		path, err := filepath.Abs(fmt.Sprintf("../../build/sim-%d", seed)) // what is in TMPDIR, make test deletes
		var history bytes.Buffer
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), check.Save(&history, r.Events), os.WriteFile(path+".log", []byte(r.Story), 0o600),
			os.WriteFile(path+".jsonl", history.Bytes(), 0o600)); err != nil {
			t.Error(err)
		}
		t.Errorf("seed %d: %s\nthe story is in %[3]s.log, the history in %[3]s.jsonl", seed, r.String(), path)
	}
	return r
}
