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

	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/recorder"
	"github.com/carillonhq/carillon/pkg/internal/test/sim"
)

// TestRestores simulates restores, until each outcome of what a lost history may have decided was reached. CARILLON_SIM="first number"
// continues with other seeds.
//
// Verifies: G68
func TestRestores(t *testing.T) {
	t.Parallel()
	racetest.SkipIfShort(t)

	paths := []string{"restored", "a daemon starts over", "restored: missed", "restored: lost", "restored: parent lost", "restored: dead", "revision lost"}
	first, number, most := uint64(1), uint64(8), uint64(40)
	if n, _ := fmt.Sscan(os.Getenv("CARILLON_SIM"), &first, &number); n == 2 {
		paths, most = nil, number
	}
	if testing.Short() {
		number = 4
	}

	total := map[string]int{}
	unreached := func() []string {
		return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return total[path] > 0 })
	}

	for i := uint64(0); i < most && (i < number || len(unreached()) > 0); i++ {
		seed := first + i
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			o := sim.DrawRestore(seed)
			r := sim.RunRestore(t, seed, o)
			for what, n := range r.Counts {
				total[what] += n
			}
			if r.OK() {
				return
			}

			path, err := filepath.Abs(fmt.Sprintf("../../../../build/restore-%d", seed))
			var history bytes.Buffer
			if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), recorder.Save(&history, r.Events), os.WriteFile(path+".log", []byte(r.Story+"\n\n"+r.String()), 0o600),
				os.WriteFile(path+".jsonl", history.Bytes(), 0o600)); err != nil {
				t.Error(err)
			}
			t.Errorf("seed %d, %+v: %s\nthe story is in %[4]s.log, the history in %[4]s.jsonl", seed, o, r.String(), path)
		})
	}

	for _, what := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%8d %s", total[what], what)
	}
	for _, path := range unreached() {
		t.Errorf("never reached: %s", path)
	}
}
